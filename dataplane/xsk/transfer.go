package xsk

// A worker's round, in this order: Reclaim on all sockets, Receive a batch from each, what it does with
// the packets, Transmit on the socket where each goes, Refill and Kick on all, and Wait when there was
// nothing to do for some rounds. See the package's document for who has a frame when.

// Reclaim moves frames that have been sent from the completion ring to the pool and returns how many.
func (s *Socket) Reclaim() int {
	r := &s.completion
	n := r.filled(r.size)
	if n == 0 {
		return 0
	}
	spurious := uint32(0)
	for i := range n {
		addr := r.addr[(r.cons+i)&r.mask]
		holder := &s.holder[addr>>s.shift]
		if *holder != s.id {
			// A kernel that cannot read a packet's metadata says with every try that the frame was sent (seen on
			// 6.18): whoever believed it would have the frame twice.
			spurious++
			continue
		}
		*holder = 0
		if debug {
			s.umem.track.sent(addr, placeFree, s.id)
		}
		s.pool.put(s.umem.start(addr))
	}
	r.release(n)
	s.counters.TxSpurious += uint64(spurious)
	s.counters.TxCompleted += uint64(n - spurious)
	return int(n - spurious)
}

// ReclaimTo is Reclaim for a worker that asks what has been sent: it moves frames to the caller instead of the
// pool, as many as batch is long or there are, in the order in which the kernel has completed them, and
// returns how many. Of each descriptor only Addr is meant, which is that of the packet's first byte in the frame.
func (s *Socket) ReclaimTo(batch []Desc) int {
	r := &s.completion
	have := r.filled(uint32(len(batch)))
	read, n := uint32(0), 0
	for ; read < have && n < len(batch); read++ {
		addr := r.addr[(r.cons+read)&r.mask]
		holder := &s.holder[addr>>s.shift]
		if *holder != s.id {
			s.counters.TxSpurious++ // as in Reclaim
			continue
		}
		*holder = 0
		if debug {
			s.umem.track.sent(addr, placeCaller, s.id)
		}
		batch[n] = Desc{Addr: addr}
		n++
	}
	if read > 0 {
		r.release(read)
		s.counters.TxCompleted += uint64(n)
	}
	return n
}

// Receive moves up to len(batch) descriptors of arrived packets to the caller and returns how many. A
// packet of several descriptors comes whole or not at all: what has arrived of it stays in the ring until
// the rest is there. One that is longer than batch could never come: it is dropped, and its frames counted
// as Oversize. (64 descriptors hold the longest packet unless frames are small and Headroom large.)
func (s *Socket) Receive(batch []Desc) int {
	n := int(min(s.rx.filled(uint32(len(batch))), uint32(len(batch))))
	if n == 0 {
		return 0
	}
	s.rx.peek(batch[:n])
	packets := n
	if s.multi {
		whole := wholePackets(batch[:n])
		if whole == 0 {
			if n == len(batch) {
				s.dropOversize(n)
			}
			return 0
		}
		n, packets = whole, countPackets(batch[:whole])
	}
	for i := range batch[:n] {
		addr := batch[i].Addr
		s.holder[addr>>s.shift] = 0
		if debug {
			s.umem.track.move(addr, placeFill, placeCaller, s.id)
		}
	}
	s.rx.release(uint32(n))
	s.counters.RxFrames += uint64(n)
	s.counters.RxPackets += uint64(packets)
	return n
}

// wholePackets returns how many descriptors of the batch belong to packets that end in it.
func wholePackets(batch []Desc) int {
	n := len(batch)
	for n > 0 && batch[n-1].More() {
		n--
	}
	return n
}

// countPackets counts packets, all of which end in the batch.
func countPackets(batch []Desc) int {
	n := len(batch)
	for i := range batch {
		n -= int(batch[i].Options & Continues)
	}
	return n
}

