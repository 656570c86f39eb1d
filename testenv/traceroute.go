package testenv

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// TracerouteOptions of Traceroute. The zero value asks 8 hops once each.
type TracerouteOptions struct {
	MaxHops int           // 0 is 8
	Port    uint16        // UDP port of the first hop's probe, each next one more; 0 is 33434
	Timeout time.Duration // for each answer; 0 is 1 s
}

// A Hop is the answer to the probe with one TTL.
type Hop struct {
	TTL        int
	From       netip.Addr // zero if nobody answered
	RTT        time.Duration
	Type, Code uint8 // of the ICMP error
	Reached    bool  // the destination itself answered
}

// Traceroute sends UDP datagrams with rising TTL from inside the namespace, and returns one hop for
// each, up to the destination.
func (n *Namespace) Traceroute(ctx context.Context, dst netip.Addr, o TracerouteOptions) ([]Hop, error) {
	if o.MaxHops == 0 {
		o.MaxHops = 8
	}
	if o.Port == 0 {
		o.Port = 33434
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	dst = dst.Unmap()
	f := familyOf(dst)
	icmp, err := n.ListenPacket(ctx, f.network, f.any)
	if err != nil {
		return nil, fmt.Errorf("trace route to %s: %w", dst, err)
	}
	defer icmp.Close()
	udp, err := n.ListenPacket(ctx, "udp", net.JoinHostPort(f.any, "0"))
	if err != nil {
		return nil, fmt.Errorf("trace route to %s: %w", dst, err)
	}
	defer udp.Close()
	var hops []Hop
	for ttl := 1; ttl <= o.MaxHops; ttl++ {
		if ctx.Err() != nil {
			return hops, fmt.Errorf("trace route to %s: %w", dst, context.Cause(ctx))
		}
		if err := option(udp, f.level, f.hops, ttl); err != nil {
			return hops, fmt.Errorf("trace route to %s: set TTL %d: %w", dst, ttl, err)
		}
		to := netip.AddrPortFrom(dst, o.Port+uint16(ttl-1))
		start := time.Now()
		_ = icmp.SetReadDeadline(start.Add(o.Timeout))
		if _, err := udp.WriteTo([]byte("softdpu traceroute"), net.UDPAddrFromAddrPort(to)); err != nil {
			return hops, fmt.Errorf("trace route to %s: %w", dst, err)
		}
		hop, err := f.awaitHop(icmp, udp.LocalAddr().(*net.UDPAddr).AddrPort().Port(), to.Port())
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return hops, fmt.Errorf("trace route to %s: %w", dst, err)
		}
		hop.TTL = ttl
		if hop.From.IsValid() {
			hop.RTT = time.Since(start)
		}
		hop.Reached = hop.From == dst
		hops = append(hops, hop)
		if hop.Reached {
			break
		}
	}
	return hops, nil
}

// awaitHop reads until an error about the datagram with these ports comes.
func (f icmpFamily) awaitHop(icmp net.PacketConn, src, dst uint16) (Hop, error) {
	buf := make([]byte, 2048)
	for {
		n, from, err := icmp.ReadFrom(buf)
		if err != nil {
			return Hop{}, err
		}
		e, proto, inner, ok := f.parseError(buf[:n], from)
		if ok && proto == unix.IPPROTO_UDP &&
			binary.BigEndian.Uint16(inner) == src && binary.BigEndian.Uint16(inner[2:]) == dst {
			return Hop{From: e.From, Type: e.Type, Code: e.Code}, nil
		}
	}
}
