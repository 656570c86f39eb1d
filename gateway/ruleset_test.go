package gateway

import (
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/testenv"
)

func TestPortConfigs(t *testing.T) {
	c := write(t, `apiVersion: softdpu/v1
kind: Gateway
ports:
  trunk: {device: eth0, fix_offloads: true, xdp_mode: native}
  a: {device: eth1, fix_checksums: off}
  b: {device: eth2, xdp_mode: generic, fix_checksums: on}
inline: [[a, b]]
policy: policy.yaml
management: none
`, `apiVersion: softdpu/v1
kind: Policy
zones:
  guests: {ports: [trunk], vlans: [20, 21]}
  inside: {ports: [a]}
  outside: {ports: [b]}
  staff: {ports: [trunk]}
rules:
  - {name: out, from: {zone: inside}, to: {zone: outside}, action: allow}
tests:
  - {name: through the wire, packet: {in: a, src: 10.0.0.1, dst: 192.0.2.1, service: tcp/80}, expect: {verdict: allow, rule: out}}
`)
	oracle, err := openRouteOracle(c)
	if err != nil {
		t.Fatal(err)
	}
	defer oracle.close()
	r, err := PrepareRuleset(c, time.Now(), oracle.zone)
	if err != nil {
		t.Fatal(err)
	}
	want := []dataplane.PortConfig{
		{Name: "a", Device: "eth1", Zone: 3, Peer: "b", FixChecksum: dataplane.SwitchOff},
		{Name: "b", Device: "eth2", Zone: 4, Peer: "a", Mode: dataplane.ModeGeneric, FixChecksum: dataplane.SwitchOn},
		{Name: "trunk", Device: "eth0", Zone: 5, VLANs: map[uint16]uint8{20: 2, 21: 2}, Mode: dataplane.ModeNative, FixOffloads: true},
	}
	if got := r.portConfigs(c); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if r.zoneName(4) != "outside" || r.zoneName(99) != "zone-99" || r.rule(99).Name != "rule-99" {
		t.Errorf("names: %q, %q, %q", r.zoneName(4), r.zoneName(99), r.rule(99).Name)
	}
	// Without an oracle the test's way out is not known.
	if _, err := PrepareRuleset(c, time.Now(), nil); err == nil || !strings.Contains(err.Error(), "where 192.0.2.1 lies is not known") {
		t.Errorf("without routes: %v", err)
	}
}

// Inline, with an MTU of our own, under an empty table of routes.
func TestRunInline(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: "t-gw-inl"})
	client, gw := l.Must(t, "client"), l.Must(t, testenv.Gateway)
	server := netip.MustParseAddr("10.10.1.3")
	g := runIn(t, l, write(t, `apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: lan, mtu: 1400}, wan: {device: wan}}
inline: [[lan, wan]]
policy: policy.yaml
management: none
on_stop: open
control: {socket: softdpu.sock}
events: {file: eve.json}
`, `apiVersion: softdpu/v1
kind: Policy
zones: {in: {ports: [lan]}, out: {ports: [wan]}}
rules:
  - {name: ping, from: {zone: in}, to: {zone: out}, service: icmp/echo-request, action: allow}
`))
	s, err := g.Status(t.Context())
	if err != nil || s.Ports[0].MTU != 1400 || s.Ports[1].MTU != 1500 || s.Ports[0].Peer != "wan" || s.Ports[1].Zone != "out" {
		t.Fatalf("%+v, %v", s, err)
	}
	if r, err := client.Ping(t.Context(), server, testenv.PingOptions{Count: 3}); err != nil || r.Received != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	flows, err := g.Flows(t.Context(), "", 0)
	if err != nil || len(flows) != 1 || flows[0].From != "in" || flows[0].To != "out" || flows[0].Proto != "icmp" || flows[0].State != "replied" ||
		flows[0].Packets != [2]uint64{3, 3} || flows[0].WhyNotHigher != "no hardware offload on port wan (veth)" {
		t.Errorf("%+v, %v", flows, err)
	}
	g.stop()
	var forwarding []byte
	err = gw.Do(func() (err error) {
		forwarding, err = os.ReadFile("/proc/sys/net/ipv4/conf/lan/forwarding")
		return err
	})
	if err != nil || strings.TrimSpace(string(forwarding)) != "0" {
		t.Errorf("forwarding of an inline port: %s, %v", forwarding, err)
	}
	if after := settings(t, gw); strings.Contains(after, "mtu 1400") || strings.Contains(after, "xdp") {
		t.Errorf("after the stop:\n%s", after)
	}
}
