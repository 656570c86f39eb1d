package pipefile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/mistake"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

func (r *reader) pipe(n *firewall.Node) *pipe.Pipe {
	f := r.Fields(n, "a pipe", keys["pipe"])
	p := &pipe.Pipe{
		Name: r.word(f["name"], "name"), Kind: pipe.Kind(r.word(f["kind"], "kind")), Pos: n.Pos,
		Algorithm: pipe.Algorithm(r.word(f["algorithm"], "algorithm")),
		Size:      r.number(f["size"], "size"), Resizable: r.flag(f["resizable"], "resizable"), Fixed: r.flag(f["fixed"], "fixed"),
	}
	for _, item := range r.items(f["match"]) {
		if m, ok := r.matchField(item); ok {
			p.Match = append(p.Match, m)
		}
	}
	for _, item := range r.items(f["actions"]) {
		p.Actions = append(p.Actions, r.action(item))
	}
	if m := r.monitor(f["monitor"]); m != nil {
		p.Monitor = *m
	}
	p.Forward = r.forward(f["forward"])
	if miss := r.forward(f["miss"]); miss != nil {
		p.Miss = *miss
	}
	if f["entries"] != nil {
		list := r.List(f["entries"])
		p.Entries = make([]*pipe.Entry, len(list))
		for i, item := range list {
			p.Entries[i] = r.entry(p, item)
		}
	}
	return p
}

// field finds a field by name.
func (r *reader) field(at mistake.Pos, name string) *pipe.Field {
	f := r.pipeline.Field(name)
	if f == nil {
		r.Fail(firewall.Unknown(at, "field", name, r.pipeline.FieldNames(), "docs/pipes.md lists them"))
	}
	return f
}

// matchField reads FIELD or FIELD/MASK.
func (r *reader) matchField(n *firewall.Node) (m pipe.MatchField, ok bool) {
	text, ok := r.Text(n, "a field")
	if !ok {
		return m, false
	}
	name, mask, masked := strings.Cut(text, "/")
	m.Pos = n.Pos
	if m.Field = r.field(n.Pos, name); m.Field == nil {
		return m, false
	}
	if masked {
		v, err := m.Field.ParseMask(mask)
		m.Mask, ok = v, r.value(n.Pos, err)
	}
	return m, ok
}

func (r *reader) entry(p *pipe.Pipe, n *firewall.Node) *pipe.Entry {
	f := r.Fields(n, "an entry", keys["entry"])
	e := &pipe.Entry{
		Name: r.word(f["name"], "name"), Pos: n.Pos, Priority: r.number(f["priority"], "priority"), Index: r.number(f["index"], "index"),
		Weight: r.number(f["weight"], "weight"), Monitor: r.monitor(f["monitor"]), Forward: r.forward(f["forward"]),
	}
	e.Match = r.match(f["match"])
	// The key of a basic and an lpm pipe has an order, which people need not keep.
	place := func(m pipe.Match) int {
		return slices.IndexFunc(p.Match, func(f pipe.MatchField) bool { return f.Field.Name == m.Field.Name })
	}
	if p.Kind == pipe.Basic || p.Kind == pipe.LPM {
		slices.SortStableFunc(e.Match, func(a, b pipe.Match) int { return place(a) - place(b) })
	}
	for _, item := range r.items(f["conditions"]) {
		if c, ok := r.condition(item); ok {
			e.Conditions = append(e.Conditions, c)
		}
	}
	if prefix := f["prefix"]; prefix != nil {
		e.Prefix = r.prefix(prefix)
	}
	if list := f["list"]; list != nil {
		e.List = []pipe.Action{}
		for _, item := range r.List(list) {
			e.List = append(e.List, r.action(item))
		}
	}
	r.chosen(p, e, f["action"], f["values"])
	return e
}

// match reads a map from fields to what is asked of them.
func (r *reader) match(n *firewall.Node) (list []pipe.Match) {
	for _, f := range r.named(n, "match") {
		field := r.field(f.Pos, f.Key)
		if field == nil {
			continue
		}
		text, ok := r.Text(f.Value, "a value of "+f.Key)
		if !ok {
			continue
		}
		m, err := field.Parse(text)
		if m.Pos = f.Value.Pos; r.value(m.Pos, err) {
			list = append(list, m)
		}
	}
	return list
}

func (r *reader) prefix(n *firewall.Node) netip.Prefix {
	text, ok := r.Text(n, "prefix")
	if !ok {
		return netip.Prefix{}
	}
	if !strings.Contains(text, "/") {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			return netip.PrefixFrom(a, a.BitLen())
		}
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		r.Fail(n.Pos.Errorf("%q is no prefix", text).WithHint("as in 10.0.0.0/8 or 2001:db8::/32"))
	}
	return prefix
}

