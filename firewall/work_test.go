package firewall

import (
	"strings"
	"testing"
	"time"
)

const mirrorPolicy = head + `zones: {a: {ports: [a0]}, b: {ports: [b0]}}
rules:
  - {name: all, from: a, to: b, service: tcp/1, action: allow, mirror: mon0}
  - {name: some, from: a, to: b, service: tcp/2, action: allow, mirror: {port: mon1, packets: 1}, on_failure: bypass}
  - {name: over, from: a, to: b, service: tcp/3, action: allow, mirror: mon2, expires: 2026-05-31}
  - {name: plain, from: a, to: b, service: tcp/4, action: allow, on_failure: drop}
`

func TestCompiledMirrors(t *testing.T) {
	c, err := compileText(t, mirrorPolicy, CompileOptions{Ports: []string{"a0", "b0", "mon0", "mon1", "mon2"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		mirror string
		bypass bool
	}{{"mon0", false}, {"mon1, the first packet", true}, {"mon2", false}, {"", false}} {
		r := &c.Rules[c.Order[i]]
		if got := r.Mirror.Text(); got != want.mirror || r.Bypass != want.bypass {
			t.Errorf("rule %s mirrors to %q, bypass %v; want %+v", r.Name, got, r.Bypass, want)
		}
	}
	p, _ := parseText(t, mirrorPolicy)
	monitors := p.Monitors()
	if len(monitors) != 3 || monitors["mon0"].Name != "all" || monitors["mon2"].Name != "over" {
		t.Errorf("monitor ports %v", monitors)
	}
}

// A port that the gateway lacks is told where the rule names it, an expired rule's too: the rule must not
// become wrong with its last day, nor right.
func TestMirrorToUnknownPort(t *testing.T) {
	for port, at := range map[string]string{"mon0": "p.yaml:5:72: ", "mon1": "p.yaml:6:80: ", "mon2": "p.yaml:7:73: "} {
		ports := []string{"a0", "b0"}
		for _, name := range []string{"mon0", "mon1", "mon2"} {
			if name != port {
				ports = append(ports, name)
			}
		}
		for _, now := range []time.Time{{}, day.AddDate(0, -2, 0)} {
			_, err := compileText(t, mirrorPolicy, CompileOptions{Ports: ports, Now: now})
			if err == nil || !strings.HasPrefix(err.Error(), at+`unknown port "`+port+`"`) {
				t.Errorf("without %s: %v", port, err)
			}
		}
	}
	// Where the ports are not known, any is taken to exist; and where a capture stands for the ports, none is asked for.
	for name, o := range map[string]CompileOptions{"any": {}, "own name": {Ports: []string{"a", "b"}, OwnNamePorts: true}} {
		if _, err := compileText(t, mirrorPolicy, o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
