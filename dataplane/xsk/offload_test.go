package xsk_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestChecksumRequest looks at what is on the wire of one packet: a device that makes checksums leaves
// them to the veth's other end; where it does not the kernel completes them.
func TestChecksumRequest(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	client, server := l.Must(t, "client"), l.Must(t, "server")
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy, TxMetadata: true})
	s := e.open(t, client, "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 8, Tx: 8, Fill: 8, Completion: 8}).sockets[0]
	if !s.Offloads() {
		t.Fatal("copy mode does not offload")
	}
	frame := frameOf(1, 200)
	const start, offset = 34, 6
	want := naiveSum(frame[start:])
	send := func(t *testing.T) testenv.Frame {
		capture := must(server.StartCapture("s0", testenv.CaptureOptions{
			Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
		}))(t)
		var one [1]xsk.Desc
		if e.pool.Alloc(one[:]) != 1 {
			t.Fatal("the pool is empty")
		}
		one[0].Len = uint32(len(frame))
		copy(e.umem.Frame(one[0]), frame)
		if !s.Checksum(one[:], start, offset) {
			t.Error("the checksum was made here")
		}
		if s.Transmit(one[:]) != 1 {
			t.Fatal("the ring is full")
		}
		sentAll(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		check(t, capture.Wait(ctx, 1))
		must(capture.Stop())(t)
		return capture.Frames()[0]
	}
	if f := send(t); !f.ChecksumPartial {
		t.Error("the packet is not marked as one whose checksum is open")
	}
	check(t, client.Do(func() error { return setFeature("c0", "tx-checksum-ip-generic", false) }))
	f := send(t)
	if got := binary.BigEndian.Uint16(f.Data[start+offset:]); f.ChecksumPartial || got != want {
		t.Errorf("checksum %#04x, want %#04x; open: %t", got, want, f.ChecksumPartial)
	}

	// A packet without room in front, or whose field lies behind the first frame, is done by hand.
	var one [1]xsk.Desc
	if e.pool.Alloc(one[:]) != 1 {
		t.Fatal("the pool is empty")
	}
	one[0].Addr = one[0].Addr &^ 2047
	one[0].Len = uint32(len(frame))
	copy(e.umem.Frame(one[0]), frame)
	if s.Checksum(one[:], start, offset) {
		t.Error("a request was left where there is no room for it")
	}
	if got := binary.BigEndian.Uint16(e.umem.Frame(one[0])[start+offset:]); got != want {
		t.Errorf("checksum %#04x, want %#04x", got, want)
	}
	e.pool.Free(one[:])
}

// naiveSum is RFC 1071's checksum.
func naiveSum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i++ {
		if i%2 == 0 {
			sum += uint32(b[i]) << 8
		} else {
			sum += uint32(b[i])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
