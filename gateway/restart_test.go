package gateway

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// What a reload puts in force is accepted; every other key is refused by its name, with the remedy.
func TestConfigRestartFor(t *testing.T) {
	const text = `apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: eth1}, wan: {device: eth0}}
policy: policy.yaml
management: none
flows: {max: 1000}
control: {socket: softdpu.sock}
events: {file: eve.json}
`
	for _, tt := range []struct{ name, old, with, want string }{
		{"comment and order", "kind: Gateway\n", "# hello\n\nkind: Gateway\n", ""},
		{"policy", "policy: policy.yaml", "policy: policy.d", ""},
		{"management", "management: none", "management: {from: [lan], services: [tcp/22]}", ""},
		{"management overridden", "management: none", "management: none\noverride_management: true", ""},
		{"time-outs", "max: 1000", "max: 1000, timeouts: {udp: 3m}", ""},
		{"device", "eth1", "eth2", ""},
		{"port name", "lan: {", "inside: {", ""},
		{"mtu", "eth1", "eth1, mtu: 1400", ""},
		{"mode", "eth0", "eth0, xdp_mode: generic", ""},
		{"inline", "kind: Gateway", "kind: Gateway\ninline: [[lan, wan]]", ""},
		{"stage", "kind: Gateway", "kind: Gateway\nforce_stage: forward", ""},
		{"workers", "kind: Gateway", "kind: Gateway\nworkers: {}", "workers"},
		{"workers, with keys", "kind: Gateway", "kind: Gateway\nworkers: {count: 2, poll: always}", "workers"},
		{"the end", "kind: Gateway", "kind: Gateway\non_stop: keep", "on_stop"},
		{"upgrade grace", "kind: Gateway", "kind: Gateway\nupgrade_grace: none", "upgrade_grace"},
		{"size", "max: 1000", "max: 1001", "flows.max"},
		{"share", "max: 1000", "max: 1000, half_open_share: 0.25", "flows.half_open_share"},
		{"socket", "softdpu.sock", "other.sock", "control.socket"},
		{"event rate", "eve.json", "eve.json, rate: 5", "events.rate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(text, tt.old) {
				t.Fatalf("%q does not stand there", tt.old)
			}
			old, err := ParseConfig("softdpu.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			next, err := ParseConfig("softdpu.yaml", []byte(strings.Replace(text, tt.old, tt.with, 1)))
			if err != nil {
				t.Fatal(err)
			}
			errs := old.restartFor(next)
			switch {
			case tt.want == "" && len(errs) > 0:
				t.Errorf("refused: %v", errs)
			case tt.want != "" && (len(errs) != 1 || !strings.Contains(errs.Error(), tt.want+" has changed") || !strings.Contains(errs.Error(), "restart softdpu")):
				t.Errorf("says %v", errs)
			}
		})
	}
}

// What a reload puts in force is what the history compares and what a rollback brings back, whatever else
// of the configuration has changed since.
func TestReloadedIsBroughtBack(t *testing.T) {
	ofReader := []string{"File", "PolicyPos", "Warnings"} // these are none of the operator's
	change := func(t *testing.T, v reflect.Value) {
		t.Helper()
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int64:
			v.SetInt(int64(time.Minute))
		case reflect.String:
			v.SetString("other")
		case reflect.Slice:
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		default:
			t.Fatalf("a test for a %s is missing", v.Type())
		}
	}
	base := func() *Config { return &Config{File: "softdpu.yaml", OnStop: OnStopKeep} }
	paths := map[string][]string{"Flows.Timeouts": {"Flows", "Timeouts"}}
	for _, name := range reloadable {
		if !slices.Contains(ofReader, name) {
			paths[name] = []string{name}
		}
	}
	fields := make(map[string]func(c *Config) reflect.Value)
	for name, path := range paths {
		at := func(c *Config) reflect.Value {
			v := reflect.ValueOf(c).Elem()
			for _, p := range path {
				v = v.FieldByName(p)
			}
			return v
		}
		if v := at(base()); v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				fields[name+"."+v.Type().Field(i).Name] = func(c *Config) reflect.Value { return at(c).Field(i) }
			}
			continue
		}
		fields[name] = at
	}
	for name, field := range fields {
		t.Run(name, func(t *testing.T) {
			then := base()
			change(t, field(then))
			now := base()
			if errs := now.restartFor(then); len(errs) > 0 {
				t.Fatalf("needs a restart: %v", errs)
			}
			if now.policyKeys() == then.policyKeys() {
				t.Error("the history sees no difference")
			}
			now.OnStop = OnStopBlock // which only a restart puts in force
			back := now.bringBack(then)
			if !reflect.DeepEqual(field(back).Interface(), field(then).Interface()) || back.OnStop != OnStopBlock {
				t.Errorf("brought back is %+v", back)
			}
		})
	}
}

