package firewall

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/flowtable"
)

// parseAddresses reads an address, a prefix or a first-last range. The second value is the remedy
// where the third says that the text is wrong.
func parseAddresses(text string) (flowtable.AddrRange, string, error) {
	var none flowtable.AddrRange
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return none, "a prefix is written as in 10.20.0.0/16 or 2001:db8::/32", fmt.Errorf("%q is not a prefix", text)
		}
		if p.Addr().Is4In6() {
			return none, "write the IPv4 prefix itself", fmt.Errorf("%q is an IPv4 prefix in IPv6 clothes", text)
		}
		if p != p.Masked() {
			return none, fmt.Sprintf("write %s, or %s for the one address", p.Masked(), p.Addr()),
				fmt.Errorf("%q has bits set beyond its length", text)
		}
		return prefixRange(p), "", nil
	}
	first, last, isRange := strings.Cut(text, "-")
	a, hint, err := parseAddress(strings.TrimSpace(first))
	if err != nil {
		return none, hint, err
	}
	if !isRange {
		return flowtable.AddrRange{First: a, Last: a}, "", nil
	}
	b, hint, err := parseAddress(strings.TrimSpace(last))
	switch {
	case err != nil:
		return none, hint, err
	case a.Is4() != b.Is4():
		return none, "both ends are of one family", fmt.Errorf("%q mixes IPv4 and IPv6", text)
	case b.Less(a):
		return none, fmt.Sprintf("write %s-%s", b, a), fmt.Errorf("%q ends before it begins", text)
	}
	return flowtable.AddrRange{First: a, Last: b}, "", nil
}

func parseAddress(text string) (netip.Addr, string, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, "write an address, a prefix as in 10.20.0.0/16 or 2001:db8::/32, or a range as in 10.0.0.1-10.0.0.9",
			fmt.Errorf("%q is not an address", text)
	case a.Zone() != "":
		return a, fmt.Sprintf("write %s and say the zone with `zone:`", a.WithZone("")), fmt.Errorf("%q names an interface", text)
	case a.Is4In6():
		return a, fmt.Sprintf("write %s", a.Unmap()), fmt.Errorf("%q is an IPv4 address in IPv6 clothes", text)
	}
	return a, "", nil
}

// looksLikeAddress reports whether a bare word would be read as addresses.
func looksLikeAddress(text string) bool {
	if strings.Contains(text, "/") || strings.Contains(text, ":") {
		return true
	}
	first, _, _ := strings.Cut(text, "-")
	_, err := netip.ParseAddr(first)
	return err == nil
}

func prefixRange(p netip.Prefix) flowtable.AddrRange {
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	l, _ := netip.AddrFromSlice(last)
	return flowtable.AddrRange{First: p.Addr(), Last: l}
}

// parseMAC reads a 48-bit address.
func parseMAC(text string) (MAC, string, error) {
	hw, err := net.ParseMAC(text)
	if err != nil || len(hw) != 6 {
		return MAC{}, "write it as in 02:00:5e:10:00:01", fmt.Errorf("%q is not an Ethernet address", text)
	}
	m := MAC(hw)
	if m[0]&1 != 0 {
		return MAC{}, "only a single station's address can be a source", fmt.Errorf("%q is a group address", text)
	}
	return m, "", nil
}

func (r *Reader) addresses(n *Node, what string) []flowtable.AddrRange {
	out := []flowtable.AddrRange{}
	for _, item := range r.List(n) {
		text, ok := r.Text(item, what)
		if !ok {
			continue
		}
		a, hint, err := parseAddresses(text)
		if err != nil {
			r.Fail(item.Pos.Errorf("%v", err).WithHint("%s", hint))
			continue
		}
		out = append(out, a)
	}
	return out
}

func (r *Reader) macs(n *Node, what string) []MAC {
	var out []MAC
	for _, item := range r.List(n) {
		text, ok := r.Text(item, what)
		if !ok {
			continue
		}
		m, hint, err := parseMAC(text)
		if err != nil {
			r.Fail(item.Pos.Errorf("%v", err).WithHint("%s", hint))
			continue
		}
		out = append(out, m)
	}
	return out
}

// joinAddresses sorts ranges, IPv4 first, and joins those that meet or touch. The result is new.
func joinAddresses(in []flowtable.AddrRange) []flowtable.AddrRange {
	sorted := slices.Clone(in)
	slices.SortFunc(sorted, func(a, b flowtable.AddrRange) int {
		if c := a.First.Compare(b.First); c != 0 {
			return c
		}
		return a.Last.Compare(b.Last)
	})
	out := sorted[:0]
	for _, a := range sorted {
		if n := len(out); n > 0 && out[n-1].First.Is4() == a.First.Is4() {
			end := out[n-1].Last
			if next := end.Next(); !next.IsValid() || !next.Less(a.First) {
				if end.Less(a.Last) {
					out[n-1].Last = a.Last
				}
				continue
			}
		}
		out = append(out, a)
	}
	return out
}

// intersectAddresses returns what two joined lists have in common, joined.
func intersectAddresses(a, b []flowtable.AddrRange) []flowtable.AddrRange {
	out := []flowtable.AddrRange{}
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if a[i].First.Is4() == b[j].First.Is4() {
			first, last := a[i].First, a[i].Last
			if first.Less(b[j].First) {
				first = b[j].First
			}
			if b[j].Last.Less(last) {
				last = b[j].Last
			}
			if !last.Less(first) {
				out = append(out, flowtable.AddrRange{First: first, Last: last})
			}
		}
		if a[i].Last.Less(b[j].Last) {
			i++
		} else {
			j++
		}
	}
	return out
}

// complementAddresses returns all addresses of both families that a joined list does not hold.
func complementAddresses(in []flowtable.AddrRange) []flowtable.AddrRange {
	var out []flowtable.AddrRange
	for _, whole := range []flowtable.AddrRange{
		prefixRange(netip.MustParsePrefix("0.0.0.0/0")),
		prefixRange(netip.MustParsePrefix("::/0")),
	} {
		next := whole.First
		for _, a := range in {
			if a.First.Is4() != whole.First.Is4() {
				continue
			}
			if next.Less(a.First) {
				out = append(out, flowtable.AddrRange{First: next, Last: a.First.Prev()})
			}
			next = a.Last.Next()
		}
		if next.IsValid() {
			out = append(out, flowtable.AddrRange{First: next, Last: whole.Last})
		}
	}
	return out
}

// familyAddresses returns the ranges of one family; 0 keeps both, nil stays nil.
func familyAddresses(in []flowtable.AddrRange, family uint8) []flowtable.AddrRange {
	if family == 0 || in == nil {
		return in
	}
	out := []flowtable.AddrRange{}
	for _, a := range in {
		if a.First.Is4() == (family == 4) {
			out = append(out, a)
		}
	}
	return out
}

// joinPorts sorts ranges and joins those that meet or touch. The result is new.
func joinPorts(in []flowtable.U16Range) []flowtable.U16Range {
	sorted := slices.Clone(in)
	slices.SortFunc(sorted, func(a, b flowtable.U16Range) int { return int(a.First) - int(b.First) })
	out := sorted[:0]
	for _, p := range sorted {
		if n := len(out); n > 0 && int(p.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, p.Last)
			continue
		}
		out = append(out, p)
	}
	return out
}
