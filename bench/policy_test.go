package bench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/testenv"
)

// TestPolicy runs every kind once at small sizes: each proves by counters that a rule denied every packet.
func TestPolicy(t *testing.T) {
	testenv.RequireRoot(t)
	file := filepath.Join(t.TempDir(), "fw1.rules")
	if err := os.WriteFile(file, generateFilters("fw1", 200, 7), 0o600); err != nil {
		t.Fatal(err)
	}
	few := filepath.Join(t.TempDir(), "ipc1.rules")
	if err := os.WriteFile(few, []byte("@20.0.0.1/32\t30.0.0.1/32\t1 : 1\t2 : 2\t0x06/0xFF\t0x0000/0x0000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := Policy(t.Context(), PolicyOptions{Rounds: 1, Sizes: []int{10, 1000}, Kinds: []string{"ipc1", "acl1", "fw1"}, Headers: 1 << 12,
		EditTime: time.Millisecond, PeerTime: 40 * time.Millisecond, Rules: map[string]string{"fw1": file, "ipc1": few}})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]Result{}
	for _, r := range report.Results {
		by[r.Name] = r
	}
	left := strings.Join(report.Environment.LeftOut, "\n")
	for _, kind := range []string{"acl1", "fw1"} {
		for _, size := range []int{10, 1000} {
			for _, want := range []struct{ name, unit, peer string }{
				{"miss-%s-%d", "ns", "nft"}, {"miss-%s-%d-p99", "ns", ""}, {"compile-%s-%d", "s", "nft"}, {"change-one-%s-%d", "s", "nft"}, {"change-apart-%s-%d", "s", ""},
			} {
				name := fmt.Sprintf(want.name, kind, size)
				if want.unit == "ns" && want.peer != "" && size == 10 {
					want.peer = "limit"
				}
				r, ok := by[name]
				// A few rules may take less than what a busy machine takes away: then that is told.
				if hidden := kind + "-1000 of nftables: its rules took no time"; kind == "fw1" && want.peer == "nft" && r.Unit == "ns" && strings.Contains(left, hidden) {
					want.peer = ""
				}
				if !ok || r.Unit != want.unit || r.Peer != want.peer || r.Unit == "s" && (r.Value <= 0 || want.peer != "" && r.PeerValue <= 0) {
					t.Errorf("%s is %+v, expected against %q; left out: %s", name, r, want.peer, left)
				}
			}
			if text := report.Environment.PeerConfig[fmt.Sprintf("nft-%s-%d", kind, size)]; !strings.Contains(text, "policy drop;") {
				t.Errorf("the report does not say what the peer of %d rules of %s runs with: %q", size, kind, text)
			}
		}
		if name := "miss-" + kind + "-10"; by[name+"/nft"].Peer != "nft" && !strings.Contains(left, kind+"-10 of nftables") {
			t.Errorf("%s/nft is missing, without a word: %s", name, left)
		}
		if r := by["miss-"+kind+"-1000"]; kind == "acl1" && r.PeerValue < 500 {
			t.Errorf("a packet takes nftables %v ns of 1,000 rules: they were not looked at", r.PeerValue)
		}
	}
	if !strings.Contains(left, "ipc1-10: left out: draw 4096") || !strings.Contains(left, "ipc1-1000: left out") || by["miss-ipc1-10"].Name != "" {
		t.Errorf("left out: %s", left)
	}
	if len(report.Environment.RuleSets) != 3 || !strings.Contains(report.Environment.RuleSets[2], file) || report.Environment.Peers["nftables"] == "" {
		t.Errorf("%v, peers %v", report.Environment.RuleSets, report.Environment.Peers)
	}
	if _, err := Policy(t.Context(), PolicyOptions{Rules: map[string]string{"acl2": file}}); err == nil || !strings.Contains(err.Error(), `"acl2"`) {
		t.Errorf("a kind that is none: %v", err)
	}
}

// Our own rules are read as ClassBench's are, are the same for the same seed, and each edit leaves a policy.
func TestPolicyRules(t *testing.T) {
	for _, kind := range PolicyKinds {
		set := generateFilters(kind, 1000, 1)
		if !bytes.Equal(set, generateFilters(kind, 1000, 1)) || bytes.Equal(set, generateFilters(kind, 1000, 2)) {
			t.Errorf("%s: the seed does not decide", kind)
		}
		policy, rules, err := denyingPolicy(firstRules(set, 100), kind)
		if err != nil || rules != 100 || strings.Count(policy, "action: deny") != 100 {
			t.Fatalf("%s: %d rules, %v", kind, rules, err)
		}
		lines, rnd := strings.Split(strings.TrimSuffix(policy, "\n"), "\n"), rand.New(rand.NewPCG(1, 1))
		for n := range 200 {
			before := strings.Join(lines, "\n")
			lines = edit(lines, 4, n, rnd)
			after := strings.Join(lines, "\n")
			if n%5 < 2 && before == after {
				t.Errorf("%s: edit %d changes nothing", kind, n)
			}
		}
		if _, _, err := compile(strings.Join(lines, "\n") + "\n"); err != nil {
			t.Errorf("%s: after 200 edits: %v", kind, err)
		}
		compiled, acl, err := compile(policy)
		if err != nil {
			t.Fatal(err)
		}
		headers, err := drawHeaders(ownEntries(compiled), 5000, rand.New(rand.NewPCG(1, 1)))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[header]bool{}
		for _, h := range headers {
			key := h.key(2, 3)
			if rule := acl.Classify(&key, nil) & (1<<24 - 1); rule < firewall.RuleFirst || seen[h] {
				t.Fatalf("%s: header %+v is decided by rule %d, drawn twice: %v", kind, h, rule, seen[h])
			}
			seen[h] = true
		}
	}
}

// key is what the header is classified by between two zones.
func (h header) key(from, to uint8) bpf.XDPClassifyKey {
	return bpf.XDPClassifyKey{SrcLo: uint64(h.src), DstLo: uint64(h.dst), Sport: h.sport, Dport: h.dport, Proto: h.proto, Family: 4, From: from, To: to}
}

func TestRoundTimes(t *testing.T) {
	var r roundTimes
	r[10], r[20], r[len(r)-1] = 98, 1, 1
	if mean, p := r.mean(), r.percentile(99); mean != (98*84.0+164)/99 || p != 168 {
		t.Errorf("mean %v, 99 of 100 within %v", mean, p)
	}
}
