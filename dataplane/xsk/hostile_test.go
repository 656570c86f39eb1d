package xsk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestBadDescriptorsHurtNobodyElse puts descriptors into the tx ring that the kernel refuses.
func TestBadDescriptorsHurtNobodyElse(t *testing.T) {
	if xsk.Debug {
		t.Log("a debug build panics before the kernel sees them: TestDebugBuildRefuses")
		return
	}
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	capture := must(l.Must(t, "server").StartCapture("s0", testenv.CaptureOptions{
		Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
	}))(t)
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 8, Tx: 64, Fill: 8, Completion: 64}).sockets[0]
	bad := []struct {
		name string
		make func(d *xsk.Desc)
	}{
		{"longer than its frame", func(d *xsk.Desc) { d.Len = 2048 }},
		{"very long", func(d *xsk.Desc) { d.Len = 1<<32 - 1 }},
		{"across the frame's end", func(d *xsk.Desc) { d.Addr += 2048 - 256 - 30 }},
		{"an option that nobody knows", func(d *xsk.Desc) { d.Options = 1 << 31 }},
	}
	var one [1]xsk.Desc
	put := func(number uint64, change func(*xsk.Desc)) {
		if e.pool.Alloc(one[:]) != 1 {
			t.Fatal("the pool is empty")
		}
		one[0].Len = shortest
		copy(e.umem.Frame(one[0]), frameOf(number, shortest))
		change(&one[0])
		if s.Transmit(one[:]) != 1 {
			t.Fatal("the ring is full")
		}
	}
	good := func(*xsk.Desc) {}
	put(0, good)
	for i, b := range bad {
		put(1000, b.make)
		put(uint64(i+1), good)
	}
	testenv.Eventually(t, patience, func() error {
		check(t, s.Kick())
		s.Reclaim()
		if r, c := s.Rings(), s.Counters(); r.Tx != 0 || c.TxCompleted < uint64(len(bad)+1) {
			return fmt.Errorf("%d descriptors are not sent, %d frames came back of %d good ones", r.Tx, c.TxCompleted, len(bad)+1)
		}
		if k := must(s.Stats())(t); k.TxInvalid != uint64(len(bad)) {
			return fmt.Errorf("the kernel counts %d bad descriptors of %d", k.TxInvalid, len(bad))
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	check(t, capture.Wait(ctx, len(bad)+1))
	must(capture.Stop())(t)
	for i, f := range capture.Frames() {
		if !bytes.Equal(f.Data, frameOf(uint64(i), shortest)) {
			t.Errorf("packet %d is %x", i, f.Data)
		}
	}
	if n := len(capture.Frames()); n != len(bad)+1 {
		t.Errorf("%d packets arrived, %d were good", n, len(bad)+1)
	}
}

// TestMetadataThatIsNotThere sends a packet that asks for metadata in a UMEM without any. Linux 6.18 never
// gets past it, and says with every try that its frame was sent.
func TestMetadataThatIsNotThere(t *testing.T) {
	if xsk.Debug {
		t.Log("a debug build panics before the kernel sees it: TestDebugBuildRefuses")
		return
	}
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 16, FrameSize: 2048, Mode: xsk.Copy})
	p := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 8, Tx: 8, Fill: 8, Completion: 8})
	s := p.sockets[0]
	var one [1]xsk.Desc
	if e.pool.Alloc(one[:]) != 1 {
		t.Fatal("the pool is empty")
	}
	one[0].Len, one[0].Options = shortest, 2 // XDP_TX_METADATA
	s.Transmit(one[:])
	refused := 0
	for range 5 {
		if err := s.Kick(); errors.Is(err, unix.EINVAL) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
		s.Reclaim()
	}
	if k := must(s.Stats())(t); refused == 0 && k.TxInvalid == 0 {
		t.Errorf("nobody minds: the kernel counts %+v", k)
	}
	check(t, s.Close())
	testenv.Eventually(t, patience, func() error {
		if err := p.node.Do(func() error { _, err := e.umem.Recover(e.pool); return err }); err != nil {
			return err
		}
		if e.pool.Len() != 16 {
			return fmt.Errorf("%d frames of 16: %+v", e.pool.Len(), e.umem.Census())
		}
		return nil
	})
	all := make([]xsk.Desc, 17)
	n := e.pool.Alloc(all)
	defer e.pool.Free(all[:n])
	seen := map[uint64]bool{}
	for _, d := range all[:n] {
		if seen[d.Addr] {
			t.Errorf("the frame at %#x is in the pool twice", d.Addr)
		}
		seen[d.Addr] = true
	}
}
