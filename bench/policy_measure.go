package bench

import (
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// policyTrace is a trace of packets, and the programs that are measured with it.
type policyTrace struct {
	coll    *ebpf.Collection
	prog    *ebpf.Program // the packet path under the rules
	frame   []byte
	packets int

	mean, p99 []float64 // ns over the constant classifier, one value a round
}

const policyFrame = 60 // bytes

// layHeaders puts a packet of each header into a trace, in their order.
func (r *policyRig) layHeaders(headers []header, prog *ebpf.Program) (*policyTrace, error) {
	spec, err := bpf.LoadBench()
	if err != nil {
		return nil, err
	}
	for name, p := range spec.Programs {
		if name != bpf.BenchProgPrologue && name != bpf.BenchProgTimed {
			delete(spec.Programs, name)
		} else if !r.plane.MultiBuffer() {
			p.Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		}
	}
	spec.Maps[bpf.BenchMapTrace].MaxEntries = uint32(len(headers))
	for name, v := range map[string]uint32{bpf.BenchVarFrameSize: policyFrame, bpf.BenchVarTraceMask: uint32(len(headers) - 1)} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, err
		}
	}
	t := &policyTrace{prog: prog, frame: make([]byte, policyFrame), packets: len(headers)}
	if t.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, err
	}
	mem, err := t.coll.Maps[bpf.BenchMapTrace].Memory()
	if err != nil {
		t.coll.Close()
		return nil, err
	}
	var frame []byte
	for i, h := range headers {
		s := frameSpec{dstMAC: r.lan.MAC, srcMAC: r.client, size: policyFrame, flags: flagSYN}
		if h.proto != 6 && h.proto != 17 {
			s.proto = h.proto
		}
		frame = appendFrame(frame[:0], conn{src: ip4(h.src), dst: ip4(h.dst), sport: h.sport, dport: h.dport, tcp: h.proto == 6}, s)
		if _, err := mem.WriteAt(frame, int64(i*traceBytes)); err != nil {
			t.coll.Close()
			return nil, err
		}
	}
	return t, nil
}

// measure takes one round of the program beside one of the constant classifier: both without a clock, then both with one.
func (t *policyTrace) measure(r *policyRig, keep bool) error {
	var each [2]float64
	var timed [2]roundTimes
	for i, prog := range []*ebpf.Program{r.constant, t.prog} {
		ns, err := t.run(r, bpf.BenchProgPrologue, prog)
		if err != nil {
			return err
		}
		each[i] = float64(ns)
	}
	for i, prog := range []*ebpf.Program{r.constant, t.prog} {
		if err := t.coll.Maps[bpf.BenchMapWatch].Put(uint32(0), &bpf.BenchStopwatch{}); err != nil {
			return err
		}
		if _, err := t.run(r, bpf.BenchProgTimed, prog); err != nil {
			return err
		}
		var w bpf.BenchStopwatch
		if err := t.coll.Maps[bpf.BenchMapWatch].Lookup(uint32(0), &w); err != nil {
			return err
		}
		timed[i] = w.Rounds
	}
	if keep {
		t.mean = append(t.mean, each[1]-each[0])
		t.p99 = append(t.p99, timed[1].percentile(99)-timed[0].mean())
	}
	return nil
}

// run sends the whole trace through prog, and proves that a rule denied each packet.
func (t *policyTrace) run(r *policyRig, prologue string, prog *ebpf.Program) (ns int64, err error) {
	if err := t.coll.Maps[bpf.BenchMapTarget].Put(uint32(0), prog); err != nil {
		return 0, err
	}
	before, err := r.plane.Reasons()
	if err != nil {
		return 0, err
	}
	_, each, err := testRun(t.coll.Programs[prologue], t.frame, r.lan.Index, t.packets)
	if err != nil {
		return 0, err
	}
	after, err := r.plane.Reasons()
	if err != nil {
		return 0, err
	}
	const deny = bpf.XDPReasonREASON_DENY
	if denied := after[deny].Packets - before[deny].Packets; denied != uint64(t.packets) {
		return 0, fmt.Errorf("rules denied %d of %d packets; drops so far:%s", denied, t.packets, r.drops())
	}
	return each.Nanoseconds(), nil
}

// roundTimes counts rounds by how long they took.
type roundTimes [len(bpf.BenchStopwatch{}.Rounds)]uint64

const stopwatchStep = 8 // ns, STOPWATCH_STEP of bench.c

// mean is in ns. What took longer than a stopwatch shows is left out: an interrupt, not the program.
func (t *roundTimes) mean() float64 {
	var n, sum float64
	for i, count := range t[:len(t)-1] {
		n += float64(count)
		sum += float64(count) * (float64(i) + 0.5) * stopwatchStep
	}
	return sum / n
}

// percentile is in ns, the upper end of its bucket.
func (t *roundTimes) percentile(percent float64) float64 {
	var all, seen uint64
	for _, count := range t {
		all += count
	}
	for i, count := range t {
		if seen += count; float64(seen) >= float64(all)*percent/100 {
			return float64(i+1) * stopwatchStep
		}
	}
	return 0
}
