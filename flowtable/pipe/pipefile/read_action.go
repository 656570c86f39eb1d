package pipefile

import (
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// fromEntry is the operand that an action leaves to entries.
const fromEntry = "entry"

// action reads {name: ..., do: [...]}, or a list of steps alone.
func (r *reader) action(n *firewall.Node) pipe.Action {
	a := pipe.Action{Pos: n.Pos}
	do := n
	if n.Kind == firewall.MapNode && r.stepKind(n) == "" {
		f := r.Fields(n, "an action", keys["action"])
		a.Name, do = r.word(f["name"], "name"), f["do"]
	}
	for _, item := range r.items(do) {
		a.Ops = append(a.Ops, r.step(item))
	}
	return a
}

func (r *reader) step(n *firewall.Node) pipe.Op {
	o := pipe.Op{Pos: n.Pos}
	if n.Kind != firewall.MapNode {
		switch text := r.word(n, "a step"); text {
		case "ttl":
			o.Kind = pipe.TTL
		case "pop_vlan":
			o.Kind = pipe.PopVLAN
		default:
			r.Fail(firewall.Unknown(n.Pos, "step", text, steps, stepHint()))
		}
		return o
	}
	switch kind := r.stepKind(n); kind {
	case "set":
		f := r.Fields(n, "a set", keys["set"])
		o.Kind, o.Field = pipe.Set, r.fieldOf(f["set"])
		r.operand(&o, f["value"])
		if mask := f["mask"]; mask != nil && o.Field != nil {
			v, err := o.Field.ParseMask(r.word(mask, "mask"))
			if r.value(mask.Pos, err) {
				o.Mask = v
			}
		}
	case "add":
		f := r.Fields(n, "an add", keys["add"])
		o.Kind, o.Field, o.From = pipe.Add, r.fieldOf(f["add"]), r.fieldOf(f["from"])
		r.operand(&o, f["value"])
	case "copy":
		f := r.Fields(n, "a copy", keys["copy"])
		o.Kind, o.From, o.Field = pipe.Copy, r.fieldOf(f["copy"]), r.fieldOf(f["to"])
		o.FromShift, o.Shift = r.number(f["from_bit"], "from_bit"), r.number(f["to_bit"], "to_bit")
		if f["bits"] != nil {
			o.Bits = r.number(f["bits"], "bits")
		} else if o.From != nil && o.Field != nil {
			o.Bits = min(o.From.Bits-o.FromShift, o.Field.Bits-o.Shift)
		}
	case "push_vlan":
		f := r.Fields(n, "a push_vlan", keys["push_vlan"])
		o.Kind = pipe.PushVLAN
		tag := f["push_vlan"]
		if tag != nil && tag.Kind == firewall.ScalarNode && tag.Text == fromEntry {
			o.FromEntry = true
		} else if tag != nil {
			o.Value = r.tag(tag)
		}
	case "":
		r.Fail(n.Pos.Errorf("a step that is none").WithHint("%s", stepHint()))
	default:
		r.Fail(n.Pos.Errorf("%s has no value", kind).WithHint("write the word alone: - %s", kind))
	}
	return o
}

// fieldOf finds the field that a node names; nil without one.
func (r *reader) fieldOf(n *firewall.Node) *pipe.Field {
	if n == nil {
		return nil
	}
	text, ok := r.Text(n, "a field")
	if !ok {
		return nil
	}
	return r.field(n.Pos, text)
}

// operand reads the value of a step, or that it is the entries'.
func (r *reader) operand(o *pipe.Op, n *firewall.Node) {
	if n == nil {
		return
	}
	text, ok := r.Text(n, "value")
	switch {
	case !ok || o.Field == nil:
	case text == fromEntry:
		o.FromEntry = true
	default:
		v, err := o.Field.ParseValue(text)
		if r.value(n.Pos, err) {
			o.Value = v
		}
	}
}

// monitor reads what is noted; nil without a node.
func (r *reader) monitor(n *firewall.Node) *pipe.Monitor {
	if n == nil {
		return nil
	}
	f := r.Fields(n, "a monitor", keys["monitor"])
	m := &pipe.Monitor{
		Count: r.flag(f["count"], "count"), Counter: r.word(f["counter"], "counter"), Meter: r.word(f["meter"], "meter"),
		Mirror: r.word(f["mirror"], "mirror"), Remove: r.flag(f["remove"], "remove"),
	}
	if age := f["age"]; age != nil {
		text := r.word(age, "age")
		d, err := time.ParseDuration(text)
		if err != nil {
			r.Fail(age.Pos.Errorf("%q is no time", text).WithHint("as in 90s, 5m or 72h"))
		}
		m.Age = d
	}
	return m
}
