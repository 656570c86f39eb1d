package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/gateway/sim"
	"github.com/softdpu/softdpu/testenv"
)

// asChild names the function that a test runs in a process of its own, which it makes of this binary.
const asChild = "SOFTDPU_BENCH_CHILD"

func TestMain(m *testing.M) {
	child, ok := map[string]func() error{"xsk": xskChild, "xdpsock": xdpsockChild}[os.Getenv(asChild)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// shortXSK are options of a measurement that is over at once, on a lab of the test's own.
func shortXSK(t *testing.T, name string) XSKOptions {
	t.Helper()
	testenv.RequireRoot(t)
	o := NewXSKOptions(name)
	o.Duration, o.Repeat, o.StateDir = 100*time.Millisecond, 1, t.TempDir()
	o.prefix = fmt.Sprintf("t%d-xsk", os.Getpid())
	o.Progress, o.Live = func(string) {}, func(string) {}
	t.Setenv("PATH", withoutXDPSock())
	return o
}

// measured measures. On a busy machine no worker may run for some time: then it measures longer.
func measured(t *testing.T, o XSKOptions) *Report {
	t.Helper()
	for {
		report, err := XSK(t.Context(), []XSKOptions{o})
		if err == nil {
			return report
		}
		if o.Duration *= 3; o.Duration > 20*time.Second || !strings.Contains(err.Error(), "no packet came through") {
			t.Fatal(err)
		}
	}
}

// withoutXDPSock returns PATH without the folders that hold the peer, which would take whole seconds.
func withoutXDPSock() string {
	return strings.Join(slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "xdpsock"))
		return err == nil
	}), string(filepath.ListSeparator))
}

// TestXSK loads each bench at a rate that any machine bears. What was sent must be what was handled and what
// is counted as lost, to the packet.
func TestXSK(t *testing.T) {
	for _, name := range XSKBenches {
		t.Run(name, func(t *testing.T) {
			o := shortXSK(t, name)
			o.Duration, o.Repeat, o.Rate, o.Flows = 200*time.Millisecond, 2, 20_000, 16
			report := measured(t, o)
			checkReport(t, report, []string{name}, "packets/s")
			checkXSKFields(t, report, name)
			d := report.Results[0].XSK
			lost := d.Drops.Wire + d.Drops.RxRingFull + d.Drops.RxDropped
			if name != TxPush && *d.Sent != d.Handled+lost {
				t.Errorf("of %d packets %d were handled and %d lost: %+v", *d.Sent, d.Handled, lost, d.Drops)
			}
			if name != RxDrop && d.Handled != *d.Returned+d.Drops.TxDevice {
				t.Errorf("of %d packets %d came back and %d were lost: %+v", d.Handled, *d.Returned, d.Drops.TxDevice, d.Drops)
			}
			if d.Handled < 100 || d.Bytes != d.Packets*xskFrame || d.Packets > d.Handled {
				t.Errorf("%d packets handled, %d of them measured, %d bytes", d.Handled, d.Packets, d.Bytes)
			}
			// It may be behind on a busy machine, and makes up for 100 us at most. What waits in the ring when the
			// measurement begins, because the worker had no CPU, is handled in it.
			if r := report.Results[0].Value; r > 1.2*o.Rate+float64(d.RingSize)/o.Duration.Seconds() {
				t.Errorf("%.0f packets a second where %.0f were asked for", r, o.Rate)
			}
			if report.Environment.XDPMode != "copy" || d.Mode != "copy" || report.Environment.Driver != "veth" {
				t.Errorf("mode %s of driver %s, %s in the result", report.Environment.XDPMode, report.Environment.Driver, d.Mode)
			}
			if all := strings.Join(d.Attempts, "\n"); !strings.Contains(all, "queue 0: zero-copy: bind in mode zero-copy") || !strings.Contains(all, "queue 0: copy: granted") {
				t.Errorf("the attempts are not told: %s", all)
			}
			if !strings.Contains(d.PeerWhy, "bpf-examples") || report.Results[0].Peer != "" {
				t.Errorf("of the peer, which is not here, the result says %q", d.PeerWhy)
			}
		})
	}
}

