package testenv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Sender puts frames on a device as they are: no header is added, no checksum computed. It is safe
// for concurrent use.
type Sender struct {
	file *os.File
}

// OpenSender opens a sender on the namespace's device.
func (n *Namespace) OpenSender(device string) (*Sender, error) {
	fd, err := n.packetSocket(device, 0)
	if err != nil {
		return nil, fmt.Errorf("open sender on %s: %w", device, err)
	}
	return &Sender{os.NewFile(uintptr(fd), device)}, nil
}

// Send sends one frame, from its Ethernet header on. While the device's queue is full it waits, at
// most 1 s. A frame longer than MTU and header together is EMSGSIZE. What the other end of a veth
// has no room for is lost without an error: DeviceStats counts it as dropped.
func (s *Sender) Send(frame []byte) error {
	var end time.Time
	for {
		_, err := s.file.Write(frame)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("send frame of %d bytes: %w", len(frame), err)
		}
		switch now := time.Now(); {
		case end.IsZero():
			end = now.Add(time.Second)
		case now.After(end):
			return fmt.Errorf("send frame: the queue stays full: %w", err)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// Close closes the socket.
func (s *Sender) Close() error { return s.file.Close() }

// packetSocket opens an AF_PACKET socket that is bound to the device and takes frames of the given
// EtherType, none if it is 0.
func (n *Namespace) packetSocket(device string, etherType uint16, options ...int) (fd int, err error) {
	index, err := n.Index(device)
	if err != nil {
		return 0, err
	}
	err = n.Do(func() error {
		// Protocol 0 until it is bound: else frames of other devices would come in between.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("open packet socket: %w", err)
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o, 1); err != nil {
			unix.Close(fd)
			return 0, fmt.Errorf("set option %d of packet socket: %w", o, err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(etherType), Ifindex: index}); err != nil {
		unix.Close(fd)
		return 0, fmt.Errorf("bind packet socket: %w", err)
	}
	return fd, nil
}

// networkOrder turns a number into the one that lies in memory as it does on the wire.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)})
}
