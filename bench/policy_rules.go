package bench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/softdpu/softdpu/firewall"
)

// PolicyKinds are the kinds of filter sets, which bear the names of ClassBench's seeds that they resemble.
var PolicyKinds = []string{"acl1", "fw1", "ipc1"}

// A filterKind says how often what stands in the rules of a kind, after the sets that ClassBench makes of its seeds
// (Taylor and Turner, "ClassBench: A Packet Classification Benchmark", 2007), in round numbers.
type filterKind struct {
	src, dst           []share // prefix lengths
	srcPorts, dstPorts float64 // share of rules of TCP and UDP that name them
	ranges             float64 // share of ranges among named ports
	protos             []share // -1: any
	networks           int     // of 16 bits, which addresses come from: the fewer, the more rules overlap
}

// A share is how often a value stands.
type share struct {
	value int
	often float64
}

var filterKinds = map[string]filterKind{
	"acl1": {
		src: []share{{22, .03}, {23, .04}, {24, .03}, {30, .03}, {31, .19}, {32, .68}},
		dst: []share{{22, .04}, {23, .02}, {24, .03}, {30, .03}, {31, .16}, {32, .72}}, dstPorts: .78, ranges: .15,
		protos: []share{{6, .87}, {17, .01}, {1, .03}, {-1, .09}}, networks: 300,
	},
	"fw1": {
		src: []share{{0, .28}, {1, .22}, {2, .06}, {28, .03}, {29, .02}, {30, .03}, {31, .1}, {32, .26}},
		dst: []share{{0, .14}, {1, .09}, {28, .05}, {30, .05}, {31, .21}, {32, .46}}, srcPorts: .25, dstPorts: .75, ranges: .3,
		protos: []share{{6, .56}, {17, .33}, {47, .06}, {1, .04}, {-1, .01}}, networks: 80,
	},
	"ipc1": {
		src: []share{{0, .03}, {16, .04}, {22, .05}, {23, .11}, {24, .15}, {25, .1}, {26, .06}, {27, .04}, {31, .1}, {32, .32}},
		dst: []share{{0, .02}, {16, .04}, {23, .07}, {24, .13}, {25, .1}, {26, .07}, {27, .04}, {28, .04}, {31, .1}, {32, .39}}, srcPorts: .25, dstPorts: .7, ranges: .2,
		protos: []share{{6, .27}, {17, .37}, {1, .01}, {-1, .35}}, networks: 200,
	},
}

// generateFilters makes n rules of a kind in ClassBench's format. Rules that would cover much of the others are left
// out, as they are of real sets: two wide addresses, and a wide one without ports.
func generateFilters(kind string, n int, seed uint64) []byte {
	k := filterKinds[kind]
	rnd := rand.New(rand.NewPCG(seed, uint64(k.networks)))
	networks := make([]uint32, k.networks)
	for i := range networks {
		networks[i] = (1+rnd.Uint32N(222))<<24 | rnd.Uint32N(256)<<16
	}
	prefix := func(length int) string {
		a := networks[rnd.IntN(len(networks))] | rnd.Uint32N(1<<16)
		return fmt.Sprintf("%v/%d", ip4(a&uint32(uint64(1<<32-1)<<(32-length))), length)
	}
	var b bytes.Buffer
	for range n {
		proto := pick(rnd, k.protos)
		src, dst := pick(rnd, k.src), pick(rnd, k.dst)
		for src+dst < 32 || proto != 6 && proto != 17 && (src < 16 || dst < 16) {
			src, dst = pick(rnd, k.src), pick(rnd, k.dst)
		}
		srcPorts, dstPorts, mask := anyPorts, anyPorts, "0xFF"
		switch proto {
		case 6, 17:
			srcPorts = somePorts(rnd, k.srcPorts, k.ranges)
			named := k.dstPorts
			if src < 16 || dst < 16 {
				named = 1
			}
			dstPorts = somePorts(rnd, named, k.ranges)
		case -1:
			proto, mask = 0, "0x00"
		}
		fmt.Fprintf(&b, "@%s\t%s\t%s\t%s\t0x%02X/%s\t0x0000/0x0000\n", prefix(src), prefix(dst), srcPorts, dstPorts, proto, mask)
	}
	return b.Bytes()
}

const anyPorts = "0 : 65535"

// somePorts names ports in that share of calls, half of them well-known ones.
func somePorts(rnd *rand.Rand, named, ranges float64) string {
	popular := []int{20, 21, 22, 23, 25, 53, 80, 110, 123, 143, 161, 179, 389, 443, 445, 514, 993, 1433, 1521, 1812, 3306, 3389, 5060, 8080}
	switch r := rnd.Float64() / named; {
	case r >= 1:
		return anyPorts
	case r < ranges/2:
		return "1024 : 65535"
	case r < ranges:
		low := rnd.IntN(60_000)
		return fmt.Sprintf("%d : %d", low, low+1+rnd.IntN(5000))
	}
	p := popular[rnd.IntN(len(popular))]
	if rnd.IntN(2) == 0 {
		p = rnd.IntN(65536)
	}
	return fmt.Sprintf("%d : %d", p, p)
}

// pick draws a value by the shares, which add up to about 1.
func pick(rnd *rand.Rand, shares []share) int {
	r := rnd.Float64()
	for _, s := range shares {
		if r -= s.often; r < 0 {
			return s.value
		}
	}
	return shares[len(shares)-1].value
}

// filters are a kind's rules in ClassBench's format: those of a file, or our own of seed.
func filters(kind, file string, seed uint64) ([]byte, error) {
	if file == "" {
		return generateFilters(kind, 100_000, seed), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read rules of %s: %w", kind, err)
	}
	return text, nil
}

// firstRules are the first n lines of a filter set, all of them if n is 100,000.
func firstRules(set []byte, n int) []byte {
	if n >= 100_000 {
		return set
	}
	end := 0
	for range n {
		next := bytes.IndexByte(set[end:], '\n')
		if next < 0 {
			return set
		}
		end += next + 1
	}
	return set[:end]
}

// denyingPolicy turns a filter set into a policy that creates no flows: a packet is denied by the rule that
// ClassBench has match it.
func denyingPolicy(set []byte, name string) (policy string, rules int, err error) {
	var b strings.Builder
	done, err := firewall.ImportClassBench(&b, bytes.NewReader(set), name)
	if err != nil {
		return "", 0, err
	}
	head := "kind: Policy\nzones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\n"
	return strings.Replace(strings.ReplaceAll(b.String(), ", action: allow}\n", ", action: deny}\n"), "kind: Policy\n", head, 1), done.Rules, nil
}
