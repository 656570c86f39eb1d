package pipe

import (
	"fmt"
	"maps"
	"slices"

	"github.com/softdpu/softdpu/firewall/mistake"
)

// Number is that of the pipe with a name, -1 if there is none.
func (p *Pipeline) Number(name string) int {
	return slices.IndexFunc(p.Pipes, func(pipe *Pipe) bool { return pipe.Name == name })
}

// Edit returns a pipeline in which a pipe has other entries, to be checked and compiled: what [Program.Edit] does in place where it
// can. P stays as it is. Numbers in the answer are those that entries have in the order in which they came.
func (p *Pipeline) Edit(number int, batch []Edit) (*Pipeline, []Edited) {
	e := &Editor{line: p, models: make(map[int]*model)}
	done := e.Edit(number, batch)
	return e.Pipeline(), done
}

// Editor changes entries of a pipeline's pipes many times over.
type Editor struct {
	line   *Pipeline
	models map[int]*model
	// done says that all changes have been made once, so that there is room for them.
	done bool
}

// Editor begins with what the pipeline has, to make changes again that were made to it.
func (p *Pipeline) Editor() *Editor {
	return &Editor{line: p, models: make(map[int]*model), done: true}
}

// Edit makes the changes of a batch, in its order.
func (e *Editor) Edit(number int, batch []Edit) []Edited {
	m := e.models[number]
	if m == nil {
		m = modelOf(e.line.Pipes[number])
		if e.done {
			m.full = MaxEntries
		}
		e.models[number] = m
	}
	done := make([]Edited, len(batch))
	for i := range batch {
		done[i] = m.edit(batch[i].Change, batch[i].Entry)
	}
	return done
}

// Pipeline is what came of it, to be checked. The editor is not used again.
func (e *Editor) Pipeline() *Pipeline {
	out := *e.line
	out.Pipes = slices.Clone(e.line.Pipes)
	for number, m := range e.models {
		pipe := *out.Pipes[number]
		pipe.Entries = slices.DeleteFunc(m.entries, func(e *Entry) bool { return e == nil })
		if n := len(pipe.Entries); pipe.Resizable && n > max(pipe.Size, pipe.grown) {
			pipe.grown = min(2*n, MaxEntries)
		}
		out.Pipes[number] = &pipe
	}
	return &out
}

// model are the entries of a pipe as they are found.
type model struct {
	pipe    *Pipe
	entries []*Entry // nil: removed
	n       int
	full    int // most entries
	byKey   map[string]int
	byName  map[string]int
}

func modelOf(p *Pipe) *model {
	m := &model{pipe: p, entries: slices.Clone(p.Entries), n: len(p.Entries), byKey: make(map[string]int, len(p.Entries)), byName: make(map[string]int)}
	m.full = p.Size
	if m.full == 0 && !p.Fixed && (p.Kind == Basic || p.Kind == LPM) {
		m.full = p.Room()
	}
	if m.full == 0 || p.Resizable {
		m.full = MaxEntries
	}
	for i, e := range p.Entries {
		if _, twice := m.byKey[p.handle(e)]; !twice {
			m.byKey[p.handle(e)] = i
		}
		if e.Name != "" {
			m.byName[e.Name] = i
		}
	}
	return m
}

func (m *model) find(e *Entry) (at int, there bool) {
	if e.Name != "" && m.pipe.keyless(e) {
		at, there = m.byName[e.Name]
		return at, there
	}
	at, there = m.byKey[m.pipe.handle(e)]
	return at, there
}

