package flowtable

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// classBench reads the first n lines of a ClassBench set. A port range there means TCP and UDP only,
// which is left out here: the sets are made for lookups, and so are these tests.
func classBench(tb testing.TB, kind string, n int) []ACLEntry {
	tb.Helper()
	dir := os.Getenv("SOFTDPU_TESTDATA")
	if dir == "" {
		tb.Skip("SOFTDPU_TESTDATA is not set: ClassBench sets left out")
	}
	size := 1000
	for size < n {
		size *= 10
	}
	path := filepath.Join(dir, "classbench", fmt.Sprintf("%s_%d.rules.xz", kind, size))
	text, err := exec.Command("xzcat", path).Output()
	if err != nil {
		tb.Fatalf("read %s: %v", path, err)
	}
	var entries []ACLEntry
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan() && len(entries) < n; {
		var src, dst string
		var sf, sl, df, dl uint16
		var proto, mask uint8
		if _, err := fmt.Sscanf(lines.Text(), "@%s %s %d : %d %d : %d 0x%x/0x%x", &src, &dst, &sf, &sl, &df, &dl, &proto, &mask); err != nil {
			tb.Fatalf("%s line %d: %v", path, len(entries)+1, err)
		}
		e := ACLEntry{
			Src: []AddrRange{prefixRange(netip.MustParsePrefix(src))}, Dst: []AddrRange{prefixRange(netip.MustParsePrefix(dst))},
			SrcPort: U16Range{sf, sl}, DstPort: U16Range{df, dl}, Proto: U8Range{proto, proto}, Family: 4,
			Verdict: Verdict(uint32(len(entries)+1), 1, 0),
		}
		if mask == 0 {
			e.Proto = U8Range{0, 255}
		}
		entries = append(entries, e)
	}
	return entries
}

// firewallRules are n rules as people write them: zones, networks, hosts, services.
func firewallRules(n int) []ACLEntry {
	r := rand.New(rand.NewPCG(1, 2))
	services := []struct {
		proto       uint8
		first, last uint16
	}{{6, 22, 22}, {6, 80, 80}, {6, 443, 443}, {17, 443, 443}, {17, 53, 53}, {6, 53, 53}, {6, 25, 25}, {6, 3389, 3389}, {17, 123, 123}, {6, 5432, 5432}, {6, 8000, 8999}, {6, 1024, 65535}}
	network := func() netip.Prefix {
		a := netip.AddrFrom4([4]byte{10, byte(r.IntN(16)), byte(r.IntN(64)), byte(r.IntN(256))})
		p, _ := a.Prefix([]int{16, 24, 24, 26, 28, 32, 32}[r.IntN(7)])
		return p
	}
	entries := make([]ACLEntry, n)
	for i := range entries {
		e := &entries[i]
		e.From.Add(uint8(2 + r.IntN(6)))
		e.To.Add(uint8(2 + r.IntN(6)))
		if r.IntN(5) > 0 {
			e.Src = append(e.Src, prefixRange(network()))
		}
		if r.IntN(5) > 0 {
			for range 1 + r.IntN(3) {
				e.Dst = append(e.Dst, prefixRange(network()))
			}
		}
		s := services[r.IntN(len(services))]
		e.Proto, e.SrcPort, e.DstPort = U8Range{s.proto, s.proto}, U16Range{0, 65535}, U16Range{s.first, s.last}
		if r.IntN(20) == 0 {
			e.Proto, e.DstPort = U8Range{0, 255}, U16Range{0, 65535}
		}
		e.Verdict = Verdict(uint32(i+1), uint32(1+r.IntN(2)), 0)
	}
	return entries
}

// insideKey draws a key inside a random entry, as traffic that a rule set is for would be.
func insideKey(r *rand.Rand, entries []ACLEntry) bpf.XDPClassifyKey {
	e := &entries[r.IntN(len(entries))]
	addr := func(list []AddrRange) uint64 {
		if len(list) == 0 {
			return 10<<24 | uint64(r.IntN(1<<20))
		}
		x := list[r.IntN(len(list))]
		first, last := aclAddr(x.First).lo, aclAddr(x.Last).lo
		return first + r.Uint64N(last-first+1)
	}
	zone := func(z Zones) uint8 {
		for id := uint8(2); id < 9; id++ {
			if z != (Zones{}) && z.Has(id) {
				return id
			}
		}
		return 2
	}
	return bpf.XDPClassifyKey{
		Family: 4, SrcLo: addr(e.Src), DstLo: addr(e.Dst),
		Sport: e.SrcPort.First + uint16(r.IntN(int(e.SrcPort.Last-e.SrcPort.First)+1)),
		Dport: e.DstPort.First + uint16(r.IntN(int(e.DstPort.Last-e.DstPort.First)+1)),
		Proto: e.Proto.First, From: zone(e.From), To: zone(e.To),
	}
}
