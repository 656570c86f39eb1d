package pipe

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

// Options are what a program is compiled for.
type Options struct {
	// Trace has the program tell of each pipe that a packet comes to: it calls pipe_step.
	Trace bool
	// Seed is the constant pipe_seed of the program, and SpreadSeed its pipe_spread_seed.
	Seed, SpreadSeed uint64
	// Limits, if not zero, are tighter than those of kernels: for tests.
	Limits Limits
}

// Limits are how large what becomes instructions may be; 0: what kernels load.
type Limits struct {
	Function int // instructions of a function
	Program  int // of all functions
	Code     int // entries of a pipe that become instructions
	// Always has all become instructions that may, whatever it costs.
	Always bool
}

// Compile lays out the tables of a resolved pipeline ([Pipeline.Resolve]) and chooses what becomes of each pipe: see cost.go.
// It keeps p. Errors name the pipe: forwards that lead in a circle, mirrors of packets that are not sent by the pipeline, more
// than there is room for.
func Compile(p *Pipeline, o Options) (*Program, error) {
	tables, shared := make(map[int]bool), make(map[int]bool)
	for {
		c := &compiler{Program: &Program{Pipeline: p, named: newNumbers(p), options: o, Memory: &Memory{}}, number: map[string]int{}, tables: tables, shared: shared}
		err := c.compile()
		if err == nil {
			return c.Program, nil
		}
		largest := c.largest()
		if alone := c.spread(); errors.Is(err, errSize) && largest == nil && alone != nil {
			shared[alone.Number] = true
			continue
		}
		if errors.Is(err, errSize) && largest == nil {
			err = fmt.Errorf("%w (most of it is pipe %s)", err, c.most().Pipe.Name)
		}
		if largest == nil || !errors.Is(err, errSize) {
			return nil, fmt.Errorf("compile pipeline %s: %w", p.Name, err)
		}
		tables[largest.Number] = true
	}
}

// errSize is part of errors about programs that are too large.
var errSize = errors.New("make lists of actions shorter, take an acl pipe for many ranges of ports, or divide the pipeline's work over fewer pipes")

// largest is the largest search that can be a table instead; nil: there is none.
func (c *compiler) largest() (largest *Planned) {
	for _, pl := range c.Pipes {
		tables := pl.Pipe.Kind == Basic || pl.Pipe.Kind == LPM || pl.Pipe.Kind == Control && pl.Pipe.costTuples() < math.MaxFloat64
		if pl.Form == InCode && tables && pl.tree != nil && (largest == nil || pl.tree.nodes[0].size > largest.tree.nodes[0].size) {
			largest = pl
		}
	}
	return largest
}

// spread is the largest pipe whose entries have instructions of their own and could share them; nil: there is none.
func (c *compiler) spread() (largest *Planned) {
	for _, pl := range c.Pipes {
		if pl.alone && len(pl.Places) > 1 && (largest == nil || pl.Insns > largest.Insns) {
			largest = pl
		}
	}
	return largest
}

// most is the pipe that takes most of what became instructions.
func (c *compiler) most() *Planned {
	return slices.MaxFunc(c.Pipes, func(a, b *Planned) int {
		size := func(pl *Planned) int {
			if pl.tree != nil {
				return max(pl.Insns, pl.tree.nodes[0].size)
			}
			return pl.Insns
		}
		return cmp.Compare(size(a), size(b))
	})
}

// compiler makes a program.
type compiler struct {
	*Program
	number                map[string]int // of pipes
	tables                map[int]bool   // numbers of pipes that must not become instructions
	shared                map[int]bool   // numbers of pipes whose entries must share instructions
	later                 []func() error // what fills memory once all of it is laid out
	roots, nodes4, nodes6 int            // of the arena
}

