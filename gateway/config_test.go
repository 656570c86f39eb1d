package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/schema"
	"github.com/softdpu/softdpu/flowtable"
)

// A configuration that uses every key and is right.
const goodConfig = `apiVersion: softdpu/v1
kind: Gateway
ports:
  lan0: {device: eth1, mtu: 9000, fix_offloads: true, fix_checksums: "on", xdp_mode: native}
  wan0: {device: eth0}
  dmz0: {device: eth2}
inline: [[lan0, wan0]]
policy: policy.d
management: {from: [lan], services: [ssh, tcp/443]}
override_management: false
on_stop: block
flows:
  max: 100000
  half_open_share: 0.25
  timeouts: {tcp_syn_sent: 5m, tcp_established: 1d12h, udp: 1h30m, other: 24d}
metrics: {listen: "127.0.0.1:9469"}
control: {socket: run/softdpu.sock, group: wheel}
events: {file: eve.json, rate: 10, max_size: 1GiB, keep: 2, drops: [not-syn, spoofed]}
ethertypes: [lldp, 0x8809, 0x88cc]
upgrade_grace: 2m
state: /srv/state
force_stage: forward
workers: {count: 2, cpus: [2, 3], mode: copy, ring_size: 1024, frames: 8192, frame_size: 2048, huge_pages: true, busy_poll: 20, poll: always}
`

func TestExampleConfig(t *testing.T) {
	c, err := LoadConfig("testdata/softdpu.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.PortNames(); !reflect.DeepEqual(got, []string{"lan0", "wan0"}) || c.Ports[0].Device != "eth1" || c.Ports[0].FixChecksums != FixChecksumsAuto || c.Ports[0].XDPMode != XDPAuto {
		t.Errorf("ports %+v", c.Ports)
	}
	if c.Policy != "/etc/softdpu/policy.d" || len(c.Inline) != 0 || c.OnStop != OnStopBlock || c.UpgradeGrace != time.Minute {
		t.Errorf("configuration %+v", c)
	}
	if c.Flows != (Flows{Max: 1_000_000, HalfOpenShare: 0.5, Timeouts: DefaultTimeouts()}) {
		t.Errorf("flows %+v", c.Flows)
	}
	if c.Control != (Control{"/run/softdpu/softdpu.sock", "softdpu"}) || c.Events != (Events{File: "/var/log/softdpu/eve.json", Rate: 1000, MaxSize: 100 << 20, Keep: 5}) || c.Metrics.Listen != "127.0.0.1:9469" {
		t.Errorf("configuration %+v", c)
	}
	if w := (Workers{Mode: WorkerModeAuto, RingSize: 2048, Poll: WorkerPollAdaptive}); c.ForceStage != "" || !reflect.DeepEqual(c.Workers, w) {
		t.Errorf("force_stage %q, workers %+v", c.ForceStage, c.Workers)
	}
	if len(c.Warnings) != 0 {
		t.Errorf("warnings %v", c.Warnings)
	}
	// Both examples of the documentation belong together.
	p, err := firewall.Load("../firewall/testdata/branch.yaml")
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := firewall.Compile(p, c.CompileOptions(time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)))
	if err != nil {
		t.Fatal(err)
	}
	management := 0
	for _, e := range compiled.Entries {
		if e.Verdict&0xffffff == firewall.RuleManagement {
			management++
			if e.DstPort.First != 22 || !e.To.Has(1) || e.From.Has(3) {
				t.Errorf("management entry %+v", e)
			}
		}
	}
	if management != 1 {
		t.Errorf("%d management entries", management)
	}
}

