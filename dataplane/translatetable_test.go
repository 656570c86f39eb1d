package dataplane

import (
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/flowtable"
)

func opening(proto uint8, src, dst string) made {
	return made{proto: proto, flags: tcpSYN, src: at(src), dst: at(dst)}
}

// Who finds no port is refused, and counted; the next one finds what was given back. One port serves many
// flows, as long as their other ends differ.
func TestPortsExhausted(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 2000, 2001))
	r.wants("the first", "lan", opening(udp, "10.0.0.7:2001", "198.51.100.9:53"), toWAN, xlatSrc, opening(udp, "192.0.2.1:2001", "198.51.100.9:53"))
	r.wants("the second", "lan", opening(udp, "10.0.0.7:9", "198.51.100.9:53"), toWAN, xlatSrc, opening(udp, "192.0.2.1:2000", "198.51.100.9:53"))
	r.refused("the third", "lan", opening(udp, "10.0.0.7:10", "198.51.100.9:53"), toWAN, bpf.XDPReasonREASON_NAT_EXHAUSTED)
	r.refused("once more", "lan", opening(udp, "10.0.0.7:10", "198.51.100.9:53"), toWAN, bpf.XDPReasonREASON_NAT_EXHAUSTED)
	r.wants("another protocol", "lan", opening(tcp, "10.0.0.7:2001", "198.51.100.9:53"), toWAN, xlatSrc, opening(tcp, "192.0.2.1:2001", "198.51.100.9:53"))
	r.holds("full", 6, 3, 3)
	counters, err := r.p.NATCounters()
	if c := counters["out"]; err != nil || c.Flows != 3 || c.Exhausted != 2 || c.Conflicts != 0 {
		t.Errorf("the rule has counted %+v (%v), want 3 flows and 2 refused ones", c, err)
	}
	r.table.Kill(func(f *flowtable.Flow) bool { return f.Tuple.SrcPort == 9 }, func() {}, func(*flowtable.Flow) {})
	r.wants("who asks again", "lan", opening(udp, "10.0.0.7:10", "198.51.100.9:53"), toWAN, xlatSrc, opening(udp, "192.0.2.1:2000", "198.51.100.9:53"))
	r.end()
	r.holds("in the end", 0, 0, 0)
}

// Two rules may write one address. What the flows of one have cannot be had by those of the other, and they take
// nothing for it that nobody would ever give back.
func TestPortsOfAnotherRule(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 2000, 2009), masquerade("guests", "10.2.0.0/24", 2000, 2009))
	for i := range uint16(9) {
		m := made{proto: udp, src: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.7"), 2000+i), dst: at("198.51.100.9:53")}
		if got := r.send("lan", m, toWAN); got.Reason != 0 {
			t.Fatalf("flow %d: %v", i, bpf.XDPReason(got.Reason))
		}
	}
	for range 20 {
		// the one port that is left may be found by none of the tries
		got := r.send("lan", opening(udp, "10.2.0.7:2004", "198.51.100.9:53"), toWAN)
		if got.Reason != 0 && bpf.XDPReason(got.Reason) != bpf.XDPReasonREASON_NAT_EXHAUSTED {
			t.Fatalf("a guest: %v", bpf.XDPReason(got.Reason))
		}
	}
	r.end()
	r.holds("in the end", 0, 0, 0)
}

// All ports that a rule allows are used, wherever in the words of the bitmap they begin and end.
func TestEveryPortIsUsed(t *testing.T) {
	const first, last = 4090, 4300
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", first, last))
	seen := map[uint16]bool{}
	for i := range uint16(last - first + 1) {
		m := made{proto: udp, src: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.7"), 10000+i), dst: at("198.51.100.9:53")}
		if got := r.send("lan", m, toWAN); got.Reason != 0 {
			t.Fatalf("flow %d: %v", i, bpf.XDPReason(got.Reason))
		}
		port := r.flow(m).NAT.Outer.SrcPort
		if port < first || port > last || seen[port] {
			t.Fatalf("flow %d got port %d, allowed are %d to %d, and had it before: %t", i, port, first, last, seen[port])
		}
		seen[port] = true
	}
	r.refused("one more", "lan", made{proto: udp, src: at("10.0.0.7:9999"), dst: at("198.51.100.9:53")}, toWAN, bpf.XDPReasonREASON_NAT_EXHAUSTED)
	r.holds("full", 2*(last-first+1), last-first+1, last-first+1)
}

// Giving a port back and taking it again at the same time may leave a word without free ports that is not noted as
// full: it costs a try, and not those behind it.
func TestFullWordIsNoted(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 2048, 2175))
	bitmaps := portsOf(r.p).Bitmaps
	for i := range uint16(128) {
		if i == 64 {
			for e := range bitmaps { // ports 2048 to 2111 are taken where such flows are
				if bitmaps[e].Taken[32] == ^uint64(0) {
					bitmaps[e].Full[0] &^= 1 << 32
				}
			}
		}
		m := made{proto: udp, src: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.7"), 2048+i), dst: at("198.51.100.9:53")}
		if i >= 64 {
			m.src = netip.AddrPortFrom(m.src.Addr(), 10000+i) // not a port of the rule
		}
		if got := r.send("lan", m, toWAN); got.Reason != 0 {
			t.Fatalf("flow %d: %v", i, bpf.XDPReason(got.Reason))
		}
	}
}

