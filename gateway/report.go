package gateway

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// Numbers of abi.h for next hops.
const (
	nexthopHost  = 1
	nexthopFirst = 128
)

// A reporter answers what people ask of a running gateway. It is safe for concurrent use while the
// plane is open.
type reporter struct {
	config      *Config
	rules       *inForce
	plane       *dataplane.Plane
	ledger      *ledger
	ageing      *ageing
	events      *eventLog
	history     *history
	version     string
	started     time.Time
	inheritance *atomic.Pointer[Inheritance]
	captures    *captures                    // of the control socket
	crew        func() (worker.Status, bool) // whether workers run, and how
	pipelines   *pipelineDesk                // nil: none, in tests
}

// flows calls fn for every flow that the filter matches, nil for all, until it returns an error, which
// is returned.
func (r *reporter) flows(filter *Filter, fn func(*Flow) error) error {
	now := dataplane.NowTick()
	why := r.whyNotHigher()
	var err error
	walkErr := r.ledger.each(func(f *flowtable.Flow) bool {
		out := r.flow(f, now, why)
		if filter.Match(&out) {
			err = fn(&out)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	return walkErr
}

func (r *reporter) flow(f *flowtable.Flow, now uint32, why func([2]uint16) string) Flow {
	rule, t := r.rules.rule(f.Rule), &f.Tuple
	higher := ""
	stages := f.Stages[0] | f.Stages[1]
	if stages != 0 {
		higher = r.rules.Load().whyWorker(f)
	} else {
		higher = why(f.Nexthop)
	}
	to, toPort := destination(t)
	return Flow{
		Family: t.Family, Proto: protoName(t.Proto),
		SrcIP: t.Source(), SrcPort: t.SrcPort, DestIP: to, DestPort: toPort,
		From: r.rules.zoneName(f.From), To: r.rules.zoneName(f.To),
		State: f.State.String(), Revoked: f.Revoked,
		Tier: tierOf(stages), WhyNotHigher: higher,
		Rule: rule.Name, File: rule.File, Line: rule.Line, Epoch: f.Epoch,
		Packets: f.Packets, Bytes: f.Bytes,
		AgeS: seconds(f.Age(now)), IdleS: seconds(f.Idle(now)), CommunityID: flowCommunityID(t),
		NAT: r.rules.Load().translation(f.NAT),
	}
}

// destination is where a flow leads: of a mapping nobody, 0.0.0.0 or ::, port 0.
func destination(t *flowtable.Tuple) (netip.Addr, uint16) {
	switch {
	case t.Kind != flowtable.KeyMapping:
		return t.Destination(), t.DstPort
	case t.Family == 4:
		return netip.IPv4Unspecified(), 0
	}
	return netip.IPv6Unspecified(), 0
}

// flowCommunityID needs the type of ICMP, which for ICMPv6 can only be an echo request.
func flowCommunityID(t *flowtable.Tuple) string {
	if t.Kind != flowtable.KeyFlow {
		return "" // no connection
	}
	switch t.Proto {
	case protoICMP:
		return ""
	case protoICMPv6:
		return communityID(t.Proto, t.Source(), t.Destination(), 128, 0)
	}
	return communityID(t.Proto, t.Source(), t.Destination(), t.SrcPort, t.DstPort)
}

// seconds rounds to milliseconds, the resolution of ticks.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// whyNotHigher returns a function that says why a flow with these next hops is not in hardware: by the
// port that its opener's packets leave by, else by the one that they come from.
func (r *reporter) whyNotHigher() func([2]uint16) string {
	ports, hops := r.plane.Ports(), r.plane.Nexthops()
	text := make(map[int]string)
	for i := range ports {
		text[int(ports[i].ID)] = fmt.Sprintf("no hardware offload on port %s (%s)", ports[i].Name, cmp.Or(ports[i].Driver, ports[i].Kind))
	}
	port := func(nexthop uint16) int {
		id := 0
		switch {
		case nexthop == nexthopHost:
		case nexthop < nexthopFirst:
			id = int(nexthop) - int(dataplane.PortNexthop(0))
		case int(nexthop) < len(hops) && atomic.LoadUint32(&hops[nexthop].State) != 0:
			id = int(hops[nexthop].Port)
		}
		if text[id] == "" {
			return 0
		}
		return id
	}
	return func(nexthop [2]uint16) string {
		if nexthop[0] == nexthopHost || nexthop[1] == nexthopHost {
			return "one end is the gateway itself"
		}
		if id := cmp.Or(port(nexthop[0]), port(nexthop[1])); id != 0 {
			return text[id]
		}
		return "no hardware offload on any port"
	}
}

// drops returns the reasons for which something was dropped, or all of them, in the order of enum
// reason.
func (r *reporter) drops(all bool) ([]Drop, error) {
	sums, err := r.plane.Reasons()
	if err != nil {
		return nil, err
	}
	unlogged, err := r.plane.DropsUnlogged()
	if err != nil {
		return nil, err
	}
	dropped := r.workerDrops()
	drops := []Drop{}
	for i, c := range sums {
		c.Packets += dropped[bpf.XDPReason(i).String()]
		if reason := bpf.XDPReason(i); reason != bpf.XDPReasonREASON_NONE && (all || c.Packets > 0) {
			drops = append(drops, Drop{Reason: reason.String(), Packets: c.Packets, Bytes: c.Bytes, Unlogged: unlogged[i]})
		}
	}
	return drops, nil
}

// passes returns what went to the kernel, by every cause.
func (r *reporter) passes() ([]Pass, error) {
	sums, err := r.plane.Passes()
	if err != nil {
		return nil, err
	}
	passes := []Pass{}
	for i, c := range sums {
		passes = append(passes, Pass{Cause: bpf.XDPPassCause(i).String(), Packets: c.Packets, Bytes: c.Bytes})
	}
	return passes, nil
}

// ruleStatus returns all rules: what no rule matched, the built-in ones, the policy's in its order.
func (r *reporter) ruleStatus() ([]RuleStatus, error) { return r.survey(nil) }

// survey is ruleStatus, and shows visit every flow on the way.
func (r *reporter) survey(visit func(*flowtable.Sum)) ([]RuleStatus, error) {
	sums, last, err := r.ledger.totals(visit)
	if err != nil {
		return nil, err
	}
	clock := newEveClock()
	c := r.rules.Load().Compiled
	rules := make([]RuleStatus, 0, int(firewall.RuleFirst)+len(c.Order))
	add := func(id uint32) {
		info, s := &c.Rules[id], ruleCount{}
		if int(id) < len(sums) {
			s = sums[id]
		}
		out := RuleStatus{
			Name: info.Name, Action: info.Action.String(), Mode: "enforce", File: info.File, Line: info.Line,
			Packets: s.packets, Bytes: s.bytes, Flows: s.flows, Judged: s.judged, Unlogged: s.unlogged,
			Log: info.Log, Builtin: info.Builtin, Expired: info.Expired,
			Mirror: mirrorOf(&info.Mirror), OnFailure: onFailure(info), MSSClamp: info.MSSClamp,
			Description: info.Description, Owner: info.Owner,
		}
		if info.Audit {
			out.Mode = "audit"
		}
		if id == firewall.RuleNone {
			out.Action, out.Description = firewall.Deny.String(), "what no rule matched"
		}
		if int(id) < len(last) && last[id] != 0 {
			at := clock.at(last[id]).Round(time.Millisecond)
			out.LastHit = &at
		}
		rules = append(rules, out)
	}
	for id := range firewall.RuleFirst {
		add(id)
	}
	for _, id := range c.Order {
		add(id)
	}
	return rules, nil
}

func (r *reporter) status() (*Status, error) {
	rules := r.rules.Load()
	c := rules.Compiled
	s := &Status{
		Version: r.version, PID: os.Getpid(), Started: r.started, Kernel: kernelRelease(), Config: r.config.File, Start: *r.inheritance.Load(),
		Policy: PolicyStatus{
			Path: rules.config.Policy, Files: rules.Files, Hash: rules.hash(), Loaded: rules.Read, Rules: len(c.Order), NAT: len(c.NATOrder),
			Zones: rules.zoneNames(), Tests: rules.passed(), RuntimeEntries: rules.live.size(),
		},
		Differs: changedFiles(rules),
		Ports:   []PortStatus{}, Notes: append([]string{}, r.plane.Notes()...),
	}
	s.Policy.Epoch, _ = r.plane.Epoch()
	s.Capture = r.captures.status()
	crew, err := r.workers()
	if err != nil {
		return nil, err
	}
	s.Workers = crew.summary()
	if !c.NextExpiry.IsZero() {
		s.Policy.NextExpiry = &c.NextExpiry
	}
	r.history.status(&s.Policy)
	for _, p := range r.plane.Ports() {
		s.Ports = append(s.Ports, r.port(&p))
	}
	program, err := r.plane.Program()
	if err != nil {
		return nil, fmt.Errorf("read running program: %w", err)
	}
	if program != nil {
		defer program.Close()
		info, err := program.Info()
		if err != nil {
			return nil, fmt.Errorf("read running program: %w", err)
		}
		s.Program = info.Tag
	}
	if s.Table, err = r.tableStatus(); err != nil {
		return nil, err
	}
	s.Fragments = r.fragments()
	nat, err := r.nat()
	if err != nil {
		return nil, err
	}
	s.Notes = append(s.Notes, NATNotes(nat.Rules)...)
	s.Notes = append(s.Notes, NATAddressNotes(nat.Rules)...)
	s.Notes = append(s.Notes, NATSourceNotes(nat.Rules)...)
	sums, _, err := r.ledger.totals(nil)
	if err != nil {
		return nil, err
	}
	r.events.status(&s.Events)
	unlogged, err := r.plane.DropsUnlogged()
	if err != nil {
		return nil, err
	}
	for _, n := range unlogged {
		s.Events.Unlogged += n
	}
	for _, sum := range sums {
		s.Events.Unlogged += sum.unlogged
	}
	return s, nil
}

func (r *reporter) port(p *dataplane.Port) PortStatus {
	out := PortStatus{
		Name: p.Name, Device: p.Device, Kind: p.Kind, Driver: p.Driver,
		Mode: p.Running.String(), WhyNotNative: p.WhyNotNative, Guard: p.Guard,
		Zone: r.rules.zoneName(p.Zone), Peer: p.Peer, MAC: net.HardwareAddr(p.MAC[:]).String(),
		MTU: p.MTU, MSSClamp: p.MSS(), Up: p.Up, Since: p.Since, Missing: p.Missing, Notes: append([]string{}, p.Notes...),
	}
	if p.Running == dataplane.ModeAuto { // it has had no device yet
		out.Mode = ""
	}
	for id, zone := range p.VLANs {
		if out.VLANs == nil {
			out.VLANs = make(map[uint16]string)
		}
		out.VLANs[id] = r.rules.zoneName(zone)
	}
	return out
}

func (r *reporter) tableStatus() (TableStatus, error) {
	sizes, gw := r.plane.Sizes(), r.plane.Flows().Gateway
	c, err := r.plane.TableCounters()
	if err != nil {
		return TableStatus{}, err
	}
	aged, killed := r.ledger.freed()
	aliases := max(0, atomic.LoadInt64(&gw.Aliases))
	return TableStatus{
		Flows: max(0, atomic.LoadInt64(&gw.Flows)-aliases), Translated: aliases, FlowsMax: sizes.FlowsMax,
		HalfOpen: atomic.LoadInt64(&gw.HalfOpen), HalfOpenMax: sizes.HalfOpenMax,
		Created: c.Created, Refused: c.Refused, Evicted: c.Evicted, Revived: c.Revived, Overflowed: c.Overflowed,
		Reopened: c.Reopened, Aged: aged, Killed: killed,
	}, nil
}

func (r *reporter) fragments() FragmentStatus { return FragmentStatus(r.plane.HeldFragments()) }

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
