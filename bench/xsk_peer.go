package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// xdpsock is the peer of `bench xsk`: the C program of the bpf-examples project, where it is on PATH.
type xdpsock struct {
	rig     *xskRig
	path    string
	command []string // as a person would type it, in the device's network namespace
	why     error    // it cannot run with the same settings, or is not here
}

// What xdpsock.c has as constants.
const (
	xdpsockRing     = 2048
	xdpsockFrames   = 4096
	xdpsockBusyPoll = 20 * time.Microsecond
)

// findXDPSock returns the peer for a rig whose own sockets were granted the mode.
func findXDPSock(r *xskRig, mode xsk.Mode) *xdpsock {
	x := &xdpsock{rig: r}
	x.command, x.why = xdpsockCommand(r.options, r.device, mode, r.workers[0], r.template)
	path, err := exec.LookPath("xdpsock")
	if err != nil {
		x.why = fmt.Errorf("%w: it is in AF_XDP-example of https://github.com/xdp-project/bpf-examples", err)
	} else if x.path, err = filepath.Abs(path); err != nil {
		x.why = err
	}
	return x
}

// xdpsockCommand returns the command line that does what the options say, and why there is none.
func xdpsockCommand(o *XSKOptions, device string, mode xsk.Mode, cpu int, template []byte) ([]string, error) {
	switch {
	case o.RingSize != xdpsockRing:
		return nil, fmt.Errorf("xdpsock's rings have %d descriptors, and %d were asked for", xdpsockRing, o.RingSize)
	case o.UMEMFrames != xdpsockFrames:
		return nil, fmt.Errorf("xdpsock has %d frames, and %d were asked for", xdpsockFrames, o.UMEMFrames)
	case o.HugePages:
		return nil, errors.New("xdpsock has huge pages with unaligned frames only")
	case o.Queues != 1:
		return nil, fmt.Errorf("xdpsock drives one queue, and %d were asked for", o.Queues)
	case o.BusyPoll != 0 && o.BusyPoll != xdpsockBusyPoll:
		return nil, fmt.Errorf("xdpsock polls for %v, and %v was asked for", xdpsockBusyPoll, o.BusyPoll)
	case o.Bench == TxPush && (o.Pcap != "" || o.Rate > 0 || o.Flows != 1):
		return nil, errors.New("xdpsock sends one frame over and over, as fast as can be")
	}
	c := []string{"taskset", "-c", strconv.Itoa(cpu), "xdpsock",
		map[string]string{RxDrop: "--rxdrop", TxPush: "--txonly", L2Fwd: "--l2fwd"}[o.Bench],
		"-i", device, "-q", "0", "-b", strconv.Itoa(o.Batch), "-f", strconv.Itoa(o.FrameSize)}
	switch mode {
	case xsk.ZeroCopy:
		c = append(c, "-N", "-z")
	case xsk.Copy:
		c = append(c, "-N", "-c")
	case xsk.Generic:
		c = append(c, "-S")
	}
	if o.BusyPoll > 0 {
		c = append(c, "-B")
	}
	if o.Bench == TxPush {
		// Its sizes include a frame check sequence.
		c = append(c, "-s", strconv.Itoa(xskFrame+4), "-G", macText([6]byte(template[0:6])), "-H", macText([6]byte(template[6:12])))
	}
	return append(c, "-n", "1", "-x"), nil
}

// XSKPeerCommand returns the command line that xdpsock would run with, for --show-peer.
func XSKPeerCommand(o XSKOptions) (string, error) {
	if err := o.check(); err != nil {
		return "", err
	}
	r := &xskRig{options: &o, device: o.Interface}
	mode := o.Mode
	var err error
	if o.Interface == "" {
		r.device = "c0"
		if _, err = r.placeOnWire(); err == nil && len(o.CPUs) > 0 {
			r.workers = o.CPUs
		}
		if mode == xsk.Any {
			mode = xsk.Copy // the best that veth has
		}
	} else if r.workers = o.CPUs; len(o.CPUs) == 0 {
		var cpus []int
		cpus, err = localCPUs(o.Interface)
		r.workers = spread(cpus, nil, o.Queues)
	}
	if err != nil {
		return "", err
	}
	c, err := xdpsockCommand(&o, r.device, mode, r.workers[0], r.traffic.template(xskNobody, [6]byte{}))
	return strings.Join(c, " "), err
}

