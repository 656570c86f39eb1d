package doctor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/testenv"
)

const testPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  wan: {ports: [wan]}
rules:
  - {name: web, from: {zone: lan}, to: {zone: wan}, service: tcp/80, action: allow}
tests:
  - {name: the web is open, packet: {in: lan, src: 10.10.1.2, dst: 10.10.2.2, service: tcp/80}, expect: {verdict: allow, rule: web}}
`

const testConfig = `apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: lan}, wan: {device: wan}}
policy: policy.yaml
management: none
control: {socket: softdpu.sock, group: root}
events: {file: eve.json}
state: state
`

// write puts configuration and policy into a directory of their own and returns the former's path.
func write(t *testing.T, config, policy string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "doc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for name, text := range map[string]string{"softdpu.yaml": config, "policy.yaml": policy} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "softdpu.yaml")
}

// examine runs the doctor in a namespace.
func examine(t *testing.T, gw *testenv.Namespace, config string) *Report {
	t.Helper()
	var report *Report
	err := gw.Do(func() (err error) {
		report, err = Run(t.Context(), Options{Config: config})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func (f *Finding) String() string {
	return string(f.Severity) + " " + f.Check + " " + f.Port + ": " + f.Found + " = " + f.Remedy
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// feature switches an offload of a device.
func feature(t *testing.T, ns *testenv.Namespace, device, name string, on bool) {
	t.Helper()
	err := ns.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.Change(device, map[string]bool{name: on})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// stranger attaches a program of somebody else.
func stranger(t *testing.T, ns *testenv.Namespace, device string, kind ebpf.ProgramType) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stranger", Type: kind, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	index, err := ns.Index(device)
	if err != nil {
		t.Fatal(err)
	}
	var l link.Link
	err = ns.Do(func() (err error) {
		if kind == ebpf.XDP {
			l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: index})
		} else {
			l, err = link.AttachTCX(link.TCXOptions{Program: prog, Interface: index, Attach: ebpf.AttachTCXIngress})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// left leaves the packet path of a gateway without one.
func left(t *testing.T, ns *testenv.Namespace) {
	t.Helper()
	ports := []dataplane.PortConfig{{Name: "lan", Device: "lan", Zone: 2}, {Name: "wan", Device: "wan", Zone: 3}}
	err := ns.Do(func() error {
		p, err := dataplane.Open(dataplane.Options{FlowsMax: 1000, Keep: true, Ports: ports})
		if err != nil {
			return err
		}
		if err = p.Publish(dataplane.Generation{Epoch: 1}); err == nil {
			err = p.Attach(ports)
		}
		return errors.Join(err, p.Leave())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What was planted is found, with its severity and a remedy; and nothing else of that weight.
func TestDoctorFindsFaults(t *testing.T) {
	with := func(port, keys string) string {
		return strings.Replace(testConfig, "device: "+port+"}", "device: "+port+", "+keys+"}", 1)
	}
	vlans := strings.Replace(testPolicy, "  wan:", "  guests: {ports: [lan], vlans: [10]}\n  wan:", 1)
	for _, tt := range []struct {
		name, config, policy string
		plant                func(t *testing.T, l *testenv.Lab, gw *testenv.Namespace)
		want                 string // severity, check and port
		says                 []string
	}{
		{"nothing", testConfig, testPolicy, nil, "", nil},
		{"the other end has no GRO", testConfig, testPolicy, func(t *testing.T, l *testenv.Lab, _ *testenv.Namespace) {
			feature(t, l.Must(t, "client"), "c0", "rx-gro", false)
		}, "error no-gro lan", []string{"redirects to veth lan are dropped", "`ethtool -K c0 gro on`"}},
		{"an XDP program of somebody else", testConfig, testPolicy, func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			stranger(t, gw, "wan", ebpf.XDP)
		}, "error xdp-hook wan", []string{`"stranger" (id `, "tag ", "stop that process", "bpftool link detach id"}},
		{"a gateway that was killed", testConfig, testPolicy, func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			left(t, gw)
		}, "warning xdp-hook wan", []string{"of a gateway is on device wan, and none answers", "`softdpu detach`"}},
		{"hidden VLAN tags", testConfig, vlans, nil, "error hidden-tags lan", []string{"the other end of device lan, c0 hides VLAN tags", "`ethtool -K c0 tx-vlan-hw-insert off", "fix_offloads: true"}},
		{"hidden VLAN tags that the gateway will show", with("lan", "fix_offloads: true"), vlans, nil, "info hidden-tags lan", []string{"turns it off while it runs"}},
		{"a driver without XDP", strings.Replace(testConfig, "device: wan", "device: plain", 1), testPolicy[:strings.Index(testPolicy, "tests:")], func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			ip(t, "-n", gw.Name(), "link", "add", "plain", "type", "bridge")
			ip(t, "-n", gw.Name(), "link", "set", "plain", "up")
		}, "warning native-xdp wan", []string{"has no native XDP", "generic mode"}},
		{"generic mode and a sender that leaves work", with("lan", "xdp_mode: generic"), testPolicy, nil,
			"error offloads lan", []string{"c0 leaves segmentation and checksums", "tx-tcp-segmentation", "`ethtool -K c0 "}},
		{"a missing device", strings.Replace(testConfig, "device: wan", "device: wan9", 1), testPolicy[:strings.Index(testPolicy, "tests:")], nil,
			"error device wan", []string{"no device wan9", "`ip link` lists them"}},
		{"a device that is down", testConfig, testPolicy[:strings.Index(testPolicy, "tests:")], func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			ip(t, "-n", gw.Name(), "link", "set", "wan", "down")
		}, "error device wan", []string{"`ip link set wan up`"}},
		{"a member of a bridge", testConfig, testPolicy[:strings.Index(testPolicy, "tests:")], func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			ip(t, "-n", gw.Name(), "link", "add", "br0", "type", "bridge")
			ip(t, "-n", gw.Name(), "link", "set", "wan", "master", "br0")
		}, "error device wan", []string{"member of bridge br0", "nomaster"}},
		{"an MTU that the other end does not take", testConfig, testPolicy, func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			ip(t, "-n", gw.Name(), "link", "set", "wan", "mtu", "9000")
		}, "warning mtu wan", []string{"MTU 9000 is too large", "s0, takes 1500"}},
		{"an MTU that the device does not take", strings.Replace(testConfig, "device: wan}", "device: tap9, mtu: 65535}", 1), testPolicy[:strings.Index(testPolicy, "tests:")], func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			ip(t, "-n", gw.Name(), "tuntap", "add", "tap9", "mode", "tap")
			ip(t, "-n", gw.Name(), "link", "set", "tap9", "up")
		}, "error mtu wan", []string{"asks for MTU 65535", "tap9 takes at most 65521"}},
		{"ports of a pair with two MTUs", testConfig + "inline: [[lan, wan]]\n", testPolicy, func(t *testing.T, l *testenv.Lab, gw *testenv.Namespace) {
			ip(t, "-n", gw.Name(), "link", "set", "wan", "mtu", "1400")
		}, "warning mtu lan", []string{"MTU 1500 and its inline peer wan has 1400"}},
		{"a tc program beside ours", testConfig, testPolicy, func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			stranger(t, gw, "lan", ebpf.SchedCLS)
		}, "info tc-hook lan", []string{`"stranger" (id `, "on ingress", "nothing of what XDP forwards"}},
		{"a filter of the kernel", testConfig, testPolicy, func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			nft := gw.Command(t.Context(), "nft", "add table inet site; add chain inet site ahead { type filter hook forward priority 0; policy drop; }")
			if out, err := nft.CombinedOutput(); err != nil {
				t.Skipf("no nft here: %v: %s", err, out)
			}
		}, "warning netfilter ", []string{"`nft list chain inet site ahead`", "dropped"}},
		{"the kernel forwards", testConfig, testPolicy, func(t *testing.T, _ *testenv.Lab, gw *testenv.Namespace) {
			if err := gw.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }); err != nil {
				t.Fatal(err)
			}
		}, "warning forwarding ", []string{"without a running gateway everything passes"}},
		{"checksums left open", with("lan", "fix_checksums: off"), testPolicy, nil, "warning checksums lan", []string{"ping works and TCP does not"}},
		{"a mistake in the policy", testConfig, strings.Replace(testPolicy, "action: allow", "action: alow", 1), nil, "error policy ", []string{"policy.yaml:7:", `"alow"`}},
		{"a policy test that fails", testConfig, strings.Replace(testPolicy, "rule: web}}", "rule: none}}", 1), nil, "error policy ", []string{`test "the web is open"`}},
		{"a mistake in the configuration", strings.Replace(testConfig, "policy:", "polcy:", 1), testPolicy, nil, "error configuration ", []string{`did you mean "policy"`}},
		{"events that nobody can write", strings.Replace(testConfig, "eve.json", "policy.yaml/log/eve.json", 1), testPolicy, nil, "error events ", []string{"policy.yaml/log", "not a directory"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-doctor"})
			gw := l.Must(t, testenv.Gateway)
			path := write(t, tt.config, tt.policy)
			if tt.plant != nil {
				tt.plant(t, l, gw)
			}
			report := examine(t, gw, path)
			found := false
			severity, rest, _ := strings.Cut(tt.want, " ")
			check, port, _ := strings.Cut(rest, " ")
			for i := range report.Findings {
				f := &report.Findings[i]
				if string(f.Severity) != severity || f.Check != check || f.Port != port {
					// Devices that were made for the case have more that is worth a warning.
					if f.Severity == Error && severity != "error" || f.Severity != Info && tt.want == "" {
						t.Errorf("finds too: %s", f)
					}
					continue
				}
				says := true
				for _, want := range tt.says {
					says = says && strings.Contains(f.String(), want)
				}
				found = found || says
			}
			if !found && tt.want != "" {
				t.Errorf("does not find %s %q among:", tt.want, tt.says)
				for i := range report.Findings {
					t.Log(report.Findings[i].String())
				}
			}
			if want := (severity == "error"); (report.Worst() == Error) != want {
				t.Errorf("the worst is %s", report.Worst())
			}
		})
	}
}

