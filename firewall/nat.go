package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/flowtable"
)

// NATKind says what a rule of translation does; it is the key by which the rule says so.
type NATKind string

const (
	NATKeep        NATKind = "keep"       // nothing: what matches is left as it is
	NATMasquerade  NATKind = "masquerade" // source: the address of the port by which the flow leaves
	NATSource      NATKind = "snat"       // source: an address of a pool
	NATDestination NATKind = "dnat"       // destination: one of the rule's servers
	NATPrefix      NATKind = "prefix"     // both ways: the same host of another prefix
)

// natKinds are all kinds, in the order in which messages name them.
var natKinds = []string{string(NATKeep), string(NATMasquerade), string(NATSource), string(NATDestination), string(NATPrefix)}

// Bounds of one rule of translation.
const (
	maxNATAddresses = 1024 // of a pool
	maxNATServers   = 1024
	maxNATWeight    = 100
)

// defaultNATPorts are the source ports of translated flows where a rule does not say them.
var defaultNATPorts = flowtable.U16Range{First: 1024, Last: 65535}

// NATRule is one rule of translation. NATMasquerade and NATSource are asked for the source of a flow,
// NATDestination for its destination, NATKeep and NATPrefix for both; of each, the first that matches decides.
type NATRule struct {
	Name         string
	Description  string
	Owner        string
	From, To     Selector
	Services     []ServiceMatch // alternatives; empty: any
	Kind         NATKind
	Pool         flowtable.AddrRange // NATSource
	Ports        flowtable.U16Range  // NATMasquerade, NATSource and, for hairpin, NATDestination: what source ports it chooses among
	SourceLimit  int                 // NATMasquerade and NATSource: flows that one source may have at once, 0: any number
	Mapping      bool                // NATMasquerade, NATSource: an end leaves as the same port, whoever the other end is
	Filtering    NATFiltering        // with Mapping: who else may send there; "": nobody
	Servers      []NATServer         // NATDestination, all of one family
	ByConnection bool                // NATDestination, spread: connection; else by source address
	Hairpin      bool                // NATDestination: flows from the zone of the server are masqueraded too
	Inside       netip.Prefix        // NATPrefix: what the hosts have
	Outside      netip.Prefix        // NATPrefix: what others see; of the same family and length
	Pos          Pos                 // of the rule's name
	KindPos      Pos                 // of the value of the kind's key
	LimitPos     Pos                 // of SourceLimit
}

// NATServer is where a NATDestination sends flows.
type NATServer struct {
	Address netip.Addr
	Port    uint16 // 0: as it was
	Weight  int    // 1 to 100, its share among the rule's servers
	Drain   bool   // it gets no new flows
	Pos     Pos    // of the address
}

// family is the only one that the rule can write, 0 for both.
func (r *NATRule) family() uint8 {
	var a netip.Addr
	switch r.Kind {
	case NATSource:
		a = r.Pool.First
	case NATDestination:
		if len(r.Servers) > 0 {
			a = r.Servers[0].Address
		}
	case NATPrefix:
		a = r.Inside.Addr()
	}
	switch {
	case a.Is4():
		return 4
	case a.Is6():
		return 6
	}
	return 0
}

// Text writes what the rule does in one line, as in "dnat to 10.20.1.5:8080".
func (r *NATRule) Text() string {
	if r.Kind == NATKeep || r.Kind == NATMasquerade && r.Ports == defaultNATPorts && r.SourceLimit == 0 {
		return string(r.Kind) + r.mappingDetail()
	}
	return string(r.Kind) + " " + r.detail(list(r.Servers, NATServer.text))
}

// detail writes what the rule's kind says. Servers are its servers in words.
func (r *NATRule) detail(servers string) string {
	ports := "ports " + portText(r.Ports)
	switch r.Kind {
	case NATMasquerade:
		if r.Ports == defaultNATPorts && r.SourceLimit != 0 {
			return r.limitText() + r.mappingDetail()
		}
		if r.SourceLimit != 0 {
			ports += ", " + r.limitText()
		}
		return ports + r.mappingDetail()
	case NATSource:
		text := "to " + addressText(r.Pool)
		if r.Ports != defaultNATPorts {
			text += " " + ports
		}
		if r.SourceLimit != 0 {
			text += ", " + r.limitText()
		}
		return text + r.mappingDetail()
	case NATDestination:
		text := "to " + servers
		if r.ByConnection {
			text += ", spread connection"
		}
		if !r.Hairpin {
			text += ", no hairpin"
		}
		return text
	case NATPrefix:
		return fmt.Sprintf("%s to %s", r.Inside, r.Outside)
	}
	return "true"
}

func (r *NATRule) limitText() string { return fmt.Sprintf("at most %d flows a source", r.SourceLimit) }

