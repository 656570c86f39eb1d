package testenv

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// PingOptions of Ping. The zero value sends one request of 56 bytes.
type PingOptions struct {
	Count        int           // requests, one after the other; 0 is 1
	Size         int           // payload in bytes; 0 is 56
	TTL          int           // hop limit; 0 is the system's
	DontFragment bool          // IPv4 DF; neither family fragments at the sender
	Timeout      time.Duration // for each answer; 0 is 1 s
}

// PingResult says what came back.
type PingResult struct {
	Sent, Received int
	RTT            []time.Duration // of the answers
	Errors         []ICMPError     // that came instead of answers
}

// Ping sends echo requests from inside the namespace, and compares each answer's payload. Silence and
// ICMP errors are no error of Ping: they are in the result. A request that is larger than the known
// path MTU, with DontFragment, ends it with EMSGSIZE.
func (n *Namespace) Ping(ctx context.Context, dst netip.Addr, o PingOptions) (PingResult, error) {
	if o.Count == 0 {
		o.Count = 1
	}
	if o.Size == 0 {
		o.Size = 56
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	f := familyOf(dst)
	c, err := n.ListenPacket(ctx, f.network, f.any)
	if err != nil {
		return PingResult{}, fmt.Errorf("ping %s: %w", dst, err)
	}
	defer c.Close()
	if o.TTL != 0 {
		if err := option(c, f.level, f.hops, o.TTL); err != nil {
			return PingResult{}, fmt.Errorf("ping %s: set TTL %d: %w", dst, o.TTL, err)
		}
	}
	if o.DontFragment {
		if err := option(c, f.level, f.discover, f.probeDF); err != nil {
			return PingResult{}, fmt.Errorf("ping %s: set path MTU discovery: %w", dst, err)
		}
	}
	payload := make([]byte, o.Size)
	for i := range payload {
		payload[i] = byte(i)
	}
	p := pinger{conn: c, family: f, id: uint16(rand.Uint32()), dst: dst.Unmap(), payload: payload}
	var r PingResult
	for seq := range uint16(o.Count) {
		if err := ctx.Err(); err != nil {
			return r, fmt.Errorf("ping %s: %w", dst, context.Cause(ctx))
		}
		r.Sent++
		rtt, err := p.probe(ctx, seq, o.Timeout)
		var icmp ICMPError
		switch {
		case err == nil:
			r.Received++
			r.RTT = append(r.RTT, rtt)
		case errors.As(err, &icmp):
			r.Errors = append(r.Errors, icmp)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return r, fmt.Errorf("ping %s: %w", dst, err)
		}
	}
	return r, nil
}

type pinger struct {
	conn    net.PacketConn
	family  icmpFamily
	id      uint16
	dst     netip.Addr
	payload []byte
}

// probe sends one request and waits for its answer, an ICMPError about it, or the deadline.
func (p *pinger) probe(ctx context.Context, seq uint16, timeout time.Duration) (time.Duration, error) {
	start := time.Now()
	end := start.Add(timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	_ = p.conn.SetReadDeadline(end)
	to := &net.IPAddr{IP: p.dst.AsSlice()}
	if _, err := p.conn.WriteTo(p.family.echoRequest(p.id, seq, p.payload), to); err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	for {
		n, from, err := p.conn.ReadFrom(buf)
		if err != nil {
			return 0, err
		}
		msg := buf[:n]
		if e, proto, inner, ok := p.family.parseError(msg, from); ok {
			if (proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6) && p.mine(inner, p.family.echo, seq) {
				return 0, e
			}
			continue
		}
		if n < 8 || !p.mine(msg, p.family.reply, seq) || addrOf(from) != p.dst {
			continue
		}
		if !bytes.Equal(msg[8:], p.payload) {
			return 0, fmt.Errorf("answer %d: its payload of %d bytes is not what was sent", seq, n-8)
		}
		return time.Since(start), nil
	}
}

func (p *pinger) mine(b []byte, kind uint8, seq uint16) bool {
	return b[0] == kind && binary.BigEndian.Uint16(b[4:]) == p.id && binary.BigEndian.Uint16(b[6:]) == seq
}
