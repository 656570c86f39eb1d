package flowtable

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
)

// GroupSlots is the number of flows in a group.
const GroupSlots = 4

// TableConfig says how large a flow table is and how it hashes.
type TableConfig struct {
	Groups4, Groups6 int    // groups of four flows of a heap table; powers of two
	Seed             uint64 // secret of the hash
	StripeBits       uint32 // log2 of the creation locks: low group bits that a key's two groups share
	FlowsMax         int64  // flows of both families, and their aliases
	HalfOpenMax      int64  // of them half-open
	OverflowMax      int64  // flows of each family beside their groups
}

// Table is the flow table: groups of four flows, each key in one of two groups, over memory with the
// layout of bpf/abi.h.
//
// A heap table (NewTable) belongs to one Executor and is used by one goroutine at a time. A mapped
// table (MapTable) is the XDP program's: any number of goroutines may list it, one may Scan it, and
// nobody may create in it, because creation needs a lock that only the kernel can take. The flows
// that overflow a mapped table are in maps of the kernel, which Table reads one by one if SetBeside says how.
type Table struct {
	// Counters of what became of new flows in this Table; those of a mapped table are in the program's
	// own map.
	Counters bpf.XDPTableCounter

	cfg          TableConfig
	groups4      []bpf.XDPFlow4Group
	groups6      []bpf.XDPFlow6Group
	mask4, mask6 uint32
	state        *bpf.XDPGatewayState
	overflow4    map[bpf.XDPFlow4Key]*bpf.XDPFlow4
	overflow6    map[bpf.XDPFlow6Key]*bpf.XDPFlow6
	beside4      func(bpf.XDPFlow4Key) *bpf.XDPFlow4 // see SetBeside
	beside6      func(bpf.XDPFlow6Key) *bpf.XDPFlow6
	marked       []mark // of the scan under way, kept for its capacity
	schedule     schedule
	natLayout    uint32
	natPorts     natPorts
	tallies      natTallies
}

// NewTable makes an empty table on the heap.
func NewTable(cfg TableConfig) (*Table, error) {
	if cfg.Groups4 <= 0 || cfg.Groups6 <= 0 {
		return nil, fmt.Errorf("make flow table: %d and %d groups: each family needs one", cfg.Groups4, cfg.Groups6)
	}
	t, err := MapTable(cfg, make([]bpf.XDPFlow4Group, cfg.Groups4), make([]bpf.XDPFlow6Group, cfg.Groups6),
		new(bpf.XDPGatewayState))
	if err != nil {
		return nil, err
	}
	t.overflow4 = make(map[bpf.XDPFlow4Key]*bpf.XDPFlow4)
	t.overflow6 = make(map[bpf.XDPFlow6Key]*bpf.XDPFlow6)
	return t, nil
}

// MapTable makes a table over memory that others own and keep while the table is in use: the mapped
// values of the maps flows4, flows6 and gateway. The sizes are those of the slices; cfg's are not
// looked at.
func MapTable(cfg TableConfig, groups4 []bpf.XDPFlow4Group, groups6 []bpf.XDPFlow6Group, state *bpf.XDPGatewayState) (*Table, error) {
	cfg.Groups4, cfg.Groups6 = len(groups4), len(groups6)
	for _, n := range []int{cfg.Groups4, cfg.Groups6} {
		if n <= 0 || n&(n-1) != 0 || n > 1<<30 {
			return nil, fmt.Errorf("make flow table: %d groups: not a power of two up to 2^30", n)
		}
	}
	if cfg.StripeBits > log2(min(cfg.Groups4, cfg.Groups6)) {
		return nil, fmt.Errorf("make flow table: %d stripe bits: more than the groups have", cfg.StripeBits)
	}
	return &Table{
		cfg:     cfg,
		groups4: groups4, mask4: uint32(len(groups4) - 1),
		groups6: groups6, mask6: uint32(len(groups6) - 1),
		state: state,
	}, nil
}

// Groups4 reads the mapped value of the map flows4 as groups. The slice aliases mem.
func Groups4(mem []byte) ([]bpf.XDPFlow4Group, error) {
	return groups[bpf.XDPFlow4Group](mem)
}

// Groups6 reads the mapped value of the map flows6 as groups. The slice aliases mem.
func Groups6(mem []byte) ([]bpf.XDPFlow6Group, error) {
	return groups[bpf.XDPFlow6Group](mem)
}

func groups[G any](mem []byte) ([]G, error) {
	var g G
	size := int(unsafe.Sizeof(g))
	if len(mem) < size || uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%unsafe.Alignof(uint64(0)) != 0 {
		return nil, fmt.Errorf("read flow groups of %d bytes: too short or not aligned for groups of %d", len(mem), size)
	}
	// Mapped memory ends with a page, so it may hold part of a group behind the last one.
	return unsafe.Slice((*G)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/size), nil
}

