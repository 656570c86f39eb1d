package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// TestXDP runs every scenario but the million once: each proves by counters that its packets took the
// path that its name says.
func TestXDP(t *testing.T) {
	testenv.RequireRoot(t)
	var names []string
	for _, s := range scenarios() {
		if s.name != "ipv4-hit-1m" {
			names = append(names, s.name)
		}
	}
	report, err := XDP(t.Context(), XDPOptions{Rounds: 1, Only: names})
	if err != nil {
		t.Fatal(err)
	}
	checkReport(t, report, append([]string{"empty"}, names...), "ns")
	if report.Environment.ProgramTag == "" {
		t.Error("the report does not say which program was measured")
	}
}

// TestGateway runs every contender once, for a moment.
func TestGateway(t *testing.T) {
	testenv.RequireRoot(t)
	report, err := Gateway(t.Context(), GatewayOptions{Rounds: 1, Duration: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"forward-10-rules", "forward-1000-rules", "forward-1000-rules-established", "forward-redirect", "forward-redirect/xdp-reroute", "nat-new-flows"}
	report.Results = slices.DeleteFunc(report.Results, func(r Result) bool {
		return r.Name == "forward-1000-rules-established/nft-flowtable" // where the kernel has it
	})
	checkReport(t, report, want, "packets/s")
	for _, r := range report.Results {
		if r.Peer == "" || r.PeerValue <= 0 || r.Ratio <= 0 {
			t.Errorf("%s stands beside no peer: %+v", r.Name, r)
		}
		if report.Environment.PeerConfig[r.Peer] == "" {
			t.Errorf("the report does not say what %s runs with", r.Peer)
		}
	}
}

func checkReport(t *testing.T, report *Report, names []string, unit string) {
	t.Helper()
	var got []string
	for _, r := range report.Results {
		got = append(got, r.Name)
		if r.Unit != unit || r.Value <= 0 || r.Value != r.Median || r.Min > r.Median || r.Median > r.Max {
			t.Errorf("result %+v", r)
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("results %v, expected %v", got, names)
	}
}
