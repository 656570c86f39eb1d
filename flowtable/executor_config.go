package flowtable

import (
	"fmt"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Flags of a port (abi.h: PORT_*).
const (
	PortInline      = 0x01 // bump in the wire: the peer port is the egress
	PortVLANs       = 0x02 // some zone has VLANs on this port
	PortFixChecksum = 0x04 // complete checksums that are still the bare pseudo-header sum
)

// Next hops with a fixed index, and the states of those that look-ups fill (abi.h: NEXTHOP_*).
const (
	NexthopNone = 0
	NexthopHost = 1 // the gateway itself
	NexthopPort = 2 // NexthopPort + port id: that port as it is

	NexthopPending = 2 // gateway known, its MAC not
	NexthopReady   = 3
)

// Classifier answers which rule decides about the opening packet of a flow. It calls audit with the
// rule of every entry that matched but does not decide. ACL is one.
type Classifier interface {
	Classify(key *bpf.XDPClassifyKey, audit func(rule uint32)) uint32
}

// Config is what an Executor works with.
type Config struct {
	Ports      []bpf.XDPPort
	VLANZones  map[uint32]uint8   // zone of tagged frames, by VLANKey
	Ethertypes []uint16           // passed between inline ports beside IP and ARP
	MACs       map[[6]byte]uint16 // identity of a source MAC that the policy names
	Nexthops   []bpf.XDPNexthop   // by index; the caller may change elements between packets
	Table      *Table             // of NewTable; this Executor's alone
	Fragments  int                // groups of four datagrams; a power of two
	Epoch      uint32             // of the policy
	Classifier Classifier         // of the policy
	Rules      int                // of the policy: rule ids run from 1 to Rules
	Stages     Stages             // of the policy
	MSS        MSS                // of ports and policy

	NAT          *NAT                                   // of the policy; nil: nothing is translated
	NATAddresses map[bpf.XDPNatDevice]bpf.XDPNatAddress // the caller may change it between packets
}

// Stages are what a policy asks workers to do (abi.h: STAGE_*).
type Stages struct {
	Force uint8            // with every flow, but for those of the host
	Rules map[uint32]uint8 // beside that with flows of a rule, by its id
}

// of returns the stages of a flow.
func (s *Stages) of(rule uint32, from, to uint8) uint8 {
	if from == ZoneHost || to == ZoneHost {
		return 0
	}
	return s.Force | s.Rules[rule]
}

// VLANKey is the key of Config.VLANZones.
func VLANKey(port uint8, vlan uint16) uint32 { return uint32(port)<<12 | uint32(vlan) }

// rejectBuckets bound the answers to refused packets, 10 a second and hash of the source.
const (
	rejectBuckets = 4096
	rejectRate    = 10
)

// Executor carries packets through the packet path, one at a time. It belongs to one goroutine.
type Executor struct {
	Counters Counters

	cfg     Config
	ports   map[uint32]*bpf.XDPPort
	frags   *fragments
	rejects []bpf.XDPRejectBucket
	audit   func(rule uint32)
	layout  uint32 // of nat_ports: how many there were
	filters bool   // some nat rule lets others in by mappings

	// the packet at hand
	p   packet.Parsed
	w   work
	key bpf.XDPClassifyKey
}

// NewExecutor checks cfg and makes an Executor of it.
func NewExecutor(cfg Config) (*Executor, error) {
	if cfg.Table == nil || cfg.Classifier == nil {
		return nil, fmt.Errorf("make executor: no table or no classifier")
	}
	e := &Executor{
		cfg:     cfg,
		ports:   make(map[uint32]*bpf.XDPPort, len(cfg.Ports)),
		rejects: make([]bpf.XDPRejectBucket, rejectBuckets),
	}
	for i := range cfg.Ports {
		port := &e.cfg.Ports[i]
		if port.Flags&PortInline != 0 {
			if int(port.Peer) >= len(cfg.Nexthops) || cfg.Nexthops[port.Peer].State != NexthopReady {
				return nil, fmt.Errorf("make executor: port %d is inline and its peer, next hop %d, is not there", port.Id, port.Peer)
			}
		}
		e.ports[port.Ifindex] = port
	}
	var err error
	if e.frags, err = newFragments(cfg.Fragments, cfg.Table.cfg.Seed); err != nil {
		return nil, fmt.Errorf("make executor: %w", err)
	}
	e.audit = func(rule uint32) { e.Counters.judged(rule, e.w.tick) }
	e.SetNAT(cfg.NAT)
	e.Publish(cfg.Epoch, cfg.Classifier, cfg.Rules)
	return e, nil
}

// Publish puts another policy in force with the next packet. Counters of rules that both policies
// have are kept: it is the compiler that keeps ids.
func (e *Executor) Publish(epoch uint32, c Classifier, rules int) {
	e.cfg.Epoch, e.cfg.Classifier = epoch, c
	if n := rules + 1 - len(e.Counters.Rules); n > 0 {
		e.Counters.Rules = append(e.Counters.Rules, make([]bpf.XDPRuleCounter, n)...)
	}
}

// SetStages has other stages asked for flows that are opened or judged again from here on. Call it before
// Publish, which has the others judged again.
func (e *Executor) SetStages(s Stages) { e.cfg.Stages = s }

// SetNAT has flows that are opened from here on translated by other rules, nil: by none. Those that there
// are keep their translation, and their ports are taken in the new rules' blocks. Counters of nat rules
// begin anew. Call it before Publish.
func (e *Executor) SetNAT(n *NAT) {
	e.cfg.NAT, e.filters = n, n.Filters()
	var bitmaps []bpf.XDPNatBitmap
	e.Counters.NAT = nil
	if n != nil {
		bitmaps = n.NewBitmaps()
		e.Counters.NAT = make([]bpf.XDPNatCounter, len(n.Rules))
	}
	if t := e.cfg.Table; !t.mapped() { // else it is the plane that numbers them
		if t.tallies == nil && n.LimitsSources() {
			t.SetTallies(make([]bpf.XDPNatTallies, tallyGroups))
		}
		e.layout++
		t.SetNATPorts(e.layout, bitmaps)
		t.RebuildNATPorts(e.layout, n, bitmaps)
	}
}

// Table returns the flow table.
func (e *Executor) Table() *Table { return e.cfg.Table }

// Route is the answer of a route look-up for the packet at hand, for the destination that Routed names. It
// is used only if the packet needs one, and never by inline ports.
type Route struct {
	Nexthop uint32        // index into Config.Nexthops, which tells the zone; or NexthopNone
	Reason  bpf.XDPReason // with NexthopNone: why there is none
	Local   bool          // the destination in the packet, before any translation, is the gateway's own
}

// Outcome is what happens to a packet.
type Outcome uint8

const (
	Drop    Outcome = iota
	Pass            // to the kernel's stack, unchanged but for its MSS
	Forward         // out by Result.Port
	Answer          // Result.Frame goes back by the port of arrival; the packet itself is dropped
)

// String returns the outcome's name.
func (v Outcome) String() string {
	return [...]string{"drop", "pass", "forward", "answer"}[v&3]
}

// Result is what Process says of a packet.
type Result struct {
	Verdict  Outcome
	Reason   bpf.XDPReason // REASON_NONE if it was not refused
	Rule     uint32        // that decided: of the flow, else of the refusal; 0 = none
	Action   bpf.XDPAction // of that rule; ACTION_NONE if none was asked
	Pass     uint8         // 1 + pass cause; 0 = not passed, or passed with a Reason for its ICMP error
	Port     uint8         // id of the egress, valid iff Verdict is Forward or Answer
	From, To uint8         // zones, once known
	Stages   uint8         // what a worker does with the packet; 0 = none has it, or it does not leave by a port
	Leg      uint8         // 1 + leg of the flow that the packet met; 0 = none
	Nexthop  uint32        // as far as it got
	Word     uint64        // of that flow, afterwards
	Flow     FlowID        // valid iff Leg is not 0
	Frame    []byte        // what leaves, valid iff Verdict is Forward or Answer; or Pass and Xlat is not 0: what the kernel gets

	Xlat            uint8  // XLAT_*: what of the packet is translated; 0 if it is refused
	Outer           Tuple  // with which it leaves, in the packet's direction; valid iff Xlat is not 0
	SourceRule      uint32 // nat rule for the source of the flow that this packet opened or would have; 0 = none
	DestinationRule uint32 // likewise, for its destination
}