// tell writes into the environment and the result what the peer runs with, or why it does not.
func (x *xdpsock) tell(env *Environment, o *XSKOptions, d *XSKDetail) {
	if x == nil {
		return
	}
	d.PeerCommand = strings.Join(x.command, " ")
	line := d.PeerCommand
	if x.why != nil {
		d.PeerCommand, d.PeerWhy = "", x.why.Error()
		line = "left out: " + d.PeerWhy
	} else {
		env.Peers["xdpsock"] = x.version()
	}
	if o.Label != "" {
		line = o.Label + ": " + line
	}
	if have := env.PeerConfig["xdpsock"]; have != "" {
		line = have + "\n" + line
	}
	env.PeerConfig["xdpsock"] = line
}

// version names the program by its file, since it does not say which version it is.
func (x *xdpsock) version() string {
	f, err := os.Open(x.path)
	if err != nil {
		return x.path
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return x.path
	}
	return fmt.Sprintf("%s, sha256 %x", x.path, h.Sum(nil))
}

// xdpsockStart is how long xdpsock may take until it works, and xdpsockEnd until it has gone.
const (
	xdpsockStart = 5 * time.Second
	xdpsockEnd   = 5 * time.Second
)

// measure runs xdpsock for a part and returns its rate, 0 if the context ended too early. The calling
// goroutine is locked to its thread.
func (x *xdpsock) measure(ctx context.Context, part time.Duration) (rate float64, err error) {
	r := x.rig
	if r.generator != nil && r.options.Bench != TxPush {
		r.generator.start()
		defer func() { err = errors.Join(err, r.generator.stop()) }()
	}
	defer func() { err = errors.Join(err, r.detach()) }()
	for end := time.Now().Add(xdpsockStart); ; time.Sleep(20 * time.Millisecond) {
		rate, err := x.run(ctx, part)
		// The kernel lets go of the queue of our own socket a moment after that was closed.
		if errors.Is(err, errQueueBusy) && time.Now().Before(end) {
			continue
		}
		return rate, err
	}
}

var errQueueBusy = errors.New("the queue is busy")

