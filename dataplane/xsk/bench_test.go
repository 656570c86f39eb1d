package xsk

import (
	"fmt"
	"testing"
)

// These measure what the package itself does to a packet, in plain memory: both ends of the rings are
// here, and no kernel is in between. "ns/op" is for one packet.

// benchSocket returns a socket whose kernel is the caller.
func benchSocket(b *testing.B) (s *Socket, kernelRx, kernelTx descRing, kernelFill, kernelCompletion addrRing) {
	u, err := NewUMEM(UMEMOptions{Frames: 4096, FrameSize: 2048})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { u.Close() })
	p, err := u.NewPool(4096)
	if err != nil {
		b.Fatal(err)
	}
	s = &Socket{umem: u, pool: p, holder: u.holder, shift: u.shift, id: 1}
	kernelRx, s.rx = pairOf(1024, 0)
	s.tx, kernelTx = pairOf(1024, 0)
	s.fill, kernelFill = addrPairOf(1024)
	kernelCompletion, s.completion = addrPairOf(1024)
	return s, kernelRx, kernelTx, kernelFill, kernelCompletion
}

func addrPairOf(size uint32) (producer, consumer addrRing) {
	prod, cons, flags := new(uint32), new(uint32), new(uint32)
	addr := make([]uint64, size)
	end := func() addrRing {
		return addrRing{ring{size: size, mask: size - 1, producer: prod, consumer: cons, flags: flags}, addr}
	}
	return end(), end()
}

func BenchmarkReceive(b *testing.B) {
	for _, size := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("batch-%d", size), func(b *testing.B) {
			s, rx, _, fill, _ := benchSocket(b)
			batch, arrived, frames := make([]Desc, size), make([]Desc, size), make([]uint64, size)
			s.Refill()
			b.ReportAllocs()
			for n := 0; n < b.N; n += size {
				fill.filled(uint32(size))
				fill.peek(frames)
				fill.release(uint32(size))
				for i, addr := range frames {
					arrived[i] = Desc{Addr: addr + 256, Len: 60}
				}
				rx.room(uint32(size))
				rx.put(arrived)
				rx.publish(uint32(size))
				if s.Receive(batch) != size {
					b.Fatal("nothing received")
				}
				s.pool.Free(batch)
				s.Refill()
			}
		})
	}
}

func BenchmarkTransmit(b *testing.B) {
	for _, size := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("batch-%d", size), func(b *testing.B) {
			s, _, tx, _, completion := benchSocket(b)
			batch, sent, frames := make([]Desc, size), make([]Desc, size), make([]uint64, size)
			b.ReportAllocs()
			for n := 0; n < b.N; n += size {
				if s.pool.Alloc(batch) != size || s.Transmit(batch) != size {
					b.Fatal("nothing sent")
				}
				tx.filled(uint32(size))
				tx.peek(sent)
				tx.release(uint32(size))
				for i, d := range sent {
					frames[i] = d.Addr
				}
				completion.room(uint32(size))
				completion.put(frames)
				completion.publish(uint32(size))
				if s.Reclaim() != size {
					b.Fatal("nothing came back")
				}
			}
		})
	}
}

func BenchmarkCompleteChecksum(b *testing.B) {
	for _, size := range []int{60, 1514} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			u, err := NewUMEM(UMEMOptions{Frames: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer u.Close()
			packet := []Desc{{Addr: 256, Len: uint32(size)}}
			if debug {
				u.track.move(0, placeFree, placeCaller, 0)
				defer u.track.move(0, placeCaller, placeFree, 0)
			}
			for b.Loop() {
				u.CompleteChecksum(packet, 34, 16)
			}
		})
	}
}
