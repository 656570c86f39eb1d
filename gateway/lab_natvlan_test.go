package gateway

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// Who is behind a VLAN of a port is masqueraded as everybody: the frame leaves untagged, from the gateway's address,
// with its checksums right, so that the server's kernel takes it and its answer is of the same flow. Another VLAN, of
// which no nat rule speaks, keeps its address.
func TestLabNATVLAN(t *testing.T) {
	t.Parallel()
	policy := strings.Replace(natZones, "  wan: {ports: [wan]}\n", "  wan: {ports: [wan]}\n  seven: {ports: [lan], vlans: [7]}\n  eight: {ports: [lan], vlans: [8]}\n", 1)
	policy = strings.Replace(policy, "rules:\n", "rules:\n  - {name: tagged, from: [seven, eight], to: {zone: wan}, action: allow}\n", 1)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-nv"})
	r := newRigIn(t, l, testenv.Options{}, strings.Replace(labRouted, "{device: lan}", "{device: lan, fix_offloads: true}", 1), policy+"  - {name: branch, from: [lan, seven], to: wan, masquerade: {}}\n")
	hideFrom(t, l)
	s := must(r.client.OpenSender("c0"))
	defer s.Close()
	for i, a := range r.addresses() {
		// What the kernel is to ask a neighbour for has to reach it, and it has no device for VLANs here.
		r.meet(t, meeting{network: "udp", from: r.client, to: netip.AddrPortFrom(a, 9), at: r.server})
		l := must(r.server.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(a, 7).String()))
		defer l.Close()
		src := netip.MustParseAddr([]string{"10.10.7.2", "fd10:7::2"}[i])
		w := way{srcMAC: must(r.client.MAC("c0")), dstMAC: must(r.gw.MAC("lan")), src: src, dst: a, vlan: 7}
		other := w
		other.vlan, other.src = 8, netip.MustParseAddr([]string{"10.10.8.2", "fd10:8::2"}[i])
		for _, c := range []struct {
			way
			seen netip.Addr
		}{{w, gwWAN[i]}, {other, other.src}} {
			text, buffer := fmt.Sprintf("from VLAN %d", c.vlan), make([]byte, 100)
			var from netip.AddrPort
			testenv.Eventually(t, 5*time.Second, func() error { // the first may wait for a neighbour
				if err := s.Send(c.udp(t, 5000, 7, []byte(text))); err != nil {
					return err
				}
				_ = l.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				n, who, err := l.ReadFrom(buffer)
				if err != nil || string(buffer[:n]) != text {
					return fmt.Errorf("%q arrived: %w\n%s", buffer[:n], err, r.tally(t))
				}
				from = addrPort(who)
				return nil
			})
			if from != netip.AddrPortFrom(c.seen, 5000) {
				t.Errorf("the sender %s was seen as %s, want %s", text, from, c.seen)
			}
		}
		flows := must(r.Flows(t.Context(), "dport 7 and dst "+a.String(), 0))
		if len(flows) != 2 {
			t.Errorf("%d flows: %+v", len(flows), flows)
		}
		for _, f := range flows {
			if translated := f.NAT != nil; translated != (f.From == "seven") || translated && f.NAT.SrcIP != gwWAN[i] {
				t.Errorf("the flow from zone %s is translated as %+v", f.From, f.NAT)
			}
		}
	}
}
