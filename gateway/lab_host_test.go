package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// Management is asked before anti-spoofing. All the same nobody there has the gateway answer to another
// zone, by giving a source of that zone.
func TestLabManagementReflectsNothing(t *testing.T) {
	config := strings.Replace(labRouted, "management: none", "management: {from: [lan], services: [udp/161]}", 1)
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-mr"}, config, labPolicy)
	echo := must(r.gw.ServeEcho(t.Context(), netip.MustParseAddrPort("10.10.1.1:161")))
	defer echo.Close()
	s := must(r.client.OpenSender("c0"))
	defer s.Close()
	answers := func(frame []byte) bool { return len(frame) > 35 && frame[23] == unix.IPPROTO_UDP && frame[35] == 161 }
	near := must(r.client.StartCapture("c0", testenv.CaptureOptions{Match: answers}))
	far := must(r.server.StartCapture("s0", testenv.CaptureOptions{Match: answers}))
	honest := way{srcMAC: must(r.client.MAC("c0")), dstMAC: must(r.gw.MAC("lan")), src: netip.MustParseAddr("10.10.1.2"), dst: netip.MustParseAddr("10.10.1.1")}
	spoofed := honest
	spoofed.src = netip.MustParseAddr("10.10.2.2")
	for _, w := range []way{spoofed, honest} {
		if err := s.Send(w.udp(t, 4000, 161, []byte("who are you"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := near.Wait(limited(t, 5*time.Second), 1); err != nil {
		t.Errorf("management is not answered: %v", err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if got := r.dropped(t, "wrong-zone").Packets; got != 1 {
			return fmt.Errorf("%d answers dropped as wrong-zone, want 1", got)
		}
		return nil
	})
	for _, c := range []*testenv.Capture{near, far} {
		n, err := c.Stop()
		if want := map[*testenv.Capture]int{near: 1}[c]; n != want || err != nil {
			t.Errorf("%d answers, want %d (%v)", n, want, err)
		}
	}
}

// The gateway's own flow is held to its rule also when the kernel begins to send it by another port.
func TestLabHostFlowChangesZone(t *testing.T) {
	const policy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  wan: {ports: [wan]}
rules:
  - {name: report, from: host, to: {zone: wan}, service: udp/514, action: allow}
`
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-hz"}, labRouted, policy)
	reports := testenv.CaptureOptions{Match: func(frame []byte) bool {
		return len(frame) > 37 && frame[23] == unix.IPPROTO_UDP && frame[36] == 514>>8 && frame[37] == 514&0xff
	}}
	near, far := must(r.client.StartCapture("c0", reports)), must(r.server.StartCapture("s0", reports))
	socket := must(r.gw.ListenPacket(t.Context(), "udp", "10.10.2.1:4000"))
	defer socket.Close()
	report := func() error {
		_, err := socket.WriteTo([]byte("report"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.10.2.2:514")))
		return err
	}
	if err := report(); err != nil {
		t.Fatal(err)
	}
	if err := far.Wait(limited(t, 5*time.Second), 1); err != nil {
		t.Fatalf("the rule lets no report through: %v", err)
	}
	for _, line := range [][]string{
		{"route", "add", "10.10.2.2/32", "dev", "lan"},
		{"neigh", "add", "10.10.2.2", "lladdr", must(r.client.MAC("c0")).String(), "dev", "lan"},
	} {
		if out, err := r.gw.Command(t.Context(), "ip", line...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", line, err, out)
		}
	}
	_ = report() // which the kernel may tell of the drop
	if got := r.dropped(t, "policy-revoked").Packets; got != 1 {
		t.Errorf("%d reports dropped as policy-revoked, want 1", got)
	}
	if out, err := r.gw.Command(t.Context(), "ip", "route", "del", "10.10.2.2/32", "dev", "lan").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := report(); err != nil {
		t.Fatal(err)
	}
	if err := far.Wait(limited(t, 5*time.Second), 2); err != nil {
		t.Errorf("the flow does not live on by the port of its rule: %v", err)
	}
	if n, err := near.Stop(); n != 0 || err != nil {
		t.Errorf("%d reports left by a zone that no rule names (%v)", n, err)
	}
	if _, err := far.Stop(); err != nil {
		t.Error(err)
	}
}