// dropOversize drops the packet at the head of the ring, of which the first have descriptors do not hold
// the end, if its end has arrived.
func (s *Socket) dropOversize(have int) {
	filled := s.rx.filled(s.rx.size)
	for i := uint32(have); i < filled; i++ {
		if s.rx.desc[(s.rx.cons+i)&s.rx.mask].More() {
			continue
		}
		for j := range i + 1 {
			addr := s.rx.desc[(s.rx.cons+j)&s.rx.mask].Addr
			s.holder[addr>>s.shift] = 0
			if debug {
				s.umem.track.move(addr, placeFill, placeFree, s.id)
			}
			s.pool.put(s.umem.start(addr))
		}
		s.rx.release(i + 1)
		s.counters.Oversize++
		return
	}
}

// Transmit takes the first n descriptors of the batch to send them, and returns n: batch[n:] stays with
// the caller, because the ring is full. What it takes goes to the kernel with the next Kick. A packet of
// several descriptors is taken whole; one of more than MaxSegments, which the kernel would lose, is taken
// and dropped, and counted as TxTooLong.
//
// The bytes of what it takes are the kernel's until Reclaim. A descriptor that leaves its frame, or is empty,
// is not sent: the kernel counts it as TxInvalid. Some kernels complete it (6.18.44 does), with others its
// frame comes back when the socket is closed. A debug build panics instead.
func (s *Socket) Transmit(batch []Desc) int {
	if s.multi {
		return s.transmitChains(batch)
	}
	n := int(min(s.tx.room(uint32(len(batch))), uint32(len(batch))))
	if n == 0 {
		return 0
	}
	batch = batch[:n]
	for i := range batch {
		if debug {
			s.umem.track.send(batch[i], s.id)
		}
		s.holder[batch[i].Addr>>s.shift] = s.id
	}
	s.tx.put(batch)
	s.tx.publish(uint32(n))
	s.counters.TxFrames += uint64(n)
	s.counters.TxPackets += uint64(n)
	return n
}

// transmitChains is Transmit for packets of several descriptors.
func (s *Socket) transmitChains(batch []Desc) int {
	room := int(s.tx.room(uint32(len(batch))))
	queued := uint32(0) // written to the ring, and not published
	taken := 0
	for start := 0; start < len(batch); {
		end := start
		for end < len(batch) && batch[end].More() {
			end++
		}
		if end == len(batch) {
			break // the rest of the packet is not here
		}
		end++
		packet := batch[start:end]
		if len(packet) > s.maxSegments {
			s.pool.Free(packet)
			s.counters.TxTooLong++
		} else {
			if len(packet) > room {
				break
			}
			room -= len(packet)
			for _, d := range packet {
				if debug {
					s.umem.track.send(d, s.id)
				}
				s.holder[d.Addr>>s.shift] = s.id
				s.tx.desc[(s.tx.prod+queued)&s.tx.mask] = d
				queued++
			}
			s.counters.TxPackets++
		}
		start, taken = end, end
	}
	if queued > 0 {
		s.tx.publish(queued)
		s.counters.TxFrames += uint64(queued)
	}
	return taken
}

// MaxSegments returns of how many descriptors a packet may consist that Transmit is given.
func (s *Socket) MaxSegments() int {
	if !s.multi {
		return 1
	}
	return s.maxSegments
}

// Refill moves free frames from the pool to the fill ring until the ring is full or the pool empty, and
// returns how many.
func (s *Socket) Refill() int { return s.RefillTo(int(s.fill.size)) }

// RefillTo is Refill until the ring holds n frames. In copy mode, where the kernel takes a frame for each
// packet that arrives and none in advance, a ring that is not full lets the pool give the same frames again
// while they are in the cache. n bounds how many packets may arrive before the next call.
func (s *Socket) RefillTo(n int) int {
	n = min(n, int(s.fill.size)) - int(s.fill.pending())
	n = min(n, len(s.pool.free))
	if n <= 0 {
		return 0
	}
	left := len(s.pool.free) - n
	frames := s.pool.free[left:]
	for _, addr := range frames {
		if debug {
			s.umem.track.move(addr, placeFree, placeFill, s.id)
		}
		s.holder[addr>>s.shift] = s.id
	}
	s.fill.put(frames)
	s.pool.free = s.pool.free[:left]
	s.fill.publish(uint32(n))
	return n
}
