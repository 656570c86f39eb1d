package xsk_test

import (
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestReclaimTo sends frames and gets them back itself, in order, as they were sent; and then again, in batches smaller
// than what has come back. Rings say where they are meanwhile, and whether anything moves.
func TestReclaimTo(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 64, Completion: 64}).sockets[0]
	for _, size := range []int{64, 7} {
		var sent []uint64
		batch := make([]xsk.Desc, 40)
		if n := e.pool.Alloc(batch); n != len(batch) {
			t.Fatalf("%d frames", n)
		}
		for i := range batch {
			batch[i].Len = shortest
			copy(e.umem.Frame(batch[i]), frameOf(uint64(i), shortest))
			sent = append(sent, batch[i].Addr)
		}
		_, before, _, _ := s.Moved()
		if n := s.Transmit(batch); n != len(batch) {
			t.Fatalf("%d frames fit", n)
		}
		if r := s.Rings(); r.Tx != len(batch) {
			t.Errorf("rings %+v", r)
		}
		got := make([]xsk.Desc, size)
		var back []uint64
		for end := time.Now().Add(patience); len(back) < len(sent); {
			check(t, s.Kick())
			n := s.ReclaimTo(got)
			for i := range got[:n] {
				back = append(back, got[i].Addr)
				got[i].Len = shortest
				_ = e.umem.Frame(got[i]) // a debug build looks whose it is
			}
			e.pool.Free(got[:n])
			if time.Now().After(end) {
				t.Fatalf("%d of %d came back", len(back), len(sent))
			}
		}
		for i := range sent {
			if back[i] != sent[i] {
				t.Fatalf("frame %d came back as %#x, and was sent as %#x", i, back[i], sent[i])
			}
		}
		if _, after, _, completion := s.Moved(); after-before != uint32(len(sent)) || completion == 0 {
			t.Errorf("the kernel has taken %d of %d from the tx ring", after-before, len(sent))
		}
		if c := s.Counters(); c.TxCompleted != c.TxFrames {
			t.Errorf("counters %+v", c)
		}
		if r := s.Rings(); r.Tx != 0 || r.Completion != 0 {
			t.Errorf("rings %+v", r)
		}
	}
}

// TestSetPool opens a socket with a pool made for it and gives it, and the pool's frames, to another.
func TestSetPool(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	u := must(xsk.NewUMEM(xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy}))(t)
	first, worker := must(u.NewPool(200))(t), must(u.NewPool(0))(t)
	client := l.Must(t, "client")
	var r *xsk.Redirect
	var s *xsk.Socket
	check(t, client.Do(func() (err error) {
		if r, err = xsk.Attach("c0", xsk.AttachOptions{}); err != nil {
			return err
		}
		if s, err = xsk.Open(u, first, "c0", 0, xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 128, Completion: 64}); err != nil {
			return err
		}
		return r.Add(s)
	}))
	if n := first.Give(worker, 1000); n != 200-128 || first.Len() != 0 || worker.Len() != n {
		t.Errorf("%d frames were given, %d are there, %d were left", n, worker.Len(), first.Len())
	}
	s.SetPool(worker)
	first.Close()
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	e := &end{umem: u, pool: worker}
	led := newLedger(300, everyLength)
	go feed(t, led, 32, sender.Send)
	receiveAll(t, e, s, led)
	check(t, s.Close())
	check(t, r.Close())
	if c := u.Census(); c.Caller != 0 || c.Kernel != 0 || c.Spare != 56 {
		t.Errorf("census %+v", c)
	}
	check(t, u.Close())
}

// TestPollerWaitsForDescriptors wakes a poller by an eventfd, beside a socket and without one.
func TestPollerWaitsForDescriptors(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, small).sockets[0]
	fd := must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
	defer unix.Close(fd)
	var p xsk.Poller
	p.AddFD(fd)
	p.Add(s, xsk.Readable)
	for range 2 {
		if n := must(p.Wait(5 * time.Millisecond))(t); n != 0 {
			t.Errorf("%d are ready", n)
		}
		one := uint64(1)
		must(unix.Write(fd, unsafe.Slice((*byte)(unsafe.Pointer(&one)), 8)))(t)
		if n := must(p.Wait(patience))(t); n != 1 {
			t.Errorf("%d are ready", n)
		}
		must(unix.Read(fd, make([]byte, 8)))(t)
		p.Remove(s)
	}
}

// TestAnyProgram has sockets in copy mode on a device whose program runs behind the driver, where that is allowed.
func TestAnyProgram(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	client := l.Must(t, "client")
	r := must(attachIn(client, "c0", xsk.AttachOptions{Mode: xsk.Generic}))(t)
	defer r.Close()
	for _, any := range []bool{false, true} {
		u := must(xsk.NewUMEM(xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy, AnyProgram: any}))(t)
		p := must(u.NewPool(256))(t)
		var s *xsk.Socket
		err := client.Do(func() (err error) {
			s, err = xsk.Open(u, p, "c0", 0, small)
			return err
		})
		if (err == nil) != any {
			t.Errorf("any program %t: %v", any, err)
		}
		if err == nil {
			if s.Mode() != xsk.Generic {
				t.Errorf("mode %s", s.Mode())
			}
			check(t, s.Close())
		}
		check(t, u.Close())
	}
}

func attachIn(n *testenv.Namespace, device string, o xsk.AttachOptions) (r *xsk.Redirect, err error) {
	err = n.Do(func() (err error) {
		r, err = xsk.Attach(device, o)
		return err
	})
	return r, err
}
