package dataplane

import (
	"testing"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/flowtable"
)

// Of the aliases beside the groups those end that are old and whose flow is gone, with their ports; no flow
// does, whatever it looks like.
func TestSweepOverflow(t *testing.T) {
	p := openPlane(t, Options{})
	table, err := p.Table()
	if err != nil {
		t.Fatal(err)
	}
	ports := make([]bpf.XDPNatBitmap, 1)
	table.SetNATPorts(3, ports)
	const now, xlat = 9000, 0x80
	gw := p.Flows().Gateway

	put4 := func(f *bpf.XDPFlow4) {
		if err := p.maps[bpf.XDPMapOverflow4].Put(&f.Key, f); err != nil {
			t.Fatal(err)
		}
		gw.Flows, gw.Overflow4 = gw.Flows+1, gw.Overflow4+1
	}
	put6 := func(f *bpf.XDPFlow6) {
		if err := p.maps[bpf.XDPMapOverflow6].Put(&f.Key, f); err != nil {
			t.Fatal(err)
		}
		gw.Flows, gw.Flows6, gw.Overflow6 = gw.Flows+1, gw.Flows6+1, gw.Overflow6+1
	}
	for id, row := range []struct {
		created uint32
		port    uint16 // that its flow became; 0: it has none
	}{{9000 - 1907, 0}, {9000 - 1908, 0}, {9000 - 1908, 7}, {0xffffff00, 0}, {0, 5}} {
		n := uint32(id) + 1
		a4 := bpf.XDPAlias4{Key: bpf.XDPFlow4Key{Lo: n << 24, Hi: n, LoPort: 7}, Created: row.created, Layout: 3, Port: 100 + uint16(id), SourceRule: 20 + uint32(id), DestinationRule: 30 + uint32(id)}
		a4.Target = bpf.XDPFlow4Key{Lo: n << 24, Hi: n, LoPort: 8}
		a4.Word = uint64(bpf.XDPFlowStateFLOW_ALIAS)
		put4((*bpf.XDPFlow4)(unsafe.Pointer(&a4)))
		a6 := bpf.XDPAlias6{Key: bpf.XDPFlow6Key{Lo: [4]uint32{n << 24}, Hi: [4]uint32{n}, LoPort: 7}, Created: row.created, Layout: 3, Port: 200 + uint16(id), SourceRule: 20 + uint32(id), DestinationRule: 30 + uint32(id)}
		a6.Target = bpf.XDPFlow6Key{Lo: [4]uint32{n << 24}, Hi: [4]uint32{n}, LoPort: 8}
		a6.Word = uint64(bpf.XDPFlowStateFLOW_ALIAS)
		put6((*bpf.XDPFlow6)(unsafe.Pointer(&a6)))
		gw.Aliases += 2
		ports[0].Taken[(100+id)/64] |= 1 << ((100 + id) % 64)
		ports[0].Taken[(200+id)/64] |= 1 << ((200 + id) % 64)
		if row.port == 0 {
			continue
		}
		f4, f6 := bpf.XDPFlow4{Key: a4.Target, Xlat: [2]uint32{n << 24, n}}, bpf.XDPFlow6{Key: a6.Target, Xlat: [2][4]uint32{{n << 24}, {n}}}
		for _, leg := range []*[2]bpf.XDPLeg{&f4.Leg, &f6.Leg} {
			leg[0].Flags, leg[1].Flags, leg[0].XlatPort = xlat, xlat, row.port
		}
		f4.Core.Word, f6.Core.Word = uint64(bpf.XDPFlowStateFLOW_ESTABLISHED), uint64(bpf.XDPFlowStateFLOW_ESTABLISHED)
		put4(&f4)
		put6(&f6)
	}
	limits := flowtable.UniformTimeouts(1 << 20)
	if n, err := p.AgeOverflow(now, &limits, func(*bpf.XDPFlow4) {}, func(*bpf.XDPFlow6) {}); n != 0 || err != nil {
		t.Errorf("%d aged, %v", n, err)
	}
	if n, err := p.KillOverflow(func(f *flowtable.Flow) bool {
		if f.NAT == nil || (f.NAT.Outer.SrcPort != 7<<8 && f.NAT.Outer.SrcPort != 5<<8) {
			t.Errorf("asked about %+v", f)
		}
		return false
	}, nil); n != 0 || err != nil {
		t.Errorf("%d killed, %v", n, err)
	}
	// What a packet finds is found by its tuple, with what the alias says.
	for _, outer := range []flowtable.Tuple{
		{Family: 4, Src: packet.Addr{3: 3}, Dst: packet.Addr{3}, SrcPort: 7 << 8},
		{Family: 6, Src: packet.Addr{3: 3}, Dst: packet.Addr{3}, SrcPort: 7 << 8},
	} {
		original := outer
		original.SrcPort = 8 << 8
		for _, by := range []flowtable.Tuple{outer, original} {
			f, ok := table.Lookup(by)
			if !ok || !f.ID.Overflow || f.Tuple != original || f.NAT == nil || f.NAT.Outer != outer || f.NAT.SourceRule != 22 || f.NAT.DestinationRule != 32 {
				t.Errorf("found by %+v: %v, %+v, %+v", by, ok, f, f.NAT)
			}
		}
		original.SrcPort--
		if f, ok := table.Lookup(original); ok {
			t.Errorf("found by %+v: %+v", original, f)
		}
	}
	if err := p.SweepOverflow(table, now); err != nil {
		t.Fatal(err)
	}
	flows4, flows6, err := p.Overflow()
	if err != nil || len(flows4) != 4 || len(flows6) != 4 {
		t.Errorf("%d and %d are left, %v", len(flows4), len(flows6), err)
	}
	if gw.Flows != 8 || gw.Flows6 != 4 || gw.Aliases != 4 || gw.Overflow4 != 4 || gw.Overflow6 != 4 {
		t.Errorf("counts: %+v", gw)
	}
	for id := range 5 {
		for _, port := range []int{100 + id, 200 + id} {
			if taken := ports[0].Taken[port/64]>>(port%64)&1 == 1; taken != (id == 0 || id == 2) {
				t.Errorf("port %d taken: %v", port, taken)
			}
		}
	}
}
