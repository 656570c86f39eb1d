package flowtable

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// aclOpen is an entry that matches everything; rows change what they are about.
func aclOpen(rule uint32, change ...func(*ACLEntry)) ACLEntry {
	e := ACLEntry{
		Proto: U8Range{0, 255}, SrcPort: U16Range{0, 65535}, DstPort: U16Range{0, 65535},
		Verdict: Verdict(rule, uint32(bpf.XDPActionACTION_ALLOW), 0),
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func aclAudited(e *ACLEntry)               { e.Audit = true }
func aclFamily(f uint8) func(*ACLEntry)    { return func(e *ACLEntry) { e.Family = f } }
func aclDport(a, b uint16) func(*ACLEntry) { return func(e *ACLEntry) { e.DstPort = U16Range{a, b} } }

func aclFrom(zones ...uint8) func(*ACLEntry) {
	return func(e *ACLEntry) {
		for _, z := range zones {
			e.From.Add(z)
		}
	}
}

func aclTo(prefixes ...string) func(*ACLEntry) {
	return func(e *ACLEntry) {
		for _, p := range prefixes {
			e.Dst = append(e.Dst, aclPrefix(netip.MustParsePrefix(p)))
		}
	}
}

// aclPacket is a key from zone 2 to zone 3, TCP from port 40000.
func aclPacket(to string, port uint16) bpf.XDPClassifyKey {
	a := netip.MustParseAddr(to)
	k := bpf.XDPClassifyKey{Family: 4, SrcLo: 10<<24 | 1, Sport: 40000, Dport: port, Proto: 6, From: 2, To: 3}
	if a.Is6() {
		k.Family, k.SrcHi = 6, 0xfd<<56
	}
	n := aclAddr(a)
	k.DstHi, k.DstLo = n.hi, n.lo
	return k
}

func TestClassify(t *testing.T) {
	const log = 1 << 28
	for _, row := range []struct {
		name    string
		entries []ACLEntry
		key     bpf.XDPClassifyKey
		rule    uint32 // 0: no match
		audits  []uint32
	}{
		{name: "no entry, no match", key: aclPacket("192.0.2.1", 80)},
		{name: "the first match decides", entries: []ACLEntry{aclOpen(1, aclDport(80, 80)), aclOpen(2, aclTo("192.0.2.0/24")), aclOpen(3)}, key: aclPacket("192.0.2.1", 443), rule: 2},
		{name: "a later narrower entry does not", entries: []ACLEntry{aclOpen(1), aclOpen(2, aclDport(80, 80))}, key: aclPacket("192.0.2.1", 80), rule: 1},
		{name: "an audit entry is reported and evaluation goes on", entries: []ACLEntry{aclOpen(1, aclAudited), aclOpen(2, aclDport(80, 80))}, key: aclPacket("192.0.2.1", 80), rule: 2, audits: []uint32{1}},
		{name: "audit entries are reported in order", entries: []ACLEntry{aclOpen(7, aclAudited), aclOpen(3, aclAudited, aclDport(1, 99)), aclOpen(5, aclAudited, aclDport(81, 99))}, key: aclPacket("192.0.2.1", 80), audits: []uint32{7, 3}},
		{name: "an audit entry behind the deciding one is silent", entries: []ACLEntry{aclOpen(1, aclDport(80, 80)), aclOpen(2, aclAudited)}, key: aclPacket("192.0.2.1", 80), rule: 1},
		{name: "an audit entry covers nothing", entries: []ACLEntry{aclOpen(1, aclAudited), aclOpen(1, aclAudited), aclOpen(2)}, key: aclPacket("192.0.2.1", 80), rule: 2, audits: []uint32{1, 1}},
		{name: "an IPv4 prefix matches no IPv6 packet", entries: []ACLEntry{aclOpen(1, aclTo("0.0.0.0/0")), aclOpen(2)}, key: aclPacket("2001:db8::1", 80), rule: 2},
		{name: "both families in one list", entries: []ACLEntry{aclOpen(1, aclTo("192.0.2.0/24", "2001:db8::/32"))}, key: aclPacket("2001:db8::1", 80), rule: 1},
		{name: "an entry of one family", entries: []ACLEntry{aclOpen(1, aclFamily(4)), aclOpen(2, aclFamily(6))}, key: aclPacket("2001:db8::1", 80), rule: 2},
		{name: "an IPv4-mapped address is IPv6", entries: []ACLEntry{aclOpen(1, aclTo("::ffff:192.0.2.0/120")), aclOpen(2)}, key: aclPacket("::ffff:192.0.2.1", 80), rule: 1},
		{name: "the last address of a prefix", entries: []ACLEntry{aclOpen(1, aclTo("192.0.2.0/31"))}, key: aclPacket("192.0.2.1", 80), rule: 1},
		{name: "the first one behind it", entries: []ACLEntry{aclOpen(1, aclTo("192.0.2.0/31"))}, key: aclPacket("192.0.2.2", 80)},
		{name: "the last address of all", entries: []ACLEntry{aclOpen(1, aclTo("255.255.255.255/32"))}, key: aclPacket("255.255.255.255", 80), rule: 1},
		{name: "IPv6 below the 64th bit", entries: []ACLEntry{aclOpen(1, aclTo("2001:db8::8000:0:0:0/65"))}, key: aclPacket("2001:db8::8000:0:0:1", 80), rule: 1},
		{name: "and beside it", entries: []ACLEntry{aclOpen(1, aclTo("2001:db8::8000:0:0:0/65"))}, key: aclPacket("2001:db8::7fff:0:0:1", 80)},
		{name: "zone of a list", entries: []ACLEntry{aclOpen(1, aclFrom(9, 2, 255))}, key: aclPacket("192.0.2.1", 80), rule: 1},
		{name: "zone not of a list", entries: []ACLEntry{aclOpen(1, aclFrom(1, 3))}, key: aclPacket("192.0.2.1", 80)},
		{name: "contexts are alternatives", entries: []ACLEntry{aclOpen(1, func(e *ACLEntry) { e.Contexts = []uint16{5, 0} })}, key: aclPacket("192.0.2.1", 80), rule: 1},
		{name: "no context that matches", entries: []ACLEntry{aclOpen(1, func(e *ACLEntry) { e.Contexts = []uint16{5, 6} })}, key: aclPacket("192.0.2.1", 80)},
		{name: "port 65535", entries: []ACLEntry{aclOpen(1, aclDport(65535, 65535))}, key: aclPacket("192.0.2.1", 65535), rule: 1},
		{name: "flags are part of the verdict", entries: []ACLEntry{aclOpen(1 | log)}, key: aclPacket("192.0.2.1", 1), rule: 1 | log},
		{name: "neither family", entries: []ACLEntry{aclOpen(1)}, key: bpf.XDPClassifyKey{Family: 5}},
	} {
		t.Run(row.name, func(t *testing.T) {
			a, err := CompileACL(row.entries)
			if err != nil {
				t.Fatal(err)
			}
			want := uint32(0)
			if row.rule != 0 {
				want = Verdict(row.rule, uint32(bpf.XDPActionACTION_ALLOW), 0)
			}
			var audits []uint32
			if got := a.Classify(&row.key, func(rule uint32) { audits = append(audits, rule) }); got != want {
				t.Errorf("verdict %#x, want %#x", got, want)
			}
			if !slices.Equal(audits, row.audits) {
				t.Errorf("audit rules %v, want %v", audits, row.audits)
			}
			if got := a.Classify(&row.key, nil); got != want {
				t.Errorf("verdict %#x without audit function, want %#x", got, want)
			}
		})
	}
}

func TestCompileACLRefuses(t *testing.T) {
	addr := netip.MustParseAddr
	for _, row := range []struct {
		name  string
		entry ACLEntry
		want  string
	}{
		{"family", aclOpen(1, aclFamily(5)), "family 5"},
		{"protocol", aclOpen(1, func(e *ACLEntry) { e.Proto = U8Range{17, 6} }), "protocol range 17-6"},
		{"port", aclOpen(1, aclDport(2, 1)), "port range 2-1"},
		{"no address", aclOpen(1, func(e *ACLEntry) { e.Src = make([]AddrRange, 1) }), "not of one family"},
		{"two families", aclOpen(1, func(e *ACLEntry) { e.Src = []AddrRange{{addr("10.0.0.1"), addr("fd00::1")}} }), "not of one family"},
		{"backwards", aclOpen(1, func(e *ACLEntry) { e.Dst = []AddrRange{{addr("10.0.0.2"), addr("10.0.0.1")}} }), "10.0.0.2-10.0.0.1 ends before"},
		{"IPv6 zone", aclOpen(1, func(e *ACLEntry) { e.Dst = []AddrRange{{addr("fe80::1%eth0"), addr("fe80::2%eth0")}} }), "IPv6 zone"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := CompileACL([]ACLEntry{aclOpen(1), row.entry})
			if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "entry 1:") {
				t.Errorf("error %v, want one of entry 1 with %q", err, row.want)
			}
		})
	}
}

