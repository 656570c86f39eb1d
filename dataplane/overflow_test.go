package dataplane

import (
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

func TestAgeOverflow(t *testing.T) {
	p := openPlane(t, Options{})
	const now = 1000
	established, synSent := uint64(bpf.XDPFlowStateFLOW_ESTABLISHED), uint64(bpf.XDPFlowStateFLOW_SYN_SENT)
	timeouts := flowtable.Timeouts{}
	timeouts[flowtable.ClassTCP][established], timeouts[flowtable.ClassTCP][synSent] = 100, 50
	flow := func(id uint32, state uint64, created uint32, seen ...uint32) bpf.XDPFlow4 {
		f := bpf.XDPFlow4{Key: bpf.XDPFlow4Key{Lo: id, Proto: 6}}
		f.Core.Word, f.Core.Created = state, created
		f.Leg[0].Seen, f.Leg[1].Seen = seen[0], seen[1]
		return f
	}
	for _, f := range []bpf.XDPFlow4{
		flow(1, established, 0, 900, 0),                    // idle exactly as long as it may
		flow(2, established, 0, 0, 901),                    // one tick less, in the other direction
		flow(3, synSent, 949, 999, 999),                    // kept alive by retransmissions
		flow(4, synSent, 990, 990, 990),                    // young
		flow(5, established, 0, 0xfffffff0, 0xfffffff0),    // before the clock wrapped
		flow(6, uint64(bpf.XDPFlowStateFLOW_NEW), 0, 0, 0), // without a time-out
	} {
		if err := p.maps[bpf.XDPMapOverflow4].Put(&f.Key, &f); err != nil {
			t.Fatal(err)
		}
	}
	six := bpf.XDPFlow6{Key: bpf.XDPFlow6Key{Lo: [4]uint32{9}, Proto: 6}}
	six.Core.Word = established
	if err := p.maps[bpf.XDPMapOverflow6].Put(&six.Key, &six); err != nil {
		t.Fatal(err)
	}
	gw := p.Flows().Gateway
	gw.Flows, gw.Flows6, gw.HalfOpen, gw.Overflow4, gw.Overflow6 = 7, 1, 3, 6, 1

	var freed4, freed6 []uint32
	n, err := p.AgeOverflow(now, &timeouts,
		func(f *bpf.XDPFlow4) { freed4 = append(freed4, f.Key.Lo) },
		func(f *bpf.XDPFlow6) { freed6 = append(freed6, f.Key.Lo[0]) })
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[uint32]bool)
	for _, id := range freed4 {
		got[id] = true
	}
	if n != 4 || len(freed4) != 3 || !got[1] || !got[3] || !got[5] || len(freed6) != 1 || freed6[0] != 9 {
		t.Errorf("freed %d: %v and %v, want 1, 3, 5 and 9", n, freed4, freed6)
	}
	if gw.Flows != 3 || gw.Flows6 != 0 || gw.HalfOpen != 2 || gw.Overflow4 != 3 || gw.Overflow6 != 0 {
		t.Errorf("left are %d flows, %d of IPv6, %d half-open, %d and %d overflowed; want 3, 0, 2, 3, 0", gw.Flows, gw.Flows6, gw.HalfOpen, gw.Overflow4, gw.Overflow6)
	}
	left4, left6, err := p.Overflow()
	if err != nil || len(left4) != 3 || len(left6) != 0 {
		t.Errorf("%d and %d flows are listed (%v), want 3 and none", len(left4), len(left6), err)
	}
}

// Exactly the chosen flows leave the kernel's hashes and the counts.
func TestKillOverflow(t *testing.T) {
	p := openPlane(t, Options{})
	for id := range uint32(6) {
		four, six := bpf.XDPFlow4{Key: bpf.XDPFlow4Key{Lo: id, Proto: 6}}, bpf.XDPFlow6{Key: bpf.XDPFlow6Key{Lo: [4]uint32{id}, Proto: 17}}
		four.Core.Word, six.Core.Word = uint64(bpf.XDPFlowStateFLOW_ESTABLISHED), uint64(bpf.XDPFlowStateFLOW_NEW)
		four.Core.Created, six.Core.Created = id, id
		four.Count[0].Packets = uint64(id)
		if err := p.maps[bpf.XDPMapOverflow4].Put(&four.Key, &four); err != nil {
			t.Fatal(err)
		}
		if err := p.maps[bpf.XDPMapOverflow6].Put(&six.Key, &six); err != nil {
			t.Fatal(err)
		}
	}
	gw := p.Flows().Gateway
	gw.Flows, gw.Flows6, gw.HalfOpen, gw.Overflow4, gw.Overflow6 = 12, 6, 6, 6, 6
	n, err := p.KillOverflow(func(f *flowtable.Flow) bool { return f.Created >= 4 }, func(f *flowtable.Flow) {
		if f.Created < 4 || f.Tuple.Family == 4 && f.Packets[0] != uint64(f.Created) {
			t.Errorf("freed %+v", f)
		}
	})
	if err != nil || n != 4 {
		t.Errorf("%d killed, %v", n, err)
	}
	if gw.Flows != 8 || gw.Flows6 != 4 || gw.HalfOpen != 4 || gw.Overflow4 != 4 || gw.Overflow6 != 4 {
		t.Errorf("left are %d flows, %d of IPv6, %d half-open, %d and %d overflowed", gw.Flows, gw.Flows6, gw.HalfOpen, gw.Overflow4, gw.Overflow6)
	}
	left4, left6, err := p.Overflow()
	if err != nil || len(left4) != 4 || len(left6) != 4 {
		t.Errorf("%d and %d flows are listed (%v)", len(left4), len(left6), err)
	}
}