func (s NATServer) text() string {
	text := s.Address.String()
	if s.Port != 0 {
		text = netip.AddrPortFrom(s.Address, s.Port).String()
	}
	if s.Weight != 1 {
		text += " weight " + strconv.Itoa(s.Weight)
	}
	if s.Drain {
		text += " drain"
	}
	return text
}

func (l *loader) nat(n *Node) {
	if n.Kind != ListNode {
		l.Fail(n.Pos.Errorf("nat must be a list, not %s", n.Kind).WithHint("begin each rule with: - name: NAME"))
		return
	}
	for _, item := range n.Items {
		l.natRule(item)
	}
}

func (l *loader) natRule(n *Node) {
	before := len(l.Errs)
	f := l.Fields(n, "a nat rule", keys["nat"])
	if n.Kind != MapNode {
		return
	}
	r := NATRule{Pos: n.Pos, Ports: defaultNATPorts}
	if l.ruleName(&r.Name, &r.Pos, "nat rule", "counters and flows follow it", f["name"]) {
		if i, twice := l.natIndex[r.Name]; twice {
			l.Fail(nameTaken(r.Pos, "nat rule", r.Name, l.policy.NAT[i].Pos))
		} else {
			l.natIndex[r.Name] = len(l.policy.NAT)
		}
	}
	r.Description = l.optionalText(f["description"], "description")
	r.Owner = l.optionalText(f["owner"], "owner")
	l.ruleEnd(&r.From, "nat rule", r.Name, r.Pos, "from", f["from"], "any, a zone")
	l.ruleEnd(&r.To, "nat rule", r.Name, r.Pos, "to", f["to"], "any, a zone")
	var services []Pos
	if v := f["service"]; v != nil {
		r.Services = l.services(v, false)
		services = slices.Clone(l.at)
	}
	l.natKind(&r, n, f)
	if len(l.Errs) == before { // what is missing is told once
		l.checkNAT(&r, f, services)
	}
	l.policy.NAT = append(l.policy.NAT, r)
}

// natKind reads the one key that says what the rule does.
func (l *loader) natKind(r *NATRule, n *Node, f map[string]*Node) {
	var value *Node
	for _, field := range n.Fields {
		if !slices.Contains(natKinds, field.Key) {
			continue
		}
		if field.Value.Kind == NullNode {
			l.Fail(field.Pos.Errorf("%s has no value", field.Key).WithHint("write %s", natExamples[NATKind(field.Key)]))
			return
		}
		if value != nil && NATKind(field.Key) != r.Kind {
			l.Fail(field.Pos.Errorf("nat rule %q has both %s and %s", r.Name, r.Kind, field.Key).WithHint("write a rule for each"))
			return
		}
		r.Kind, value = NATKind(field.Key), f[field.Key]
	}
	if value == nil && slices.ContainsFunc(n.Fields, func(field Field) bool { return !slices.Contains(keys["nat"], field.Key) }) {
		return // that key may have been it
	}
	if value == nil {
		l.Fail(r.Pos.Errorf("nat rule %q does not say what it does", r.Name).
			WithHint("add one of: %s", strings.Join(natKinds, ", ")))
		return
	}
	r.KindPos = value.Pos
	if r.Kind == NATKeep {
		if value.Kind != ScalarNode || value.Text != "true" || value.Quoted {
			l.Fail(value.Pos.Errorf("keep must be true").WithHint("take the rule out if it shall not stand"))
		}
		return
	}
	if value.Kind != MapNode {
		l.Fail(value.Pos.Errorf("%s must be a map of keys, not %s", r.Kind, value.Kind).WithHint("write %s", natExamples[r.Kind]))
		return
	}
	v := l.Fields(value, string(r.Kind), keys[string(r.Kind)])
	switch r.Kind {
	case NATMasquerade:
		l.natPorts(r, v["ports"])
		l.natLimit(r, v["source_limit"])
		l.natMapping(r, v)
	case NATSource:
		l.natPool(r, value, v["addresses"])
		l.natPorts(r, v["ports"])
		l.natLimit(r, v["source_limit"])
		l.natMapping(r, v)
	case NATDestination:
		l.natServers(r, value, v)
	case NATPrefix:
		l.natPrefixes(r, value, v)
	}
}

var natExamples = map[NATKind]string{
	NATKeep:        "keep: true",
	NATMasquerade:  "masquerade: {}",
	NATSource:      "snat: {addresses: [203.0.113.8/29]}",
	NATDestination: "dnat: {to: 10.20.1.5}",
	NATPrefix:      "prefix: {inside: 10.40.0.0/24, outside: 198.51.100.0/24}",
}

