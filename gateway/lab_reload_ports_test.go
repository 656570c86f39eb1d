package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/testenv"
)

// portsOf is a configuration with these ports, by what each says.
func portsOf(ports string) string {
	return strings.Replace(portsConfig, "{lan: {device: lan}, wan: {device: wan}, dmz: {device: dmz}}", ports, 1)
}

// zonesOf is the policy with these zones. What is written to the dmz's address is allowed whatever its zone.
func zonesOf(zones string) string {
	return "apiVersion: softdpu/v1\nkind: Policy\nzones: " + zones + `
rules:
  - {name: far, from: {addresses: [10.10.1.0/24]}, to: {addresses: [10.10.3.0/24]}, service: [udp/7, icmp/echo-request], action: allow, log: true}
  - {name: stream, from: {addresses: [10.10.1.0/24]}, to: {addresses: [10.10.2.0/24]}, service: [udp/7, icmp/echo-request], action: allow}
`
}

// rewrite replaces the gateway's files.
func (g *testGateway) rewrite(t *testing.T, config, policy string) {
	t.Helper()
	dir := filepath.Dir(g.config.File)
	for name, text := range map[string]string{"softdpu.yaml": config, "policy.yaml": policy} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// reloads rewrites the files and asks for a reload.
func (g *testGateway) reloads(t *testing.T, config, policy string) error {
	t.Helper()
	g.rewrite(t, config, policy)
	_, err := g.Reload(t.Context())
	return err
}

func (g *testGateway) mustReload(t *testing.T, config, policy string) {
	t.Helper()
	if err := g.reloads(t, config, policy); err != nil {
		t.Fatalf("reload: %v\n%s\n%s\n%s", err, config, policy, g.log)
	}
}

// a deviceState is what a port that stays must keep.
type deviceState struct {
	program uint32
	changes string // of its carrier
}

func stateOfDevice(t *testing.T, ns *testenv.Namespace, device string) (s deviceState) {
	t.Helper()
	err := ns.Do(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		if x := l.Attrs().Xdp; x != nil {
			s.program = x.ProgId
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := ns.Command(t.Context(), "ip", "-d", "-j", "link", "show", "dev", device).Output()
	if err != nil {
		t.Fatal(err)
	}
	var shown []struct {
		Changes int `json:"carrier_changes"`
		Up      int `json:"carrier_up_count"`
	}
	if err := json.Unmarshal(out, &shown); err != nil || len(shown) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	s.changes = fmt.Sprint(shown[0])
	return s
}

// Ports come, go, move between zones, are called otherwise and get other settings by a reload: all of it or
// nothing. The flows beside them do not notice, those of a port that moves go on where the new policy allows
// them, and those of a port that leaves end, for a reason that events name. Afterwards a start takes over
// what the reloads have made.
func TestLabReloadPorts(t *testing.T) {
	l := testenv.New(t, "three-zone", testenv.Options{Prefix: "t-lab-rlp"})
	lan, wan, dmz, gw := l.Must(t, "lan"), l.Must(t, "wan"), l.Must(t, "dmz"), l.Must(t, testenv.Gateway)
	before := settings(t, gw)
	const two = "{lan: {device: lan}, wan: {device: wan}}"
	const three = "{dmz: {device: dmz}, lan: {device: lan}, wan: {device: wan}}"
	keep := func(config string) string { return strings.Replace(config, "on_stop: block", "on_stop: keep", 1) }
	g := runIn(t, l, write(t, keep(portsOf(two)), zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan]}}")))
	x := startTrespasser(t, l)
	capture, err := wan.StartCapture("w0", testenv.CaptureOptions{Match: func(frame []byte) bool { return bytes.Contains(frame, x.mark) }})
	if err != nil {
		t.Fatal(err)
	}
	beside := startSteady(t, lan, wan, wan4)
	kept := stateOfDevice(t, gw, "lan")

	// Refused: nothing of it happens.
	for _, tt := range []struct{ name, ports, want string }{
		{"no device", "{dmz: {device: nothing}, lan: {device: lan}, wan: {device: wan}}", "no device nothing in this network namespace"},
		{"one of two", "{abc: {device: dmz}, dmz: {device: nothing}, lan: {device: lan}, wan: {device: wan}}", "no device nothing in this network namespace"},
		{"loopback", "{dmz: {device: lo}, lan: {device: lan}, wan: {device: wan}}", "is the loopback"},
		{"mode", "{dmz: {device: dmz}, lan: {device: lan, xdp_mode: generic}, wan: {device: wan}}", "apply without the port first, then with it"},
	} {
		zones := "{lan: {ports: [lan]}, wan: {ports: [wan]}, dmz: {ports: [dmz]}}"
		if strings.Contains(tt.ports, "abc") {
			zones = "{lan: {ports: [lan]}, wan: {ports: [wan]}, dmz: {ports: [dmz, abc]}}"
		}
		err := g.reloads(t, keep(portsOf(tt.ports)), zonesOf(zones))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: the reload says %v", tt.name, err)
		}
		var errs firewall.Errors
		if tt.name == "no device" && (!errors.As(err, &errs) || errs[0].Line != 3) {
			t.Errorf("the error has no place: %v", err)
		}
		if s := must(g.Status(t.Context())); len(s.Ports) != 2 || s.Policy.Epoch != 1 {
			t.Errorf("%s: after a refused reload there are ports %+v, epoch %d", tt.name, s.Ports, s.Policy.Epoch)
		}
		if s := stateOfDevice(t, gw, "dmz"); s.program != 0 {
			t.Errorf("%s: after a refused reload dmz has program %d", tt.name, s.program)
		}
	}

	// A port more, and a flow to it.
	g.mustReload(t, keep(portsOf(three)), zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan]}, dmz: {ports: [dmz]}}"))
	answers(t, lan, dmz4, 2*time.Second)
	far := startSteady(t, lan, dmz, dmz4)
	zone := func(want string) {
		t.Helper()
		testenv.Eventually(t, 2*time.Second, func() error {
			flows, err := g.Flows(t.Context(), "dst 10.10.3.2 and dport 7", 0)
			if err == nil && (len(flows) != 1 || flows[0].To != want || flows[0].Revoked || flows[0].Epoch != must(g.Status(t.Context())).Policy.Epoch) {
				err = fmt.Errorf("the flow to zone %s is %+v", want, flows)
			}
			return err
		})
	}
	zone("dmz")

	// It moves to the other's zone, to that of the flow's opener, and back into one of its own.
	g.mustReload(t, keep(portsOf(three)), zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan, dmz]}}"))
	zone("wan")
	g.mustReload(t, keep(portsOf(three)), zonesOf("{lan: {ports: [lan, dmz]}, wan: {ports: [wan]}}"))
	zone("lan")
	g.mustReload(t, keep(portsOf(three)), zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan]}, guest: {ports: [dmz]}}"))
	zone("guest")

	// Settings, and another name.
	g.mustReload(t, keep(portsOf("{far: {device: dmz, mtu: 1400, fix_checksums: \"on\"}, lan: {device: lan}, wan: {device: wan}}")),
		zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan]}, guest: {ports: [far]}}"))
	if p := g.port(t, "far"); p.MTU != 1400 || p.Device != "dmz" {
		t.Errorf("the port is %+v", p)
	}
	zone("guest")
	g.mustReload(t, keep(portsOf(three)), zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan]}, guest: {ports: [dmz]}}"))
	g.becomes(t, "dmz", "of its own MTU", 2*time.Second, func(p *PortStatus) bool { return p.MTU == 1500 })

	// Its device is renamed, and the configuration follows; and back.
	for _, names := range [][2]string{{"dmz", "dmz-new"}, {"dmz-new", "dmz"}} {
		for _, args := range []string{"set " + names[0] + " down", "set " + names[0] + " name " + names[1], "set " + names[1] + " up"} {
			ip(t, "-n "+gw.Name()+" link "+args)
		}
		g.becomes(t, "dmz", "renamed", 2*time.Second, func(p *PortStatus) bool { return p.Device == names[1] && p.Up })
		g.mustReload(t, keep(portsOf(strings.Replace(three, "device: dmz", "device: "+names[1], 1))),
			zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan]}, guest: {ports: [dmz]}}"))
		if p := g.port(t, "dmz"); len(p.Notes) != 0 {
			t.Errorf("it still says %q", p.Notes)
		}
	}
	zone("guest")
	// Those of a port that moves may miss what came in the moments of a move.
	if lost, sent := far.lost(), far.sent.Load(); lost > int64(sent)/4 {
		t.Errorf("the flow of the port that moved lost %d of %d packets", lost, sent)
	} else {
		t.Logf("the flow of the port that moved lost %d of %d packets", lost, sent)
	}

	// It leaves.
	last := startSteady(t, lan, dmz, dmz4)
	g.mustReload(t, keep(portsOf(two)), zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan]}}"))
	if flows := must(g.Flows(t.Context(), "dst 10.10.3.2", 0)); len(flows) != 0 {
		t.Errorf("flows are left: %+v", flows)
	}
	last.stop()
	if s := stateOfDevice(t, gw, "dmz"); s.program != 0 {
		t.Errorf("dmz has program %d still", s.program)
	}
	if r, err := lan.Ping(t.Context(), dmz4, testenv.PingOptions{Timeout: 100 * time.Millisecond}); err != nil || r.Received > 0 {
		t.Errorf("what has left the gateway answers: %+v, %v", r, err)
	}
	if s := stateOfDevice(t, gw, "lan"); s != kept {
		t.Errorf("the port that stayed was %+v and is %+v", kept, s)
	}
	g.mustReload(t, keep(portsOf(three)), zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan]}, dmz: {ports: [dmz]}}"))
	answers(t, lan, dmz4, 2*time.Second)
	flow := must(g.Flows(t.Context(), "dst 10.10.2.2", 0))

	// Another run takes it all over, numbers included.
	g.stop()
	c, err := LoadConfig(g.config.File)
	if err != nil {
		t.Fatal(err)
	}
	next := runIn(t, l, c)
	if log := next.log.String(); !strings.Contains(log, "the run before is taken over") {
		t.Errorf("the next run says:\n%s", log)
	}
	if flows := must(next.Flows(t.Context(), "dst 10.10.2.2", 0)); len(flow) == 0 || len(flows) != len(flow) {
		t.Errorf("there were %d flows, and are %+v", len(flow), flows)
	}
	answers(t, lan, dmz4, 2*time.Second)
	if lost := beside.lost(); lost != 0 {
		t.Errorf("the flow beside it all lost %d of %d packets", lost, beside.sent.Load())
	}
	next.mustReload(t, keep(portsOf(two)), zonesOf("{lan: {ports: [lan]}, wan: {ports: [wan]}}"))
	next.stop()
	if passed := must(capture.Stop()); passed != 0 || x.sent.Load() < 1000 {
		t.Errorf("%d of %d packets passed that no policy allows", passed, x.sent.Load())
	}
	checkEnds(t, g.config.Events.File)
	if err := gw.Do(func() error { _, err := dataplane.Detach(); return err }); err != nil {
		t.Fatal(err)
	}
	if after := settings(t, gw); after != before {
		t.Errorf("the host is not as it was:\n%s\nit was:\n%s", after, before)
	}
}

