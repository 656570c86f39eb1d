package pipe

import (
	"maps"
	"slices"
	"time"
)

// Longest time that an entry may be unused: ticks are compared by their difference.
const maxAge = 24 * 24 * time.Hour

// actions checks the templates of a pipe.
func (c *checker) actions(at subject, p *Pipe) {
	if len(p.Actions) > 0 && (p.Kind == OrderedList || p.Kind == CT) {
		hint := "each of its entries has a list of its own"
		if p.Kind == CT {
			hint = "forward to a pipe that has"
		}
		c.fail(at.Errorf("a pipe of kind %s has no actions", p.Kind).WithHint("%s", hint))
		return
	}
	if n := len(p.Actions); n > MaxActions {
		c.fail(at.Errorf("%d actions: a pipe has at most %d", n, MaxActions).WithHint("operands that differ can be the entries' own: `value: entry`"))
	}
	names := make(map[string]bool)
	for i := range p.Actions {
		a := &p.Actions[i]
		at := at.in(a.Pos, "action %d", i)
		if a.Name != "" {
			at = at.in(a.Pos, "%q", a.Name)
			c.name(at, a.Name, names)
		}
		c.action(at, a)
		words := 0
		for _, op := range a.Ops {
			if op.FromEntry {
				words += op.words()
			}
		}
		if words > MaxValues {
			c.fail(at.Errorf("entries would give it %d words of 32 bits: they have room for %d", words, MaxValues).WithHint("split it in two pipes, or write constants into several actions"))
		}
	}
}

// words are how many an operand of an entry's own takes.
func (o *Op) words() int {
	if o.Field == nil {
		return 1 // a tag
	}
	return o.Field.Words()
}

func (c *checker) action(at subject, a *Action) {
	if n := len(a.Ops); n > MaxOps {
		c.fail(at.Errorf("%d steps: an action has at most %d", n, MaxOps).WithHint("forward to a pipe that does the rest"))
	}
	for i := range a.Ops {
		op := &a.Ops[i]
		c.op(at.in(op.Pos, "step %d", i), op)
	}
}

// opKinds are all steps, in the order of the documentation.
var opKinds = []OpKind{Set, Add, Copy, TTL, PushVLAN, PopVLAN}

// op checks one step.
func (c *checker) op(at subject, o *Op) {
	if !slices.Contains(opKinds, o.Kind) {
		c.fail(nearHint(at.Errorf("there is no step %q", o.Kind), string(o.Kind), texts(opKinds), "it is one of: "+commas(opKinds)))
		return
	}
	if o.Field != nil {
		at = at.field(o.Pos, o.Field)
	}
	if o.From != nil {
		c.used.fields[o.From.Name] = true
	}
	changes := o.Kind == Set || o.Kind == Add || o.Kind == Copy
	switch {
	case changes && o.Field == nil:
		c.fail(at.Errorf("%s does not say which field it changes", o.Kind).WithHint("as in {set: ip.dscp, value: ef}"))
		return
	case !changes && (o.Field != nil || o.From != nil):
		c.fail(at.Errorf("%s has no field", o.Kind).WithHint("leave it out"))
		return
	case changes && !o.Field.Write:
		c.fail(at.Errorf("it cannot be changed").WithHint("actions change %s", commas(Writable())))
		return
	case o.Kind != Copy && (o.Shift != 0 || o.FromShift != 0 || o.Bits != 0):
		c.fail(at.Errorf("%s has no shift and no bits", o.Kind).WithHint("copy has"))
	case o.Kind != Set && o.Mask != nil:
		c.fail(at.Errorf("%s has no mask", o.Kind).WithHint("set has, and copy has shift and bits"))
	case o.FromEntry && (o.Value != nil || o.From != nil):
		c.fail(at.Errorf("its operand is the entries' own and given here as well").WithHint("leave one of the two out"))
	}
	switch o.Kind {
	case Set:
		c.set(at, o)
	case Add:
		c.add(at, o)
	case Copy:
		c.copy(at, o)
	case TTL, PopVLAN:
		if o.Value != nil || o.FromEntry {
			c.fail(at.Errorf("%s has no value", o.Kind).WithHint("leave it out"))
		}
	case PushVLAN:
		if o.Value == nil && !o.FromEntry {
			c.fail(at.Errorf("it does not say which tag").WithHint("as in {push_vlan: {id: 100, pcp: 5}}"))
		} else if o.Value != nil {
			c.tag(at, o.Value)
		}
	}
}

// Writable are the names of the fields that actions change.
func Writable() []string {
	var names []string
	for _, f := range Fields {
		if f.Write {
			names = append(names, f.Name)
		}
	}
	return names
}

func (c *checker) set(at subject, o *Op) {
	switch {
	case o.From != nil:
		c.fail(at.Errorf("set takes a value, not a field").WithHint("copy takes one: {copy: %s, to: %s}", o.From.Name, o.Field.Name))
	case o.Value == nil && !o.FromEntry:
		c.fail(at.Errorf("set does not say the value").WithHint("as in {set: ip.dscp, value: ef}, or value: entry for the entries' own"))
	default:
		c.value(at, o.Field, o.Mask, nil, "mask")
		if o.Value != nil {
			c.value(at, o.Field, o.Value, setMask(o), "value")
		}
	}
}

