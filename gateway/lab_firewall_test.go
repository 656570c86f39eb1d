package gateway

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// The same policy twice. The kernel's is as operators write it, and strict about TCP.
const (
	firewallPolicy = `apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}
rules:
  - {name: names, from: {zone: lan}, to: {zone: wan}, service: udp/53, action: allow}
  - {name: web, from: {zone: lan}, to: {zone: wan}, service: tcp/80, action: allow}
`
	firewallRuleset = `table inet filter {
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		ct state invalid drop
		iifname "lan" oifname "wan" udp dport 53 accept
		iifname "lan" oifname "wan" tcp dport 80 accept
	}
}
`
)

// A contender is a firewall of a lab between two hosts that answer nothing.
type contender struct {
	name           string
	client, server *testenv.Namespace
	ends           [2]*testenv.Sender // the client's and the server's
	captures       [2]*testenv.Capture
	ways           [2][2]way // by who sends, by family
	sent           uint32
}

// newContender joins the ends. The router forwards already.
func newContender(t *testing.T, name string, l *testenv.Lab) *contender {
	t.Helper()
	f := &contender{name: name, client: l.Must(t, "client"), server: l.Must(t, "server")}
	gw := l.Must(t, testenv.Gateway)
	c0, s0, lan, wan := must(f.client.MAC("c0")), must(f.server.MAC("s0")), must(gw.MAC("lan")), must(gw.MAC("wan"))
	// Hosts that have a MAC and no stack, so that nobody answers but the test.
	client, server := both("10.10.1.50", "fd10:1::50"), both("10.10.2.50", "fd10:2::50")
	for family := range 2 {
		f.ways[0][family] = way{srcMAC: c0, dstMAC: lan, src: client[family], dst: server[family]}
		f.ways[1][family] = way{srcMAC: s0, dstMAC: wan, src: server[family], dst: client[family]}
		for _, n := range []struct {
			host, device string
			mac          net.HardwareAddr
		}{{client[family].String(), "lan", c0}, {server[family].String(), "wan", s0}} {
			ip(t, fmt.Sprintf("-n %s neigh replace %s lladdr %s dev %s nud permanent", gw.Name(), n.host, n.mac, n.device))
		}
	}
	for i, ns := range []*testenv.Namespace{f.client, f.server} {
		device := []string{"c0", "s0"}[i]
		f.ends[i] = must(ns.OpenSender(device))
		f.captures[i] = must(ns.StartCapture(device, testenv.CaptureOptions{}))
		t.Cleanup(func() {
			f.ends[i].Close()
			if _, err := f.captures[i].Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	return f
}

const markProbe = "<probe>."

// marked returns a payload by which a packet is known again.
func (f *contender) marked() []byte {
	f.sent++
	return binary.BigEndian.AppendUint32([]byte(markProbe), f.sent)
}

// passes sends frames from one end and reports whether all of them arrived at the other, where each is
// known by the last mark in it. It is an error if only some did.
func (f *contender) passes(t *testing.T, from, family int, frames ...[]byte) bool {
	t.Helper()
	for _, frame := range frames {
		if err := f.ends[from].Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	// Behind them goes, by the same way, what every policy allows: a request, or the answer to one. What
	// has not arrived before it never will.
	f.sendLast(t, 0, f.ways[0][family].udp, 999, 53)
	if from == 1 {
		f.sendLast(t, 1, f.ways[1][family].udp, 53, 999)
	}
	count := 0
	for _, frame := range frames {
		at := bytes.LastIndex(frame, []byte(markProbe))
		if at < 0 {
			t.Fatalf("%s: frame without a mark", f.name)
		}
		if arrived(f.captures[1-from], frame[at:at+12]) {
			count++
		}
	}
	if count != 0 && count != len(frames) {
		t.Errorf("%s: %d of %d packets arrived", f.name, count, len(frames))
	}
	return count == len(frames)
}

// sendLast sends a packet and waits until it has arrived.
func (f *contender) sendLast(t *testing.T, from int, udp func(t testing.TB, sport, dport uint16, payload []byte) []byte, sport, dport uint16) {
	t.Helper()
	mark := f.marked()
	if err := f.ends[from].Send(udp(t, sport, dport, mark)); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if arrived(f.captures[1-from], mark) {
			return nil
		}
		return fmt.Errorf("%s: the allowed packet behind the probe did not arrive", f.name)
	})
}

func arrived(c *testenv.Capture, mark []byte) bool {
	for _, frame := range c.Frames() {
		if bytes.Contains(frame.Data, mark) {
			return true
		}
	}
	return false
}

// A probe is a packet, or several, of which a firewall lets all or none pass.
type probe struct {
	name string
	pass bool // what the kernel's firewall is known to do
	// run sends what comes before and then the probe. Ports from port on are its own.
	run func(t *testing.T, f *contender, family int, port uint16) bool
}

var probes = []probe{
	{"SYN to 80", true, func(t *testing.T, f *contender, family int, port uint16) bool {
		return f.passes(t, 0, family, f.ways[0][family].tcp(t, port, 80, "S", 1, 0, f.marked()))
	}},
	{"ACK in midstream", false, func(t *testing.T, f *contender, family int, port uint16) bool {
		return f.passes(t, 0, family, f.ways[0][family].tcp(t, port, 80, "A", 1000, 1000, f.marked()))
	}},
	{"SYN to 81", false, func(t *testing.T, f *contender, family int, port uint16) bool {
		return f.passes(t, 0, family, f.ways[0][family].tcp(t, port, 81, "S", 1, 0, f.marked()))
	}},
	{"UDP to 53", true, func(t *testing.T, f *contender, family int, port uint16) bool {
		return f.passes(t, 0, family, f.ways[0][family].udp(t, port, 53, f.marked()))
	}},
	{"UDP to 54", false, func(t *testing.T, f *contender, family int, port uint16) bool {
		return f.passes(t, 0, family, f.ways[0][family].udp(t, port, 54, f.marked()))
	}},
	{"ACK before the SYN+ACK", false, func(t *testing.T, f *contender, family int, port uint16) bool {
		if !f.passes(t, 0, family, f.ways[0][family].tcp(t, port, 80, "S", 1, 0, f.marked())) {
			t.Errorf("%s: the SYN before the probe did not pass", f.name)
		}
		return f.passes(t, 0, family, f.ways[0][family].tcp(t, port, 80, "A", 2, 1, f.marked()))
	}},
	{"ICMP error of a known flow", true, func(t *testing.T, f *contender, family int, port uint16) bool {
		request := f.ways[0][family].udp(t, port, 53, f.marked())
		if !f.passes(t, 0, family, request) {
			t.Errorf("%s: the request before the probe did not pass", f.name)
		}
		return f.passes(t, 1, family, f.ways[1][family].unreachable(t, request))
	}},
	{"ICMP error of an unknown flow", false, func(t *testing.T, f *contender, family int, port uint16) bool {
		return f.passes(t, 1, family, f.ways[1][family].unreachable(t, f.ways[0][family].udp(t, port, 53, f.marked())))
	}},
	{"both fragments of UDP to 53", true, func(t *testing.T, f *contender, family int, port uint16) bool {
		// 8 bytes of UDP header and 16 of payload, then the rest, each with a mark of its own.
		payload := append(append(f.marked(), "...."...), f.marked()...)
		whole := f.ways[0][family].udp(t, port, 53, payload)
		pieces := f.ways[0][family].fragments(t, uint32(port), 24, whole)
		return f.passes(t, 0, family, pieces[0], pieces[1])
	}},
	{"SYN+FIN", false, func(t *testing.T, f *contender, family int, port uint16) bool {
		return f.passes(t, 0, family, f.ways[0][family].tcp(t, port, 80, "SF", 1, 0, f.marked()))
	}},
	{"SYN+ACK and data of a known connection", true, func(t *testing.T, f *contender, family int, port uint16) bool {
		out, in := f.ways[0][family], f.ways[1][family]
		return f.passes(t, 0, family, out.tcp(t, port, 80, "S", 1, 0, f.marked())) &&
			f.passes(t, 1, family, in.tcp(t, 80, port, "SA", 100, 14, f.marked())) &&
			f.passes(t, 0, family, out.tcp(t, port, 80, "A", 14, 113, f.marked()))
	}},
	{"reply nobody asked for", false, func(t *testing.T, f *contender, family int, port uint16) bool {
		return f.passes(t, 1, family, f.ways[1][family].udp(t, 53, port, f.marked()))
	}},
}

// The kernel's own firewall and ours agree on what passes, probe by probe.
func TestLabKernelFirewall(t *testing.T) {
	testenv.RequireRoot(t)
	kernel := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-nf"})
	gw := kernel.Must(t, testenv.Gateway)
	nft := gw.Command(t.Context(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(firewallRuleset)
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	for name, value := range map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "netfilter/nf_conntrack_tcp_loose": "0"} {
		sysctl(t, gw, name, value)
	}
	ours := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-no"}, labRouted, firewallPolicy)
	theirs := newContender(t, "nftables", kernel)
	mine := newContender(t, "softdpu", ours.lab)
	for family, name := range []string{"IPv4", "IPv6"} {
		for i, p := range probes {
			port := uint16(2000 + 100*family + i)
			want, got := p.run(t, theirs, family, port), p.run(t, mine, family, port)
			if want != p.pass {
				t.Errorf("%s, %s: the kernel's firewall passes it: %t, which is not what it is known to do", name, p.name, want)
			}
			if got != want {
				t.Errorf("%s, %s: softdpu passes it: %t, the kernel's firewall: %t", name, p.name, got, want)
			}
			t.Logf("%s, %s: both say pass=%t", name, p.name, got)
		}
	}
	// The verdicts are of XDP.
	if n := ours.tally(t).since(tally{}); n.kernel() > 0 {
		t.Errorf("the kernel had a part in it: %s", n)
	} else {
		t.Log(n)
	}
}