func (c *compiler) compile() error {
	for i, p := range c.Pipeline.Pipes {
		c.number[p.Name] = i
		c.Pipes = append(c.Pipes, &Planned{Pipe: p, Number: i, room: p.Room()})
	}
	root, ok := c.number[c.Pipeline.Root]
	if !ok {
		return fmt.Errorf("there is no root pipe %q", c.Pipeline.Root)
	}
	c.root, c.turns = root, make([]uint32, len(c.Pipes))
	if err := c.sort(); err != nil {
		return err
	}
	c.Memory.Entries = append(c.Memory.Entries, nobody)
	for range c.Pipeline.Counters {
		c.Counters = append(c.Counters, c.place())
	}
	for _, m := range c.Pipeline.Mirrors {
		ids, err := c.ports(m.Ports)
		if err != nil {
			return fmt.Errorf("mirror %s: %w", m.Name, err)
		}
		c.mirrors = append(c.mirrors, ids)
	}
	for _, n := range c.Order {
		if err := c.plan(c.Pipes[n]); err != nil {
			return fmt.Errorf("pipe %s: %w", c.Pipes[n].Pipe.Name, err)
		}
	}
	c.Memory.Arena = NewArena(make([]uint64, c.roots), make([]bpf.PipesPipeNode4, c.nodes4), make([]bpf.PipesPipeNode6, c.nodes6))
	for _, m := range c.Pipeline.Meters {
		config, err := m.Config()
		if err != nil {
			return err
		}
		c.Memory.Meters = append(c.Memory.Meters, config)
	}
	c.meters = make([]MeterState, len(c.Memory.Meters))
	for _, fill := range c.later {
		if err := fill(); err != nil {
			return err
		}
	}
	if err := c.copies(); err != nil {
		return err
	}
	c.Used = c.used()
	return c.fit()
}

// sort puts the pipes that packets reach in an order in which each stands before those that it leads to.
func (c *compiler) sort() error {
	state := make([]uint8, len(c.Pipes)) // 1: being visited, 2: done
	var path []string
	var visit func(n int) error
	visit = func(n int) error {
		p := c.Pipes[n]
		switch path = append(path, p.Pipe.Name); state[n] {
		case 1:
			return fmt.Errorf("pipes lead in a circle: %s", circle(path))
		case 2:
			path = path[:len(path)-1]
			return nil
		}
		state[n] = 1
		for _, f := range p.Pipe.everyForward() {
			if f.To != ToPipe {
				continue
			}
			to, ok := c.number[f.Name]
			if !ok {
				return fmt.Errorf("pipe %s forwards to pipe %q, which there is not", p.Pipe.Name, f.Name)
			}
			if !slices.Contains(p.Leads, to) {
				p.Leads = append(p.Leads, to)
			}
		}
		slices.Sort(p.Leads)
		for _, to := range p.Leads {
			if err := visit(to); err != nil {
				return err
			}
		}
		state[n], path = 2, path[:len(path)-1]
		c.Order = append(c.Order, n)
		return nil
	}
	if err := visit(c.root); err != nil {
		return err
	}
	slices.Reverse(c.Order)
	for _, p := range c.Pipes {
		if state[p.Number] == 0 {
			p.Why = "no packet reaches it, so that it is not in the program"
		}
	}
	return nil
}

// circle cuts what leads to a circle off a path that ends in one.
func circle(path []string) string {
	last := path[len(path)-1]
	text := ""
	for _, name := range path[slices.Index(path, last):] {
		if text != "" {
			text += " -> "
		}
		text += name
	}
	return text
}

// ports returns the ids of ports, ascending.
func (c *compiler) ports(names []string) ([]uint32, error) {
	var ids []uint32
	for _, name := range names {
		id, ok := c.Pipeline.Ports[name]
		if !ok {
			return nil, fmt.Errorf("there is no port %q", name)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// order sorts the entries of a pipe by their precedence and returns their numbers.
func (p *Pipe) order() []int {
	list := make([]int, len(p.Entries))
	for i := range list {
		list[i] = i
	}
	switch p.Kind {
	case Control, ACL:
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(p.Entries[a].Priority, p.Entries[b].Priority) })
	case LPM:
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(p.Entries[b].Prefix.Bits(), p.Entries[a].Prefix.Bits()) })
	}
	return list
}
