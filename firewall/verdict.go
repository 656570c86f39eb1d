package firewall

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
)

// Key makes what a classifier sees of a packet, without zones and MAC identity. Ports are in host
// order; dport of ICMP and ICMPv6 is type << 8 | code.
func Key(src, dst netip.Addr, proto uint8, sport, dport uint16) bpf.XDPClassifyKey {
	k := bpf.XDPClassifyKey{Proto: proto, Sport: sport, Dport: dport, Family: 6}
	if src.Is4() {
		k.Family = 4
	}
	k.SrcHi, k.SrcLo = halves(src)
	k.DstHi, k.DstLo = halves(dst)
	return k
}

func halves(a netip.Addr) (hi, lo uint64) {
	b := a.AsSlice()
	if a.Is4() {
		return 0, uint64(binary.BigEndian.Uint32(b))
	}
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
}

// verdictOf returns a verdict's word in tests.
func verdictOf(verdict uint32) TestVerdict {
	switch bpf.XDPAction(verdict >> 24 & 7) {
	case bpf.XDPActionACTION_ALLOW:
		return VerdictAllow
	case bpf.XDPActionACTION_REJECT:
		return VerdictReject
	case bpf.XDPActionACTION_SPOOFED:
		return VerdictDrop
	}
	return VerdictDeny
}

// Explain says what decided: rule, file and line, or why none did. Verdict is what a classifier
// answered.
func (c *Compiled) Explain(verdict uint32) string {
	id := verdict & (maxRules - 1)
	switch {
	case bpf.XDPAction(verdict>>24&7) == bpf.XDPActionACTION_SPOOFED:
		return "spoofed: the source is outside the addresses of its zone"
	case id == RuleNone:
		return "no rule matched"
	case int(id) >= len(c.Rules) || c.Rules[id].Name == "":
		return fmt.Sprintf("rule %d, which this policy does not have", id)
	case c.Rules[id].Builtin:
		return fmt.Sprintf("built-in rule %q", c.Rules[id].Name)
	}
	r := &c.Rules[id]
	return fmt.Sprintf("rule %q, %s:%d", r.Name, r.File, r.Line)
}
