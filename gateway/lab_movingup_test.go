package gateway

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// addMonitor joins a port of the gateway that nothing comes from to a device of the server's.
func addMonitor(t *testing.T, l *testenv.Lab, queues int) {
	t.Helper()
	gw, server := l.Must(t, testenv.Gateway).Name(), l.Must(t, "server").Name()
	ip(t, fmt.Sprintf("link add mon netns %s numtxqueues %d numrxqueues %[2]d type veth peer name m0 netns %s numtxqueues %[2]d numrxqueues %[2]d", gw, queues, server))
	for _, end := range [][2]string{{gw, "mon"}, {server, "m0"}} {
		sysctl(t, must(testenv.OpenNamespace(end[0])), "ipv6/conf/"+end[1]+"/disable_ipv6", "1")
		ip(t, "-n "+end[0]+" link set "+end[1]+" up")
	}
	ip(t, "netns exec "+server+" ethtool -K m0 gro on")
}

// movingPolicy has the first four packets of each flow looked at.
const movingPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.10.1.0/24, "fd10:1::/64"]}
  wan: {ports: [wan]}
rules:
  - {name: looked-at, from: {zone: lan}, to: {zone: wan}, service: udp/1024-65535, action: allow, mirror: {port: mon, packets: 4}}
`

// Flows whose first packets a worker has to see go on in XDP afterwards. While ten thousand move up, under
// load and with packets of both directions on their way, none is lost, doubled or out of order.
func TestLabMovingUp(t *testing.T) {
	const packets, window = 12, 25 // of a flow, in each direction; flows at once
	flows := sized(1000, 10_000)
	// Nobody's, so that nobody answers.
	near, far := netip.MustParseAddr("10.10.1.99"), netip.MustParseAddr("10.10.2.99")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-mu", Queues: 2})
	addMonitor(t, l, 2)
	config := strings.Replace(labRouted, "wan: {device: wan}}", "wan: {device: wan}, mon: {device: mon}}", 1)
	r := newRigIn(t, l, testenv.Options{}, config, movingPolicy)

	ends := []*movingEnd{
		{from: r.client, device: "c0", gateway: "lan", to: r.server, arrival: "s0"},
		{from: r.server, device: "s0", gateway: "wan", to: r.client, arrival: "c0"},
	}
	for i, e := range ends {
		e.way = way{srcMAC: must(e.from.MAC(e.device)), dstMAC: must(r.gw.MAC(e.gateway)), src: near, dst: far}
		if e.back = i == 1; e.back {
			e.way.src, e.way.dst = far, near
		}
		e.sent = make([]uint16, flows)
		e.sender = must(e.from.OpenSender(e.device))
		defer e.sender.Close()
		e.seen = make([][]uint16, flows)
		e.capture = must(e.to.StartCapture(e.arrival, testenv.CaptureOptions{Match: e.look, Keep: 1}))
	}
	copies := must(r.server.StartCapture("m0", testenv.CaptureOptions{Match: func(frame []byte) bool { _, _, ok := movingMark(frame); return ok }, Keep: 1}))
	for _, n := range []struct {
		ns           *testenv.Namespace
		device, port string
		a            netip.Addr
	}{{r.client, "c0", "lan", near}, {r.server, "s0", "wan", far}} {
		ip(t, fmt.Sprintf("-n %s neigh replace %s lladdr %s dev %s nud permanent", r.gw.Name(), n.a, must(n.ns.MAC(n.device)), n.port))
	}
	// XDP sends by the queue of the CPU that it runs on, which is the sender's here, and what a veth has in two queues
	// may change places at the far end.
	runtime.LockOSThread() // and never give it back: its CPU is set
	pin(t, 0)
	before := r.tally(t)
	// What a busy machine costs: a worker that gets no CPU for 50 ms lets nothing pass, and that is counted.
	starved := func() int { return int(r.tally(t).since(before).drops["worker-full"]) }
	arrive := func(from ...*movingEnd) {
		t.Helper()
		missing := func() (n int) {
			for _, e := range from {
				n += e.missing()
			}
			return n
		}
		for end := time.Now().Add(time.Second); missing() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if missing() == 0 {
			return
		}
		testenv.Eventually(t, 10*time.Second, func() error {
			if n := missing(); n > starved()-ends[0].lost-ends[1].lost {
				return fmt.Errorf("%d packets are missing: %s", n, r.tally(t).since(before))
			}
			return nil
		})
		for _, e := range from {
			e.lost += e.missing()
		}
	}
	for first := 0; first < flows; first += window {
		each := func(ends ...*movingEnd) {
			for f := first; f < min(first+window, flows); f++ {
				for _, e := range ends {
					e.send(t, f)
				}
			}
		}
		each(ends[0])
		arrive(ends[0]) // the other end's packets open no flow
		for n := range packets {
			each(ends...)
			if n%4 == 3 {
				arrive(ends...) // or the rings of the devices overflow
			}
		}
	}
	// XDP takes a leg with a packet that comes when no other is under way, which may be one more.
	testenv.Eventually(t, 20*time.Second, func() error {
		late := must(r.Flows(t.Context(), "tier worker", 0))
		for _, l := range late {
			for _, e := range ends {
				e.send(t, int(l.SrcPort)-2000+5000*(int(l.DestPort)-20000))
			}
		}
		if len(late) > 0 {
			return fmt.Errorf("%d flows are with workers, such as %+v", len(late), late[0])
		}
		return nil
	})
	arrive(ends...)
	total, missing := uint64(0), 0
	for _, e := range ends {
		total += uint64(e.total())
		missing += e.lost
		if _, err := e.capture.Stop(); err != nil {
			t.Fatal(err)
		}
		e.judge(t)
	}
	n := r.tally(t).since(before)
	if dropped := n.drops["worker-full"]; missing != int(dropped) || dropped > total/100 || len(n.drops) > 1 || len(n.drops) == 1 && dropped == 0 {
		t.Errorf("%d packets are missing: %s", missing, n)
	}
	_ = copies.Wait(limited(t, 5*time.Second), 4*flows) // how many are missing is said below
	mirrored, err := copies.Stop()
	if err != nil {
		t.Fatal(err)
	}
	var taken, moved, copied, lost uint64
	testenv.Eventually(t, 5*time.Second, func() error { // what they have counted is published a moment later
		taken, moved, copied, lost = 0, 0, 0, 0
		for _, w := range must(r.Workers(t.Context())).Workers {
			taken, moved, copied, lost = taken+w.Packets, moved+w.MovedUp, copied+w.Mirrored, lost+w.MirrorLost
		}
		if moved != uint64(flows) || taken < uint64(4*flows) || taken > total*3/4 {
			return fmt.Errorf("%d of %d packets went through workers, %d of %d flows moved up", taken, total, moved, flows)
		}
		return nil
	})
	if mirrored != 4*flows {
		t.Errorf("%d copies at the monitor, %d sent and %d lost, want the first 4 of each of %d flows", mirrored, copied, lost, flows)
	}
	t.Logf("%d flows: %d of %d packets went through workers, %d flows moved up, %d copies", flows, taken, total, moved, mirrored)
	if up := must(r.Flows(t.Context(), "rule looked-at and tier xdp", 0)); len(up) != flows {
		t.Errorf("%d of %d flows live in XDP", len(up), flows)
	}
}

// A movingEnd sends one direction of all flows and sees it arrive.
type movingEnd struct {
	from, to                 *testenv.Namespace
	device, gateway, arrival string
	way                      way
	back                     bool // towards who opened the flows
	sender                   *testenv.Sender
	capture                  *testenv.Capture
	sent                     []uint16 // how many of each flow
	lost                     int      // packets that are known not to arrive

	mu   sync.Mutex
	seen [][]uint16 // numbers of each flow, as they arrived
}

// movingMark returns flow and number of a frame that a movingEnd sent.
func movingMark(frame []byte) (flow uint32, n uint16, ok bool) {
	const at = 14 + 20 + 8
	if len(frame) < at+13 || string(frame[at:at+7]) != "moving " || frame[23] != unix.IPPROTO_UDP {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(frame[at+7:]), binary.BigEndian.Uint16(frame[at+11:]), true
}

// send sends the next packet of a flow.
func (e *movingEnd) send(t *testing.T, flow int) {
	t.Helper()
	b := binary.BigEndian.AppendUint32([]byte("moving "), uint32(flow))
	b = binary.BigEndian.AppendUint16(b, e.sent[flow])
	e.sent[flow]++
	// Both ports tell flows apart: there are not enough of one.
	sport, dport := uint16(2000+flow%5000), uint16(20000+flow/5000)
	if e.back {
		sport, dport = dport, sport
	}
	if err := e.sender.Send(e.way.udp(t, sport, dport, b)); err != nil {
		t.Fatal(err)
	}
}

// total is how many packets were sent.
func (e *movingEnd) total() (n int) {
	for _, sent := range e.sent {
		n += int(sent)
	}
	return n
}

// missing is how many packets may still arrive.
func (e *movingEnd) missing() int { return e.total() - e.capture.Count() - e.lost }

func (e *movingEnd) look(frame []byte) bool {
	flow, n, ok := movingMark(frame)
	if !ok || int(flow) >= len(e.seen) {
		return false
	}
	e.mu.Lock()
	e.seen[flow] = append(e.seen[flow], n)
	e.mu.Unlock()
	return true
}

// judge says what of each flow is doubled or out of order.
func (e *movingEnd) judge(t *testing.T) {
	t.Helper()
	wrong := 0
	for f, seen := range e.seen {
		for i := 1; i < len(seen); i++ {
			if seen[i] <= seen[i-1] {
				if wrong++; wrong <= 5 {
					t.Errorf("flow %d from %s arrived as %v", f, e.device, seen)
				}
				break
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d flows from %s did not arrive as they were sent", wrong, len(e.seen), e.device)
	}
}
