package pipe

import (
	"fmt"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall/mistake"
)

// Limits of what a pipeline may hold.
const (
	MaxPipes    = int(bpf.PipesPipeLimitPIPE_PIPES)
	MaxMeters   = int(bpf.PipesPipeLimitPIPE_METERS)
	MaxMirrors  = int(bpf.PipesPipeLimitPIPE_GROUPS) / 2 // the others are those of copies and of what goes to a port besides
	MaxCounters = 1024
	MaxValues   = int(bpf.PipesPipeLimitPIPE_VALUES) // words of an entry's own operands
	MaxKey      = int(bpf.PipesPipeLimitPIPE_KEY)    // words that a basic and a hash pipe compare or hash
	MaxEntries  = 1 << 24                            // of a pipe
	MaxSlots    = 1 << 16                            // of a hash pipe and of an ordered list
	MaxOps      = 16                                 // steps of an action
	MaxActions  = 64                                 // templates of a pipe
	MaxCopies   = 32                                 // ports of a mirror, and of a pipe that floods
)

// Check finds everything that a pipeline asks for and pipes cannot do. The error is a [mistake.Errors]: each says which
// pipe, entry and field, where in the file it stands, and what would work. Warnings are about what can be done, and is
// not likely to be meant. What compiles has been checked, so [Compile] and others need not look again.
func (p *Pipeline) Check() (warnings mistake.Errors, err error) {
	c := &checker{pipeline: p, byName: make(map[string]*Pipe), goes: make(map[*Pipe]*ways)}
	c.used.meters, c.used.mirrors = make(map[string]bool), make(map[string]bool)
	c.used.counters, c.used.fields = make(map[string]bool), make(map[string]bool)
	c.shared()
	c.pipes()
	c.graph()
	c.unused()
	if len(c.errs) > 0 {
		return nil, c.errs.Sorted()
	}
	return c.warnings.Sorted(), nil
}

// checker is one run of [Pipeline.Check].
type checker struct {
	pipeline       *Pipeline
	byName         map[string]*Pipe
	goes           map[*Pipe]*ways // as far as they were asked for
	errs, warnings mistake.Errors
	named          struct{ meters, mirrors, counters map[string]bool } // by the pipeline
	used           struct {
		meters, mirrors, counters, fields map[string]bool
	}
}

// ways are where the packets of a pipe go.
type ways struct {
	targets []Target
	pipes   []string
}

func (c *checker) fail(e mistake.Error) { c.errs = append(c.errs, e) }
func (c *checker) warn(e mistake.Error) { c.warnings = append(c.warnings, e) }

// subject says what a mistake is about.
type subject struct {
	pos    Pos
	pipe   *Pipe
	entry  *Entry
	number int    // of the entry in its pipe
	part   string // of the pipe or the entry: "field ip.ttl", "action 2"
}

// Errorf makes a mistake at p, whose message begins with what it is about.
func (p subject) Errorf(format string, args ...any) mistake.Error {
	who := ""
	if p.pipe != nil {
		who = fmt.Sprintf("pipe %q: ", p.pipe.Name)
	}
	if p.entry != nil {
		who += p.entry.title(p.number) + ": "
	}
	if p.part != "" {
		who += p.part + ": "
	}
	return p.pos.Errorf("%s"+format, append([]any{who}, args...)...)
}

// in narrows p to a part of it, which stands at pos if that is known.
func (p subject) in(pos Pos, format string, args ...any) subject {
	if pos != (Pos{}) {
		p.pos = pos
	}
	part := fmt.Sprintf(format, args...)
	if p.part != "" {
		part = p.part + ", " + part
	}
	p.part = part
	return p
}

// field narrows p to a field.
func (p subject) field(pos Pos, f *Field) subject { return p.in(pos, "field %s", f.Name) }

// name checks a name that the pipeline gives, and that it gives it once.
func (c *checker) name(at subject, name string, taken map[string]bool) {
	if fault := nameFault(name); fault != "" {
		c.fail(at.Errorf("%q is no name: %s", name, fault).WithHint("as in: to-dmz, ecmp_2"))
	}
	if taken[name] {
		c.fail(at.Errorf("the name is given twice").WithHint("give each one a name of its own"))
	}
	taken[name] = true
}

