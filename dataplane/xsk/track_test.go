package xsk

import (
	"strings"
	"testing"
)

// trackedUMEM returns a UMEM with a tracker, whatever the build.
func trackedUMEM(t *testing.T, o UMEMOptions) (*UMEM, *tracker) {
	t.Helper()
	o.Frames, o.FrameSize = 4, 2048
	u, err := NewUMEM(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // without what Close of a debug build would say
		u.track = newTracker(u)
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	return u, newTracker(u)
}

// TestTrackerRefuses does to a frame what must not be done, and wants to be told in so many words.
func TestTrackerRefuses(t *testing.T) {
	desc := func(frame uint64) Desc { return Desc{Addr: frame<<11 + 256, Len: 60} }
	take := func(tr *tracker, frame uint64) Desc { // as Alloc does
		tr.move(frame<<11, placeFree, placeCaller, 0)
		return desc(frame)
	}
	for _, tt := range []struct {
		name string
		do   func(tr *tracker)
		want []string
	}{
		{"double free", func(tr *tracker) {
			d := take(tr, 1)
			tr.move(d.Addr, placeCaller, placeFree, 0)
			tr.move(d.Addr, placeCaller, placeFree, 0)
		}, []string{"frame 1 (address 0x900)", `from "with the caller" to "free", and is free`, "moves, 2 in all", "track_test.go"}},
		{"sent twice", func(tr *tracker) {
			d := take(tr, 0)
			tr.send(d, 3)
			tr.send(d, 4)
		}, []string{"frame 0", "and is with the kernel for sending", "(socket 3)"}},
		{"freed while the kernel has it", func(tr *tracker) {
			d := take(tr, 0)
			tr.send(d, 3)
			tr.move(d.Addr, placeCaller, placeFree, 0)
		}, []string{"is with the kernel for sending"}},
		{"written to after Transmit", func(tr *tracker) {
			d := take(tr, 2)
			tr.send(d, 3)
			tr.frame(d.Addr)[256+59]++
			tr.sent(d.Addr, placeFree, 3)
		}, []string{"frame 2", "was written to after Transmit"}},
		{"written to after Free", func(tr *tracker) {
			d := take(tr, 2)
			tr.move(d.Addr, placeCaller, placeFree, 0)
			tr.frame(d.Addr)[1000] = 0
			take(tr, 2)
		}, []string{"was written to at byte 1000 while it was free"}},
		{"looked at after Transmit", func(tr *tracker) {
			d := take(tr, 2)
			tr.send(d, 3)
			tr.look(d)
		}, []string{"is looked at, and is with the kernel for sending"}},
		{"comes back from another socket", func(tr *tracker) {
			tr.move(0, placeFree, placeFill, 1)
			tr.move(0, placeFill, placeCaller, 2)
		}, []string{"comes back from socket 2, and was given to socket 1"}},
		{"lost", func(tr *tracker) {
			take(tr, 3)
			take(tr, 1)
			tr.close()
		}, []string{"frame 1", "was never given back; it is one of 2", "by github.com/softdpu/softdpu/dataplane/xsk.TestTrackerRefuses"}},
		{"beyond its frame", func(tr *tracker) {
			d := take(tr, 0)
			d.Len = 2048
			tr.send(d, 1)
		}, []string{"with 2048 bytes from 256 on, beyond its end"}},
		{"empty", func(tr *tracker) {
			d := take(tr, 0)
			d.Len = 0
			tr.send(d, 1)
		}, []string{"length 0"}},
		{"outside", func(tr *tracker) { tr.send(desc(4), 1) }, []string{"outside of the UMEM"}},
		{"options", func(tr *tracker) {
			d := take(tr, 0)
			d.Options = 2
			tr.send(d, 1)
		}, []string{"options 0x2"}},
		{"part of a packet", func(tr *tracker) {
			d := take(tr, 0)
			d.Options = Continues
			tr.send(d, 1)
		}, []string{"without MultiBuffer"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, tr := trackedUMEM(t, UMEMOptions{})
			defer func() {
				said, _ := recover().(string)
				for _, want := range tt.want {
					if !strings.Contains(said, want) {
						t.Errorf("it says %q, and not %q", said, want)
					}
				}
			}()
			tt.do(tr)
			t.Error("nothing was said")
		})
	}
}

func TestTrackerAllowsARound(t *testing.T) {
	u, tr := trackedUMEM(t, UMEMOptions{})
	for range 3 * historyLength {
		tr.move(0, placeFree, placeFill, 1)
		copy(tr.frame(0)[256:], "a packet")
		tr.move(0, placeFill, placeCaller, 1)
		d := Desc{Addr: 256, Len: 8}
		tr.look(d)
		tr.send(d, 2)
		tr.sent(d.Addr, placeFree, 2)
	}
	tr.move(0, placeFree, placeFill, 1)
	tr.leave(0, 1)
	tr.leave(0, 1)
	tr.move(0, placeClosed, placeFree, 1)
	tr.close()
	if r := tr.records[0]; r.count != 3*historyLength*4+3 {
		t.Errorf("%d moves", r.count)
	}
	if len(u.holder) != 4 {
		t.Errorf("%d frames", len(u.holder))
	}
}

// TestDebugBuildRefuses holds the checks to the methods that make them.
func TestDebugBuildRefuses(t *testing.T) {
	if !debug {
		t.Log("only a build with -tags xskdebug makes the checks")
		return
	}
	u, err := NewUMEM(UMEMOptions{Frames: 4, FrameSize: 2048})
	if err != nil {
		t.Fatal(err)
	}
	p, err := u.NewPool(4)
	if err != nil {
		t.Fatal(err)
	}
	batch := make([]Desc, 4)
	if n := p.Alloc(batch); n != 4 {
		t.Fatalf("%d frames", n)
	}
	refuses := func(what string, do func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: nothing was said", what)
			}
		}()
		do()
	}
	p.Free(batch[:2])
	refuses("double free", func() { p.Free(batch[:1]) })
	refuses("use after free", func() { batch[0].Len = 1; u.Frame(batch[0]) })
	refuses("lost frames", func() { _ = u.Close() })
	p.Free(batch[2:])
	if err := u.Close(); err != nil {
		t.Error(err)
	}
}
