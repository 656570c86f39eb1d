package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/testenv"
)

// nftMixed has what the generator's rules have not: comments of a set are none, ports of a protocol without any, bits
// behind a prefix's length, whole numbers of ports on one side.
const nftMixed = "@10.1.2.3/8\t0.0.0.0/0\t5 : 9\t0 : 65535\t0x06/0xFF\t0x0000/0x0000\n\n" +
	"@0.0.0.0/0\t20.0.0.0/6\t0 : 65535\t80 : 80\t0x00/0x00\t0x0000/0x0000\n" +
	"@30.0.0.0/8\t40.0.0.0/8\t0 : 65535\t80 : 80\t0x2F/0xFF\t0x0000/0x0000\n" + // matches nothing
	"@30.0.0.0/8\t40.0.0.0/8\t1 : 1\t7 : 70\t0x00/0x00\t0x0000/0x0000\n" +
	"@30.0.0.0/8\t40.0.0.0/8\t0 : 65535\t0 : 65535\t0x2F/0xFF\t0x0000/0x0000\n" +
	"@30.0.0.0/9\t0.0.0.0/0\t0 : 65535\t0 : 65535\t0x00/0x00\t0x0000/0x0000\n" +
	"@0.0.0.0/0\t0.0.0.0/1\t100 : 200\t300 : 400\t0x11/0xFF\t0x0000/0x0000\n"

// The nftables rules mean what ours do: the first that matches is the same, as the file has them and as the kernel has
// taken them, where there is one; and each has the handle by which it is changed.
func TestNFTRules(t *testing.T) {
	sets := map[string][]byte{"mixed": []byte(nftMixed)}
	for _, kind := range PolicyKinds {
		sets[kind] = generateFilters(kind, 300, 3)
	}
	for name, set := range sets {
		rules, err := nftRulesOf(set)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		policy, n, err := denyingPolicy(set, name)
		if err != nil {
			t.Fatal(err)
		}
		if len(rules) != n {
			t.Fatalf("%s: %d rules of nftables, %d of softdpu", name, len(rules), n)
		}
		compiled, acl, err := compile(policy)
		if err != nil {
			t.Fatal(err)
		}
		lines := map[string][]string{"the file": ruleLines(string(nftFile(rules)))}
		if os.Geteuid() == 0 {
			file := filepath.Join(t.TempDir(), "rules.nft")
			if err := os.WriteFile(file, nftFile(rules), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("unshare", "--net", "sh", "-c", `nft -c -f "$0" && nft -f "$0" && nft -nn -a list table ip bench`, file).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v: %.500s", name, err, out)
			}
			lines["the kernel"] = ruleLines(string(out))
		}
		rnd := rand.New(rand.NewPCG(5, 5))
		headers, err := drawHeaders(ownEntries(compiled), 1000, rnd)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1000 { // which just miss the rule that they were drawn from, or just do not
			h := headers[i]
			switch i % 5 {
			case 0:
				h.src ^= 1 << rnd.IntN(32)
			case 1:
				h.dst ^= 1 << rnd.IntN(32)
			case 2:
				h.sport ^= 1 << rnd.IntN(16)
			case 3:
				h.dport ^= 1 << rnd.IntN(16)
			case 4:
				h.proto ^= 6 ^ 17
			}
			headers = append(headers, h)
		}
		met := 0
		for where, text := range lines {
			if len(text) != len(rules) {
				t.Fatalf("%s: %s has %d of %d rules", name, where, len(text), len(rules))
			}
			parsed := make([]nftMatch, len(text))
			for i, line := range text {
				if parsed[i], err = parseNFT(line); err != nil {
					t.Fatalf("%s: %s: %q: %v", name, where, line, err)
				}
				if where == "the kernel" && parsed[i].handle != rules[i].handle {
					t.Fatalf("%s: rule %q has not handle %d", name, line, rules[i].handle)
				}
			}
			for _, h := range headers {
				key := h.key(2, 3)
				want, got := int(acl.Classify(&key, nil)&(1<<24-1))-int(firewall.RuleFirst), -1
				for i := range parsed {
					if parsed[i].matches(h) {
						got = i
						break
					}
				}
				if want < 0 {
					want = -1
				} else {
					met++
				}
				if got != want {
					t.Fatalf("%s: of %+v rule %d of %s decides, and %d of softdpu", name, h, got, where, want)
				}
			}
		}
		if met < 1000*len(lines) {
			t.Errorf("%s: only %d headers met a rule", name, met)
		}
	}
	for _, bad := range []string{"@10.0.0.0/8\n", "@10.0.0.0/8\t10.0.0.0\t0 : 65535\t0 : 65535\t0x06/0xFF\t0/0\n", "@10.0.0.0/8\t10.0.0.0/8\t0 : 65535\t0 : 65535\t0x06\t0/0\n"} {
		if rules, err := nftRulesOf([]byte(bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, rules)
		}
	}
}

