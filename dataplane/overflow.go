package dataplane

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// Overflow copies the flows that found no place in their groups. They are few, and none as long as
// the table is filled as it was sized.
func (p *Plane) Overflow() (flows4 []bpf.XDPFlow4, flows6 []bpf.XDPFlow6, err error) {
	gw := &p.mem.gateway[0]
	if atomic.LoadInt64(&gw.Overflow4) > 0 {
		if flows4, err = overflow[bpf.XDPFlow4Key, bpf.XDPFlow4](p.maps[bpf.XDPMapOverflow4]); err != nil {
			return nil, nil, err
		}
	}
	if atomic.LoadInt64(&gw.Overflow6) > 0 {
		flows6, err = overflow[bpf.XDPFlow6Key, bpf.XDPFlow6](p.maps[bpf.XDPMapOverflow6])
	}
	return flows4, flows6, err
}

func overflow[K, F any](m *ebpf.Map) (flows []F, err error) {
	var (
		key  K
		flow F
	)
	it := m.Iterate()
	for it.Next(&key, &flow) {
		flows = append(flows, flow)
	}
	// Flows that come and go meanwhile may make the walk start over more often than it may.
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("read %v: %w", m, err)
	}
	return flows, nil
}

// overflowAt copies what stands beside the groups under a key; nil: nothing, or it cannot be read.
func overflowAt[K, F any](m *ebpf.Map) func(key K) *F {
	return func(key K) *F {
		f := new(F)
		if m.Lookup(&key, f) != nil {
			return nil
		}
		return f
	}
}

// AgeOverflow frees the overflowed flows that were idle for their time-out at tick now, as flowtable's
// Scan does in the groups, and hands on a last copy of each. It returns their number.
func (p *Plane) AgeOverflow(now uint32, timeouts *flowtable.Timeouts, freed4 func(*bpf.XDPFlow4), freed6 func(*bpf.XDPFlow6)) (int, error) {
	gw := &p.mem.gateway[0]
	flows4, flows6, err := p.Overflow()
	if err != nil {
		return 0, fmt.Errorf("age overflowed flows: %w", err)
	}
	n := 0
	for i := range flows4 {
		f := &flows4[i]
		expired := func() bool { return timeouts.Expired(now, f.Key.Proto, &f.Core, &f.Leg) }
		o := overflowed{p.maps[bpf.XDPMapOverflow4], 4, &gw.Overflow4, &f.Key, f, &f.Core}
		if gone, err := p.freeOverflow(o, expired); err != nil {
			return n, err
		} else if gone {
			freed4(f)
			n++
		}
	}
	for i := range flows6 {
		f := &flows6[i]
		expired := func() bool { return timeouts.Expired(now, f.Key.Proto, &f.Core, &f.Leg) }
		o := overflowed{p.maps[bpf.XDPMapOverflow6], 6, &gw.Overflow6, &f.Key, f, &f.Core}
		if gone, err := p.freeOverflow(o, expired); err != nil {
			return n, err
		} else if gone {
			freed6(f)
			n++
		}
	}
	return n, nil
}

// KillOverflow ends the overflowed flows that choose picks, as flowtable's Kill does in the groups, and
// hands on a last copy of each. It returns their number. A packet that has found its flow before may
// still count on it, unseen by anybody.
func (p *Plane) KillOverflow(choose func(*flowtable.Flow) bool, freed func(*flowtable.Flow)) (int, error) {
	gw := &p.mem.gateway[0]
	flows4, flows6, err := p.Overflow()
	if err != nil {
		return 0, fmt.Errorf("kill overflowed flows: %w", err)
	}
	n := 0
	end := func(o overflowed, view func() (flowtable.Flow, bool)) error {
		gone, err := p.freeOverflow(o, func() bool {
			f, ok := view()
			return ok && choose(&f)
		})
		if f, ok := view(); gone && ok {
			freed(&f)
			n++
		}
		return err
	}
	for i := range flows4 {
		f := &flows4[i]
		o := overflowed{p.maps[bpf.XDPMapOverflow4], 4, &gw.Overflow4, &f.Key, f, &f.Core}
		if err := end(o, func() (flowtable.Flow, bool) { return flowtable.View4(f) }); err != nil {
			return n, err
		}
	}
	for i := range flows6 {
		f := &flows6[i]
		o := overflowed{p.maps[bpf.XDPMapOverflow6], 6, &gw.Overflow6, &f.Key, f, &f.Core}
		if err := end(o, func() (flowtable.Flow, bool) { return flowtable.View6(f) }); err != nil {
			return n, err
		}
	}
	return n, nil
}

// overflowed is a copy of a flow in a kernel hash, of either family.
type overflowed struct {
	table     *ebpf.Map
	family    uint8
	count     *int64 // of the table's entries
	key, flow any    // pointers into the copy, as are the next
	core      *bpf.XDPFlowCore
}

// freeOverflow takes a flow out of its kernel hash if ends says so of the copy, and brings the copy up to
// date. If ends says otherwise then, the flow is put back: it was away for as long as two system calls
// take.
func (p *Plane) freeOverflow(o overflowed, ends func() bool) (bool, error) {
	if !ends() {
		return false, nil
	}
	word := o.core.Word
	err := o.table.LookupAndDelete(o.key, o.flow)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("free overflowed flow: %w", err)
	}
	if o.core.Word&flowtable.WordStateMask == 0 {
		// A SYN took its word, to open the connection anew, and found it deleted: it ends here.
		o.core.Word = word
	} else if !ends() {
		err := o.table.Update(o.key, o.flow, ebpf.UpdateNoExist)
		if err == nil {
			return false, nil
		}
		if !errors.Is(err, ebpf.ErrKeyExist) {
			return false, fmt.Errorf("put overflowed flow back: %w", err)
		}
		// The same connection was opened anew meanwhile: the old one has ended.
	}
	gw := &p.mem.gateway[0]
	atomic.AddInt64(o.count, -1)
	if o.family == 6 {
		atomic.AddInt64(&gw.Flows6, -1) // before flows: see abi.h
	}
	atomic.AddInt64(&gw.Flows, -1)
	if halfOpen(o.core) {
		atomic.AddInt64(&gw.HalfOpen, -1)
	}
	return true, nil
}

func halfOpen(core *bpf.XDPFlowCore) bool {
	s := bpf.XDPFlowState(core.Word & flowtable.WordStateMask)
	return s == bpf.XDPFlowStateFLOW_SYN_SENT || s == bpf.XDPFlowStateFLOW_SYN_RECEIVED || s == bpf.XDPFlowStateFLOW_NEW
}
