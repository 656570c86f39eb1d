package dataplane

import (
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// resized opens a plane over the run before with another number of flows, and attaches it. It does not
// publish.
func (g *gateway) resized(t *testing.T, flows int) (p *Plane) {
	t.Helper()
	g.do(t, func() (err error) {
		if p, err = Open(Options{FlowsMax: flows, Keep: true, Ports: routed()}); err != nil {
			return err
		}
		return p.Attach(routed())
	})
	if taken, why := p.TakenOver(); !taken {
		t.Fatalf("not taken over: %s", why)
	}
	return p
}

func publish(t *testing.T, p *Plane) {
	t.Helper()
	if err := p.Publish(Generation{Epoch: p.NextEpoch()}); err != nil {
		t.Fatal(err)
	}
}

// holds fails the test unless exactly the flow with that port is in the table.
func holds(t *testing.T, p *Plane, port uint16) {
	t.Helper()
	table, err := p.Table()
	if err != nil {
		t.Fatal(err)
	}
	tuple := oneFlow(port)
	n := 0
	for range table.All() {
		n++
	}
	if f, ok := table.Lookup(tuple); !ok || n != 1 || f.Packets[0]+f.Packets[1] != uint64(port) {
		t.Errorf("there are %d flows, and %+v (%v)", n, f, ok)
	}
}

func oneFlow(port uint16) flowtable.Tuple {
	return flowtable.Tuple{Family: 4, Proto: 17, Src: [16]byte{10, 0, 0, 1}, Dst: [16]byte{10, 0, 0, 2}, SrcPort: port, DstPort: 7}
}

// Flows move into tables of another size with the first policy that is published, and not before. Whoever
// comes after a run that died in the middle goes on with the tables that packets go through.
func TestConvert(t *testing.T) {
	g := newGateway(t, "client-server")
	before := g.snapshot(t)
	p := g.kept(t, thisKernel, Options{Ports: routed()})
	// By a table of its own, whose flow is put where this one's hash has it.
	own, err := flowtable.NewTable(flowtable.TableConfig{Groups4: len(p.mem.flows4), Groups6: 1, Seed: p.seed, FlowsMax: 9, HalfOpenMax: 9})
	if err != nil {
		t.Fatal(err)
	}
	key := bpf.XDPFlow4{Key: bpf.XDPFlow4Key{Lo: 0x0100000a, Hi: 0x0200000a, LoPort: 4000>>8 | 4000&0xff<<8, HiPort: 7 << 8, Proto: 17}}
	key.Core.Word = uint64(bpf.XDPFlowStateFLOW_REPLIED) | 1<<flowtable.WordGenerationBit
	key.Count[0].Packets = 4000
	table, err := p.Table()
	if err != nil {
		t.Fatal(err)
	}
	m := flowtable.NewMove(own, table)
	m.Copy([]bpf.XDPFlow4{key}, nil)
	p.mem.gateway[0].Flows = 1
	holds(t, p, 4000)
	leave(t, p)

	p = g.resized(t, 20_000)
	if !p.Converting() {
		t.Error("there is nothing to move")
	}
	publish(t, p)
	if moved, done := p.Moved(); !done || p.Converting() || moved != (Moved{Carried: 1}) || len(p.mem.flows4) != int(p.sizes.Groups) || p.mem.gateway[0].Flows != 1 {
		t.Errorf("%+v (%v), %d groups, %d flows", moved, done, len(p.mem.flows4), p.mem.gateway[0].Flows)
	}
	if n := len(p.mem.cells); n != 2*int(p.sizes.Groups) {
		t.Errorf("%d cells for two families of %d groups", n, p.sizes.Groups)
	}
	holds(t, p, 4000)
	if n := len(p.life.pins.planes()); n != 1 {
		t.Errorf("%d sets of maps are pinned", n)
	}
	leave(t, p)

	// One that died before its policy was in force: the old tables are those in use.
	die := func(p *Plane) (number int) {
		t.Helper()
		number = p.life.number
		p.life.conversion, p.life.directory = nil, "" // pins and state stay as they are
		leave(t, p)
		return number
	}
	died := die(g.resized(t, 1000))
	p = g.resized(t, 20_000)
	if p.Converting() || p.life.number == died {
		t.Errorf("goes on with the tables %d, which nobody uses", died)
	}
	publish(t, p)
	holds(t, p, 4000)
	leave(t, p)

	// And one that died after it.
	p = g.resized(t, 1000)
	c := p.life.conversion
	if err := c.copy(); err != nil {
		t.Fatal(err)
	}
	p.life.conversion = nil
	publish(t, p)
	c.close()
	died = die(p)
	p = g.resized(t, 1000)
	if p.Converting() || p.life.number != died {
		t.Errorf("goes on with the tables %d, and packets go through %d", p.life.number, died)
	}
	publish(t, p)
	holds(t, p, 4000)
	leave(t, p)
	g.detach(t)
	for _, line := range differences(before, g.snapshot(t)) {
		t.Errorf("not given back: %s", line)
	}
}
