package testenv_test

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

func TestTopologies(t *testing.T) {
	tests := []struct {
		name, topology     string
		nodes              []string
		address, reachable string // of the first node; from the first node
	}{
		{"routed", "client-server", []string{"client", "gw", "server"}, "10.10.1.2/24", "10.10.1.1"},
		{"inline has a silent gateway", "inline", []string{"client", "gw", "server"}, "10.10.1.2/24", ""},
		{"three zones", "three-zone", []string{"lan", "gw", "wan", "dmz"}, "10.10.1.2/24", "10.10.1.1"},
		{"bare cable", "wire", []string{"client", "server"}, "10.10.1.2/24", "10.10.1.3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := testenv.New(t, tt.topology, testenv.Options{MTU: 9000, Queues: 2})
			labs, err := testenv.List()
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(labs, func(s testenv.Status) bool { return s.Prefix == l.Prefix })
			if at < 0 {
				t.Fatalf("lab is not listed: %+v", labs)
			}
			s := labs[at]
			if s.Topology != tt.topology {
				t.Errorf("listed as %s", s.Topology)
			}
			var nodes []string
			for i, n := range s.Namespaces {
				nodes = append(nodes, n.Node)
				if n.Name != l.Prefix+"-"+n.Node {
					t.Errorf("node %s is namespace %s", n.Node, n.Name)
				}
				if len(n.Devices) != len(l.Topology.Nodes[i].Devices) {
					t.Errorf("node %s has devices %+v", n.Node, n.Devices)
				}
				for j, d := range n.Devices {
					if d.MTU != 9000 || d.State != "up" {
						t.Errorf("%s: MTU %d, state %s", d.Name, d.MTU, d.State)
					}
					if !slices.Equal(d.Addresses, l.Topology.Nodes[i].Devices[j].Addresses) && len(d.Addresses) > 0 {
						t.Errorf("%s: addresses %s", d.Name, d.Addresses)
					}
				}
			}
			if !slices.Equal(nodes, tt.nodes) {
				t.Errorf("nodes %s", nodes)
			}
			if got := s.Namespaces[0].Devices[0].Addresses[0].String(); got != tt.address {
				t.Errorf("first address %s", got)
			}
			first := l.Must(t, tt.nodes[0])
			if tt.reachable != "" {
				out, err := first.Command(t.Context(), "ping", "-c", "1", "-W", "2", tt.reachable).CombinedOutput()
				if err != nil {
					t.Errorf("ping: %v\n%s", err, out)
				}
			}
		})
	}
}

func TestSettings(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{})
	tests := []struct{ name, node, file, want string }{
		{"gateway does not forward IPv4", "gw", "ipv4/ip_forward", "0"},
		{"gateway's port does not forward IPv4", "gw", "ipv4/conf/lan/forwarding", "0"},
		{"gateway does not forward IPv6", "gw", "ipv6/conf/all/forwarding", "0"},
		{"no duplicate address detection", "client", "ipv6/conf/c0/accept_dad", "0"},
		{"no router solicitations", "client", "ipv6/conf/c0/router_solicitations", "0"},
		{"no reverse path filter", "server", "ipv4/conf/s0/rp_filter", "0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := l.Must(t, tt.node).Do(func() error {
				b, err := os.ReadFile("/proc/sys/net/" + tt.file)
				if got := strings.TrimSpace(string(b)); err == nil && got != tt.want {
					t.Errorf("%s is %s", tt.file, got)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for node, want := range map[string]string{"client c0": "on", "server s0": "on", "gw lan": "off"} {
		name, device, _ := strings.Cut(node, " ")
		out, err := l.Must(t, name).Command(t.Context(), "ethtool", "-k", device).CombinedOutput()
		if err != nil {
			t.Fatalf("ethtool: %v\n%s", err, out)
		}
		if !strings.Contains(string(out), "generic-receive-offload: "+want) {
			t.Errorf("GRO of %s is not %s", device, want)
		}
	}
	out, err := l.Must(t, "client").Command(t.Context(), "ip", "route", "show", "default").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "via 10.10.1.1 dev c0") {
		t.Errorf("default route: %v %s", err, out)
	}
	out, err = l.Must(t, "server").Command(t.Context(), "ip", "-6", "route", "show", "default").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "via fd10:2::1 dev s0") {
		t.Errorf("IPv6 default route: %v %s", err, out)
	}
}