// natPorts reads the source ports that a rule may choose.
func (l *loader) natPorts(r *NATRule, n *Node) {
	if n == nil {
		return
	}
	text, ok := l.Text(n, "ports")
	if !ok {
		return
	}
	ports, _, err := parsePorts(text)
	if err != nil || ports.First == 0 {
		l.Fail(n.Pos.Errorf("%q is not a range of source ports", text).WithHint("write one range between 1 and 65535, as in ports: 1024-65535"))
		return
	}
	r.Ports = ports
}

// natLimit reads how many flows one source may have.
func (l *loader) natLimit(r *NATRule, n *Node) {
	if n == nil {
		return
	}
	r.LimitPos = n.Pos
	r.SourceLimit, _ = l.Int(n, "source_limit", 1, flowtable.SourceLimitMost)
}

// natPool reads the addresses of a pool, which follow each other.
func (l *loader) natPool(r *NATRule, at, n *Node) {
	if n == nil {
		l.Fail(at.Pos.Errorf("snat does not say its addresses").WithHint("write %s", natExamples[NATSource]))
		return
	}
	before := len(l.Errs)
	pool := joinAddresses(l.addresses(n, "an address"))
	switch {
	case len(l.Errs) > before:
	case len(pool) == 0:
		l.Fail(n.Pos.Errorf("an empty list of addresses").WithHint("write %s", natExamples[NATSource]))
	case len(pool) > 1 && pool[0].First.Is4() != pool[len(pool)-1].First.Is4():
		l.Fail(n.Pos.Errorf("the addresses of a pool are of both families: %s and %s", addressText(pool[0]), addressText(pool[len(pool)-1])).
			WithHint("write a rule for each family"))
	case len(pool) > 1:
		l.Fail(n.Pos.Errorf("the addresses of a pool do not follow each other: %s ends before %s", addressText(pool[0]), addressText(pool[1])).
			WithHint("write a rule for each range, for other sources each"))
	case addressCount(pool[0]) > maxNATAddresses:
		l.Fail(n.Pos.Errorf("%s has more than %d addresses", addressText(pool[0]), maxNATAddresses).
			WithHint("a few addresses are enough: each has its own ports for every destination"))
	default:
		r.Pool = pool[0]
		for _, a := range []netip.Addr{r.Pool.First, r.Pool.Last} {
			l.natUnicast(n, a)
		}
	}
}

// addressCount is the number of addresses of a range, or more than any bound if they are very many.
func addressCount(r flowtable.AddrRange) uint64 {
	firstHigh, first := halves(r.First)
	lastHigh, last := halves(r.Last)
	if firstHigh != lastHigh || last-first >= 1<<32 {
		return 1 << 32
	}
	return last - first + 1
}

// natUnicast refuses an address that no packet could have once it is translated.
func (l *loader) natUnicast(n *Node, a netip.Addr) {
	what := ""
	switch {
	case a.IsUnspecified(), a.Is4() && a.As4()[0] == 0:
		what = "nobody's address"
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		what = "a group's address"
	case a.IsLoopback():
		what = "a loopback address"
	case a.IsLinkLocalUnicast():
		what = "a link-local address, which is not forwarded"
	default:
		return
	}
	l.Fail(n.Pos.Errorf("%s is %s", a, what).WithHint("write an address that others can reach"))
}

// natServers reads {to, port} or {servers}, and how flows are spread over them.
func (l *loader) natServers(r *NATRule, at *Node, f map[string]*Node) {
	r.Hairpin = true
	if v := f["hairpin"]; v != nil {
		r.Hairpin = l.Bool(v, "hairpin")
	}
	if v := f["spread"]; v != nil {
		r.ByConnection = l.Choice(v, "spread", "source", "connection") == "connection"
	}
	to, servers := f["to"], f["servers"]
	switch {
	case to == nil && servers == nil:
		l.Fail(at.Pos.Errorf("dnat does not say where to").WithHint("write %s", natExamples[NATDestination]))
	case to != nil && servers != nil:
		l.Fail(servers.Pos.Errorf("dnat has both to and servers").WithHint("leave one of them out"))
	case servers != nil && f["port"] != nil:
		l.Fail(f["port"].Pos.Errorf("port beside servers").WithHint("say the port of each server: {address: ADDRESS, port: PORT}"))
	case servers != nil:
		l.natServerList(r, servers)
	default:
		s := NATServer{Weight: 1}
		if l.natServerAddress(&s, to) && l.natServerPort(&s, f["port"]) {
			r.Servers = append(r.Servers, s)
		}
	}
}