// nameFault says what is wrong with a name; "" if nothing.
func nameFault(name string) string {
	if name == "" {
		return "it is empty"
	}
	if len(name) > mistake.LongestName {
		return fmt.Sprintf("it is longer than %d characters", mistake.LongestName)
	}
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || r != '-' && r != '_' && r != '.') {
			return "a name consists of letters, digits, - _ and dots, and begins with a letter or digit"
		}
	}
	return ""
}

// shared checks what pipes share: names of the pipeline itself, meters, mirrors, counters and raw fields.
func (c *checker) shared() {
	p := c.pipeline
	here := subject{pos: p.Pos}
	c.name(here.in(p.Pos, "pipeline"), p.Name, make(map[string]bool))
	if n := len(p.Meters); n > MaxMeters {
		c.fail(here.Errorf("%d meters: a pipeline has at most %d", n, MaxMeters).WithHint("let entries share meters"))
	}
	taken := make(map[string]bool)
	c.named.meters = taken
	for _, m := range p.Meters {
		at := here.in(m.Pos, "meter %q", m.Name)
		c.name(at, m.Name, taken)
		c.meter(at, m)
	}
	if n := len(p.Counters); n > MaxCounters {
		c.fail(here.Errorf("%d shared counters: a pipeline has at most %d", n, MaxCounters).WithHint("entries have counters of their own: `count: true`"))
	}
	taken = make(map[string]bool)
	c.named.counters = taken
	for _, name := range p.Counters {
		c.name(here.in(p.Pos, "counter %q", name), name, taken)
	}
	c.mirrors(here)
	c.raws(here)
}

func (c *checker) mirrors(here subject) {
	p := c.pipeline
	if n := len(p.Mirrors); n > MaxMirrors {
		c.fail(here.Errorf("%d mirrors: a pipeline has at most %d", n, MaxMirrors).WithHint("let entries share mirrors"))
	}
	taken := make(map[string]bool)
	c.named.mirrors = taken
	for _, m := range p.Mirrors {
		at := here.in(m.Pos, "mirror %q", m.Name)
		c.name(at, m.Name, taken)
		if n := len(m.Ports); n == 0 || n > MaxCopies {
			c.fail(at.Errorf("it copies to %d ports: a mirror has 1 to %d", n, MaxCopies).WithHint("name those that get a copy"))
		}
		for i, port := range m.Ports {
			if port == "" {
				c.fail(at.Errorf("a port without a name").WithHint("the gateway's configuration names its ports"))
			} else if slices.Contains(m.Ports[:i], port) {
				c.fail(at.Errorf("port %q is named twice", port).WithHint("a port gets one copy"))
			}
		}
	}
}

func (c *checker) raws(here subject) {
	p := c.pipeline
	if n := len(p.Raws); n > MaxRaws {
		c.fail(here.Errorf("%d raw fields: a pipeline has at most %d", n, MaxRaws).WithHint("one field holds 32 bits, of which pipes match parts by masks"))
	}
	taken := make(map[string]bool)
	for _, r := range p.Raws {
		at := here.in(r.Pos, "raw field %q", r.Name)
		c.name(at, r.Name, taken)
		if !slices.Contains(bases, r.Base) {
			c.fail(at.Errorf("it begins at %q, which is no place in a packet", r.Base).WithHint("it is one of: l2, l3, l4, payload"))
		}
		if r.Offset < 0 || r.Offset > 255 {
			c.fail(at.Errorf("offset %d: a raw field lies 0 to 255 bytes behind its base", r.Offset).WithHint("choose a base that is nearer"))
		}
	}
}

// bases are where raw fields may begin.
var bases = []string{"l2", "l3", "l4", "payload"}

