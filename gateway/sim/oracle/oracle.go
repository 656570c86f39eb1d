package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// Oracle decides about packets. It is for one goroutine.
type Oracle struct {
	policy     *firewall.Policy
	world      World
	management []firewall.ServiceMatch
	worked     bool
	epoch      int
	flows      map[key]*flow // in the opener's direction
	aliases    map[key]*flow // translated ones as the other end sees them, in the opener's direction
	datagrams  map[datagramKey]*datagram
	servers    map[affinity]netip.Addr // chosen under this policy
	pooled     map[affinity]netip.Addr
	marks      map[mark]bool // ends of all flows that there have been
	peeked     map[datagramKey]key
	mapped     mappings
}

// New returns an oracle without flows. An error says where policy and world do not fit.
func New(policy *firewall.Policy, world World) (*Oracle, error) {
	o := &Oracle{
		world: world, flows: make(map[key]*flow), aliases: make(map[key]*flow),
		datagrams: make(map[datagramKey]*datagram), marks: make(map[mark]bool), peeked: make(map[datagramKey]key),
		mapped: mappings{at: make(map[endpoint]*Mapping), peers: make(map[peer]bool)},
	}
	if err := o.SetPolicy(policy); err != nil {
		return nil, err
	}
	return o, nil
}

// SetPolicy begins a new epoch: flows are judged again on their next packet. On an error the old
// policy stays.
func (o *Oracle) SetPolicy(policy *firewall.Policy) error {
	if err := o.world.check(policy); err != nil {
		return fmt.Errorf("set policy: %w", err)
	}
	management, err := managementServices(policy, o.world.Management)
	if err != nil {
		return fmt.Errorf("set policy: %w", err)
	}
	o.policy, o.management = policy, management
	o.servers, o.pooled = make(map[affinity]netip.Addr), make(map[affinity]netip.Addr)
	o.epoch++
	return nil
}

// ForceWorker says whether the configuration leads every flow through a worker, as a new Oracle's does not.
// Flows that are there learn of it when they are judged again.
func (o *Oracle) ForceWorker(all bool) { o.worked = all }

// Flows returns how many flows there are.
func (o *Oracle) Flows() int { return len(o.flows) }

// What becomes of a packet.
const (
	Forward = "forward" // leaves by a port
	Pass    = "pass"    // goes up to the kernel
	Drop    = "drop"
	Reject  = "reject" // dropped by a rule that answers
)

// Verdict is what must become of a packet.
type Verdict struct {
	Verdict string
	Reason  string   // kebab-case; "" if forwarded or passed
	Rule    string   // that decided about the flow or the refusal; "" if none did
	Out     string   // port that it leaves by, now or by the kernel; "host" if it is for the gateway
	Pass    string   // why it goes to the kernel, kebab-case
	State   State    // of its flow afterwards; "" if it has none
	Flow             // that it belongs to, if State is not ""
	Worker  bool     // a worker has it on its way to the port
	Frame   []byte   // as it leaves or is passed up; shares memory with the input where nothing changed
	Audit   []string // rules in audit mode that matched while it was judged
	Clamped bool     // its MSS is lowered
	Beside  []string // built-in rules that it counts on, beside its flow's if it has one
	Wrong   string   // why the executor may not have chosen what it chose
}

// Flow names a flow by what its opener sends.
type Flow struct {
	Src, Dst   netip.AddrPort // an ICMP identifier as source port
	Proto      uint8
	Domain     uint16
	Translated bool
	Admitted   bool // its opener came in by a mapping
	Later      bool // the packet is a fragment of it without its ports
}

func drop(reason string) Verdict {
	v := Verdict{Verdict: Drop, Reason: reason}
	if reason == "reject" {
		v.Verdict = Reject
	}
	return v
}

func (v Verdict) audited(rules []string) Verdict {
	v.Audit = slices.Concat(v.Audit, rules)
	return v
}

func (v Verdict) chosen(t translation) Verdict {
	v.Wrong = t.wrong
	return v
}

// refuse drops a packet of the flow.
func (f *flow) refuse(reason string) Verdict {
	v := drop(reason)
	v.Rule, v.State = f.rule, f.state
	v.Flow = f.name()
	return v
}

// toPeerOrKernel is what ARP and discovery meet.
func (o *Oracle) toPeerOrKernel(p *packet, rule, cause string) Verdict {
	v := Verdict{Verdict: Pass, Rule: rule, Out: firewall.NameHost, Pass: cause, Frame: p.frame, Beside: []string{rule}}
	if _, peer := o.world.pair(p.port); peer != nil {
		v.Verdict, v.Out, v.Pass = Forward, peer.Name, ""
	}
	return v
}

// endsHere reports whether discovery stays where it is: on a cable always, at a router if it is for the
// link or for the router.
func (o *Oracle) endsHere(p *packet) bool {
	if number, _ := o.world.pair(p.port); number != 0 || within(p.dst, group6, linkLocal6) {
		return true
	}
	r := o.world.Route(p.dst)
	return r != nil && r.Kind == RouteHost
}

