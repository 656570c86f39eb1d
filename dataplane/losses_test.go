package dataplane

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// A worker who takes nothing loses what does not fit into its ring: behind XDP's back, and counted.
func TestLostBeforeTheWorker(t *testing.T) {
	p, d, _, send, _ := inlineDesk(t, testenv.Options{}) // a ring for 64
	for _, note := range p.Notes() {
		if strings.Contains(note, "not counted") {
			t.Errorf("the plane says %q", note)
		}
	}
	d.serve(1 << 20)
	const sent = 1000
	for i := range sent {
		send(1, 4000)
		if i%64 != 63 { // a veth queue is 256 long
			continue
		}
		testenv.Eventually(t, 5*time.Second, func() error {
			if n := atomic.LoadUint32(&d.queue.Sent); n <= uint32(i) {
				return fmt.Errorf("%d packets of %d have come", n, i+1)
			}
			return nil
		})
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := atomic.LoadUint32(&d.queue.Sent); n != sent {
			return fmt.Errorf("%d packets of %d have come", n, sent)
		}
		return nil
	})
	taken := len(d.wait(t, 64))
	lost, counted := atomic.LoadUint32(&d.queue.Lost), dropped(t, p, bpf.XDPReasonREASON_WORKER_FULL)
	t.Logf("%d sent, %d taken, %d lost", sent, taken, lost)
	if lost == 0 || uint32(taken)+lost != sent || uint64(lost) != counted {
		t.Errorf("of %d packets %d were taken, %d were lost, and %d counted as worker-full", sent, taken, lost, counted)
	}
}

// A port that takes no more loses packets behind XDP's back, and those are counted. So are those for a port
// that cannot send for XDP.
func TestLostBeforeThePort(t *testing.T) {
	const room = 50 // packets
	g := newGateway(t, "inline")
	var tap *os.File
	g.do(t, func() error {
		link := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: "tap0", TxQLen: room}, Mode: netlink.TUNTAP_MODE_TAP,
			Queues: 1, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE, NonPersist: true,
		}
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("make a TAP device: %w", err)
		}
		tap = link.Fds[0]
		return errors.Join(netlink.LinkSetTxQLen(link, room), netlink.LinkSetUp(link))
	})
	defer tap.Close()
	p := g.plane(t)
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	err := p.Attach([]PortConfig{
		{Name: "lan0", Device: "lan", Zone: 2, Peer: "wan0"}, {Name: "wan0", Device: "tap0", Zone: 3, Peer: "lan0", FixOffloads: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	client := g.lab.Must(t, "client")
	mac, err := client.MAC("c0")
	if err != nil {
		t.Fatal(err)
	}
	sender, err := client.OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	frame := datagram(t, mac, mac, "10.10.1.2", "10.10.1.3", 4000, text)
	send := func(n int, counted func() uint64) {
		t.Helper()
		for range n {
			if err := sender.Send(frame); err != nil {
				t.Fatal(err)
			}
		}
		testenv.Eventually(t, 5*time.Second, func() error {
			if got := counted(); got < uint64(n) {
				return fmt.Errorf("%d packets of %d are accounted for; dropped: %v", got, n, dropReasons(p))
			}
			return nil
		})
	}
	held := uint64(0)
	read := func() uint64 {
		b := make([]byte, 2048)
		for {
			n, err := unix.Read(int(tap.Fd()), b)
			if err != nil {
				return held
			}
			if n == len(frame) {
				held++
			}
		}
	}
	if err := unix.SetNonblock(int(tap.Fd()), true); err != nil {
		t.Fatal(err)
	}
	full := func() uint64 { return dropped(t, p, bpf.XDPReasonREASON_EGRESS_FULL) }
	const sent = 200
	lost := uint64(0)
	send(sent, func() uint64 {
		if lost = full(); lost == 0 {
			return 0
		}
		if flow := flowOf(t, p, frame, 1<<12); flow.Packets[0] < sent {
			return 0 // nothing is read before all have been sent
		}
		return read() + full()
	})
	t.Logf("%d sent, %d in the ring, %d lost", sent, held, full())
	if held < room/2 || held > 2*room || held+full() != sent {
		t.Errorf("of %d packets %d are in the ring, %d lost", sent, held, full())
	}

	// Whether the device is up is for the kernel to know until somebody tells the plane.
	if err := g.ns.SetUp("tap0", false); err != nil {
		t.Fatal(err)
	}
	send(10, func() uint64 { return dropped(t, p, bpf.XDPReasonREASON_EGRESS_DOWN) })
}
