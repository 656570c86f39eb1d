// Package pipefile reads and writes pipelines as files: YAML or JSON of kind Pipeline (docs/pipes.md).
package pipefile

import (
	"errors"
	"fmt"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/mistake"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Load reads and checks the pipeline of a file. The error is a [mistake.Errors] if what is written is at fault, another
// one if the file cannot be read.
func Load(path string) (p *pipe.Pipeline, warnings mistake.Errors, err error) {
	text, err := firewall.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read pipeline: %w", err)
	}
	return Parse(path, text)
}

// Parse reads and checks a pipeline from memory; name is what mistakes call the file. The error is a [mistake.Errors] with
// every mistake found.
func Parse(name string, text []byte) (p *pipe.Pipeline, warnings mistake.Errors, err error) {
	docs, errs := parse(name, text)
	r := &reader{Reader: firewall.Reader{Errs: errs}, pipeline: &pipe.Pipeline{Pos: mistake.Pos{File: name, Line: 1, Column: 1}}}
	switch {
	case len(errs) > 0:
	case len(docs) == 0:
		r.Fail(mistake.Error{File: name, Msg: "file is empty", Hint: "begin with: apiVersion: " + firewall.APIVersion + " and kind: Pipeline"})
	case len(docs) > 1:
		r.Fail(docs[1].Pos.Errorf("a second document: a file is one pipeline").WithHint("put it into a file of its own"))
	default:
		r.document(docs[0])
	}
	if len(r.Errs) > 0 {
		return nil, nil, r.Errs.Sorted(name)
	}
	if warnings, err = r.pipeline.Check(); err != nil {
		return nil, nil, err
	}
	return r.pipeline, warnings, nil
}

// reader holds what is known while a file is read.
type reader struct {
	firewall.Reader
	pipeline  *pipe.Pipeline
	unindexed []*pipe.Forward // that say no index
}

// value records what is wrong with a value at p.
func (r *reader) value(p mistake.Pos, err error) bool {
	var e *pipe.ValueError
	if errors.As(err, &e) {
		r.Fail(p.Errorf("%s", e.Msg).WithHint("%s", e.Hint))
	}
	return err == nil
}

func (r *reader) document(n *firewall.Node) {
	f := r.Document(n, "Pipeline", keys["pipeline"])
	if f == nil {
		return
	}
	p := r.pipeline
	p.Pos = n.Pos
	p.Name = r.word(f["name"], "name")
	p.Root = r.word(f["root"], "root")
	p.BypassesPolicy = r.flag(f["bypasses_policy"], "bypasses_policy")
	for _, named := range r.named(f["meters"], "meters") {
		p.Meters = append(p.Meters, r.meter(named))
	}
	for _, item := range r.items(f["counters"]) {
		p.Counters = append(p.Counters, r.word(item, "a counter"))
	}
	for _, named := range r.named(f["mirrors"], "mirrors") {
		m := &pipe.Mirror{Name: named.Key, Pos: named.Pos}
		for _, item := range r.List(named.Value) {
			m.Ports = append(m.Ports, r.word(item, "a port"))
		}
		p.Mirrors = append(p.Mirrors, m)
	}
	for _, named := range r.named(f["raws"], "raws") {
		v := r.Fields(named.Value, "a raw field", keys["raw"])
		p.Raws = append(p.Raws, &pipe.Raw{Name: named.Key, Pos: named.Pos, Base: r.word(v["base"], "base"), Offset: r.number(v["offset"], "offset")})
	}
	if f["pipes"] == nil {
		r.Fail(n.Pos.Errorf("pipeline without pipes").WithHint("add pipes: [{name: ..., kind: basic, ...}]"))
		return
	}
	for _, item := range r.List(f["pipes"]) {
		p.Pipes = append(p.Pipes, r.pipe(item))
	}
	r.indexed()
}

// indexed finds forwards to an ordered list that do not say which entry.
func (r *reader) indexed() {
	kinds := make(map[string]pipe.Kind)
	for _, pipe := range r.pipeline.Pipes {
		kinds[pipe.Name] = pipe.Kind
	}
	for _, f := range r.unindexed {
		if kinds[f.Name] == pipe.OrderedList {
			r.Fail(f.Pos.Errorf("pipe %q is an ordered list, and this does not say which entry", f.Name).
				WithHint("as in {pipe: %s, index: 3}, or index: meta.0 for what a field says", f.Name))
		}
	}
}

// word returns the text of a node; "" of none.
func (r *reader) word(n *firewall.Node, what string) string {
	if n == nil {
		return ""
	}
	text, _ := r.Text(n, what)
	return text
}

func (r *reader) flag(n *firewall.Node, what string) bool {
	return n != nil && r.Bool(n, what)
}

// number reads a whole number; 0 without a node.
func (r *reader) number(n *firewall.Node, what string) int {
	if n == nil {
		return 0
	}
	v, _ := r.Int(n, what, -1<<31, 1<<31-1)
	return v
}

// items are those of a list, or of one value; none without a node.
func (r *reader) items(n *firewall.Node) []*firewall.Node {
	if n == nil {
		return nil
	}
	return r.List(n)
}

// named are the fields of a map from names to values.
func (r *reader) named(n *firewall.Node, what string) []firewall.Field {
	switch {
	case n == nil:
		return nil
	case n.Kind != firewall.MapNode:
		r.Fail(n.Pos.Errorf("%s must be a map from names to values, not %s", what, n.Kind).WithHint("as in %s: {NAME: ...}", what))
		return nil
	}
	return n.Fields
}

func (r *reader) meter(named firewall.Field) *pipe.Meter {
	m := &pipe.Meter{Name: named.Key, Pos: named.Pos}
	f := r.Fields(named.Value, "a meter", keys["meter"])
	m.Type, m.Aware = r.word(f["type"], "type"), r.flag(f["aware"], "aware")
	second := map[string]string{"rfc2698": "pir", "rfc4115": "eir"}[m.Type]
	burst := map[string]string{"rfc2697": "ebs", "rfc2698": "pbs", "rfc4115": "ebs"}[m.Type]
	for _, key := range []string{"pir", "eir", "pbs", "ebs"} {
		if n := f[key]; n != nil && key != second && key != burst && burst != "" {
			r.Fail(n.Pos.Errorf("a meter after %s has no %s", m.Type, key).WithHint("%s", meterKeys))
		}
	}
	var units *firewall.Node
	for i, key := range []string{"cir", second} {
		n := f[key]
		if n == nil {
			continue
		}
		rate, packets, err := pipe.ParseRate(r.word(n, key))
		if !r.value(n.Pos, err) {
			continue
		}
		if units != nil && packets != m.Packets {
			r.Fail(n.Pos.Errorf("one rate counts packets and the other bytes").WithHint("write both in pps, or both in bit"))
		}
		m.Rate[i], m.Packets, units = rate, packets, n
	}
	for i, key := range []string{"cbs", burst} {
		n := f[key]
		if n == nil {
			continue
		}
		size, bare, err := pipe.ParseSize(r.word(n, key))
		if r.value(n.Pos, err) && m.Packets && !bare {
			r.Fail(n.Pos.Errorf("%s is in bytes, and the meter counts packets", key).WithHint("write a number of packets, as in %s: 100", key))
		}
		m.Size[i] = size
	}
	return m
}

const meterKeys = "rfc2697: cir, cbs, ebs; rfc2698: cir, pir, cbs, pbs; rfc4115: cir, eir, cbs, ebs"
