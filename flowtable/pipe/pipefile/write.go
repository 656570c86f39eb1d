package pipefile

import (
	"fmt"
	"slices"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// tree is a pipeline as a file says it: what [Parse] reads again to the same model.
func tree(p *pipe.Pipeline) *firewall.Node {
	n := mapping()
	n.add("apiVersion", text(firewall.APIVersion))
	n.add("kind", text("Pipeline"))
	n.add("name", text(p.Name))
	n.add("root", text(p.Root))
	n.flag("bypasses_policy", p.BypassesPolicy)
	meters := mapping()
	for _, m := range p.Meters {
		meters.add(m.Name, meter(m))
	}
	n.unlessEmpty("meters", meters)
	n.words("counters", p.Counters)
	mirrors := mapping()
	for _, m := range p.Mirrors {
		mirrors.words(m.Name, m.Ports)
	}
	n.unlessEmpty("mirrors", mirrors)
	raws := mapping()
	for _, r := range p.Raws {
		raw := mapping()
		raw.add("base", text(r.Base))
		raw.number("offset", r.Offset)
		raws.add(r.Name, raw.node())
	}
	n.unlessEmpty("raws", raws)
	l := make(lists)
	for _, named := range p.Pipes {
		l[named.Name] = named.Kind == pipe.OrderedList
	}
	pipes := &firewall.Node{Kind: firewall.ListNode}
	for _, pipe := range p.Pipes {
		pipes.Items = append(pipes.Items, l.pipe(pipe))
	}
	n.add("pipes", pipes)
	return n.node()
}

// lists says which pipes are ordered lists: a forward to one has an index.
type lists map[string]bool

// builder makes a map in the order of its calls.
type builder firewall.Node

func mapping() *builder { return &builder{Kind: firewall.MapNode} }

func (b *builder) node() *firewall.Node { return (*firewall.Node)(b) }

func (b *builder) add(key string, n *firewall.Node) {
	b.Fields = append(b.Fields, firewall.Field{Key: key, Value: n})
}

func (b *builder) unlessEmpty(key string, m *builder) {
	if len(m.Fields) > 0 {
		b.add(key, m.node())
	}
}

func (b *builder) word(key, word string) {
	if word != "" {
		b.add(key, text(word))
	}
}

func (b *builder) words(key string, words []string) {
	if len(words) == 0 {
		return
	}
	list := &firewall.Node{Kind: firewall.ListNode}
	for _, w := range words {
		list.Items = append(list.Items, text(w))
	}
	b.add(key, list)
}

// number leaves 0 out.
func (b *builder) number(key string, n int) {
	if n != 0 {
		b.add(key, plain(fmt.Sprint(n)))
	}
}

// flag leaves false out.
func (b *builder) flag(key string, v bool) {
	if v {
		b.add(key, plain("true"))
	}
}

// text is a scalar that may need quotes, plain one that is a number or a truth.
func text(s string) *firewall.Node {
	return &firewall.Node{Kind: firewall.ScalarNode, Text: s, Quoted: true}
}

func plain(s string) *firewall.Node { return &firewall.Node{Kind: firewall.ScalarNode, Text: s} }

// valueText is a value of a field: decimal numbers stay numbers.
func valueText(s string) *firewall.Node {
	if s != "" && (s == "0" || s[0] != '0') && !slices.ContainsFunc([]rune(s), func(r rune) bool { return r < '0' || r > '9' }) {
		return plain(s)
	}
	return text(s)
}

func meter(m *pipe.Meter) *firewall.Node {
	n := mapping()
	n.add("type", text(m.Type))
	for i, key := range []string{"cir", map[string]string{"rfc2698": "pir", "rfc4115": "eir"}[m.Type]} {
		if key != "" && (m.Rate[i] != 0 || i == 0) {
			n.add(key, text(pipe.RateText(m.Rate[i], m.Packets)))
		}
	}
	for i, key := range []string{"cbs", map[string]string{"rfc2697": "ebs", "rfc2698": "pbs", "rfc4115": "ebs"}[m.Type]} {
		if m.Size[i] != 0 {
			n.add(key, valueText(pipe.SizeText(m.Size[i], m.Packets)))
		}
	}
	n.flag("aware", m.Aware)
	return n.node()
}

func (l lists) pipe(p *pipe.Pipe) *firewall.Node {
	n := mapping()
	n.add("name", text(p.Name))
	n.add("kind", text(string(p.Kind)))
	var fields []string
	for _, m := range p.Match {
		name := m.Field.Name
		if m.Mask != nil {
			name += "/" + m.Field.MaskText(m.Mask)
		}
		fields = append(fields, name)
	}
	n.words("match", fields)
	n.word("algorithm", string(p.Algorithm))
	n.number("size", p.Size)
	n.flag("resizable", p.Resizable)
	n.flag("fixed", p.Fixed)
	n.list("actions", len(p.Actions), func(i int) *firewall.Node { return actionTree(&p.Actions[i]) })
	if p.Monitor != (pipe.Monitor{}) {
		n.add("monitor", monitorTree(&p.Monitor))
	}
	if p.Forward != nil {
		n.add("forward", l.forward(p.Forward))
	}
	n.add("miss", l.forward(&p.Miss))
	n.list("entries", len(p.Entries), func(i int) *firewall.Node { return l.entry(p, p.Entries[i]) })
	return n.node()
}

func (b *builder) list(key string, n int, item func(int) *firewall.Node) {
	if n == 0 {
		return
	}
	list := &firewall.Node{Kind: firewall.ListNode}
	for i := range n {
		list.Items = append(list.Items, item(i))
	}
	b.add(key, list)
}

func (l lists) entry(p *pipe.Pipe, e *pipe.Entry) *firewall.Node {
	n := mapping()
	n.word("name", e.Name)
	n.number("priority", e.Priority)
	if p.Kind == pipe.Hash || p.Kind == pipe.OrderedList {
		n.add("index", plain(fmt.Sprint(e.Index)))
	}
	n.number("weight", e.Weight)
	if e.Prefix.IsValid() {
		n.add("prefix", text(e.Prefix.String()))
	}
	match := mapping()
	for i := range e.Match {
		m := &e.Match[i]
		match.add(m.Field.Name, valueText(m.Text()))
	}
	n.unlessEmpty("match", match)
	var conditions []string
	for _, c := range e.Conditions {
		with := c.Field.Text(pipe.Value{c.Value})
		if c.With != nil {
			with = c.With.Name
		}
		conditions = append(conditions, fmt.Sprintf("%s %s %s", c.Field.Name, c.Compare, with))
	}
	n.words("conditions", conditions)
	if e.Action != 0 && e.Action < len(p.Actions) && p.Actions[e.Action].Name != "" {
		n.add("action", text(p.Actions[e.Action].Name))
	} else {
		n.number("action", e.Action)
	}
	if e.Values != nil && e.Action < len(p.Actions) {
		n.add("values", values(&p.Actions[e.Action], e.Values))
	}
	n.list("list", len(e.List), func(i int) *firewall.Node { return actionTree(&e.List[i]) })
	if e.Monitor != nil {
		n.add("monitor", monitorTree(e.Monitor))
	}
	if e.Forward != nil {
		n.add("forward", l.forward(e.Forward))
	}
	return n.node()
}

// values are the operands that an entry gives to its action.
func values(a *pipe.Action, operands []pipe.Value) *firewall.Node {
	list := &firewall.Node{Kind: firewall.ListNode}
	for i := range a.Ops {
		op := &a.Ops[i]
		switch n := len(list.Items); {
		case !op.FromEntry || n >= len(operands):
		case op.Field == nil:
			list.Items = append(list.Items, tagTree(operands[n]))
		default:
			list.Items = append(list.Items, valueText(op.Field.Text(operands[n])))
		}
	}
	return list
}

func tagTree(v pipe.Value) *firewall.Node {
	n := mapping()
	n.add("id", plain(fmt.Sprint(v[0]&0xfff)))
	n.number("pcp", int(v[0]>>12))
	return n.node()
}

func actionTree(a *pipe.Action) *firewall.Node {
	n := mapping()
	n.word("name", a.Name)
	n.list("do", len(a.Ops), func(i int) *firewall.Node { return stepTree(&a.Ops[i]) })
	return n.node()
}

func stepTree(o *pipe.Op) *firewall.Node {
	n := mapping()
	value := func() {
		if o.FromEntry {
			n.add("value", text(fromEntry))
		} else if o.Value != nil {
			n.add("value", valueText(o.Field.Text(o.Value)))
		}
	}
	switch o.Kind {
	case pipe.TTL:
		return text("ttl")
	case pipe.PopVLAN:
		return text("pop_vlan")
	case pipe.PushVLAN:
		if o.FromEntry {
			n.add("push_vlan", text(fromEntry))
		} else {
			n.add("push_vlan", tagTree(o.Value))
		}
	case pipe.Set:
		n.add("set", text(o.Field.Name))
		value()
		if o.Mask != nil {
			n.add("mask", valueText(o.Field.MaskText(o.Mask)))
		}
	case pipe.Add:
		n.add("add", text(o.Field.Name))
		value()
		if o.From != nil {
			n.add("from", text(o.From.Name))
		}
	case pipe.Copy:
		n.add("copy", text(o.From.Name))
		n.add("to", text(o.Field.Name))
		n.number("from_bit", o.FromShift)
		n.number("to_bit", o.Shift)
		n.number("bits", o.Bits)
	}
	return n.node()
}

func monitorTree(m *pipe.Monitor) *firewall.Node {
	n := mapping()
	n.flag("count", m.Count)
	n.word("counter", m.Counter)
	n.word("meter", m.Meter)
	n.word("mirror", m.Mirror)
	if m.Age != 0 {
		n.add("age", text(m.Age.String()))
	}
	n.flag("remove", m.Remove)
	return n.node()
}

func (l lists) forward(f *pipe.Forward) *firewall.Node {
	n := mapping()
	switch f.To {
	case pipe.ToPort:
		n.add("port", text(f.Name))
	case pipe.ToStage:
		n.add("stage", text(string(f.Stage)))
		n.add("port", text(f.Name))
		n.word("copy", f.Copy)
		if f.Bypass {
			n.add("on_failure", text(firewall.OnFailureBypass))
		}
	case pipe.ToPipe:
		n.add("pipe", text(f.Name))
		if f.IndexFrom != nil {
			n.add("index", text(f.IndexFrom.Name))
		} else if l[f.Name] {
			n.add("index", plain(fmt.Sprint(f.Index)))
		}
	default:
		return text(string(f.To))
	}
	return n.node()
}
