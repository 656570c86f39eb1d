package dataplane

import (
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// limited is a rule that lets a source have so many flows.
func limited(limit uint32, rule natRuleOf) natRuleOf {
	rule.rule.SourceLimit = limit
	return rule
}

// counts checks how many flows count for a source, of all.
func (r *natRig) counts(what string, want uint64) {
	r.Helper()
	sum := uint64(0)
	for i := range r.p.mem.tallies {
		for _, word := range r.p.mem.tallies[i].Word {
			sum += word & 0xffffff
		}
	}
	if sum != want {
		r.Errorf("%s: %d flows count for their sources, want %d", what, sum, want)
	}
}

// The program counts what it opens and takes off what it ends: a source at its limit is refused, another is not, and
// no way in which an attempt or a flow can end leaves a count.
func TestSourceLimit(t *testing.T) {
	const tooMany = bpf.XDPReasonREASON_NAT_SOURCE_LIMIT
	r := openNATRig(t, Options{FlowsMax: 64, HalfOpenShare: 1}, limited(3, masquerade("out", "10.0.0.0/24", 20000, 20003)), limited(2, masquerade("six", "fd00:1::/64", 1024, 65535)),
		limited(3, masquerade("wide", "10.0.8.0/24", 1024, 65535)))
	for i, src := range []string{"10.0.0.7:1", "10.0.0.7:2", "10.0.0.7:3"} {
		if got := r.send("lan", opening(tcp, src, "198.51.100.9:443"), toWAN); got.Reason != 0 {
			t.Fatalf("flow %d: %v", i, bpf.XDPReason(got.Reason))
		}
	}
	r.refused("one more", "lan", opening(tcp, "10.0.0.7:4", "198.51.100.9:443"), toWAN, tooMany)
	r.refused("one without ports", "lan", made{proto: 47, src: at("10.0.0.7:0"), dst: at("198.51.100.9:0")}, toWAN, tooMany)
	r.refused("one of its own again", "lan", opening(tcp, "10.0.0.7:1", "198.51.100.9:443"), toWAN, bpf.XDPReasonREASON_NONE)
	r.counts("at the limit", 3)
	r.refused("another's", "lan", opening(tcp, "10.0.0.8:4", "198.51.100.9:443"), toWAN, bpf.XDPReasonREASON_NONE)
	r.refused("another's without a port", "lan", opening(tcp, "10.0.0.8:5", "198.51.100.9:443"), toWAN, bpf.XDPReasonREASON_NAT_EXHAUSTED)
	r.counts("of two", 4)

	r.end()
	r.counts("killed", 0)
	// Opened anew, it may be one more until the one before has gone.
	for _, src := range []string{"[fd00:1::7]:1", "[fd00:1::8]:2"} {
		r.refused("IPv6", "lan", opening(tcp, src, "[2001:db8:9::9]:443"), toWAN, bpf.XDPReasonREASON_NONE)
	}
	r.refused("a third of one /64", "lan", opening(tcp, "[fd00:1::9]:3", "[2001:db8:9::9]:443"), toWAN, tooMany)
	first := r.flow(opening(tcp, "[fd00:1::7]:1", "[2001:db8:9::9]:443"))
	r.send("wan", made{proto: tcp, flags: tcpRST | tcpACK, src: at("[2001:db8:9::9]:443"), dst: netip.AddrPortFrom(at("[2001:db8::1]:1").Addr(), first.NAT.Outer.SrcPort)}, toLAN)
	r.refused("opened anew", "lan", opening(tcp, "[fd00:1::7]:1", "[2001:db8:9::9]:443"), toWAN, bpf.XDPReasonREASON_NONE)
	r.counts("opened anew", 2)
	if c, err := r.p.NATCounters(); err != nil || c["out"].Limited != 2 || c["six"].Limited != 1 || c["out"].Flows != 4 || c["six"].Flows != 3 {
		t.Errorf("counted is %+v, %v", c, err)
	}
	r.end()
	r.counts("in the end", 0)

	// Those that give way in a full table.
	for i := range uint16(500) {
		m := opening(tcp, "10.0.0.7:1", "198.51.100.9:443")
		m.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 8, byte(i)}), 2000+i)
		m.dst = netip.AddrPortFrom(m.dst.Addr(), i)
		r.send("lan", m, toWAN)
	}
	aliases := r.p.mem.gateway[0].Aliases
	if c, err := r.p.TableCounters(); err != nil || c.Evicted == 0 || aliases == 0 {
		t.Errorf("%d flows were evicted, %d are translated, %v", c.Evicted, aliases, err)
	}
	r.counts("after eviction", uint64(aliases))
	var check flowtable.TallyCheck
	check.Run(r.table, nil)
	if n := check.Run(r.table, nil); n != 0 {
		t.Errorf("%d sources count other flows than they have", n)
	}
	r.end()
	r.counts("after all", 0)
}
