package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// manyRule is a rule as it was written, for a scan of the list.
type manyRule struct {
	src, dst netip.Prefix
	port     uint16
}

// A policy of more rules than instructions hold decides like the list that was written, in both engines, and
// the next one takes its place. SOFTDPU_LONG=1 makes it 100,000 rules.
func TestManyRules(t *testing.T) {
	n, packets := 3000, 1500
	if os.Getenv("SOFTDPU_LONG") != "" {
		n, packets = 100_000, 20_000
	}
	r := rand.New(rand.NewPCG(51, 52))
	var rules []manyRule
	const head = "apiVersion: softdpu/v1\nkind: Policy\n"
	sources := []firewall.Source{{Name: "zones.yaml", Text: []byte(head + "zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\n")}}
	text := &strings.Builder{}
	prefix := func(first byte, bits int) netip.Prefix {
		p, err := netip.AddrFrom4([4]byte{first, 1, byte(r.IntN(64)), byte(r.IntN(256))}).Prefix(bits)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for i := range n {
		rule := manyRule{prefix(10, []int{16, 22, 24, 28, 32}[r.IntN(5)]), prefix(20, []int{16, 24, 30, 32}[r.IntN(4)]), uint16(1 + r.IntN(400))}
		rules = append(rules, rule)
		action := "allow"
		if i%5 == 0 {
			action = "deny"
		}
		if text.Len() == 0 {
			text.WriteString(head + "rules:\n")
		}
		fmt.Fprintf(text, "  - {name: r%d, from: {zone: lan, addresses: [%v]}, to: {zone: wan, addresses: [%v]}, service: udp/%d, action: %s}\n", i, rule.src, rule.dst, rule.port, action)
		if i%20_000 == 19_999 || i == n-1 {
			sources = append(sources, firewall.Source{Name: fmt.Sprintf("%06d.yaml", i), Text: []byte(text.String())})
			text.Reset()
		}
	}
	start := time.Now()
	parsed, err := firewall.Parse(sources, nil)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := firewall.Compile(parsed, firewall.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	few := compile(t, "zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\nrules: [{name: all, from: lan, to: wan, action: allow}]\n", firewall.CompileOptions{})
	t.Logf("%d rules read in %v", n, time.Since(start))
	engines(t, func(t *testing.T, engine Engine) {
		start := time.Now()
		s := open(t, Config{Engine: engine, Policy: policy})
		t.Logf("in force after %v", time.Since(start))
		r := rand.New(rand.NewPCG(53, 54))
		hit := map[string]bool{}
		for i := range packets {
			rule := rules[r.IntN(len(rules))]
			src, dst, port := manyAddress(r, rule.src), manyAddress(r, rule.dst), rule.port
			if i%4 == 0 {
				dst = manyAddress(r, rules[r.IntN(len(rules))].dst)
			}
			want := "none"
			for j, rule := range rules {
				if rule.src.Contains(src) && rule.dst.Contains(dst) && rule.port == port {
					want = fmt.Sprintf("r%d", j)
					break
				}
			}
			got := send(t, s, uint64(i)*second, "lan", udp(t, src.String(), dst.String(), uint16(1024+i%60_000), port, "x"))
			if got.Rule.Name != want {
				t.Fatalf("%v to %v port %d: rule %s, the list says %s", src, dst, port, got.Rule.Name, want)
			}
			hit[want] = true
		}
		if len(hit) < 150 {
			t.Errorf("%d rules were hit: the test asks too little", len(hit))
		}
		if err := s.Publish(few); err != nil {
			t.Fatal(err)
		}
		if got := send(t, s, uint64(packets)*second, "lan", udp(t, "10.9.9.9", "20.9.9.9", 7, 7, "x")); got.Rule.Name != "all" {
			t.Errorf("the next policy: rule %s", got.Rule.Name)
		}
	})
}

func manyAddress(r *rand.Rand, p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		if r.IntN(2) == 1 {
			a[i/8] |= 0x80 >> (i % 8)
		}
	}
	return netip.AddrFrom4(a)
}
