package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/testenv"
)

// What a log that was killed had taken and not written is known to the next; what it wrote is not.
func TestEventAccount(t *testing.T) {
	var credit dataplane.Credit
	e, _ := openTestEvents(t, 1<<20)
	e.gateway("early", "")
	stopWriter(e) // which writes what it has
	e.gateway("before the account", "")
	e.keepAccount(&credit)
	for range 10 {
		e.gateway("taken", "")
	}
	if credit.Taken != 11 || credit.Settled != 0 {
		t.Errorf("%+v, want 11 taken", credit)
	}
	e.drain()
	if credit.Taken != 11 || credit.Settled != 11 {
		t.Errorf("%+v, want 11 settled", credit)
	}
	for range 5 {
		e.gateway("never written", "")
	}
	// It is killed here.
	next, _ := openTestEvents(t, 1<<20)
	next.keepAccount(&credit)
	var s EventStatus
	if next.status(&s); s.Lost != 5 || credit.Taken != credit.Settled {
		t.Errorf("%+v, %+v, want 5 lost", s, credit)
	}
	if err := next.close(); err != nil {
		t.Error(err)
	}
	next.gateway("behind the end", "") // no account: its memory may be gone
	if credit.Taken != 16 {
		t.Errorf("%+v", credit)
	}
}

// Flows of a rule that logs begin, and the gateway is killed at any moment: each begin is in the file, or
// counted as lost or as left out. So it is where the next start takes over, and where it begins afresh.
func TestLabKilledEvents(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, thisVersion)
	other := buildSoftdpu(t, otherLayout)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-ke"})
	client, gw := l.Must(t, "client"), l.Must(t, testenv.Gateway)
	c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1), endsPolicy)
	sender := must(client.OpenSender("c0"))
	defer sender.Close()
	w := way{srcMAC: must(client.MAC("c0")), dstMAC: must(gw.MAC("lan")), src: client4, dst: server4}
	port := uint16(1024)
	begin := func(flows int) {
		t.Helper()
		for range flows {
			port++
			if err := sender.Send(w.udp(t, port, 7, []byte("begin"))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Microsecond)
		}
	}

	p := startProcess(t, gw, binary, c)
	p.ready(t)
	lost := 0
	for i, next := range []string{binary, binary, other} {
		begin(150 + 100*i)
		testenv.Eventually(t, 10*time.Second, func() error {
			if n := (&testGateway{Client: p.Client}).rule(t, "out").Judged; int(n) < int(port)-1024 {
				return fmt.Errorf("%d of %d flows have begun", n, int(port)-1024)
			}
			return nil
		})
		p.kill()
		begin(50) // into the ring
		p = startProcess(t, gw, next, c)
		p.ready(t)
		g := &testGateway{Client: p.Client}
		testenv.Eventually(t, 10*time.Second, func() error {
			written := 0
			for _, e := range lines(t, c.Events.File) {
				if e["softdpu"].(map[string]any)["event"] == "flow-start" {
					written++
				}
			}
			s, left := must(p.Status(t.Context())).Events, int(g.rule(t, "out").Unlogged)
			sum, flows := written+lost+int(s.Lost)+left, int(port)-1024
			if sum < flows {
				return fmt.Errorf("%d in the file, %d lost and %d left out are fewer than %d", written, lost+int(s.Lost), left, flows)
			}
			// One batch may have been written, and the process killed before it knew.
			if sum > flows+300 || next == other && s.Lost < 50 {
				t.Fatalf("%d in the file, %d lost and %d left out of %d", written, lost+int(s.Lost), left, flows)
			}
			return nil
		})
		lost += int(must(p.Status(t.Context())).Events.Lost)
	}
	t.Logf("%d flows began, %d of these events are lost", port-1024, lost)
}
