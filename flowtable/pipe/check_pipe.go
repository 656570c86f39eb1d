package pipe

import (
	"fmt"
	"math/bits"
	"slices"
)

// kinds are all kinds of pipes, in the order of the documentation.
var kinds = []Kind{Basic, Control, LPM, ACL, Hash, OrderedList, CT}

// Kinds are all kinds of pipes.
func Kinds() []Kind { return slices.Clone(kinds) }

func (c *checker) pipes() {
	p := c.pipeline
	here := subject{pos: p.Pos}
	if p.Own {
		c.fail(here.Errorf("it says what the gateway's own pipes do, and is not compiled").WithHint("rules of a policy become these pipes"))
	}
	if n := len(p.Pipes); n == 0 || n > MaxPipes {
		c.fail(here.Errorf("%d pipes: a pipeline has 1 to %d", n, MaxPipes).WithHint("one pipe takes what several of the same kind and fields hold"))
	}
	taken := make(map[string]bool)
	for _, pipe := range p.Pipes {
		if c.byName[pipe.Name] == nil {
			c.byName[pipe.Name] = pipe
		}
	}
	for _, pipe := range p.Pipes {
		at := subject{pos: pipe.Pos, pipe: pipe}
		c.name(at, pipe.Name, taken)
		if !slices.Contains(kinds, pipe.Kind) {
			c.fail(nearHint(at.Errorf("there is no kind %q", pipe.Kind), string(pipe.Kind), texts(kinds), "it is one of: "+commas(kinds)))
			continue
		}
		c.pipe(at, pipe)
	}
}

func texts[T ~string](of []T) []string {
	out := make([]string, len(of))
	for i, w := range of {
		out[i] = string(w)
	}
	return out
}

// commas writes words with commas between them.
func commas[T ~string](of []T) string {
	out := ""
	for i, w := range of {
		if i > 0 {
			out += ", "
		}
		out += string(w)
	}
	return out
}

// pipe checks what all kinds have, then what is the kind's.
func (c *checker) pipe(at subject, p *Pipe) {
	c.matchFields(at, p)
	c.size(at, p)
	c.actions(at, p)
	c.monitor(at, p, &p.Monitor)
	if p.Miss.To == "" {
		c.fail(at.Errorf("it does not say what becomes of a packet that no entry matches").WithHint("add miss: drop, policy or another forward"))
	} else {
		c.forward(at.in(p.Miss.Pos, "miss"), &p.Miss)
	}
	if p.Forward != nil {
		c.forward(at.in(p.Forward.Pos, "forward"), p.Forward)
	}
	if p.Kind != Hash && p.Algorithm != "" {
		c.fail(at.Errorf("a pipe of kind %s has no algorithm", p.Kind).WithHint("kind hash has"))
	}
	switch p.Kind {
	case Hash:
		c.hash(at, p)
	case CT:
		c.ct(at, p)
	}
	c.entries(at, p)
}

// matchFields checks the fields that all entries of the pipe have in common.
func (c *checker) matchFields(at subject, p *Pipe) {
	switch p.Kind {
	case Basic:
		if len(p.Match) == 0 {
			c.fail(at.Errorf("a basic pipe needs the fields that its entries match on").WithHint("add match: [vlan.0.id], or take kind control, whose entries may match all"))
		}
	case LPM:
		if len(p.Match) == 0 || !addresses[p.Match[0].Field.Name] {
			c.fail(at.Errorf("the first field of an lpm pipe is the address whose longest prefix decides").
				WithHint("begin match with ipv4.src, ipv4.dst, ipv6.src or ipv6.dst"))
		}
	case Hash:
	default:
		if len(p.Match) > 0 {
			c.fail(at.in(p.Match[0].Pos, "match").Errorf("a pipe of kind %s has no fields of its own", p.Kind).WithHint("%s", whatMatches[p.Kind]))
			return
		}
	}
	words, seen := 0, make(map[string]bool)
	for i, m := range p.Match {
		at := at.field(m.Pos, m.Field)
		c.used.fields[m.Field.Name] = true
		if seen[m.Field.Name] {
			c.fail(at.Errorf("it is named twice").WithHint("a mask joins several parts of a field"))
		}
		seen[m.Field.Name] = true
		words += m.Field.Words()
		c.value(at, m.Field, m.Mask, nil, "mask")
		if p.Kind != LPM {
			continue
		}
		if m.Mask != nil && !slices.Equal(m.Mask, m.Field.Full()) {
			c.fail(at.Errorf("an lpm pipe has no masks").WithHint("the prefix's length is the mask of the address, and other fields are compared whole: a basic or control pipe has masks"))
		}
		if i > 0 && addresses[m.Field.Name] {
			c.fail(at.Errorf("an lpm pipe looks for one address").WithHint("forward to a second lpm pipe, or take kind acl, whose entries have two prefixes"))
		}
	}
	if most := MaxKey; words > most {
		c.fail(at.Errorf("its fields take %d words of 32 bits: at most %d are compared", words, most).WithHint("split it in two pipes, of which one forwards to the other"))
	}
}

