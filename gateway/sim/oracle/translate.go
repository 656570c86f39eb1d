package oracle

import (
	"fmt"
	"net/netip"

	"github.com/softdpu/softdpu/firewall"
)

// translation is what becomes of the two ends of a flow that is about to be opened.
type translation struct {
	outer       key // in the opener's direction
	destination *firewall.NATRule
	mapping     *Mapping // by which it comes in
	source      string   // name of the rule for its source, "" for none
	wrong       string   // what the executor chose and may not
}

// affinity is what one choice must be the same for.
type affinity struct {
	rule     string
	src, dst netip.Addr
	proto    uint8
}

// mark is an end of a flow whose port may be taken. Masquerading has the same marks for all its addresses,
// under none.
type mark struct {
	addr  netip.Addr
	port  uint16
	proto uint8
}

func markOf(r *firewall.NATRule, k key) mark {
	if r.Kind == firewall.NATSource {
		return mark{k.src, k.sport, k.proto}
	}
	return mark{port: k.sport, proto: k.proto}
}

// translateDestination is section 15, step 3.
func (o *Oracle) translateDestination(p *packet, op Opening, c *Choice) (t translation, reason string) {
	t.outer = p.key()
	if number, _ := o.world.pair(p.port); number != 0 {
		return t, ""
	}
	r, decided := o.destinationAnswer(op)
	if r == nil {
		if m := o.admits(p); m != nil && !decided {
			t.mapping, t.outer.dst, t.outer.dport = m, m.Inside.Addr(), m.Inside.Port()
		}
		return t, ""
	}
	t.destination = r
	if r.Kind == firewall.NATPrefix {
		to, ok := movePrefix(op.Dst, r.Outside, r.Inside)
		if !ok {
			return t, "nat-conflict"
		}
		t.outer.dst = to
		return t, ""
	}
	s, wrong := o.server(p, r, c)
	t.outer.dst, t.wrong = s.Address, wrong
	if s.Port != 0 && (p.proto == protoTCP || p.proto == protoUDP) {
		t.outer.dport = s.Port
	}
	return t, ""
}

// server returns the one that the executor chose, or says why it may not have.
func (o *Oracle) server(p *packet, r *firewall.NATRule, c *Choice) (firewall.NATServer, string) {
	all := willing(r)
	if len(all) == 1 {
		return all[0], ""
	}
	if c == nil {
		return all[0], fmt.Sprintf("rule %q has %d servers, and nobody said which it is", r.Name, len(all))
	}
	var chosen *firewall.NATServer
	for i := range all {
		if all[i].Address == c.Routed && (!c.Made || all[i].Port == 0 || all[i].Port == c.Dst.Port()) {
			chosen = &all[i]
		}
	}
	if chosen == nil {
		return all[0], fmt.Sprintf("%s is none of the servers of rule %q that take flows", c.Routed, r.Name)
	}
	if !r.ByConnection {
		at := affinity{rule: r.Name, src: p.src, dst: p.dst, proto: p.proto}
		if before, ok := o.servers[at]; ok && before != chosen.Address {
			return *chosen, fmt.Sprintf("%s has had server %s of rule %q, and now has %s", p.src, before, r.Name, chosen.Address)
		}
		o.servers[at] = chosen.Address
	}
	return *chosen, ""
}

