package dataplane

import (
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// mapped is a rule with mappings that lets everybody in (abi.h: NAT_MAPPING, NAT_FILTER_ANY).
func mapped(rule natRuleOf) natRuleOf {
	rule.rule.Flags |= 0x04 | 0x08
	return rule
}

// What a limit refuses makes no mapping and takes no port. Mappings count for nobody, and neither do the flows of
// strangers that come in by them: they cannot use up what an end inside may have.
func TestSourceLimitWithMappings(t *testing.T) {
	const tooMany, allowed = bpf.XDPReasonREASON_NAT_SOURCE_LIMIT, bpf.XDPReasonREASON_NONE
	r := openNATRig(t, Options{FlowsMax: 200, HalfOpenShare: 1}, limited(3, mapped(masquerade("out", "10.0.0.0/24", 20000, 20099))))
	end := func(a string, n, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(append(at(a).Addr().AsSlice()[:3], byte(n)))), uint16(port))
	}
	udp := func(src, dst netip.AddrPort) made { return made{proto: 17, src: src, dst: dst, payload: []byte{1}} }
	for _, ports := range [][2]int{{20001, 53}, {20001, 54}, {20002, 53}} {
		r.refused("within the limit", "lan", udp(end("10.0.0.0:1", 7, ports[0]), end("198.51.100.0:1", 9, ports[1])), toWAN, allowed)
	}
	r.holds("at the limit", 10, 5, 2)
	for n := range 40 {
		r.refused("beyond it", "lan", udp(end("10.0.0.0:1", 7, 20003+n), end("198.51.100.0:1", 9, 53)), toWAN, tooMany)
	}
	r.holds("beyond the limit", 10, 5, 2)
	for n := range 20 {
		r.refused("from a stranger", "wan", udp(end("203.0.113.0:1", n, 500), at("192.0.2.1:20001")), toLAN, allowed)
	}
	r.holds("with strangers", 50, 25, 2)
	r.counts("with strangers", 3)
	r.refused("beyond it still", "lan", udp(end("10.0.0.0:1", 7, 20004), end("198.51.100.0:1", 9, 53)), toWAN, tooMany)

	// Others fill the table: what gives way gives back what it had, and mappings stay until they are idle.
	for n := range 400 {
		r.send("lan", udp(end("10.0.0.0:1", 10+n%200, 20001+n), end("198.51.100.0:1", 9, 53)), toWAN)
	}
	if c, err := r.p.TableCounters(); err != nil || c.Evicted == 0 {
		t.Errorf("%d flows were evicted, %v", c.Evicted, err)
	}
	var check flowtable.TallyCheck
	check.Run(r.table, nil)
	if n := check.Run(r.table, nil); n != 0 {
		t.Errorf("%d sources count other flows than they have", n)
	}
	r.end()
	r.holds("in the end", 0, 0, 0)
	r.counts("in the end", 0)
}