// setMask is the one that a set has.
func setMask(o *Op) Value {
	if o.Mask == nil {
		return o.Field.Full()
	}
	return o.Mask
}

func (c *checker) add(at subject, o *Op) {
	switch {
	case o.Value == nil && o.From == nil && !o.FromEntry:
		c.fail(at.Errorf("add does not say what").WithHint("as in {add: meta.0, value: 1} or {add: meta.0, from: meta.length}"))
	case o.Value != nil && o.From != nil:
		c.fail(at.Errorf("add says a value and a field").WithHint("leave one of the two out"))
	case o.From != nil && o.From.Only != 0:
		c.fail(at.Errorf("field %s, which it adds, is no number", o.From.Name).WithHint("take another, or a value"))
	case o.From != nil && o.From.Words() > o.Field.Words():
		c.fail(at.Errorf("field %s, which it adds, has %d bits, and this one %d", o.From.Name, o.From.Bits, o.Field.Bits).WithHint("copy some of its bits to meta.0 first, and add that"))
	case o.Value != nil:
		c.value(at, o.Field, o.Value, nil, "value")
	}
}

func (c *checker) copy(at subject, o *Op) {
	if o.From == nil {
		c.fail(at.Errorf("copy does not say which field it comes from").WithHint("as in {copy: ip.dscp, to: meta.0, shift: 8}"))
		return
	}
	if o.Value != nil || o.FromEntry {
		c.fail(at.Errorf("copy takes a field, not a value").WithHint("set takes a value"))
	}
	if o.From.Only != 0 {
		c.fail(at.Errorf("field %s, which it copies, is no number", o.From.Name).WithHint("match on it, and set a value"))
		return
	}
	if o.Bits < 1 || o.Shift < 0 || o.FromShift < 0 || o.Shift+o.Bits > o.Field.Bits || o.FromShift+o.Bits > o.From.Bits {
		c.fail(at.Errorf("%d bits from bit %d of %s, which has %d, to bit %d of one that has %d", o.Bits, o.FromShift, o.From.Name, o.From.Bits, o.Shift, o.Field.Bits).
			WithHint("copy fewer bits"))
	}
}

// tag checks what is pushed.
func (c *checker) tag(at subject, v Value) {
	if len(v) != 1 || v[0]>>15 != 0 || v[0]&(1<<12-1) == 4095 {
		c.fail(at.Errorf("%s is no tag: a VLAN is 0 to 4094, a priority 0 to 7", hexText(v)).WithHint("as in {push_vlan: {id: 100, pcp: 5}}"))
	}
}

// does checks what becomes of packets that the entry takes.
func (c *checker) does(at subject, p *Pipe, e *Entry) {
	c.operands(at, p, e)
	if e.Monitor != nil {
		c.monitor(at, p, e.Monitor)
	}
	if e.Forward != nil {
		c.forward(at.in(e.Forward.Pos, "forward"), e.Forward)
	}
	forward := e.Forward
	if forward == nil {
		forward = p.Forward
	}
	if forward == nil {
		c.fail(at.Errorf("it does not say where its packets go, and neither does its pipe").WithHint("add forward to the entry or the pipe"))
		return
	}
	monitor := e.Monitor
	if monitor == nil {
		monitor = &p.Monitor
	}
	if p.floods() {
		c.floods(at, p, e, forward)
	} else if monitor.Mirror != "" {
		c.mirrored(at, forward)
	}
}

// floods says that the pipe sends packets to all of its entries.
func (p *Pipe) floods() bool { return p.Kind == Hash && p.Algorithm == Flood }

// floods checks an entry of a pipe whose entries each are a port that gets a copy: there is one packet, so that what is
// done with it and noted of it is done and noted once.
func (c *checker) floods(at subject, p *Pipe, e *Entry, forward *Forward) {
	if forward.To != ToPort {
		c.fail(at.Errorf("its pipe floods, and it forwards to %s", forward.To).WithHint("each entry of such a pipe forwards to a port, which gets a copy"))
	}
	if e.Monitor != nil || p.Monitor.Meter != "" || p.Monitor.Mirror != "" || p.Monitor.Age != 0 {
		c.fail(at.Errorf("its pipe floods, and it has a monitor of its own, or one that does more than count").WithHint("the pipe before it can have the monitor, and a mirror's ports can be entries"))
	}
	if len(p.Actions) > 0 {
		c.fail(at.Errorf("its pipe floods, and has actions").WithHint("all copies are alike: the pipe before it can have the actions"))
	}
}