// translateSource is section 15, steps 4 and 5.
func (o *Oracle) translateSource(p *packet, op Opening, h hop, t *translation, c *Choice) (reason string) {
	if h.host() || h.peer {
		return ""
	}
	hairpin := o.hairpin(t.mapping, op)
	r, to := o.sourceRule(op), h.zone
	kind := firewall.NATKeep
	switch d := t.destination; {
	case hairpin != nil:
		r, kind, to = hairpin, hairpin.Kind, t.mapping.To
	case r != nil:
		kind = r.Kind
	case d != nil && d.Kind == firewall.NATDestination && d.Hairpin && op.From == op.To:
		r, kind = d, firewall.NATMasquerade
	}
	if kind != firewall.NATKeep {
		t.source = r.Name
	}
	switch kind {
	case firewall.NATMasquerade:
		a, ok := o.masquerade(h, p.is4())
		if hairpin != nil {
			a, ok = p.dst, true
		}
		if !ok {
			return "nat-no-address"
		}
		t.outer.src = a
		return o.choosePort(p, r, t, c, to)
	case firewall.NATSource:
		o.chooseAddress(p, r, t, c)
		return o.choosePort(p, r, t, c, to)
	case firewall.NATPrefix:
		to, ok := movePrefix(op.Src, r.Inside, r.Outside)
		if !ok {
			return "nat-conflict"
		}
		t.outer.src = to
	}
	return o.unchosen(p, r, t, c)
}

// unchosen is what there is only one try for.
func (o *Oracle) unchosen(p *packet, r *firewall.NATRule, t *translation, c *Choice) string {
	if t.outer == p.key() {
		return ""
	}
	if t.outer.src != t.outer.dst && o.hasEnough(p, r) {
		return "nat-source-limit"
	}
	if !t.outer.src.IsValid() {
		if c.refused("nat-conflict") {
			return "nat-conflict"
		}
		t.outer, t.wrong = p.key(), fmt.Sprintf("rule %q has an address for %s, and no translated flow was made", r.Name, p.src)
		return ""
	}
	if t.outer.src == t.outer.dst || t.outer == p.key().reverse() {
		return "nat-conflict"
	}
	if f := o.owner(t.outer); f != nil && !(f.outer != nil && *f.outer == t.outer && f.original == p.key()) {
		return "nat-conflict"
	}
	return ""
}

// taken reports whether a flow's outer tuple cannot be k: it is another's, or the flow's own before it.
func (o *Oracle) taken(k, own key) bool {
	return k == own || k == own.reverse() || o.owner(k) != nil
}

// owner returns whose tuple k is, in either direction, original or outer; nil if it is nobody's.
func (o *Oracle) owner(k key) *flow {
	for _, k := range []key{k, k.reverse()} {
		if f := o.flows[k]; f != nil {
			return f
		}
		if f := o.aliases[k]; f != nil {
			return f
		}
	}
	return nil
}

// chooseAddress takes the executor's choice out of a pool: one sender has one outer address.
func (o *Oracle) chooseAddress(p *packet, r *firewall.NATRule, t *translation, c *Choice) {
	at := affinity{rule: r.Name, src: p.src}
	before, known := o.pooled[at]
	mapped, isMapped := mappedAddress(p, r, c)
	switch {
	case isMapped && !c.made() && !known:
		o.pooled[at], t.outer.src = mapped, mapped
		return
	case r.Pool.First == r.Pool.Last:
		t.outer.src = r.Pool.First
		return
	case !c.made():
		// Nobody knows which it would have been, but that there is a reason if it is refused, and that it is
		// the sender's own if nothing is translated.
		switch t.outer.src = before; {
		case known || c == nil || c.refused("nat-exhausted") || c.refused("nat-source-limit"):
		case c.refused("nat-conflict"):
			if between(r.Pool.First, t.outer.dst, r.Pool.Last) {
				t.outer.src = t.outer.dst
			}
		case between(r.Pool.First, p.src, r.Pool.Last):
			t.outer.src = p.src
		}
		return
	case !between(r.Pool.First, c.Src.Addr(), r.Pool.Last):
		t.wrong = fmt.Sprintf("%s is not of the pool of rule %q", c.Src.Addr(), r.Name)
	case known && before != c.Src.Addr():
		t.wrong = fmt.Sprintf("%s has had address %s of rule %q, and now has %s", p.src, before, r.Name, c.Src.Addr())
	}
	o.pooled[at] = c.Src.Addr()
	t.outer.src = c.Src.Addr()
}

