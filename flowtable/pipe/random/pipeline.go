// Package random makes pipelines of all kinds, and packets that come near their entries, from a seed: what tests hold
// executors against each other with.
package random

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Size is how large a pipeline is made, and of what.
type Size struct {
	Kinds      []pipe.Kind      // nil: all
	Algorithms []pipe.Algorithm // of hash pipes; nil: all
	Pipes      int              // at most; 0: 6
	Entries    int              // of a pipe, at most; 0: 12
	Fixed      bool             // only pipes whose entries never change
}

// Ports are the ids of the ports that pipelines name.
var Ports = map[string]uint32{"lan0": 1, "lan1": 2, "wan0": 3, "wan1": 4, "mon0": 5}

var portNames = []string{"lan0", "lan1", "wan0", "wan1", "mon0"}

// Pipeline makes a pipeline that [pipe.Pipeline.Check] takes, with ports by name.
func Pipeline(r *rand.Rand, size Size) *pipe.Pipeline {
	if size.Kinds == nil {
		size.Kinds = pipe.Kinds()
	}
	if size.Algorithms == nil {
		size.Algorithms = []pipe.Algorithm{pipe.ByHash, pipe.Consistent, pipe.Random, pipe.Identity, pipe.RoundRobin, pipe.Flood}
	}
	if size.Pipes == 0 {
		size.Pipes = 6
	}
	if size.Entries == 0 {
		size.Entries = 12
	}
	g := &generator{Rand: r, size: size, line: &pipe.Pipeline{Name: "random", Root: "p0", BypassesPolicy: true}}
	g.shared()
	n := 1 + r.IntN(size.Pipes)
	for i := range n {
		kind := size.Kinds[r.IntN(len(size.Kinds))]
		if i == 0 && kind == pipe.OrderedList {
			kind = pipe.Control
		}
		g.line.Pipes = append(g.line.Pipes, &pipe.Pipe{Name: fmt.Sprintf("p%d", i), Kind: kind, Fixed: kind != pipe.CT && (size.Fixed || r.IntN(3) == 0)})
		p := g.line.Pipes[i]
		if kind == pipe.Hash {
			p.Algorithm = size.Algorithms[r.IntN(len(size.Algorithms))]
		}
	}
	// From the last on, so that a forward knows where it may lead.
	for i := n - 1; i >= 0; i-- {
		g.fill(i)
	}
	return g.line
}

type generator struct {
	*rand.Rand
	size Size
	line *pipe.Pipeline
	// copies says of each pipe that is made whether packets that are mirrored may come to it.
	copies map[string]bool
}

func (g *generator) one(n int) bool { return g.IntN(n) == 0 }

func (g *generator) shared() {
	g.copies = make(map[string]bool)
	for i := range g.IntN(4) {
		m := &pipe.Meter{Name: fmt.Sprintf("m%d", i), Type: []string{"rfc2697", "rfc2698", "rfc4115"}[g.IntN(3)], Packets: g.one(3), Aware: g.one(2)}
		unit := uint64(1000)
		if m.Packets {
			unit = 1
		}
		for i := range 2 {
			m.Rate[i] = unit * (1 + g.Uint64N(2000))
			m.Size[i] = unit * (2 + g.Uint64N(20))
		}
		switch m.Type {
		case "rfc2697":
			m.Rate[1] = 0
		case "rfc2698":
			m.Rate[1] += m.Rate[0]
		}
		g.line.Meters = append(g.line.Meters, m)
	}
	for i := range g.IntN(3) {
		g.line.Counters = append(g.line.Counters, fmt.Sprintf("c%d", i))
		g.line.Mirrors = append(g.line.Mirrors, &pipe.Mirror{Name: fmt.Sprintf("x%d", i), Ports: g.ports(1 + g.IntN(2))})
	}
	for i := range g.IntN(pipe.MaxRaws + 1) {
		g.line.Raws = append(g.line.Raws, &pipe.Raw{Name: fmt.Sprintf("r%d", i), Base: []string{"l2", "l3", "l4", "payload"}[g.IntN(4)], Offset: g.IntN(24)})
	}
}

// ports are n different ones.
func (g *generator) ports(n int) []string {
	var names []string
	for _, i := range g.Perm(len(portNames))[:n] {
		names = append(names, portNames[i])
	}
	return names
}

// fields are those that a pipe may match on.
func (g *generator) fields() []*pipe.Field {
	var list []*pipe.Field
	for _, name := range g.line.FieldNames() {
		list = append(list, g.line.Field(name))
	}
	return list
}

// some are n different fields.
func (g *generator) some(n int) (list []*pipe.Field) {
	all := g.fields()
	for _, i := range g.Perm(len(all))[:n] {
		list = append(list, all[i])
	}
	return list
}

