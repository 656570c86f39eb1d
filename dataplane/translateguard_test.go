package dataplane

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// skb is the beginning of struct __sk_buff.
type skb struct {
	Len, Type, Mark, Queue, Protocol, VLANPresent, VLANTCI, VLANProto, Priority uint32
	IngressIfindex, Ifindex                                                     uint32
	_                                                                           [39]uint32
}

const (
	actUnspec = 0xffffffff // TC_ACT_UNSPEC: go on
	actShot   = 2          // TC_ACT_SHOT
	passMark  = 0x5d900000
)

// leave has the kernel send a packet that it forwards by the port wan, with a mark.
func (r *natRig) leave(ip []byte, mark uint32) (verdict uint32, out []byte) {
	r.Helper()
	return r.guard(ip, skb{Mark: mark, IngressIfindex: 1, Ifindex: 1})
}

// guard has the kernel send a packet by a port.
func (r *natRig) guard(ip []byte, context skb) (verdict uint32, out []byte) {
	r.Helper()
	frame := append([]byte{2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 0, 2, 8, 0}, ip...)
	if ip[0]>>4 == 6 {
		frame[12], frame[13] = 0x86, 0xdd
	}
	run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 4096), Context: context}
	verdict, err := r.p.running.Load().guard.Run(&run)
	if err != nil {
		r.Fatal(err)
	}
	return verdict, run.DataOut[14:]
}

// markOf returns the mark that the last packet passed up has: its element of nat_passes is the last one.
func (r *natRig) markOf(got passed) uint32 {
	return passMark | (got.Pass - 1) | r.p.mem.gateway[0].NatPass<<4
}

