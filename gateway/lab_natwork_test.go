package gateway

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// Workers get the packets of translated flows as they leave, both ways, and the flows go on when they move up; whoever
// captures sees each packet as it came and as it left.
func TestLabNATWorkers(t *testing.T) {
	const force = "force_stage: forward\n"
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-nw"})
	r := newRigIn(t, l, testenv.Options{}, labRouted+force, natZones+natMasquerade)
	hideFrom(t, l)
	var talkers []*natTalker
	for _, a := range r.addresses() {
		echo := must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		talkers = append(talkers, newNatTalker(t, r.client, echo.Addr()))
	}
	check := func(when, tier string) {
		t.Helper()
		for i, w := range talkers {
			local := addrPort(w.conn.LocalAddr())
			c := r.take(t, CaptureRequest{Points: []string{"in", "out"}, Filter: fmt.Sprintf("tcp and port %d", local.Port()), Snaplen: 128})
			w.goesOn(t, when)
			c.finish(t)
			seen := map[string]bool{} // by port, family, sender and receiver
			for n, p := range c.packets {
				ip := ipPacket(p.Data[14:])
				seen[fmt.Sprintf("%s %s>%s", c.ports[n], ip.src(), ip.dst())] = true
			}
			server := r.addresses()[i]
			for _, want := range []string{
				fmt.Sprintf("lan %s>%s", local.Addr(), server), fmt.Sprintf("wan %s>%s", gwWAN[i], server),
				fmt.Sprintf("wan %s>%s", server, gwWAN[i]), fmt.Sprintf("lan %s>%s", server, local.Addr()),
			} {
				if !seen[want] {
					t.Errorf("%s: of %d captured packets none is %s: %v", when, len(c.packets), want, seen)
				}
			}
			if len(seen) != 4 {
				t.Errorf("%s: captured were %v", when, seen)
			}
			testenv.Eventually(t, 10*time.Second, func() error {
				flows, err := r.Flows(t.Context(), fmt.Sprintf("sport %d", local.Port()), 0)
				if err == nil && (len(flows) != 1 || flows[0].Tier != tier || flows[0].NAT == nil || flows[0].NAT.SrcIP != gwWAN[i]) {
					err = fmt.Errorf("%s: listed is %+v", when, flows)
				}
				return err
			})
		}
	}
	check("by workers", tierWorker)
	config := must(os.ReadFile(r.config.File))
	if err := os.WriteFile(r.config.File, []byte(strings.Replace(string(config), force, "", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	must(r.Reload(t.Context()))
	check("moved up", tierXDP)
	for _, w := range talkers {
		w.finish(t)
	}
	if drops, _ := r.unexpected(t); len(drops) > 0 {
		t.Errorf("dropped were %+v", drops)
	}
}
