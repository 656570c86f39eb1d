package bench

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable"
)

// scanFlows is how many entries the ageing scan is timed with: those of ipv4-hit-1m.
const scanFlows = 1_000_000

// scan times the ageing scan of a million IPv4 entries: scan-1m looks at every one, as the first scan of a
// table does; scan-1m-again is the mean of those that follow it, a second apart.
func (r *rig) scan(rounds int, prog *ebpf.Program) ([]Result, error) {
	if err := r.populate(prog); err != nil {
		return nil, fmt.Errorf("prepare scan-1m: %w", err)
	}
	// Nothing is idle, so that the scan alone is timed; but something might be, within a minute.
	timeouts := flowtable.UniformTimeouts(flowtable.TimeoutTicks(24 * time.Hour))
	timeouts[flowtable.ClassICMP] = flowtable.UniformTimeouts(flowtable.TimeoutTicks(time.Minute))[flowtable.ClassICMP]
	freed := 0
	run := func(table *flowtable.Table, now uint32) float64 {
		start := time.Now()
		freed += table.Scan(now, &timeouts, func() {}, func(*flowtable.Flow) {})
		return float64(time.Since(start).Microseconds()) / 1000
	}
	const more = 60
	var first, again []float64
	for range rounds {
		table, err := r.plane.Table()
		if err != nil {
			return nil, err
		}
		now := dataplane.NowTick()
		first = append(first, run(table, now))
		sum := 0.0
		for i := range more {
			sum += run(table, now+flowtable.Ticks(time.Duration(i+1)*time.Second))
		}
		again = append(again, sum/more)
	}
	if freed > 0 {
		return nil, fmt.Errorf("scan-1m: %d flows were freed, none is idle", freed)
	}
	return []Result{summarize("scan-1m", "ms", first).against(20), summarize("scan-1m-again", "ms", again)}, nil
}

// populate leaves IPv4 flows alone in the table, and a million of them.
func (r *rig) populate(prog *ebpf.Program) error {
	flows := r.plane.Flows()
	gone, half := int64(0), int64(0)
	for g := range flows.Groups6 {
		for s := range flows.Groups6[g].Slot {
			f := &flows.Groups6[g].Slot[s]
			switch bpf.XDPFlowState(f.Core.Word & flowtable.WordStateMask) {
			case bpf.XDPFlowStateFLOW_FREE:
				continue
			case bpf.XDPFlowStateFLOW_SYN_SENT, bpf.XDPFlowStateFLOW_SYN_RECEIVED, bpf.XDPFlowStateFLOW_NEW:
				half++
			}
			f.Core.Word &^= flowtable.WordStateMask
			gone++
		}
	}
	flows.Gateway.Flows6 -= gone
	flows.Gateway.Flows -= gone
	flows.Gateway.HalfOpen -= half
	for _, s := range scenarios() {
		if s.flows != scanFlows {
			continue
		}
		for i := 0; i < s.flows && flows.Gateway.Flows < scanFlows; i++ {
			if _, err := r.establish(s, i, prog); err != nil {
				return err
			}
		}
	}
	if flows.Gateway.Flows < scanFlows || flows.Gateway.Flows6 != 0 {
		return fmt.Errorf("%d flows are in the table, %d of them IPv6: expected %d of IPv4", flows.Gateway.Flows, flows.Gateway.Flows6, scanFlows)
	}
	return nil
}
