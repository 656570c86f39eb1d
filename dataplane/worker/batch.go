package worker

import (
	"sync/atomic"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// batchSize is how many descriptors a worker takes at once.
const batchSize = 64

// A batch is packets that stages see together.
type batch struct {
	descs   [batchSize]xsk.Desc
	packets [batchSize]packet
	count   int // of packets
}

// A packet is one of a batch: n descriptors from first on.
type packet struct {
	first, n int
	h        bpf.XDPHandover
}

func (b *batch) of(p *packet) []xsk.Desc { return b.descs[p.first : p.first+p.n] }

// add appends a packet whose descriptors are in the batch.
func (b *batch) add(first, n int, h *bpf.XDPHandover) {
	p := &b.packets[b.count]
	p.first, p.n, p.h = first, n, *h
	b.count++
}

// handoverAt reads what XDP has written in front of a packet. The numbers are the machine's.
func handoverAt(b []byte) *bpf.XDPHandover {
	_ = b[handoverLen-1]
	return (*bpf.XDPHandover)(unsafe.Pointer(unsafe.SliceData(b)))
}

// end returns where the packet ends that begins at first: the place of its last descriptor, and one more.
func end(descs []xsk.Desc, first int) int {
	for descs[first].More() {
		first++
	}
	return first + 1
}

// Bits of a descriptor between workers, beside those of the kernel.
const (
	toSend      = 1 << 31 // the stages are done: it is to be sent by the port that it says
	ofWorkers   = toSend
	toHome      = 0
	homeShift   = 24
	ruleMask    = 1<<homeShift - 1
	stageMirror = 0x02 // STAGE_MIRROR
)

// receive takes a batch from a socket, hands over what is another worker's, and does the rest.
func (w *worker) receive(s *seat) int {
	b := &w.batch
	n := s.socket.Receive(b.descs[:])
	if n == 0 {
		return 0
	}
	for i := range b.descs[:n] {
		*w.frame(b.descs[i]) = frame{cell: noCell, owner: w.id, place: w.id + 1, last: !b.descs[i].More()}
	}
	b.count = 0
	packets := uint32(0)
	for first := 0; first < n; {
		next := end(b.descs[:], first)
		w.arrived(b, first, next-first)
		packets++
		first = next
	}
	s.taken += packets
	atomic.StoreUint32(&s.record.Taken, s.taken)
	w.count[cPackets] += uint64(packets)
	w.count[bucket(packets)]++
	w.process(b)
	return n
}

// arrived takes one packet from a socket: n descriptors of the batch.
func (w *worker) arrived(b *batch, first, n int) {
	descs := b.descs[first : first+n]
	for i := range descs {
		w.count[cBytes] += uint64(descs[i].Len)
	}
	if descs[0].Len <= handoverLen {
		w.drop(descs, dropInternal) // nothing that XDP of ours sends
		return
	}
	h := handoverAt(w.memory.umem.Frame(descs[0]))
	descs[0].Addr += handoverLen
	descs[0].Len -= handoverLen
	w.count[cBytes] -= handoverLen
	last := w.frame(descs[n-1])
	last.cell, last.number = h.Cell, h.Number
	if home := int(h.Rule>>homeShift) - 1; home >= 0 && home != int(w.id) && home < len(w.out) {
		switch {
		case w.handOver(home, descs, toHome):
		case (*w.crew.works.Load())[h.Rule&ruleMask].Bypass:
			w.send(h.Port, descs)
		default:
			w.drop(descs, dropWorkerFull)
		}
		return
	}
	b.add(first, n, h)
}

// handOver gives a packet to another worker: for its stages, or only to be sent. It reports whether that worker has
// room for it: as in XDP, one who gives no sign of life counts as full.
func (w *worker) handOver(to int, descs []xsk.Desc, what uint32) bool {
	x, own := w.out[to], 0
	for i := range descs {
		if w.frame(descs[i]).owner == w.id {
			own++
		}
	}
	if w.away+own > w.awayMax || !x.room(len(descs)) || w.crew.workers[to].silentAt(w.tick) {
		return false
	}
	w.away += own
	for i := range descs {
		w.frame(descs[i]).place = frameHanded
		d := descs[i]
		d.Options |= what
		x.put(d)
	}
	w.outDirty |= 1 << to
	w.count[cHandedOver]++
	return true
}

// takeOver takes what other workers have handed over, oldest first, and does it.
func (w *worker) takeOver() int {
	got := 0
	for _, x := range w.in {
		if x == nil {
			continue
		}
		b := &w.batch
		n := x.take(b.descs[:])
		if n == 0 {
			continue
		}
		got += n
		for i := range b.descs[:n] {
			f := w.frame(b.descs[i])
			f.place = w.id + 1
			if f.owner == w.id {
				w.away--
			}
		}
		b.count = 0
		for first := 0; first < n; {
			next := end(b.descs[:], first)
			w.taken(b, first, next-first)
			first = next
		}
		w.process(b)
	}
	return got
}

// taken takes one packet from another worker.
func (w *worker) taken(b *batch, first, n int) {
	descs := b.descs[first : first+n]
	what := descs[0].Options & ofWorkers
	for i := range descs {
		descs[i].Options &^= ofWorkers
	}
	w.count[cTakenOver]++
	h := handoverAt(w.memory.umem.Before(descs[0], handoverLen))
	if what == toSend {
		w.send(h.Port, descs)
		return
	}
	b.add(first, n, h)
}

// process leads a batch through its stages, in the order of their bits, and to where it leaves. The null stage,
// forward, has nothing to do.
func (w *worker) process(b *batch) {
	if b.count == 0 {
		return
	}
	w.mirror(b)
	for i := range b.packets[:b.count] {
		p := &b.packets[i]
		w.send(p.h.Port, b.of(p))
	}
}

// bucket returns the counter of batches of that many packets.
func bucket(packets uint32) int {
	i := 0
	for packets > 1 && i < BatchBuckets-1 {
		packets >>= 1
		i++
	}
	return cBatches + i
}
