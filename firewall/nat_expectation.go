package firewall

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// testNAT reads none, or what source and destination become.
func (l *loader) testNAT(n *Node) TestNAT {
	out := TestNAT{Pos: n.Pos}
	if n.Kind == ScalarNode && n.Text == NameNone {
		out.None = true
		return out
	}
	before := len(l.Errs)
	f := l.Fields(n, "nat", keys["translated"])
	if len(f) == 0 && len(l.Errs) == before {
		l.Fail(n.Pos.Errorf("nat says nothing").WithHint("write nat: none, or nat: {src: masquerade, dst: ADDRESS}"))
	}
	if v := f["src"]; v != nil {
		if out.Masquerade = v.Kind == ScalarNode && v.Text == string(NATMasquerade); !out.Masquerade {
			out.Src = l.natAddress(v, "write the address that the source becomes, one of the pool is enough, or masquerade")
		}
	}
	if v := f["dst"]; v != nil {
		if text, ok := l.Text(v, "an address"); ok {
			var err error
			if out.Dst, err = netip.ParseAddrPort(text); err != nil {
				out.Dst = netip.AddrPortFrom(l.natAddress(v, "write the server's address, with its port if wanted: \"10.30.0.5:8080\""), 0)
			}
		}
	}
	return out
}

// natAddress reads the address that one end becomes.
func (l *loader) natAddress(n *Node, hint string) netip.Addr {
	text, ok := l.Text(n, "an address")
	if !ok {
		return netip.Addr{}
	}
	a, _, err := parseAddress(text)
	if err != nil {
		l.Fail(n.Pos.Errorf("%v", err).WithHint("%s", hint))
		return netip.Addr{}
	}
	return a
}

// text writes what is expected in one line, "" for nothing.
func (e *TestNAT) text() string {
	var parts []string
	switch {
	case e.None:
		return NameNone
	case e.Masquerade:
		parts = append(parts, "src "+string(NATMasquerade))
	case e.Src.IsValid():
		parts = append(parts, "src "+e.Src.String())
	}
	if e.Dst.IsValid() {
		parts = append(parts, "dst "+endText(e.Dst))
	}
	return strings.Join(parts, " ")
}

// endText writes an address, and its port if there is one.
func endText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// translation is what becomes of a packet that opens a flow, as far as it does not hang on the running
// gateway: its secret chooses among several servers and addresses.
type translation struct {
	destination, source uint32              // nat rules, 0: none
	to                  []netip.AddrPort    // what the destination may become; empty: it stays
	from                flowtable.AddrRange // what the source may become
	masquerade, pool    bool                // the source becomes the port's address; one of from
	exempt              bool                // no rule for destinations is asked: management, or the gateway's own DHCP
}

// natDestination asks the rules for destinations about a packet without its egress zone. Local says that
// its destination is the gateway's own address.
func (c *Compiled) natDestination(k *bpf.XDPClassifyKey, local bool) (t translation) {
	if c.NAT == nil || c.NAT.Destinations == nil || k.From == zoneHost || IsGroup(keyAddress(k.Family, k.DstHi, k.DstLo)) {
		return t
	}
	ask := *k
	if ask.To = 0; local {
		ask.To = zoneHost
	}
	verdict := c.NAT.Destinations.Classify(&ask, nil)
	t.destination = verdict & (maxRules - 1)
	t.exempt = verdict != 0 && t.destination == 0
	r := &c.NAT.Rules[t.destination]
	switch bpf.XDPNatKind(r.Kind) {
	case bpf.XDPNatKindNAT_DESTINATION:
		for _, i := range c.NAT.Buckets[r.Bucket : r.Bucket+r.Buckets] {
			s := &c.NAT.Servers[i]
			port := bits.ReverseBytes16(s.Port)
			switch {
			case k.Proto != protoTCP && k.Proto != protoUDP:
				port = 0
			case port == 0:
				port = k.Dport
			}
			if to := netip.AddrPortFrom(natAddress(r.Family, &s.Address), port); !slices.Contains(t.to, to) {
				t.to = append(t.to, to)
			}
		}
	case bpf.XDPNatKindNAT_PREFIX_DESTINATION:
		if a, ok := flowtable.PutPrefix(r, keyAddress(k.Family, k.DstHi, k.DstLo)); ok {
			port := k.Dport
			if k.Proto != protoTCP && k.Proto != protoUDP {
				port = 0
			}
			t.to = []netip.AddrPort{netip.AddrPortFrom(a, port)}
		}
	}
	return t
}