// Ports are told in the words of the configuration, wherever they stand in it.
func TestPortsAsKeys(t *testing.T) {
	const head = "apiVersion: softdpu/v1\nkind: Gateway\npolicy: p.yaml\nmanagement: none\n"
	one := must(ParseConfig("a.yaml", []byte(head+"ports: {lan: {device: eth1, mtu: 1400, fix_offloads: true, mss_clamp: 1300}, wan: {device: eth0, xdp_mode: generic, mss_clamp: auto}}\n")))
	two := must(ParseConfig("b.yaml", []byte("# elsewhere\n"+head+"ports:\n  lan: {device: eth1, fix_offloads: true, mtu: 1400, mss_clamp: 1300}\n  wan: {mss_clamp: auto, device: eth0, xdp_mode: generic}\n")))
	const want = "lan: {device: eth1, mtu: 1400, fix_offloads: true, fix_checksums: auto, xdp_mode: auto, mss_clamp: 1300}, wan: {device: eth0, fix_checksums: auto, xdp_mode: generic, mss_clamp: auto}"
	if got := one.reloadKeys()[0][1]; got != want || one.policyKeys() != two.policyKeys() {
		t.Errorf("ports are %s\nand %s", got, two.reloadKeys()[0][1])
	}
}

// Zones that are renamed or swap their names keep their numbers, so that their ports do not move; one that
// is named under another zone does.
func TestZonesMove(t *testing.T) {
	const config = `apiVersion: softdpu/v1
kind: Gateway
ports: {a: {device: eth1}, b: {device: eth2}, c: {device: eth3}}
policy: policy.yaml
management: none
`
	const policy = "apiVersion: softdpu/v1\nkind: Policy\nzones: %s\n"
	const first = "{one: {ports: [a, b]}, two: {ports: [c]}}"
	for _, tt := range []struct {
		name, zones string
		want        []string
	}{
		{"renamed", "{uno: {ports: [b, a]}, two: {ports: [c]}}", nil},
		{"names swapped", "{two: {ports: [a, b]}, one: {ports: [c]}}", nil},
		{"a port moves", "{one: {ports: [a]}, two: {ports: [c, b]}}", []string{"b.0"}},
		{"a zone is divided", "{one: {ports: [a]}, three: {ports: [b]}, two: {ports: [c]}}", []string{"b.0"}},
		{"a VLAN more", "{one: {ports: [a, b]}, two: {ports: [c]}, three: {ports: [c], vlans: [7]}}", []string{"c.7"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := write(t, config, fmt.Sprintf(policy, first))
			old, err := PrepareRuleset(c, time.Now(), nil)
			if err != nil {
				t.Fatal(err)
			}
			next := write(t, config, fmt.Sprintf(policy, tt.zones))
			options := next.CompileOptions(time.Now())
			options.Previous = old.Compiled.Identities
			r, err := prepareRuleset(next, options, nil)
			if err != nil {
				t.Fatal(err)
			}
			was := make(map[string]uint8)
			for _, p := range old.Compiled.Ports {
				was[fmt.Sprintf("%s.%d", p.Port, p.VLAN)] = p.Zone
			}
			var moved []string
			for _, p := range r.Compiled.Ports {
				if at := fmt.Sprintf("%s.%d", p.Port, p.VLAN); was[at] != p.Zone {
					moved = append(moved, at)
				}
			}
			if !slices.Equal(moved, tt.want) {
				t.Errorf("%v move, want %v", moved, tt.want)
			}
		})
	}
}