// Packet decides about a frame that arrives on a port. Now is any monotonic time. The frame is not
// changed. It is for policies that leave nothing to choose.
func (o *Oracle) Packet(now time.Duration, port string, frame []byte) Verdict {
	return o.Check(now, port, frame, nil)
}

// Check is Packet where an executor has chosen: what it chose is taken over if it may be, else Verdict.Wrong
// says why it may not.
func (o *Oracle) Check(now time.Duration, port string, frame []byte, c *Choice) Verdict {
	p := &packet{port: port, frame: frame}
	if reason := o.readEthernet(p); reason != "" {
		return drop(reason)
	}
	var reason string
	switch p.ethertype {
	case 0x0806:
		return o.toPeerOrKernel(p, ruleARP, "arp")
	case 0x0800:
		reason = p.readIPv4()
	case 0x86dd:
		reason = p.readIPv6()
	default:
		if _, peer := o.world.pair(port); peer != nil && slices.Contains(o.world.Ethertypes, p.ethertype) {
			return Verdict{Verdict: Forward, Out: peer.Name, Frame: frame}
		}
		reason = "ethertype"
	}
	if reason == "" && p.fragment {
		reason = p.checkFragment()
	}
	if reason != "" {
		return drop(reason)
	}
	if p.fragment && p.offset != 0 {
		return o.later(p, now)
	}
	if reason := p.readTransport(); reason != "" {
		return drop(reason)
	}
	if !p.fragment {
		return o.clamp(p, o.whole(p, c))
	}
	if d := o.datagram(p, now); d != nil {
		d.dead = true
		return drop("fragment-overlap")
	}
	v := o.clamp(p, o.whole(p, c))
	if p.icmpKind() != icmpError {
		o.enter(p, now, v)
	}
	return v
}

// whole is sections 6, 7 and 9 for a packet with a transport header.
func (o *Oracle) whole(p *packet, c *Choice) Verdict {
	kind := p.icmpKind()
	if p.proto == protoICMP || p.proto == protoICMPv6 {
		switch {
		case kind == icmpError:
			return o.icmpErrorPacket(p)
		case p.onLink() && o.endsHere(p):
			return o.toPeerOrKernel(p, ruleND, "neighbour-discovery")
		case kind != icmpQuery && kind != icmpReply:
			return drop("icmp-type")
		}
	}
	p.about = p.key()
	f, opener, reason := o.meet(p.about)
	if reason != "" {
		return drop(reason)
	}
	if f != nil && p.proto == protoTCP && p.tcp.open() && (f.state == StateTimeWait || f.state == StateClosed) {
		if f.outer != nil && !opener {
			return drop("nat-conflict") // its tuple is the alias's
		}
		return o.miss(p, c)
	}
	if f != nil {
		return o.known(p, f, opener, false)
	}
	if kind == icmpReply {
		return drop("icmp-no-request")
	}
	return o.miss(p, c)
}

// miss is section 9 from step 2 on.
func (o *Oracle) miss(p *packet, c *Choice) Verdict {
	op := p.opening()
	t, reason := o.translateDestination(p, op, c)
	if reason != "" {
		return drop(reason)
	}
	h, reason := o.route(p.port, p.vlan, p.src, t.outer.dst)
	if reason == "" && h.host() && (t.destination != nil || t.mapping != nil) {
		reason = "nat-to-host"
	}
	if reason != "" {
		return drop(reason).chosen(t)
	}
	op.To = h.zone
	judged := t.mapping.inside(op)
	j := o.Judge(judged)
	refuse := func(reason string) Verdict {
		v := drop(reason).audited(j.Audit).chosen(t)
		v.Rule = j.Rule
		return v
	}
	if j.Reason != "" {
		return refuse(j.Reason)
	}
	if s := &p.tcp; p.proto == protoTCP && !s.open() && !(j.Midstream && s.ack && !s.syn && !s.rst) {
		return refuse("not-syn")
	}
	if reason := o.translateSource(p, op, h, &t, c); reason != "" {
		return refuse(reason)
	}
	if !o.room(p.key(), t.outer) {
		return refuse("flow-table-full")
	}
	f := o.open(p, judged, j, t.outer, t.source)
	f.admitted = t.mapping != nil
	return proceed(p, f, h, true, false).audited(j.Audit).chosen(t)
}

// room reports whether the table takes a flow, and its alias if it is translated. One that is reopened gives
// its own place.
func (o *Oracle) room(original, outer key) bool {
	entries := len(o.flows) + len(o.aliases) + 2*len(o.mapped.all) + len(o.mapped.peers)
	if o.owner(original) == nil {
		entries++
	}
	if outer != original && o.aliases[outer] == nil {
		entries++
	}
	return o.world.FlowsMax == 0 || entries <= o.world.FlowsMax
}