// A packet that the kernel carries on leaves as XDP would have sent it: XDP translates its destination, the
// guard its source. What says that it is such a packet and is not is dropped.
func TestGuardTranslates(t *testing.T) {
	r := openNATRig(t, Options{},
		masquerade("out", "10.0.0.0/24", 1024, 65535), masquerade("six", "fd00:1::/64", 1024, 65535),
		forward("far", "198.51.100.80/32", "198.51.100.9", 8080))
	less := func(m made) made { m.ttl = 63; return m }
	for _, f := range []struct {
		inside, gateway, far, router string
		icmp, ask, unreachable       uint8
	}{
		{"10.0.0.7", "192.0.2.1", "198.51.100.9", "10.0.0.2", icmp, 8, 3},
		{"[fd00:1::7]", "[2001:db8::1]", "[2001:db8:9::9]", "[fd00:1::2]", icmpv6, 128, 1},
	} {
		for _, m := range []made{
			{proto: tcp, flags: tcpSYN, src: at(f.inside + ":4000"), dst: at(f.far + ":443")},
			{proto: udp, payload: []byte("ab"), src: at(f.inside + ":4000"), dst: at(f.far + ":53")},
			{proto: udp, noSum: f.icmp == icmp, src: at(f.inside + ":4001"), dst: at(f.far + ":53")},
			{proto: f.icmp, kind: f.ask, src: at(f.inside + ":4000"), dst: at(f.far + ":0")},
			{proto: 50, src: at(f.inside + ":0"), dst: at(f.far + ":0")},
			{proto: 136, src: at(f.inside + ":0"), dst: at(f.far + ":0")},
			{proto: 33, src: at(f.inside + ":0"), dst: at(f.far + ":0")},
		} {
			got := r.send("lan", m, toSilent)
			if got.Reason != 0 || got.Pass != 1+uint32(bpf.XDPPassCausePASS_NEIGHBOUR) || !bytes.Equal(got.ip, m.ip()) {
				t.Fatalf("protocol %d to a silent neighbour: %v, passed %d, as\n%x, want\n%x", m.proto, bpf.XDPReason(got.Reason), got.Pass, got.ip, m.ip())
			}
			out := less(m)
			out.src = netip.AddrPortFrom(at(f.gateway+":0").Addr(), m.src.Port())
			verdict, ip := r.leave(less(m).ip(), r.markOf(got))
			if verdict != actUnspec || !bytes.Equal(ip, out.ip()) {
				t.Errorf("protocol %d: verdict %d, leaves as\n%x, want\n%x", m.proto, int32(verdict), ip, out.ip())
			}
		}
		// the kernel has cut it
		first := made{proto: udp, id: 9, first: true, payload: []byte("12345678"), src: at(f.inside + ":4000"), dst: at(f.far + ":53")}
		later := made{proto: udp, id: 9, later: []byte("rest"), src: first.src, dst: first.dst}
		got := r.send("lan", made{proto: udp, payload: []byte("12345678rest"), src: first.src, dst: first.dst}, toSilent)
		for _, piece := range []made{first, later} {
			out := less(piece)
			out.src = at(f.gateway + ":4000")
			if verdict, ip := r.leave(less(piece).ip(), r.markOf(got)); verdict != actUnspec || !bytes.Equal(ip, out.ip()) {
				t.Errorf("a piece: verdict %d, leaves as\n%x, want\n%x", int32(verdict), ip, out.ip())
			}
		}
		// an error about an answer: its source is whose the answer was
		ask := made{proto: udp, payload: []byte("ab"), src: at(f.inside + ":4000"), dst: at(f.far + ":53")}
		answer := made{proto: udp, src: ask.dst, dst: at(f.gateway + ":4000")}
		back := answer
		back.dst = ask.src
		quote := func(from, to string, q made) made {
			return made{proto: f.icmp, kind: f.unreachable, code: 3, src: at(from + ":0"), dst: at(to + ":0"), payload: q.ip()}
		}
		got = r.send("lan", quote(f.router, f.far, back), toSilent)
		half := quote(f.router, f.far, answer)
		if !bytes.Equal(got.ip, half.ip()) {
			t.Errorf("an error is passed up as\n%x, want\n%x", got.ip, half.ip())
		}
		want := less(quote(f.gateway, f.far, answer))
		if verdict, ip := r.leave(less(half).ip(), r.markOf(got)); verdict != actUnspec || !bytes.Equal(ip, want.ip()) {
			t.Errorf("an error: verdict %d, leaves as\n%x, want\n%x", int32(verdict), ip, want.ip())
		}
		got = r.send("lan", ask, toSilent)
		ask.src = at(f.router + ":4000")
		bypass := dropped(t, r.p, bpf.XDPReasonREASON_KERNEL_BYPASS)
		if verdict, _ := r.leave(less(ask).ip(), r.markOf(got)); verdict != actShot || dropped(t, r.p, bpf.XDPReasonREASON_KERNEL_BYPASS) != bypass+1 {
			t.Errorf("a packet of another source with the mark of this one: verdict %d", int32(verdict))
		}
	}
	// both ends at once
	m := made{proto: tcp, flags: tcpSYN, src: at("10.0.0.7:5000"), dst: at("198.51.100.80:80")}
	half, out := m, m
	half.dst, out.dst, out.src = at("198.51.100.9:8080"), at("198.51.100.9:8080"), at("192.0.2.1:5000")
	got := r.send("lan", m, toSilent)
	if !bytes.Equal(got.ip, half.ip()) {
		t.Errorf("a packet to a server is passed up as\n%x, want\n%x", got.ip, half.ip())
	}
	if verdict, ip := r.leave(less(half).ip(), r.markOf(got)); verdict != actUnspec || !bytes.Equal(ip, less(out).ip()) {
		t.Errorf("verdict %d, it leaves as\n%x, want\n%x", int32(verdict), ip, less(out).ip())
	}
	// a flow of IPv4 that is known, behind one of IPv6 on the same CPU
	known := made{proto: udp, payload: []byte("ab"), src: at("10.0.0.7:4000"), dst: at("198.51.100.9:53")}
	for range 8 {
		r.send("lan", made{proto: udp, src: at("[fd00:1::7]:4000"), dst: at("[2001:db8:9::9]:53")}, toSilent)
		got := r.send("lan", known, toSilent)
		out := less(known)
		out.src = at("192.0.2.1:4000")
		if verdict, ip := r.leave(less(known).ip(), r.markOf(got)); verdict != actUnspec || !bytes.Equal(ip, out.ip()) {
			t.Fatalf("behind IPv6: verdict %d, leaves as\n%x, want\n%x", int32(verdict), ip, out.ip())
		}
	}
	// larger than the way, and to be cut by the kernel
	big := made{proto: udp, payload: make([]byte, 700), src: at("10.0.0.7:5000"), dst: at("198.51.100.9:53"), cut: true}
	if got := r.send("lan", big, toNarrow); got.Pass != 1+uint32(bpf.XDPPassCausePASS_FRAGMENT) || !bytes.Equal(got.ip, big.ip()) {
		t.Errorf("a packet to be cut: %v, passed %d, as\n%x, want\n%x", bpf.XDPReason(got.Reason), got.Pass, got.ip, big.ip())
	}
	// nothing of its source changes: no element speaks of it
	if verdict, ip := r.leave(less(half).ip(), passMark|uint32(bpf.XDPPassCausePASS_NEIGHBOUR)); verdict != actUnspec || !bytes.Equal(ip, less(half).ip()) {
		t.Errorf("a marked packet without translation: verdict %d, leaves as\n%x", int32(verdict), ip)
	}
}

