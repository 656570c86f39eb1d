package pipe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// Report is a compiled pipeline as people and programs read it.
type Report struct {
	Name string `json:"name"`
	Root string `json:"root"`
	// BypassesPolicy says that packets may leave without the policy's word.
	BypassesPolicy bool            `json:"bypasses_policy"`
	Instructions   int             `json:"instructions"`
	Pipes          []PipeReport    `json:"pipes"` // in the order in which packets come to them
	Counters       []CounterReport `json:"counters"`
}

// PipeReport is one pipe.
type PipeReport struct {
	Name         string        `json:"name"`
	Kind         Kind          `json:"kind"`
	Became       Form          `json:"became"` // "" if no packet reaches it
	Why          string        `json:"why"`
	NS           float64       `json:"ns"` // predicted for a packet that enters it
	Instructions int           `json:"instructions"`
	Size         int           `json:"size"`    // room for entries; 0: those that it has
	Total        int           `json:"total"`   // entries
	Entries      []EntryReport `json:"entries"` // the first ones
	Miss         EntryReport   `json:"miss"`    // packets that no entry matches
	// Forward is where packets go that match, of a pipe without entries; else "".
	Forward string `json:"forward,omitempty"`
	// MemoryBytes is what a pipe of the gateway's own has in maps.
	MemoryBytes int `json:"memory_bytes,omitempty"`
}

// EntryReport is one entry.
type EntryReport struct {
	Name     string   `json:"name"`
	Priority int      `json:"priority"`
	Match    []string `json:"match"`
	Forward  string   `json:"forward"`
	// Packets and Bytes are null if the entry does not count.
	Packets *uint64  `json:"packets"`
	Bytes   *uint64  `json:"bytes"`  // of frames
	IdleS   *float64 `json:"idle_s"` // since its last packet; null if there was none
	// Of the gateway's own pipes: what an entry writes, the flows that are its, where it is written, and whether it
	// tells of what it decides, or decides nothing.
	Does  string  `json:"does,omitempty"`
	Flows *uint64 `json:"flows,omitempty"`
	File  string  `json:"file,omitempty"`
	Line  int     `json:"line,omitempty"`
	Log   bool    `json:"log,omitempty"`
	Audit bool    `json:"audit,omitempty"`
}

