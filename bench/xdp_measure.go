package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable"
)

const (
	xdpDrop     = 1
	xdpRedirect = 4
)

// measure takes one round of a scenario beside one of the empty program, and proves by counters that
// every packet took the path that its name says.
func (r *rig) measure(b *bedded, keep bool) error {
	if err := b.target.Put(uint32(0), b.empty); err != nil {
		return err
	}
	_, base, err := testRun(b.prologue, b.frame, b.ingress.Index, b.rounds)
	if err != nil {
		return err
	}
	if err := b.target.Put(uint32(0), b.prog); err != nil {
		return err
	}
	reasons, err := r.plane.Reasons()
	if err != nil {
		return err
	}
	passes, err := r.plane.Passes()
	if err != nil {
		return err
	}
	table, err := r.plane.TableCounters()
	if err != nil {
		return err
	}
	verdict, whole, err := testRun(b.prologue, b.frame, b.ingress.Index, b.rounds)
	if err != nil {
		return err
	}
	if err := r.prove(b, verdict, reasons, passes, table); err != nil {
		if b.creates { // the next try must not find its flows there
			_, clearErr := r.clear(b)
			err = errors.Join(err, clearErr)
		}
		return err
	}
	if keep {
		b.base = append(b.base, float64(base))
		b.whole = append(b.whole, float64(whole))
		b.cost = append(b.cost, float64(whole-base))
	}
	return nil
}

func (r *rig) prove(b *bedded, verdict uint32, reasons [bpf.XDPReasonREASON_LEN]bpf.XDPCounter, passes [bpf.XDPPassCausePASS_LEN]bpf.XDPCounter, table bpf.XDPTableCounter) error {
	after, err := r.plane.Reasons()
	if err != nil {
		return err
	}
	for i := range after {
		want := uint64(0)
		if bpf.XDPReason(i) == b.reason && b.reason != bpf.XDPReasonREASON_NONE {
			want = uint64(b.rounds)
		}
		if got := after[i].Packets - reasons[i].Packets; got != want {
			return fmt.Errorf("%d of %d packets ended as %s, expected %d", got, b.rounds, bpf.XDPReason(i), want)
		}
	}
	if p, err := r.plane.Passes(); err != nil || p != passes {
		return errors.Join(err, errors.New("packets went to the kernel"))
	}
	want := uint32(xdpRedirect)
	if b.reason != bpf.XDPReasonREASON_NONE {
		want = xdpDrop
	}
	if verdict != want {
		return fmt.Errorf("last verdict %d, expected %d", verdict, want)
	}
	now, err := r.plane.TableCounters()
	if err != nil {
		return err
	}
	created := now.Created - table.Created
	switch {
	case b.creates && created != uint64(b.rounds):
		return fmt.Errorf("%d of %d packets created a flow", created, b.rounds)
	case !b.creates && created != 0:
		return fmt.Errorf("%d packets created a flow", created)
	case b.creates:
		gone, err := r.clear(b)
		if left := int64(created - (now.Evicted - table.Evicted)); err == nil && gone != left {
			err = fmt.Errorf("%d flows were in the table, expected %d", gone, left)
		}
		return err
	}
	return nil
}

// clear takes the flows away that a creating scenario left, and returns their number.
func (r *rig) clear(b *bedded) (int64, error) {
	if b.nat {
		return r.clearTranslated(b.conn(0).dport)
	}
	flows := r.plane.Flows()
	port := b.conn(0).dport
	var network [2]byte
	binary.BigEndian.PutUint16(network[:], port)
	port = binary.NativeEndian.Uint16(network[:])
	gone := int64(0)
	for g := range flows.Groups4 {
		for s := range flows.Groups4[g].Slot {
			f := &flows.Groups4[g].Slot[s]
			if f.Core.Word&0xff != 0 && (f.Key.LoPort == port || f.Key.HiPort == port) {
				f.Core.Word &^= 0xff
				gone++
			}
		}
	}
	flows.Gateway.Flows -= gone
	flows.Gateway.HalfOpen -= gone
	var half flowtable.Timeouts
	half[flowtable.ClassUDP][bpf.XDPFlowStateFLOW_NEW] = 1
	overflowed, err := r.plane.AgeOverflow(dataplane.NowTick()+flowtable.Ticks(time.Second), &half, func(*bpf.XDPFlow4) {}, func(*bpf.XDPFlow6) {})
	return gone + int64(overflowed), err
}

// clearTranslated is clear for flows that hold ports.
func (r *rig) clearTranslated(port uint16) (int64, error) {
	table, err := r.plane.Table()
	if err != nil {
		return 0, err
	}
	held, done := r.plane.NATPorts()
	defer done()
	table.SetNATPorts(held.Layout, held.Bitmaps)
	grace := func() {
		if graceErr := dataplane.Grace(); graceErr != nil {
			err = graceErr
		}
	}
	gone := table.Kill(func(f *flowtable.Flow) bool { return f.Tuple.DstPort == port }, grace, func(*flowtable.Flow) {})
	return int64(gone), err
}