// checkEnds wants the end of a flow whose port was removed, and the events of ports.
func checkEnds(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"reason":"port-removed"`, `"event":"port-added"`, `"event":"port-removed"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no event has %s", want)
		}
	}
}

// VLANs come to ports, move between zones and go again by reloads, under a flow.
func TestLabReloadVLANs(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: "t-lab-rlv"})
	client, server := l.Must(t, "client"), l.Must(t, "server")
	config := fixed(labInline, "fix_offloads: true") + "flows: {max: 10000}\n"
	policy := func(zones, from, to string) string {
		rules := "rules:\n  - {name: plain, from: {zone: lan}, to: {zone: wan}, service: udp/53, action: allow}\n"
		if from != "" {
			rules += fmt.Sprintf("  - {name: tagged, from: {zone: %s}, to: {zone: %s}, service: udp/7, action: allow, log: true}\n", from, to)
		}
		return "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan]}, wan: {ports: [wan]}" + zones + "}\n" + rules
	}
	g := runIn(t, l, write(t, config, policy("", "", "")))
	plain := way{srcMAC: must(client.MAC("c0")), dstMAC: must(server.MAC("s0")), src: netip.MustParseAddr("10.10.1.2"), dst: netip.MustParseAddr("10.10.1.3")}
	tagged := plain
	tagged.vlan = 7
	s, err := client.OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	capture, err := server.StartCapture("s0", testenv.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer capture.Stop()
	n := 0
	passes := func(what string, want bool) {
		t.Helper()
		n++
		probe, behind := []byte(fmt.Sprintf("probe %04d", n)), []byte(fmt.Sprintf("behind %04d", n))
		for _, frame := range [][]byte{tagged.udp(t, 999, 7, probe), plain.udp(t, 999, 53, behind)} {
			if err := s.Send(frame); err != nil {
				t.Fatal(err)
			}
		}
		testenv.Eventually(t, 5*time.Second, func() error {
			if !arrived(capture, behind) {
				return fmt.Errorf("%s: what is allowed did not arrive", what)
			}
			return nil
		})
		if got := arrived(capture, probe); got != want {
			t.Errorf("%s: the tagged frame passed: %v\n%+v\n%+v", what, got, must(g.Drops(t.Context(), false)), must(g.Flows(t.Context(), "", 0)))
		}
	}
	passes("no VLAN", false)
	g.mustReload(t, config, policy(", a: {ports: [lan], vlans: [7]}, b: {ports: [wan], vlans: [7]}", "a", "b"))
	passes("a VLAN more", true)
	g.mustReload(t, config, policy(", a: {ports: [lan], vlans: [8]}, c: {ports: [lan], vlans: [7]}, b: {ports: [wan], vlans: [7, 8]}", "c", "b"))
	passes("it moves", true)
	if flows := must(g.Flows(t.Context(), "dport 7", 0)); len(flows) != 1 || flows[0].From != "c" || flows[0].Packets[0] != 2 {
		t.Errorf("flows are %+v", flows)
	}
	g.mustReload(t, config, policy(", a: {ports: [lan], vlans: [8]}, c: {ports: [lan], vlans: [7]}, b: {ports: [wan], vlans: [7, 8]}", "a", "b"))
	passes("where it is not allowed", false)
	g.mustReload(t, config, policy("", "", ""))
	passes("no VLAN again", false)
	if flows := must(g.Flows(t.Context(), "dport 7", 0)); len(flows) != 0 {
		t.Errorf("flows are left: %+v", flows)
	}
	for _, port := range must(g.Status(t.Context())).Ports {
		if len(port.VLANs) != 0 {
			t.Errorf("port %s has VLANs %v", port.Name, port.VLANs)
		}
	}
}
