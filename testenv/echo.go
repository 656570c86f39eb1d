package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// defaultTimeout is how long one answer is waited for where the caller names no limit.
const defaultTimeout = time.Second

// An Echo sends back every UDP datagram and every byte of a TCP connection, both on one port.
type Echo struct {
	tcp       net.Listener
	udp       net.PacketConn
	conns     connections
	done      chan struct{}
	datagrams atomic.Int64
}

// ServeEcho starts an echo server in the namespace. Port 0 takes one that is free for both.
func (n *Namespace) ServeEcho(ctx context.Context, address netip.AddrPort) (*Echo, error) {
	for try := 0; ; try++ {
		l, err := n.Listen(ctx, "tcp", address.String())
		if err != nil {
			return nil, fmt.Errorf("serve echo in %s: %w", n.name, err)
		}
		u, err := n.ListenPacket(ctx, "udp", l.Addr().String())
		if err == nil {
			e := &Echo{tcp: l, udp: u, done: make(chan struct{})}
			e.conns.serve(l, func(c net.Conn) { _, _ = io.Copy(c, c) })
			go e.answer()
			return e, nil
		}
		l.Close()
		// The port that TCP was given may be taken for UDP.
		if address.Port() != 0 || try == 20 {
			return nil, fmt.Errorf("serve echo in %s: %w", n.name, err)
		}
	}
}

// Addr is where the server listens, with both protocols.
func (e *Echo) Addr() netip.AddrPort { return e.tcp.Addr().(*net.TCPAddr).AddrPort() }

// Datagrams returns how many UDP datagrams have arrived.
func (e *Echo) Datagrams() int64 { return e.datagrams.Load() }

// Close stops the server and closes its connections.
func (e *Echo) Close() error {
	err := errors.Join(e.udp.Close(), e.conns.close(e.tcp))
	<-e.done
	return err
}

func (e *Echo) answer() {
	defer close(e.done)
	buf := make([]byte, 64<<10)
	for {
		n, from, err := e.udp.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for an earlier answer
		}
		e.datagrams.Add(1)
		_, _ = e.udp.WriteTo(buf[:n], from) // who asks sees that no answer comes
	}
}

// Exchange sends one UDP datagram to an Echo and waits for the same payload to come back, until the
// context ends, 1 s if it has no deadline. It returns the round-trip time. An ICMP error that comes
// back is the error, as a syscall.Errno.
func (n *Namespace) Exchange(ctx context.Context, dst netip.AddrPort, payload []byte) (time.Duration, error) {
	c, err := n.Dial(ctx, "udp", dst.String())
	if err != nil {
		return 0, fmt.Errorf("exchange with %s: %w", dst, err)
	}
	defer c.Close()
	start := time.Now()
	_ = c.SetDeadline(deadline(ctx))
	if _, err := c.Write(payload); err != nil {
		return 0, fmt.Errorf("exchange with %s: %w", dst, err)
	}
	buf := make([]byte, len(payload)+1)
	m, err := c.Read(buf)
	if err != nil {
		return 0, fmt.Errorf("exchange with %s: %w", dst, err)
	}
	if !bytes.Equal(buf[:m], payload) {
		return 0, fmt.Errorf("exchange with %s: sent %d bytes, other %d came back", dst, len(payload), m)
	}
	return time.Since(start), nil
}

func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(defaultTimeout)
}