// With a gateway that runs, its own programs are no strangers, its state is in the report, and files that
// have changed since are found.
func TestDoctorAsksDaemon(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-doctord"})
	gw := l.Must(t, testenv.Gateway)
	path := write(t, testConfig, testPolicy)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- gw.Do(func() error {
			return gateway.RunFile(ctx, path, gateway.Options{Ready: func() { close(ready) }, Version: "test"})
		})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		t.Fatal("not ready")
	}
	report := examine(t, gw, path)
	if report.Status == nil || len(report.Status.Ports) != 2 || report.Worst() != Info {
		t.Errorf("status %+v, findings:", report.Status)
		for i := range report.Findings {
			t.Log(report.Findings[i].String())
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "policy.yaml"), []byte(testPolicy+"# changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	report = examine(t, gw, path)
	if report.Worst() != Warning || report.Findings[0].Check != "files-differ" || !strings.Contains(report.Findings[0].Found, "policy.yaml") {
		t.Errorf("findings %+v", report.Findings)
	}

	// What waits for somebody is found too.
	found := func(check string) bool {
		return slices.ContainsFunc(examine(t, gw, path).Findings, func(f Finding) bool { return f.Check == check && f.Severity == Warning && f.Remedy != "" })
	}
	client := gateway.NewClient(filepath.Join(filepath.Dir(path), "softdpu.sock"))
	if _, err := client.Apply(t.Context(), gateway.ApplyOptions{Confirm: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if !found("policy-unconfirmed") || found("policy-rolled-back") {
		t.Errorf("while a change waits: %+v", examine(t, gw, path).Findings)
	}
	if _, err := client.Rollback(t.Context(), 0, ""); err != nil {
		t.Fatal(err)
	}
	if found("policy-unconfirmed") || !found("policy-rolled-back") {
		t.Errorf("rolled back: %+v", examine(t, gw, path).Findings)
	}
}

// A table that does not fit into the memory is found before the start.
func TestDoctorMemory(t *testing.T) {
	e := &examination{}
	e.memory(&gateway.Config{Flows: gateway.Flows{Max: 1 << 27, HalfOpenShare: 0.5}}, nil, 90<<30, "here")
	if len(e.findings) != 1 || e.findings[0].Severity != Error || !strings.Contains(e.findings[0].Found, "takes 98304 MiB") {
		t.Errorf("%+v", e.findings)
	}
	e = &examination{}
	e.memory(&gateway.Config{Flows: gateway.Flows{Max: 1000, HalfOpenShare: 0.5}}, nil, 90<<30, "here")
	if free, where := available(); free <= 0 || where == "" {
		t.Errorf("%d bytes are available %q", free, where)
	}
	if len(e.findings) != 0 {
		t.Errorf("%+v", e.findings)
	}
}

func TestEffectiveCapabilities(t *testing.T) {
	file := filepath.Join(t.TempDir(), "status")
	if err := os.WriteFile(file, []byte("Name:\tx\nCapPrm:\t0\nCapEff:\t0000008000003000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if caps, ok := effective(file); !ok || caps != 1<<39|1<<13|1<<12 {
		t.Errorf("%x, %v", caps, ok)
	}
}

// The page names every check and field.
func TestPageNamesChecks(t *testing.T) {
	text, err := os.ReadFile("../../docs/GATEWAY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, found := strings.Cut(string(text), "\n### The doctor\n")
	page, _, ends := strings.Cut(page, "\n## ")
	if !found || !ends {
		t.Fatal("docs/GATEWAY.md has no section about the doctor")
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	// The literal behind the severity; of mistakes and warnings the first argument.
	calls := regexp.MustCompile(`e\.(?:(?:find|port)\((?:\w+\.?\w*), |mistakes\(|warnings\(|report\()"([a-z-]+)"|report\("([a-z-]+)"`)
	checks := 0
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range calls.FindAllStringSubmatch(string(text), -1) {
			checks++
			if check := m[1] + m[2]; !strings.Contains(page, "`"+check+"`") {
				t.Errorf("docs/GATEWAY.md does not speak of the check %q", check)
			}
		}
	}
	if checks < 30 {
		t.Errorf("%d checks found: are they still written so?", checks)
	}
	for _, v := range []any{Finding{}, Report{}} {
		for i := range reflect.TypeOf(v).NumField() {
			if name := reflect.TypeOf(v).Field(i).Tag.Get("json"); !strings.Contains(page, "`"+name+"`") {
				t.Errorf("docs/GATEWAY.md does not speak of the field %q", name)
			}
		}
	}
}
