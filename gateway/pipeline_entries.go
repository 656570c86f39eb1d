package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/mistake"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
)

// Bounds of what is asked of entries.
const (
	maxPipelineEdits = 100_000   // entries of one call
	maxPipelineFound = 10_000    // entries of one answer
	pipelineLook     = 1_000_000 // entries that one question looks at
)

// PipelineEdited is what became of a batch of changes of entries.
type PipelineEdited struct {
	Pipe    string `json:"pipe"`
	Added   int    `json:"added"`
	Updated int    `json:"updated"`
	Removed int    `json:"removed"`
	Failed  int    `json:"failed"`  // that were not changed
	Entries int    `json:"entries"` // of the pipe now
	Size    int    `json:"size"`    // room for entries; 0: for those that it was applied with
	// Rebuilt says that another program was put in force, in the place of changes of its memory.
	Rebuilt bool                  `json:"rebuilt"`
	Results []PipelineEntryResult `json:"results"` // one for each entry, in their order
}

// PipelineEntryResult is what became of one change.
type PipelineEntryResult struct {
	Change string `json:"change"` // "add", "update" or "remove"
	Line   int    `json:"line"`   // of what was sent
	Error  string `json:"error"`  // "": it is done
	Hint   string `json:"hint"`
	// What all packets of an entry that was removed came to; null of others, and when another program was put in force.
	Packets *uint64 `json:"packets"`
	Bytes   *uint64 `json:"bytes"`
}

// PipelineEntries are entries of a pipe.
type PipelineEntries struct {
	Pipe    string          `json:"pipe"`
	Kind    pipe.Kind       `json:"kind"`
	Size    int             `json:"size"`  // room for entries; 0: for those that it was applied with
	Total   int             `json:"total"` // entries that there are
	Entries []PipelineEntry `json:"entries"`
	Next    *int            `json:"next"` // what to go on after; null: that was all
}

// PipelineEntry is one entry.
type PipelineEntry struct {
	Name     string   `json:"name"`
	Priority int      `json:"priority"`
	Match    []string `json:"match"`
	Forward  string   `json:"forward"`
	Packets  *uint64  `json:"packets"` // null if it does not count
	Bytes    *uint64  `json:"bytes"`
	IdleS    *float64 `json:"idle_s"`   // since its last packet; null if there was none, or it does not count
	AgeS     *float64 `json:"age_s"`    // after which it is told of; null if it does not age
	UnusedS  *float64 `json:"unused_s"` // that no packet has used it for; null if it does not age
	// Entry is what a file says: what changes take.
	Entry json.RawMessage `json:"entry"`
}

// unknownPipe says that there is nothing of that name.
type unknownPipe struct{ why mistake.Error }

func (u *unknownPipe) Error() string { return u.why.Msg }

// find returns what was applied, and the number of a pipe of it. d.mu is held.
func (d *pipelineDesk) find(name string) (*appliedPipeline, int, error) {
	if d.applied == nil {
		return nil, 0, &unknownPipe{mistake.Error{Msg: "no pipeline is in force", Hint: "`softdpu pipeline apply` puts one in force"}}
	}
	parsed := d.applied.parsed
	number := parsed.Number(name)
	if number < 0 {
		names := make([]string, len(parsed.Pipes))
		for i, p := range parsed.Pipes {
			names[i] = p.Name
		}
		return nil, 0, &unknownPipe{firewall.Unknown(mistake.Pos{}, "pipe", name, names, "`softdpu pipeline show` lists the pipes")}
	}
	return d.applied, number, nil
}

// pipelineCall asks for changes of entries.
type pipelineCall struct {
	pipe, change, by, comment string
	text                      []byte
}

// edit changes entries of a pipe, keeps that, and tells what became of each. The error is a firewall.Errors or an unknownPipe
// if nothing was changed.
func (d *pipelineDesk) edit(c *pipelineCall) (*PipelineEdited, error) {
	var read *appliedPipeline
	var batch []pipe.Edit
	for {
		d.mu.Lock()
		applied, number, err := d.find(c.pipe)
		if err != nil {
			d.mu.Unlock()
			return nil, err
		}
		if applied == read {
			defer d.mu.Unlock()
			return d.editRead(c, number, batch)
		}
		parsed := applied.parsed
		d.mu.Unlock()
		// Reading takes long, and asks only what changes of entries leave as it is.
		if batch, err = pipefile.ParseEdits("entries", c.text, parsed, number, c.change); err != nil {
			return nil, err
		}
		if len(batch) > maxPipelineEdits {
			return nil, firewall.Errors{{Msg: fmt.Sprintf("%d entries are more than the %d of one call", len(batch), maxPipelineEdits), Hint: "give them in several calls"}}
		}
		read = applied
	}
}