// Entries that can never decide take no place.
func TestCompileACLDropsCovered(t *testing.T) {
	size := func(entries ...ACLEntry) int {
		a, err := CompileACL(entries)
		if err != nil {
			t.Fatal(err)
		}
		insns, err := a.Instructions()
		if err != nil {
			t.Fatal(err)
		}
		return len(insns)
	}
	lone := size(aclOpen(1, aclTo("10.0.0.0/8")), aclOpen(2))
	covered := size(aclOpen(1, aclTo("10.0.0.0/8")), aclOpen(3, aclTo("10.1.0.0/16"), aclDport(80, 80)), aclOpen(2), aclOpen(4, aclDport(22, 22)))
	if covered != lone {
		t.Errorf("%d instructions with covered entries, %d without", covered, lone)
	}
}

func TestClassifyNoAllocs(t *testing.T) {
	s := aclSource{rand.New(rand.NewPCG(3, 4))}
	entries := s.entries(60)
	a, err := CompileACL(entries)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]bpf.XDPClassifyKey, 256)
	for i := range keys {
		keys[i] = s.key(entries)
	}
	reports := 0
	audit := func(uint32) { reports++ }
	if n := testing.AllocsPerRun(10, func() {
		for i := range keys {
			a.Classify(&keys[i], audit)
		}
	}); n != 0 {
		t.Errorf("%v allocations for %d keys", n, len(keys))
	}
	if reports == 0 {
		t.Error("no key was reported: the test misses audit entries")
	}
}
