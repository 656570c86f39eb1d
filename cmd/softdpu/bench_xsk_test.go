package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bench"
	"github.com/softdpu/softdpu/testenv"
)

// TestBenchXSK sweeps one parameter, and prints JSON and tables.
func TestBenchXSK(t *testing.T) {
	testenv.RequireRoot(t)
	t.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin") // without the peer, which takes seconds
	args := []string{"bench", "xsk", "tx-push", "--duration", "300ms", "--repeat", "1", "--rate", "20k", "--sweep", "batch=1,32"}
	code, stdout, stderr := execute(t, append(args, "-o", "json")...)
	var report bench.Report
	if err := json.Unmarshal([]byte(stdout), &report); code != exitYes || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if len(report.Results) != 2 || report.Bench != "xsk" {
		t.Fatalf("%+v", report)
	}
	for i, want := range []struct {
		name  string
		batch int
	}{{"tx-push/batch=1", 1}, {"tx-push/batch=32", 32}} {
		if r := report.Results[i]; r.Name != want.name || r.XSK.Batch != want.batch || r.XSK.Rate != 20_000 || r.Value <= 0 {
			t.Errorf("result %d: %+v %+v", i, r, r.XSK)
		}
	}
	code, stdout, stderr = execute(t, args...)
	if code != exitYes {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"driver veth, mode copy", "zero-copy: bind in mode zero-copy", "workers on CPUs", "tx-push/batch=32", "packets/s",
		"ns/PACKET", "RETURNED", "xdpsock: left out of tx-push/batch=1: "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the tables do not show %q:\n%s", want, stdout)
		}
	}
}

func TestBenchXSKWrongUse(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"", "needs rx-drop|tx-push|l2fwd"},
		{"rx-dorp", "did you mean rx-drop?"},
		{"rx-drop eth0 eth1", `takes no argument "eth1"`},
		{"l2fwd --mode zerocopy", "did you mean zero-copy?"},
		{"l2fwd --sweep batch", "it must be NAME=V1,V2,..."},
		{"l2fwd --sweep duration=1s,2s", "it can vary batch"},
		{"l2fwd --sweep batch=1,x", "invalid"},
		{"l2fwd --batch 8 --sweep batch=1,2", "--batch is given as well"},
		{"rx-drop --rate fast", "250k or 1.5M"},
		{"rx-drop --rate 0", "250k or 1.5M"},
		{"rx-drop --ring-size 100", "power of two"},
		{"rx-drop --pcap /nonexistent", "open capture"},
		{"rx-drop no-such-device", "find device no-such-device"},
	} {
		code, stdout, stderr := execute(t, append([]string{"bench", "xsk"}, strings.Fields(tt.args)...)...)
		if code != exitError || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: exit code %d, printed %q, said %s", tt.args, code, stdout, stderr)
		}
	}
}

func TestBenchXSKShowPeer(t *testing.T) {
	code, stdout, stderr := execute(t, "bench", "xsk", "l2fwd", "eth1", "--show-peer", "--cpu", "0", "--mode", "zero-copy", "--busy-poll", "--sweep", "batch=8,16")
	const want = `batch=8: taskset -c 0 xdpsock --l2fwd -i eth1 -q 0 -b 8 -f 4096 -N -z -B -n 1 -x
batch=16: taskset -c 0 xdpsock --l2fwd -i eth1 -q 0 -b 16 -f 4096 -N -z -B -n 1 -x
`
	if code != exitYes || stdout != want {
		t.Errorf("exit code %d, %s:\n%s", code, stderr, stdout)
	}
	if code, stdout, _ := execute(t, "bench", "xsk", "rx-drop", "--show-peer", "--ring-size", "512"); code != exitYes || !strings.Contains(stdout, "left out: xdpsock's rings have 2048") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
}

func TestPacketRate(t *testing.T) {
	for text, want := range map[string]packetRate{"250000": 250000, "250k": 250000, "1.5M": 1.5e6, "1G": 1e9} {
		var r packetRate
		if err := r.Set(text); err != nil || r != want {
			t.Errorf("%s: %v, %v", text, r, err)
		}
	}
	for _, text := range []string{"", "-1", "2G", "1m", "k", "NaN"} {
		var r packetRate
		if err := r.Set(text); err == nil {
			t.Errorf("%q is %v", text, r)
		}
	}
}
