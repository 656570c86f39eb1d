package pipes

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Names of the pipes, in the order in which the packet that opens a flow comes to them. A nat rule that chooses among
// several servers has one more behind the destinations, whose name begins with Servers and ends with the rule's.
const (
	Flows        = "flows"            // packets of known flows go on as their flow says
	Arriving     = "nat-in"           // whose destination is never translated
	Destinations = "nat-destinations" // nat rules for destinations
	Servers      = "servers-"
	Mappings     = "nat-mappings" // who may come in by an endpoint-independent mapping
	Rules        = "rules"        // anti-spoofing, management, the policy's rules
	Leaving      = "nat-out"      // whose source is never translated
	Sources      = "nat-sources"  // nat rules for sources
	Hairpin      = "nat-hairpin"  // flows to a server that come from its own zone
)

// Options are what else the pipes depend on.
type Options struct {
	Inline []string // ports of inline pairs
	// Most is how many entries of a pipe are made; the others are counted.
	Most int
}

// Policy is a compiled policy as pipes.
type Policy struct {
	Pipeline *pipe.Pipeline

	compiled *firewall.Compiled
	rules    *flowtable.ACL
	nat      *flowtable.NAT
	fields   *fields
	options  Options
	ids      map[string][]uint32 // rule of each entry, nat rule of those of nat pipes; 0: none
	total    map[string]int      // entries of a pipe, those not made too

	once   sync.Once
	byName map[string]uint32 // ids of rules, for Walk
}

// New describes a policy, whose classifiers are rules and those of nat, which may be nil. All are kept.
func New(c *firewall.Compiled, rules *flowtable.ACL, nat *flowtable.NAT, o Options) *Policy {
	p := &Policy{
		Pipeline: &pipe.Pipeline{Name: "policy", Root: Flows, BypassesPolicy: true, Own: true, Ports: make(map[string]uint32)},
		compiled: c, rules: rules, nat: nat, fields: newFields(c), options: o,
		ids: make(map[string][]uint32), total: make(map[string]int),
	}
	for i, name := range o.Inline {
		p.Pipeline.Ports[name] = uint32(i) + 1
	}
	route := pipe.Forward{To: pipe.ToRoute}
	first, allowed := Rules, route
	if nat != nil && nat.Destinations != nil {
		first = Arriving
	}
	if nat != nil {
		allowed = *toPipe(Leaving)
	}
	p.add(&pipe.Pipe{Name: Flows, Kind: pipe.CT, Forward: &route, Miss: *toPipe(first)})
	if first == Arriving {
		p.destinations()
	}
	p.judge(&allowed)
	if nat != nil {
		p.sources()
	}
	return p
}

func toPipe(name string) *pipe.Forward { return &pipe.Forward{To: pipe.ToPipe, Name: name} }

func (p *Policy) add(of *pipe.Pipe) *pipe.Pipe {
	p.Pipeline.Pipes = append(p.Pipeline.Pipes, of)
	p.total[of.Name] = len(of.Entries)
	return of
}

// row adds what a row of a classifier comes to. Entry makes what all of its entries have in common.
func (p *Policy) row(of *pipe.Pipe, e *flowtable.ACLEntry, id uint32, name string, numbers map[string]int, entry pipe.Entry) {
	destinations := of.Name == Destinations
	if len(of.Entries) >= p.options.Most {
		p.total[of.Name] += p.fields.entries(e, destinations)
		return
	}
	for _, m := range p.fields.matches(e, destinations) {
		p.total[of.Name]++
		if len(of.Entries) >= p.options.Most {
			continue
		}
		made := entry
		made.Match, made.Name = m, name
		if numbers[name]++; numbers[name] > 1 {
			made.Name = fmt.Sprintf("%s/%d", name, numbers[name])
		}
		of.Entries = append(of.Entries, &made)
		p.ids[of.Name] = append(p.ids[of.Name], id)
	}
}

// Names of entries that no rule of the policy stands for.
const (
	spoofing = "anti-spoofing" // sources that are not among the addresses of their zone
	exempt   = "exempt"        // management and the gateway's own DHCP, which no nat rule translates

	groupMulticast  = "multicast" // destinations that stand for several ends
	groupBroadcast  = "broadcast"
	groupMulticast6 = "multicast-v6"
)

const ruleMask = 1<<24 - 1 // of a verdict (abi.h: VERDICT_RULE_MASK)

