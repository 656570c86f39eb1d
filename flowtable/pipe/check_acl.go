package pipe

import (
	"math/bits"
	"slices"
	"strings"
)

// aclFields are what entries of ACL pipes match on.
var aclFields = []string{"ipv4.src", "ipv4.dst", "ipv6.src", "ipv6.dst", "ip.proto", "l4.sport", "l4.dport", "icmp.type", "icmp.code"}

// acl checks what an entry of an ACL pipe matches on.
func (c *checker) acl(at subject, e *Entry) {
	has := func(prefix string) bool {
		return slices.ContainsFunc(e.Match, func(m Match) bool { return strings.HasPrefix(m.Field.Name, prefix) })
	}
	for i := range e.Match {
		m := &e.Match[i]
		in := at.field(m.Pos, m.Field)
		if !slices.Contains(aclFields, m.Field.Name) {
			c.used.fields[m.Field.Name] = true
			c.fail(in.Errorf("an acl pipe does not match on it").WithHint("it does on %s: take kind control, or forward to another pipe", commas(aclFields)))
			continue
		}
		c.match(at, e, i)
		switch {
		case m.Last != nil && m.Field.Name != "l4.sport" && m.Field.Name != "l4.dport":
			c.fail(in.Errorf("an acl pipe takes ranges of ports alone").WithHint("write several entries, or take kind control"))
		case addresses[m.Field.Name]:
			if !isPrefix(m.mask()) {
				c.fail(in.Errorf("the mask %s is no prefix's", hexText(m.mask())).WithHint("an acl pipe takes prefixes, as in 10.0.0.0/8, and kind control any mask"))
			}
		case m.Mask != nil && !slices.Equal(m.Mask, m.Field.Full()):
			c.fail(in.Errorf("an acl pipe takes no mask here").WithHint("ports are ranges, and other values single: kind control takes masks"))
		}
	}
	if has("ipv4.") && has("ipv6.") {
		c.fail(at.Errorf("no packet has addresses of IPv4 and of IPv6").WithHint("make two entries of it"))
	}
	if has("l4.") && has("icmp.") {
		c.fail(at.Errorf("no packet has ports and a type of ICMP").WithHint("make two entries of it"))
	}
	if has("icmp.code") && !has("icmp.type") {
		c.fail(at.Errorf("a code of ICMP without a type").WithHint("add icmp.type"))
	}
	c.protocol(at, e, has("l4."), has("icmp."))
}

// protocol finds a protocol that does not have what else the entry matches on.
func (c *checker) protocol(at subject, e *Entry, ports, icmp bool) {
	i := slices.IndexFunc(e.Match, func(m Match) bool { return m.Field.Name == "ip.proto" })
	if i < 0 || len(e.Match[i].Value) != 1 {
		return
	}
	at = at.field(e.Match[i].Pos, e.Match[i].Field)
	switch proto := e.Match[i].Value[0]; {
	case ports && proto != 6 && proto != 17:
		c.fail(at.Errorf("protocol %d has no ports that are known here", proto).WithHint("tcp (6) and udp (17) have"))
	case icmp && proto != 1 && proto != 58:
		c.fail(at.Errorf("protocol %d has no types of ICMP", proto).WithHint("icmp (1) and icmpv6 (58) have"))
	}
}

// isPrefix says that a mask is ones, then zeros.
func isPrefix(mask Value) bool {
	ended := false
	for _, w := range mask {
		ones := bits.LeadingZeros32(^w)
		if w<<ones != 0 || ended && w != 0 {
			return false
		}
		ended = ended || ones < 32
	}
	return true
}
