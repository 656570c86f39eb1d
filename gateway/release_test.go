package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/testenv"
)

// Starts with other rules each time, and never a reload: the numbers of those that are gone become free
// once no flow bears them, and what such a number counted is not another rule's.
func TestLabNumbersAreFree(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-nr"})
	client, gw := l.Must(t, "client"), l.Must(t, testenv.Gateway)
	echo := must(l.Must(t, "server").ListenPacket(t.Context(), "udp", "10.10.2.2:7"))
	defer echo.Close()
	from := must(client.ListenPacket(t.Context(), "udp", "10.10.1.2:0"))
	defer from.Close()
	config := strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1)
	var ahead atomic.Int64
	policy := func(names ...string) string {
		text := strings.SplitAfter(lifePolicy, "rules:\n")[0]
		for i, n := range names {
			text += fmt.Sprintf("  - {name: %s, from: {zone: lan}, to: {zone: wan}, service: udp/%d, action: allow}\n", n, 7+i)
		}
		return text
	}
	numbers := func() (text string) {
		if err := gw.Do(func() error {
			saved, err := dataplane.Numbers()
			if err != nil {
				return err
			}
			identities, err := firewall.ReadIdentities(saved.Whole, saved.Since)
			if err != nil {
				return err
			}
			raw, err := identities.MarshalJSON()
			text = string(raw)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return text
	}
	start := func(names ...string) *testGateway {
		return runWith(t, l, write(t, config, policy(names...)), Options{now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	}

	g := start("first", "beside")
	for range 3 {
		if _, err := from.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(server4, 7))); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := g.rule(t, "first").Packets; n != 3 {
			return fmt.Errorf("%d packets are counted", n)
		}
		return nil
	})
	g.stop()
	g = start("second")
	// The flow keeps the first rule's number until its next packet; the other's is borne by nobody.
	ahead.Add(int64(10 * time.Minute))
	testenv.Eventually(t, 10*time.Second, func() error {
		if text := numbers(); strings.Contains(text, `"beside"`) || !strings.Contains(text, `"first"`) {
			return fmt.Errorf("numbers are %s", text)
		}
		return nil
	})
	if n := must(g.KillFlows(t.Context(), "dport 7")); n != 1 {
		t.Errorf("%d flows were there", n)
	}
	ahead.Add(int64(2 * releaseInterval))
	testenv.Eventually(t, 10*time.Second, func() error {
		if text := numbers(); strings.Contains(text, `"first"`) || !strings.Contains(text, `"second"`) {
			return fmt.Errorf("numbers are %s", text)
		}
		return nil
	})
	g.stop()
	g = start("third", "fourth", "second")
	if start := must(g.Status(t.Context())).Start; start.How != startTakeOver {
		t.Errorf("began with %+v\n%s", start, g.log)
	}
	for _, name := range []string{"third", "fourth", "second"} {
		if r := g.rule(t, name); r.Packets != 0 || r.Judged != 0 {
			t.Errorf("counted by a rule without packets: %+v", r)
		}
	}
	g.stop()
	if err := gw.Do(func() error { _, err := dataplane.Detach(); return err }); err != nil {
		t.Error(err)
	}
}
