package dataplane

import (
	"fmt"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// SweepOverflow frees the aliases of translated flows among what found no place in its groups whose flows
// are gone, 2 s after they were made and later; t is the table that they belong to. A flow that ends, in the
// groups or beside them, leaves such an alias to this.
func (p *Plane) SweepOverflow(t *flowtable.Table, now uint32) error {
	gw := &p.mem.gateway[0]
	if atomic.LoadInt64(&gw.Aliases) == 0 {
		return nil
	}
	flows4, flows6, err := p.Overflow()
	if err != nil {
		return fmt.Errorf("sweep overflowed aliases: %w", err)
	}
	for i := range flows4 {
		f := flows4[i]
		o := overflowed{p.maps[bpf.XDPMapOverflow4], 4, &gw.Overflow4, &f.Key, &f, &f.Core}
		if gone, err := p.freeOverflow(o, func() bool { return t.Orphan4(&f, now, flows4) }); err != nil {
			return err
		} else if gone {
			t.Release4(&f)
		}
	}
	for i := range flows6 {
		f := flows6[i]
		o := overflowed{p.maps[bpf.XDPMapOverflow6], 6, &gw.Overflow6, &f.Key, &f, &f.Core}
		if gone, err := p.freeOverflow(o, func() bool { return t.Orphan6(&f, now, flows6) }); err != nil {
			return err
		} else if gone {
			t.Release6(&f)
		}
	}
	return nil
}