// checkXSKFields checks that what scripts read is in the JSON.
func checkXSKFields(t *testing.T, report *Report, name string) {
	t.Helper()
	raw, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Environment map[string]any
		Results     []struct{ XSK map[string]any }
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	want := []string{"mode", "attempts", "batch", "frame_size", "ring_size", "umem_frames", "page_size", "queues", "cpus", "rate", "flows",
		"seconds", "packets", "bytes", "packets_per_second", "bytes_per_second", "ns_per_packet", "worker_user_ns", "worker_system_ns",
		"softirq_ns", "softirq_worker_ns", "system_calls_per_packet", "handled", "drops"}
	if name != TxPush {
		want = append(want, "sent")
	}
	if name != RxDrop {
		want = append(want, "returned")
	}
	for _, field := range want {
		if _, ok := all.Results[0].XSK[field]; !ok {
			t.Errorf("the result has no %q: %s", field, raw)
		}
	}
	_, counted := all.Results[0].XSK["hardware"]
	if _, why := all.Results[0].XSK["hardware_why"]; counted == why {
		t.Errorf("hardware counters: %s", raw)
	}
	drops, _ := all.Results[0].XSK["drops"].(map[string]any)
	if len(drops) != len(XSKDrops{}.Counters()) || len(drops) < 14 {
		t.Errorf("drops: %v", drops)
	}
	for _, field := range []string{"kernel", "cpu", "driver", "xdp_mode", "attempts", "pinning", "engine", "method", "command_line", "peer_configs"} {
		if v, ok := all.Environment[field]; !ok || v == "" {
			t.Errorf("the environment has no %q", field)
		}
	}
}

// Without a limit the generator must outrun the socket, or it would be the generator that is measured.
func TestXSKAtFullSpeed(t *testing.T) {
	o := shortXSK(t, L2Fwd)
	o.Queues, o.Flows = min(2, len(mustCPUs(t))), 1000
	report := measured(t, o)
	d := report.Results[0].XSK
	if lost := d.Drops.Wire + d.Drops.RxRingFull + d.Drops.RxDropped; *d.Sent != d.Handled+lost || *d.Returned+d.Drops.TxDevice != d.Handled {
		t.Errorf("of %d packets %d were handled, %d came back: %+v", *d.Sent, d.Handled, *d.Returned, d.Drops)
	}
	if d.SystemCalls <= 0 || d.SystemCalls > 2 || d.NsPerPacket <= 0 {
		t.Errorf("%g system calls and %g ns a packet", d.SystemCalls, d.NsPerPacket)
	}
}

func mustCPUs(t *testing.T) []int {
	t.Helper()
	cpus, err := allowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	return cpus
}

// What was measured until Ctrl-C is reported, and said to be that.
func TestXSKInterrupted(t *testing.T) {
	o := shortXSK(t, TxPush)
	o.Duration, o.Repeat = 40*time.Second, 2
	ctx, cancel := context.WithCancel(t.Context())
	o.Live = func(line string) {
		if strings.Contains(line, "part 1 of 2: ") && strings.Contains(line, "Mpps") {
			cancel() // in the middle of the first part
		}
	}
	start := time.Now()
	second := o
	report, err := XSK(ctx, []XSKOptions{o, second})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("it went on for %v", took)
	}
	if !report.Environment.Interrupted || len(report.Results) != 1 || report.Results[0].Rounds != 1 || report.Results[0].Value <= 0 {
		t.Errorf("%+v", report)
	}
	if _, err := XSK(ctx, []XSKOptions{o}); err == nil || !strings.Contains(err.Error(), "interrupted before anything was measured") {
		t.Errorf("interrupted at once: %v", err)
	}
	if labs, err := testenv.List(); err != nil || slices.ContainsFunc(labs, func(s testenv.Status) bool { return s.Prefix == o.prefix }) {
		t.Errorf("the lab is still there: %v %v", labs, err)
	}
}