func (l *loader) natServerList(r *NATRule, n *Node) {
	before := len(l.Errs)
	items := l.List(n)
	for _, item := range items {
		f := l.Fields(item, "a server", keys["server"])
		if item.Kind != MapNode {
			continue
		}
		s := NATServer{Weight: 1}
		if f["address"] == nil {
			l.Fail(item.Pos.Errorf("server without an address").WithHint("write {address: ADDRESS}"))
			continue
		}
		if !l.natServerAddress(&s, f["address"]) || !l.natServerPort(&s, f["port"]) {
			continue
		}
		if v := f["weight"]; v != nil {
			s.Weight, _ = l.Int(v, "weight", 1, maxNATWeight)
		}
		if v := f["drain"]; v != nil {
			s.Drain = l.Bool(v, "drain")
		}
		for i := range r.Servers {
			switch o := &r.Servers[i]; {
			case o.Address.Is4() != s.Address.Is4():
				l.Fail(s.Pos.Errorf("servers of both families in one rule").WithHint("write a rule for each family"))
				return
			case o.Address == s.Address && o.Port == s.Port:
				l.Fail(s.Pos.Errorf("server %s is given twice", s.Address).WithHint("give it a weight instead; first in %s", o.Pos))
				return
			}
		}
		r.Servers = append(r.Servers, s)
	}
	switch {
	case len(l.Errs) > before:
	case len(items) == 0:
		l.Fail(n.Pos.Errorf("an empty list of servers").WithHint("name one: {address: ADDRESS}"))
	case len(r.Servers) > maxNATServers:
		l.Fail(n.Pos.Errorf("%d servers, more than %d", len(r.Servers), maxNATServers).WithHint("spread them over several addresses, with a rule each"))
	}
}

func (l *loader) natServerAddress(s *NATServer, n *Node) bool {
	text, ok := l.Text(n, "an address")
	if !ok {
		return false
	}
	a, _, err := parseAddress(text)
	if err != nil {
		l.Fail(n.Pos.Errorf("%v", err).WithHint("a server has one address, and its port beside it: port: 8080"))
		return false
	}
	before := len(l.Errs)
	l.natUnicast(n, a)
	s.Address, s.Pos = a, n.Pos
	return len(l.Errs) == before
}

func (l *loader) natServerPort(s *NATServer, n *Node) bool {
	if n == nil {
		return true
	}
	port, ok := l.Int(n, "port", 1, 65535)
	s.Port = uint16(port)
	return ok
}

// natPrefixes reads two prefixes of the same size.
func (l *loader) natPrefixes(r *NATRule, at *Node, f map[string]*Node) {
	before := len(l.Errs)
	for _, side := range []struct {
		key string
		to  *netip.Prefix
	}{{"inside", &r.Inside}, {"outside", &r.Outside}} {
		n := f[side.key]
		if n == nil {
			l.Fail(at.Pos.Errorf("prefix does not say %s", side.key).WithHint("write %s", natExamples[NATPrefix]))
			continue
		}
		text, ok := l.Text(n, side.key)
		if !ok {
			continue
		}
		a, hint, err := parseAddresses(text)
		if err != nil {
			l.Fail(n.Pos.Errorf("%v", err).WithHint("%s", hint))
			continue
		}
		// What addressText writes with a slash, or one address, is a prefix.
		bits := a.First.BitLen()
		if a.First != a.Last {
			p, err := netip.ParsePrefix(addressText(a))
			if err != nil {
				l.Fail(n.Pos.Errorf("%q is not a prefix", text).WithHint("write it as in 10.40.0.0/24; of other ranges each prefix has its own rule"))
				continue
			}
			bits = p.Bits()
		}
		*side.to = netip.PrefixFrom(a.First, bits)
		l.natUnicast(n, a.First)
		if a.Last != a.First {
			l.natUnicast(n, a.Last)
		}
		if a.First.Is6() && bits > 64 {
			l.Fail(n.Pos.Errorf("%s is longer than /64", side.to).
				WithHint("bits behind the prefix keep checksums as they are (RFC 6296); for single hosts write dnat and snat rules"))
		}
	}
	if len(l.Errs) > before {
		return
	}
	switch {
	case r.Inside.Addr().Is4() != r.Outside.Addr().Is4():
		l.Fail(f["outside"].Pos.Errorf("%s and %s are of different families", r.Inside, r.Outside).
			WithHint("IPv4 and IPv6 are not translated into each other"))
	case r.Inside.Bits() != r.Outside.Bits():
		l.Fail(f["outside"].Pos.Errorf("%s and %s are not of the same length", r.Inside, r.Outside).
			WithHint("each host keeps its bits behind the prefix: write %s/%d, or use snat with a pool", r.Outside.Addr(), r.Inside.Bits()))
	case r.Inside == r.Outside:
		l.Fail(f["outside"].Pos.Errorf("inside and outside are the same").WithHint("write keep: true for what shall not be translated"))
	}
}
