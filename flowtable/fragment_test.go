package flowtable

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// slowDatagram is a datagram of which every byte is remembered.
type slowDatagram struct {
	seen  [300]bool
	total int
	dead  bool
}

func (d *slowDatagram) ranges() (n int) {
	before := false
	for _, s := range d.seen {
		if s && !before {
			n++
		}
		before = s
	}
	return n
}

func (d *slowDatagram) take(start, end int, last bool) bpf.XDPReason {
	if d.dead {
		return bpf.XDPReasonREASON_FRAGMENT_OVERLAP
	}
	bad := d.total > 0 && (end > d.total || last && end != d.total)
	for i, s := range d.seen {
		bad = bad || s && (i >= start && i < end || last && i >= end)
	}
	if bad {
		d.dead = true
		return bpf.XDPReasonREASON_FRAGMENT_OVERLAP
	}
	saved := d.seen
	for i := start; i < end; i++ {
		d.seen[i] = true
	}
	if d.ranges() > fragmentRanges {
		d.seen = saved
		return bpf.XDPReasonREASON_FRAGMENT_TOO_MANY
	}
	if last {
		d.total = end
	}
	return bpf.XDPReasonREASON_NONE
}

func TestRangesAgainstBytes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	table, err := newFragments(4, 1)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[bpf.XDPReason]int{}
	for range 20_000 {
		k := fragmentKey{family: 4, id: rng.Uint32()}
		n := 8 * (1 + rng.IntN(3))
		d, slow := table.enter(&k, 0, n), slowDatagram{}
		slow.take(0, n, false)
		for range 20 {
			start := 8 * (1 + rng.IntN(32))
			end := start + 8*(1+rng.IntN(2))
			last := rng.IntN(20) == 0
			got, want := d.take(span{start, end}, last), slow.take(start, end, last)
			if got != want {
				t.Fatalf("[%d, %d) last %v: %v, want %v\n%+v", start, end, last, got, want, d)
			}
			if n := slow.ranges(); d.spans != n {
				t.Fatalf("%d spans, want %d: %+v", d.spans, n, d.span)
			}
			reasons[got]++
		}
	}
	for _, r := range []bpf.XDPReason{bpf.XDPReasonREASON_NONE, bpf.XDPReasonREASON_FRAGMENT_OVERLAP, bpf.XDPReasonREASON_FRAGMENT_TOO_MANY} {
		if reasons[r] < 100 {
			t.Errorf("%v came up %d times", r, reasons[r])
		}
	}
}

func TestFragmentTable(t *testing.T) {
	if _, err := newFragments(3, 1); err == nil {
		t.Error("3 groups are a table")
	}
	table, _ := newFragments(1, 1)
	key := func(id uint32) *fragmentKey { return &fragmentKey{family: 6, id: id, src: packet.Addr{1}} }
	for id := range uint32(4) {
		table.enter(key(id), 100+id, 8)
	}
	for id := range uint32(4) {
		if table.find(key(id), 200) == nil {
			t.Fatalf("datagram %d of 4 is not there", id)
		}
	}
	other := *key(1)
	other.domain = 7
	if table.find(&other, 200) != nil {
		t.Error("found in another routing domain")
	}
	table.enter(key(9), 200, 8)
	if table.find(key(0), 200) != nil || table.find(key(1), 200) == nil || table.find(key(9), 200) == nil {
		t.Error("a full group gives up another than its oldest")
	}
	if table.find(key(1), 101+fragmentLife-1) == nil || table.find(key(1), 101+fragmentLife) != nil {
		t.Error("an entry does not live 30 s")
	}
}
