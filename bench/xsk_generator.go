package bench

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// xskGenerator sends frames at one end of a veth pair, by live-frame test runs on CPUs of its own, and counts
// what comes back there. Linux 5.18.
type xskGenerator struct {
	coll    *ebpf.Collection
	counter link.Link
	frame   []byte
	threads []*generatorThread
	cpus    []int
}

// replayLongest is how long a frame of a capture may be, in bytes: MTU and Ethernet header.
const replayLongest = 1514

// newGenerator makes a generator at the device of the namespace, which stands still until start. Each CPU
// sends its share of the rate.
func newGenerator(ns *testenv.Namespace, device string, t xskTraffic, template []byte, cpus []int) (g *xskGenerator, err error) {
	g = &xskGenerator{frame: template, cpus: cpus}
	err = ns.Do(func() error {
		index, err := deviceIndex(device)
		if err != nil {
			return err
		}
		if err := g.load(t, len(cpus)); err != nil {
			return err
		}
		if err := g.coll.Maps[bpf.GeneratorMapWire].Put(uint32(0), index); err != nil {
			return fmt.Errorf("set the generator's device: %w", err)
		}
		g.counter, err = link.AttachXDP(link.XDPOptions{Program: g.coll.Programs[bpf.GeneratorProgCount], Interface: int(index), Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("attach counter to %s: %w", device, err)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (g *xskGenerator) load(t xskTraffic, cpus int) error {
	spec, err := bpf.LoadGenerator()
	if err != nil {
		return err
	}
	longest, interval := len(g.frame), uint64(0)
	for _, p := range t.pcap {
		longest = max(longest, len(p))
	}
	g.frame = append(g.frame, make([]byte, longest-len(g.frame))...)
	if t.rate > 0 {
		interval = uint64(1e9 * 1024 * float64(cpus) / t.rate)
	}
	flows := uint32(t.flows)
	if t.pcap != nil {
		flows = 0
	}
	spec.Maps[bpf.GeneratorMapReplay].MaxEntries = uint32(max(1, len(t.pcap)))
	for name, v := range map[string]any{
		bpf.GeneratorVarStartSize: uint32(longest), bpf.GeneratorVarFlows: flows, bpf.GeneratorVarInterval: interval,
		bpf.GeneratorVarFirstSource: uint32(xskFirstSource), bpf.GeneratorVarHeadSum: headSum(g.frame),
		bpf.GeneratorVarReplayFrames: uint32(len(t.pcap)),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return err
		}
	}
	if g.coll, err = ebpf.NewCollection(spec); err != nil {
		return fmt.Errorf("load generator: %w", err)
	}
	if t.pcap == nil {
		return nil
	}
	mem, err := g.coll.Maps[bpf.GeneratorMapReplay].Memory()
	if err != nil {
		return fmt.Errorf("map the generator's frames: %w", err)
	}
	var slot bpf.GeneratorReplayFrame
	for i, p := range t.pcap {
		slot.Len = uint32(len(p))
		copy(slot.Bytes[:], p)
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&slot)), unsafe.Sizeof(slot))
		if _, err := mem.WriteAt(raw, int64(i)*int64(len(raw))); err != nil {
			return fmt.Errorf("write the generator's frames: %w", err)
		}
	}
	return nil
}

// start begins to send.
func (g *xskGenerator) start() {
	for _, cpu := range g.cpus {
		t := &generatorThread{done: make(chan error, 1)}
		g.threads = append(g.threads, t)
		go func() { t.done <- t.run(cpu, g.coll.Programs[bpf.GeneratorProgGenerate], g.frame) }()
	}
}

// stop ends that, and returns when nothing more is sent.
func (g *xskGenerator) stop() error {
	var errs []error
	for _, t := range g.threads {
		errs = append(errs, t.stop())
	}
	g.threads = nil
	return errors.Join(errs...)
}

// failed returns why a thread has ended by itself, nil if none has.
func (g *xskGenerator) failed() error {
	for _, t := range g.threads {
		select {
		case err := <-t.done:
			t.done <- err
			return err
		default:
		}
	}
	return nil
}

// generatorThread is one CPU that sends.
type generatorThread struct {
	thread  atomic.Int64
	stopped atomic.Bool
	done    chan error
}

func (t *generatorThread) run(cpu int, prog *ebpf.Program, frame []byte) error {
	unpin, err := pin(cpu)
	if err != nil {
		return err
	}
	defer unpin()
	t.thread.Store(int64(unix.Gettid()))
	for !t.stopped.Load() {
		// It ends by a signal, or after many minutes by itself.
		a := testRunAttr{repeat: math.MaxUint32, flags: liveFrames, batchSize: 64}
		err := a.try(prog, frame, 0)
		if errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("generate packets: %w: it needs Linux 5.18 (test runs on live frames)", err)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("generate packets: %w", err)
		}
	}
	return nil
}

func (t *generatorThread) stop() error {
	t.stopped.Store(true)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-t.done:
			return err
		case <-tick.C:
			if id := t.thread.Load(); id != 0 {
				_ = unix.Tgkill(unix.Getpid(), int(id), unix.SIGURG) // which Go's runtime takes and ignores
			}
		}
	}
}

// tally is a number of packets, and their bytes from the Ethernet header on.
type tally struct{ packets, bytes uint64 }

func (t tally) minus(u tally) tally { return tally{t.packets - u.packets, t.bytes - u.bytes} }

// sent returns what has been sent on all CPUs, what the wire's queue refused included.
func (g *xskGenerator) sent() (sum tally, err error) {
	var each []bpf.GeneratorGenerator
	if err := g.coll.Maps[bpf.GeneratorMapGenerators].Lookup(uint32(0), &each); err != nil {
		return sum, fmt.Errorf("read generator: %w", err)
	}
	for _, e := range each {
		sum.packets += e.Packets
		sum.bytes += e.Bytes
	}
	return sum, nil
}

// back returns what has come back.
func (g *xskGenerator) back() (sum tally, err error) {
	var each []bpf.GeneratorTally
	if err := g.coll.Maps[bpf.GeneratorMapTallies].Lookup(uint32(0), &each); err != nil {
		return sum, fmt.Errorf("read counter: %w", err)
	}
	for _, e := range each {
		sum.packets += e.Packets
		sum.bytes += e.Bytes
	}
	return sum, nil
}

func (g *xskGenerator) close() error {
	err := g.stop()
	if g.counter != nil {
		err = errors.Join(err, g.counter.Close())
	}
	if g.coll != nil {
		g.coll.Close()
	}
	return err
}