func TestUpRemovesWhatACrashLeft(t *testing.T) {
	old := testenv.New(t, "three-zone", testenv.Options{})
	left := old.Must(t, "gw").Command(t.Context(), "sleep", "60")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- left.Wait() }()
	waitUntilInside(t, old.Must(t, "gw"), left.Process.Pid)
	// A crash between making and mounting a name leaves a plain file.
	if err := os.WriteFile("/run/netns/"+old.Prefix+"-server", nil, 0o444); err != nil {
		t.Fatal(err)
	}
	l, err := testenv.Up("client-server", testenv.Options{Prefix: old.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("a process of the old lab lives on")
	}
	if _, err := os.Stat("/run/netns/" + old.Prefix + "-dmz"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("namespace of the old lab is still there: %v", err)
	}
	if _, err := l.Namespace("server"); err != nil {
		t.Error(err)
	}
}

func TestDownRemovesEverything(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{})
	// A socket of ours keeps the namespace alive, but not its devices.
	client := l.Must(t, "client")
	c, err := client.ListenPacket(t.Context(), "udp4", "10.10.1.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	outside := exec.Command("sleep", "60")
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	defer outside.Wait()
	defer outside.Process.Kill()
	if removed, err := testenv.Down(l.Prefix); err != nil || !removed {
		t.Fatalf("removed %t, %v", removed, err)
	}
	if removed, err := testenv.Down(l.Prefix); err != nil || removed {
		t.Errorf("second time: removed %t, %v", removed, err)
	}
	if _, err := os.Stat("/proc/" + itoa(outside.Process.Pid) + "/ns/net"); err != nil {
		t.Errorf("a process outside of the lab is gone: %v", err)
	}
	if _, err := testenv.Open(l.Prefix); !errors.Is(err, testenv.ErrNoLab) {
		t.Errorf("open: %v", err)
	}
	if err := client.Do(func() error { return nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("enter what is gone: %v", err)
	}
}

func TestLabNames(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{})
	same, err := testenv.Open(l.Prefix)
	if err != nil || same.Topology.Name != "client-server" {
		t.Fatalf("open: %+v, %v", same, err)
	}
	for _, name := range []string{"client", l.Prefix + "-client"} {
		n, err := l.Namespace(name)
		if err != nil || n.Name() != l.Prefix+"-client" {
			t.Errorf("%s: %v, %v", name, n, err)
		}
	}
	if _, err := l.Namespace("dmz"); err == nil || !strings.Contains(err.Error(), "client, gw, server") {
		t.Errorf("unknown node: %v", err)
	}
	if text := l.Describe(); !strings.Contains(text, l.Prefix+"-gw\n") || !strings.Contains(text, "10.10.2.1/24") {
		t.Errorf("description lacks the gateway:\n%s", text)
	}
}

func TestRefusedOptions(t *testing.T) {
	tests := []struct {
		name, topology string
		options        testenv.Options
		want           string
	}{
		{"topology", "ring", testenv.Options{}, "client-server"},
		{"prefix", "inline", testenv.Options{Prefix: "../x"}, "prefix"},
		{"small MTU", "inline", testenv.Options{MTU: 1279}, "1280"},
		{"queues", "inline", testenv.Options{Queues: -1}, "queues"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := testenv.Up(tt.topology, tt.options)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestNewMakesPrefixesAndRemovesStaleOnes(t *testing.T) {
	testenv.RequireRoot(t)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	stale := "t" + itoa(dead.Process.Pid) + "-7"
	if _, err := testenv.Up("wire", testenv.Options{Prefix: stale}); err != nil {
		t.Fatal(err)
	}
	a := testenv.New(t, "wire", testenv.Options{})
	b := testenv.New(t, "wire", testenv.Options{})
	if a.Prefix == b.Prefix || a.Prefix == testenv.DefaultPrefix {
		t.Errorf("prefixes %s and %s", a.Prefix, b.Prefix)
	}
	if _, err := testenv.Open(stale); !errors.Is(err, testenv.ErrNoLab) {
		t.Errorf("stale lab: %v", err)
	}
}