// fill makes pipe i, of which those behind are made.
func (g *generator) fill(i int) {
	p := g.line.Pipes[i]
	p.Miss = *g.forward(i, false)
	if g.one(2) || p.Kind == pipe.CT {
		p.Forward = g.forward(i, false)
	}
	g.actions(p)
	p.Monitor = g.monitor(p)
	n := g.IntN(g.size.Entries + 1)
	flood := false
	switch p.Kind {
	case pipe.Basic:
		for words := 0; words == 0 || g.one(2); {
			f := g.some(1)[0]
			if words += f.Words(); words > pipe.MaxKey || slices.ContainsFunc(p.Match, func(m pipe.MatchField) bool { return m.Field.Name == f.Name }) {
				break
			}
			p.Match = append(p.Match, pipe.MatchField{Field: f, Mask: g.mask(f)})
		}
	case pipe.LPM:
		address := []string{"ipv4.src", "ipv4.dst", "ipv6.src", "ipv6.dst"}[g.IntN(4)]
		p.Match = append(p.Match, pipe.MatchField{Field: pipe.LookupField(address)})
		if g.one(2) {
			p.Match = append(p.Match, pipe.MatchField{Field: pipe.LookupField([]string{"vlan.0.id", "port", "ip.proto", "meta.0"}[g.IntN(4)])})
		}
	case pipe.Hash:
		flood = p.Algorithm == pipe.Flood
		n = g.hash(p)
	case pipe.CT:
		n = 0
	}
	for j := range n {
		g.entry(i, j, flood)
	}
	mirrors := flood
	for _, f := range forwards(p) {
		mirrors = mirrors || f.To == pipe.ToHost || f.To == pipe.ToPolicy || f.To == pipe.ToStage || f.To == pipe.ToPipe && !g.copies[f.Name]
	}
	g.copies[p.Name] = !mirrors
}

