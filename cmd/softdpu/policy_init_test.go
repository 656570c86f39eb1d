package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/testenv"
)

// inGateway runs a command line in the gateway's namespace of a lab.
func inGateway(t *testing.T, l *testenv.Lab, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	err := l.Must(t, testenv.Gateway).Do(func() error {
		code, stdout, stderr = execute(t, args...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return code, stdout, stderr
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// uncomment is what the policy tells its reader to do with lines that begin with a mark.
func uncomment(t *testing.T, path, mark string) {
	t.Helper()
	text := strings.ReplaceAll(read(t, path), "\n"+mark, "\n")
	if err := os.WriteFile(path, []byte(strings.Replace(text, "\nrules: []", "\n#", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestPolicyInit(t *testing.T) {
	l := testenv.New(t, "three-zone", testenv.Options{})
	gw := l.Must(t, testenv.Gateway)
	tests := []struct {
		name   string
		route  bool // with a default route by wan
		args   []string
		code   int
		said   string   // contained in what is printed
		config []string // contained in the configuration
		policy []string // contained in the policy
	}{
		{"nothing says where the outside is", false, nil, exitError, "name it with --wan; there are: dmz, lan, wan", nil, nil},
		{"the default route does", true, nil, exitYes, "1 test passed",
			[]string{"lan0: {device: dmz}", "lan1: {device: lan}", "wan0: {device: wan}", "management: {from: [lan], services: [tcp/22]}"},
			[]string{`lan: {ports: [lan0, lan1], addresses: ["10.10.3.0/24", "fd10:3::/64", "10.10.1.0/24", "fd10:1::/64"]}`, "untrusted: true", "dst: 10.10.3.2"}},
		{"flags", false, []string{"--wan", "dmz", "--lan", "wan"}, exitYes, "1 test passed",
			[]string{"lan0: {device: wan}", "wan0: {device: dmz}"}, []string{"ports: [lan0]"}},
		{"the device of the default route is inside", true, []string{"--lan", "wan", "--wan", "lan"}, exitYes, "1 test passed",
			[]string{"lan0: {device: wan}", "wan0: {device: lan}"}, nil},
		{"inline", true, []string{"--inline", "--lan", "lan"}, exitYes, "1 test passed",
			[]string{"inline: [[lan0, wan0]]", "management: none"}, []string{"lan: {ports: [lan0]}"}},
		{"inline with three", true, []string{"--inline"}, exitError, "an inline pair has one device inside, not 2", nil, nil},
		{"unknown device", true, []string{"--lan", "eth7"}, exitError, "no device eth7 that could be a port; there are: dmz, lan, wan", nil, nil},
		{"a device twice", true, []string{"--lan", "wan", "--wan", "wan"}, exitError, "device wan is named twice", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.route {
				route := func(verb string) {
					if out, err := gw.Command(t.Context(), "ip", "route", verb, "default", "via", "10.10.2.2").CombinedOutput(); err != nil {
						t.Errorf("%v: %s", err, out)
					}
				}
				route("add")
				defer route("del")
			}
			dir := t.TempDir()
			code, stdout, stderr := inGateway(t, l, append([]string{"policy", "init", "--dir", dir}, tt.args...)...)
			if code != tt.code || !strings.Contains(stdout+stderr, tt.said) {
				t.Fatalf("exit code %d:\n%s%s", code, stdout, stderr)
			}
			config, policy := filepath.Join(dir, "softdpu.yaml"), filepath.Join(dir, "policy.d", "50-policy.yaml")
			if code != exitYes {
				if exists(config) || exists(policy) {
					t.Error("it was refused, and yet something was written")
				}
				return
			}
			for _, want := range tt.config {
				if text := read(t, config); !strings.Contains(text, want) {
					t.Errorf("configuration lacks %q:\n%s", want, text)
				}
			}
			for _, want := range tt.policy {
				if text := read(t, policy); !strings.Contains(text, want) {
					t.Errorf("policy lacks %q:\n%s", want, text)
				}
			}
			// As written and as its comments propose, it passes without a warning.
			inline := strings.Contains(read(t, config), "inline")
			for _, rules := range []string{"0 rules in", "4 rules in", "4 rules and 1 nat rule in"} {
				switch {
				case rules == "4 rules in":
					uncomment(t, policy, "#:")
					if inline {
						rules = "3 rules in"
					}
				case rules != "0 rules in" && inline:
					continue // an inline pair translates nothing
				case rules != "0 rules in":
					uncomment(t, policy, "#;")
				}
				code, stdout, _ := execute(t, "policy", "check", "-c", config)
				if code != exitYes || !strings.HasPrefix(stdout, "ok: "+rules) || !strings.Contains(stdout, "; 0 warnings\n") {
					t.Errorf("check: exit code %d:\n%s", code, stdout)
				}
			}
		})
	}
}

// An operator whose session comes in from outside is not cut off by what is written for him.
func TestPolicyInitKeepsTheOperatorIn(t *testing.T) {
	tests := []struct {
		connection string
		want       string
	}{
		{"203.0.113.9 50022 198.51.100.2 22", "from: [lan, wan]"},
		{"10.0.0.9 50022 10.0.0.1 22", "from: [lan]"},
		{"nonsense", "from: [lan]"},
	}
	for _, tt := range tests {
		env := &Env{Getenv: func(string) string { return tt.connection }}
		o := initOptions{outside: candidate{name: "eth0", addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}},
			inside: []candidate{{name: "eth1", addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}}}
		o.findOperator(env)
		if text := o.configText(); !strings.Contains(text, tt.want) {
			t.Errorf("%s: no %q in:\n%s", tt.connection, tt.want, text)
		}
		dir := t.TempDir()
		for name, text := range map[string]string{"softdpu.yaml": o.configText(), "policy.d": o.policyText()} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if code, stdout, _ := execute(t, "policy", "check", "-c", filepath.Join(dir, "softdpu.yaml")); code != exitYes || !strings.Contains(stdout, "; 0 warnings\n") {
			t.Errorf("%s: exit code %d:\n%s", tt.connection, code, stdout)
		}
	}
}

func TestPolicyInitWritesNothingOver(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{})
	for _, there := range []string{"softdpu.yaml", "policy.d/10-zones.yaml", "policy.d/x.yml"} {
		t.Run(there, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, there)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("mine"), 0o644); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := inGateway(t, l, "policy", "init", "--dir", dir, "--wan", "wan")
			if code != exitError || !strings.Contains(stderr, "nothing was changed") || !strings.Contains(stderr, path) {
				t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
			}
			if read(t, path) != "mine" {
				t.Error("it was written over")
			}
			files := 0
			filepath.WalkDir(dir, func(_ string, d os.DirEntry, _ error) error {
				if !d.IsDir() {
					files++
				}
				return nil
			})
			if files != 1 {
				t.Errorf("%d files", files)
			}
		})
	}
}

// What is written can be run as it is: nothing passes but management.
func TestPolicyInitStarts(t *testing.T) {
	t.Parallel()
	l := testenv.New(t, "client-server", testenv.Options{})
	dir := t.TempDir()
	if code, _, stderr := inGateway(t, l, "policy", "init", "--dir", dir, "--wan", "wan"); code != exitYes {
		t.Fatal(stderr)
	}
	c, err := gateway.LoadConfig(filepath.Join(dir, "softdpu.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c.Control.Socket, c.Events.File, c.State = filepath.Join(dir, "s.sock"), filepath.Join(dir, "eve.json"), filepath.Join(dir, "state")
	d := &demo{config: c, gateway: l.Must(t, testenv.Gateway)}
	if err := d.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, undo := range d.cleanup {
			if err := undo(); err != nil {
				t.Error(err)
			}
		}
	})
	client := l.Must(t, "client")
	refused := func(address string) bool {
		out, _ := client.Command(t.Context(), "bash", "-c", "timeout 2 bash -c '</dev/tcp/"+address+"' 2>&1").CombinedOutput()
		return strings.Contains(string(out), "refused")
	}
	if !refused("10.10.1.1/22") {
		t.Error("management does not reach the gateway")
	}
	if refused("10.10.1.1/23") || refused("10.10.2.2/22") {
		t.Error("more than management passes")
	}
}