// editRead makes the changes of a batch. d.mu is held.
func (d *pipelineDesk) editRead(c *pipelineCall, number int, batch []pipe.Edit) (*PipelineEdited, error) {
	done, rebuilt, err := d.alter(number, batch)
	if err != nil {
		return nil, err
	}
	p := d.applied.parsed.Pipes[number]
	out := &PipelineEdited{Pipe: p.Name, Entries: len(p.Entries), Rebuilt: rebuilt, Results: make([]PipelineEntryResult, len(batch))}
	if err := d.plane.Pipeline(func(prog *pipe.Program) error {
		if prog != nil {
			out.Size = prog.Room(number)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for i := range batch {
		r := &out.Results[i]
		r.Line = batch[i].Entry.Pos.Line
		for _, change := range pipefile.Changes {
			if change.Change == batch[i].Change {
				r.Change = change.Name
			}
		}
		switch err := done[i].Err; {
		case err != nil:
			out.Failed++
			r.Error, r.Hint = whyNot(p, err)
		case batch[i].Change == pipe.InsertEntry:
			out.Added++
		case batch[i].Change == pipe.UpdateEntry:
			out.Updated++
		default:
			out.Removed++
			if !rebuilt {
				r.Packets, r.Bytes = &done[i].Packets, &done[i].Bytes
			}
		}
	}
	if out.Failed == len(batch) {
		return out, nil
	}
	d.tellEdited(c, out)
	if err := d.keepEdits(c, number, batch, done); err != nil {
		return nil, fmt.Errorf("the entries are changed, and will not be so after a restart: %w", err)
	}
	return out, nil
}

// alter makes the changes of a batch in memory, or puts another program in force. d.mu is held. The error is a firewall.Errors if
// the pipeline that would come of it asks what pipes cannot do; then nothing has changed.
func (d *pipelineDesk) alter(number int, batch []pipe.Edit) (done []pipe.Edited, rebuilt bool, err error) {
	parsed := d.applied.parsed
	done = make([]pipe.Edited, len(batch))
	mistakes := parsed.CheckEdits(number, batch)
	resolved, ports, absent := parsed.ResolveEdits(number, batch, d.ports())
	var which []int
	var good, ready []pipe.Edit
	for i := range batch {
		if done[i].Err = mistakes[i]; done[i].Err == nil {
			done[i].Err = absent[i]
		}
		if done[i].Err == nil {
			which, good, ready = append(which, i), append(good, batch[i]), append(ready, resolved[i])
		}
	}
	if len(good) == 0 {
		return done, false, nil
	}
	results, err := d.plane.EditPipeline(parsed.Pipes[number].Name, ready, ports)
	switch {
	case errors.Is(err, pipe.ErrRebuild):
		partly := errors.Is(err, pipe.ErrPartly)
		rebuilt = true
		if results, err = d.rebuild(number, good); err != nil && partly {
			if again := d.put(parsed, d.traced); again != nil { // as it was
				err = fmt.Errorf("%w; a part of the changes is in force until the pipeline is applied again: %w", err, again)
			}
		}
		if err != nil {
			return nil, false, err
		}
	case err != nil:
		return nil, false, err
	default:
		parsed.Pipes[number].Follow(good, results)
	}
	for n, i := range which {
		done[i] = results[n]
	}
	return done, rebuilt, nil
}

// rebuild puts a program with other entries in force.
func (d *pipelineDesk) rebuild(number int, batch []pipe.Edit) ([]pipe.Edited, error) {
	next, done := d.applied.parsed.Edit(number, batch)
	if _, err := next.Check(); err != nil {
		return nil, err
	}
	if err := d.put(next, d.traced); err != nil {
		return nil, err
	}
	d.applied.parsed = next
	return done, nil
}

// whyNot says why an entry was not changed, and what would work.
func whyNot(p *pipe.Pipe, err error) (what, hint string) {
	var errs firewall.Errors
	switch {
	case errors.As(err, &errs):
		return errs[0].Msg, errs[0].Hint
	case errors.Is(err, pipe.ErrFull) && p.Resizable:
		return fmt.Sprintf("pipe %q is full: it has %d entries, and no pipe has more", p.Name, len(p.Entries)), "remove entries first, or split it over several pipes"
	case errors.Is(err, pipe.ErrFull):
		return fmt.Sprintf("pipe %q is full: it has room for %d entries", p.Name, max(p.Size, len(p.Entries))), "raise its size, or add resizable: true, and apply the pipeline"
	case errors.Is(err, pipe.ErrDuplicate):
		return "the entry is there already: another one would take the same packets", "update it"
	case errors.Is(err, pipe.ErrNotFound):
		return "there is no such entry", fmt.Sprintf("`softdpu pipeline entries %s` lists those that there are", p.Name)
	case errors.Is(err, pipe.ErrName):
		return "another entry of the pipe has this name", "give each entry a name of its own, or none"
	}
	return err.Error(), "the log of softdpu may say more"
}

// tellEdited writes log and event.
func (d *pipelineDesk) tellEdited(c *pipelineCall, done *PipelineEdited) {
	name := d.applied.parsed.Name
	d.log.Info("entries of a pipe changed", "pipeline", name, "pipe", done.Pipe, "added", done.Added, "updated", done.Updated, "removed", done.Removed,
		"failed", done.Failed, "entries", done.Entries, "rebuilt", done.Rebuilt, "by", c.by, "comment", c.comment)
	d.events.pipelineChange(c.by, c.comment, &evePipeline{
		Name: name, Pipe: done.Pipe, Entries: &done.Entries, Added: done.Added, Updated: done.Updated, Removed: done.Removed,
	})
}

// keepEdits keeps what was done for the next start. d.mu is held.
func (d *pipelineDesk) keepEdits(c *pipelineCall, number int, batch []pipe.Edit, done []pipe.Edited) error {
	if d.kept.full() {
		return d.kept.replace(d.applied, pipefile.JSON(d.applied.parsed))
	}
	return d.kept.add(&keptChange{
		Pipe: c.pipe, At: time.Now().UTC(), By: c.by, Comment: c.comment, Batch: keptBatch(d.applied.parsed, number, batch, done),
	})
}

// pipelineQuestion asks for entries.
type pipelineQuestion struct {
	pipe, name   string
	match        []string // FIELD=VALUE
	after, limit int
}

// query returns entries of a pipe as they stand.
func (d *pipelineDesk) query(q *pipelineQuestion) (*PipelineEntries, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	applied, number, err := d.find(q.pipe)
	if err != nil {
		return nil, err
	}
	parsed := applied.parsed
	p := parsed.Pipes[number]
	asked, err := parsed.ParseQuery(q.name, q.match, d.ports())
	if err != nil {
		return nil, err
	}
	out := &PipelineEntries{Pipe: p.Name, Kind: p.Kind, Total: len(p.Entries), Entries: []PipelineEntry{}}
	write := pipefile.EntryJSON(parsed, number)
	err = d.plane.Pipeline(func(prog *pipe.Program) error {
		if prog == nil {
			return dataplane.ErrNoPipeline
		}
		out.Size = prog.Room(number)
		now := dataplane.NowTick()
		found, next := prog.Find(number, asked, q.after, pipelineLook, q.limit)
		for _, i := range found {
			r := prog.EntryReport(number, i, now)
			e := PipelineEntry{Name: r.Name, Priority: r.Priority, Match: r.Match, Forward: r.Forward, Packets: r.Packets, Bytes: r.Bytes, IdleS: r.IdleS}
			if age, unused, ages := prog.Unused(number, i, now); ages {
				ageS, unusedS := seconds(age), seconds(unused)
				e.AgeS, e.UnusedS = &ageS, &unusedS
			}
			var b bytes.Buffer
			write(&b, p.Entries[i])
			e.Entry = b.Bytes()
			out.Entries = append(out.Entries, e)
		}
		if next >= 0 {
			out.Next = &next
		}
		return nil
	})
	return out, err
}
