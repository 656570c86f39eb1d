package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// holdDesk is a holder with a clock and a fragment table of its own. It notes what comes back.
type holdDesk struct {
	holder
	tick  uint32
	asked int // for first fragments
	first map[uint32]bool
	back  []byte // last bytes of frames, in order
	fails error
}

func newHoldDesk() *holdDesk {
	d := &holdDesk{first: make(map[uint32]bool), tick: 1<<32 - 500} // the clock wraps on the way
	d.holder = holder{
		gw: new(bpf.XDPGatewayState), counts: new(heldCounts),
		now:   func() uint32 { return d.tick },
		known: func(k *datagramKey) bool { d.asked++; return d.first[k.id] },
		again: func(f *heldFrame) error { d.back = append(d.back, f.frame[len(f.frame)-1]); return d.fails },
	}
	return d
}

// arrive takes a frame of a datagram as XDP gives it away.
func (d *holdDesk) arrive(id uint32, last byte) {
	r := bpf.XDPHeld{Id: id, Family: 4, Ifindex: 7, Tick: d.tick, Length: 60}
	r.Frame[59] = last
	d.gw.Held++
	d.take(&r)
}

func (d *holdDesk) says(t *testing.T, when string, back string, held int, released, expired uint64) {
	t.Helper()
	got := fmt.Sprintf("back %s, %d held, %d in memory, %d released, %d expired", d.back, d.gw.Held, len(d.frames), d.counts.released.Load(), d.counts.expired.Load())
	if want := fmt.Sprintf("back %s, %d held, %d in memory, %d released, %d expired", back, held, held, released, expired); got != want {
		t.Errorf("%s: %s; want %s", when, got, want)
	}
	d.back = nil
}

func TestHeldFragmentsGoInTheirOrder(t *testing.T) {
	d := newHoldDesk()
	for i, id := range []uint32{1, 2, 1, 3, 2, 1} {
		d.arrive(id, byte('a'+i))
	}
	look := func(all bool) {
		t.Helper()
		if err := d.look(all); err != nil {
			t.Fatal(err)
		}
	}
	look(false)
	d.says(t, "before any first", "", 6, 0, 0)
	if d.asked != 3 {
		t.Errorf("%d questions about 3 datagrams", d.asked)
	}
	d.first[1] = true
	look(false)
	d.says(t, "with the first of one", "acf", 3, 3, 0)
	d.arrive(1, 'g') // XDP had not seen the first yet
	look(false)
	d.says(t, "one more of it", "g", 3, 4, 0)
	d.first[2] = true
	look(true)
	d.says(t, "at the end", "bde", 0, 6, 1)
}

func TestHeldFragmentsExpire(t *testing.T) {
	d := newHoldDesk()
	d.arrive(1, 'a')
	if p := d.pause(); p != holdSoon {
		t.Errorf("the next look at a new one is in %s", p)
	}
	d.tick += heldLife / 2
	d.arrive(1, 'b')
	d.arrive(2, 'c')
	for _, c := range []struct {
		when          string
		pass          uint32
		back          string
		held          int
		released, out uint64
	}{
		{"a tick before its time is over", heldLife/2 - 1, "", 3, 0, 0},
		{"as it is over", 1, "a", 2, 0, 1},
		{"a tick before the others' is", heldLife/2 - 1, "", 2, 0, 1},
	} {
		d.tick += c.pass
		if err := d.look(false); err != nil {
			t.Fatal(err)
		}
		d.says(t, c.when, c.back, c.held, c.released, c.out)
	}
	if p := d.pause(); p != holdLate {
		t.Errorf("the next look at old ones is in %s", p)
	}
	d.tick, d.first[1] = d.tick+1, true // with the last tick, the first
	if err := d.look(false); err != nil {
		t.Fatal(err)
	}
	d.says(t, "as all is over", "bc", 0, 1, 2)
}

// What XDP cannot be given back is lost and counted, and holds up nothing.
func TestHeldFragmentsOfALostPort(t *testing.T) {
	d := newHoldDesk()
	for _, fails := range []error{fmt.Errorf("test run: %w", unix.ENODEV), unix.EPERM} {
		d.arrive(1, 'a')
		d.arrive(1, 'b')
		d.first[1], d.fails = true, fails
		err := d.look(false)
		if told := errors.Is(err, unix.EPERM); told == errors.Is(fails, unix.ENODEV) {
			t.Errorf("%v ends in %v", fails, err)
		}
		if len(d.frames) > 0 || d.gw.Held != 0 {
			t.Errorf("%v: %d are held, %d in memory", fails, d.gw.Held, len(d.frames))
		}
	}
	if d.gw.HeldLost != 4 || !slices.Equal(d.back, []byte("abab")) {
		t.Errorf("%d lost, tried %s", d.gw.HeldLost, d.back)
	}
}
