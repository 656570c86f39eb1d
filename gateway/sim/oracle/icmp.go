package oracle

import (
	"encoding/binary"
	"net/netip"
)

// icmpKind sorts ICMP messages as section 6 does.
type icmpKind uint8

const (
	icmpOther icmpKind = iota
	icmpError
	icmpDiscovery // of neighbours
	icmpListeners // of multicast groups
	icmpQuery
	icmpReply
)

var icmpKinds = map[[2]uint8]icmpKind{
	{protoICMP, 3}: icmpError, {protoICMP, 11}: icmpError, {protoICMP, 12}: icmpError,
	{protoICMP, 8}: icmpQuery, {protoICMP, 13}: icmpQuery,
	{protoICMP, 0}: icmpReply, {protoICMP, 14}: icmpReply,
	{protoICMPv6, 1}: icmpError, {protoICMPv6, 2}: icmpError, {protoICMPv6, 3}: icmpError, {protoICMPv6, 4}: icmpError,
	{protoICMPv6, 133}: icmpDiscovery, {protoICMPv6, 134}: icmpDiscovery, {protoICMPv6, 135}: icmpDiscovery,
	{protoICMPv6, 136}: icmpDiscovery, {protoICMPv6, 137}: icmpDiscovery,
	{protoICMPv6, 130}: icmpListeners, {protoICMPv6, 131}: icmpListeners, {protoICMPv6, 132}: icmpListeners,
	{protoICMPv6, 143}: icmpListeners,
	{protoICMPv6, 128}: icmpQuery, {protoICMPv6, 129}: icmpReply,
}

// icmpKind is icmpOther for all other protocols too.
func (p *packet) icmpKind() icmpKind { return icmpKinds[[2]uint8{p.proto, p.icmpType}] }

// onLink reports whether discovery is what section 6 says: sent on this link, to be read on it.
func (p *packet) onLink() bool {
	switch {
	case p.fragment:
		return false
	case p.icmpKind() == icmpDiscovery:
		return p.ttl == 255
	}
	from := linkLocal6.Contains(p.src)
	if p.icmpType != 130 { // a query comes from somebody
		from = from || p.src.IsUnspecified()
	}
	return p.icmpKind() == icmpListeners && p.ttl == 1 && from && group6.Contains(p.dst)
}

// quoted reads the packet inside an ICMP error. A key that speaks of no flow is invalid. Query is as
// packet.query says.
func (p *packet) quoted() (k key, query uint16, reason string) {
	malformed := "malformed-icmp"
	if !p.is4() {
		malformed = "malformed-icmpv6"
	}
	b := p.payload[8:]
	var src, dst netip.Addr
	var proto uint8
	var rest []byte
	later := false
	if p.is4() {
		if len(b) < 20 || b[0]>>4 != 4 || b[0]&15 < 5 || int(b[0]&15)*4 > len(b) {
			return k, 0, malformed
		}
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		proto, rest = b[9], b[int(b[0]&15)*4:]
		later = binary.BigEndian.Uint16(b[6:])&0x1fff != 0
	} else {
		if len(b) < 40 || b[0]>>4 != 6 {
			return k, 0, malformed
		}
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		c := extensions(b[6], b[40:])
		if c.reason != "" {
			return k, 0, malformed
		}
		proto, rest, later = c.proto, c.rest, c.fragment && c.offset != 0
	}
	switch {
	case len(rest) < 8:
		return k, 0, malformed
	case later, src == dst:
		return k, 0, "icmp-no-flow"
	}
	k = key{src: src, dst: dst, proto: proto, domain: p.domain}
	switch proto {
	case protoTCP, protoUDP:
		k.sport, k.dport = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	case protoICMP, protoICMPv6:
		id := binary.BigEndian.Uint16(rest[4:])
		switch kind := icmpKinds[[2]uint8{proto, rest[0]}]; {
		case (proto == protoICMP) == p.is4() && kind == icmpQuery:
			k.sport, query = id, binary.BigEndian.Uint16(rest)
		case (proto == protoICMP) == p.is4() && kind == icmpReply:
			k.dport, query = id, queryOf[rest[0]]<<8
		default:
			return k, 0, "icmp-no-flow"
		}
	}
	return k, query, ""
}

// icmpErrorPacket is section 6 for errors: they follow the flow that they speak of.
func (o *Oracle) icmpErrorPacket(p *packet) Verdict {
	k, query, reason := p.quoted()
	if reason != "" {
		return drop(reason)
	}
	// It goes the way of what the quoted packet's receiver sends.
	p.about = k.reverse()
	f, fromOpener, reason := o.meet(p.about)
	if f == nil || k.src != p.dst {
		return drop("icmp-no-flow")
	}
	if reason != "" {
		return drop(reason)
	}
	audit := o.rejudge(f, query)
	if f.revoked {
		return drop("icmp-no-flow").audited(audit)
	}
	// The far end of the quoted packet, or a router on the way there, sends the error.
	far := f.opening.From
	if !fromOpener {
		far = f.opening.To
	}
	if p.zone != far {
		return f.refuse("wrong-zone").audited(audit)
	}
	h, more, reason := o.leave(p, f, fromOpener, query)
	audit = append(audit, more...)
	if reason != "" {
		return f.refuse(reason).audited(audit)
	}
	cause, reason := limits(p, h)
	if reason != "" {
		return f.refuse(reason).audited(audit)
	}
	v := forward(p, f, h, cause, fromOpener, false).audited(audit)
	v.Beside = append(v.Beside, ruleICMPErrors)
	if !fromOpener {
		v.Beside = append(v.Beside, ruleReplies)
	}
	return v
}