// CounterReport is a counter that entries share.
type CounterReport struct {
	Name    string `json:"name"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// TicksPerSecond is how often the clock of [bpf.PipesPipeEntry]'s Used ticks.
const TicksPerSecond = 1e9 / (1 << 20)

// Report describes the program, with at most so many entries of each pipe, at a tick of the clock.
func (p *Program) Report(most int, now uint32) *Report {
	r := &Report{Name: p.Pipeline.Name, Root: p.Pipeline.Root, BypassesPolicy: p.Pipeline.BypassesPolicy, Pipes: []PipeReport{}, Counters: []CounterReport{}}
	reached := make(map[int]bool)
	for _, n := range p.Order {
		reached[n] = true
		r.Pipes = append(r.Pipes, p.pipeReport(p.Pipes[n], most, now))
		r.Instructions += p.Pipes[n].Insns
	}
	for _, pl := range p.Pipes {
		if !reached[pl.Number] {
			r.Pipes = append(r.Pipes, p.pipeReport(pl, most, now))
		}
	}
	for i, name := range p.Pipeline.Counters {
		c := CounterReport{Name: name}
		c.Packets, c.Bytes, _ = p.counts(p.Counters[i])
		r.Counters = append(r.Counters, c)
	}
	return r
}

// counts reads what an entry has counted, and when it was used last.
func (p *Program) counts(place uint32) (packets, bytes uint64, used uint32) {
	e := &p.Memory.Entries[place]
	return atomic.LoadUint64(&e.Packets), atomic.LoadUint64(&e.Bytes), atomic.LoadUint32(&e.Used)
}

func (p *Program) pipeReport(pl *Planned, most int, now uint32) PipeReport {
	r := PipeReport{
		Name: pl.Pipe.Name, Kind: pl.Pipe.Kind, Became: pl.Form, Why: pl.Why, NS: pl.NS, Instructions: pl.Insns,
		Size: p.Room(pl.Number), Total: len(pl.Pipe.Entries), Entries: []EntryReport{},
	}
	for i := range pl.Pipe.Entries[:min(most, len(pl.Pipe.Entries))] {
		r.Entries = append(r.Entries, p.EntryReport(pl.Number, i, now))
	}
	if pl.Pipe.Kind == CT {
		r.Forward = p.forwardText(pl.Pipe.Forward, nil)
	}
	r.Miss = EntryReport{Match: []string{}, Forward: p.forwardText(&pl.Pipe.Miss, nil)}
	if pl.Miss != 0 {
		p.count1(&r.Miss, pl.Miss, now)
	}
	return r
}

// Room is how many entries a pipe says that it has room for; 0: those that it was compiled with.
func (p *Program) Room(number int) int {
	if pl := p.Pipes[number]; pl.Pipe.Resizable {
		return pl.room
	}
	return p.Pipes[number].Pipe.Size
}

// EntryReport describes an entry of a pipe.
func (p *Program) EntryReport(number, i int, now uint32) EntryReport {
	pl := p.Pipes[number]
	e := pl.Pipe.Entries[i]
	out := EntryReport{Name: e.Name, Priority: e.Priority, Match: p.asks(pl.Pipe, e), Forward: p.forwardText(e.Forward, pl.Pipe.Forward)}
	if p.Pipeline.Own {
		out.File, out.Line, out.Log, out.Audit = e.Pos.File, e.Pos.Line, e.Log, e.Audit
		if e.Action < len(pl.Pipe.Actions) {
			out.Does = pl.Pipe.Actions[e.Action].Name
		}
	}
	if i < len(pl.Places) && pl.Pipe.monitor(e).Count {
		p.count1(&out, pl.Places[i], now)
	}
	return out
}

// count1 fills in what an entry has counted.
func (p *Program) count1(r *EntryReport, place, now uint32) {
	packets, bytes, used := p.counts(place)
	r.Packets, r.Bytes = &packets, &bytes
	if packets > 0 {
		idle := float64(now-used) / TicksPerSecond
		r.IdleS = &idle
	}
}

// asks says what an entry matches on, one text a field.
func (p *Program) asks(pipe *Pipe, e *Entry) []string {
	list := []string{}
	if e.Prefix.IsValid() {
		list = append(list, fmt.Sprintf("%s=%s", pipe.Match[0].Field.Name, e.Prefix))
	}
	for i := range e.Match {
		list = append(list, fmt.Sprintf("%s=%s", e.Match[i].Field.Name, p.matchText(&e.Match[i])))
	}
	for _, c := range e.Conditions {
		with := fmt.Sprint(c.Value)
		if c.With != nil {
			with = c.With.Name
		}
		list = append(list, fmt.Sprintf("%s %s %s", c.Field.Name, c.Compare, with))
	}
	if pipe.Kind == Hash || pipe.Kind == OrderedList {
		list = append(list, fmt.Sprintf("index=%d", e.Index))
	}
	return list
}

// matchText writes the value of a match; ports by name.
func (p *Program) matchText(m *Match) string {
	if m.Field.Word == int(bpf.PipesPipeWordPIPE_PORT) && len(m.Value) == 1 && m.Mask == nil {
		for name, id := range p.Pipeline.Ports {
			if id == m.Value[0] {
				return name
			}
		}
	}
	return m.Text()
}

func (p *Program) forwardText(f, otherwise *Forward) string {
	if f == nil {
		f = otherwise
	}
	if f == nil {
		return ""
	}
	return f.String()
}

// String says where packets go, as in "pipe rules" or "drop".
func (f *Forward) String() string {
	switch {
	case f.Reason != "":
		return fmt.Sprintf("%s (%s)", f.To, f.Reason)
	case f.To == ToStage:
		text := fmt.Sprintf("stage %s, port %s", f.Stage, f.Name)
		if f.Copy != "" {
			text += ", copy to " + f.Copy
		}
		if f.Bypass {
			text += ", or without it"
		}
		return text
	case f.To != ToPipe && f.To != ToPort:
		return string(f.To)
	case f.IndexFrom != nil:
		return fmt.Sprintf("pipe %s, index from %s", f.Name, f.IndexFrom.Name)
	case f.To == ToPipe && f.Index > 0:
		return fmt.Sprintf("pipe %s, index %d", f.Name, f.Index)
	}
	return fmt.Sprintf("%s %s", f.To, f.Name)
}

// Title names an entry for people: its name, or what it matches.
func (r *EntryReport) Title() string {
	if r.Name != "" {
		return r.Name
	}
	if len(r.Match) == 0 {
		return "everything"
	}
	return strings.Join(r.Match, " ")
}

// Mermaid draws the pipeline as a graph, with the packets that took each way.
func (r *Report) Mermaid() string { return Mermaid(r, nil) }

// Mermaid draws a pipeline, and the gateway's own pipes behind what it forwards to the policy; either may be nil.
func Mermaid(front, own *Report) string {
	var g graph
	g.WriteString("flowchart TD\n")
	g.ends = map[string]string{}
	if own != nil {
		g.policy = g.pipe("own_", own.Root)
	}
	switch {
	case front != nil:
		fmt.Fprintf(&g, "  in((packets)) --> %s\n", g.pipe("p_", front.Root))
		g.draw(front, "p_")
	case own != nil:
		fmt.Fprintf(&g, "  in((packets)) --> %s\n", g.policy)
	}
	if own != nil {
		g.draw(own, "own_")
	}
	for _, id := range sortedKeys(g.ends) {
		fmt.Fprintf(&g, "  %s([\"%s\"])\n", id, mermaidText(g.ends[id]))
	}
	return g.String()
}

// graph is a drawing on its way.
type graph struct {
	strings.Builder
	ends   map[string]string // where ways end, by id
	policy string            // where packets for the policy go on; "" ends their way
}

func (g *graph) pipe(prefix, name string) string { return prefix + mermaidID(name) }

// node is where a forward of a pipeline leads.
func (g *graph) node(prefix, forward string) string {
	if name, isPipe := strings.CutPrefix(forward, "pipe "); isPipe {
		name, _, _ = strings.Cut(name, ",")
		return g.pipe(prefix, name)
	}
	if forward == string(ToPolicy) && g.policy != "" {
		return g.policy
	}
	id := "to_" + mermaidID(forward)
	g.ends[id] = forward
	return id
}

func (g *graph) draw(r *Report, prefix string) {
	for i := range r.Pipes {
		p := &r.Pipes[i]
		id := g.pipe(prefix, p.Name)
		fmt.Fprintf(g, "  %s[\"%s<br/>%s, %s\"]\n", id, mermaidText(p.Name), p.Kind, p.Became)
		for k := range p.Entries {
			if e := &p.Entries[k]; e.Audit {
				fmt.Fprintf(g, "  %s -.- audit_%s[/\"%s\"/]\n", id, mermaidID(p.Name+" "+e.Name), mermaidText("audit "+e.Title()+counted(e)))
			} else {
				fmt.Fprintf(g, "  %s -->|\"%s\"| %s\n", id, mermaidText(e.Title()+counted(e)), g.node(prefix, e.Forward))
			}
		}
		if n := p.Total - len(p.Entries); n > 0 {
			fmt.Fprintf(g, "  %s -.- more_%s[/\"%d more entries\"/]\n", id, strings.TrimPrefix(id, "p_"), n)
		}
		if p.Kind == CT && p.Forward != "" {
			fmt.Fprintf(g, "  %s -->|\"known\"| %s\n", id, g.node(prefix, p.Forward))
		}
		if p.Miss.Forward != "" {
			fmt.Fprintf(g, "  %s -.->|\"miss%s\"| %s\n", id, mermaidText(counted(&p.Miss)), g.node(prefix, p.Miss.Forward))
		}
	}
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

func counted(e *EntryReport) string {
	switch {
	case e.Packets != nil:
		return fmt.Sprintf(": %d packets", *e.Packets)
	case e.Flows != nil:
		return fmt.Sprintf(": %d flows", *e.Flows)
	}
	return ""
}

// mermaidID makes a word of a name; different names stay different.
func mermaidID(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%x", c)
		}
	}
	return b.String()
}

// mermaidText is text that ends no label and is no markup.
func mermaidText(s string) string {
	return strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;", ">", "&gt;", "|", "&#124;", "\n", " ").Replace(s)
}

// PipeName is the name of a pipe, by its number.
func (p *Program) PipeName(number uint32) string {
	if int(number) >= len(p.Pipes) {
		return fmt.Sprintf("pipe %d", number)
	}
	return p.Pipes[number].Pipe.Name
}

// EntryName is what people call the entry of a pipe at a place of memory: its name, or what it matches. "" is none.
func (p *Program) EntryName(number int, place uint32) string {
	if place == 0 || number >= len(p.Pipes) || int(place) >= len(p.Memory.Entries) {
		return ""
	}
	pl := p.Pipes[number]
	n := int(p.Memory.Entries[place].Number)
	if n >= len(pl.Pipe.Entries) {
		return fmt.Sprintf("entry %d", n)
	}
	e := pl.Pipe.Entries[n]
	r := EntryReport{Name: e.Name, Match: p.asks(pl.Pipe, e)}
	return r.Title()
}

// ForwardName says where a forward of the program leads (abi_pipe.h: PIPE_TO_*).
func (p *Program) ForwardName(forward uint32) string {
	number := forward & forwardMask
	switch forward &^ forwardMask {
	case toHost:
		return string(ToHost)
	case toPolicy:
		return string(ToPolicy)
	case toPort:
		return "port " + p.portName(number)
	case toStage:
		f := Forward{To: ToStage, Name: p.portName(number & stagePort), Bypass: number&stageBypass != 0}
		for stage, bits := range stageBits {
			if number>>stageShift&stageMask == bits {
				f.Stage = stage
			}
		}
		if id := number >> stageCopy & stagePort; id != 0 {
			f.Copy = p.portName(id)
		}
		return f.String()
	case toPorts:
		if int(number) < len(p.Groups) {
			names := make([]string, len(p.Groups[number]))
			for i, id := range p.Groups[number] {
				names[i] = p.portName(id)
			}
			return "ports " + strings.Join(names, ", ")
		}
	}
	if reason := bpf.XDPReason(number); number != 0 && reason.String() != "" {
		return fmt.Sprintf("drop (%s)", reason)
	}
	return string(ToDrop)
}

func (p *Program) portName(id uint32) string {
	for name, of := range p.Pipeline.Ports {
		if of == id {
			return name
		}
	}
	return fmt.Sprint(id)
}

// Forget leaves counts out: those of a pipeline that does not run.
func (r *Report) Forget() {
	for i := range r.Pipes {
		for k := range r.Pipes[i].Entries {
			r.Pipes[i].Entries[k].Packets, r.Pipes[i].Entries[k].Bytes = nil, nil
		}
		r.Pipes[i].Miss.Packets, r.Pipes[i].Miss.Bytes = nil, nil
	}
	r.Counters = []CounterReport{}
}
