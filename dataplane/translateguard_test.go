package dataplane

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
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

// What the gateway itself says of translated flows is not translated: it does not leave, so that nobody learns of
// addresses behind the gateway.
func TestGuardKeepsAddressesBehind(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 1024, 65535), forward("www", "192.0.2.5/32", "10.0.1.9", 8080))
	out := made{proto: udp, src: at("10.0.0.7:4000"), dst: at("198.51.100.9:53")}
	in := made{proto: udp, src: at("198.51.100.9:4000"), dst: at("192.0.2.5:80")}
	r.send("lan", out, toWAN)
	r.send("wan", in, toLAN)
	answer, behind := made{proto: udp, src: out.dst, dst: out.src}, made{proto: udp, src: in.src, dst: at("10.0.1.9:8080")}
	for what, c := range map[string]struct {
		about  made
		reason bpf.XDPReason
	}{
		"an answer on its way in":         {answer, bpf.XDPReasonREASON_NAT_UNTRANSLATED},
		"a packet on its way to a server": {behind, bpf.XDPReasonREASON_NAT_CONFLICT},
	} {
		m := made{proto: icmp, kind: 3, code: 1, src: at("192.0.2.1:0"), dst: netip.AddrPortFrom(c.about.src.Addr(), 0), payload: c.about.ip()}
		before := dropped(t, r.p, c.reason)
		if verdict, ip := r.guard(m.ip(), skb{Ifindex: 1}); verdict != actShot || dropped(t, r.p, c.reason) != before+1 {
			t.Errorf("an error about %s: verdict %d, leaves as\n%x", what, int32(verdict), ip)
		}
	}
}