// judge adds the pipe of the rules.
func (p *Policy) judge(allowed *pipe.Forward) {
	of := p.add(&pipe.Pipe{Name: Rules, Kind: pipe.ACL, Miss: *dropped(bpf.XDPReasonREASON_NO_RULE_MATCHED)})
	numbers := make(map[string]int)
	for i := range p.compiled.Entries {
		e := &p.compiled.Entries[i]
		id := e.Verdict & ruleMask
		info := &p.compiled.Rules[id]
		entry := pipe.Entry{Audit: e.Audit, Log: info.Log, Pos: pipe.Pos{File: info.File, Line: info.Line}}
		name := info.Name
		switch action := bpf.XDPAction(e.Verdict >> 24 & 0xf); action {
		case bpf.XDPActionACTION_ALLOW:
			entry.Forward = allowed
		case bpf.XDPActionACTION_SPOOFED:
			name, entry.Forward = spoofing, dropped(bpf.XDPReasonREASON_SPOOFED)
		case bpf.XDPActionACTION_REJECT:
			entry.Forward = dropped(bpf.XDPReasonREASON_REJECT)
		default:
			entry.Forward = dropped(bpf.XDPReasonREASON_DENY)
		}
		p.row(of, e, id, name, numbers, entry)
	}
}

func dropped(why bpf.XDPReason) *pipe.Forward {
	return &pipe.Forward{To: pipe.ToDrop, Reason: why.String()}
}

// destinations adds the pipes of nat rules for destinations. What they say is written into the packet when it leaves, so that
// rules see what the sender wrote.
func (p *Policy) destinations() {
	arriving := p.add(&pipe.Pipe{Name: Arriving, Kind: pipe.Control, Miss: *toPipe(Destinations)})
	rules := toPipe(Rules)
	arriving.Entries = p.exempt(p.fields.from, rules)
	for _, group := range []struct {
		name, prefix string
		field        *pipe.Field
	}{{groupMulticast, "224.0.0.0/4", p.fields.dst[0]}, {groupBroadcast, "255.255.255.255", p.fields.dst[0]}, {groupMulticast6, "ff00::/8", p.fields.dst[1]}} {
		m, _ := group.field.Parse(group.prefix) // a constant
		arriving.Entries = append(arriving.Entries, &pipe.Entry{Name: group.name, Match: []pipe.Match{m}, Forward: rules})
	}
	p.total[Arriving] = len(arriving.Entries)
	miss := rules
	if p.nat.Filters() {
		miss = toPipe(Mappings)
	}
	of := p.add(&pipe.Pipe{Name: Destinations, Kind: pipe.ACL, Miss: *miss})
	actions, numbers := make(map[uint32]int), make(map[string]int)
	for i := range p.compiled.NATDestinations {
		e := &p.compiled.NATDestinations[i]
		id := e.Verdict & ruleMask
		info, rule := &p.compiled.NATRules[id], &p.nat.Rules[id]
		entry := pipe.Entry{Forward: rules, Pos: pipe.Pos{File: info.File, Line: info.Line}}
		name := info.Name
		if id == 0 {
			name = exempt
		}
		action, made := actions[id]
		if !made {
			action = len(of.Actions)
			actions[id] = action
			ops := []pipe.Op{set(p.fields.destination, id)}
			switch servers := p.servers(rule); {
			case info.Kind == firewall.NATDestination && len(servers) > 1:
				p.spread(id, servers)
			case info.Kind == firewall.NATDestination && len(servers) == 1:
				ops = append(ops, set(p.fields.server, uint32(servers[0])))
			case info.Kind != firewall.NATPrefix: // nothing is translated
				ops = nil
			}
			text := info.Text
			if id == 0 {
				text = "keep"
			}
			of.Actions = append(of.Actions, pipe.Action{Name: text, Ops: ops})
		}
		entry.Action = action
		if info.Kind == firewall.NATDestination && len(p.servers(rule)) > 1 {
			entry.Forward = toPipe(Servers + info.Name)
		}
		p.row(of, e, id, name, numbers, entry)
	}
	if p.nat.Filters() {
		p.add(&pipe.Pipe{Name: Mappings, Kind: pipe.CT, Forward: rules, Miss: *rules})
	}
}

// exempt are entries of what is never translated: the host's, and what inline ports pass on.
func (p *Policy) exempt(zone *pipe.Field, to *pipe.Forward) (list []*pipe.Entry) {
	list = append(list, &pipe.Entry{Name: "host", Match: []pipe.Match{is(zone, flowtable.ZoneHost)}, Forward: to})
	for _, name := range p.options.Inline {
		list = append(list, &pipe.Entry{
			Name: "inline-" + name, Match: []pipe.Match{is(p.fields.port, p.Pipeline.Ports[name])}, Forward: to,
		})
	}
	return list
}

func set(f *pipe.Field, v uint32) pipe.Op {
	return pipe.Op{Kind: pipe.Set, Field: f, Value: pipe.Value{v}, Mask: f.Full()}
}

// servers are the numbers of those that a nat rule chooses among, ascending.
func (p *Policy) servers(rule *bpf.XDPNatRule) []uint16 {
	if bpf.XDPNatKind(rule.Kind) != bpf.XDPNatKindNAT_DESTINATION {
		return nil
	}
	buckets := slices.Clone(p.nat.Buckets[rule.Bucket : rule.Bucket+rule.Buckets])
	slices.Sort(buckets)
	return slices.Compact(buckets)
}

