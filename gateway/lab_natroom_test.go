package gateway

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// A natRoom is a lab whose client and server stand for the two networks.
type natRoom struct {
	lab      *testenv.Lab
	senders  [2]*testenv.Sender // towards wan, towards lan
	capture  [2]func() *testenv.Capture
	captures [2]*testenv.Capture
	read     [2]int // frames of the captures that were looked at
	headers  [2][]byte
	expected [2][]byte // what leaves by wan, by lan, begins with: MACs
}

// newNatRoom has its gateway between 10.50.0.0/16 and 10.60.0.0/16, and between fd50::/16 and fd60::/16.
func newNatRoom(t *testing.T, prefix string) *natRoom {
	t.Helper()
	l := testenv.New(t, "client-server", testenv.Options{Prefix: prefix})
	n := &natRoom{lab: l}
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	ends := []struct {
		ns              *testenv.Namespace
		device, near    string
		next, next6     string
		network, behind string
	}{{client, "c0", "lan", "10.10.1.2", "fd10:1::2", "10.50.0.0/16", "fd50::/16"}, {server, "s0", "wan", "10.10.2.2", "fd10:2::2", "10.60.0.0/16", "fd60::/16"}}
	for i, e := range ends {
		mac, near := must(e.ns.MAC(e.device)), must(gw.MAC(e.near))
		ip(t, fmt.Sprintf("-n %s neigh replace %s lladdr %s dev %s nud permanent", gw.Name(), e.next, mac, e.near))
		ip(t, fmt.Sprintf("-n %s neigh replace %s lladdr %s dev %s nud permanent", gw.Name(), e.next6, mac, e.near))
		ip(t, fmt.Sprintf("-n %s route add %s via %s", gw.Name(), e.network, e.next))
		ip(t, fmt.Sprintf("-n %s route add %s via %s", gw.Name(), e.behind, e.next6))
		n.senders[i] = must(e.ns.OpenSender(e.device))
		t.Cleanup(func() { n.senders[i].Close() })
		n.headers[i] = slices.Concat(near, mac)
		n.expected[1-i] = slices.Concat(mac, near)
		network, behind := netip.MustParsePrefix(e.network), netip.MustParsePrefix(e.behind)
		n.capture[1-i] = func() *testenv.Capture {
			return must(e.ns.StartCapture(e.device, testenv.CaptureOptions{Keep: 1 << 20, Match: func(frame []byte) bool {
				p := ipPacket(frame[14:])
				switch binary.BigEndian.Uint16(frame[12:]) {
				case unix.ETH_P_IP:
					return network.Contains(p.dst())
				case unix.ETH_P_IPV6:
					return behind.Contains(p.dst())
				}
				return false
			}}))
		}
	}
	n.listen(t)
	t.Cleanup(func() { n.deafen(t) })
	return n
}

// listen begins to look at what comes out.
func (n *natRoom) listen(t *testing.T) {
	t.Helper()
	n.deafen(t)
	for side, capture := range n.capture {
		n.captures[side], n.read[side] = capture(), 0
	}
}

// deafen ends that.
func (n *natRoom) deafen(t *testing.T) {
	t.Helper()
	for side, c := range n.captures {
		if c == nil {
			continue
		}
		if _, err := c.Stop(); err != nil {
			t.Error(err)
		}
		n.captures[side] = nil
	}
}

// kernel has the gateway's kernel translate and forward.
func (n *natRoom) kernel(t *testing.T, ports string) {
	t.Helper()
	gw := n.lab.Must(t, testenv.Gateway)
	nft := gw.Command(t.Context(), testenv.RequireProgram(t, "nft"), "-f", "-")
	nft.Stdin = strings.NewReader(fmt.Sprintf(natRuleset, ports))
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	sysctl(t, gw, "netfilter/nf_conntrack_tcp_be_liberal", "1")
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		sysctl(t, gw, name, "1")
	}
}

func (n *natRoom) send(t *testing.T, side int, p ipPacket) {
	t.Helper()
	if err := n.senders[side].Send(p.behind(n.headers[side])); err != nil {
		t.Fatal(err)
	}
}

func (n *natRoom) collect(t *testing.T, into natResults) {
	t.Helper()
	for side, c := range n.captures {
		frames := c.Frames()
		for _, f := range frames[n.read[side]:] {
			if !bytes.Equal(f.Data[:12], n.expected[side]) {
				t.Errorf("a packet leaves with the MACs %x, want %x", f.Data[:12], n.expected[side])
			}
			into.add(f.Data[14:])
		}
		n.read[side] = len(frames)
	}
}
