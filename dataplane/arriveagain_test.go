package dataplane

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// piece is a fragment of an IPv4 datagram behind a VLAN tag, or behind none if that is 0.
func piece(vlan, id, offset uint16, more bool, payload string) []byte {
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	if vlan != 0 {
		frame = append(frame, 0x81, 0, byte(vlan>>8), byte(vlan))
	}
	frame = append(frame, 8, 0)
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 10, 1, 2, 10, 10, 1, 3}
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(ip[4:], id)
	binary.BigEndian.PutUint16(ip[6:], offset/8)
	if more {
		ip[6] |= 0x20
	}
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	return slices.Concat(frame, ip, []byte(payload))
}

// A daemon takes over what one that was killed has left in the ring, and counts what is gone with it. What it
// holds leaves as it came, of a VLAN, between inline ports, one of them in generic mode; and at its end nothing
// is held any more.
func TestHoldFragments(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	vlans := map[uint16]uint8{10: 4}
	if err := p.Attach([]PortConfig{
		{Name: "lan0", Device: "lan", Zone: 2, VLANs: vlans, Peer: "wan0", Mode: ModeGeneric, FixOffloads: true},
		{Name: "wan0", Device: "wan", Zone: 3, VLANs: vlans, Peer: "lan0", FixOffloads: true},
	}); err != nil {
		t.Fatal(err)
	}
	sender, err := g.lab.Must(t, "client").OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	send := func(frame []byte) {
		t.Helper()
		if err := sender.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	gw := &p.mem.gateway[0]
	becomes := func(what string, dropped uint64, want HeldFragments) {
		t.Helper()
		testenv.Eventually(t, 5*time.Second, func() error {
			reasons, err := p.Reasons()
			got := p.HeldFragments()
			if n := reasons[bpf.XDPReasonREASON_FRAGMENT_NO_FIRST].Packets; err == nil && (n != dropped || got != want) {
				err = fmt.Errorf("%s: %d dropped, %+v; want %d, %+v", what, n, got, dropped, want)
			}
			return err
		})
	}

	send(piece(10, 1, 8, false, "nobody holds"))
	becomes("nobody holds", 1, HeldFragments{})

	// A daemon held two, and was killed.
	atomic.StoreInt32(&gw.HeldMax, heldMax)
	atomic.StoreInt32(&gw.Held, 2)
	// One that is too long, as a port with a larger MTU would take it.
	g.do(t, func() error {
		frame := piece(0, 3, 8, false, string(make([]byte, 2048-13-20)))
		context := struct{ Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32 }{
			DataEnd: uint32(len(frame)), IngressIfindex: p.Ports()[0].Index,
		}
		_, err := p.dispatch.Run(&ebpf.RunOptions{Data: frame, Context: context})
		return err
	})
	becomes("a long one", 2, HeldFragments{Held: 2})

	send(piece(10, 2, 16, false, "third"))
	send(piece(10, 2, 8, true, "second  "))
	becomes("after a kill", 2, HeldFragments{Held: 4})
	capture, err := g.lab.Must(t, "server").StartCapture("s0", testenv.CaptureOptions{Match: func(f []byte) bool {
		return bytes.Contains(f, []byte{10, 10, 1, 2, 10, 10, 1, 3})
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.HoldFragments(ctx) }()
	becomes("with a daemon", 4, HeldFragments{Held: 2})

	send(piece(10, 2, 0, true, "\x03\xe8\x13\x88\x00\x18\x00\x00"))
	becomes("with the first", 4, HeldFragments{Released: 2})
	if err := capture.Wait(ctx, 3); err != nil {
		t.Error(err)
	}
	if _, err := capture.Stop(); err != nil {
		t.Error(err)
	}
	var arrived []string
	for _, f := range capture.Frames() {
		arrived = append(arrived, string(f.Data[bytes.Index(f.Data, []byte{10, 10, 1, 2})+8:]))
	}
	if want := []string{"\x03\xe8\x13\x88\x00\x18\x00\x00", "third", "second  "}; !slices.Equal(arrived, want) {
		t.Errorf("%q arrived, want %q", arrived, want)
	}

	send(piece(0, 2, 8, false, "of another VLAN"))
	testenv.Eventually(t, 5*time.Second, func() error {
		if f := p.HeldFragments(); f.Held+f.Expired != 1 {
			return fmt.Errorf("that of another VLAN is not held: %+v", f)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	becomes("at the end", 5, HeldFragments{Released: 2, Expired: 1})
	send(piece(0, 2, 8, false, "nobody holds any more"))
	becomes("behind the end", 6, HeldFragments{Released: 2, Expired: 1})
}