// What the kernel says of a packet that it carries on, to whoever sent that, speaks of the packet as it was sent,
// whatever of it was translated by then: nobody learns of addresses behind the gateway.
func TestGuardTellsSenders(t *testing.T) {
	r := openNATRig(t, Options{},
		masquerade("out", "10.0.0.0/24", 1024, 65535), masquerade("six", "fd00:1::/64", 1024, 65535), masquerade("in", "198.51.100.100/32", 1024, 65535),
		forward("www", "192.0.2.5/32", "10.0.1.9", 8080), forward("www6", "2001:db8::5/128", "fd00:2::9", 8080),
		forward("far", "198.51.100.80/32", "198.51.100.9", 8080), forward("far6", "2001:db8:9::80/128", "2001:db8:9::9", 8080))
	const silentLAN = toNarrow + 1
	if err := r.p.SetNexthop(silentLAN, bpf.XDPNexthop{State: uint32(flowtable.NexthopPending), Port: 1, Zone: 2, Src: 0x020000000001 | 1500<<48}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, client, asked, server, outside string
		reply                                bool // the kernel carries on the server's answer, to a client inside
	}{
		{"a question, its source to be translated", "198.51.100.100", "10.0.1.9", "10.0.1.9", "10.0.0.1", false},
		{"a question, its destination translated", "198.51.100.9", "192.0.2.5", "10.0.1.9", "198.51.100.9", false},
		{"a question of IPv6, its destination translated", "[2001:db8:9::9]", "[2001:db8::5]", "[fd00:2::9]", "[2001:db8:9::9]", false},
		{"a question, translated at both ends", "198.51.100.100", "192.0.2.5", "10.0.1.9", "10.0.0.1", false},
		{"an answer, its destination translated", "10.0.0.7", "198.51.100.9", "198.51.100.9", "192.0.2.1", true},
		{"an answer of IPv6, its destination translated", "[fd00:1::7]", "[2001:db8:9::9]", "[2001:db8:9::9]", "[2001:db8::1]", true},
		{"an answer, its source to be translated", "10.0.2.7", "198.51.100.80", "198.51.100.9", "10.0.2.7", true},
		{"an answer, translated at both ends", "10.0.0.7", "198.51.100.80", "198.51.100.9", "192.0.2.1", true},
		{"an answer of IPv6, translated at both ends", "[fd00:1::7]", "[2001:db8:9::80]", "[2001:db8:9::9]", "[2001:db8::1]", true},
	} {
		icmp, ask, answer, unreachable, gateway := uint8(icmp), uint8(8), uint8(0), uint8(3), "192.0.2.1:0"
		if c.client[0] == '[' {
			icmp, ask, answer, unreachable, gateway = icmpv6, 128, 129, 1, "[2001:db8::1]:0"
		}
		for _, m := range []made{
			{proto: tcp, flags: tcpSYN}, {proto: udp, payload: []byte("ab")}, {proto: udp, noSum: icmp == 1}, {proto: 50}, {proto: icmp, kind: ask},
		} {
			port, asked, served := ":5000", ":80", ":8080"
			if c.asked == c.server {
				served = asked
			}
			if m.proto != tcp && m.proto != udp {
				asked, served = ":0", ":0"
			}
			if m.proto == 50 {
				port = ":0"
			}
			if m.noSum {
				port = ":5001"
			}
			m.src, m.dst = at(c.client+port), at(c.asked+asked)
			arrives, carried := "wan", m
			if c.reply {
				if got := r.send("lan", m, toWAN); got.Reason != 0 {
					t.Fatalf("%s of protocol %d: %v", c.what, m.proto, bpf.XDPReason(got.Reason))
				}
				carried.src, carried.dst, carried.flags = at(c.server+served), at(c.outside+port), m.flags|m.flags<<3
				if m.proto == icmp {
					carried.kind = answer
				}
			}
			got := r.send(arrives, carried, silentLAN)
			if got.Reason != 0 || got.Pass != 1+uint32(bpf.XDPPassCausePASS_NEIGHBOUR) {
				t.Fatalf("%s of protocol %d: %v, passed %d", c.what, m.proto, bpf.XDPReason(got.Reason), got.Pass)
			}
			e := made{proto: icmp, kind: unreachable, code: 1, src: at(gateway), dst: netip.AddrPortFrom(carried.src.Addr(), 0), payload: got.ip}
			told := e
			told.payload = carried.ip()
			before := r.flow(m)
			if verdict, ip := r.guard(e.ip(), skb{Ifindex: 1}); verdict != actUnspec || !bytes.Equal(ip, told.ip()) {
				t.Errorf("an error about %s, of protocol %d: verdict %d, leaves as\n%x, want\n%x", c.what, m.proto, int32(verdict), ip, told.ip())
			}
			if after := r.flow(m); after.Packets[0]+after.Packets[1] != before.Packets[0]+before.Packets[1]+1 {
				t.Errorf("an error about %s, of protocol %d, is not counted on the flow", c.what, m.proto)
			}
		}
		r.end()
	}
}