// ruleLines are the lines of a table that hold rules.
func ruleLines(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, "accept") && !strings.Contains(line, "policy") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// An nftMatch is a rule as read from nftables' own language.
type nftMatch struct {
	prefix map[string]netip.Prefix
	protos []string
	ports  map[string][2]uint64
	handle int
}

func parseNFT(line string) (m nftMatch, err error) {
	line, handle, _ := strings.Cut(line, " # handle ")
	m.handle, _ = strconv.Atoi(handle)
	line = strings.NewReplacer("{ ", "", " }", "", ", ", ",").Replace(line)
	words := strings.Fields(line)
	m.prefix, m.ports = map[string]netip.Prefix{}, map[string][2]uint64{}
	for ; len(words) > 1; words = words[3:] {
		if len(words) < 4 {
			return m, errors.New("it ends too early")
		}
		switch first, field, value := words[0], words[1], words[2]; first {
		case "ip":
			if !strings.Contains(value, "/") {
				value += "/32"
			}
			if m.prefix[field], err = netip.ParsePrefix(value); err != nil {
				return m, err
			}
		case "meta":
			m.protos = strings.Split(strings.NewReplacer("tcp", "6", "udp", "17").Replace(value), ",")
		case "tcp", "udp", "th":
			if first != "th" {
				m.protos = []string{map[string]string{"tcp": "6", "udp": "17"}[first]}
			}
			low, high, ok := strings.Cut(value, "-")
			if !ok {
				high = low
			}
			var r [2]uint64
			var errs [2]error
			r[0], errs[0] = strconv.ParseUint(low, 10, 16)
			r[1], errs[1] = strconv.ParseUint(high, 10, 16)
			if err := errors.Join(errs[:]...); err != nil {
				return m, err
			}
			m.ports[field] = r
		default:
			return m, fmt.Errorf("%q is not known", first)
		}
	}
	if len(words) != 1 || words[0] != "accept" {
		return m, errors.New("it does not accept")
	}
	return m, nil
}

func (m *nftMatch) matches(h header) bool {
	for field, a := range map[string]uint32{"saddr": h.src, "daddr": h.dst} {
		if p, ok := m.prefix[field]; ok && !p.Contains(ip4(a)) {
			return false
		}
	}
	if m.protos != nil {
		found := false
		for _, p := range m.protos {
			found = found || p == strconv.Itoa(int(h.proto))
		}
		if !found {
			return false
		}
	}
	for field, port := range map[string]uint16{"sport": h.sport, "dport": h.dport} {
		if r, ok := m.ports[field]; ok && (uint64(port) < r[0] || uint64(port) > r[1]) {
			return false
		}
	}
	return true
}

