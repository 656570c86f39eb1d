package dataplane

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// memory is the daemon's view of the mapped maps. XDP reads and writes the same bytes, so fields that
// both sides use are loaded and stored atomically.
type memory struct {
	flows4   []bpf.XDPFlow4Group
	flows6   []bpf.XDPFlow6Group
	gateway  []bpf.XDPGatewayState
	nexthops []bpf.XDPNexthop
	ports    []bpf.XDPPort
	portMSS  []uint64 // by port id
	sims     []bpf.XDPSim
	cells    []bpf.XDPCells
	tallies  []bpf.XDPNatTallies
	queues   []bpf.XDPWorkerQueue
	credits  []Credit

	mapped [][]byte
}

// Credit is what the daemon counts of a rule, beside XDP.
type Credit struct {
	Packets, Bytes uint64 // of flows that the daemon has freed
	Aged, Killed   uint64 // how many those are, by why
	Unlogged       uint64 // events of their ends that were left out
	Taken, Settled uint64 // of no rule: events that the daemon has taken, and that it has written or counted as lost
}

const creditsName = "credits"

func creditsSpec(rules uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: creditsName, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(unsafe.Sizeof(Credit{})),
		MaxEntries: rules, Flags: unix.BPF_F_MMAPABLE,
	}
}

func mapMemory(maps map[string]*ebpf.Map, credits *ebpf.Map) (m *memory, err error) {
	m = &memory{}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.flows4, err = view[bpf.XDPFlow4Group](m, maps[bpf.XDPMapFlows4]); err != nil {
		return nil, err
	}
	if m.flows6, err = view[bpf.XDPFlow6Group](m, maps[bpf.XDPMapFlows6]); err != nil {
		return nil, err
	}
	if m.gateway, err = view[bpf.XDPGatewayState](m, maps[bpf.XDPMapGateway]); err != nil {
		return nil, err
	}
	if m.nexthops, err = view[bpf.XDPNexthop](m, maps[bpf.XDPMapNexthops]); err != nil {
		return nil, err
	}
	if m.ports, err = view[bpf.XDPPort](m, maps[bpf.XDPMapPorts]); err != nil {
		return nil, err
	}
	if m.portMSS, err = view[uint64](m, maps[bpf.XDPMapPortMss]); err != nil {
		return nil, err
	}
	if m.sims, err = view[bpf.XDPSim](m, maps[bpf.XDPMapSims]); err != nil {
		return nil, err
	}
	if m.cells, err = view[bpf.XDPCells](m, maps[bpf.XDPMapLegCells]); err != nil {
		return nil, err
	}
	if m.queues, err = view[bpf.XDPWorkerQueue](m, maps[bpf.XDPMapWorkerQueues]); err != nil {
		return nil, err
	}
	if m.tallies, err = view[bpf.XDPNatTallies](m, maps[bpf.XDPMapNatTallies]); err != nil {
		return nil, err
	}
	if m.credits, err = view[Credit](m, credits); err != nil {
		return nil, err
	}
	return m, nil
}

// view maps an array that was made with BPF_F_MMAPABLE. Elements of such an array lie at multiples of
// 8 bytes, so T must have a size that is one.
func view[T any](m *memory, bm *ebpf.Map) ([]T, error) {
	var t T
	if bm == nil || bm.ValueSize() != uint32(unsafe.Sizeof(t)) || unsafe.Sizeof(t)%8 != 0 {
		return nil, fmt.Errorf("map %v: its value is no %T: the program object does not fit this binary", bm, t)
	}
	size := int(bm.ValueSize()) * int(bm.MaxEntries())
	page := os.Getpagesize()
	b, err := unix.Mmap(bm.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %v into memory: %w", bm, err)
	}
	m.mapped = append(m.mapped, b)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), bm.MaxEntries()), nil
}

func (m *memory) close() {
	for _, b := range m.mapped {
		// Munmap of what Mmap returned cannot fail.
		_ = unix.Munmap(b)
	}
	*m = memory{}
}

// storeWords copies src over dst in 64-bit atomic stores, the first word last, so that a reader who
// finds the new first word finds the rest too. T is a multiple of 8 bytes and aligned to 8.
func storeWords[T any](dst, src *T) {
	n := int(unsafe.Sizeof(*dst) / 8)
	d := unsafe.Slice((*uint64)(unsafe.Pointer(dst)), n)
	s := unsafe.Slice((*uint64)(unsafe.Pointer(src)), n)
	for i := n - 1; i >= 0; i-- {
		atomic.StoreUint64(&d[i], s[i])
	}
}

// Flows is the flow table's memory, shared with XDP.
type Flows struct {
	Groups4 []bpf.XDPFlow4Group
	Groups6 []bpf.XDPFlow6Group
	// Gateway holds the counts of entries; all its fields are to be accessed atomically.
	Gateway  *bpf.XDPGatewayState
	HashSeed uint64
	Sizes    Sizes
}

// Flows returns the flow table's memory. It is valid until Close: whoever reads it must have stopped
// by then, since an access to what is no longer mapped ends the process.
func (p *Plane) Flows() Flows {
	return Flows{p.mem.flows4, p.mem.flows6, &p.mem.gateway[0], p.seed, p.sizes}
}

// Table returns a view of the flow table, to list and to scan. It is valid until Close, as Flows is.
// The flows beside the groups are found in it, and not listed: see Overflow and AgeOverflow.
func (p *Plane) Table() (*flowtable.Table, error) {
	t, err := flowtable.MapTable(flowtable.TableConfig{
		Seed: p.seed, StripeBits: p.sizes.StripeBits,
		FlowsMax: p.sizes.FlowsMax, HalfOpenMax: p.sizes.HalfOpenMax, OverflowMax: int64(p.sizes.OverflowMax),
	}, p.mem.flows4, p.mem.flows6, &p.mem.gateway[0])
	if err != nil {
		return nil, err
	}
	t.SetTallies(p.mem.tallies)
	t.SetBeside(overflowAt[bpf.XDPFlow4Key, bpf.XDPFlow4](p.maps[bpf.XDPMapOverflow4]), overflowAt[bpf.XDPFlow6Key, bpf.XDPFlow6](p.maps[bpf.XDPMapOverflow6]))
	return t, nil
}

// Credits returns memory for what the daemon counts, by rule id; XDP knows nothing of it. It lives as
// long as the flow table, and is valid until Close.
func (p *Plane) Credits() []Credit { return p.mem.credits }

// Nexthops returns the next-hop table, indexed by what a flow's leg holds. XDP and the route watcher
// write it: load fields atomically. Valid until Close.
func (p *Plane) Nexthops() []bpf.XDPNexthop { return p.mem.nexthops }

// Sim returns the control block of a plane that was opened with Simulate. Valid until Close.
func (p *Plane) Sim() *bpf.XDPSim { return &p.mem.sims[0] }