// IsGroup reports whether an address stands for several ends: no nat rule is asked about what goes there.
func IsGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// natSource asks the rules for sources about an allowed packet with both its zones.
func (c *Compiled) natSource(k *bpf.XDPClassifyKey, t *translation) {
	if c.NAT == nil || k.From == zoneHost || k.To == zoneHost {
		return
	}
	if c.NAT.Sources != nil {
		t.source = c.NAT.Sources.Classify(k, nil) & (maxRules - 1)
	}
	if t.source == 0 {
		// Without servers the rule for destinations does nothing.
		if len(t.to) > 0 && k.From == k.To && c.NAT.Rules[t.destination].Flags&natHairpin != 0 {
			t.source, t.masquerade = t.destination, true
		}
		return
	}
	r := &c.NAT.Rules[t.source]
	switch bpf.XDPNatKind(r.Kind) {
	case bpf.XDPNatKindNAT_MASQUERADE:
		t.masquerade = true
	case bpf.XDPNatKindNAT_SOURCE:
		first := natAddress(r.Family, &r.Address)
		t.pool, t.from = true, flowtable.AddrRange{First: first, Last: first}
		for range r.Addresses - 1 {
			t.from.Last = t.from.Last.Next()
		}
	case bpf.XDPNatKindNAT_PREFIX_SOURCE:
		if a, ok := flowtable.PutPrefix(r, keyAddress(k.Family, k.SrcHi, k.SrcLo)); ok {
			t.pool, t.from = true, flowtable.AddrRange{First: a, Last: a}
		}
	}
}

// fault says what of a translation is not as expected, "" if nothing.
func (t *translation) fault(c *Compiled, p *TestPacket, want *TestNAT) string {
	source, destination := "source "+p.Src.String()+" as it was", "destination "+p.Dst.String()+" as it was"
	switch {
	case t.masquerade:
		source = "a masqueraded source by " + c.natRuleText(t.source)
	case t.pool:
		source = "source " + addressText(t.from) + " by " + c.natRuleText(t.source)
	}
	if len(t.to) > 0 {
		destination = "destination " + list(t.to, endText) + " by " + c.natRuleText(t.destination)
	}
	switch {
	case want.None && (t.masquerade || t.pool), want.Masquerade && !t.masquerade, want.Src.IsValid() && !t.mayComeFrom(want.Src, p):
		return "expected nat " + want.text() + ", got " + source
	case want.None && len(t.to) > 0, want.Dst.IsValid() && !t.mayGoTo(want.Dst, p):
		return "expected nat " + want.text() + ", got " + destination
	}
	return ""
}

func (t *translation) mayComeFrom(a netip.Addr, p *TestPacket) bool {
	switch {
	case t.masquerade:
		return false // which one is not known here
	case t.pool:
		return !a.Less(t.from.First) && !t.from.Last.Less(a)
	}
	return a == p.Src
}

// mayGoTo compares the port too if there is one.
func (t *translation) mayGoTo(a netip.AddrPort, p *TestPacket) bool {
	to := t.to
	if len(to) == 0 {
		to = []netip.AddrPort{netip.AddrPortFrom(p.Dst, p.DstPort)}
	}
	return slices.ContainsFunc(to, func(b netip.AddrPort) bool {
		return a.Addr() == b.Addr() && (a.Port() == 0 || a.Port() == b.Port())
	})
}

// natRuleText names a nat rule with its place.
func (c *Compiled) natRuleText(id uint32) string {
	r := &c.NATRules[id]
	return fmt.Sprintf("nat rule %q, %s:%d", r.Name, r.File, r.Line)
}

// natAddress is the inverse of natWords.
func natAddress(family uint8, w *[4]uint32) netip.Addr {
	var b []byte
	for _, x := range w {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	if family == 4 {
		b = b[:4]
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// keyAddress returns an address of a classifier's key.
func keyAddress(family uint8, hi, lo uint64) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(lo))))
	}
	return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, hi), lo)))
}
