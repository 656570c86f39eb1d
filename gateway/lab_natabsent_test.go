package gateway

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// natAbsent forwards to a host that is not there and to one that is, for who is outside and for who is inside.
const natAbsent = natZones + natMasquerade + `
  - {name: gone4, from: any, to: {addresses: [203.0.113.5]}, dnat: {to: 10.10.1.77}}
  - {name: gone6, from: any, to: {addresses: ["fd20::5"]}, dnat: {to: "fd10:1::77"}}
  - {name: there4, from: any, to: {addresses: [203.0.113.6]}, dnat: {to: 10.10.1.2}}
  - {name: there6, from: any, to: {addresses: ["fd20::6"]}, dnat: {to: "fd10:1::2"}}
`

// The gateway's kernel, which asks for neighbours, tells who sends to one that does not answer, about the addresses
// that he knows and none behind the gateway: of a host outside, of a server that is forwarded to, and of one that is
// reached from beside it. Who counts hops to a server behind the gateway sees the gateway once.
func TestLabNATAbsent(t *testing.T) {
	t.Parallel()
	r := newNATRig(t, "t-lab-na", natAbsent)
	for _, port := range []string{"lan", "wan"} {
		for _, family := range []string{"ipv4", "ipv6"} {
			sysctl(t, r.gw, family+"/neigh/"+port+"/retrans_time_ms", "20") // between three questions
		}
	}
	for i, hidden := range []string{"203.0.113.0/24", "fd20::/64"} {
		addRoute(t, r.server, hidden, gwWAN[i].String())
		gone, there := netip.MustParseAddr([]string{"203.0.113.5", "fd20::5"}[i]), netip.MustParseAddr([]string{"203.0.113.6", "fd20::6"}[i])
		for _, c := range []struct {
			what   string
			from   *testenv.Namespace
			device string
			to     netip.Addr
			teller netip.Addr
		}{
			{"a client of a host outside", r.client, "c0", netip.MustParseAddr([]string{"10.10.2.77", "fd10:2::77"}[i]), gwLAN[i]},
			{"a client outside", r.server, "s0", gone, gwWAN[i]},
			{"a client beside the server", r.client, "c0", gone, gwLAN[i]},
		} {
			capture := must(c.from.StartCapture(c.device, testenv.CaptureOptions{Match: func(frame []byte) bool {
				p := ipPacket(frame[14:])
				return frame[12] == 8 && frame[13] == 0 && p[9] == 1 || frame[12] == 0x86 && p[6] == 58 && p[40] == 1
			}}))
			d := limited(t, 10*time.Second)
			conn, err := c.from.Dial(d, "tcp", netip.AddrPortFrom(c.to, 80).String())
			if err == nil {
				conn.Close()
			}
			if !errors.Is(err, syscall.EHOSTUNREACH) {
				t.Errorf("%s, %s: %v (%v)\n%s", c.what, c.to, err, context.Cause(d), r.tally(t))
			}
			if err := capture.Wait(limited(t, 5*time.Second), 1); err != nil {
				t.Error(err)
			}
			if _, err := capture.Stop(); err != nil {
				t.Error(err)
			}
			for _, f := range capture.Frames() {
				if p := ipPacket(f.Data[14:]); p.src() != c.teller {
					t.Errorf("%s was told by %s, not by %s", c.what, p.src(), c.teller)
				}
			}
		}
		answers, err := r.server.Traceroute(t.Context(), there, testenv.TracerouteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var hops []netip.Addr
		for _, h := range answers {
			hops = append(hops, h.From)
		}
		if !slices.Equal(hops, []netip.Addr{gwWAN[i], there}) {
			t.Errorf("hops to %s: %v", there, hops)
		}
	}
	if n := r.tally(t); n.drops["nat-untranslated"]+n.drops["nat-conflict"]+n.drops["icmp-no-flow"]+n.drops["kernel-bypass"] > 0 {
		t.Errorf("%s", n)
	}
}
