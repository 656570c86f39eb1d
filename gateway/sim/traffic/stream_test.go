package traffic

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// everyReason are those that packets of streams can meet: not those of a full table, of tags that
// drivers hide, of the kernel and of the program's own faults.
var everyReason = []string{
	"no-rule-matched", "deny", "reject", "policy-revoked", "spoofed",
	"not-syn", "tcp-state", "tcp-window", "icmp-no-flow", "icmp-no-request", "icmp-type", "wrong-zone",
	"not-for-us", "martian", "ttl-expired", "too-big", "no-route", "route-blocked", "egress-not-a-port",
	"ethertype", "vlan-unknown", "malformed-ethernet", "malformed-vlan",
	"malformed-ipv4", "malformed-ipv4-checksum", "malformed-ipv4-options", "ipv4-source-route",
	"malformed-ipv6", "malformed-ipv6-extension", "ipv6-routing-header",
	"malformed-tcp", "malformed-tcp-flags", "malformed-udp", "malformed-icmp", "malformed-icmpv6", "malformed-transport",
	"fragment-malformed", "fragment-tiny", "fragment-overlap", "fragment-no-first", "fragment-too-many",
}

// run takes n packets of one stream.
func run(t testing.TB, seed uint64, n int) *Stream {
	t.Helper()
	s, err := NewStream(seed, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if _, _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestCoverage(t *testing.T) {
	const streams, packets = 6, 10_000
	seed := uint64(time.Now().UnixNano())
	t.Logf("seeds %d to %d", seed, seed+streams-1)
	all := NewTally()
	start := time.Now()
	for i := range uint64(streams) {
		s := run(t, seed+i, packets)
		all.Add("", s.Tally)
		// A rule about two hosts and a protocol without ports is not asked once they have a flow.
		if missing := s.Tally.Missing(wantRules); len(missing) > 1 {
			t.Errorf("seed %d: of %d rules these decided about fewer than %d packets: %v", s.Seed, len(s.Tally.Rules), wantRules, missing)
		}
	}
	t.Logf("%d packets, %.0f a second, %d %% allowed, %d rules", all.Packets, float64(all.Packets)/time.Since(start).Seconds(), 100*all.Allowed/all.Packets, len(all.Rules))
	for _, reason := range everyReason {
		if n := all.Want(reason, 100*all.Packets/1_000_000); n > 0 {
			t.Errorf("reason %s: %d packets are missing", reason, n)
		}
		t.Logf("%-26s %d", reason, all.Reasons[reason])
	}
	for reason := range all.Reasons {
		if !slices.Contains(everyReason, reason) {
			t.Errorf("reason %q is not one that packets of streams meet", reason)
		}
	}
	if share := 100 * all.Allowed / all.Packets; share < 40 || share > 60 {
		t.Errorf("%d %% of the packets were allowed, want about half", share)
	}
	used := slices.Sorted(maps.Keys(all.Recipes))
	for _, c := range recipes {
		if c.name != "peer-without-vlan" && !slices.Contains(used, c.name) {
			t.Errorf("recipe %s was never used", c.name)
		}
	}
}

// A packet is a function of seed and index.
func TestReplay(t *testing.T) {
	const seed, n = 4, 6000
	s, err := NewStream(seed, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var last Packet
	var want oracle.Verdict
	for range n {
		if last, want, err = s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	_, again, v, err := Replay(seed, Options{}, n-1)
	if err != nil {
		t.Fatal(err)
	}
	if again.Port != last.Port || string(again.Frame) != string(last.Frame) || again.Now != last.Now || again.Recipe != last.Recipe || v.Reason != want.Reason || v.Rule != want.Rule {
		t.Errorf("again %+v %+v\nwas %+v %+v", again, v, last, want)
	}
	if _, other, _, _ := Replay(seed+1, Options{}, n-1); string(other.Frame) == string(last.Frame) {
		t.Error("another seed gives the same packet")
	}
}

// What a stream hands out is a whole policy, and a new one in time.
func TestPolicies(t *testing.T) {
	s, err := NewStream(9, Options{Without: []string{"bit-flips", "fragment-late"}})
	if err != nil {
		t.Fatal(err)
	}
	var at []int
	for range 2*changeEvery + 1 {
		p, _, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if p.Recipe == "bit-flips" || p.Recipe == "fragment-late" {
			t.Fatalf("packet %d is of recipe %s, which is left out", p.Index, p.Recipe)
		}
		if p.New != nil {
			at = append(at, p.Index)
			if len(p.New.Parsed.Rules) == 0 || p.New.Text == "" {
				t.Errorf("policy in front of packet %d is empty", p.Index)
			}
		}
	}
	if !slices.Equal(at, []int{0, changeEvery, 2 * changeEvery}) {
		t.Errorf("policies in front of packets %v", at)
	}
}

func BenchmarkStream(b *testing.B) {
	s := run(b, 1, 1)
	for b.Loop() {
		if _, _, err := s.Next(); err != nil {
			b.Fatal(err)
		}
	}
}
