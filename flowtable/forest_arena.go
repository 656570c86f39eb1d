package flowtable

import (
	"encoding/binary"
	"hash/maphash"
	"sync"

	"github.com/softdpu/softdpu/bpf"
)

// forestGap is how far apart entries are numbered at first: between two there is room for others.
const forestGap = 4

// forestArena is the memory that the versions of a forest share. A version never changes what another one uses.
type forestArena struct {
	memory       Forest
	set4         []bpf.XDPSet4Node
	set6         []bpf.XDPSet6Node
	base         forestPlace // of its memory in the maps
	base4, base6 uint32
	slots        [2]forestSlots
	spread       [2]forestExtentRange // where the entries of each family have their places
	alternatives [2]int               // of boxes

	mu      sync.Mutex
	newest  *aclForest
	changes int // entries that came, went or moved since it was compiled
	busy    [forestArrays]forestBits
	order   []bpf.XDPForestEntry // what entries answer, by their places: one more is their number
	notes   []forestNote         // of the same
	known   map[forestSetKey]*forestSet
	placed  map[forestPlaced]*forestSet // those and others, by where they stand
	seed    maphash.Seed
	count   []int32 // scratch of the choice of windows
}

// The arrays of an arena.
const (
	forestInNodes = iota
	forestInRules4
	forestInRules6
	forestInOrder
	forestInChecks
	forestInSet4
	forestInSet6
	forestArrays
)

// forestExtentRange are the places from first to before end.
type forestExtentRange struct{ first, end uint32 }

// forestNote is what is remembered of an entry beside what the maps hold.
type forestNote struct {
	trees   uint32    // that hold rules of it, a bit each
	context [2]uint16 // what its rules ask beside, which they do not say
}

// forestAuditTree is the number of the tree of audit entries.
const forestAuditTree = uint8(31)

// forestSetKey names a set by what it holds.
type forestSetKey [2]uint64

// forestPlaced names a set by its array and first node.
type forestPlaced struct {
	array int
	first uint32
}

// forestSet is a large set in memory.
type forestSet struct {
	key          forestSetKey
	array        int // forestInSet4 or forestInSet6
	first, nodes uint32
	users        int
}

// room makes room for the places of a family's entries, which begin as far apart as forestGap.
func (f *aclForest) room(at, items int) {
	first := uint32(len(f.order))
	n := (items+1)*forestGap + items/4 + 256
	f.order = append(f.order, make([]bpf.XDPForestEntry, n)...)
	f.notes = append(f.notes, make([]forestNote, n)...)
	f.spread[at] = forestExtentRange{first, first + uint32(n)}
}

// settle gives a forest that was compiled room for changes.
func (f *aclForest) settle(a *ACL) {
	f.newest = f
	f.busy[forestInOrder].setTo(0, 0, len(f.order))
	for i := range f.family {
		for _, place := range f.family[i].places {
			if place != forestNowhere {
				f.busy[forestInOrder].set(place, 1)
			}
		}
	}
	f.memory.Nodes = forestSpared(&f.busy[forestInNodes], f.memory.Nodes, len(f.memory.Nodes)+4096)
	f.memory.Rules4 = forestSpared(&f.busy[forestInRules4], f.memory.Rules4, len(f.memory.Rules4)/2+256)
	f.memory.Rules6 = forestSpared(&f.busy[forestInRules6], f.memory.Rules6, len(f.memory.Rules6)/2+256)
	f.memory.Checks = forestSpared(&f.busy[forestInChecks], f.memory.Checks, len(f.memory.Checks)/2+256)
	a.set4 = forestSpared(&f.busy[forestInSet4], a.set4, len(a.set4)/4+256)
	a.set6 = forestSpared(&f.busy[forestInSet6], a.set6, len(a.set6)/4+256)
	f.set4, f.set6, f.base4, f.base6 = a.set4, a.set6, a.base4, a.base6

	f.seed = maphash.MakeSeed()
	f.known = make(map[forestSetKey]*forestSet, len(a.sets))
	f.placed = make(map[forestPlaced]*forestSet, len(a.sets))
	for i := range a.sets {
		s := &a.sets[i]
		set := &forestSet{key: f.setKey(s.ranges, int(s.dim), s.family), array: forestInSet4, first: s.first - f.base4, nodes: s.nodes}
		if emitWide(s.family, s.dim) {
			set.array, set.first = forestInSet6, s.first-f.base6
		}
		f.known[set.key] = set
		f.placed[forestPlaced{set.array, set.first}] = set
	}
	a.sets = nil
	for i := range f.family {
		for _, place := range f.family[i].places {
			if place != forestNowhere {
				for _, c := range f.checksOf(place) {
					array, first := f.setOf(&c, i)
					f.placed[forestPlaced{array, first}].users++
				}
			}
		}
	}
}

// setOf tells where the set of a check stands.
func (f *forestArena) setOf(c *bpf.XDPForestCheck, family int) (array int, first uint32) {
	if field := bpf.XDPSetField(c.Field); family == 1 && (field == bpf.XDPSetFieldSET_SRC || field == bpf.XDPSetFieldSET_DST) {
		return forestInSet6, c.First - f.base6
	}
	return forestInSet4, c.First - f.base4
}

// checksOf returns the checks of the entry at a place.
func (f *forestArena) checksOf(place uint32) []bpf.XDPForestCheck {
	if !f.notes[place].checked() {
		return nil
	}
	at := f.order[place].Check - f.base.checks
	end := at + 1
	for f.memory.Checks[end-1].Last == 0 {
		end++
	}
	return f.memory.Checks[at:end]
}

// forestChecked is the bit of a note's trees that says that the entry has checks.
const forestChecked = 1 << 30

func (n *forestNote) checked() bool { return n.trees&forestChecked != 0 }

// setKey returns the name of a set.
func (f *forestArena) setKey(ranges []aclRange, dim int, family uint8) (key forestSetKey) {
	var h [2]maphash.Hash
	var b [32]byte
	for i := range h {
		h[i].SetSeed(f.seed)
		h[i].WriteByte(byte(i))
		h[i].WriteByte(byte(dim))
		h[i].WriteByte(family)
	}
	for _, r := range ranges {
		for i, n := range [4]uint64{r.first.hi, r.first.lo, r.last.hi, r.last.lo} {
			binary.LittleEndian.PutUint64(b[8*i:], n)
		}
		h[0].Write(b[:])
		h[1].Write(b[:])
	}
	return forestSetKey{h[0].Sum64(), h[1].Sum64()}
}

// forestSpared returns an array with free places behind what it holds.
func forestSpared[T any](busy *forestBits, of []T, spare int) []T {
	to := make([]T, len(of)+spare)
	copy(to, of)
	busy.setTo(0, uint32(len(of)), len(to))
	return to
}
