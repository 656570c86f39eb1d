package xsk

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Counters are what a socket counts itself, since it was opened.
type Counters struct {
	RxPackets, RxFrames uint64 // Receive gave to the caller; a packet of several frames is one packet
	Oversize            uint64 // packets that Receive dropped, because the batch was too short for them
	TxPackets, TxFrames uint64 // Transmit gave to the kernel
	TxTooLong           uint64 // packets that Transmit dropped, because the kernel does not send so many frames
	TxCompleted         uint64 // frames that came back after they were sent
	TxSpurious          uint64 // frames that the kernel says it sent and did not have

	Kicks         uint64 // system calls of Kick
	KickAgain     uint64 // of them, those that left something to send
	KickBusy      uint64 // ... that found the device's queue full, and dropped one packet
	KickNoBuffers uint64 // ... that found the kernel short of memory
	KickDown      uint64 // ... that found the device down
	Waits         uint64 // system calls of Wait in which the socket had a part
}

// Counters returns the socket's own counters. It is for the socket's worker, which may publish the copy.
func (s *Socket) Counters() Counters { return s.counters }

// Stats are what the kernel counts of a socket, since it was opened (XDP_STATISTICS).
type Stats struct {
	RxDropped   uint64 // packets: no free frame, or longer than a frame and no MultiBuffer
	RxInvalid   uint64 // descriptors of the fill ring that lie outside of the UMEM
	TxInvalid   uint64 // descriptors of the tx ring that lie outside of a frame, are empty, or ask what is not known
	RxRingFull  uint64 // packets: the rx ring was full (Linux 5.9, as those below)
	FillEmpty   uint64 // times that the kernel found no free frame
	TxRingEmpty uint64 // times that the kernel found nothing to send: no fault
}

// Stats asks the kernel for its counters. Any goroutine may, but not during Close. Before Linux 5.9
// RxDropped counts what RxRingFull does too.
func (s *Socket) Stats() (Stats, error) {
	var k unix.XDPStatistics
	if _, err := getOption(s.fd, unix.XDP_STATISTICS, unsafe.Pointer(&k), unsafe.Sizeof(k)); err != nil {
		return Stats{}, fmt.Errorf("read counters of %s queue %d: %w", s.device.Name, s.queue, err)
	}
	return Stats{
		RxDropped:   k.Rx_dropped,
		RxInvalid:   k.Rx_invalid_descs,
		TxInvalid:   k.Tx_invalid_descs,
		RxRingFull:  k.Rx_ring_full,
		FillEmpty:   k.Rx_fill_ring_empty_descs,
		TxRingEmpty: k.Tx_ring_empty_descs,
	}, nil
}

// Rings are how full a socket's rings are.
type Rings struct {
	Rx         int // arrived, not yet received
	Tx         int // given to Transmit, not yet taken by the kernel
	Fill       int // frames that the kernel may receive into
	Completion int // sent, not yet reclaimed
}

// Rings looks at all four rings. Any goroutine may, but not during Close; what it returns of a ring that moves is
// not of one moment.
func (s *Socket) Rings() Rings {
	return Rings{
		Rx:         s.rx.level(),
		Tx:         s.tx.level(),
		Fill:       s.fill.level(),
		Completion: s.completion.level(),
	}
}

// Moved returns how many entries the consumers of the four rings have taken, modulo 2^32: a ring in which there
// is something, and whose number stays as it is, stands still. It is for whom Rings is.
func (s *Socket) Moved() (rx, tx, fill, completion uint32) {
	return atomic.LoadUint32(s.rx.consumer), atomic.LoadUint32(s.tx.consumer),
		atomic.LoadUint32(s.fill.consumer), atomic.LoadUint32(s.completion.consumer)
}

// level is how many entries are published and not taken, by what both ends say.
func (r *ring) level() int {
	taken := atomic.LoadUint32(r.consumer)
	return int(min(atomic.LoadUint32(r.producer)-taken, r.size))
}
