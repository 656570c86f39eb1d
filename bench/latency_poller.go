package bench

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// poller is the gateway's core while latency is measured: a thread on CPU 1 that polls the NAPI of lan
// without a pause, whatever then forwards. Woken by an interrupt, as NAPI is otherwise, the gateway
// would answer when the other core's interrupt has reached it: on a virtual machine that alone can take
// 20 us, of which forwarding is one.
type poller struct {
	fd int
}

// pollerPort is where the gateway's own socket takes the packet that tells it which NAPI it is to poll.
const pollerPort = 9

// openPoller opens the socket that polls. A socket knows the NAPI of the packet that it got last, so one
// is sent to it, as frames are sent: what a stack sends over veth does not always come by NAPI.
func (l *lane) openPoller() (_ *poller, err error) {
	w := l.wire()
	p := &poller{}
	err = w.gw.Do(func() error {
		if p.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if err := unix.Bind(p.fd, &unix.SockaddrInet4{Port: pollerPort}); err != nil {
		return nil, fmt.Errorf("bind port %d: %w", pollerPort, err)
	}
	own := gatewayConn(0)
	own.dst, own.dport = ip4(10<<24|10<<16|1<<8|1), pollerPort
	if err := l.sendOne(own); err != nil {
		return nil, err
	}
	timeout := unix.NsecToTimeval(time.Second.Nanoseconds())
	if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, fmt.Errorf("set time-out: %w", err)
	}
	if _, err := p.receive(); err != nil {
		return nil, fmt.Errorf("wait for a packet to the gateway: %w", err)
	}
	id, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_INCOMING_NAPI_ID)
	if err == nil && id == 0 {
		err = errors.New("the packet came by none")
	}
	if err != nil {
		return nil, fmt.Errorf("find the NAPI of lan: %w", err)
	}
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL, 1); err != nil {
		return nil, fmt.Errorf("prefer polling: %w", err)
	}
	return p, nil
}

func (p *poller) receive() (int, error) {
	var b [64]byte
	for {
		n, _, err := unix.Recvfrom(p.fd, b[:], 0)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// poll waits until frames begin to be sent and polls as long as they are, for span, and a moment more.
// Meanwhile no RCU grace period ends, so that it must not begin earlier.
func (p *poller) poll(j *journeys, span time.Duration) error {
	unpin, err := pin(1)
	if err != nil {
		return err
	}
	defer unpin()
	normal, err := realtime()
	if err != nil {
		return err
	}
	defer normal()
	for wait := 0; ; wait++ {
		s, err := j.state()
		if err != nil {
			return err
		}
		if s.Begin != 0 {
			break
		}
		if wait == 5000 {
			return errors.New("wait for the first frame: there is none")
		}
		pause := unix.NsecToTimespec(time.Millisecond.Nanoseconds())
		unix.Nanosleep(&pause, nil)
	}
	busy := latencyLead + span + pollAfter
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL, int(busy.Microseconds())); err != nil {
		return fmt.Errorf("set time to poll for: %w", err)
	}
	timeout := unix.NsecToTimeval(time.Microsecond.Nanoseconds())
	if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("set time-out: %w", err)
	}
	if _, err := p.receive(); err != nil && !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("poll: %w", err)
	}
	return nil
}

func (p *poller) close() error {
	return unix.Close(p.fd)
}

// realtime lets nothing else run on the calling thread's CPU, to which the goroutine is locked, until
// the function that it returns is called. After a second the kernel gives other work its share.
func realtime() (normal func(), err error) {
	runtime.LockOSThread()
	a := unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 50}
	if err := unix.SchedSetAttr(0, &a, 0); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("make thread real-time: %w", err)
	}
	return func() {
		unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_NORMAL}, 0)
		runtime.UnlockOSThread()
	}, nil
}