// Each single edit is one that nft makes, of rules that have their handles still, whatever came before.
func TestNFTEdit(t *testing.T) {
	testenv.RequireRoot(t)
	rules, err := nftRulesOf([]byte(nftMixed + string(generateFilters("ipc1", 60, 1))))
	if err != nil {
		t.Fatal(err)
	}
	script, rnd := bytes.NewBuffer(nftFile(rules)), rand.New(rand.NewPCG(2, 2))
	want := len(rules)
	left := rules
	for n := range 50 {
		var command string
		command, left = nftEdit(left, n, rnd)
		fmt.Fprintln(script, command)
		want += []int{1, -1, 0, 0, 0}[n%5]
		if n%5 != 2 && strings.Contains(command, ";") || !strings.HasPrefix(command, []string{"insert", "delete", "delete", "replace", "replace"}[n%5]) {
			t.Errorf("edit %d is %q", n, command)
		}
	}
	cmd := exec.Command("unshare", "--net", "sh", "-c", "nft -f - && nft -nn list table ip bench")
	cmd.Stdin = script
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %.500s", err, out)
	}
	got := 0
	for line := range strings.Lines(string(out)) {
		if strings.HasSuffix(line, "accept\n") || strings.HasSuffix(line, "drop\n") {
			got++
		}
	}
	if got != want || !strings.Contains(string(out), " drop\n") {
		t.Errorf("after the edits there are %d rules, expected %d:\n%.2000s", got, want, out)
	}
}

// What a peer cannot do is left out and told, and the rest goes on without it; what the caller ended is an error.
func TestPolicyLeftOut(t *testing.T) {
	rig := &policyRig{o: PolicyOptions{Progress: func(string) {}}, peer: &policyPeer{}}
	r := &policyRun{policyRig: rig, name: "acl1-10", peer: rig.peer}
	calls := 0
	for range 2 {
		if err := r.beside(t.Context(), func(*policyPeer) error { calls++; return errors.New("no room") }); err != nil {
			t.Error(err)
		}
	}
	if calls != 1 || len(rig.env.LeftOut) != 1 || rig.env.LeftOut[0] != "acl1-10 of nftables: no room" || rig.peer == nil {
		t.Errorf("%d calls, left out %q", calls, rig.env.LeftOut)
	}
	text, err := json.Marshal(rig.env)
	if err != nil || !strings.Contains(string(text), `"left_out":["acl1-10 of nftables: no room"]`) {
		t.Errorf("%s, %v", text, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	r.peer = rig.peer
	if err := r.beside(ended, func(*policyPeer) error { return ended.Err() }); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
	names := func(list []Result) (s string) {
		for _, r := range list {
			s += fmt.Sprintf("%s %s %g; ", r.Name, r.Peer, r.Ratio)
		}
		return s
	}
	ours, theirs := []float64{1, 2, 3}, []float64{2, 8, 3}
	for _, tt := range []struct {
		theirs []float64
		limit  float64
		want   string
	}{
		{theirs, 0, "x nft 0.5; "},
		{theirs, 4, "x limit 0.5; x/nft nft 0.5; "},
		{nil, 4, "x limit 0.5; "},
		{nil, 0, "x  0; "},
		{theirs[:2], 0, "x  0; "}, // it gave up
	} {
		if got := names(held("x", "ns", ours, tt.theirs, tt.limit)); got != tt.want {
			t.Errorf("beside %v, limit %v: %s, expected %s", tt.theirs, tt.limit, got, tt.want)
		}
	}
}

// The rule file of ten rules is shown whole, of more the beginning.
func TestPolicyContenders(t *testing.T) {
	list, err := PolicyContenders(PolicyOptions{Kinds: []string{"acl1"}, Sizes: []int{10, 1000}})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]string{}
	for _, c := range list {
		by[c.Name] = c.Config
	}
	if strings.Count(by["nft-acl1-10"], " accept\n") != 10 || strings.Contains(by["nft-acl1-10"], "in all") ||
		!strings.Contains(by["nft-acl1-1000"], "1000 rules in all") || strings.Count(by["nft-acl1-1000"], " accept\n") != nftShown ||
		!strings.Contains(by["nft"], "ip_forward=1") || !strings.Contains(by["no rule"], "policy accept") {
		t.Errorf("%v", by)
	}
	for _, o := range []PolicyOptions{{Kinds: []string{"acl2"}}, {Rules: map[string]string{"acl1": "/none"}}, {Sizes: []int{0}}} {
		if _, err := PolicyContenders(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