// spread adds the pipe in which a rule chooses a server.
func (p *Policy) spread(id uint32, servers []uint16) {
	info, rule := &p.compiled.NATRules[id], &p.nat.Rules[id]
	family := 0
	if rule.Family == 6 {
		family = 1
	}
	by := []*pipe.Field{p.fields.src[family], p.fields.dst[family], p.fields.proto}
	if rule.Flags&natByConnection != 0 {
		by = append(by, p.fields.sport, p.fields.dport, pipe.LookupField("icmp.ident"))
	}
	of := &pipe.Pipe{
		Name: Servers + info.Name, Kind: pipe.Hash, Algorithm: pipe.Consistent, Size: int(rule.Buckets),
		Pos: pipe.Pos{File: info.File, Line: info.Line}, Forward: toPipe(Rules), Miss: *toPipe(Rules),
	}
	for _, f := range by {
		of.Match = append(of.Match, pipe.MatchField{Field: f})
	}
	for i, n := range servers {
		text := serverText(rule.Family, &p.nat.Servers[n])
		of.Actions = append(of.Actions, pipe.Action{Name: "dnat to " + text, Ops: []pipe.Op{set(p.fields.server, uint32(n))}})
		of.Entries = append(of.Entries, &pipe.Entry{Name: text, Index: i, Action: i})
	}
	p.add(of)
}

// natByConnection is NAT_BY_CONNECTION of abi.h.
const natByConnection = 0x02

func serverText(family uint8, s *bpf.XDPNatServer) string {
	a := natAddress(family, &s.Address)
	if s.Port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, bits.ReverseBytes16(s.Port)).String()
}

// natAddress is an address as nat rules have it: as it stands in a packet.
func natAddress(family uint8, w *[4]uint32) netip.Addr {
	var b [16]byte
	for i, v := range w {
		b[4*i], b[4*i+1], b[4*i+2], b[4*i+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
	if family == 4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// natHairpin is NAT_HAIRPIN of abi.h.
const natHairpin = 0x01

// sources adds the pipes of nat rules for sources.
func (p *Policy) sources() {
	route := &pipe.Forward{To: pipe.ToRoute}
	hairpins := &pipe.Pipe{Name: Hairpin, Kind: pipe.Control, Miss: *route}
	for _, ids := range p.compiled.NATOrder {
		for _, id := range ids {
			if p.nat.Rules[id].Flags&natHairpin == 0 {
				continue
			}
			info := &p.compiled.NATRules[id]
			hairpins.Actions = append(hairpins.Actions, pipe.Action{Name: string(firewall.NATMasquerade), Ops: []pipe.Op{set(p.fields.nat, id)}})
			hairpins.Entries = append(hairpins.Entries, &pipe.Entry{
				Name: info.Name, Match: []pipe.Match{is(p.fields.destination, id)}, Action: len(hairpins.Entries), Forward: route,
				Conditions: []pipe.Condition{{Field: p.fields.from, Compare: pipe.EQ, With: p.fields.to}},
				Pos:        pipe.Pos{File: info.File, Line: info.Line},
			})
			p.ids[Hairpin] = append(p.ids[Hairpin], id)
		}
	}
	miss := route
	if len(hairpins.Entries) > 0 {
		miss = toPipe(Hairpin)
	}
	asked := miss
	if p.nat.Sources != nil {
		asked = toPipe(Sources)
	}
	leaving := &pipe.Pipe{Name: Leaving, Kind: pipe.Control, Miss: *asked, Entries: p.exempt(p.fields.to, route)}
	leaving.Entries = append(leaving.Entries, &pipe.Entry{Name: "from-host", Match: []pipe.Match{is(p.fields.from, flowtable.ZoneHost)}, Forward: route})
	leaving.Entries[0].Name = "to-host"
	p.add(leaving)
	if p.nat.Sources != nil {
		p.list(route, miss)
	}
	if len(hairpins.Entries) > 0 {
		p.add(hairpins)
	}
}

// list adds the pipe of nat rules for sources.
func (p *Policy) list(route, miss *pipe.Forward) {
	of := p.add(&pipe.Pipe{Name: Sources, Kind: pipe.ACL, Miss: *miss})
	actions, numbers := make(map[uint32]int), make(map[string]int)
	for i := range p.compiled.NATSources {
		e := &p.compiled.NATSources[i]
		id := e.Verdict & ruleMask
		info := &p.compiled.NATRules[id]
		action, made := actions[id]
		if !made {
			action = len(of.Actions)
			actions[id] = action
			ops := []pipe.Op{set(p.fields.nat, id)}
			if info.Kind == firewall.NATKeep {
				ops = nil
			}
			of.Actions = append(of.Actions, pipe.Action{Name: info.Text, Ops: ops})
		}
		p.row(of, e, id, info.Name, numbers, pipe.Entry{Forward: route, Action: action, Pos: pipe.Pos{File: info.File, Line: info.Line}})
	}
}
