package firewall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// What becomes of a rule's packets that no worker takes.
const (
	OnFailureDrop   = "drop"
	OnFailureBypass = "bypass" // they go on without the stages
)

// Mirror says that packets of a rule's flows are copied to a monitor port.
type Mirror struct {
	Port    string // "": none are
	Packets uint32 // of each flow, both directions together, from its first; 0: all

	below, column int32 // the place of the port's name: lines below that of the rule's, and column
}

// maxMirrored is the most packets of a flow that may be asked for; a flow counts more without an end.
const maxMirrored = 1_000_000_000

// Text writes m in one line; "" for none.
func (m *Mirror) Text() string {
	switch {
	case m.Port == "":
		return ""
	case m.Packets == 0:
		return m.Port
	case m.Packets == 1:
		return m.Port + ", the first packet"
	}
	return fmt.Sprintf("%s, the first %d packets", m.Port, m.Packets)
}

// onFailure reads what becomes of packets that need a worker where none takes them. A rule may say so
// that asks for no stage itself: the gateway's configuration may ask for one.
func (l *loader) onFailure(r *Rule, n *Node) {
	r.Bypass = l.Choice(n, "on_failure", OnFailureDrop, OnFailureBypass) == OnFailureBypass
	if r.Action != Allow && r.Action != 0 {
		l.Fail(n.Pos.Errorf("on_failure on a rule that does not allow").
			WithHint("take on_failure out; it is about packets that a worker carries on"))
	}
}

// mirror reads a port, or a map of port and packets, of the rule that is named at a place.
func (l *loader) mirror(r *Rule, n *Node, at Pos) {
	port := n
	if n.Kind == MapNode {
		f := l.Fields(n, "mirror", keys["mirror"])
		if port = f["port"]; port == nil {
			l.Fail(n.Pos.Errorf("mirror does not say its port").WithHint("write mirror: PORT, or mirror: {port: PORT, packets: 10}"))
			return
		}
		if v := f["packets"]; v != nil {
			most, _ := l.Int(v, "packets", 1, maxMirrored)
			r.Mirror.Packets = uint32(most)
		}
	}
	name, ok := l.Text(port, "mirror")
	if !ok || !l.Identifier(port.Pos, "a port", name) {
		return
	}
	r.Mirror.Port, r.Mirror.below, r.Mirror.column = strings.Clone(name), int32(port.Pos.Line-at.Line), int32(port.Pos.Column)
	switch {
	case r.Action != Allow && r.Action != 0:
		l.Fail(n.Pos.Errorf("mirror on a rule that does not allow").
			WithHint("take mirror out; 'softdpu capture --point drop' shows what is refused"))
	case r.Audit:
		l.Fail(n.Pos.Errorf("mirror on a rule in audit mode").
			WithHint("take mirror out; no flow is of this rule, since evaluation goes on"))
	}
	for i := range l.policy.Zones {
		if z := &l.policy.Zones[i]; slices.Contains(z.Ports, name) {
			l.Fail(port.Pos.Errorf("port %q belongs to zone %q and cannot be a monitor port", name, z.Name).
				WithHint("mirror to a port of the gateway that no zone names, where nothing but copies leaves"))
			return
		}
	}
}

// monitors makes sure that the ports that rules mirror to exist. Those of rules that have expired are asked
// for as well, so that a policy does not become wrong by itself.
func (c *compiler) monitors() {
	for _, i := range c.policy.special {
		m := &c.policy.Rules[i].Mirror
		if m.Port != "" && !c.opts.OwnNamePorts && !c.portExists(m.Port) {
			c.fail(Unknown(c.policy.mirrorPos(int(i)), "port", m.Port, c.opts.Ports, "declare it under `ports` of the gateway's configuration, and in no zone"))
		}
	}
}

// Stages are what workers do with the flows of each rule that asks for that, beside what they do with all.
func (c *Compiled) Stages(all uint8) flowtable.Stages {
	s := flowtable.Stages{Force: all}
	for _, id := range c.Special {
		if r := &c.Rules[id]; r.Mirror.Port != "" && !r.Expired {
			if s.Rules == nil {
				s.Rules = make(map[uint32]uint8)
			}
			s.Rules[id] = bpf.StageMirror
		}
	}
	return s
}

// Monitors returns the first rule that mirrors to each monitor port, by the port's name, with the place where it says so.
func (p *Policy) Monitors() map[string]Ref {
	out := make(map[string]Ref)
	for _, i := range p.special {
		r := p.Rules[i]
		if _, known := out[r.Mirror.Port]; r.Mirror.Port != "" && !known {
			out[r.Mirror.Port] = Ref{r.Name, p.mirrorPos(int(i))}
		}
	}
	return out
}
