package xsk_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestOwnProgram has a program other than the package's in front of the socket, which leaves a note of
// eight bytes before each packet.
func TestOwnProgram(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	client := l.Must(t, "client")
	sockets := must(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 1}))(t)
	defer sockets.Close()
	const data, dataMeta, queue, pass = 0, 8, 16, 2 // in struct xdp_md; XDP_PASS
	program := must(ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Imm(asm.R2, -8),
		asm.FnXdpAdjustMeta.Call(),
		asm.JNE.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R2, asm.R6, dataMeta, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, data, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 8),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.StoreImm(asm.R2, 0, 0x11223344, asm.Word),
		asm.StoreImm(asm.R2, 4, 0x55667788, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, queue, asm.Word),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Imm(asm.R3, pass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
		asm.Return(),
	}}))(t)
	defer program.Close()
	index := must(client.Index("c0"))(t)
	var attached link.Link
	check(t, client.Do(func() (err error) {
		attached, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: index, Flags: link.XDPDriverMode})
		return err
	}))
	defer attached.Close()
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	s := must(open(client, e.umem, e.pool, "c0", 0, small))(t)
	e.ports = append(e.ports, &port{sockets: []*xsk.Socket{s}})
	check(t, sockets.Put(uint32(0), uint32(s.FD())))
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	led := newLedger(200, everyLength)
	go feed(t, led, 16, sender.Send)
	batch := make([]xsk.Desc, 64)
	var poller xsk.Poller
	poller.Add(s, xsk.Readable)
	for led.left > 0 {
		if must(poller.Wait(patience))(t) == 0 {
			t.Fatal(led.missing())
		}
		n := s.Receive(batch)
		for _, d := range batch[:n] {
			if note := e.umem.Before(d, 8); binary.NativeEndian.Uint32(note) != 0x11223344 || binary.NativeEndian.Uint32(note[4:]) != 0x55667788 {
				t.Fatalf("the program left %x", note)
			}
			check(t, led.take(e.umem.Frame(d)))
		}
		e.pool.Free(batch[:n])
		s.Refill()
	}
}

// TestRest sends to a queue that has a program and no socket.
func TestRest(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	client := l.Must(t, "client")
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	for _, drop := range []bool{false, true} {
		var r *xsk.Redirect
		check(t, client.Do(func() (err error) { r, err = xsk.Attach("c0", xsk.AttachOptions{DropRest: drop}); return err }))
		capture := must(client.StartCapture("c0", testenv.CaptureOptions{
			Match: func(b []byte) bool { n, ours := numberOf(b); return ours && n == 0 },
		}))(t)
		fence := must(client.StartCapture("c0", testenv.CaptureOptions{
			Match: func(b []byte) bool { n, ours := numberOf(b); return ours && n == 1 },
		}))(t)
		before := must(client.DeviceStats("c0"))(t).RxPackets
		for range 10 {
			check(t, sender.Send(frameOf(0, shortest)))
		}
		testenv.Eventually(t, patience, func() error { // all ten are through when the device counts them
			stats, err := client.DeviceStats("c0")
			if err == nil && stats.RxPackets < before+10 {
				return errNotYet
			}
			return err
		})
		check(t, r.Close())
		testenv.Eventually(t, patience, func() error { // behind them, without a program
			if err := sender.Send(frameOf(1, shortest)); err != nil {
				return err
			}
			if fence.Count() == 0 {
				return errNotYet
			}
			return nil
		})
		must(fence.Stop())(t)
		got := must(capture.Stop())(t)
		if want := map[bool]int{false: 10, true: 0}[drop]; got != want {
			t.Errorf("drop %t: %d packets reached the kernel, want %d", drop, got, want)
		}
	}
}

var errNotYet = errors.New("not yet")