func TestGoodConfig(t *testing.T) {
	c, err := ParseConfig("/etc/x/softdpu.yaml", []byte(goodConfig))
	if err != nil {
		t.Fatal(err)
	}
	lan := c.Ports[1]
	lan.Pos, lan.DevicePos = firewall.Pos{}, firewall.Pos{}
	if want := (Port{Name: "lan0", Device: "eth1", MTU: 9000, FixOffloads: true, FixChecksums: FixChecksumsOn, XDPMode: XDPNative}); lan != want {
		t.Errorf("port %+v, want %+v", lan, want)
	}
	want := DefaultTimeouts()
	want.TCPSynSent, want.TCPEstablished, want.UDP, want.Other = 5*time.Minute, 36*time.Hour, 90*time.Minute, 24*24*time.Hour
	if c.Flows != (Flows{Max: 100_000, HalfOpenShare: 0.25, Timeouts: want}) {
		t.Errorf("flows %+v", c.Flows)
	}
	if c.Policy != "/etc/x/policy.d" || c.Control.Socket != "/etc/x/run/softdpu.sock" || c.Events != (Events{File: "/etc/x/eve.json", Rate: 10, MaxSize: 1 << 30, Keep: 2, Drops: 1<<bpf.XDPReasonREASON_NOT_SYN | 1<<bpf.XDPReasonREASON_SPOOFED}) {
		t.Errorf("paths %+v", c)
	}
	if !reflect.DeepEqual(c.Inline, [][2]string{{"lan0", "wan0"}}) || !reflect.DeepEqual(c.Ethertypes, []uint16{0x88cc, 0x8809}) {
		t.Errorf("inline %v, ethertypes %#x", c.Inline, c.Ethertypes)
	}
	if w := (Workers{true, 2, []int{2, 3}, WorkerModeCopy, 1024, 8192, 2048, true, 20, WorkerPollAlways}); c.ForceStage != "forward" || !reflect.DeepEqual(c.Workers, w) {
		t.Errorf("force_stage %q, workers %+v", c.ForceStage, c.Workers)
	}
	if len(c.Management.From) != 1 || len(c.Management.Services) != 2 || c.Management.Services[1].Name != "tcp/443" || c.Management.Services[1].Pos.Line != 9 {
		t.Errorf("management %+v", c.Management)
	}
}

func TestManagementNone(t *testing.T) {
	text := strings.Replace(goodConfig, "{from: [lan], services: [ssh, tcp/443]}", "none", 1)
	text = strings.Replace(text, "override_management: false", "override_management: true", 1)
	c, err := ParseConfig("c.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Management.From) != 0 || len(c.Management.Services) != 0 || !c.Management.Override {
		t.Errorf("management %+v", c.Management)
	}
}