// On a device of the machine a mode is had or its want explained.
func TestXSKModes(t *testing.T) {
	o := shortXSK(t, RxDrop)
	lab := testenv.New(t, "wire", testenv.Options{MTU: 3000})
	ns := lab.Must(t, "client")
	for _, end := range []*testenv.Namespace{ns, lab.Must(t, "server")} {
		if err := end.Do(silence); err != nil {
			t.Fatal(err)
		}
	}
	o.Interface = "c0"
	for _, tt := range []struct {
		name   string
		change func(*XSKOptions)
		want   string
	}{
		{"features", func(o *XSKOptions) { o.Mode = xsk.ZeroCopy }, "driver veth has no zero-copy (xdp-features 0x"},
		{"packets that do not fit", func(o *XSKOptions) { o.FrameSize = 2048 }, "its MTU of 3000 makes packets of up to 3022 bytes and a frame holds 1792"},
		{"more queues than there are", func(o *XSKOptions) { o.Queues, o.QueuesAsked = 2, true }, "set c0 to 2 queues: it has 1 at most"},
		{"a load for what others load", func(o *XSKOptions) { o.Rate = 1000 }, "takes there what others send"},
		{"nobody sends", func(*XSKOptions) {}, "no packet arrived on c0"},
		{"more CPUs than queues", func(o *XSKOptions) { o.CPUs = []int{0, 0} }, "one CPU for each queue"},
		{"no such CPU", func(o *XSKOptions) { o.CPUs = []int{9999} }, "this process may run on CPUs"},
		{"another socket", func(o *XSKOptions) {}, "another socket holds the queue"}, // the last: it takes the queue
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := o
			tt.change(&o)
			err := ns.Do(func() error {
				if tt.name == "another socket" {
					u, err := xsk.NewUMEM(xsk.UMEMOptions{Mode: xsk.Copy})
					if err != nil {
						return err
					}
					defer u.Close()
					pool, err := u.NewPool(u.Frames())
					if err != nil {
						return err
					}
					s, err := xsk.Open(u, pool, "c0", 0, xsk.SocketOptions{})
					if err != nil {
						return err
					}
					defer s.Close()
				}
				_, err := XSK(t.Context(), []XSKOptions{o})
				return err
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
			if left, _ := os.ReadDir(o.StateDir); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// The device by which this machine may be reached is measured only by force.
func TestXSKDefaultRoute(t *testing.T) {
	o := shortXSK(t, TxPush)
	ns := testenv.New(t, "client-server", testenv.Options{}).Must(t, "client")
	o.Interface = "c0"
	o.Duration = 300 * time.Millisecond
	measure := func() error {
		return ns.Do(func() error { _, err := XSK(t.Context(), []XSKOptions{o}); return err })
	}
	if err := measure(); !errors.Is(err, errDefaultRoute) || !strings.Contains(err.Error(), "--force") {
		t.Errorf("with a default route by it: %v", err)
	}
	o.Force = true
	if err := measure(); err != nil {
		t.Errorf("by force: %v", err)
	}
	o.Force = false
	err := ns.Do(func() error {
		l, err := netlink.LinkByName("c0")
		if err != nil {
			return err
		}
		up := netlink.NewLinkAttrs()
		up.Name, up.ParentIndex = "above", l.Attrs().Index
		above := &netlink.Macvlan{LinkAttrs: up, Mode: netlink.MACVLAN_MODE_BRIDGE}
		if err := netlink.LinkAdd(above); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(above); err != nil {
			return err
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: l.Attrs().Index}, netlink.RT_FILTER_OIF)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Gw != nil {
				if err := netlink.RouteDel(&r); err != nil {
					return err
				}
			}
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: above.Attrs().Index, Scope: netlink.SCOPE_LINK, Table: 77,
			Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := measure(); !errors.Is(err, errDefaultRoute) || !strings.Contains(err.Error(), "by above") {
		t.Errorf("with a default route by a device on top of it, in another table: %v", err)
	}
}

// xskChild is a `bench xsk` that the test kills.
func xskChild() error {
	o := NewXSKOptions(TxPush)
	o.Interface, o.StateDir = os.Getenv("INTERFACE"), os.Getenv("STATE")
	o.Queues, o.QueuesAsked, o.BusyPoll = 1, true, 20*time.Microsecond
	o.Repeat = 1
	var err error
	if o.Duration, err = time.ParseDuration(os.Getenv("DURATION")); err != nil {
		return err
	}
	o.Progress, o.Live = func(s string) { fmt.Println(s) }, func(string) {}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	_, err = XSK(ctx, []XSKOptions{o})
	return err
}

// A device is put back as it was: at the end, upon a signal, and by the next bench after one that was killed.
func TestXSKRestores(t *testing.T) {
	state := shortXSK(t, TxPush).StateDir
	ns := testenv.New(t, "wire", testenv.Options{Queues: 2}).Must(t, "client")
	const untouched = "2 queues, defer 0"
	look := func() (s string) {
		out, err := ns.Command(t.Context(), "cat", "/sys/class/net/c0/napi_defer_hard_irqs").Output()
		if err != nil {
			t.Fatal(err)
		}
		err = ns.Do(func() error {
			e, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer e.Close()
			c, err := e.GetChannels("c0")
			s = fmt.Sprintf("%d queues, defer %s", c.RxCount, bytes.TrimSpace(out))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	err := ns.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		_, err = e.SetChannels("c0", ethtool.Channels{RxCount: 2, TxCount: 2})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := look(); s != untouched {
		t.Fatalf("before: %s", s)
	}
	child := func(duration string) (said *bytes.Buffer, end func(os.Signal) error) {
		t.Helper()
		cmd := ns.Command(t.Context(), os.Args[0])
		said = &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = said, said
		cmd.Env = append(os.Environ(), asChild+"=xsk", "INTERFACE=c0", "STATE="+state, "DURATION="+duration)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return said, func(s os.Signal) error {
			if s != nil {
				testenv.Eventually(t, 20*time.Second, func() error {
					if now := look(); now != "1 queues, defer 2" {
						return errors.New(now)
					}
					return nil
				})
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			return cmd.Wait()
		}
	}
	left := func() int {
		files, err := filepath.Glob(filepath.Join(state, settingsPattern))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	_, end := child("1m")
	if err := end(syscall.SIGTERM); look() != untouched || left() != 0 {
		t.Errorf("ended by SIGTERM: %v: %s, %d files", err, look(), left())
	}
	_, end = child("1m")
	if err := end(syscall.SIGKILL); err == nil || look() == untouched || left() != 1 {
		t.Fatalf("killed: %v: %s, %d files", err, look(), left())
	}
	said, end := child("300ms")
	if err := end(nil); err != nil || look() != untouched || left() != 0 || !strings.Contains(said.String(), "restored c0") {
		t.Errorf("the next start: %v: %s, %d files, said %q", err, look(), left(), said)
	}
}

// capture writes a capture of frames that differ in every byte, and returns them.
func capture(t *testing.T, lengths ...int) (file string, frames [][]byte) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "test.pcap")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := sim.NewCaptureWriter(f)
	if err != nil {
		t.Fatal(err)
	}
	for n, length := range lengths {
		frame := bytes.Repeat([]byte{byte(n + 1)}, length)
		copy(frame, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
		if err := w.Write(uint64(n), frame, length); err != nil {
			t.Fatal(err)
		}
		frames = append(frames, frame)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return file, frames
}

// The generator sends the packets of a capture whole and in order, and flows that differ.
func TestXSKTraffic(t *testing.T) {
	o := shortXSK(t, RxDrop)
	lab := testenv.New(t, "wire", testenv.Options{})
	near, far := lab.Must(t, "client"), lab.Must(t, "server")
	file, frames := capture(t, 60, 1514, 61, 777, 14)
	pcap, err := readReplay(file, replayLongest)
	if err != nil {
		t.Fatal(err)
	}
	const flows = 300
	for _, tt := range []struct {
		name    string
		traffic xskTraffic
		period  int
	}{{"capture", xskTraffic{rate: 2000, flows: 1, pcap: pcap}, len(frames)}, {"flows", xskTraffic{rate: 10_000, flows: flows}, flows}} {
		t.Run(tt.name, func(t *testing.T) {
			template := tt.traffic.template([6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2})
			g, err := newGenerator(far, "s0", tt.traffic, slices.Clone(template), []int{mustCPUs(t)[0]})
			if err != nil {
				t.Fatal(err)
			}
			defer g.close()
			arrived, err := near.StartCapture("c0", testenv.CaptureOptions{Match: func(f []byte) bool {
				return len(f) >= 14 && (f[12] == 0x88 || len(f) == xskFrame && f[23] == 17)
			}})
			if err != nil {
				t.Fatal(err)
			}
			g.start()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err = errors.Join(arrived.Wait(ctx, 2*tt.period+1), g.stop())
			if _, stopErr := arrived.Stop(); err != nil || stopErr != nil {
				t.Fatal(err, stopErr)
			}
			got := arrived.Frames()
			sources := map[string]bool{}
			for i, f := range got[:2*tt.period] {
				var want []byte
				if tt.traffic.pcap != nil {
					want = frames[i%len(frames)]
				} else {
					c := conn{src: ip4(xskFirstSource + uint32(i%flows)), dst: ip4(10<<24 | 1<<22 | 2), sport: 10000, dport: 5001}
					want = appendFrame(nil, c, frameSpec{dstMAC: [6]byte{2, 0, 0, 0, 0, 1}, srcMAC: [6]byte{2, 0, 0, 0, 0, 2}, size: xskFrame})
					want[40], want[41] = 0, 0
				}
				if !bytes.Equal(f.Data, want) {
					t.Fatalf("packet %d is\n%x, expected\n%x", i, f.Data, want)
				}
				sources[string(f.Data)] = true
			}
			if len(sources) != tt.period {
				t.Errorf("%d packets differ, expected %d", len(sources), tt.period)
			}
		})
	}
	o.Pcap, o.Rate = file, 5000
	report := measured(t, o)
	d := report.Results[0].XSK
	if mean := float64(d.Bytes) / float64(d.Packets); d.Pcap != file || mean < 300 || mean > 700 {
		t.Errorf("of packets of %d bytes at the mean: %+v", (60+1514+61+777+14)/5, d)
	}
}

// What a worker of tx-push writes is what the generator sends.
func TestXSKSource(t *testing.T) {
	u, err := xsk.NewUMEM(xsk.UMEMOptions{Frames: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	pool, err := u.NewPool(8)
	if err != nil {
		t.Fatal(err)
	}
	_, frames := capture(t, 60, 1514, 99)
	for _, traffic := range []xskTraffic{{flows: 1}, {flows: 70_000}, {flows: 1, pcap: frames}} {
		s := newSource(traffic, 1, traffic.template([6]byte{1}, [6]byte{2}))
		n := 70_001
		batch := make([]xsk.Desc, 2)
		for i := 0; i < n; {
			pool.Alloc(batch)
			for k := range batch {
				s.write(u, &batch[k])
				want := appendFrame(nil, conn{src: ip4(xskFirstSource + uint32((i+k)%traffic.flows)), dst: ip4(10<<24 | 1<<22 | 2), sport: 10000, dport: 5001},
					frameSpec{dstMAC: [6]byte{1}, srcMAC: [6]byte{2}, size: xskFrame})
				want[40], want[41] = 0, 0
				if traffic.pcap != nil {
					want = frames[(i+k)%len(frames)]
				}
				if !bytes.Equal(u.Frame(batch[k]), want) {
					t.Fatalf("packet %d of %d flows is\n%x, expected\n%x", i+k, traffic.flows, u.Frame(batch[k]), want)
				}
			}
			// Sometimes one is not taken, and comes again.
			taken := 2 - (i/2)%2
			s.sent(taken, 2)
			i += taken
			pool.Free(batch)
		}
	}
}

func TestXSKReplayErrors(t *testing.T) {
	long, _ := capture(t, 60, 1515)
	empty, _ := capture(t)
	for _, tt := range []struct{ file, want string }{
		{long, "packet 2 has 1515 bytes: 14 to 1514 can be sent"},
		{empty, "the capture holds no packet"},
		{"/nonexistent", "open capture"},
	} {
		if _, err := readReplay(tt.file, replayLongest); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, expected %q", err, tt.want)
		}
	}
}

func TestXSKChecks(t *testing.T) {
	for _, tt := range []struct {
		change func(*XSKOptions)
		want   string
	}{
		{func(o *XSKOptions) { o.RingSize = 100 }, "rings of 100"},
		{func(o *XSKOptions) { o.Batch = 4096 }, "batches of 4096"},
		{func(o *XSKOptions) { o.Batch = 0 }, "batches of 0"},
		{func(o *XSKOptions) { o.UMEMFrames = 100 }, "100 frames"},
		{func(o *XSKOptions) { o.Queues = 0 }, "0 queues"},
		{func(o *XSKOptions) { o.Flows = 1 << 24 }, "16777216 flows"},
		{func(o *XSKOptions) { o.Pcap, o.Flows = "x", 2 }, "leave one out"},
		{func(o *XSKOptions) { o.Duration, o.Repeat = time.Second, 1000 }, "1000 parts"},
		{func(o *XSKOptions) { o.Repeat = 0 }, "measure nothing"},
	} {
		o := NewXSKOptions(RxDrop)
		tt.change(&o)
		if err := o.check(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, expected %q", err, tt.want)
		}
	}
}

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		cpus, busy []int
		n          int
		want       string
	}{
		{[]int{0, 1}, []int{0}, 1, "1"},
		{[]int{0, 1}, []int{0, 1}, 2, "1,0"},
		{[]int{0, 1, 2, 3}, []int{3}, 2, "2,1"},
		{[]int{5}, []int{5}, 2, "5,5"},
	} {
		if got := joinInts(spread(tt.cpus, tt.busy, tt.n)); got != tt.want {
			t.Errorf("%d of %v beside %v: %s, expected %s", tt.n, tt.cpus, tt.busy, got, tt.want)
		}
	}
	if got := joinInts(parseCPUList("0-2,8,11-11,x")); got != "0,1,2,8,11" {
		t.Errorf("CPU list: %s", got)
	}
}

func TestSwapMACs(t *testing.T) {
	f := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}
	swapMACs(f)
	if !bytes.Equal(f, []byte{7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 13, 14}) {
		t.Errorf("%v", f)
	}
}

// xdpsockOutputs are what xdpsock prints, where LC_ALL is obeyed and where it is not.
const xdpsockSample = `
 sock0@c0:0 rxdrop xdp-drv 
                   pps            pkts           1.00          
rx                 2859482        2860800       
tx                 0              0             
rx dropped         0              0             
rx queue full      12             12            

 sock0@c0:0 rxdrop xdp-drv 
                   pps            pkts           1.50          
rx                 1,000,000      4,360,800     
tx                 7              7             
`

func TestXDPSockOutput(t *testing.T) {
	for _, tt := range []struct {
		direction string
		packets   float64
	}{{"rx", 4360800}, {"tx", 7}} {
		o := &xdpsockOutput{direction: tt.direction}
		o.read(strings.NewReader(strings.ReplaceAll(xdpsockSample, "\n", "\r\n")))
		if packets, seconds, blocks := o.sum(); packets != tt.packets || seconds != 2.5 || blocks != 2 {
			t.Errorf("%s: %g packets in %g s, %d blocks", tt.direction, packets, seconds, blocks)
		}
	}
}

// The peer has the same settings, or is left out.
func TestXDPSockCommand(t *testing.T) {
	template := xskTraffic{}.template([6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2})
	for _, tt := range []struct {
		bench  string
		mode   xsk.Mode
		change func(*XSKOptions)
		want   string
	}{
		{RxDrop, xsk.Copy, func(o *XSKOptions) { o.Batch, o.FrameSize = 16, 2048 }, "taskset -c 3 xdpsock --rxdrop -i eth1 -q 0 -b 16 -f 2048 -N -c -n 1 -x"},
		{L2Fwd, xsk.ZeroCopy, func(o *XSKOptions) { o.BusyPoll = 20 * time.Microsecond }, "taskset -c 3 xdpsock --l2fwd -i eth1 -q 0 -b 64 -f 4096 -N -z -B -n 1 -x"},
		{TxPush, xsk.Generic, func(o *XSKOptions) {}, "taskset -c 3 xdpsock --txonly -i eth1 -q 0 -b 64 -f 4096 -S -s 64 -G 02:00:00:00:00:01 -H 02:00:00:00:00:02 -n 1 -x"},
		{RxDrop, xsk.Copy, func(o *XSKOptions) { o.RingSize = 1024 }, "rings have 2048"},
		{RxDrop, xsk.Copy, func(o *XSKOptions) { o.UMEMFrames = 1024 }, "4096 frames"},
		{RxDrop, xsk.Copy, func(o *XSKOptions) { o.HugePages = true }, "huge pages"},
		{RxDrop, xsk.Copy, func(o *XSKOptions) { o.Queues = 2 }, "one queue"},
		{RxDrop, xsk.Copy, func(o *XSKOptions) { o.BusyPoll = time.Millisecond }, "polls for 20µs"},
		{TxPush, xsk.Copy, func(o *XSKOptions) { o.Flows = 2 }, "one frame over and over"},
	} {
		o := NewXSKOptions(tt.bench)
		tt.change(&o)
		c, err := xdpsockCommand(&o, "eth1", tt.mode, 3, template)
		if got := strings.Join(c, " "); err == nil && got != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %v, expected %s", got, err, tt.want)
		}
	}
}

// xdpsockChild does to rx-drop what xdpsock does, and prints what it prints.
func xdpsockChild() error {
	f := flag.NewFlagSet("xdpsock", flag.ContinueOnError)
	device := f.String("i", "", "")
	for _, name := range []string{"-rxdrop", "N", "c", "x"} {
		f.Bool(strings.TrimPrefix(name, "-"), false, "")
	}
	for _, name := range []string{"q", "b", "f", "n"} {
		f.Int(name, 0, "")
	}
	if err := f.Parse(os.Args[1:]); err != nil {
		return err
	}
	u, err := xsk.NewUMEM(xsk.UMEMOptions{Mode: xsk.Copy})
	if err != nil {
		return err
	}
	pool, err := u.NewPool(u.Frames())
	if err != nil {
		return err
	}
	s, err := xsk.Open(u, pool, *device, 0, xsk.SocketOptions{BindTimeout: time.Millisecond})
	if err != nil {
		return err
	}
	r, err := xsk.Attach(*device, xsk.AttachOptions{Mode: xsk.Copy})
	if err != nil {
		return err
	}
	if err := r.Add(s); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	out := bufio.NewWriter(os.Stdout)
	var poller xsk.Poller
	poller.Add(s, xsk.Readable)
	packets, batch := 0, make([]xsk.Desc, 64)
	for told := time.Now(); ctx.Err() == nil; {
		if _, err := poller.Wait(10 * time.Millisecond); err != nil {
			return err
		}
		for n := s.Receive(batch); n > 0; n = s.Receive(batch) {
			packets += n
			pool.Free(batch[:n])
			s.Refill()
		}
		if took := time.Since(told); took > time.Second {
			fmt.Fprintf(out, "\n sock0@%s:0 rxdrop xdp-drv \n%18s %-14s %-14s %-14.2f\n%-18s %-14.0f %-14d\n", *device, "", "pps", "pkts", took.Seconds(), "rx", float64(packets), packets)
			if err := out.Flush(); err != nil {
				return err
			}
			told = time.Now()
		}
	}
	return errors.Join(s.Close(), r.Close(), u.Close())
}

// A peer on PATH runs in turn, and stands in the result with its command line and version.
func TestXSKPeer(t *testing.T) {
	o := shortXSK(t, RxDrop)
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s=xdpsock exec %s \"$@\"\n", asChild, os.Args[0])
	if err := os.WriteFile(filepath.Join(dir, "xdpsock"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	o.Rate = 5000
	report := measured(t, o)
	r := report.Results[0]
	if r.Peer != "xdpsock" || r.PeerValue < 50 || r.PeerValue > 1.2*o.Rate || r.Ratio != r.Value/r.PeerValue {
		t.Errorf("%+v", r)
	}
	if e := report.Environment; !strings.Contains(e.Peers["xdpsock"], "sha256") || e.PeerConfig["xdpsock"] != r.XSK.PeerCommand ||
		!strings.Contains(r.XSK.PeerCommand, "xdpsock --rxdrop -i c0 -q 0 -b 64 -f 4096 -N -c") {
		t.Errorf("%+v %q", e, r.XSK.PeerCommand)
	}
}
