package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// PathMTU finds the largest IP packet, in bytes, that an Echo at dst gets and answers, the way a TCP
// stack does: it sends datagrams of the size that the kernel believes in, which may not be
// fragmented, and obeys the ICMP messages that come back. An error that is os.ErrDeadlineExceeded
// means a black hole: neither answer nor ICMP came for that size, asked three times.
func (n *Namespace) PathMTU(ctx context.Context, dst netip.AddrPort) (int, error) {
	c, err := n.Dial(ctx, "udp", dst.String())
	if err != nil {
		return 0, fmt.Errorf("probe path MTU to %s: %w", dst, err)
	}
	defer c.Close()
	f := familyOf(dst.Addr())
	if err := option(c, f.level, f.discover, f.probeDF); err != nil {
		return 0, fmt.Errorf("probe path MTU to %s: %w", dst, err)
	}
	silent := 0
	for {
		if ctx.Err() != nil {
			return 0, fmt.Errorf("probe path MTU to %s: %w", dst, context.Cause(ctx))
		}
		mtu, err := getOption(c, f.level, f.mtu)
		if err != nil {
			return 0, fmt.Errorf("probe path MTU to %s: %w", dst, err)
		}
		err = f.fits(c, mtu)
		switch {
		case err == nil:
			return mtu, nil
		case errors.Is(err, unix.EMSGSIZE): // the kernel has learnt a smaller one
			silent = 0
		case errors.Is(err, os.ErrDeadlineExceeded) && silent < 2:
			silent++
		default:
			return 0, fmt.Errorf("probe path MTU to %s with %d bytes: %w", dst, mtu, err)
		}
	}
}

// fits sends a datagram that makes an IP packet of that size, and waits for its echo.
func (f icmpFamily) fits(c net.Conn, mtu int) error {
	payload := bytes.Repeat([]byte{0x5a}, min(mtu, 65535)-f.headers)
	_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err := c.Write(payload); err != nil {
		return err
	}
	buf := make([]byte, len(payload)+1)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		if n == len(payload) { // else the late echo of an earlier size
			return nil
		}
	}
}
