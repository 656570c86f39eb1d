package flowtable

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// adjustment is what a naive sum says must be added to a word for one prefix to sum to what another does.
func adjustment(from, to netip.Prefix) uint16 {
	a, b := from.Addr().As16(), to.Addr().As16()
	return uint16((naiveSum(a[:]) - naiveSum(b[:]) + 0xffff) % 0xffff)
}

func prefixRule(source bool, from, to netip.Prefix) natRow {
	kind, family := bpf.XDPNatKindNAT_PREFIX_DESTINATION, uint8(4)
	row := natRow{source: source, rule: bpf.XDPNatRule{Prefix: uint8(to.Bits())}}
	last := from.Addr().AsSlice()
	for i := from.Bits(); i < 8*len(last); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	if row.when.Dst = []AddrRange{{from.Addr(), end}}; source {
		kind = bpf.XDPNatKindNAT_PREFIX_SOURCE
		row.when.Src, row.when.Dst = row.when.Dst, nil
	}
	if row.rule.Address = wordsOf(to.Addr().AsSlice()); to.Addr().Is6() {
		family, row.rule.Adjust = 6, adjustment(from, to)
	}
	row.rule.Kind, row.rule.Family = uint8(kind), family
	return row
}

// The example of RFC 6296 section 2.
func TestPrefixOfRFC6296(t *testing.T) {
	rule := prefixRule(true, netip.MustParsePrefix("fd01:203:405::/48"), netip.MustParsePrefix("2001:db8:1::/48")).rule
	a := packet.Addr(netip.MustParseAddr("fd01:203:405:1::1234").As16())
	if !putPrefix(&rule, &a) || netip.AddrFrom16(a).String() != "2001:db8:1:d550::1234" {
		t.Errorf("became %v", netip.AddrFrom16(a))
	}
}

// Any address comes back as it was, its sum stays what it was, and it is in the other prefix.
func TestPrefixesThereAndBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		family, bits := uint8(4), 8+rng.IntN(25)
		if rng.IntN(2) == 0 {
			family, bits = 6, 16+rng.IntN(49)
		}
		one, two := randomUnicast(rng, family), randomUnicast(rng, family)
		from := netip.PrefixFrom(address(family, &one), bits).Masked()
		to := netip.PrefixFrom(address(family, &two), bits).Masked()
		there, back := prefixRule(true, from, to).rule, prefixRule(false, to, from).rule
		a := one
		for i := bits; i < 8*addrLen(family); i++ {
			a[i/8] &^= 0x80 >> (i % 8)
			a[i/8] |= byte(rng.Uint32()) & (0x80 >> (i % 8))
		}
		if family == 6 && (a[6]&a[7] == 0xff || a[8]&a[9] == 0xff) {
			continue // RFC 6296: what is 0xffff there comes back as 0
		}
		b := a
		if !putPrefix(&there, &b) || !to.Contains(address(family, &b)) {
			t.Fatalf("%v of %v became %v, which is not in %v", a, from, b, to)
		}
		if family == 6 && naiveSum(a[:])%0xffff != naiveSum(b[:])%0xffff {
			t.Fatalf("%v became %v: not the same sum", a, b)
		}
		if c := b; !putPrefix(&back, &c) || c != a {
			t.Fatalf("%v became %v and came back as %v", address(family, &a), address(family, &b), address(family, &c))
		}
	}
}

// A prefix is translated in both directions, whoever opens, and what cannot be is refused.
func TestPrefixRules(t *testing.T) {
	inside, outside := netip.MustParsePrefix("fd10:1::/64"), netip.MustParsePrefix("fd20:5:6:7::/64")
	inside4, outside4 := netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("198.51.100.0/24")
	rows := []natRow{
		prefixRule(true, inside4, outside4), prefixRule(false, outside4, inside4),
		prefixRule(true, inside, outside), prefixRule(false, outside, inside),
	}
	known := packet.Addr(client6)
	if !putPrefix(&rows[2].rule, &known) {
		t.Fatal("no translation")
	}
	r := natRig(t, rows...)
	r.passes(lanIf, fromClient4.udp(t, 100, 53, 9), 2, end{[]byte{198, 51, 100, 2}, 100}, end{server4, 53})
	r.passes(wanIf, side{wanIf, server4, []byte{198, 51, 100, 2}}.udp(t, 53, 100, 9), 1, end{server4, 53}, end{client4, 100})
	r.passes(wanIf, side{wanIf, server4, []byte{198, 51, 100, 7}}.udp(t, 5, 6, 9), 1, end{server4, 5}, end{[]byte{10, 1, 0, 7}, 6})
	r.passes(lanIf, side{lanIf, []byte{10, 1, 0, 7}, server4}.udp(t, 6, 5, 9), 2, end{[]byte{198, 51, 100, 7}, 6}, end{server4, 5})
	frame := fromClient6.tcp(t, 100, 53, seg{flags: syn})
	res := r.passes(lanIf, frame, 2, end{known[:], 100}, end{server6, 53})
	if a, b := right(frame), res.Frame; string(a[70:72]) != string(b[70:72]) {
		t.Error("a transport checksum has changed")
	}
	r.passes(wanIf, side{wanIf, server6, known[:]}.tcp(t, 53, 100, seg{flags: syn | ack, ack: 1}), 1, end{server6, 53}, end{client6, 100})
	// Two flows cannot have one tuple on the outside: nothing of it may be chosen.
	clash := natRig(t, masquerade(4, zoneDMZ, zoneWAN, 1024, 65535), rows[0])
	opened(clash.Table(), side{wanIf, []byte{198, 51, 100, 2}, server4}.tuple(17, 100, 53), bpf.XDPFlowStateFLOW_NEW, Tick(clash.now))
	clash.want(lanIf, right(fromClient4.udp(t, 100, 53, 9)), Drop, natConflict)
	if clash.Counters.NAT[2] != (bpf.XDPNatCounter{Conflicts: 1}) || clash.Table().Flows() != 1 {
		t.Errorf("%d entries, counted %+v", clash.Table().Flows(), clash.Counters.NAT[2])
	}
	all := natRig(t, prefixRule(true, netip.MustParsePrefix("fd10:1::/56"), netip.MustParsePrefix("fd20:5:6::/56")))
	all.want(lanIf, right(side{lanIf, append([]byte{0xfd, 0x10, 0, 1, 0, 0, 0, 0}, 255, 255, 255, 255, 255, 255, 255, 255), server6}.udp(t, 1, 2, 3)), Drop, natConflict)
}
