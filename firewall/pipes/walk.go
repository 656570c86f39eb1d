package pipes

import (
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Decided is what the packet path has decided about a packet.
type Decided struct {
	Port     string // that it came by
	From, To string // zones; To is "" if no route was looked up
	Destined netip.Addr
	Asked    bool   // the rules were
	Rule     string // that decided; "none" if none matched
	Audited  []string
	Reason   string // "" if it is allowed
	Late     bool   // the rules allow it, and its source cannot be translated
	// Names of the nat rules that matched, "" for none, and what the destination's chose.
	Destination, Source, Server string
	Exempt                      bool // no nat rule for destinations is asked: management, or the gateway's own DHCP
}

// Step is a pipe on the way of a packet.
type Step struct {
	Pipe    string
	Entry   string   // "" if none matched
	Audited []string // entries that matched in front of it and decided nothing
	Does    string   // "" for nothing
	Forward string
	File    string // "" if the entry is built in
	Line    int
}

// Walk says by which pipes the decision about the packet that opens a flow came about, and where the last one led.
func (p *Policy) Walk(d *Decided) (steps []Step, forward string) {
	for next := p.Pipeline.Root; ; {
		of := p.Pipeline.Pipes[slices.IndexFunc(p.Pipeline.Pipes, func(of *pipe.Pipe) bool { return of.Name == next })]
		s := Step{Pipe: of.Name}
		to := &of.Miss
		switch of.Name {
		case Flows, Mappings:
		case Arriving:
			s.Entry = p.exemption(d, d.From, "host")
			if s.Entry == "" {
				s.Entry = groupEntry(d.Destined)
			}
			if s.Entry != "" {
				to = toPipe(Rules)
			}
		case Destinations:
			if d.Exempt {
				s.Entry, to = exempt, toPipe(Rules)
			} else if p.matched(&s, d.Destination, true) {
				if to = toPipe(Rules); p.has(Servers + s.Entry) {
					to = toPipe(Servers + s.Entry)
				}
			}
		case Rules:
			if s.Audited = d.Audited; !d.Asked {
				return steps, dropText(d.Reason)
			}
			to = p.allowed()
			if d.Reason != "" && !d.Late {
				to = &pipe.Forward{To: pipe.ToDrop, Reason: d.Reason}
			}
			if d.Reason == bpf.XDPReasonREASON_SPOOFED.String() {
				s.Entry = spoofing
			} else if d.Rule != firewall.NameNone {
				info := p.rule(d.Rule)
				s.Entry, s.File, s.Line = d.Rule, info.File, info.Line
			}
		case Leaving:
			if s.Entry = p.exemption(d, d.To, "to-host"); d.From == firewall.NameHost {
				s.Entry = "from-host"
			}
			if s.Entry != "" {
				to = &pipe.Forward{To: pipe.ToRoute}
			}
		case Sources:
			if p.matched(&s, d.Source, false) {
				to = &pipe.Forward{To: pipe.ToRoute}
				if d.Late {
					to = &pipe.Forward{To: pipe.ToDrop, Reason: d.Reason}
				}
			}
		case Hairpin:
			if d.Source != "" {
				s.Entry, s.Does, to = d.Source, string(firewall.NATMasquerade), &pipe.Forward{To: pipe.ToRoute}
			}
		default: // the servers of a rule
			s.Entry, to = d.Server, of.Forward
		}
		s.Forward = to.String()
		steps = append(steps, s)
		if to.To != pipe.ToPipe {
			return steps, s.Forward
		}
		next = to.Name
	}
}

// rule describes a rule of the policy by its name.
func (p *Policy) rule(name string) firewall.RuleInfo {
	p.once.Do(func() {
		p.byName = make(map[string]uint32, len(p.compiled.Rules))
		for id := range p.compiled.Rules {
			if info := &p.compiled.Rules[id]; !info.Gone {
				p.byName[info.Name] = uint32(id)
			}
		}
	})
	return p.compiled.Rules[p.byName[name]]
}

// groupEntry names the entry about a group address, "" for another one.
func groupEntry(a netip.Addr) string {
	switch {
	case !firewall.IsGroup(a):
		return ""
	case !a.IsMulticast():
		return groupBroadcast
	case a.Is4():
		return groupMulticast
	}
	return groupMulticast6
}

func dropText(reason string) string {
	return (&pipe.Forward{To: pipe.ToDrop, Reason: reason}).String()
}

func (p *Policy) has(name string) bool {
	return slices.ContainsFunc(p.Pipeline.Pipes, func(of *pipe.Pipe) bool { return of.Name == name })
}

// allowed is where packets go that a rule allows.
func (p *Policy) allowed() *pipe.Forward {
	if p.has(Leaving) {
		return toPipe(Leaving)
	}
	return &pipe.Forward{To: pipe.ToRoute}
}

// exemption names the entry of what is never translated, "" for none.
func (p *Policy) exemption(d *Decided, zone, host string) string {
	switch {
	case zone == firewall.NameHost:
		return host
	case slices.Contains(p.options.Inline, d.Port):
		return "inline-" + d.Port
	}
	return ""
}

// matched fills in a nat rule that matched in a list; false: it does not stand there, as one whose hairpin matched.
func (p *Policy) matched(s *Step, name string, destinations bool) bool {
	for _, n := range p.compiled.NATRules {
		if name != "" && n.Name == name && !n.Gone && n.Destinations == destinations {
			s.Entry, s.Does, s.File, s.Line = name, n.Text, n.File, n.Line
			return true
		}
	}
	return false
}