// mapped reports whether the table is the XDP program's.
func (t *Table) mapped() bool { return t.overflow4 == nil }

// State returns the counts that the table shares with the XDP program. Use atomic loads.
func (t *Table) State() *bpf.XDPGatewayState { return t.state }

// Flows and HalfOpen return how many flows the table holds, and how many of them are half-open; Flows6
// how many of them are IPv6. Aliases count as flows, but for HalfOpen (State().Aliases).
func (t *Table) Flows() int64    { return atomic.LoadInt64(&t.state.Flows) }
func (t *Table) Flows6() int64   { return atomic.LoadInt64(&t.state.Flows6) }
func (t *Table) HalfOpen() int64 { return atomic.LoadInt64(&t.state.HalfOpen) }

// routeChanged returns the tick before which looked-up routes are stale.
func (t *Table) routeChanged() uint32 { return atomic.LoadUint32(&t.state.RouteChanged) }

// FlowID names one flow for its lifetime.
type FlowID struct {
	Family     uint8
	Overflow   bool // beside the groups: Group and Slot are 0
	Slot       uint8
	Group      uint32
	Generation uint32
}

// entry points at one flow of either family.
type entry struct {
	core  *bpf.XDPFlowCore
	count *[2]bpf.XDPFlowCount
	leg   *[2]bpf.XDPLeg
	flow4 *bpf.XDPFlow4 // nil for IPv6
	flow6 *bpf.XDPFlow6 // nil for IPv4
	id    FlowID        // without generation
}

func entry4(f *bpf.XDPFlow4, id FlowID) entry {
	id.Family = 4
	return entry{core: &f.Core, count: &f.Count, leg: &f.Leg, flow4: f, id: id}
}

func entry6(f *bpf.XDPFlow6, id FlowID) entry {
	id.Family = 6
	return entry{core: &f.Core, count: &f.Count, leg: &f.Leg, flow6: f, id: id}
}

// word loads the flow word.
func (e *entry) word() uint64 { return atomic.LoadUint64(&e.core.Word) }

// opener returns the index of the opener's leg.
func (e *entry) opener() uint8 { return openerOf(e.word()) }

// openerOf returns the index of the opener's leg of a flow with this word.
func openerOf(word uint64) uint8 {
	if word&WordHiOpened != 0 {
		return 1
	}
	return 0
}

// tuple returns the direction of the endpoint `sender`.
func (e *entry) tuple(sender uint8) Tuple {
	if e.flow4 != nil {
		return tuple4(&e.flow4.Key, sender)
	}
	return tuple6(&e.flow6.Key, sender)
}

// at returns the entry in a slot.
func (t *Table) at(family uint8, group uint32, slot uint8) entry {
	id := FlowID{Group: group, Slot: slot}
	if family == 4 {
		return entry4(&t.groups4[group].Slot[slot], id)
	}
	return entry6(&t.groups6[group].Slot[slot], id)
}

// hash returns the table's hash of a key.
func (t *Table) hash(k *flowKey) uint32 {
	if k.family == 4 {
		return hash4(&k.v4, t.cfg.Seed)
	}
	return hash6(&k.v6, t.cfg.Seed)
}

func (t *Table) candidates(k *flowKey) candidates {
	if k.family == 4 {
		return candidatesOf(t.hash(k), t.mask4, t.cfg.StripeBits)
	}
	return candidatesOf(t.hash(k), t.mask6, t.cfg.StripeBits)
}

// find returns the entry with the key: a flow or an alias. The overflow is asked last, and only while it
// holds something.
func (t *Table) find(k *flowKey) (entry, bool) {
	c := t.candidates(k)
	if k.family == 4 {
		for _, g := range c.group {
			for i := range t.groups4[g].Slot {
				f := &t.groups4[g].Slot[i]
				if atomic.LoadUint64(&f.Core.Word)&WordStateMask != 0 && f.Key == k.v4 {
					return entry4(f, FlowID{Group: g, Slot: uint8(i)}), true
				}
			}
		}
		if len(t.overflow4) > 0 {
			if f := t.overflow4[k.v4]; f != nil {
				return entry4(f, FlowID{Overflow: true}), true
			}
		}
		return entry{}, false
	}
	for _, g := range c.group {
		for i := range t.groups6[g].Slot {
			f := &t.groups6[g].Slot[i]
			if atomic.LoadUint64(&f.Core.Word)&WordStateMask != 0 && f.Key == k.v6 {
				return entry6(f, FlowID{Group: g, Slot: uint8(i)}), true
			}
		}
	}
	if len(t.overflow6) > 0 {
		if f := t.overflow6[k.v6]; f != nil {
			return entry6(f, FlowID{Overflow: true}), true
		}
	}
	return entry{}, false
}
