package dataplane

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/softdpu/softdpu/bpf"
)

const (
	groupSlots     = 4    // GROUP_SLOTS of abi.h
	stripeBitsMax  = 10   // log2 of STRIPES of maps.h
	fragmentGroups = 1024 // 4,096 datagrams
	flowsLimit     = 1 << 27
	rulesLimit     = 1 << 24 // 24 bits of a verdict
	rulesLeast     = 1 << 14 // policies that follow may have more rules; 768 KiB a CPU
)

// Options say how large the tables are. They hold for the life of a Plane.
type Options struct {
	FlowsMax      int     // entries of both families together; 0 = 1,000,000. A translated flow has two
	HalfOpenShare float64 // of FlowsMax that half-open flows may fill, in (0, 1]; 0 = 0.5
	Rules         int     // rules of the first policy; the counters have room for twice as many, and 16,384 at least
	EventRate     uint32  // events a second, per rule or reason, and CPU; 0 = 1000
	DropEvents    uint64  // reasons (bits by bpf.XDPReason) whose drops are events, though no rule gave them
	Workers       bool    // flows may need workers; a generation can ask for that later too
	HashSeed      uint64  // secret of the flow hash; 0 = random
	Ethertypes    []uint16
	// Keep lets the packet path outlive the process, by pins, and takes over what an earlier run left in
	// the network namespace. Ports are those that Attach will be given, and Numbers what the function of
	// that name returned when the first policy was compiled, if that goes on with them: else the numbers in
	// flows would mean something else, and they start afresh.
	Keep    bool
	Ports   []PortConfig
	Numbers NumbersText
	// Simulate loads programs that take clock, arrival port and routes from Plane.Sim instead of the
	// kernel. Such a plane attaches to nothing: its ports come from Place.
	Simulate bool
	// OnPort, if not nil, is told what becomes of the ports' devices. It must not call the plane.
	OnPort func(PortEvent)
}

// Sizes are what Options come to.
type Sizes struct {
	FlowsMax, HalfOpenMax int64
	Groups                uint32 // of four slots, in each family; a power of two
	StripeBits            uint32 // log2 of the creation locks in use
	OverflowMax           uint32 // entries of each overflow table
	FragmentGroups        uint32
	Rules                 uint32 // rule ids that have counters
}

// Sizes computes what the options come to. It is an error if one of them is out of its range.
func (o Options) Sizes() (Sizes, error) {
	if o.FlowsMax == 0 {
		o.FlowsMax = 1_000_000
	}
	if o.HalfOpenShare == 0 {
		o.HalfOpenShare = 0.5
	}
	switch {
	case o.FlowsMax < 0 || o.FlowsMax > flowsLimit:
		return Sizes{}, fmt.Errorf("size flow table: flows.max is %d, it must be between 1 and %d", o.FlowsMax, flowsLimit)
	case !(o.HalfOpenShare > 0 && o.HalfOpenShare <= 1):
		return Sizes{}, fmt.Errorf("size flow table: flows.half_open_share is %v, it must be above 0 and at most 1", o.HalfOpenShare)
	case o.Rules < 0 || o.Rules >= rulesLimit:
		return Sizes{}, fmt.Errorf("size counters: %d rules, at most %d are possible", o.Rules, rulesLimit-1)
	case len(o.Ethertypes) > len(bpf.XDPGatewayState{}.Ethertypes):
		return Sizes{}, errors.New("set ethertypes: at most 8 are possible")
	}
	// Twice as many slots as flows, in each family: either may hold them all.
	groups := ceilPow2(uint64(o.FlowsMax) * 2 / groupSlots)
	return Sizes{
		FlowsMax:       int64(o.FlowsMax),
		HalfOpenMax:    max(1, int64(float64(o.FlowsMax)*o.HalfOpenShare)),
		Groups:         groups,
		StripeBits:     stripeBits(groups),
		OverflowMax:    uint32(min(1<<16, max(1024, o.FlowsMax/64))),
		FragmentGroups: fragmentGroups,
		Rules:          min(rulesLimit, max(rulesLeast, ceilPow2(uint64(o.Rules+1)*2))),
	}, nil
}

// stripeBits returns log2 of the creation locks that tables of so many groups use. A key's two groups must
// share one; 16 groups to each keep them apart otherwise.
func stripeBits(groups uint32) uint32 {
	return uint32(min(stripeBitsMax, max(0, bits.Len32(groups)-1-4)))
}

// ceilPow2 returns the least power of two that is not below n; 2 at least, so that there are two
// candidate groups for a key.
func ceilPow2(n uint64) uint32 { return uint32(1) << max(1, bits.Len64(max(n, 1)-1)) }
