package worker

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// A frame is what workers note of one frame of the UMEM. It belongs to whoever has the frame.
type frame struct {
	cell   uint32 // of the leg whose packet ends in this frame; noCell: none that wants to know
	number uint16 // of that packet on its leg
	owner  uint8  // worker from whose pool it came, and to whom it goes back
	place  uint8  // see below
	by     uint8  // worker that gave it to the kernel, of a frame that is sent
	last   bool   // a packet ends in it
	copied bool   // it is of a mirror's copy
}

const noCell = 0xffffffff // CELL_NONE of abi.h

// Places of a frame, beside 1 + number of the worker that has it.
const (
	frameFree   = 0
	frameHanded = 254 // between workers
	frameSent   = 255 // with the kernel, to be sent
)

// index returns the number of the frame that a descriptor lies in.
func (m *memory) index(d xsk.Desc) uint64 { return d.Addr >> m.shift }

// memory is the packet memory that all workers share, and what they note of its frames.
type memory struct {
	umem   *xsk.UMEM
	shift  uint
	size   int // of a frame
	multi  bool
	mode   xsk.Mode // that was asked for
	frames []frame
}

func newMemory(o xsk.UMEMOptions) (*memory, error) {
	u, err := xsk.NewUMEM(o)
	if err != nil {
		return nil, err
	}
	m := &memory{umem: u, size: o.FrameSize, multi: o.MultiBuffer, mode: o.Mode, frames: make([]frame, u.Frames())}
	for 1<<m.shift < o.FrameSize {
		m.shift++
	}
	return m, nil
}

// placeOf returns where a frame is, while workers write the entries of theirs: it is right of frames that nobody
// moves, which is what the answer is for.
//
//go:norace
func (m *memory) placeOf(i int) uint8 { return m.frames[i].place }

// sentBy reports whether a frame is one that this worker has given to the kernel, as placeOf does.
//
//go:norace
func (m *memory) sentBy(i int, id uint8) bool {
	return m.frames[i].place == frameSent && m.frames[i].by == id
}

// progress publishes how far the packets of legs are: only what the kernel has sent counts.
type progress struct {
	cells  []bpf.XDPCells
	cell   uint32
	number uint16
}

// done notes that a packet has left. Packets of one leg in a row are published by the last one.
func (p *progress) done(cell uint32, number uint16) {
	if cell != p.cell {
		p.publish()
		p.cell = cell
	}
	p.number = number
}

// publish makes known what was noted last. XDP raises the other half of the cell meanwhile. Only a number between the
// one there and the last that was given out counts: any other is of a flow that had the slot before, or came by another
// way. As many as there are numbers may have been lost in between.
func (p *progress) publish() {
	if p.cell == noCell {
		return
	}
	group := p.cell >> 3
	if int(group) < len(p.cells) {
		at := &p.cells[group].Leg[p.cell>>1&3][p.cell&1]
		for {
			old := atomic.LoadUint32(at)
			sent, done := uint16(old>>16), uint16(old)
			if sent-p.number >= sent-done ||
				atomic.CompareAndSwapUint32(at, old, old&0xffff0000|uint32(p.number)) {
				break
			}
		}
	}
	p.cell = noCell
}
