package gateway

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

const leakPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.10.1.0/24, "fd10:1::/64"]}
  wan: {ports: [wan]}
rules:
  - {name: open, from: {zone: lan}, to: {zone: wan}, service: [udp/5000, tcp/5000], action: allow}
  - {name: host, from: {zone: lan}, to: host, service: [udp/5000, udp/7000], action: allow}
  - {name: refused, from: {zone: lan}, to: {zone: wan}, service: udp/6000, action: deny}
  - {name: rejected, from: {zone: lan}, to: {zone: wan}, service: tcp/6001, action: reject}
`

// Marks in the payload of what may reach the far side and of what may not. Every piece of a fragmented
// packet holds one.
const (
	markAllowed = "<passed>"
	markDenied  = "<denied>"
)

// A target is where packets are sent to.
type target struct {
	name    string
	dst     [2]netip.Addr    // IPv4, IPv6
	mac     net.HardwareAddr // nil: as its address asks
	ttl     uint8            // 0 is 64
	arrives bool             // what is allowed reaches the far side
}

func both(v4, v6 string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
}

// What is denied does not arrive, by whatever way it is sent, while what is allowed goes on; nor does it
// when the kernel forwards beside us.
func TestLabLeak(t *testing.T) {
	stranger := net.HardwareAddr{2, 0, 0, 0, 0, 0x99}
	t.Run("routed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-lr"}, labRouted, leakPolicy)
		ip(t, "-n "+r.gw.Name()+" route add 10.99.0.1/32 via 10.10.2.2")
		ip(t, "-n "+r.gw.Name()+" -6 route add fd99::1/128 via fd10:2::2")
		leak(t, r, false, []target{
			{name: "server", dst: both("10.10.2.2", "fd10:2::2"), arrives: true},
			{name: "host route", dst: both("10.99.0.1", "fd99::1"), arrives: true},
			{name: "directed broadcast, anycast", dst: both("10.10.2.255", "fd10:2::")},
			{name: "limited broadcast, all nodes", dst: both("255.255.255.255", "ff02::1")},
			{name: "multicast", dst: both("239.1.2.3", "ff05::1:3")},
			{name: "unresolved neighbour", dst: both("10.10.2.99", "fd10:2::99")},
			{name: "TTL 1", dst: both("10.10.2.2", "fd10:2::2"), ttl: 1},
			{name: "gateway", dst: both("10.10.1.1", "fd10:1::1")},
			{name: "gateway's far side", dst: both("10.10.2.1", "fd10:2::1")},
			{name: "no route", dst: both("192.0.2.1", "2001:db8::1")},
			{name: "another MAC", dst: both("10.10.2.2", "fd10:2::2"), mac: stranger},
		})
	})
	t.Run("inline", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "inline", testenv.Options{Prefix: "t-lab-li"}, labInline, leakPolicy)
		leak(t, r, true, []target{
			{name: "server", dst: both("10.10.1.3", "fd10:1::3"), arrives: true},
			{name: "directed broadcast, anycast", dst: both("10.10.1.255", "fd10:1::"), arrives: true},
			{name: "limited broadcast, all nodes", dst: both("255.255.255.255", "ff02::1"), arrives: true},
			{name: "multicast", dst: both("239.1.2.3", "ff05::1:3"), arrives: true},
			{name: "another MAC", dst: both("10.10.1.99", "fd10:1::99"), mac: stranger, arrives: true},
			{name: "TTL 1", dst: both("10.10.1.3", "fd10:1::3"), ttl: 1, arrives: true},
			{name: "gateway's MAC", dst: both("192.0.2.1", "2001:db8::1"), mac: must(r.gw.MAC("lan")), arrives: true},
		})
	})
}

// A far is the capture on the far side.
type far struct {
	*testenv.Capture
	seen []atomic.Bool // by number of the allowed packet
}

// watch captures what a leak test sends. Only what is denied is kept.
func watch(t *testing.T, r *rig, allowed int) *far {
	f := &far{seen: make([]atomic.Bool, allowed)}
	c, err := r.server.StartCapture("s0", testenv.CaptureOptions{Keep: 20, Match: func(frame []byte) bool {
		if i := bytes.Index(frame, []byte(markAllowed)); i >= 0 && len(frame) >= i+12 {
			if n := binary.BigEndian.Uint32(frame[i+8:]); int(n) < len(f.seen) {
				f.seen[n].Store(true)
			}
		}
		return bytes.Contains(frame, []byte(markDenied))
	}})
	if err != nil {
		t.Fatal(err)
	}
	f.Capture = c
	return f
}

// A flood sends packets that are denied and packets that are allowed.
type flood struct {
	*testing.T
	sender  *testenv.Sender
	far     *far
	client  net.HardwareAddr
	next    net.HardwareAddr // of what is routed
	allowed uint32           // sent
	denied  int
	arrives []bool // by number of the allowed packet
	fragID  uint32
}

func leak(t *testing.T, r *rig, inline bool, targets []target) {
	bursts := sized(40, 400)
	f := &flood{
		T: t, sender: must(r.client.OpenSender("c0")), client: must(r.client.MAC("c0")),
		far: watch(t, r, 2*2*bursts*len(targets)*(allowedPerBurst+1)+1),
	}
	defer f.sender.Close()
	if inline {
		f.next = must(r.server.MAC("s0"))
	} else {
		f.next = must(r.gw.MAC("lan"))
	}
	before := r.tally(t)
	for _, beside := range []bool{false, true} {
		if beside {
			// As an operator has it who lets the kernel route too, directed broadcasts included.
			for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv4/conf/all/bc_forwarding", "ipv4/conf/lan/bc_forwarding"} {
				sysctl(t, r.gw, name, "1")
			}
		}
		for _, to := range targets {
			for family := range 2 {
				for range bursts {
					f.burst(targets[0], to, family)
				}
			}
		}
	}
	time.Sleep(500 * time.Millisecond) // what the kernel still holds comes out
	leaks, err := f.far.Stop()
	if err != nil {
		t.Fatal(err)
	}
	n := r.tally(t).since(before)
	t.Logf("%d denied and %d allowed packets to %d targets: %d denied arrived; %s", f.denied, f.allowed, len(targets), leaks, n)
	for _, frame := range f.far.Frames() {
		t.Errorf("a denied packet arrived: %v", gopacket.NewPacket(frame.Data, layers.LayerTypeEthernet, gopacket.Default))
	}
	lost, strays := 0, 0
	for i, arrives := range f.arrives {
		switch seen := f.far.seen[i].Load(); {
		case arrives && !seen:
			lost++
		case !arrives && seen:
			strays++
		}
	}
	if lost > 0 || strays > 0 {
		t.Errorf("of %d allowed packets %d did not arrive, and %d that cannot be delivered did", f.allowed, lost, strays)
	}
	for _, reason := range []string{"deny", "no-rule-matched", "reject", "not-syn", "spoofed", "vlan-unknown", "fragment-no-first"} {
		if n.drops[reason] == 0 {
			t.Errorf("nothing was dropped as %s: %v", reason, n.drops)
		}
	}
	if !inline && n.drops["kernel-bypass"] == 0 {
		t.Errorf("the kernel tried to forward no broadcast, so nothing was shown of it: %v", n.drops)
	}
}

const allowedPerBurst = 8

// burst sends, to one target, every kind of denied packets among allowed ones, and then an allowed packet
// to the first target, for which it waits: the rings between here and there hold 256 frames.
func (f *flood) burst(first, to target, family int) {
	f.Helper()
	for range allowedPerBurst {
		w := f.way(to, family)
		for _, frame := range f.forbidden(w) {
			f.denied++
			f.send(frame)
		}
		f.permit(w, to.arrives)
	}
	f.permit(f.way(first, family), true)
	for end := time.Now().Add(testenv.Patience(5 * time.Second)); !f.far.seen[f.allowed-1].Load(); time.Sleep(20 * time.Microsecond) {
		if time.Now().After(end) {
			f.Fatalf("allowed packet %d, behind those to %s, did not arrive", f.allowed-1, to.name)
		}
	}
}

func (f *flood) send(frame []byte) {
	f.Helper()
	if err := f.sender.Send(frame); err != nil {
		f.Fatal(err)
	}
}

// permit sends the next allowed packet.
func (f *flood) permit(w way, arrives bool) {
	f.Helper()
	payload := binary.BigEndian.AppendUint32([]byte(markAllowed), f.allowed)
	// Flows come and go.
	f.send(w.udp(f, uint16(1024+f.allowed%5000), 5000, payload))
	f.allowed++
	f.arrives = append(f.arrives, arrives)
}

func (f *flood) way(to target, family int) way {
	w := way{srcMAC: f.client, dstMAC: to.mac, src: [2]netip.Addr{client4, client6}[family], dst: to.dst[family], ttl: to.ttl}
	if w.dstMAC == nil {
		w.dstMAC = f.next
		b := w.dst.AsSlice()
		switch {
		case w.dst == netip.MustParseAddr("255.255.255.255"):
			w.dstMAC = net.HardwareAddr{255, 255, 255, 255, 255, 255}
		case w.dst.IsMulticast() && family == 0:
			w.dstMAC = net.HardwareAddr{1, 0, 0x5e, b[1] & 127, b[2], b[3]}
		case w.dst.IsMulticast():
			w.dstMAC = net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
		}
	}
	return w
}

// forbidden returns one packet of each kind that may not reach the far side.
func (f *flood) forbidden(w way) [][]byte {
	payload := bytes.Repeat([]byte(markDenied), 8)
	f.fragID++
	sport := uint16(10_000 + f.fragID%2000)
	spoofed, tagged := w, w
	spoofed.src = [2]netip.Addr{netip.MustParseAddr("10.10.5.5"), netip.MustParseAddr("fd10:5::5")}[f.family(w)]
	tagged.vlan = 10
	refused := w.fragments(f, f.fragID, 24, w.udp(f, sport, 6000, payload))
	// The later fragment goes alone; its like would be allowed.
	orphan := w.fragments(f, f.fragID^1<<15, 24, w.udp(f, sport, 5000, payload))
	return [][]byte{
		w.udp(f, sport, 6000, payload),
		w.udp(f, sport, 6500, payload),
		w.udp(f, sport, 7000, payload), // the host's alone
		w.tcp(f, sport, 6001, "S", 1, 0, payload),
		w.tcp(f, sport, 5000, "A", 1, 1, payload),
		w.tcp(f, sport, 5000, "R", 1, 0, payload),
		w.echo(f, sport, 1, payload),
		w.frame(f, 253, gopacket.Payload(payload)),
		spoofed.udp(f, sport, 5000, payload),
		tagged.udp(f, sport, 5000, payload),
		refused[0], refused[1], orphan[1],
	}
}

func (f *flood) family(w way) int {
	if w.src.Is6() {
		return 1
	}
	return 0
}

// What the kernel would send by a port without XDP's word is dropped.
func TestLabKernelBypass(t *testing.T) {
	const count = 1000
	payload := []byte(markDenied)
	// Sends each way's packet that often, and expects that answer of every send.
	send := func(t *testing.T, ns *testenv.Namespace, device string, want error, ways ...way) {
		t.Helper()
		index := must(ns.Index(device))
		err := ns.Do(func() error {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			for _, w := range ways {
				frame := w.udp(t, 1024, 5000, payload)
				for i := range count {
					if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index}); err != want {
						return fmt.Errorf("send frame %d: %v, want %v", i, err, want)
					}
					if i%50 == 49 {
						time.Sleep(time.Millisecond) // the ring takes 256
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	expect := func(t *testing.T, r *rig, before tally, f *far, reason string, want uint64) {
		t.Helper()
		testenv.Eventually(t, 5*time.Second, func() error { // the kernel has them a moment later
			if n := r.tally(t).since(before); n.drops[reason] < want {
				return fmt.Errorf("dropped %v, want %d for %s", n.drops, want, reason)
			}
			return nil
		})
		leaks, err := f.Stop()
		n := r.tally(t).since(before)
		if err != nil || leaks > 0 || n.drops[reason] != want || len(n.drops) != 1 {
			t.Errorf("%d arrived (%v), dropped %v, want %d for %s", leaks, err, n.drops, want, reason)
		}
		t.Logf("%d arrived; %s", leaks, n)
	}
	t.Run("by another device", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-ko"}, labRouted, leakPolicy)
		ip(t, fmt.Sprintf("link add x0 netns %s type veth peer name x1 netns %s", r.gw.Name(), r.client.Name()))
		ip(t, "-n "+r.gw.Name()+" addr add 10.10.7.1/24 dev x0")
		ip(t, "-n "+r.gw.Name()+" addr add fd10:7::1/64 dev x0 nodad")
		ip(t, "-n "+r.gw.Name()+" link set x0 up")
		ip(t, "-n "+r.client.Name()+" link set x1 up")
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			sysctl(t, r.gw, name, "1")
		}
		w4 := way{srcMAC: must(r.client.MAC("x1")), dstMAC: must(r.gw.MAC("x0")), src: netip.MustParseAddr("10.10.7.2"), dst: server4}
		w6 := w4
		w6.src, w6.dst = netip.MustParseAddr("fd10:7::2"), server6
		// What the kernel forwards it has to find the neighbours for.
		for _, host := range []netip.Addr{server4, server6} {
			ip(t, fmt.Sprintf("-n %s neigh replace %s lladdr %s dev wan nud permanent", r.gw.Name(), host, must(r.server.MAC("s0"))))
		}
		f, before := watch(t, r, 1), r.tally(t)
		send(t, r.client, "x1", nil, w4, w6)
		expect(t, r, before, f, "kernel-bypass", 2*count)
	})
	t.Run("by a process of the gateway", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-kp"}, labRouted, leakPolicy)
		w4 := way{srcMAC: must(r.gw.MAC("wan")), dstMAC: must(r.server.MAC("s0")), src: client4, dst: server4}
		w6 := w4
		w6.src, w6.dst = client6, server6
		f, before := watch(t, r, 1), r.tally(t)
		send(t, r.gw, "wan", unix.ENOBUFS, w4, w6)
		expect(t, r, before, f, "no-rule-matched", 2*count)
	})
	t.Run("by a process beside a cable", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "inline", testenv.Options{Prefix: "t-lab-ki"}, labInline, leakPolicy)
		w4 := way{srcMAC: must(r.client.MAC("c0")), dstMAC: must(r.server.MAC("s0")), src: client4, dst: netip.MustParseAddr("10.10.1.3")}
		w6 := w4
		w6.src, w6.dst = client6, netip.MustParseAddr("fd10:1::3")
		f, before := watch(t, r, 1), r.tally(t)
		send(t, r.gw, "wan", unix.ENOBUFS, w4, w6)
		expect(t, r, before, f, "kernel-bypass", 2*count)
	})
}
