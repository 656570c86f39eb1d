package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// load is a running contender with its generator and its sink.
type load struct {
	forwarder
	tag, mode      string // of softdpu's program
	client, server *testenv.Namespace
	coll, sinkColl *ebpf.Collection
	sink           link.Link
	frame          []byte
	opens          bool // each frame is of another flow
	waited         bool // the generator, for the gateway, in the last measurement
}

// flightWindow is how many frames the generator lets be on their way: while the gateway's NAPI works
// through a budget of 64, the next 64 arrive. The queue of a veth holds 256, and a frame that it
// refuses is freed under the lock that the gateway's core needs to free its own.
const flightWindow = 128

// loadFrame is how long the generator's frames are, in bytes, and sinkStep of how many the sink takes one's time.
const loadFrame, sinkStep = 60, 64

func startLoad(prefix string, c *contestant) (l *load, err error) {
	if l, err = newLoad(prefix, c); err != nil {
		return nil, err
	}
	if err = l.server.Do(l.attachSink); err == nil {
		err = l.client.Do(l.loadGenerator)
	}
	if err == nil {
		err = l.pinNAPI()
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// newLoad starts a contender, which has seen a packet of each flow and its answer. The caller closes it.
func newLoad(prefix string, c *contestant) (l *load, err error) {
	c.prefix = prefix
	l = &load{opens: c.opens}
	if l.forwarder, err = c.start(c); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if f, ok := l.forwarder.(softdpuForwarder); ok {
		prog, err := f.plane.Program()
		if err != nil {
			return l, err
		}
		info, err := prog.Info()
		prog.Close()
		if err != nil {
			return l, err
		}
		l.tag, l.mode = info.Tag, f.lan.Running.String()
	}
	w := l.wire()
	if l.client, err = w.lab.Namespace("client"); err != nil {
		return l, err
	}
	if l.server, err = w.lab.Namespace("server"); err != nil {
		return l, err
	}
	return l, l.answerOnce()
}

// answerOnce sends each flow's first packet and its answer.
func (l *load) answerOnce() error {
	w := l.wire()
	there, err := l.client.OpenSender("c0")
	if err != nil {
		return err
	}
	defer there.Close()
	back, err := l.server.OpenSender("s0")
	if err != nil {
		return err
	}
	defer back.Close()
	arrived, err := l.server.StartCapture("s0", testenv.CaptureOptions{Match: func(f []byte) bool { return len(f) >= 60 && f[23] == 17 }})
	if err != nil {
		return err
	}
	for i := range gatewayFlows {
		c := gatewayConn(i)
		if err := there.Send(appendFrame(nil, c, frameSpec{dstMAC: w.lanMAC, srcMAC: w.client, size: 60})); err != nil {
			return err
		}
		if i%64 == 63 {
			time.Sleep(time.Millisecond) // a veth queue is 256 long
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = arrived.Wait(ctx, gatewayFlows)
	n, stopErr := arrived.Stop()
	if err := errors.Join(err, stopErr); err != nil {
		dropped := ""
		if f, ok := l.forwarder.(softdpuForwarder); ok {
			dropped = "; drops:" + f.drops()
		}
		return fmt.Errorf("%d of %d flows came through: %w%s", n, gatewayFlows, err, dropped)
	}
	for i := range gatewayFlows {
		if err := back.Send(appendFrame(nil, gatewayConn(i).reply(), frameSpec{dstMAC: w.wanMAC, srcMAC: w.serve, size: 60})); err != nil {
			return err
		}
		if i%64 == 63 {
			time.Sleep(time.Millisecond)
		}
	}
	time.Sleep(20 * time.Millisecond)
	return nil
}

func (l *load) attachSink() error {
	index, err := deviceIndex("s0")
	if err != nil {
		return err
	}
	spec, err := bpf.LoadBench()
	if err != nil {
		return err
	}
	if l.sinkColl, err = loadBench(spec, nil, bpf.BenchProgSink); err != nil {
		return err
	}
	l.sink, err = link.AttachXDP(link.XDPOptions{Program: l.sinkColl.Programs[bpf.BenchProgSink], Interface: int(index), Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("attach sink to s0: %w", err)
	}
	return nil
}

func (l *load) loadGenerator() error {
	frames, flow := 1024, func(i int) conn { return gatewayConn(i % gatewayFlows) } // in turn, the first few twice
	if l.opens {
		frames, flow = openingFlows, openingConn
	}
	if err := l.loadGeneratorOf(frames, nil); err != nil {
		return err
	}
	mem, err := l.coll.Maps[bpf.BenchMapTrace].Memory()
	if err != nil {
		return err
	}
	w := l.wire()
	slot := make([]byte, unsafe.Sizeof(bpf.BenchTraceFrame{}))
	for i := range frames {
		copy(slot, appendFrame(nil, flow(i), frameSpec{dstMAC: w.lanMAC, srcMAC: w.client, size: loadFrame}))
		if _, err := mem.WriteAt(slot, int64(i*len(slot))); err != nil {
			return err
		}
	}
	return nil
}

// loadGeneratorOf loads the generator of so many frames, a power of two: those of trace, or of a trace of its own, which
// is still empty, if that is nil.
func (l *load) loadGeneratorOf(frames int, trace *ebpf.Map) error {
	spec, err := bpf.LoadBench()
	if err != nil {
		return err
	}
	spec.Maps[bpf.BenchMapTrace].MaxEntries = uint32(frames)
	for name, v := range map[string]uint32{bpf.BenchVarFrameSize: loadFrame, bpf.BenchVarTraceMask: uint32(frames - 1), bpf.BenchVarOutput: 0, bpf.BenchVarWindow: flightWindow} {
		if err := spec.Variables[name].Set(v); err != nil {
			return err
		}
	}
	shared := map[string]*ebpf.Map{bpf.BenchMapFlight: l.sinkColl.Maps[bpf.BenchMapFlight]}
	if trace != nil {
		shared[bpf.BenchMapTrace] = trace
	}
	if l.coll, err = loadBench(spec, shared, bpf.BenchProgGenerate); err != nil {
		return err
	}
	l.frame = make([]byte, loadFrame)
	index, err := deviceIndex("c0")
	if err != nil {
		return err
	}
	return l.coll.Maps[bpf.BenchMapOutputs].Put(uint32(0), index)
}

// pinNAPI puts the gateway's receive processing into a kernel thread of its own on CPU 1, which is
// the one core that is measured.
func (l *load) pinNAPI() error {
	before, err := napiThreads()
	if err != nil {
		return err
	}
	cmd := l.wire().gw.Command(context.Background(), "sh", "-c", "echo 1 > /sys/class/net/lan/threaded")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the NAPI of lan threaded: %w: %s", err, out)
	}
	after, err := napiThreads()
	if err != nil {
		return err
	}
	n := 0
	for pid := range after {
		if before[pid] {
			continue
		}
		var set unix.CPUSet
		set.Set(1)
		if err := unix.SchedSetaffinity(pid, &set); err != nil {
			return fmt.Errorf("pin NAPI thread %d: %w", pid, err)
		}
		n++
	}
	if n == 0 {
		return errors.New("find the NAPI thread of lan: there is none")
	}
	return nil
}

// napiThreads returns the process ids of all NAPI threads of devices called lan.
func napiThreads() (map[int]bool, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	pids := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		comm, err := os.ReadFile("/proc/" + e.Name() + "/comm")
		if err == nil && strings.HasPrefix(string(comm), "napi/lan-") {
			pids[pid] = true
		}
	}
	return pids, nil
}

// errFewFrames is about a measurement in which nearly nothing was sent, as other work had the generator's core.
var errFewFrames = errors.New("other work left the generator no time")

// measure loads the gateway for a while, longer if the generator had no time, and returns what came through, in packets
// a second.
func (l *load) measure(d time.Duration) (rate float64, err error) {
	for range 5 {
		if rate, err = l.measureFor(d); !errors.Is(err, errFewFrames) {
			break
		}
		d *= 2
	}
	return rate, err
}

func (l *load) measureFor(d time.Duration) (float64, error) {
	unpin, err := pin(0)
	if err != nil {
		return 0, err
	}
	defer unpin()
	arrived, flight := l.sinkColl.Maps[bpf.BenchMapArrived], l.sinkColl.Maps[bpf.BenchMapFlight]
	if err := arrived.Put(uint32(0), make([]bpf.BenchArrivals, ebpf.MustPossibleCPU())); err != nil {
		return 0, fmt.Errorf("reset sink: %w", err)
	}
	if err := flight.Put(uint32(0), bpf.BenchInFlight{}); err != nil {
		return 0, fmt.Errorf("reset generator: %w", err)
	}
	sending := func() bool {
		var f bpf.BenchInFlight
		return flight.Lookup(uint32(0), &f) == nil && f.Sent > 0
	}
	if err := sendFor(l.coll.Programs[bpf.BenchProgGenerate], l.frame, 0, sending, d); err != nil {
		return 0, err
	}
	sum, sent, err := l.arrived()
	// what is in the queues, on a core that may have other things to do
	for wait := 0; err == nil && sum.Packets < sent.Sent && wait < 200; wait++ {
		time.Sleep(5 * time.Millisecond)
		before := sum.Packets
		if sum, sent, err = l.arrived(); sum.Packets > before {
			wait = 0
		}
	}
	if err != nil {
		return 0, err
	}
	if sent.Sent >= sum.Packets+flightWindow {
		return 0, fmt.Errorf("of %d frames %d came through", sent.Sent, sum.Packets)
	}
	if sum.timed == 0 || sum.Last <= sum.First {
		return 0, fmt.Errorf("%w: it sent %d frames", errFewFrames, sent.Sent)
	}
	l.waited = sent.Held > 0
	return float64(sum.timed) / (float64(sum.Last-sum.First) / 1e9), nil
}

// arrivals are what the sink saw.
type arrivals struct {
	bpf.BenchArrivals
	timed uint64 // packets from First to Last
}

// arrived returns what the sink saw on all CPUs, and what the generator sent.
func (l *load) arrived() (sum arrivals, sent bpf.BenchInFlight, err error) {
	var perCPU []bpf.BenchArrivals
	if err := l.sinkColl.Maps[bpf.BenchMapArrived].Lookup(uint32(0), &perCPU); err != nil {
		return sum, sent, fmt.Errorf("read sink: %w", err)
	}
	if err := l.sinkColl.Maps[bpf.BenchMapFlight].Lookup(uint32(0), &sent); err != nil {
		return sum, sent, fmt.Errorf("read generator: %w", err)
	}
	sum.First = math.MaxUint64
	for _, a := range perCPU {
		if a.Packets > 0 {
			sum.Packets += a.Packets
			sum.timed += (a.Packets - 1) / sinkStep * sinkStep
			sum.First, sum.Last = min(sum.First, a.First), max(sum.Last, a.Last)
		}
	}
	return sum, sent, nil
}

func (l *load) close() error {
	var err error
	if l.sink != nil {
		err = l.sink.Close()
	}
	for _, c := range []*ebpf.Collection{l.coll, l.sinkColl} {
		if c != nil {
			c.Close()
		}
	}
	if l.forwarder != nil {
		err = errors.Join(err, l.forwarder.close())
	}
	return err
}

// deviceIndex looks a device up in the current network namespace.
func deviceIndex(name string) (uint32, error) {
	d, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", name, err)
	}
	return uint32(d.Attrs().Index), nil
}