// An alias whose flow is gone, and which nobody has freed yet, keeps a flow from its key. That one is not made, and not
// counted as if it were.
func TestOrphanStandsInTheWay(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 1024, 65535), forward("www", "192.0.2.1/32", "10.0.1.9", 8080))
	ask := made{proto: udp, src: at("10.0.0.7:4000"), dst: at("198.51.100.9:53")}
	r.send("lan", ask, toWAN)
	id := r.flow(ask).ID
	flow := &r.p.mem.flows4[id.Group].Slot[id.Slot]
	flow.Core.Word = flow.Core.Word >> flowtable.WordGenerationBit << flowtable.WordGenerationBit
	r.p.mem.gateway[0].Flows--
	r.p.mem.gateway[0].HalfOpen--
	r.refused("what comes meanwhile", "wan", made{proto: udp, src: ask.dst, dst: at("192.0.2.1:4000")}, toLAN, bpf.XDPReasonREASON_FLOW_GONE)
	counters, err := r.p.NATCounters()
	if c := counters["www"]; err != nil || c.Flows != 0 {
		t.Errorf("the rule has counted %+v (%v) for a flow that was not made", c, err)
	}
	r.holds("then", 1, 1, 1)
	end := uint32((r.now + 3e9) >> 20)
	none := flowtable.UniformTimeouts(0)
	r.table.Scan(end, &none, func() {}, func(*flowtable.Flow) {})
	r.holds("in the end", 0, 0, 0)
}

// A policy without an address to masquerade as refuses, and so does a port where the family has none.
func TestNoAddress(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("six", "fd00:1::/64", 1024, 65535))
	if err := r.p.SetNATAddresses(map[bpf.XDPNatDevice]bpf.XDPNatAddress{{Port: 2}: {Ip4: 1}}); err != nil {
		t.Fatal(err)
	}
	r.refused("IPv6 where there is IPv4 alone", "lan", opening(tcp, "[fd00:1::7]:4000", "[2001:db8:9::9]:443"), toWAN, bpf.XDPReasonREASON_NAT_NO_ADDRESS)
	r.holds("after it", 0, 0, 0)
}

// A connection that begins anew takes the place of the one that is over: it has one alias and one port, as
// before, and so has one whose outer tuple stays the same.
func TestReopenTranslated(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 1024, 65535), forward("www", "192.0.2.5/32", "10.0.1.9", 8080))
	ask := opening(tcp, "10.0.0.7:4000", "198.51.100.9:443")
	reset := made{proto: tcp, flags: tcpRST | tcpACK, src: ask.dst, dst: at("192.0.2.1:4000")}
	r.send("lan", ask, toWAN)
	if got := r.send("wan", reset, toLAN); got.Reason != 0 {
		t.Fatalf("RST: %v", bpf.XDPReason(got.Reason))
	}
	syn := opening(tcp, "198.51.100.9:443", "192.0.2.1:4000")
	r.refused("a SYN of the other end of a connection that is over", "wan", syn, toLAN, bpf.XDPReasonREASON_NAT_CONFLICT)
	if got := r.send("lan", ask, toWAN); got.Reason != 0 || got.Xlat != xlatSrc {
		t.Fatalf("SYN: %v, translated %#x", bpf.XDPReason(got.Reason), got.Xlat)
	}
	r.holds("reopened", 2, 1, 1)
	flow := r.flow(ask)
	port := flow.NAT.Outer.SrcPort
	if port == 4000 {
		t.Error("the port of the connection that was still there was taken twice")
	}
	answer := made{proto: tcp, flags: tcpSYN | tcpACK, src: ask.dst, dst: netip.AddrPortFrom(at("192.0.2.1:1").Addr(), port)}
	back := answer
	back.dst = ask.src
	r.wants("its answer", "wan", answer, toLAN, xlatDst|xlatReply, back)
	r.end()
	r.holds("in the end", 0, 0, 0)

	in := opening(tcp, "198.51.100.9:4000", "192.0.2.5:80")
	behind := opening(tcp, "198.51.100.9:4000", "10.0.1.9:8080")
	for range 3 {
		r.wants("a connection from outside", "wan", in, toLAN, xlatDst, behind)
		r.wants("its RST", "lan", made{proto: tcp, flags: tcpRST | tcpACK, src: behind.dst, dst: behind.src}, toWAN, xlatSrc|xlatReply,
			made{proto: tcp, flags: tcpRST | tcpACK, src: in.dst, dst: in.src})
		r.holds("opened and closed", 2, 1, 0)
	}
}