func forwards(p *pipe.Pipe) []*pipe.Forward {
	list := []*pipe.Forward{&p.Miss}
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

// hash makes a hash pipe but for its entries, and says how many it has.
func (g *generator) hash(p *pipe.Pipe) (entries int) {
	p.Size = 1 << g.IntN(4)
	switch p.Algorithm {
	case pipe.Flood:
		p.Size, p.Actions, p.Monitor = 0, nil, pipe.Monitor{Count: g.one(2)}
		return 1 + g.IntN(len(portNames))
	case pipe.Random, pipe.RoundRobin:
		return p.Size
	}
	for words := 0; ; {
		f := g.some(1)[0]
		if words += f.Words(); words > pipe.MaxKey || slices.ContainsFunc(p.Match, func(m pipe.MatchField) bool { return m.Field.Name == f.Name }) {
			break
		}
		p.Match = append(p.Match, pipe.MatchField{Field: f, Mask: g.mask(f)})
		if g.one(3) {
			break
		}
	}
	if p.Algorithm == pipe.Consistent {
		p.Size *= 64
		return 1 + g.IntN(5)
	}
	return p.Size
}

// mask is that of a field, nil for all of it.
func (g *generator) mask(f *pipe.Field) pipe.Value {
	if f.Only != 0 || f.Format == pipe.Port || g.one(2) {
		return nil
	}
	if f.Format == pipe.IPv4 || f.Format == pipe.IPv6 || f.Format == pipe.MACAddress {
		m, _ := f.ParseMask(fmt.Sprint(g.IntN(f.Bits + 1))) // a length always is one
		return m
	}
	return g.bits(f)
}

// bits is a value of a field, of few bits, of many or a corner.
func (g *generator) bits(f *pipe.Field) pipe.Value {
	v := f.Full()
	for i := range v {
		switch g.IntN(4) {
		case 0:
			v[i] &= g.Uint32() & g.Uint32() & g.Uint32()
		case 1:
			v[i] &= g.Uint32()
		case 2:
			v[i] &= uint32(g.IntN(4))
		}
	}
	return v
}

func under(v, mask pipe.Value) pipe.Value {
	out := slices.Clone(v)
	for i := range out {
		if mask != nil {
			out[i] &= mask[i]
		}
	}
	return out
}

// likely is a value that packets have often.
func (g *generator) likely(f *pipe.Field) pipe.Value {
	if names := f.Names(); len(names) > 0 && g.IntN(4) > 0 || f.Only != 0 {
		return pipe.Value{names[g.IntN(len(names))].Value}
	}
	switch f.Format {
	case pipe.IPv4:
		return pipe.Value{addresses4[g.IntN(len(addresses4))] | uint32(g.IntN(4))}
	case pipe.IPv6:
		return pipe.Value{0x20010db8, uint32(g.IntN(3)), 0, uint32(g.IntN(4))}
	case pipe.MACAddress:
		return pipe.Value{0x0200, uint32(g.IntN(4))}
	case pipe.Number:
		if g.IntN(3) > 0 {
			return under(pipe.Value{likelyNumbers[g.IntN(len(likelyNumbers))]}, f.Full())
		}
	}
	return g.bits(f)
}

var (
	addresses4    = []uint32{10 << 24, 192<<24 | 168<<16, 198<<24 | 51<<16 | 100<<8}
	likelyNumbers = []uint32{0, 1, 2, 10, 53, 64, 80, 100, 255, 443, 4789}
)

// match is what an entry asks of a field itself.
func (g *generator) match(f *pipe.Field, kind pipe.Kind) pipe.Match {
	m := pipe.Match{Field: f}
	if f.Format == pipe.Port {
		m.Port = portNames[g.IntN(len(portNames))]
		return m
	}
	switch {
	case kind == pipe.ACL && (f.Format == pipe.IPv4 || f.Format == pipe.IPv6):
		m.Mask, _ = f.ParseMask(fmt.Sprint([]int{0, 8, 16, 24, f.Bits - 1, f.Bits}[g.IntN(6)])) // a length always is one
	case f.Numeric() && g.one(3) && (kind == pipe.Control || f.Name == "l4.sport" || f.Name == "l4.dport"):
		a, b := g.likely(f), g.likely(f)
		if a[0] > b[0] {
			a, b = b, a
		}
		m.Value, m.Last = a, b
		return m
	case kind == pipe.Control:
		m.Mask = g.mask(f)
	}
	m.Value = under(g.likely(f), m.Mask)
	return m
}

// entry adds entry j to pipe i, if it makes one that the pipe does not have.
func (g *generator) entry(i, j int, flood bool) {
	p := g.line.Pipes[i]
	e := &pipe.Entry{}
	if g.one(2) {
		e.Name = fmt.Sprintf("e%d", j)
	}
	switch p.Kind {
	case pipe.Basic:
		g.exact(e, p.Match)
	case pipe.LPM:
		g.exact(e, p.Match[1:])
		v := g.likely(p.Match[0].Field)
		e.Prefix = g.prefix(v)
	case pipe.Control:
		e.Priority = g.IntN(pipe.MaxControlPriority + 1)
		for _, f := range g.some(g.IntN(4)) {
			e.Match = append(e.Match, g.match(f, p.Kind))
		}
		if g.one(4) {
			e.Conditions = append(e.Conditions, g.condition())
		}
	case pipe.ACL:
		g.acl(e)
	case pipe.Hash, pipe.OrderedList:
		e.Index = j
	}
	if slices.ContainsFunc(p.Entries, func(o *pipe.Entry) bool { return (p.Kind == pipe.Basic || p.Kind == pipe.LPM) && sameKey(o, e) }) {
		return
	}
	if p.Algorithm == pipe.Consistent {
		e.Weight = g.IntN(4)
	}
	if flood {
		e.Forward = &pipe.Forward{To: pipe.ToPort, Name: portNames[j]}
		p.Entries = append(p.Entries, e)
		return
	}
	if p.Kind == pipe.OrderedList {
		for range g.IntN(3) {
			e.List = append(e.List, g.action(false))
		}
	} else if len(p.Actions) > 0 {
		e.Action = g.IntN(len(p.Actions))
		for _, op := range p.Actions[e.Action].Ops {
			if op.FromEntry {
				e.Values = append(e.Values, g.operand(op.Field))
			}
		}
	}
	if g.one(3) {
		m := g.monitor(p)
		e.Monitor = &m
	}
	monitor := &p.Monitor
	if e.Monitor != nil {
		monitor = e.Monitor
	}
	mirrored := monitor.Mirror != ""
	if p.Forward == nil || mirrored || g.one(2) {
		e.Forward = g.forward(i, mirrored)
	}
	p.Entries = append(p.Entries, e)
}

func sameKey(a, b *pipe.Entry) bool {
	for i := range a.Match {
		if a.Match[i].Port != b.Match[i].Port || !slices.Equal(a.Match[i].Value, b.Match[i].Value) {
			return false
		}
	}
	return a.Prefix == b.Prefix
}

func (g *generator) exact(e *pipe.Entry, fields []pipe.MatchField) {
	for _, f := range fields {
		m := g.match(f.Field, pipe.Basic)
		m.Value, m.Mask, m.Last = under(m.Value, f.Mask), nil, nil
		e.Match = append(e.Match, m)
	}
}

func (g *generator) prefix(v pipe.Value) netip.Prefix {
	var a netip.Addr
	if len(v) == 1 {
		a = netip.AddrFrom4([4]byte{byte(v[0] >> 24), byte(v[0] >> 16), byte(v[0] >> 8), byte(v[0])})
	} else {
		var b [16]byte
		for i := range b {
			b[i] = byte(v[i/4] >> (24 - i%4*8))
		}
		a = netip.AddrFrom16(b)
	}
	return netip.PrefixFrom(a, []int{0, 1, 7, 8, 9, 16, 24, 30, 31, 32, g.IntN(a.BitLen() + 1), a.BitLen()}[g.IntN(12)]).Masked()
}

func (g *generator) acl(e *pipe.Entry) {
	e.Priority = g.IntN(4)
	add := func(name string) { e.Match = append(e.Match, g.match(pipe.LookupField(name), pipe.ACL)) }
	version := []string{"ipv4.", "ipv6."}[g.IntN(2)]
	for _, end := range []string{"src", "dst"} {
		if g.one(2) {
			add(version + end)
		}
	}
	switch g.IntN(4) {
	case 0:
		e.Match = append(e.Match, pipe.Match{Field: pipe.LookupField("ip.proto"), Value: pipe.Value{[]uint32{6, 17, 1, 58, 50, 132}[g.IntN(6)]}})
	case 1:
		if g.one(2) {
			e.Match = append(e.Match, pipe.Match{Field: pipe.LookupField("ip.proto"), Value: pipe.Value{[]uint32{6, 17}[g.IntN(2)]}})
		}
		add([]string{"l4.sport", "l4.dport"}[g.IntN(2)])
	case 2:
		add("icmp.type")
		if g.one(2) {
			add("icmp.code")
		}
	}
}

// numeric is a field of numbers.
func (g *generator) numeric() *pipe.Field {
	for {
		if f := g.some(1)[0]; f.Numeric() && f.Format != pipe.Port {
			return f
		}
	}
}

func (g *generator) condition() pipe.Condition {
	c := pipe.Condition{Field: g.numeric(), Compare: []pipe.Compare{pipe.EQ, pipe.NE, pipe.LT, pipe.LE, pipe.GT, pipe.GE}[g.IntN(6)]}
	if g.one(2) {
		c.With = g.numeric()
	} else {
		c.Value = g.likely(c.Field)[0]
	}
	return c
}

// forward leads from pipe i to a later one or out.
func (g *generator) forward(i int, mirrored bool) *pipe.Forward {
	if later := g.line.Pipes[i+1:]; len(later) > 0 && g.IntN(4) > 0 {
		p := later[g.IntN(len(later))]
		f := &pipe.Forward{To: pipe.ToPipe, Name: p.Name}
		if p.Kind == pipe.OrderedList {
			if f.Index = g.IntN(max(len(p.Entries), 1) + 1); g.one(3) {
				f.Index, f.IndexFrom = 0, g.numeric()
			}
		}
		if !mirrored || g.copies[p.Name] {
			return f
		}
	}
	switch g.IntN(6) {
	case 0:
		if !mirrored {
			return &pipe.Forward{To: pipe.ToHost}
		}
	case 1, 2:
		if !mirrored {
			return &pipe.Forward{To: pipe.ToPolicy}
		}
	case 3:
		return &pipe.Forward{To: pipe.ToDrop}
	case 4:
		if !mirrored {
			return g.stage()
		}
	}
	return &pipe.Forward{To: pipe.ToPort, Name: portNames[g.IntN(len(portNames))]}
}

func (g *generator) stage() *pipe.Forward {
	i := g.IntN(len(portNames))
	f := &pipe.Forward{To: pipe.ToStage, Stage: pipe.StageForward, Name: portNames[i], Bypass: g.one(2)}
	if g.one(2) {
		f.Stage, f.Copy = pipe.StageMirror, portNames[(i+1+g.IntN(len(portNames)-1))%len(portNames)]
	}
	return f
}

func (g *generator) monitor(p *pipe.Pipe) pipe.Monitor {
	m := pipe.Monitor{Count: g.one(2)}
	if p.Kind == pipe.CT {
		return m
	}
	if n := len(g.line.Counters); n > 0 && g.one(3) {
		m.Counter = g.line.Counters[g.IntN(n)]
	}
	if n := len(g.line.Meters); n > 0 && g.one(3) {
		m.Meter = g.line.Meters[g.IntN(n)].Name
	}
	if n := len(g.line.Mirrors); n > 0 && g.one(4) && p.Forward == nil {
		m.Mirror = g.line.Mirrors[g.IntN(n)].Name
	}
	if g.one(6) {
		m.Age = time.Duration(1+g.IntN(600)) * time.Second
	}
	return m
}