// condition reads FIELD COMPARISON FIELD or FIELD COMPARISON VALUE.
func (r *reader) condition(n *firewall.Node) (c pipe.Condition, ok bool) {
	text, ok := r.Text(n, "a condition")
	if !ok {
		return c, false
	}
	words := strings.Fields(text)
	if len(words) != 3 {
		r.Fail(n.Pos.Errorf("%q is no condition", text).WithHint("as in `tcp.seq > meta.0` or `ip.ttl <= 4`, with blanks between"))
		return c, false
	}
	c.Pos, c.Compare = n.Pos, pipe.Compare(words[1])
	if c.Field = r.field(n.Pos, words[0]); c.Field == nil {
		return c, false
	}
	if c.With = r.pipeline.Field(words[2]); c.With != nil {
		return c, true
	}
	v, err := c.Field.ParseValue(words[2])
	if ok = r.value(n.Pos, err); ok {
		c.Value = v[0]
	}
	return c, ok
}

// chosen reads which of the pipe's actions an entry does, and what it gives to it.
func (r *reader) chosen(p *pipe.Pipe, e *pipe.Entry, action, values *firewall.Node) {
	if action != nil {
		name := r.word(action, "action")
		var known []string
		for _, a := range p.Actions {
			known = append(known, a.Name)
		}
		if e.Action = slices.Index(known, name); e.Action < 0 || name == "" {
			number, err := strconv.Atoi(name)
			if e.Action = number; err != nil {
				e.Action = 0
				r.Fail(firewall.Unknown(action.Pos, "action", name, known, "declare it under actions of the pipe"))
				return
			}
		}
	}
	if values == nil {
		return
	}
	var operands []*pipe.Op
	if e.Action >= 0 && e.Action < len(p.Actions) {
		for i := range p.Actions[e.Action].Ops {
			if op := &p.Actions[e.Action].Ops[i]; op.FromEntry {
				operands = append(operands, op)
			}
		}
	}
	for i, item := range r.List(values) {
		switch {
		case i >= len(operands):
			e.Values = append(e.Values, pipe.Value{0}) // one too many, which the check tells of
		case operands[i].Field == nil:
			e.Values = append(e.Values, r.tag(item))
		default:
			text, ok := r.Text(item, "a value")
			if !ok {
				continue
			}
			v, err := operands[i].Field.ParseValue(text)
			if r.value(item.Pos, err) {
				e.Values = append(e.Values, v)
			}
		}
	}
}

// tag reads {id: 100, pcp: 5}, or an id alone.
func (r *reader) tag(n *firewall.Node) pipe.Value {
	if n.Kind != firewall.MapNode {
		id, _ := r.Int(n, "a VLAN", 0, 4094)
		return pipe.Value{uint32(id)}
	}
	f := r.Fields(n, "a tag", keys["tag"])
	var id, pcp int
	if f["id"] != nil {
		id, _ = r.Int(f["id"], "id", 0, 4094)
	}
	if f["pcp"] != nil {
		pcp, _ = r.Int(f["pcp"], "pcp", 0, 7)
	}
	return pipe.Value{uint32(pcp<<12 | id)}
}

// forward reads drop, host, policy, {pipe: NAME, index: ...}, {port: NAME} or {stage: NAME, port: NAME, ...}; nil without a node.
func (r *reader) forward(n *firewall.Node) *pipe.Forward {
	if n == nil {
		return nil
	}
	f := &pipe.Forward{Pos: n.Pos}
	if n.Kind != firewall.MapNode {
		f.To = pipe.Target(r.word(n, "a forward"))
		if f.To == pipe.ToPipe || f.To == pipe.ToPort || f.To == pipe.ToStage {
			r.Fail(n.Pos.Errorf("forward to a %s without its name", f.To).WithHint("as in {%s: NAME}", f.To))
		}
		return f
	}
	says := func(key string) bool {
		return slices.ContainsFunc(n.Fields, func(f firewall.Field) bool { return f.Key == key })
	}
	if says("stage") {
		v := r.Fields(n, "a forward to a stage", keys["to_stage"])
		f.To, f.Stage = pipe.ToStage, pipe.Stage(r.word(v["stage"], "stage"))
		f.Name, f.Copy = r.word(v["port"], "port"), r.word(v["copy"], "copy")
		if n := v["on_failure"]; n != nil {
			f.Bypass = r.Choice(n, "on_failure", firewall.OnFailureDrop, firewall.OnFailureBypass) == firewall.OnFailureBypass
		}
		return f
	}
	if says("port") {
		v := r.Fields(n, "a forward to a port", keys["to_port"])
		f.To, f.Name = pipe.ToPort, r.word(v["port"], "port")
		return f
	}
	v := r.Fields(n, "a forward to a pipe", keys["to_pipe"])
	f.To, f.Name = pipe.ToPipe, r.word(v["pipe"], "pipe")
	index := v["index"]
	if index == nil {
		r.unindexed = append(r.unindexed, f)
		return f
	}
	text := r.word(index, "index")
	if number, err := strconv.Atoi(text); err == nil {
		f.Index = number
	} else {
		f.IndexFrom = r.field(index.Pos, text)
	}
	return f
}

// stepKind is the key that says what a step does; "" if none does.
func (r *reader) stepKind(n *firewall.Node) string {
	for _, f := range n.Fields {
		if slices.Contains(steps, f.Key) {
			return f.Key
		}
	}
	return ""
}

// steps are what actions are made of, as files name them.
var steps = []string{"set", "add", "copy", "push_vlan", "ttl", "pop_vlan"}

func stepHint() string { return fmt.Sprintf("it is one of: %s", strings.Join(steps, ", ")) }