func (m *model) edit(change Change, e *Entry) Edited {
	at, there := m.find(e)
	name, named := m.byName[e.Name]
	named = named && e.Name != ""
	switch {
	case change != InsertEntry && !there:
		return Edited{Err: ErrNotFound}
	case change == InsertEntry && there && named && name == at && m.pipe.keyless(e):
		return Edited{Err: ErrName}
	case change == InsertEntry && there:
		return Edited{Err: ErrDuplicate, At: at}
	case change != RemoveEntry && named && (name != at || !there):
		return Edited{Err: ErrName}
	case change == InsertEntry && m.n >= m.full:
		return Edited{Err: ErrFull}
	}
	if there {
		old := m.entries[at]
		delete(m.byKey, m.pipe.handle(old))
		if old.Name != "" {
			delete(m.byName, old.Name)
		}
	}
	switch change {
	case RemoveEntry:
		m.entries[at] = nil
		m.n--
		return Edited{At: at}
	case InsertEntry:
		at = len(m.entries)
		m.entries = append(m.entries, e)
		m.n++
	default:
		m.entries[at] = e
	}
	m.byKey[m.pipe.handle(e)] = at
	if e.Name != "" {
		m.byName[e.Name] = at
	}
	return Edited{At: at}
}

// handle is what an entry is found by, beside its name.
func (p *Pipe) handle(e *Entry) string {
	switch p.Kind {
	case Basic, LPM:
		return string(e.key(nil))
	case Hash, OrderedList:
		return fmt.Sprint(e.Index)
	}
	return string(e.identity(nil))
}

// CheckEdits finds what is wrong with entries for a pipe, whatever others it has: the [mistake.Errors] of each, or nil. The
// pipeline itself has been checked.
func (p *Pipeline) CheckEdits(number int, batch []Edit) []error {
	c := &checker{pipeline: p, byName: make(map[string]*Pipe)}
	c.used.meters, c.used.mirrors = make(map[string]bool), make(map[string]bool)
	c.used.counters, c.used.fields = make(map[string]bool), make(map[string]bool)
	for _, pipe := range p.Pipes {
		c.byName[pipe.Name] = pipe
	}
	pipe := p.Pipes[number]
	errs := make([]error, len(batch))
	for i := range batch {
		e := batch[i].Entry
		at := subject{pos: e.Pos, pipe: pipe, entry: e, number: i}
		c.errs, c.warnings = nil, nil
		switch {
		case pipe.Kind == CT:
			c.fail(at.Errorf("a ct pipe has no entries").WithHint("it finds the gateway's flows, and says their state in ct.state"))
		case batch[i].Change != RemoveEntry:
			c.entry(at, pipe, e)
		case e.Name != "" && pipe.keyless(e):
		case pipe.Kind == Basic:
			c.exact(at, pipe.Match, e)
		case pipe.Kind == LPM:
			c.exact(at, pipe.Match[1:], e)
			c.prefix(at, pipe.Match[0].Field, e)
		}
		if len(c.errs) > 0 {
			errs[i] = c.errs.Sorted()
		}
	}
	return errs
}

// ResolveEdits returns the same edits with the ids of ports in the place of their names. Ports that entries forward to are
// noted in known, the pipeline's own, too. The error of each is nil or a [mistake.Errors].
func (p *Pipeline) ResolveEdits(number int, batch []Edit, ports map[string]uint32) ([]Edit, map[string]uint32, []error) {
	r := &resolver{known: ports, used: make(map[string]uint32)}
	pipe := p.Pipes[number]
	out := slices.Clone(batch)
	errs := make([]error, len(batch))
	for i := range out {
		r.faults = nil
		where := fmt.Sprintf("pipe %q, %s", pipe.Name, batch[i].Entry.title(i))
		if batch[i].Change != RemoveEntry {
			r.forward(where, batch[i].Entry.Forward)
		}
		out[i].Entry = r.entry(where, batch[i].Entry)
		if len(r.faults) > 0 {
			errs[i] = mistake.Errors(r.faults).Sorted()
		}
	}
	return out, r.used, errs
}

// UsePorts notes ports that entries forward to from now on.
func (p *Pipeline) UsePorts(ids map[string]uint32) { maps.Copy(p.Ports, ids) }
