package flowtable

import (
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// What take, give and next say is what a set of ports says, whichever ports a rule allows, and `full` tells
// exactly which words have none left.
func TestNATPortsAgainstASet(t *testing.T) {
	for _, block := range []NATPorts{{1, 0, 65535}, {1, 1024, 65535}, {1, 20000, 20100}, {1, 65535, 65535}, {1, 0, 63}, {1, 63, 64}} {
		n := &NAT{Ports: []NATPorts{{2, 0, 65535}, block}}
		ports := natPorts(n.NewBitmaps())
		const element = 2
		free := make([]bool, 1<<16)
		for p := int(block.First); p <= int(block.Last); p++ {
			free[p] = true
		}
		naive := func(start uint16) (uint16, bool) {
			for i := range 1 << 16 {
				if p := (int(start) + i) & 0xffff; free[p] {
					// A start's own word comes last from its beginning, which is the order of ports all the same.
					return uint16(p), true
				}
			}
			return 0, false
		}
		r := rand.New(rand.NewPCG(1, uint64(block.First)))
		within := func() uint16 { // mostly in a part of the ports that fills up
			if r.IntN(4) == 0 {
				return uint16(r.Uint32())
			}
			return block.First + uint16(r.IntN(min(700, int(block.Last)-int(block.First)+1)))
		}
		for i := range 20_000 {
			p := within()
			switch r.IntN(8) {
			case 0:
				if int(p) >= int(block.First) && p <= block.Last {
					ports.give(element, p)
					free[p] = true
				}
			case 1, 2, 3:
				if got := ports.take(element, p); got != free[p] {
					t.Fatalf("%+v, step %d: take %d says %v", block, i, p, got)
				}
				free[p] = false
			default:
				got, ok := ports.next(element, p)
				want, any := naive(p)
				if got != want || ok != any {
					t.Fatalf("%+v, step %d: next from %d is %d, %v, want %d, %v", block, i, p, got, ok, want, any)
				}
				if ok && !ports.take(element, got) {
					t.Fatalf("%+v, step %d: %d is not free", block, i, got)
				}
				free[got] = false
			}
		}
		checkFull(t, &ports[element])
		for i := range ports[0].Taken {
			if ports[0].Taken[i] != 0 || ports[1].Taken[i] != 0 {
				t.Fatal("another element has changed")
			}
		}
	}
}

func checkFull(t *testing.T, b *bpf.XDPNatBitmap) {
	t.Helper()
	for w, taken := range b.Taken {
		if full := b.Full[w>>6]>>(w&63)&1 == 1; full != (taken == ^uint64(0)) {
			t.Fatalf("word %d is %#x, and full says %v", w, taken, full)
		}
	}
}

// An element that is not there has no ports, and none of what asks for one goes beyond the memory.
func TestNATPortsWithoutElement(t *testing.T) {
	for _, ports := range []natPorts{nil, make(natPorts, 3)} {
		for _, element := range []uint32{3, natNoPorts} {
			ports.give(element, 80)
			if _, ok := ports.next(element, 80); ok || ports.take(element, 80) {
				t.Errorf("element %d of %d has ports", element, len(ports))
			}
		}
	}
}

// natMemory returns a bitmap on the heap, and one in memory that is mapped as XDP's is.
func natMemory(t *testing.T) map[string]natPorts {
	t.Helper()
	size := 128 + 8192
	f, err := os.CreateTemp(t.TempDir(), "ports")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	mapped, err := groups[bpf.XDPNatBitmap](mem)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]natPorts{"heap": make(natPorts, 1), "mapped": mapped[:1]}
}