// choosePort takes the executor's choice of a port or identifier, or finds that there was none.
func (o *Oracle) choosePort(p *packet, r *firewall.NATRule, t *translation, c *Choice, to string) string {
	switch p.proto {
	case protoTCP, protoUDP, protoICMP, protoICMPv6:
	default:
		return o.unchosen(p, r, t, c)
	}
	if r.Mapping {
		return o.mapSource(p, r, t, c, to)
	}
	switch {
	case t.outer == p.key():
		return ""
	case t.outer.src == t.outer.dst:
		return "nat-conflict"
	case o.hasEnough(p, r):
		return "nat-source-limit"
	}
	first, last := int(r.Ports.First), int(r.Ports.Last)
	if !c.made() {
		if c.refused("nat-exhausted") && o.mayBeExhausted(r, *t, p.key()) || t.outer.src.IsValid() && o.exhausted(first, last, t.outer, p.key()) {
			return "nat-exhausted"
		}
		t.wrong = fmt.Sprintf("ports of %s for rule %q are free, and no translated flow was made", t.outer.src, r.Name)
		t.outer = p.key()
		return ""
	}
	port := int(c.Src.Port())
	switch same := markOf(r, t.outer); {
	case c.Src.Addr() != t.outer.src:
		t.wrong = fmt.Sprintf("rule %q translates to %s, not to %s", r.Name, t.outer.src, c.Src.Addr())
	case port < first || last < port:
		t.wrong = fmt.Sprintf("port %d is not of rule %q", port, r.Name)
	case port != int(same.port) && first <= int(same.port) && int(same.port) <= last && !o.marks[same]:
		t.wrong = fmt.Sprintf("port %d became %d, and nobody has it on %s", same.port, port, t.outer.src)
	}
	t.outer.sport = c.Src.Port()
	if o.taken(t.outer, p.key()) && t.wrong == "" {
		t.wrong = fmt.Sprintf("port %d of %s is another flow's", port, t.outer.src)
	}
	return ""
}

// hasEnough reports whether the source of a packet that opens a flow has as many as the rule lets it. One that
// opens a connection anew still has the old one.
func (o *Oracle) hasEnough(p *packet, r *firewall.NATRule) bool {
	if r == nil || r.SourceLimit == 0 {
		return false
	}
	bits := 64
	if p.is4() {
		bits = 32
	}
	source, has := netip.PrefixFrom(p.src, bits), 0
	for _, f := range o.aliases {
		if f.source == r.Name && source.Masked().Contains(f.original.src) {
			has++
		}
	}
	if o.owner(p.key()) != nil {
		has--
	}
	return has >= r.SourceLimit
}

// exhausted reports whether each port is taken with the same other end.
func (o *Oracle) exhausted(first, last int, outer, own key) bool {
	for port := first; port <= last; port++ {
		outer.sport = uint16(port)
		if !o.taken(outer, own) {
			return false
		}
	}
	return true
}

// tries is NAT_TRIES.
const tries = 8

// mayBeExhausted reports whether each port of some address of the rule has been somebody's, with whatever other
// end: remote ends share the marks of what is taken. Under a new policy nothing is marked, and ports that are in
// use are found by trying.
func (o *Oracle) mayBeExhausted(r *firewall.NATRule, t translation, own key) bool {
	all := func(a netip.Addr) bool {
		marked, used := true, 0
		for port := int(r.Ports.First); port <= int(r.Ports.Last); port++ {
			outer := t.outer
			outer.src, outer.sport = a, uint16(port)
			marked = marked && o.marks[markOf(r, outer)]
			if o.taken(outer, own) {
				used++
			}
		}
		return marked || used >= tries
	}
	if r.Kind != firewall.NATSource || t.outer.src.IsValid() {
		return all(t.outer.src)
	}
	for a := r.Pool.First; between(r.Pool.First, a, r.Pool.Last); a = a.Next() {
		if all(a) {
			return true
		}
	}
	return false
}
