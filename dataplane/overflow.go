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

// AgeOverflow frees the overflowed flows that were idle for their state's time-out at tick now, and
// handshakes that took longer than it, as flowtable's Scan does in the groups, and hands on a last
// copy of each. It returns their number.
func (p *Plane) AgeOverflow(now uint32, timeouts *flowtable.Timeouts, freed4 func(*bpf.XDPFlow4), freed6 func(*bpf.XDPFlow6)) (int, error) {
	gw := &p.mem.gateway[0]
	flows4, flows6, err := p.Overflow()
	if err != nil {
		return 0, fmt.Errorf("age overflowed flows: %w", err)
	}
	n := 0
	for i := range flows4 {
		f := &flows4[i]
		o := overflowed{p.maps[bpf.XDPMapOverflow4], &gw.Overflow4, &f.Key, f, &f.Core, &f.Leg}
		if gone, err := p.freeOverflow(o, now, timeouts); err != nil {
			return n, err
		} else if gone {
			freed4(f)
			n++
		}
	}
	for i := range flows6 {
		f := &flows6[i]
		o := overflowed{p.maps[bpf.XDPMapOverflow6], &gw.Overflow6, &f.Key, f, &f.Core, &f.Leg}
		if gone, err := p.freeOverflow(o, now, timeouts); err != nil {
			return n, err
		} else if gone {
			freed6(f)
			n++
		}
	}
	return n, nil
}

// overflowed is a copy of a flow in a kernel hash, of either family.
type overflowed struct {
	table     *ebpf.Map
	count     *int64 // of the table's entries
	key, flow any    // pointers into the copy, as are the next
	core      *bpf.XDPFlowCore
	legs      *[2]bpf.XDPLeg
}

// freeOverflow takes a flow that has expired out of its kernel hash, and brings the copy up to date.
// One that saw a packet since it was copied is put back: it was away for as long as two system calls
// take.
func (p *Plane) freeOverflow(o overflowed, now uint32, timeouts *flowtable.Timeouts) (bool, error) {
	if !expired(o.core, o.legs, now, timeouts) {
		return false, nil
	}
	err := o.table.LookupAndDelete(o.key, o.flow)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("free overflowed flow: %w", err)
	}
	if !expired(o.core, o.legs, now, timeouts) {
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

func expired(core *bpf.XDPFlowCore, legs *[2]bpf.XDPLeg, now uint32, timeouts *flowtable.Timeouts) bool {
	s := bpf.XDPFlowState(core.Word & flowtable.WordStateMask)
	if s >= bpf.XDPFlowStateFLOW_STATE_LEN || timeouts[s] == 0 {
		return false
	}
	since := max(int32(legs[0].Seen-now), int32(legs[1].Seen-now))
	if s == bpf.XDPFlowStateFLOW_SYN_SENT || s == bpf.XDPFlowStateFLOW_SYN_RECEIVED {
		since = min(since, int32(core.Created-now))
	}
	return -int64(since) >= int64(timeouts[s])
}