// Each row changes one place of the good configuration and names the error that must come of it.
func TestConfigErrors(t *testing.T) {
	for _, row := range []struct {
		name      string
		old, new  string
		at        string
		msg, hint string
	}{
		{"unknown key", "on_stop: block", "on_stpo: block", "11:1", `unknown key "on_stpo" in a Gateway`, `did you mean "on_stop"?`},
		{"kind", "kind: Gateway", "kind: Policy", "2:7", `kind "Policy", not Gateway`, "kind: Gateway"},
		{"no ports", "ports:\n  lan0: {device: eth1, mtu: 9000, fix_offloads: true, fix_checksums: \"on\", xdp_mode: native}\n  wan0: {device: eth0}\n  dmz0: {device: eth2}\n", "", "1:1", "names no ports", "device"},
		{"port key", "mtu: 9000", "mtt: 9000", "4:24", `unknown key "mtt" in a port`, `did you mean "mtu"?`},
		{"mtu", "mtu: 9000", "mtu: 90000", "4:29", "between 68 and 65535", ""},
		{"device", "device: eth0", "device: enp0s31f6-uplink", "5:18", "not the name of a network device", "ip link"},
		{"no device", "wan0: {device: eth0}", "wan0: {}", "5:3", "names no device", "device"},
		{"device twice", "device: eth2", "device: eth0", "6:18", `device "eth0" is port "wan0" already`, ""},
		{"port twice", "  dmz0:", "  wan0:", "6:3", `port "wan0" is declared twice`, "c.yaml:5:3"},
		{"port host", "  dmz0:", "  host:", "6:3", "cannot be the name of a port", ""},
		{"port name", "  dmz0:", "  d/mz0:", "6:3", "cannot be the name of a port", ""},
		{"checksums", `"on"`, "always", "4:70", `unknown fix_checksums "always"`, "auto, on, off"},
		{"xdp mode", "native", "nativ", "4:86", `unknown xdp_mode "nativ"`, `did you mean "native"?`},
		{"mss_clamp", "eth0}", "eth0, mss_clamp: 40}", "5:35", `mss_clamp must be a number between 88 and 65495, not "40"`, "or write auto"},
		{"mss_clamp word", "eth0}", "eth0, mss_clamp: mtu}", "5:35", "between 88 and 65495", "or write auto"},
		{"inline port", "[[lan0, wan0]]", "[[lan0, wan1]]", "7:17", `unknown port "wan1"`, `did you mean "wan0"?`},
		{"inline self", "[[lan0, wan0]]", "[[lan0, lan0]]", "7:17", "is joined already", ""},
		{"inline three", "[[lan0, wan0]]", "[[lan0, wan0, dmz0]]", "7:10", "a list of two ports", "[[lan0, wan0]]"},
		{"inline flat", "[[lan0, wan0]]", "[lan0, wan0]", "7:10", "a list of two ports", "[[lan0, wan0]]"},
		{"no policy", "policy: policy.d\n", "", "1:1", "names no policy", ""},
		{"no management", "management: {from: [lan], services: [ssh, tcp/443]}\n", "", "1:1", "does not say management", "management: none"},
		{"management word", "{from: [lan], services: [ssh, tcp/443]}", "non", "9:13", `unknown management "non"`, `did you mean "none"?`},
		{"management half", "{from: [lan], services: [ssh, tcp/443]}", "{from: [lan]}", "9:13", "does not say services", ""},
		{"upgrade_grace", "upgrade_grace: 2m", "upgrade_grace: 0s", "20:16", "upgrade_grace must be between 1s and 24d", ""},
		{"on_stop", "on_stop: block", "on_stop: blokc", "11:10", `unknown on_stop "blokc"`, `did you mean "block"?`},
		{"max", "max: 100000", "max: 5", "13:8", "between 16 and 16777216", ""},
		{"share", "0.25", "1.5", "14:20", "at most 1", ""},
		{"share zero", "0.25", "0", "14:20", "above 0", ""},
		{"share nan", "0.25", "nan", "14:20", "above 0", ""},
		{"timeout key", "tcp_syn_sent", "tcp_synsent", "15:14", `unknown key "tcp_synsent"`, `did you mean "tcp_syn_sent"?`},
		{"timeout", "tcp_syn_sent: 5m", "tcp_syn_sent: 300", "15:28", `"300" is not a duration`, "2h4m"},
		{"timeout long", "other: 24d", "other: 25d", "15:75", "between 1s and 24d", ""},
		{"timeout short", "other: 24d", "other: 10ms", "15:75", "between 1s and 24d", ""},
		{"timeout sum", "other: 24d", "other: 24d1s", "15:75", "between 1s and 24d", ""},
		{"timeout huge", "other: 24d", "other: 60000d2562047h", "15:75", "between 1s and 24d", ""},
		{"timeout signed", "other: 24d", "other: 1d-2h", "15:75", "not a duration", ""},
		{"fragment", "other: 24d", "fragment: 30s", "15:68", `unknown key "fragment"`, ""},
		{"listen", "127.0.0.1:9469", "127.0.0.1", "16:19", "not an address to listen on", "9469"},
		{"metrics", `{listen: "127.0.0.1:9469"}`, "nowhere", "16:10", `unknown metrics "nowhere"`, "or none"},
		{"rate", "rate: 10", "rate: 0", "18:32", "between 1 and", ""},
		{"size", "1GiB", "1GB", "18:46", `max_size must be a number of bytes, not "1GB"`, "100MiB"},
		{"small size", "1GiB", "4KiB", "18:46", "max_size must be between 64KiB and 1024GiB, not 4KiB", "or 0"},
		{"large size", "1GiB", "1025GiB", "18:46", "max_size must be between 64KiB and 1024GiB", ""},
		{"negative size", "1GiB", "-1", "18:46", "must be a number of bytes", ""},
		{"keep", "keep: 2", "keep: 1001", "18:58", "keep must be a number between 0 and 1000", ""},
		{"drop reason", "[not-syn, spoofed]", "[not-syn, spoofd]", "18:78", `unknown drop reason "spoofd"`, `did you mean "spoofed"?`},
		{"drop of a rule", "[not-syn, spoofed]", "[deny]", "18:69", `drops for "deny" are no events of their own`, "log: true"},
		{"drop before all", "[not-syn, spoofed]", "vlan-offloaded", "18:68", `drops for "vlan-offloaded" are no events`, "only counted"},
		{"ethertype", "lldp", "lldpp", "19:14", `unknown ethertype "lldpp"`, `did you mean "lldp"?`},
		{"stp", "lldp", "stp", "19:14", `unknown ethertype "stp"`, "a length in place of an ethertype"},
		{"ipv4", "lldp", "0x0800", "19:14", "cannot be passed unasked", "IPv4"},
		{"ethertypes without inline", "inline: [[lan0, wan0]]\n", "", "18:13", "ethertypes without inline ports", ""},
		{"stage", "force_stage: forward", "force_stage: mirror", "22:14", `unknown force_stage "mirror"`, "forward"},
		{"worker key", "ring_size: 1024", "rings: 1024", "23:47", `unknown key "rings" in workers`, "ring_size"},
		{"no workers", "count: 2", "count: 0", "23:18", "count must be a number between 1 and 64", ""},
		{"worker mode", "mode: copy", "mode: zerocopy", "23:41", `unknown mode "zerocopy"`, `did you mean "zero-copy"?`},
		{"cpus", "cpus: [2, 3]", "cpus: [2]", "23:27", "count is 2, and cpus names 1", "as many CPUs as workers"},
		{"cpu twice", "cpus: [2, 3]", "cpus: [2, 2]", "23:31", "CPU 2 is named twice", "a CPU of its own"},
		{"cpu", "cpus: [2, 3]", "cpus: [2, all]", "23:31", `a CPU must be a number between 0 and 4095, not "all"`, ""},
		{"no cpus", "cpus: [2, 3]", "cpus: []", "23:27", "an empty list of CPUs", "leave cpus out"},
		{"ring", "ring_size: 1024", "ring_size: 1000", "23:58", "ring_size must be a power of two, not 1000", "512 or 1024"},
		{"large ring", "ring_size: 1024", "ring_size: 16384", "23:58", "between 64 and 8192", ""},
		{"frames", "frames: 8192", "frames: 1024", "23:72", "1024 frames are too few for rings of 1024", "at least 2048"},
		{"frame size", "frame_size: 2048", "frame_size: 3000", "23:90", "frame_size must be a power of two, not 3000", "2048 or 4096"},
		{"huge pages", "huge_pages: true", "huge_pages: 2MiB", "23:108", `huge_pages must be true or false, not "2MiB"`, ""},
		{"busy poll", "busy_poll: 20", "busy_poll: true", "23:125", "busy_poll must be a number between 0 and 1000", ""},
		{"poll", "poll: always", "poll: never", "23:135", `unknown poll "never"`, "adaptive, always"},
		{"two documents", "policy: policy.d\n", "policy: policy.d\n---\na: b\n", "10:1", "one document", ""},
		{"ports list", "metrics: {listen", "metrics: [listen", "", "not YAML", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			if strings.Count(goodConfig, row.old) != 1 {
				t.Fatalf("%q stands %d times in the good configuration", row.old, strings.Count(goodConfig, row.old))
			}
			_, err := ParseConfig("c.yaml", []byte(strings.Replace(goodConfig, row.old, row.new, 1)))
			var errs firewall.Errors
			if !errors.As(err, &errs) {
				t.Fatalf("error is %T: %v", err, err)
			}
			for _, e := range errs {
				if at := fmt.Sprintf("%d:%d", e.Line, e.Column); (row.at == "" || at == row.at) &&
					strings.Contains(e.Msg, row.msg) && strings.Contains(e.Hint, row.hint) && e.File == "c.yaml" {
					return
				}
			}
			t.Errorf("no error at %s with %q and %q; got:\n%v", row.at, row.msg, row.hint, errs)
		})
	}
}

