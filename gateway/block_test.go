package gateway

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/testenv"
)

// pings reports whether an address answers within a while.
func pings(t *testing.T, from *testenv.Namespace, to string) bool {
	t.Helper()
	return must(from.Ping(t.Context(), netip.MustParseAddr(to), testenv.PingOptions{Timeout: 300 * time.Millisecond})).Received > 0
}

// A block holds although forwarding is turned on after it, by devices that come after it too; the gateway
// takes it away when it judges, and so does detach.
func TestLabBarrier(t *testing.T) {
	t.Parallel()
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-bar"})
	client, gw := l.Must(t, "client"), l.Must(t, testenv.Gateway)
	both := func(what string, forwards bool) {
		t.Helper()
		for _, to := range []string{"10.10.2.2", "fd10:2::2"} {
			testenv.Eventually(t, 10*time.Second, func() error {
				if pings(t, client, to) != forwards {
					return fmt.Errorf("%s: answers from %s: %v", what, to, !forwards)
				}
				return nil
			})
		}
	}
	c := write(t, labRouted, labPolicy)
	block := func(file string) (notes []string, err error) {
		return notes, gw.Do(func() error { notes, err = Block(file, false); return err })
	}
	detach := func() (found bool) {
		t.Helper()
		if err := gw.Do(func() (err error) { found, err = dataplane.Detach(); return err }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	turnOn := func() {
		for _, name := range []string{"ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"} {
			sysctl(t, gw, name, "0")
			sysctl(t, gw, name, "1")
		}
	}

	turnOn()
	both("without a block", true)
	if notes, err := block(c.File); err != nil || len(notes) > 0 {
		t.Fatalf("%v, %v", notes, err)
	}
	both("blocked", false)
	turnOn()
	both("blocked, and forwarding turned on again", false)
	if !pings(t, client, "10.10.1.1") {
		t.Error("the gateway itself does not answer")
	}
	if _, err := block(c.File); err != nil { // once more is no mistake
		t.Error(err)
	}

	// Devices that come later, and others than ports.
	late := must(l.Must(t, "server").StartCapture("s0", testenv.CaptureOptions{Match: func(frame []byte) bool {
		return len(frame) > 37 && frame[12] == 8 && frame[23] == 17 && frame[37] == 99
	}}))
	for _, line := range []string{
		"-n t-lab-bar-gw link add near type veth peer name n0 netns t-lab-bar-client",
		"-n t-lab-bar-gw link set near up", "-n t-lab-bar-client link set n0 up", "-n t-lab-bar-gw addr add 10.10.9.1/24 dev near",
	} {
		ip(t, line)
	}
	sender := must(client.OpenSender("n0"))
	defer sender.Close()
	w := way{srcMAC: must(client.MAC("n0")), dstMAC: must(gw.MAC("near")), src: netip.MustParseAddr("10.10.9.2"), dst: server4}
	for range 5 {
		if err := sender.Send(w.udp(t, 4000, 99, []byte("late"))); err != nil {
			t.Fatal(err)
		}
	}

	g := runIn(t, l, c)
	both("a gateway runs", true)
	if _, err := block(c.File); err == nil || !strings.Contains(err.Error(), "has been started") {
		t.Errorf("a block under a gateway: %v", err)
	}
	g.stop()
	if n, err := late.Stop(); n > 0 || err != nil {
		t.Errorf("%d packets from a device that came later were forwarded (%v)", n, err)
	}

	// Without a configuration it blocks all the same, and says what it leaves.
	both("opened", true)
	if notes, err := block(c.File + ".not"); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "bridges are left alone") {
		t.Errorf("%v, %v", notes, err)
	}
	both("blocked without a configuration", false)
	if !detach() {
		t.Error("detach has found nothing")
	}
	both("detached", true)
	if detach() {
		t.Error("detach has found something twice")
	}
}

// Where ports are members of a bridge, with which no gateway starts, a block holds there too; other
// bridges are left alone.
func TestLabBarrierOfBridges(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: "t-lab-barb"})
	client, gw := l.Must(t, "client"), l.Must(t, testenv.Gateway)
	to := serverAddresses(l)[0].String()
	for _, line := range []string{
		"-n t-lab-barb-gw link add br0 type bridge", "-n t-lab-barb-gw link set br0 up",
		"-n t-lab-barb-gw link set lan master br0", "-n t-lab-barb-gw link set wan master br0",
	} {
		ip(t, line)
	}
	bridges := func(what string, want bool) {
		t.Helper()
		testenv.Eventually(t, 10*time.Second, func() error {
			if pings(t, client, to) != want {
				return fmt.Errorf("%s: answers %v", what, !want)
			}
			return nil
		})
	}
	bridges("without a block", true)
	c := write(t, labInline, labPolicy)
	block := func() {
		t.Helper()
		if err := gw.Do(func() error { _, err := Block(c.File, false); return err }); err != nil {
			t.Fatal(err)
		}
	}
	block()
	bridges("blocked", false)
	text := must(os.ReadFile(c.File))
	if err := os.WriteFile(c.File, []byte(strings.NewReplacer("device: lan", "device: x0", "device: wan", "device: x1").Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	block()
	bridges("a block of other ports", true)
}
