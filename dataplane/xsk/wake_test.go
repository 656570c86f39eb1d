package xsk_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestLinkDown takes the device down and up under a socket: nothing breaks, and what is counted is told.
func TestLinkDown(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	client, gw := l.Must(t, "client"), l.Must(t, "gw")
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, client, "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 128, Completion: 64}).sockets[0]
	check(t, client.SetUp("c0", false))
	packet := build(e, frameOf(0, shortest))
	if s.Transmit(packet) != 1 {
		t.Fatal("the ring is full")
	}
	check(t, s.Kick())
	if c := s.Counters(); c.KickDown == 0 {
		t.Errorf("counters %+v", c)
	}
	check(t, client.SetUp("c0", true))
	sentAll(t, s)
	sender := must(gw.OpenSender("lan"))(t)
	defer sender.Close()
	testenv.Eventually(t, patience, func() error { // the carrier comes back a moment later
		if err := sender.Send(frameOf(0, shortest)); err != nil {
			return err
		}
		if s.Rings().Rx == 0 {
			return errors.New("nothing arrives")
		}
		return nil
	})
	batch := make([]xsk.Desc, 64)
	n := s.Receive(batch)
	e.pool.Free(batch[:n])
}

func TestWait(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, small).sockets[0]
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	var reading, writing xsk.Poller
	reading.Add(s, xsk.Readable)
	writing.Add(s, xsk.Writable)
	start := time.Now()
	if n := must(reading.Wait(30 * time.Millisecond))(t); n != 0 || time.Since(start) < 30*time.Millisecond {
		t.Errorf("%d sockets have packets after %s", n, time.Since(start))
	}
	if n := must(reading.Wait(0))(t); n != 0 {
		t.Errorf("%d sockets have packets", n)
	}
	if n := must(writing.Wait(-1))(t); n != 1 {
		t.Errorf("%d sockets have room", n)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		if err := sender.Send(frameOf(1, shortest)); err != nil {
			t.Error(err)
		}
	}()
	if n := must(reading.Wait(patience))(t); n != 1 {
		t.Errorf("%d sockets have packets", n)
	}
	batch := make([]xsk.Desc, 8)
	n := s.Receive(batch)
	if n != 1 {
		t.Errorf("%d packets", n)
	}
	e.pool.Free(batch[:n])
	// Waiting wakes the kernel to send, as Kick does.
	if s.Transmit(build(e, frameOf(2, shortest))) != 1 {
		t.Error("the ring is full")
	}
	must(writing.Wait(0))(t)
	testenv.Eventually(t, patience, func() error {
		if s.Reclaim() == 0 {
			return errors.New("nothing was sent")
		}
		return nil
	})
	reading.Remove(s)
	if n := must(reading.Wait(0))(t); n != 0 {
		t.Errorf("%d sockets of none", n)
	}
}

// TestBusyPoll receives and sends with the device's NAPI driven by Kick alone.
func TestBusyPoll(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	o := xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 128, Completion: 64, BusyPoll: xsk.BusyPoll{Time: 20 * time.Microsecond, Budget: 16}}
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, o).sockets[0]
	for option, want := range map[int]int{unix.SO_PREFER_BUSY_POLL: 1, unix.SO_BUSY_POLL: 20} {
		if got := must(unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, option))(t); got != want {
			t.Errorf("option %d is %d, want %d", option, got, want)
		}
	}
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	led := newLedger(2000, everyLength)
	go feed(t, led, 32, sender.Send)
	receiveAll(t, e, s, led)
	for n := range uint64(200) {
		check(t, send(e, s, frameOf(n, everyLength(n))))
	}
	sentAll(t, s)
	if c := s.Counters(); c.Kicks < c.TxPackets {
		t.Errorf("busy polling without system calls: %+v", c)
	}
}
