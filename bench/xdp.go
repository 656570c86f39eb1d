package bench

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
)

// XDPOptions of `bench xdp`. The zero value is a full run.
type XDPOptions struct {
	Rounds   int      // of each scenario; 0 = 15
	Seed     uint64   // of flows and their order; 0 = 1
	Only     []string // scenarios by name; empty = all
	Progress func(string)
}

const (
	rigVLAN    = 10
	xdpFlowMax = 1 << 20
	traceMin   = 1 << 16
	traceBytes = int(unsafe.Sizeof(bpf.BenchTraceFrame{}))
)

// XDP measures the packet path without a network: method in docs/BENCHMARKS.md.
func XDP(ctx context.Context, o XDPOptions) (report *Report, err error) {
	if o.Rounds == 0 {
		o.Rounds = 15
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	o.Progress("building the labs and the programs")
	plain, err := newRig(labPrefix, dataplane.Options{FlowsMax: xdpFlowMax, HalfOpenShare: 1}, xdpPolicy())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plain.close()) }()
	// A lab of its own, since the program without translation has nothing of it.
	nat, err := newRig(labPrefix+"-nat", dataplane.Options{FlowsMax: 1 << 18, HalfOpenShare: 1}, natPolicy())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nat.close()) }()
	return benchXDP(ctx, plain, nat, o)
}

func benchXDP(ctx context.Context, plain, nat *rig, o XDPOptions) (*Report, error) {
	progs := map[*rig]*ebpf.Program{}
	for _, r := range []*rig{plain, nat} {
		prog, err := r.plane.Program()
		if err != nil {
			return nil, err
		}
		defer prog.Close()
		progs[r] = prog
	}
	var all []*bedded
	defer func() {
		for _, b := range all {
			b.coll.Close()
		}
	}()
	for _, s := range scenarios() {
		if !selected(o.Only, s.name) {
			continue
		}
		r := plain
		if s.nat {
			r = nat
		}
		o.Progress("preparing " + s.name)
		err := r.pinned(func() error {
			b, err := r.bed(s, progs[r], o.Seed)
			if err == nil {
				all = append(all, b)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("prepare %s: %w", s.name, err)
		}
	}
	for round := -1; round < o.Rounds; round++ { // the first warms up
		for _, b := range all {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			// The lab's own hosts send a multicast report now and then, which counters cannot tell
			// from ours: such a round is taken again.
			measure := func() error { return b.rig.measure(b, round >= 0) }
			err := b.rig.pinned(measure)
			for try := 0; err != nil && try < 3; try++ {
				err = b.rig.pinned(measure)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.name, err)
			}
		}
		o.Progress(fmt.Sprintf("round %d of %d", round+1, o.Rounds))
	}
	var report *Report
	err := plain.pinned(func() (err error) {
		report, err = plain.reportXDP(all, progs[plain], o)
		return err
	})
	return report, err
}

// pinned calls fn in the gateway's namespace, on CPU 1.
func (r *rig) pinned(fn func() error) error {
	return r.gw.Do(func() error {
		unpin, err := pin(1)
		if err != nil {
			return err
		}
		defer unpin()
		return fn()
	})
}

func selected(only []string, name string) bool {
	for _, n := range only {
		if n == name {
			return true
		}
	}
	return len(only) == 0
}

func (r *rig) reportXDP(all []*bedded, prog *ebpf.Program, o XDPOptions) (*Report, error) {
	info, err := prog.Info()
	if err != nil {
		return nil, err
	}
	env := newEnvironment(o.Seed)
	env.ProgramTag = info.Tag
	env.Driver, env.XDPMode, env.Engine = "test run on "+r.lan.Kind, r.lan.Running.String(), "xdp"
	env.Pinning = "CPU 1"
	env.Method = "BPF_PROG_TEST_RUN; a prologue restores the frame from a trace and tail-calls the program; empty = the same prologue before an empty program, subtracted round by round"
	report := &Report{Bench: "xdp", Environment: env}
	var base []float64
	by := map[string]*bedded{}
	for _, b := range all {
		base = append(base, b.base...)
		by[b.name] = b
	}
	if len(base) > 0 { // or the scan alone was asked for
		report.Results = append(report.Results, summarize("empty", "ns", base))
	}
	for _, b := range all {
		res := summarize(b.name, "ns", b.cost)
		if b.limit > 0 {
			res = res.against(b.limit)
		}
		if k := by["ipv4-hit"]; b.limitOver > 0 && k != nil {
			limits := make([]float64, len(k.cost))
			for i, ns := range k.cost {
				limits[i] = ns + b.limitOver
			}
			res = res.versus(fmt.Sprintf("ipv4-hit and %.0f ns", b.limitOver), b.cost, limits)
		}
		if k := by["ipv4-hit-1k"]; b.name == "ipv4-hit-1m" && k != nil {
			// absolute times: the goal is one of the whole run
			res = res.versus("ipv4-hit-1k, absolute times", b.whole, k.whole)
		}
		report.Results = append(report.Results, res)
	}
	if selected(o.Only, "scan-1m") {
		scan, err := r.scan(o.Rounds, prog)
		if err != nil {
			return nil, err
		}
		report.Results = append(report.Results, scan...)
	}
	return report, nil
}
