package testenv

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CaptureOptions of StartCapture. The zero value takes every arriving frame whole and keeps the first
// 10,000 of them.
type CaptureOptions struct {
	Snaplen  int                     // bytes kept of a frame; 0 is all
	Match    func(frame []byte) bool // which whole frames count; nil is all; called from one goroutine
	Keep     int                     // frames kept; more only count; 0 is 10,000
	Outgoing bool                    // frames that the device sends count too
}

// A Frame is one captured frame. With GRO on, TCP segments of one flow arrive as one long frame; a
// frame that a local stack sends may be longer than the MTU and lack its checksum.
type Frame struct {
	Data            []byte // from the Ethernet header on, with the VLAN tag where it was
	Length          int    // bytes before Snaplen cut it
	Outgoing        bool   // sent by the device, not received
	ChecksumPartial bool   // the transport checksum is still the sender's device's to complete
}

// A Capture reads frames from a device from its start until Stop.
type Capture struct {
	file    *os.File
	options CaptureOptions
	done    chan struct{}

	mu     sync.Mutex
	frames []Frame
	count  int
	err    error
}

// captureBuffer holds what arrives while the reader is busy, in bytes: 100,000 small frames.
const captureBuffer = 128 << 20

// StartCapture begins to capture on the namespace's device: what arrives after it returns is seen.
func (n *Namespace) StartCapture(device string, o CaptureOptions) (*Capture, error) {
	if o.Keep == 0 {
		o.Keep = 10_000
	}
	fd, err := n.packetSocket(device, unix.ETH_P_ALL, unix.PACKET_AUXDATA)
	if err != nil {
		return nil, fmt.Errorf("capture on %s: %w", device, err)
	}
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		unix.SetNonblock(fd, true)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("capture on %s: %w", device, err)
	}
	c := &Capture{file: os.NewFile(uintptr(fd), device), options: o, done: make(chan struct{})}
	go c.read()
	return c, nil
}

// Count returns how many frames matched so far.
func (c *Capture) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// Frames returns the frames kept so far. Their bytes are not written again.
func (c *Capture) Frames() []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.frames)
}

// Wait returns when that many frames have matched, or with the context's error.
func (c *Capture) Wait(ctx context.Context, count int) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for c.Count() < count {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %d frames: %w after %d", count, context.Cause(ctx), c.Count())
		case <-tick.C:
		}
	}
	return nil
}

// Stop reads what has arrived until now, ends the capture, and returns the number of matching frames.
// It is an error if the kernel lost frames for want of room, because then the count proves nothing.
// Call it once.
func (c *Capture) Stop() (int, error) {
	if err := c.file.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return 0, fmt.Errorf("stop capture: %w", err)
	}
	<-c.done
	err := c.err
	lost, statErr := c.lost()
	if statErr != nil {
		err = errors.Join(err, statErr)
	}
	if lost > 0 {
		err = errors.Join(err, fmt.Errorf("capture on %s: the kernel lost %d frames", c.file.Name(), lost))
	}
	return c.Count(), errors.Join(err, c.file.Close())
}

func (c *Capture) lost() (uint32, error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var stats *unix.TpacketStats
	var statErr error
	if err := raw.Control(func(fd uintptr) {
		stats, statErr = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	}); err != nil {
		return 0, err
	}
	if statErr != nil {
		return 0, fmt.Errorf("read capture's counters: %w", statErr)
	}
	return stats.Drops, nil
}

// read takes frames until Stop sets a deadline that has passed, then drains the socket.
func (c *Capture) read() {
	defer close(c.done)
	raw, err := c.file.SyscallConn()
	if err != nil {
		c.err = err
		return
	}
	r := frameReader{buf: make([]byte, 256<<10)}
	for {
		err := raw.Read(func(fd uintptr) bool { return c.takeAll(int(fd), &r) })
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.err = fmt.Errorf("capture: %w", err)
			return
		}
		if c.err != nil {
			return
		}
		if err != nil {
			// raw.Read looks at the deadline before it calls: what is left is read here.
			if err := raw.Control(func(fd uintptr) { c.takeAll(int(fd), &r) }); err != nil {
				c.err = fmt.Errorf("capture: %w", err)
			}
			return
		}
	}
}

// takeAll reads until the socket is empty, and returns false then, true after an error.
func (c *Capture) takeAll(fd int, r *frameReader) bool {
	for {
		f, err := r.next(fd)
		switch {
		case err == unix.EAGAIN:
			return false
		case err == unix.EINTR:
			continue
		case err != nil:
			c.err = fmt.Errorf("capture: %w", err)
			return true
		}
		if f.Outgoing && !c.options.Outgoing || c.options.Match != nil && !c.options.Match(f.Data) {
			continue
		}
		c.mu.Lock()
		c.count++
		if len(c.frames) < c.options.Keep {
			if c.options.Snaplen > 0 && len(f.Data) > c.options.Snaplen {
				f.Data = f.Data[:c.options.Snaplen]
			}
			f.Data = slices.Clone(f.Data)
			c.frames = append(c.frames, f)
		}
		c.mu.Unlock()
	}
}

type frameReader struct {
	buf []byte
	oob [128]byte
}

// Flags of tpacket_auxdata's status (linux/if_packet.h).
const (
	statusChecksumPartial = 1 << 3
	statusVLAN            = 1 << 4
	statusTPID            = 1 << 6
)

// vlanRoom lies before the frame in the buffer, for a tag that the kernel hands over beside it.
const vlanRoom = 4

// next reads one frame. Its data is valid until the next call.
func (r *frameReader) next(fd int) (Frame, error) {
	n, oobn, _, from, err := unix.Recvmsg(fd, r.buf[vlanRoom:], r.oob[:], unix.MSG_TRUNC|unix.MSG_DONTWAIT)
	if err != nil {
		return Frame{}, err
	}
	f := Frame{Data: r.buf[vlanRoom : vlanRoom+min(n, len(r.buf)-vlanRoom)], Length: n}
	if ll, ok := from.(*unix.SockaddrLinklayer); ok {
		f.Outgoing = ll.Pkttype == unix.PACKET_OUTGOING
	}
	messages, err := unix.ParseSocketControlMessage(r.oob[:oobn])
	if err != nil {
		return Frame{}, fmt.Errorf("parse control message: %w", err)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA ||
			len(m.Data) < int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
			continue
		}
		// The kernel aligns control messages for any structure.
		aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
		f.ChecksumPartial = aux.Status&statusChecksumPartial != 0
		f.Length = int(aux.Len)
		if aux.Status&statusVLAN != 0 && len(f.Data) >= 12 {
			tpid := aux.Vlan_tpid
			if aux.Status&statusTPID == 0 {
				tpid = unix.ETH_P_8021Q
			}
			copy(r.buf, f.Data[:12])
			binary.BigEndian.PutUint16(r.buf[12:], tpid)
			binary.BigEndian.PutUint16(r.buf[14:], aux.Vlan_tci)
			f.Data = r.buf[:vlanRoom+len(f.Data)]
			f.Length += vlanRoom
		}
	}
	return f, nil
}
