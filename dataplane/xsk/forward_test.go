package xsk_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// A cable forwards between the two ports of its end, which share a UMEM, and completes what checksums the
// hosts' kernels left open.
type cable struct {
	e                       *end
	offloaded, done, intact uint64
	err                     error
}

func (c *cable) run(ctx context.Context) {
	sockets := []*xsk.Socket{c.e.ports[0].sockets[0], c.e.ports[1].sockets[0]}
	var poller xsk.Poller
	for _, s := range sockets {
		poller.Add(s, xsk.Readable)
	}
	batch := make([]xsk.Desc, 64)
	for ctx.Err() == nil && c.err == nil {
		for _, s := range sockets {
			s.Reclaim()
		}
		moved := 0
		for i, from := range sockets {
			to := sockets[1-i]
			n := from.Receive(batch)
			eachPacket(batch[:n], func(packet []xsk.Desc) { c.complete(to, packet) })
			sent := to.Transmit(batch[:n])
			c.e.pool.Free(batch[sent:n])
			moved += n
		}
		for _, s := range sockets {
			s.Refill()
			if err := s.Kick(); err != nil {
				c.err = err
			}
		}
		if moved == 0 {
			if _, err := poller.Wait(5 * time.Millisecond); err != nil {
				c.err = err
			}
		}
	}
}

// complete sees to the checksum of an IPv4 TCP packet whose own is the bare sum of the pseudo-header: the
// sender left it to its device, which is a veth and did nothing.
func (c *cable) complete(to *xsk.Socket, packet []xsk.Desc) {
	b := c.e.umem.Frame(packet[0])
	if len(b) < 54 || binary.BigEndian.Uint16(b[12:]) != 0x0800 || b[14] != 0x45 || b[23] != 6 {
		return
	}
	length := binary.BigEndian.Uint16(b[16:]) - 20
	sum := uint32(6) + uint32(length)
	for i := 26; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	const start, offset = 34, 16
	switch {
	case binary.BigEndian.Uint16(b[start+offset:]) != uint16(sum):
		c.intact++
	case to.Checksum(packet, start, offset):
		c.offloaded++
	default:
		c.done++
	}
}

// TestForwardTCP puts a worker between two hosts whose kernels leave checksums to their devices.
func TestForwardTCP(t *testing.T) {
	for _, tt := range []struct {
		name string
		mtu  int
		umem xsk.UMEMOptions
	}{
		{"checksums made by the worker", 1500, xsk.UMEMOptions{Mode: xsk.Copy, FrameSize: 2048}},
		{"checksums left to the device", 1500, xsk.UMEMOptions{Mode: xsk.Copy, FrameSize: 2048, TxMetadata: true}},
		{"jumbo packets in several frames", 9000, xsk.UMEMOptions{Mode: xsk.Copy, FrameSize: 2048, MultiBuffer: true}},
		{"jumbo packets, left to the device", 9000, xsk.UMEMOptions{Mode: xsk.Copy, FrameSize: 4096, MultiBuffer: true, TxMetadata: true}},
		{"generic mode", 1500, xsk.UMEMOptions{Mode: xsk.Generic, FrameSize: 2048}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sinceOptions(t, tt.umem)
			l := testenv.New(t, "inline", testenv.Options{Prefix: prefix, MTU: tt.mtu})
			client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, "gw")
			if tt.umem.Mode == xsk.Generic {
				// Generic XDP sees what the sender's stack made, before its device would have segmented it.
				check(t, client.Do(func() error { return setFeature("c0", "tx-tcp-segmentation", false) }))
				check(t, server.Do(func() error { return setFeature("s0", "tx-tcp-segmentation", false) }))
				check(t, client.Do(func() error { return setFeature("c0", "tx-generic-segmentation", false) }))
				check(t, server.Do(func() error { return setFeature("s0", "tx-generic-segmentation", false) }))
				// The sum that GSO packets are left with is another: let the hosts make theirs.
				check(t, client.Do(func() error { return setFeature("c0", "tx-checksum-ip-generic", false) }))
				check(t, server.Do(func() error { return setFeature("s0", "tx-checksum-ip-generic", false) }))
			}
			tt.umem.Frames = 4096
			e := newEnd(t, tt.umem)
			attach := xsk.AttachOptions{Mode: tt.umem.Mode, MultiBuffer: tt.umem.MultiBuffer}
			rings := xsk.SocketOptions{Rx: 512, Tx: 512, Fill: 1024, Completion: 512}
			e.open(t, gw, "lan", 1, attach, rings)
			e.open(t, gw, "wan", 1, attach, rings)
			c := &cable{e: e}
			ctx, cancel := context.WithCancel(t.Context())
			stopped := make(chan struct{})
			go func() { defer close(stopped); c.run(ctx) }()
			transfer(t, client, server, 8<<20)
			cancel()
			<-stopped
			check(t, c.err)
			t.Logf("%d checksums left to the device, %d made by the worker, %d intact", c.offloaded, c.done, c.intact)
			switch {
			case tt.umem.Mode == xsk.Generic:
			case tt.umem.TxMetadata && c.offloaded == 0:
				t.Error("no checksum was left to the device")
			case !tt.umem.TxMetadata && (c.done == 0 || c.offloaded != 0):
				t.Error("no checksum was made by the worker, or some were left to the device")
			}
			for _, p := range e.ports {
				sentAll(t, p.sockets[0])
				if k := must(p.sockets[0].Stats())(t); k.RxInvalid+k.TxInvalid != 0 {
					t.Errorf("%s: the kernel counts %+v", p.device, k)
				}
			}
			if c := e.umem.Census(); c.Caller != 0 || c.Free+c.Kernel != c.Total {
				t.Errorf("census %+v", c)
			}
		})
	}
}