// graph checks that packets find an end: from the root on, without coming back.
func (c *checker) graph() {
	p := c.pipeline
	here := subject{pos: p.Pos}
	root := c.byName[p.Root]
	switch {
	case root == nil:
		names := make([]string, len(p.Pipes))
		for i, pipe := range p.Pipes {
			names[i] = pipe.Name
		}
		c.fail(nearHint(here.Errorf("the root is pipe %q, which there is not", p.Root), p.Root, names, "name the pipe that packets enter first"))
		return
	case root.Kind == OrderedList:
		c.fail(here.Errorf("the root is pipe %q, an ordered list, and no packet comes with an index", p.Root).WithHint("begin with a pipe that forwards to it with an index"))
	}
	const open, done = 1, 2
	state := make(map[*Pipe]int)
	var path []*Pipe
	var visit func(pipe *Pipe)
	visit = func(pipe *Pipe) {
		state[pipe] = open
		path = append(path, pipe)
		for _, f := range pipe.everyForward() {
			next := c.byName[f.Name]
			if f.To != ToPipe || next == nil {
				continue
			}
			if state[next] == open {
				loop := ""
				for _, step := range append(path[slices.Index(path, next):], next) {
					loop += fmt.Sprintf(" -> %s", step.Name)
				}
				c.fail(subject{pos: f.Pos, pipe: pipe}.in(f.Pos, "forward").Errorf("packets would come back to pipe %q:%s", next.Name, loop[len(" ->"):]).
					WithHint("pipelines have no loops: forward to a later pipe, or out"))
			} else if state[next] == 0 {
				visit(next)
			}
		}
		path = path[:len(path)-1]
		state[pipe] = done
	}
	visit(root)
	for _, pipe := range p.Pipes {
		if state[pipe] == 0 && c.byName[pipe.Name] == pipe {
			c.warn(subject{pos: pipe.Pos, pipe: pipe}.Errorf("no packet gets there").WithHint("forward to it from a pipe that packets reach, or leave it out"))
			visit(pipe)
		}
	}
}

// nearHint gives a mistake about a word the hint of the known one that is nearest, or otherwise.
func nearHint(e mistake.Error, word string, known []string, otherwise string) mistake.Error {
	if n := mistake.Nearest(word, known); n != "" {
		return e.WithHint("did you mean %q?", n)
	}
	return e.WithHint("%s", otherwise)
}

// everyForward are all forwards of the pipe.
func (p *Pipe) everyForward() []*Forward {
	list := []*Forward{&p.Miss}
	if p.Forward != nil {
		list = append(list, p.Forward)
	}
	for _, e := range p.Entries {
		if e.Forward != nil {
			list = append(list, e.Forward)
		}
	}
	return list
}

// unused warns of what the pipeline names and no entry uses.
func (c *checker) unused() {
	p := c.pipeline
	for _, m := range p.Meters {
		if !c.used.meters[m.Name] {
			c.warn(subject{pos: m.Pos}.Errorf("meter %q is not used", m.Name).WithHint("name it in a monitor: `meter: %s`", m.Name))
		}
	}
	for _, m := range p.Mirrors {
		if !c.used.mirrors[m.Name] {
			c.warn(subject{pos: m.Pos}.Errorf("mirror %q is not used", m.Name).WithHint("name it in a monitor: `mirror: %s`", m.Name))
		}
	}
	for _, name := range p.Counters {
		if !c.used.counters[name] {
			c.warn(subject{pos: p.Pos}.Errorf("counter %q is not used", name).WithHint("name it in a monitor: `counter: %s`", name))
		}
	}
	for _, r := range p.Raws {
		if !c.used.fields[rawPrefix+r.Name] {
			c.warn(subject{pos: r.Pos}.Errorf("raw field %q is not used", r.Name).WithHint("match on %s%s", rawPrefix, r.Name))
		}
	}
	if c.used.fields["ct.state"] && !slices.ContainsFunc(p.Pipes, func(p *Pipe) bool { return p.Kind == CT }) {
		c.warn(subject{pos: p.Pos}.Errorf("ct.state is always none: no pipe is of kind ct").WithHint("have packets pass a ct pipe first"))
	}
	if c.used.fields["meta.color"] && len(c.used.meters) == 0 {
		c.warn(subject{pos: p.Pos}.Errorf("meta.color is always green: no entry has a meter").WithHint("have packets pass an entry with a meter first"))
	}
}
