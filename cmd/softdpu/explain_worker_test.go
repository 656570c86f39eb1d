package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// What workers carry is told by the twin and by explain, which need none.
func TestTiersOffline(t *testing.T) {
	t.Chdir(simDir(t))
	edit := func(name string, pairs ...string) {
		t.Helper()
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(name, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	packet := strings.Fields("-c inline.yaml --in lan0 --src 10.20.1.7 --dst 203.0.113.5 --service tcp/443")
	for _, step := range []struct {
		name      string
		change    func()
		tier      string
		why       []string
		onFailure string
	}{
		{"as it is", func() {}, "xdp", nil, ""},
		{"forced", func() { edit("inline.yaml", "management: none", "management: none\nforce_stage: forward") }, "worker", []string{"force_stage: forward"}, "drop"},
		{"mirrored", func() {
			// The monitor port is routed, and needs no routes.
			edit("inline.yaml", "\nforce_stage: forward", "", "wan0: {device: eth0}", "wan0: {device: eth0}, mon0: {device: eth2}")
			edit("policy.yaml", "    action: allow\n", "    action: allow\n    on_failure: bypass\n    mirror: {port: mon0, packets: 3}\n")
		}, "worker", []string{"mirrored to mon0, the first 3 packets"}, "bypass"},
	} {
		step.change()
		code, stdout, stderr := execute(t, append([]string{"explain", "-o", "json"}, packet...)...)
		var x explanation
		if err := json.Unmarshal([]byte(stdout), &x); err != nil || code != exitYes {
			t.Fatalf("%s: exit code %d, %v: %s%s", step.name, code, err, stdout, stderr)
		}
		if x.Tier != step.tier || !slices.Equal(x.Why, step.why) || x.OnFailure != step.onFailure {
			t.Errorf("%s: explained as tier %q, needs %q, on_failure %q", step.name, x.Tier, x.Why, x.OnFailure)
		}
		_, text, _ := execute(t, append([]string{"explain"}, packet...)...)
		want := "  tier    worker: " + strings.Join(step.why, "") + "; without one on_failure: " + step.onFailure + "\n"
		if strings.Contains(text, want) != (step.tier == "worker") {
			t.Errorf("%s: %s", step.name, text)
		}
		engines := []string{"go"}
		if os.Geteuid() == 0 {
			engines = append(engines, "xdp")
		}
		for _, engine := range engines {
			code, stdout, stderr = execute(t, "sim", "-r", "in.pcap", "-o", "json", "-c", "inline.yaml", "--engine", engine)
			if code != exitYes {
				t.Fatalf("%s: exit code %d: %s", step.name, code, stderr)
			}
			if first := jsonLines(t, stdout)[0]; first["tier"] != step.tier || first["verdict"] != "allow" {
				t.Errorf("%s by engine %s: %v", step.name, engine, first)
			}
		}
	}
}
