package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/gateway/doctor"
)

func testStatus(now time.Time) *gateway.Status {
	return &gateway.Status{
		Version: "1.2.3", PID: 4711, Started: now.Add(-2 * time.Hour), Kernel: "6.18.5", Config: "/etc/softdpu/softdpu.yaml", Program: "0123456789abcdef",
		Policy: gateway.PolicyStatus{
			Path: "/etc/softdpu/policy.d", Epoch: 3, Rules: 12, Tests: 4, Loaded: now.Add(-90 * time.Second), Hash: strings.Repeat("ab", 32),
		},
		Differs: []gateway.FileStatus{{File: "/etc/softdpu/policy.d/50-branch.yaml", How: "changed"}},
		Ports: []gateway.PortStatus{
			{Name: "lan0", Device: "eth1", Driver: "veth", Mode: "native", Guard: "tcx", Zone: "lan", VLANs: map[uint16]string{10: "guests"}, MTU: 1500, Up: true, Since: now.Add(-time.Hour)},
			{Name: "wan0", Device: "eth0", Kind: "dummy", Mode: "generic", Guard: "tcx", Zone: "wan", Peer: "lan0", MTU: 9000, Since: now.Add(-5 * time.Second),
				WhyNotNative: "driver dummy: operation not supported (it has no native XDP)", Notes: []string{"a\x1b[2Jnote"}},
		},
		Table:  gateway.TableStatus{Flows: 65536, FlowsMax: 262144, HalfOpen: 1, HalfOpenMax: 131072, Created: 70000, Aged: 4464},
		Events: gateway.EventStatus{File: "/var/log/softdpu/eve.json", Written: 12, Lost: 3},
		Notes:  []string{"the kernel's forwarding was on before: once softdpu has stopped the kernel forwards by itself again"},
	}
}

func TestStatusText(t *testing.T) {
	now := time.Now()
	var b strings.Builder
	if err := writeStatus(&b, testStatus(now), now, 80); err != nil {
		t.Fatal(err)
	}
	const want = `softdpu        1.2.3, process 4711, runs for 2h0m on Linux 6.18.5
Program        tag 0123456789abcdef
Configuration  /etc/softdpu/softdpu.yaml
Policy         /etc/softdpu/policy.d
               12 rules, 4 tests passed, epoch 3, loaded 1m30s ago
               sha256 abababababababab
Files          DIFFER from what is loaded and goes on running:
               /etc/softdpu/policy.d/50-branch.yaml: changed
Flows          [#####...............]  25 %  65536 of 262144
Half-open      [#...................]   0 %  1 of 131072
               70.0k created, 4464 aged
Events         /var/log/softdpu/eve.json
               12 written, 3 lost

PORT  DEVICE  DRIVER  LINK       MODE     ZONES            MTU
lan0  eth1    veth    up 1h0m    native   lan guests(10)  1500
wan0  eth0    dummy   DOWN 5.0s  generic  wan <> lan0     9000

! port wan0 runs in generic mode: driver dummy: operation not supported (it has
  no native XDP)
! port wan0: a?[2Jnote
! the kernel's forwarding was on before: once softdpu has stopped the kernel
  forwards by itself again
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
	for line := range strings.Lines(b.String()) {
		if utf8.RuneCountInString(line) > 81 {
			t.Errorf("longer than 80 columns: %s", line)
		}
	}
	s := testStatus(now)
	s.Ports[1].MSSClamp, s.Policy.NAT = 1452, 2
	b.Reset()
	if err := writeStatus(&b, s, now, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"12 rules and 2 nat rules, 4 tests passed", "MTU   MSS\n", "1500     -\n", "9000  1452\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing:\n%s", want, b.String())
		}
	}
	s = testStatus(now)
	s.Differs = nil
	b.Reset()
	if err := writeStatus(&b, s, now, 0); err != nil || !strings.Contains(b.String(), "Files          as they were loaded") {
		t.Errorf("%v:\n%s", err, b.String())
	}

	// What waits for somebody stands above the files.
	s.Policy.Entry = 43
	s.Policy.Unconfirmed = &gateway.UnconfirmedStatus{Entry: 43, Before: 41, LeftS: 72}
	s.Policy.RolledBack = &gateway.RolledBackStatus{Entry: 43, To: 41, Time: now.Add(-3 * time.Minute), By: "rollback", User: "root"}
	s.Policy.HistoryError = "no space left on device"
	b.Reset()
	const waits = `               entry 43 of 'softdpu policy history'
               NOT CONFIRMED: entry 41 comes back in 1m12s unless you say
               'softdpu policy confirm'
               ROLLED BACK to entry 41 3m0s ago by root: a restart and SIGHUP
               keep it until the files change, or 'softdpu policy apply'
               HISTORY: no space left on device
Files          as they were loaded
`
	if err := writeStatus(&b, s, now, 80); err != nil || !strings.Contains(b.String(), waits) {
		t.Errorf("%v:\n%s\nlacks\n%s", err, b.String(), waits)
	}
}

func TestBar(t *testing.T) {
	for _, tt := range []struct {
		used, most int64
		want       string
	}{
		{0, 100, "[....................]   0 %  0"},
		{1, 1000000, "[#...................]   0 %  1"},
		{850, 1000, "[#################...]  85 %  850"},
		{1000, 1000, "[####################] 100 %  1000"},
		{1, 0, "[#...................]   0 %  1"},
		{-1, 10, "[....................]   0 %  -1"},
	} {
		if got := bar(tt.used, tt.most); got != tt.want {
			t.Errorf("bar(%d, %d) = %q, want %q", tt.used, tt.most, got, tt.want)
		}
	}
}

// The doctor's answer is no with an error among its findings, and every finding stands with its remedy.
func TestDoctorText(t *testing.T) {
	var b strings.Builder
	r := &doctor.Report{Findings: []doctor.Finding{
		{Severity: doctor.Error, Check: "no-gro", Port: "lan", Found: "frames that XDP redirects to veth lan are dropped: its other end has no GRO", Remedy: "`ethtool -K c0 gro on` at the other end"},
		{Severity: doctor.Info, Check: "kernel", Found: "Linux 6.18 runs here"},
	}, Status: testStatus(time.Now())}
	if err := writeFindings(&b, r, 60); err != nil {
		t.Fatal(err)
	}
	const want = `error    port lan, no-gro: frames that XDP redirects to veth
         lan are dropped: its other end has no GRO
         = ` + "`ethtool -K c0 gro on` at the other end" + `
info     kernel: Linux 6.18 runs here

1 error, 0 warnings, 1 to know
softdpu 1.2.3 runs as process 4711 with 2 ports: see 'softdpu status'
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestDoctorExitCode(t *testing.T) {
	dir := t.TempDir()
	file := dir + "/softdpu.yaml"
	if err := os.WriteFile(file, []byte("apiVersion: softdpu/v1\nkind: Gateway\nports: {lan: {device: nowhere9}}\npolicy: p.yaml\nmanagement: none\ncontrol: {socket: s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := execute(t, "doctor", "-c", file, "-o", "json")
	var report doctor.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitNo || report.Status != nil || report.Worst() != doctor.Error {
		t.Errorf("exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if code, stdout, _ := execute(t, "doctor", "-c", dir+"/none.yaml"); code != exitNo || !strings.Contains(stdout, "no such file") {
		t.Errorf("without a configuration: exit code %d\n%s", code, stdout)
	}
}