// Many at once: nobody gets a port that another has, and in the end the bitmap says what is held.
func TestNATPortsRace(t *testing.T) {
	for name, ports := range natMemory(t) {
		const workers, steps, first, last = 8, 20_000, 1000, 1400
		for p := range 1 << 16 {
			if p < first || p > last {
				ports.take(0, uint16(p))
			}
		}
		var holder [1 << 16]atomic.Int32
		var held [workers][]uint16
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(w), 5))
				for range steps {
					// All hold a little more than there is in the end, so that words fill and empty all the time.
					if mine := held[w]; len(mine) > 0 && r.IntN(100) < 2*len(mine) {
						i := r.IntN(len(mine))
						p := mine[i]
						mine[i] = mine[len(mine)-1]
						held[w] = mine[:len(mine)-1]
						if !holder[p].CompareAndSwap(int32(w)+1, 0) {
							t.Errorf("%s: port %d was another's too", name, p)
						}
						ports.give(0, p)
						continue
					}
					p, ok := ports.next(0, uint16(r.Uint32()))
					if !ok || !ports.take(0, p) {
						continue
					}
					if p < first || p > last {
						t.Errorf("%s: port %d is not to be had", name, p)
					}
					if !holder[p].CompareAndSwap(0, int32(w)+1) {
						t.Errorf("%s: port %d is given to two", name, p)
					}
					held[w] = append(held[w], p)
				}
			})
		}
		wg.Wait()
		want := map[uint16]bool{}
		for w := range held {
			for _, p := range held[w] {
				want[p] = true
			}
		}
		for p := range 1 << 16 {
			taken := ports[0].Taken[p>>6]>>(p&63)&1 == 1
			if allowed := p >= first && p <= last; taken != (!allowed || want[uint16(p)]) {
				t.Fatalf("%s: port %d taken: %v", name, p, taken)
			}
		}
		if len(want) == 0 {
			t.Error("nobody holds anything: the test asks too little")
		}
		// Whatever was raced for, no free port is hidden behind `full`.
		for w, taken := range ports[0].Taken {
			if taken != ^uint64(0) && ports[0].Full[w>>6]>>(w&63)&1 == 1 {
				t.Fatalf("%s: word %d counts as full, and is %#x", name, w, taken)
			}
		}
	}
}

// The element of a flow is that of its rule's address, its protocol and its remote end, whatever its own
// port, and the remote ends are spread over the slices.
func TestNATElement(t *testing.T) {
	table := newTable(t, TableConfig{Groups4: 1, Groups6: 1, Seed: 7})
	r := rand.New(rand.NewPCG(2, 2))
	slices := map[uint32]int{}
	for i := range 400 {
		outer := randomTuple(r, []uint8{4, 6}[i%2])
		outer.Proto = packet.ProtoUDP
		got, ok := table.natElement(100, 3, &outer)
		if !ok || got < 100+(3*natClasses+1)*natSlices || got >= 100+(3*natClasses+2)*natSlices {
			t.Fatalf("element %d, %v", got, ok)
		}
		slices[got]++
		other := outer
		other.SrcPort, other.Domain = uint16(i), uint16(i)
		if again, _ := table.natElement(100, 3, &other); again != got {
			t.Fatalf("element %d by another port, %d", again, got)
		}
	}
	for s, n := range slices {
		if len(slices) != natSlices || n < 50 {
			t.Errorf("slice %d of %d has %d of 400", s, len(slices), n)
		}
	}
	for _, tc := range []struct {
		proto uint8
		first uint32
		class int // -1: none
	}{
		{packet.ProtoTCP, 0, 0}, {packet.ProtoUDP, 0, 1}, {packet.ProtoICMP, 0, 2}, {packet.ProtoICMPv6, 0, 2},
		{50, 0, -1}, {132, 0, -1}, {packet.ProtoTCP, natNoPorts, -1},
	} {
		outer := randomTuple(r, 4)
		outer.Proto = tc.proto
		got, ok := table.natElement(tc.first, 0, &outer)
		if ok != (tc.class >= 0) || ok && int(got/natSlices) != tc.class || !ok && got != natNoPorts {
			t.Errorf("protocol %d, first %d: element %d, %v", tc.proto, tc.first, got, ok)
		}
	}
}