// addresses are the fields that lpm and acl pipes take prefixes of.
var addresses = map[string]bool{"ipv4.src": true, "ipv4.dst": true, "ipv6.src": true, "ipv6.dst": true}

// whatMatches says where kinds without fields of their own have what they match on.
var whatMatches = map[Kind]string{
	Control:     "each entry of it has its own match",
	ACL:         "each entry of it has its own match",
	OrderedList: "its entries are chosen by the index that is forwarded with",
	CT:          "it looks for the packet's flow",
}

// size checks how many entries there are and may be.
func (c *checker) size(at subject, p *Pipe) {
	most := MaxEntries
	if p.Kind == Hash || p.Kind == OrderedList {
		most = MaxSlots
	}
	switch n := max(p.Size, len(p.Entries)); {
	case p.Size < 0 || n > most:
		c.fail(at.Errorf("size %d: a pipe of kind %s has room for 1 to %d entries", n, p.Kind, most).WithHint("split it over several pipes"))
	case p.Size > 0 && len(p.Entries) > p.Size && !p.Resizable:
		c.fail(at.Errorf("%d entries are more than its size, %d", len(p.Entries), p.Size).WithHint("raise its size, or add resizable: true"))
	}
	if p.Resizable && (p.Kind == Hash || p.Kind == OrderedList || p.Kind == CT) {
		c.fail(at.Errorf("a pipe of kind %s cannot be resized", p.Kind).WithHint("give it the size that it needs at most"))
	}
	if p.Resizable && p.Fixed {
		c.fail(at.Errorf("it is fixed and resizable").WithHint("leave one of the two out: the entries of a fixed pipe do not change"))
	}
	if p.Kind == CT && p.Size != 0 {
		c.fail(at.Errorf("a ct pipe has no size").WithHint("the gateway's configuration says how many flows there may be"))
	}
}

// algorithms are those of hash pipes, in the order of the documentation.
var algorithms = []Algorithm{ByHash, Consistent, Random, Identity, RoundRobin, Flood}

func (c *checker) hash(at subject, p *Pipe) {
	if !slices.Contains(algorithms, p.Algorithm) {
		c.fail(nearHint(at.Errorf("there is no algorithm %q", p.Algorithm), string(p.Algorithm), texts(algorithms), "it is one of: "+commas(algorithms)))
		return
	}
	looks := p.Algorithm == ByHash || p.Algorithm == Consistent || p.Algorithm == Identity
	switch {
	case looks && len(p.Match) == 0:
		c.fail(at.Errorf("algorithm %s needs fields", p.Algorithm).WithHint("add match: [ipv4.src, ipv4.dst], or take random or round-robin"))
	case !looks && len(p.Match) > 0:
		c.fail(at.field(p.Match[0].Pos, p.Match[0].Field).Errorf("algorithm %s looks at no field", p.Algorithm).WithHint("leave match out, or take algorithm hash"))
	}
	if p.Algorithm == Flood {
		if n := len(p.Entries); n == 0 || n > MaxCopies {
			c.fail(at.Errorf("it floods to %d entries: 1 to %d are possible", n, MaxCopies).WithHint("each entry is a port that gets a copy"))
		}
		return
	}
	if p.Size < 1 || bits.OnesCount(uint(p.Size)) != 1 {
		c.fail(at.Errorf("size %d: that of a hash pipe is a power of two", p.Size).WithHint("add size: %d", 1<<bits.Len(uint(max(len(p.Entries), 1)-1))))
	}
}

func (c *checker) ct(at subject, p *Pipe) {
	if len(p.Entries) > 0 {
		c.fail(at.Errorf("a ct pipe has no entries").WithHint("it finds the gateway's flows, and says their state in ct.state"))
	}
	if p.Forward == nil {
		c.fail(at.Errorf("it does not say where packets of known flows go").WithHint("add forward, to a pipe that matches on ct.state for example"))
	}
	if m := p.Monitor; m.Counter != "" || m.Meter != "" || m.Mirror != "" || m.Age != 0 || m.Remove {
		c.fail(at.Errorf("a ct pipe counts, and monitors nothing else").WithHint("forward to a basic pipe that matches on ct.state, and has the monitor"))
	}
	if p.Fixed {
		c.fail(at.Errorf("a ct pipe is not fixed: flows come and go").WithHint("leave fixed out"))
	}
}