func (x *xdpsock) run(ctx context.Context, part time.Duration) (float64, error) {
	r := x.rig
	argv := append([]string(nil), x.command...)
	argv[3] = x.path
	var cmd *exec.Cmd
	if r.near != nil {
		cmd = r.near.Command(context.Background(), argv[0], argv[1:]...)
	} else {
		cmd = exec.Command(argv[0], argv[1:]...)
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	// A group of its own: Ctrl-C is for this process, which then ends that one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	// Into a pipe it would write when its buffer is full; to a terminal it writes line by line.
	near, far, err := openTerminal()
	if err != nil {
		return 0, err
	}
	defer near.Close()
	cmd.Stdout = far
	err = cmd.Start()
	far.Close()
	if err != nil {
		return 0, err
	}
	out := &xdpsockOutput{direction: "tx"}
	if r.options.Bench == RxDrop {
		out.direction = "rx"
	}
	read, gone := make(chan struct{}), make(chan error, 1)
	go func() { out.read(near); close(read) }()
	go func() { gone <- cmd.Wait() }()
	rate, err := x.watch(ctx, part, out, gone)
	if endErr := x.end(cmd, gone); endErr != nil {
		err = endErr // which says why, if it had ended before
	}
	<-read
	if err == nil {
		return rate, nil
	}
	said := lastLines(complaints.String())
	if strings.Contains(strings.ToLower(said), unix.EBUSY.Error()) {
		err = fmt.Errorf("%w: %w", errQueueBusy, err)
	}
	return 0, fmt.Errorf("%w: %s", err, said)
}

// openTerminal makes a terminal of which this process is the person.
func openTerminal() (near, far *os.File, err error) {
	if near, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		far, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		near.Close()
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	return near, far, nil
}

// watch waits until xdpsock works and has worked for a part, and returns its rate: as it is seen at the veth
// pair's far end, or as it tells itself.
func (x *xdpsock) watch(ctx context.Context, part time.Duration, out *xdpsockOutput, gone chan error) (float64, error) {
	r := x.rig
	wait := func(d time.Duration) error {
		select {
		case <-ctx.Done():
		case err := <-gone:
			gone <- err
			return errors.New("it has ended by itself")
		case <-time.After(d):
		}
		return nil
	}
	end := time.Now().Add(xdpsockStart)
	for {
		works, err := x.works()
		if err != nil {
			return 0, err
		}
		if works || ctx.Err() != nil {
			break
		}
		if time.Now().After(end) {
			return 0, fmt.Errorf("nothing of it is seen on %s after %v", r.device, xdpsockStart)
		}
		if err := wait(10 * time.Millisecond); err != nil {
			return 0, err
		}
	}
	if !x.seen() {
		return x.listen(ctx, int(max(1, part.Round(time.Second)/time.Second)), out, wait)
	}
	if err := wait(min(xskWarmUp, part)); err != nil {
		return 0, err
	}
	from, err := r.generator.back()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := wait(part); err != nil {
		return 0, err
	}
	to, err := r.generator.back()
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	if took < 10*time.Millisecond {
		return 0, nil
	}
	return float64(to.packets-from.packets) / took.Seconds(), nil
}

// seen reports whether what xdpsock sends can be counted by somebody else.
func (x *xdpsock) seen() bool { return x.rig.generator != nil && x.rig.options.Bench != RxDrop }

// works reports whether xdpsock has begun.
func (x *xdpsock) works() (bool, error) {
	if !x.seen() {
		return x.rig.attached()
	}
	before, err := x.rig.generator.back()
	if err != nil {
		return false, err
	}
	time.Sleep(time.Millisecond)
	after, err := x.rig.generator.back()
	return after.packets > before.packets, err
}

// end ends xdpsock as Ctrl-C does, upon which it detaches its program, and by force if that does not help.
func (x *xdpsock) end(cmd *exec.Cmd, gone chan error) error {
	_ = cmd.Process.Signal(unix.SIGINT) // if it is there still
	select {
	case err := <-gone:
		return err
	case <-time.After(xdpsockEnd):
		_ = cmd.Process.Kill()
		<-gone
		return fmt.Errorf("it did not end within %v", xdpsockEnd)
	}
}

// listen waits until xdpsock has told of so many seconds, and returns the rate over them.
func (x *xdpsock) listen(ctx context.Context, seconds int, out *xdpsockOutput, wait func(time.Duration) error) (float64, error) {
	for end := time.Now().Add(xdpsockStart + 3*time.Duration(seconds)*time.Second); time.Now().Before(end); {
		if packets, took, blocks := out.sum(); blocks >= seconds || ctx.Err() != nil {
			if took <= 0 {
				return 0, nil
			}
			return packets / took, nil
		}
		if err := wait(10 * time.Millisecond); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("its output tells nothing of %d seconds: %q", seconds, out.tail())
}

// xdpsockOutput is what xdpsock has printed so far of one direction: once a second a block with a line such
// as "rx   1,234,567   2345678", packets a second and packets so far, under a head that ends in the seconds
// that it is about, as in "   pps   pkts   1.00".
type xdpsockOutput struct {
	direction string

	mu               sync.Mutex
	packets, seconds float64 // so far
	blocks           int
	last             float64 // seconds of the last head
	lines            []string
}

var (
	xdpsockHead = regexp.MustCompile(`^\s*pps\s+pkts\s+([0-9.,]+)\s*$`)
	xdpsockLine = regexp.MustCompile(`^(rx|tx)\s+([0-9.,]+)\s+([0-9.,]+)\s*$`)
)

// read reads until xdpsock has gone, which ends in an error where it had a terminal.
func (o *xdpsockOutput) read(r io.Reader) {
	for s := bufio.NewScanner(r); s.Scan(); {
		o.take(s.Text())
	}
}

func (o *xdpsockOutput) take(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines[max(0, len(o.lines)-10):], strings.TrimSpace(line))
	if m := xdpsockHead.FindStringSubmatch(line); m != nil {
		o.last = number(m[1])
	} else if m := xdpsockLine.FindStringSubmatch(line); m != nil && m[1] == o.direction {
		o.packets = number(m[3])
		o.seconds += o.last
		o.blocks++
	}
}

// sum returns how many packets xdpsock has told of, in which time, in how many blocks.
func (o *xdpsockOutput) sum() (packets, seconds float64, blocks int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.packets, o.seconds, o.blocks
}

// tail returns the last lines.
func (o *xdpsockOutput) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.lines, "; ")
}

// number reads a number in which commas may stand.
func number(s string) float64 {
	v, err := strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
	if err != nil {
		return 0
	}
	return v
}

// lastLines returns the end of what a program printed.
func lastLines(s string) string {
	s = strings.TrimSpace(s)
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-6):], "; ")
}
