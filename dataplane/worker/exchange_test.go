package worker

import (
	"runtime"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// TestExchange has a producer and a consumer at both ends of a small exchange: everything comes in order, once, and
// packets of several descriptors come whole.
func TestExchange(t *testing.T) {
	const packets = 50_000
	x := newExchange(64)
	length := func(p int) int { return 1 + p%5 }
	go func() {
		for p := range packets {
			for !x.room(length(p)) {
				x.publish()
				runtime.Gosched()
			}
			for i := range length(p) {
				d := xsk.Desc{Addr: uint64(p), Len: uint32(i)}
				if i < length(p)-1 {
					d.Options = xsk.Continues
				}
				x.put(d)
			}
			if p%3 == 0 {
				x.publish()
			}
		}
		x.publish()
	}()
	var batch [16]xsk.Desc
	for p := 0; p < packets; {
		n := x.take(batch[:])
		if n == 0 {
			runtime.Gosched()
		}
		for first := 0; first < n; p++ {
			next := end(batch[:n], first)
			if next-first != length(p) {
				t.Fatalf("packet %d has %d parts, want %d", p, next-first, length(p))
			}
			for i, d := range batch[first:next] {
				if d.Addr != uint64(p) || d.Len != uint32(i) {
					t.Fatalf("part %d of packet %d is %+v", i, p, d)
				}
			}
			first = next
		}
	}
	if !x.empty() {
		t.Error("there is more")
	}
	if !x.room(64) || x.room(65) {
		t.Error("an empty exchange has not the room that it was made with")
	}
	if n := testing.AllocsPerRun(100, func() {
		x.put(xsk.Desc{})
		x.publish()
		x.take(batch[:])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestBell rings for one that sleeps, and makes no system call for one that does not.
func TestBell(t *testing.T) {
	b, err := newBell()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	var p xsk.Poller
	p.AddFD(b.fd)
	if b.ring() {
		t.Error("it rings for one who is awake")
	}
	if n, err := p.Wait(0); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	b.asleep.Store(true)
	go func() {
		time.Sleep(5 * time.Millisecond)
		b.ring()
	}()
	if n, err := p.Wait(20 * time.Second); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if b.asleep.Load() {
		t.Error("he who was woken sleeps")
	}
	b.quiet()
	if n, _ := p.Wait(0); n != 0 {
		t.Error("it rings on")
	}
}
