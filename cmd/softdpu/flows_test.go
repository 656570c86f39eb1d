package main

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/gateway"
)

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 9999: "9999", 10_000: "10.0k", 99_940: "99.9k", 99_960: "100k", 999_499: "999k", 999_600: "1.0M", 4_500_000_000: "4.5G", 1<<64 - 1: "18.4E"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %s, want %s", n, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0B", 1023: "1023B", 1024: "1.0K", 1536: "1.5K", 1<<20 - 1: "1.0M", 5 << 40: "5.0T"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
	for seconds, want := range map[float64]string{0: "0.0s", 0.34: "0.3s", 12.9: "12s", 245: "4m5s", 7440: "2h4m", 262800: "3d1h"} {
		if got := interval(seconds); got != want {
			t.Errorf("interval(%v) = %s, want %s", seconds, got, want)
		}
	}
}

func TestFlowTable(t *testing.T) {
	flows := []gateway.Flow{
		{
			Family: 6, Proto: "tcp", SrcIP: netip.MustParseAddr("fd10:1::2"), SrcPort: 51234, DestIP: netip.MustParseAddr("fd10:2::2"), DestPort: 443,
			From: "lan", To: "wan", State: "established", Tier: "xdp", Rule: "web", Packets: [2]uint64{12345, 20}, Bytes: [2]uint64{60, 1 << 20}, IdleS: 1.25,
		},
		{
			Family: 4, Proto: "icmp", SrcIP: netip.MustParseAddr("10.10.1.2"), SrcPort: 77, DestIP: netip.MustParseAddr("10.10.2.2"),
			From: "lan", To: "wan", State: "replied", Revoked: true, Tier: "xdp", Rule: "ping",
		},
	}
	var b strings.Builder
	if err := flowTable(flows, 0).write(&b, 0); err != nil {
		t.Fatal(err)
	}
	want := `
PROTO  SOURCE             DESTINATION      ZONES      STATE               PACKETS     BYTES  IDLE  TIER  RULE
tcp    [fd10:1::2]:51234  [fd10:2::2]:443  lan > wan  established        12.3k/20  60B/1.0M  1.2s  xdp   web
icmp   10.10.1.2          10.10.2.2        lan > wan  replied (revoked)       0/0     0B/0B  0.0s  xdp   ping
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got:%swant:%s", got, want)
	}
	b.Reset()
	if err := flowTable(flows, 100).write(&b, 100); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Contains(got, "ZONES") || !strings.Contains(got, "[fd10:1::2]:51234") || strings.Contains(got, "…") {
		t.Errorf("on a narrow terminal:\n%s", got)
	}
}

func TestRuleTable(t *testing.T) {
	now := time.Now()
	hit := now.Add(-90 * time.Second)
	rules := []gateway.RuleStatus{
		{Name: "none", Action: "deny", Mode: "enforce", Judged: 5, LastHit: &hit},
		{Name: "builtin-arp", Action: "allow", Mode: "enforce", Builtin: true},
		{Name: "trial", Action: "deny", Mode: "audit", File: "/etc/softdpu/policy.d/50-branch.yaml", Line: 7, Unlogged: 3},
		{Name: "old", Action: "allow", Mode: "enforce", Expired: true, File: "a.yaml", Line: 1},
	}
	var b strings.Builder
	if err := ruleTable(rules, now).write(&b, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"none         deny                  5", "1m30s", "built in", "deny (audit)", "50-branch.yaml:7", "allow (expired)"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	if !strings.Contains(b.String(), "UNLOGGED") {
		t.Errorf("events were left out, which it does not say:\n%s", b.String())
	}
	b.Reset()
	if err := ruleTable(rules[:2], now).write(&b, 0); err != nil || strings.Contains(b.String(), "UNLOGGED") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}

func TestWithoutDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	for _, verb := range []string{"flows", "drops", "rules", "status"} {
		code, stdout, stderr := execute(t, verb, "--socket", socket)
		if code != exitError || stdout != "" || !strings.Contains(stderr, socket) || !strings.Contains(stderr, "softdpu run -c FILE") {
			t.Errorf("%s: exit code %d, %q, %q", verb, code, stdout, stderr)
		}
	}
}

func TestWrongFilter(t *testing.T) {
	code, _, stderr := execute(t, "flows", "--filter", "src 10.0.0.0/8 adn dport 443")
	if code != exitError || !strings.Contains(stderr, "column 16: expected `and` or `or`, not \"adn\"\n  src 10.0.0.0/8 adn dport 443\n                 ^") {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
}

// What is to end must be said, once.
func TestFlowsKillNeedsAChoice(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "--filter EXPRESSION, or --all"},
		{[]string{"--filter", " "}, "--filter EXPRESSION, or --all"},
		{[]string{"--filter", "dport 7", "--all"}, "exclude each other"},
		{[]string{"--filter", "dport x"}, `"x" is not a port`},
		{[]string{"--all", "--socket", "/nowhere/sock"}, "no softdpu answers"},
	} {
		code, stdout, stderr := execute(t, append([]string{"flows", "kill"}, tt.args...)...)
		if code != exitError || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%q: exit code %d, %s%s", tt.args, code, stdout, stderr)
		}
	}
}