// An error of the gateway about no packet that anybody sent does not leave.
func TestGuardDropsOtherErrors(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 1024, 65535))
	out := made{proto: udp, src: at("10.0.0.7:4000"), dst: at("198.51.100.9:53")}
	r.send("lan", out, toWAN)
	about := made{proto: udp, src: at("198.51.100.9:53"), dst: at("10.0.0.8:4000")}
	m := made{proto: icmp, kind: 3, code: 1, src: at("192.0.2.1:0"), dst: at("198.51.100.9:0"), payload: about.ip()}
	before := dropped(t, r.p, bpf.XDPReasonREASON_ICMP_NO_FLOW)
	if verdict, ip := r.guard(m.ip(), skb{Ifindex: 1}); verdict != actShot || dropped(t, r.p, bpf.XDPReasonREASON_ICMP_NO_FLOW) != before+1 {
		t.Errorf("an error about no flow: verdict %d, leaves as\n%x", int32(verdict), ip)
	}
	query := made{proto: udp, src: at("192.0.2.1:4000"), dst: at("198.51.100.9:53")}
	before = dropped(t, r.p, bpf.XDPReasonREASON_NAT_CONFLICT)
	if verdict, ip := r.guard(query.ip(), skb{Ifindex: 1}); verdict != actShot || dropped(t, r.p, bpf.XDPReasonREASON_NAT_CONFLICT) != before+1 {
		t.Errorf("a packet of the gateway with the outer tuple of another's flow: verdict %d, leaves as\n%x", int32(verdict), ip)
	}
}
