package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/softdpu/softdpu/gateway"
)

// What can come first in a live view of flows.
var flowSorts = []string{"bits", "packets", "total", "newest", "idle"}

// flowKey is what stays the same of a flow from one look to the next. Another flow may have it later:
// that one has counted less.
type flowKey struct {
	proto    string
	src, dst netip.AddrPort
	from     string
}

// A flowRate is a flow and what it does a second, the opener's direction first.
type flowRate struct {
	*gateway.Flow
	packets, bits [2]float64
}

// A flowWatch remembers one look at the flows for the next.
type flowWatch struct {
	client *gateway.Client
	filter string
	sort   string
	before map[flowKey]gateway.Flow
}

func (w *flowWatch) next(ctx context.Context, rows int, since time.Duration) (frame, error) {
	flows, err := w.client.Flows(ctx, w.filter, 0)
	if err != nil {
		return frame{}, err
	}
	return w.frame(flows, rows, since, time.Now()), nil
}

// frame compares the flows with those of the look before, which was that long ago.
func (w *flowWatch) frame(flows []gateway.Flow, rows int, since time.Duration, now time.Time) frame {
	rates := make([]flowRate, len(flows))
	seen := make(map[flowKey]gateway.Flow, len(flows))
	var packets, bits float64
	for i := range flows {
		f := &flows[i]
		key := flowKey{f.Proto, netip.AddrPortFrom(f.SrcIP, f.SrcPort), netip.AddrPortFrom(f.DestIP, f.DestPort), f.From}
		r := &rates[i]
		r.Flow = f
		was, known := w.before[key]
		if !known && f.AgeS > since.Seconds() {
			was = *f // it was there, and nobody looked
		}
		for d := range 2 {
			r.packets[d] = perSecond(f.Packets[d], was.Packets[d], since)
			r.bits[d] = 8 * perSecond(f.Bytes[d], was.Bytes[d], since)
			packets, bits = packets+r.packets[d], bits+r.bits[d]
		}
		seen[key] = *f
	}
	w.before = seen
	slices.SortStableFunc(rates, func(a, b flowRate) int {
		switch w.sort {
		case "packets":
			return cmp.Compare(b.packets[0]+b.packets[1], a.packets[0]+a.packets[1])
		case "total":
			return cmp.Compare(b.Bytes[0]+b.Bytes[1], a.Bytes[0]+a.Bytes[1])
		case "newest":
			return cmp.Compare(a.AgeS, b.AgeS)
		case "idle":
			return cmp.Compare(b.IdleS, a.IdleS)
		}
		if order := cmp.Compare(b.bits[0]+b.bits[1], a.bits[0]+a.bits[1]); order != 0 || since > 0 {
			return order
		}
		return cmp.Compare(b.Bytes[0]+b.Bytes[1], a.Bytes[0]+a.Bytes[1]) // nothing to compare with yet
	})
	t := newTable("PROTO", "SOURCE", "DESTINATION", "STATE", ">PACKETS/S", ">BITS/S", ">BYTES", "RULE")
	for i := range rates[:min(rows, len(rates))] {
		r := &rates[i]
		state := r.State
		if r.Revoked {
			state = "revoked"
		}
		pps, bps := rate(r.packets[0])+"/"+rate(r.packets[1]), rate(r.bits[0])+"/"+rate(r.bits[1])
		if since == 0 {
			pps, bps = "-", "-"
		}
		t.add(r.Proto, endpoint(r.Flow, r.SrcIP, r.SrcPort), endpoint(r.Flow, r.DestIP, r.DestPort), state, pps, bps,
			size(r.Bytes[0]+r.Bytes[1]), r.Rule)
	}
	f := frame{
		title: fmt.Sprintf("%s  %s, %s packets/s, %s bits/s, by %s", now.Format(time.TimeOnly), quantity(len(flows), "flow"), rate(packets), rate(bits), w.sort),
		table: t,
	}
	if len(rates) > rows {
		f.below = fmt.Sprintf("... and %d more", len(rates)-rows)
	}
	return f
}