// A half-open flow that gives way takes its alias and its port with it; what the table says it holds is there.
func TestEvictTranslated(t *testing.T) {
	const most = 64
	r := openNATRig(t, Options{FlowsMax: most, HalfOpenShare: 1}, masquerade("out", "10.0.0.0/24", 1024, 65535), masquerade("six", "fd00:1::/64", 1024, 65535))
	gw := &r.p.mem.gateway[0]
	opened := 0
	for i := range uint16(2000) {
		m := made{proto: tcp, flags: tcpSYN, src: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.7"), 2000+i), dst: at("198.51.100.9:443")}
		if i%2 == 1 {
			m.src, m.dst = netip.AddrPortFrom(netip.MustParseAddr("fd00:1::7"), 2000+i), at("[2001:db8:9::9]:443")
		}
		switch got := r.send("lan", m, toWAN); bpf.XDPReason(got.Reason) {
		case bpf.XDPReasonREASON_NONE:
			opened++
		case bpf.XDPReasonREASON_FLOW_TABLE_FULL, bpf.XDPReasonREASON_FLOW_GONE:
		default:
			t.Fatalf("flow %d: %v", i, bpf.XDPReason(got.Reason))
		}
		if gw.Flows > most {
			t.Fatalf("%d entries, %d may be", gw.Flows, most)
		}
	}
	c, err := r.p.TableCounters()
	if err != nil {
		t.Fatal(err)
	}
	flows, aliases := int64(0), int64(0)
	for f := range r.table.All() {
		flows++
		if f.NAT == nil {
			t.Errorf("flow %+v is not translated", f.Tuple)
			continue
		}
		aliases++
	}
	if c.Evicted == 0 || opened < most || flows != int64(c.Created-c.Evicted) {
		t.Errorf("%d opened, %d created, %d evicted; %d are there", opened, c.Created, c.Evicted, flows)
	}
	r.holds("after eviction", flows+aliases, aliases, int(aliases))
	r.end()
	r.holds("in the end", 0, 0, 0)
	if gw.HalfOpen != 0 {
		t.Errorf("%d are half-open, and there is none", gw.HalfOpen)
	}
}

// What nobody translates has no alias: what is kept as it is, whose address stays, and what goes to the gateway.
func TestNotTranslated(t *testing.T) {
	keep := natRuleOf{name: "keep", of: "10.0.0.128/25", rule: bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_KEEP)}}
	same := prefix("same", "10.9.0.0/24", "10.9.0.0/24", bpf.XDPNatKindNAT_PREFIX_SOURCE, 0)
	r := openNATRig(t, Options{}, keep, same, masquerade("out", "10.0.0.0/24", 1024, 65535))
	for i, src := range []string{"10.0.0.200:4000", "10.9.0.3:4000", "172.16.0.1:4000"} {
		m := opening(tcp, src, "198.51.100.9:443")
		r.wants(src, "lan", m, toWAN, 0, m)
		r.holds(src, int64(i+1), 0, 0)
	}
	if got := r.send("lan", opening(tcp, "10.0.0.7:4000", "10.0.0.1:22"), flowHost); got.Pass == 0 || got.Xlat != 0 {
		t.Errorf("what is for the gateway: %v, passed %d, translated %#x", bpf.XDPReason(got.Reason), got.Pass, got.Xlat)
	}
	r.holds("after all", 4, 0, 0)
	esp := made{proto: packet.ProtoESP, src: at("10.0.0.7:0"), dst: at("198.51.100.9:0")}
	r.send("lan", esp, toWAN)
	r.holds("with one that is translated", 6, 1, 0)
}