// forward checks one forward of a pipe or an entry.
func (c *checker) forward(at subject, f *Forward) {
	if f.To != ToStage && (f.Stage != "" || f.Copy != "" || f.Bypass) {
		c.fail(at.Errorf("stages are a worker's, and this goes to %s", f.To).WithHint("forward to a stage, or leave stage, copy and on_failure out"))
	}
	switch f.To {
	case ToPipe:
		c.toPipe(at, f)
		return
	case ToPort:
		if f.Name == "" {
			c.fail(at.Errorf("a port without a name").WithHint("the gateway's configuration names its ports"))
		}
	case ToStage:
		c.stage(at, f)
	case ToDrop, ToHost, ToPolicy:
		if f.Name != "" {
			c.fail(at.Errorf("%s has no name, and it says %q", f.To, f.Name).WithHint("leave the name out"))
		}
	default:
		c.fail(nearHint(at.Errorf("there is no forward to %q", f.To), string(f.To), texts(targets), "it is one of: "+commas(targets)))
		return
	}
	if f.Index != 0 || f.IndexFrom != nil {
		c.fail(at.Errorf("an index chooses an entry of an ordered list, and this goes to %s", f.To).WithHint("leave the index out"))
	}
	if (f.To == ToPort || f.To == ToHost || f.To == ToStage) && !c.pipeline.BypassesPolicy {
		c.fail(at.Errorf("what goes to a %s from here is judged by no rule of the policy", f.To).
			WithHint("forward to policy, or say bypasses_policy: true for the whole pipeline"))
	}
}

// targets are those of forwards, in the order of the documentation.
var targets = []Target{ToPipe, ToPort, ToDrop, ToHost, ToPolicy, ToStage}

// Stages are what workers can do, in the order of the documentation.
func Stages() []Stage { return []Stage{StageForward, StageMirror} }

// stage checks a forward to a worker's stage.
func (c *checker) stage(at subject, f *Forward) {
	const example = "as in {stage: mirror, port: wan0, copy: mon0}"
	switch {
	case !slices.Contains(Stages(), f.Stage):
		c.fail(nearHint(at.Errorf("there is no stage %q", f.Stage), string(f.Stage), texts(Stages()), "it is one of: "+commas(Stages())))
	case f.Name == "":
		c.fail(at.Errorf("stage %s does not say by which port packets leave", f.Stage).WithHint(example))
	case f.Stage == StageMirror && f.Copy == "":
		c.fail(at.Errorf("stage mirror does not say which port gets the copy").WithHint(example))
	case f.Stage != StageMirror && f.Copy != "":
		c.fail(at.Errorf("stage %s copies nothing, and it names port %q for a copy", f.Stage, f.Copy).WithHint("take stage mirror, or leave copy out"))
	case f.Copy != "" && f.Copy == f.Name:
		c.fail(at.Errorf("the copy would leave by port %q, as the packet does", f.Copy).WithHint("copy to a port of its own"))
	}
}

func (c *checker) toPipe(at subject, f *Forward) {
	next := c.byName[f.Name]
	if next == nil {
		names := make([]string, len(c.pipeline.Pipes))
		for i, p := range c.pipeline.Pipes {
			names[i] = p.Name
		}
		c.fail(nearHint(at.Errorf("there is no pipe %q", f.Name), f.Name, names, "declare it under pipes"))
		return
	}
	if f.IndexFrom != nil {
		c.used.fields[f.IndexFrom.Name] = true
	}
	switch {
	case next.Kind != OrderedList && (f.Index != 0 || f.IndexFrom != nil):
		c.fail(at.Errorf("pipe %q is of kind %s, which an index does not choose an entry of", f.Name, next.Kind).WithHint("leave the index out"))
	case f.IndexFrom != nil && !f.IndexFrom.Numeric():
		c.fail(at.Errorf("the index is in field %s, which is no number of 32 bits", f.IndexFrom.Name).WithHint("take meta.0, which an action sets"))
	case f.IndexFrom != nil && f.Index != 0:
		c.fail(at.Errorf("the index is a number and in field %s", f.IndexFrom.Name).WithHint("leave one of the two out"))
	case next.Kind == OrderedList && f.IndexFrom == nil && f.Index >= 0 && f.Index < MaxSlots:
		if !slices.ContainsFunc(next.Entries, func(e *Entry) bool { return e.Index == f.Index }) {
			c.warn(at.Errorf("pipe %q has no entry with index %d, so that the packets are its miss", f.Name, f.Index).WithHint("%s", indices(next)))
		}
	case next.Kind == OrderedList && (f.Index < 0 || f.Index >= MaxSlots):
		c.fail(at.Errorf("index %d: an ordered list has 0 to %d", f.Index, MaxSlots-1).WithHint("packets with an index that no entry has are its miss"))
	}
}

// indices says which there are in an ordered list.
func indices(p *Pipe) string {
	if len(p.Entries) == 0 {
		return "it has no entries yet"
	}
	text := "it has"
	for i, e := range p.Entries {
		if i == 8 {
			return text + ", ..."
		}
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" %d", e.Index)
	}
	return text
}