func TestConfigFiles(t *testing.T) {
	if _, err := LoadConfig(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) || errors.As(err, new(firewall.Errors)) {
		t.Errorf("absent file: %v", err)
	}
	if _, err := ParseConfig("c.yaml", []byte("# nothing\n")); err == nil || !strings.Contains(err.Error(), "file is empty") {
		t.Errorf("empty file: %v", err)
	}
}

func TestShortTimeoutsAreWarnedOf(t *testing.T) {
	text := strings.Replace(goodConfig, "{tcp_syn_sent: 5m, tcp_established: 1d12h", "{tcp_syn_sent: 10s, tcp_established: 2h", 1)
	c, err := ParseConfig("c.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	all := c.Warnings.Error()
	for _, want := range []string{"c.yaml:15:28: tcp_syn_sent of 10s is shorter than RFC 5382 asks", "4m is the least",
		"c.yaml:15:50: tcp_established of 2h is shorter than RFC 5382 asks", "2h4m is the least"} {
		if !strings.Contains(all, want) {
			t.Errorf("warnings lack %q:\n%s", want, all)
		}
	}
}

func TestDefaultTimeoutsKeepTheRFCs(t *testing.T) {
	d := DefaultTimeouts()
	seen := make(map[*time.Duration]string)
	for _, key := range configKeys["timeouts"] {
		value, least, rfc := d.field(key)
		if other, twice := seen[value]; twice {
			t.Errorf("%s and %s are one field", key, other)
		}
		seen[value] = key
		if *value < least || *value < minTimeout || *value > maxTimeout {
			t.Errorf("%s is %v by default, %s asks %v", key, *value, rfc, least)
		}
	}
	if want := reflect.TypeOf(d).NumField(); len(seen) != want {
		t.Errorf("%d keys for %d fields", len(seen), want)
	}
}

func TestGatewaySchema(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema.Gateway))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("gateway.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := compiler.Compile("gateway.json")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("testdata/softdpu.yaml")
	if err != nil {
		t.Fatal(err)
	}
	validate := func(text string) error {
		t.Helper()
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
		if err != nil {
			t.Fatal(err)
		}
		return s.Validate(instance)
	}
	for name, text := range map[string]string{"example": string(example), "good": goodConfig,
		"none": strings.Replace(goodConfig, "{from: [lan], services: [ssh, tcp/443]}", "none", 1)} {
		if err := validate(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, change := range [][2]string{
		{"on_stop: block", "on_stpo: block"}, {"mtu: 9000", "mtu: 0"}, {"native", "nativ"}, {"max: 100000", "max: 5"},
		{"other: 24d", "fragment: 30s"}, {"tcp_syn_sent: 5m", "tcp_syn_sent: 300"}, {"policy: policy.d\n", ""}, {"rate: 10", "rate: 0"},
		{"force_stage: forward", "force_stage: mirror"}, {"count: 2", "count: 0"}, {"ring_size: 1024", "ring_size: 1000"},
		{"frame_size: 2048", "frame_size: 8192"}, {"busy_poll: 20", "busy_poll: -1"}, {"poll: always", "poll: never"}, {"[2, 3]", "[]"},
		{"1GiB", "1GB"}, {"keep: 2", "keep: -1"}, {"[not-syn, spoofed]", "[]"},
		{"{from: [lan], services: [ssh, tcp/443]}", "{from: [lan]}"}, {"wan0: {device: eth0}", "wan0: {}"},
	} {
		if err := validate(strings.Replace(goodConfig, change[0], change[1], 1)); err == nil {
			t.Errorf("the schema takes %q", change[1])
		}
	}

	var defs struct {
		Defs map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(schema.Gateway, &defs); err != nil {
		t.Fatal(err)
	}
	for name, def := range defs.Defs {
		if _, known := configKeys[name]; def.Properties != nil && !known {
			t.Errorf("the schema has a map %q that the parser does not", name)
		}
	}
	for name, list := range configKeys {
		want := slices.Sorted(slices.Values(list))
		if got := slices.Sorted(maps.Keys(defs.Defs[name].Properties)); !slices.Equal(got, want) {
			t.Errorf("%s: schema has %v, parser %v", name, got, want)
		}
	}
}

// Each key of `timeouts` is the time-out of its protocols in its states, and of nothing else.
func TestTimeoutTicks(t *testing.T) {
	type place struct {
		class flowtable.Class
		state flowState
	}
	tcp, udp, icmp, other := flowtable.ClassTCP, flowtable.ClassUDP, flowtable.ClassICMP, flowtable.ClassOther
	places := map[string][]place{
		"tcp_syn_sent": {{tcp, flowSynSent}}, "tcp_syn_received": {{tcp, flowSynReceived}}, "tcp_established": {{tcp, flowEstablished}},
		"tcp_fin_wait": {{tcp, flowFinWait}}, "tcp_time_wait": {{tcp, flowTimeWait}, {tcp, flowMapping}}, "tcp_closed": {{tcp, flowClosed}},
		"udp_new": {{udp, flowNew}}, "udp": {{udp, flowReplied}, {udp, flowMapping}},
		"icmp": {{icmp, flowNew}, {icmp, flowReplied}, {icmp, flowMapping}}, "other": {{other, flowNew}, {other, flowReplied}},
	}
	for _, key := range configKeys["timeouts"] {
		var timeouts Timeouts
		for _, k := range configKeys["timeouts"] {
			value, _, _ := timeouts.field(k)
			*value = time.Second
		}
		value, _, _ := timeouts.field(key)
		*value = maxTimeout
		ticks := timeouts.Ticks()
		n := 0
		for class := range ticks {
			for _, d := range ticks[class] {
				if d > flowtable.TimeoutTicks(time.Second) {
					n++
				}
			}
		}
		for _, p := range places[key] {
			if d := ticks[p.class][p.state]; time.Duration(d)<<dataplane.TickShift < maxTimeout || int32(d) < 0 {
				t.Errorf("%s: 24d is %d ticks in state %s", key, d, p.state)
			}
		}
		if n != len(places[key]) || n == 0 {
			t.Errorf("%s sets %d time-outs, want %d", key, n, len(places[key]))
		}
	}
}

func TestEventKeys(t *testing.T) {
	for value, want := range map[string]int64{"0": 0, "65536": 65536, "64KiB": 65536, "100MiB": 100 << 20, "1024GiB": 1 << 40} {
		c, err := ParseConfig("c.yaml", []byte(strings.Replace(goodConfig, "1GiB", value, 1)))
		if err != nil || c.Events.MaxSize != want {
			t.Errorf("max_size %s: %+v, %v", value, c, err)
		}
	}
	for value, want := range map[string]uint64{
		"true": allDrops(), "false": 0, "martian": 1 << bpf.XDPReasonREASON_MARTIAN, "[internal]": 1 << bpf.XDPReasonREASON_INTERNAL,
	} {
		c, err := ParseConfig("c.yaml", []byte(strings.Replace(goodConfig, "[not-syn, spoofed]", value, 1)))
		if err != nil || c.Events.Drops != want {
			t.Errorf("drops %s: %+v, %v", value, c, err)
		}
	}
	// every reason but the four that page and message name
	if n := bits.OnesCount64(allDrops()); n != int(bpf.XDPReasonREASON_LEN)-1-4 {
		t.Errorf("drops: true is %d reasons", n)
	}
}

func TestMetricsListen(t *testing.T) {
	const least = "apiVersion: softdpu/v1\nkind: Gateway\nports: {lan0: {device: eth1}}\npolicy: policy.d\nmanagement: none\n"
	for _, row := range []struct{ text, listen, warning string }{
		{"", "127.0.0.1:9469", ""},
		{"metrics: {}\n", "127.0.0.1:9469", ""},
		{"metrics: none\n", "", ""},
		{"metrics: {listen: \"[::1]:9470\"}\n", "[::1]:9470", ""},
		{"metrics: {listen: \"localhost:9470\"}\n", "localhost:9470", ""},
		{"metrics: {listen: \"10.20.0.1:9469\"}\n", "10.20.0.1:9469", "beyond this machine"},
		{"metrics: {listen: \":9469\"}\n", ":9469", "beyond this machine"},
	} {
		c, err := ParseConfig("c.yaml", []byte(least+row.text))
		if err != nil {
			t.Errorf("%s: %v", row.text, err)
			continue
		}
		if c.Metrics.Listen != row.listen {
			t.Errorf("%s: listens on %q", row.text, c.Metrics.Listen)
		}
		if said := c.Warnings.Error(); (row.warning == "") != (len(c.Warnings) == 0) || !strings.Contains(said, row.warning) {
			t.Errorf("%s: warnings %q", row.text, said)
		}
	}
}
