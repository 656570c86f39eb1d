package oracle

import (
	"fmt"
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
	datagrams  map[datagramKey]*datagram
}

// New returns an oracle without flows. An error says where policy and world do not fit.
func New(policy *firewall.Policy, world World) (*Oracle, error) {
	o := &Oracle{world: world, flows: make(map[key]*flow), datagrams: make(map[datagramKey]*datagram)}
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
	Worker  bool     // a worker has it on its way to the port
	Frame   []byte   // as it leaves or is passed up; shares memory with the input where nothing changed
	Audit   []string // rules in audit mode that matched while it was judged
	Clamped bool     // its MSS is lowered
	Beside  []string // built-in rules that it counts on, beside its flow's if it has one
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

// refuse drops a packet of the flow.
func (f *flow) refuse(reason string) Verdict {
	v := drop(reason)
	v.Rule, v.State = f.rule, f.state
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
// changed.
func (o *Oracle) Packet(now time.Duration, port string, frame []byte) Verdict {
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
		return o.clamp(p, o.whole(p))
	}
	if d := o.datagram(p, now); d != nil {
		d.dead = true
		return drop("fragment-overlap")
	}
	v := o.clamp(p, o.whole(p))
	if p.icmpKind() != icmpError {
		o.enter(p, now, v)
	}
	return v
}

// whole is sections 6, 7 and 9 for a packet with a transport header.
func (o *Oracle) whole(p *packet) Verdict {
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
	f, opener := o.find(p.key())
	if f != nil && p.proto == protoTCP && p.tcp.open() && (f.state == StateTimeWait || f.state == StateClosed) {
		return o.miss(p)
	}
	if f != nil {
		return o.known(p, f, opener, false)
	}
	if kind == icmpReply {
		return drop("icmp-no-request")
	}
	return o.miss(p)
}

// miss is section 9 from step 2 on.
func (o *Oracle) miss(p *packet) Verdict {
	h, reason := o.route(p.port, p.vlan, p.src, p.dst)
	if reason != "" {
		return drop(reason)
	}
	op := p.opening()
	op.To = h.zone
	j := o.Judge(op)
	refuse := func(reason string) Verdict {
		v := drop(reason).audited(j.Audit)
		v.Rule = j.Rule
		return v
	}
	if j.Reason != "" {
		return refuse(j.Reason)
	}
	if s := &p.tcp; p.proto == protoTCP && !s.open() && !(j.Midstream && s.ack && !s.syn && !s.rst) {
		return refuse("not-syn")
	}
	if old, _ := o.find(p.key()); old == nil && o.world.FlowsMax > 0 && len(o.flows) >= o.world.FlowsMax {
		return refuse("flow-table-full")
	}
	return proceed(p, o.open(p, op, j), h, true, false).audited(j.Audit)
}
