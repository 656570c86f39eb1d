package dataplane

import (
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// editionMap is the map that holds the variable `edition` of packet.h.
const editionMap = ".data.edition"

// edition says under which number the programs of a generation run, and with which bank of roots.
type edition struct {
	held *ebpf.Map
	word *uint64 // in it
	mem  memory
}

// newEdition makes one that begins with bank 0.
func newEdition(spec *ebpf.MapSpec, epoch uint32) (*edition, error) {
	if spec == nil {
		return nil, fmt.Errorf("make map %s: the program object has none: it does not fit this binary", editionMap)
	}
	spec = spec.Copy()
	spec.Flags |= unix.BPF_F_MMAPABLE // as the loader does for variables
	e := new(edition)
	var err error
	if e.held, err = ebpf.NewMap(spec); err != nil {
		return nil, fmt.Errorf("make map %s: %w", editionMap, err)
	}
	words, err := view[uint64](&e.mem, e.held)
	if err != nil {
		e.close()
		return nil, err
	}
	e.word = &words[0]
	e.store(epoch, 0)
	return e, nil
}

// store has the next packet run under another number and bank.
func (e *edition) store(epoch, bank uint32) {
	atomic.StoreUint64(e.word, uint64(bank)<<32|uint64(epoch))
}

// bank is that of the next packet.
func (e *edition) bank() uint32 { return uint32(atomic.LoadUint64(e.word) >> 32) }

func (e *edition) close() {
	if e == nil {
		return
	}
	e.held.Close() // the programs hold it
	e.mem.close()
}
