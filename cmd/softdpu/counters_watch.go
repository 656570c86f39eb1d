package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/softdpu/softdpu/gateway"
)

// What can come first in a live view of counters.
var counterSorts = []string{"rate", "total", "name"}

// A counted is a counter by its name, as the daemon gave it.
type counted struct {
	kind, name     string
	packets, bytes uint64
	pps, bps       float64
}

// A counterWatch remembers one look at counters for the next.
type counterWatch struct {
	kind, noun string // titles: of the first column, of what is counted
	sort       string
	read       func(context.Context) ([]counted, error)
	before     map[[2]string]counted
}

func (w *counterWatch) next(ctx context.Context, rows int, since time.Duration) (frame, error) {
	all, err := w.read(ctx)
	if err != nil {
		return frame{}, err
	}
	return w.frame(all, rows, since, time.Now()), nil
}

// frame compares the counters with those of the look before, which was that long ago. One that was not
// there then was 0.
func (w *counterWatch) frame(all []counted, rows int, since time.Duration, now time.Time) frame {
	seen := make(map[[2]string]counted, len(all))
	var pps, bps float64
	for i := range all {
		c := &all[i]
		was := w.before[[2]string{c.kind, c.name}]
		c.pps, c.bps = perSecond(c.packets, was.packets, since), 8*perSecond(c.bytes, was.bytes, since)
		pps, bps = pps+c.pps, bps+c.bps
		seen[[2]string{c.kind, c.name}] = *c
	}
	w.before = seen
	slices.SortStableFunc(all, func(a, b counted) int {
		if w.sort == "name" {
			return cmp.Compare(a.name, b.name)
		}
		if order := cmp.Compare(b.pps, a.pps); w.sort == "rate" && order != 0 {
			return order
		}
		return cmp.Compare(b.packets, a.packets)
	})
	t := newTable(w.kind, "NAME", ">PACKETS/S", ">BITS/S", ">PACKETS", ">BYTES")
	for _, c := range all[:min(rows, len(all))] {
		packets, bits := rate(c.pps), rate(c.bps)
		if since == 0 {
			packets, bits = "-", "-"
		}
		t.add(c.kind, c.name, packets, bits, count(c.packets), size(c.bytes))
	}
	f := frame{
		title: fmt.Sprintf("%s  %s: %s packets/s, %s bits/s, by %s", now.Format(time.TimeOnly), w.noun, rate(pps), rate(bps), w.sort),
		table: t,
	}
	if len(all) > rows {
		f.below = fmt.Sprintf("... and %d more", len(all)-rows)
	}
	return f
}

// readDrops reads what was dropped and what went to the kernel.
func readDrops(client *gateway.Client, all bool) func(context.Context) ([]counted, error) {
	return func(ctx context.Context) (out []counted, err error) {
		drops, err := client.Drops(ctx, all)
		if err != nil {
			return nil, err
		}
		for _, d := range drops {
			out = append(out, counted{kind: "dropped", name: d.Reason, packets: d.Packets, bytes: d.Bytes})
		}
		passes, err := client.Passes(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range passes {
			if p.Packets > 0 || all {
				out = append(out, counted{kind: "to the kernel", name: p.Cause, packets: p.Packets, bytes: p.Bytes})
			}
		}
		return out, nil
	}
}

// readRules reads what the rules allowed or refused.
func readRules(client *gateway.Client, used bool) func(context.Context) ([]counted, error) {
	return func(ctx context.Context) (out []counted, err error) {
		rules, err := client.Rules(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			if !used || r.Judged > 0 || r.Packets > 0 {
				out = append(out, counted{kind: r.Action, name: r.Name, packets: r.Packets, bytes: r.Bytes})
			}
		}
		return out, nil
	}
}
