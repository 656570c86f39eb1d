package sim

import (
	"fmt"
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// Engine says what executes the compiled policy.
type Engine string

const (
	EngineGo  Engine = "go"  // the executor of package flowtable
	EngineXDP Engine = "xdp" // the XDP program, by BPF_PROG_TEST_RUN; needs root
)

// Config says what is simulated. Only Policy is required.
type Config struct {
	Policy        *firewall.Compiled
	Engine        Engine      // "" = EngineGo
	Ports         []Port      // none: lan and wan, joined inline
	Inline        [][2]string // names of ports that are joined as a bump in the wire; the others are routed
	Routes        []Route     // of routed ports
	Devices       []Device    // addresses that masquerading writes; those of Ports need not be repeated
	Ethertypes    []uint16    // host order; passed between inline ports beside IP, ARP and neighbour discovery
	FlowsMax      int         // entries of both families; 0 = 65,536
	HalfOpenShare float64     // of FlowsMax that half-open flows may fill, in (0, 1]; 0 = 0.5
	Timeouts      flowtable.Timeouts
	ForceStages   uint8  // stages of every flow, but for those of the host: bits bpf.StageForward and so on
	Seed          uint64 // of the flow hash; 0 = a fixed one, so that runs are alike
	// Tolerant allows what the packet path refuses although its addresses and ports can be read:
	// segments without a connection, loopback addresses, wrong checksums. Result.Tolerated says why a
	// gateway would have refused the packet. For inline ports only.
	Tolerant bool
}

const (
	defaultFlows = 65_536
	defaultSeed  = 0x9e3779b97f4a7c15

	// MaxFrame is the length of the longest frame that can hold something: two VLAN tags and the
	// longest IPv6 packet. What is behind it in a longer one is padding, and left away.
	MaxFrame = 14 + 8 + 40 + 65_535

	// ageInterval is how far the clock moves between two ageing scans at least, ageStride at most: ticks
	// are compared by signed difference, and the longest time-out is 24 days.
	ageInterval = uint64(1e9)
	ageStride   = uint64(12 * 24 * 3600 * 1e9)
)

// Verdict is what happens to a packet.
type Verdict uint8

const (
	Drop    Verdict = iota
	Pass            // to the kernel's stack, unchanged but for what is translated
	Forward         // out by Result.Out
	Answer          // dropped, and Result.Frame goes back by the port of arrival
)

// String returns the verdict's name.
func (v Verdict) String() string { return [...]string{"drop", "pass", "forward", "answer"}[v&3] }

// Result is what Packet says of a frame. Both engines say the same.
type Result struct {
	Verdict   Verdict
	Reason    bpf.XDPReason      // REASON_NONE if it was not refused
	RuleID    uint32             // that decided, 0 = none
	Rule      *firewall.RuleInfo // the same; rule 0 is "none"
	Action    bpf.XDPAction      // of that rule; ACTION_NONE if none was asked
	Cause     bpf.XDPPassCause   // why it goes to the kernel; valid iff Passed
	Passed    bool               // to the kernel, not refused. (A refused one may go there for its ICMP error.)
	Out       string             // name of the port by which Frame leaves; "host"; "" if the packet goes nowhere
	Tier      string             // where its flow lives
	Frame     []byte             // what leaves, or goes to the kernel; valid until the next call, nil on Drop
	NAT       *Translation       // what it leaves with; nil if it is not translated or refused
	Tolerated bpf.XDPReason      // why a gateway would have refused it, REASON_NONE unless Config.Tolerant
}

// Sim is a gateway without ports. It belongs to one goroutine.
type Sim struct {
	cfg    Config
	policy *firewall.Compiled
	ports  map[string]*placed
	byID   []*placed
	routes routeTable
	hops   []bpf.XDPNexthop
	engine engine
	sizes  dataplane.Sizes
	epoch  uint32

	translates bool       // some policy has translated
	routed     netip.Addr // destination that the last packet's route was looked up for

	now, aged uint64
	started   bool
	frame     []byte // room for the frame and what is put in front of or behind it
}

// An engine executes the packet path.
type engine interface {
	// process decides about frame, whose bytes it may change and whose capacity leaves room for a tag.
	process(now uint64, ifindex uint32, frame []byte, route flowtable.Route) (outcome, error)
	// routed says for which destination process will want the route.
	routed(now uint64, ifindex uint32, frame []byte, local bool) (netip.Addr, bool)
	publish(epoch uint32, policy *firewall.Compiled, rules pipes, stages flowtable.Stages) error
	table() *flowtable.Table
	age(now uint32, timeouts *flowtable.Timeouts) error
	close() error
}

// outcome is what an engine says of a frame.
type outcome struct {
	verdict Verdict
	reason  bpf.XDPReason
	rule    uint32
	action  bpf.XDPAction
	pass    uint8 // 1 + pass cause, 0 = not passed
	nexthop uint32
	stages  uint8  // that a worker would lead it through; 0 = it needs none
	xlat    uint8  // XLAT_*: what of it is translated
	frame   []byte // valid iff verdict is not Drop
}

// New makes a Sim. With EngineXDP it loads programs and maps; Close frees them.
func New(cfg Config) (*Sim, error) {
	if cfg.Policy == nil {
		return nil, fmt.Errorf("make simulation: no policy")
	}
	if len(cfg.Ports) == 0 {
		cfg.Ports = []Port{{Name: "lan"}, {Name: "wan"}}
		cfg.Inline = [][2]string{{"lan", "wan"}}
	}
	if cfg.FlowsMax == 0 {
		cfg.FlowsMax = defaultFlows
	}
	if cfg.Seed == 0 {
		cfg.Seed = defaultSeed
	}
	s := &Sim{cfg: cfg, policy: cfg.Policy, epoch: 1, frame: make([]byte, MaxFrame+8)}
	if err := s.place(); err != nil {
		return nil, fmt.Errorf("make simulation: %w", err)
	}
	if err := s.layRoutes(); err != nil {
		return nil, fmt.Errorf("make simulation: %w", err)
	}
	rules, err := pipesOf(cfg.Policy)
	if err != nil {
		return nil, fmt.Errorf("make simulation: %w", err)
	}
	s.translates = rules.nat != nil
	addresses, err := s.natAddresses()
	if err != nil {
		return nil, fmt.Errorf("make simulation: %w", err)
	}
	options := dataplane.Options{
		FlowsMax: cfg.FlowsMax, HalfOpenShare: cfg.HalfOpenShare, Rules: len(cfg.Policy.Rules) - 1,
		HashSeed: cfg.Seed, Ethertypes: cfg.Ethertypes, Simulate: true,
	}
	if s.sizes, err = options.Sizes(); err != nil {
		return nil, fmt.Errorf("make simulation: %w", err)
	}
	switch cfg.Engine {
	case EngineGo, "":
		s.engine, err = newGoEngine(s, rules, addresses)
	case EngineXDP:
		s.engine, err = newXDPEngine(s, options, rules, addresses)
	default:
		err = fmt.Errorf("engine %q is neither go nor xdp", cfg.Engine)
	}
	if err != nil {
		return nil, fmt.Errorf("make simulation: %w", err)
	}
	return s, nil
}

// Close frees what New made.
func (s *Sim) Close() error { return s.engine.close() }

// Policy returns the policy in force.
func (s *Sim) Policy() *firewall.Compiled { return s.policy }

// Table returns the flow table, to look at between packets.
func (s *Sim) Table() *flowtable.Table { return s.engine.table() }

// Publish puts another policy in force with the next packet; flows are judged again as they go on. Its
// zones, ports and MAC identities must be those of the policy that New got.
func (s *Sim) Publish(policy *firewall.Compiled) error {
	if !sameWorld(s.policy, policy) {
		return fmt.Errorf("publish policy: its zones, ports or MACs are others than the running policy's")
	}
	rules, err := pipesOf(policy)
	if err != nil {
		return fmt.Errorf("publish policy: %w", err)
	}
	if err := s.engine.publish(s.epoch+1, policy, rules, policy.Stages(s.cfg.ForceStages)); err != nil {
		return fmt.Errorf("publish policy: %w", err)
	}
	s.epoch++
	s.policy = policy
	s.translates = s.translates || rules.nat != nil
	return nil
}

// Packet decides about a frame that arrives at now, in ns of any clock, by the port of this name. The
// clock never goes back: an earlier now is taken for the latest. Flows age as it advances. The frame is
// not changed.
//
// The error says that the frame could not be tried: there is no such port, or the kernel refused the
// test run.
func (s *Sim) Packet(now uint64, port string, frame []byte) (Result, error) {
	at := s.ports[port]
	if at == nil {
		return Result{}, fmt.Errorf("simulate packet: no port %q", port)
	}
	if err := s.advance(now); err != nil {
		return Result{}, fmt.Errorf("simulate packet: %w", err)
	}
	frame = frame[:min(len(frame), MaxFrame)]
	n := copy(s.frame, frame)
	var route flowtable.Route
	if at.peer == nil {
		route = s.routeOf(at, frame)
	}
	out, err := s.engine.process(s.now, at.entry.Ifindex, s.frame[:n], route)
	if err != nil {
		return Result{}, fmt.Errorf("simulate packet: %w", err)
	}
	return s.result(at, frame, &out), nil
}

func (s *Sim) result(at *placed, frame []byte, out *outcome) Result {
	r := Result{Verdict: out.verdict, Reason: out.reason, RuleID: out.rule, Action: out.action, Tier: "xdp"}
	if out.stages != 0 {
		r.Tier = "worker"
	}
	if int(out.rule) >= len(s.policy.Rules) {
		r.RuleID = 0 // of a policy before
	}
	r.Rule = &s.policy.Rules[r.RuleID]
	if s.cfg.Tolerant && tolerable(out.reason) && at.peer != nil {
		r.Verdict, r.Tolerated, r.Reason = Forward, out.reason, bpf.XDPReasonREASON_NONE
		r.RuleID, r.Action = firewall.RuleFirst, bpf.XDPActionACTION_ALLOW
		r.Rule = &s.policy.Rules[r.RuleID]
		r.Out, r.Frame = at.peer.Name, frame
		return r
	}
	switch out.verdict {
	case Forward:
		r.Frame, r.Out = out.frame, s.portOf(out.nexthop)
	case Answer:
		r.Frame, r.Out = out.frame, at.Name
	case Pass:
		r.Frame = out.frame
		if out.reason != bpf.XDPReasonREASON_NONE || out.pass == 0 {
			break // to the kernel for its ICMP error
		}
		r.Passed, r.Cause = true, bpf.XDPPassCause(out.pass-1)
		r.Out = firewall.NameHost
		if r.Cause == bpf.XDPPassCausePASS_NEIGHBOUR || r.Cause == bpf.XDPPassCausePASS_FRAGMENT {
			r.Out = s.portOf(out.nexthop)
		}
	}
	r.NAT = s.translation(at, frame, out)
	return r
}

// portOf names the port that a next hop leaves by.
func (s *Sim) portOf(nexthop uint32) string {
	if int(nexthop) < len(s.hops) {
		if id := int(s.hops[nexthop].Port); id > 0 && id <= len(s.byID) {
			return s.byID[id-1].Name
		}
	}
	return ""
}

// advance moves the clock and lets flows age.
func (s *Sim) advance(now uint64) error {
	if !s.started {
		s.started, s.now, s.aged = true, now, now
		s.settleRoutes()
		return nil
	}
	if now <= s.now {
		return nil
	}
	for now-s.now > ageStride {
		s.now += ageStride
		if err := s.age(); err != nil {
			return err
		}
	}
	s.now = now
	if now-s.aged < ageInterval {
		return nil
	}
	return s.age()
}

func (s *Sim) age() error {
	s.aged = s.now
	s.settleRoutes()
	return s.engine.age(flowtable.Tick(s.now), &s.cfg.Timeouts)
}

// settleRoutes keeps the tick of the last change of routes, of which there is none here, far enough
// behind the clock never to seem ahead of it.
func (s *Sim) settleRoutes() {
	s.Table().State().RouteChanged = flowtable.Tick(s.now) - 1<<30
}
