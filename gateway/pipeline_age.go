package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// What a round of ageing does at most, each second.
const (
	ageLook = 1 << 18 // places that are looked at
	ageTell = 1000    // entries that are told of, about
	ageStep = 1 << 10 // places that are looked at before both are counted
)

// pipelineAgeing finds entries that no packet uses any more, a part of them each second.
type pipelineAgeing struct {
	of    *appliedPipeline // whose entries these are
	pipe  int              // where to go on
	place uint32           // ... in it
	// Entries that were told of since they were last used, at that tick: in the round before, and in this one.
	before, now map[*pipe.Entry]uint32
	failing     bool
}

// agedEntry is an entry that is old.
type agedEntry struct {
	entry  *pipe.Entry
	report pipe.EntryReport
	idle   float64
	gone   bool
}

// age looks for old entries every second until ctx is done.
func (d *pipelineDesk) age(ctx context.Context) {
	ticker := time.NewTicker(scanInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		d.mu.Lock()
		err := d.ageOnce(dataplane.NowTick())
		if err != nil && !d.ageing.failing {
			d.log.Error("entries of pipes are not aged as they should be", "error", err)
		}
		d.ageing.failing = err != nil
		d.mu.Unlock()
	}
}

// ageOnce tells of entries that are old, and removes those that are to be. d.mu is held.
func (d *pipelineDesk) ageOnce(now uint32) error {
	if d.applied == nil {
		return nil
	}
	a := &d.ageing
	if a.of != d.applied {
		*a = pipelineAgeing{of: d.applied, failing: a.failing, before: make(map[*pipe.Entry]uint32), now: make(map[*pipe.Entry]uint32)}
	}
	old := make(map[int][]*agedEntry)
	if err := d.plane.Pipeline(func(prog *pipe.Program) error {
		if prog != nil {
			a.look(prog, d.applied.parsed, now, old)
		}
		return nil
	}); err != nil {
		return err
	}
	var errs []error
	for number, entries := range old {
		if err := d.dropOld(number, entries); err != nil {
			for _, e := range entries {
				delete(a.now, e.entry)
				delete(a.before, e.entry)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// look goes on with the round and notes what is old, by the pipe's number.
func (a *pipelineAgeing) look(prog *pipe.Program, parsed *pipe.Pipeline, now uint32, old map[int][]*agedEntry) {
	found := 0
	begin := a.pipe
	for looked, wrapped := uint32(0), false; looked < ageLook && found < ageTell; {
		if a.pipe >= len(parsed.Pipes) {
			a.before, a.now = a.now, make(map[*pipe.Entry]uint32)
			a.pipe, a.place, wrapped = 0, 0, true
		}
		if wrapped && a.pipe >= begin {
			return
		}
		if !prog.Ages(a.pipe) || a.place >= prog.Span(a.pipe) {
			a.pipe, a.place = a.pipe+1, 0
			continue
		}
		number := a.pipe
		prog.Aged(number, a.place, a.place+ageStep, now, ageStep, func(places []uint32) {
			for _, place := range places {
				i, used := prog.At(place)
				if i >= len(parsed.Pipes[number].Entries) {
					continue
				}
				e := parsed.Pipes[number].Entries[i]
				told, before := a.before[e]
				a.before[e], a.now[e] = used, used
				if before && told == used {
					continue
				}
				_, idle, _ := prog.Unused(number, i, now)
				old[number] = append(old[number], &agedEntry{entry: e, report: prog.Counted(number, i), idle: seconds(idle)})
				found++
			}
		})
		a.place, looked = a.place+ageStep, looked+ageStep
	}
}

// dropOld removes those of a pipe's old entries that are to be, and tells of all. d.mu is held.
func (d *pipelineDesk) dropOld(number int, entries []*agedEntry) error {
	p := d.applied.parsed.Pipes[number]
	var batch []pipe.Edit
	var which []*agedEntry
	for _, e := range entries {
		if p.Removes(e.entry) {
			batch, which = append(batch, pipe.Edit{Change: pipe.RemoveEntry, Entry: e.entry}), append(which, e)
		}
	}
	if len(batch) > 0 {
		done, rebuilt, err := d.alter(number, batch)
		if err != nil {
			return err
		}
		for i, e := range which {
			if e.gone = done[i].Err == nil; e.gone && !rebuilt {
				e.report.Packets, e.report.Bytes = &done[i].Packets, &done[i].Bytes
			}
		}
		if err := d.keepEdits(&pipelineCall{pipe: p.Name, by: "age"}, number, batch, done); err != nil {
			return err
		}
	}
	for _, e := range entries {
		d.events.pipelineAged(&evePipeline{Name: d.applied.parsed.Name, Pipe: p.Name, Entry: &evePipelineEntry{
			Name: e.report.Name, Match: e.report.Match, IdleS: e.idle, Packets: *e.report.Packets, Bytes: *e.report.Bytes, Removed: e.gone,
		}})
	}
	d.log.Info("entries of a pipe are old", "pipeline", d.applied.parsed.Name, "pipe", p.Name, "entries", len(entries), "removed", len(batch))
	return nil
}