// mirrored checks that the packets of an entry that mirrors leave by ports, or not at all, wherever they go from there.
func (c *checker) mirrored(at subject, forward *Forward) {
	const hint = "frames are copied as they leave: forward to a port, or drop, or put the mirror into the policy's rule"
	copied := func(to Target) bool { return to == ToPort || to == ToDrop || to == ToPipe }
	if !copied(forward.To) && slices.Contains(targets, forward.To) {
		c.fail(at.Errorf("it mirrors, and forwards to %s", forward.To).WithHint(hint))
	}
	seen := make(map[string]bool)
	var visit func(name string)
	visit = func(name string) {
		next := c.byName[name]
		if next == nil || seen[name] {
			return
		}
		seen[name] = true
		if next.floods() {
			c.fail(at.Errorf("it mirrors, and pipe %q, to which its packets come, floods", name).WithHint("make the mirror's ports entries of that pipe"))
		}
		targets, pipes := c.ways(next)
		for _, to := range targets {
			if !copied(to) {
				c.fail(at.Errorf("it mirrors, and forwards to %s in pipe %q", to, name).WithHint(hint))
			}
		}
		for _, name := range pipes {
			visit(name)
		}
	}
	if forward.To == ToPipe {
		visit(forward.Name)
	}
}

// ways are where packets of a pipe go, each once: kinds of forwards that are known, and names of pipes.
func (c *checker) ways(p *Pipe) ([]Target, []string) {
	w := c.goes[p]
	if w == nil {
		w = &ways{}
		names := make(map[string]bool)
		for _, f := range p.everyForward() {
			if slices.Contains(targets, f.To) && !slices.Contains(w.targets, f.To) {
				w.targets = append(w.targets, f.To)
			}
			if f.To == ToPipe && !names[f.Name] {
				names[f.Name] = true
				w.pipes = append(w.pipes, f.Name)
			}
		}
		c.goes[p] = w
	}
	return w.targets, w.pipes
}

// operands checks that the entry gives its action what that leaves to it.
func (c *checker) operands(at subject, p *Pipe, e *Entry) {
	if p.Kind == OrderedList {
		if e.Action != 0 || len(e.Values) > 0 {
			c.fail(at.Errorf("an entry of an ordered list has a list of actions, and it names one or has operands").WithHint("write the list: `list: [...]`"))
		}
		for i := range e.List {
			at := at.in(e.List[i].Pos, "action %d of the list", i)
			c.action(at, &e.List[i])
			if slices.ContainsFunc(e.List[i].Ops, func(o Op) bool { return o.FromEntry }) {
				c.fail(at.Errorf("an operand of the entry's own in the entry's own list").WithHint("write the value"))
			}
		}
		return
	}
	if len(p.Actions) == 0 {
		if e.Action != 0 || len(e.Values) > 0 {
			c.fail(at.Errorf("it names an action or has operands, and its pipe has no actions").WithHint("add actions to the pipe"))
		}
		return
	}
	if e.Action < 0 || e.Action >= len(p.Actions) {
		c.fail(at.Errorf("action %d: its pipe has 0 to %d", e.Action, len(p.Actions)-1).WithHint("name one of the pipe's actions"))
		return
	}
	n := 0
	for i := range p.Actions[e.Action].Ops {
		op := &p.Actions[e.Action].Ops[i]
		if !op.FromEntry {
			continue
		}
		if n++; n > len(e.Values) {
			continue
		}
		if v := e.Values[n-1]; op.Field == nil {
			c.tag(at.in(e.Pos, "operand %d", n-1), v)
		} else {
			c.value(at.in(e.Pos, "operand %d", n-1).field(e.Pos, op.Field), op.Field, v, nil, "value")
		}
	}
	if n != len(e.Values) {
		c.fail(at.Errorf("it has %d operands, and its action leaves %d to entries", len(e.Values), n).WithHint("give one for each step that says `value: entry`"))
	}
}

// monitor checks what is noted about packets.
func (c *checker) monitor(at subject, p *Pipe, m *Monitor) {
	at = at.in(at.pos, "monitor")
	refers := func(what, name string, known map[string]bool) {
		if !known[name] {
			c.fail(nearHint(at.Errorf("there is no %s %q", what, name), name, slices.Sorted(maps.Keys(known)), "declare it under "+what+"s"))
		}
	}
	if m.Counter != "" {
		c.used.counters[m.Counter] = true
		refers("counter", m.Counter, c.named.counters)
	}
	if m.Meter != "" {
		c.used.meters[m.Meter] = true
		refers("meter", m.Meter, c.named.meters)
	}
	if m.Mirror != "" {
		c.used.mirrors[m.Mirror] = true
		refers("mirror", m.Mirror, c.named.mirrors)
	}
	if m.Age != 0 && (m.Age < time.Second || m.Age > maxAge) {
		c.fail(at.Errorf("age %s: it is 1s to %s", m.Age, "24 days").WithHint("leave it out if entries do not age"))
	}
	if m.Remove && m.Age == 0 {
		c.fail(at.Errorf("entries are to be removed when they are old, and none says when that is").WithHint("add age: 5m"))
	}
	if m.Remove && (p.Fixed || p.Kind == Hash) {
		c.fail(at.Errorf("entries of a fixed and of a hash pipe cannot be removed by age").WithHint("leave remove out: what ages is told of"))
	}
}
