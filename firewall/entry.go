package firewall

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/flowtable"
)

// Entry is one entry of a set. Only the field of the set's type is used. Entries of a type that mean the
// same are equal, however they were written.
type Entry struct {
	Addresses flowtable.AddrRange
	Ports     flowtable.U16Range
	MAC       MAC
	Name      string // in lower case
}

// ParseEntry reads an entry of a set of type t. Hint is the remedy where the error says that the text is
// wrong.
func ParseEntry(t SetType, text string) (e Entry, hint string, err error) {
	switch t {
	case SetPrefix:
		e.Addresses, hint, err = parseAddresses(text)
	case SetPort:
		e.Ports, hint, err = parsePorts(text)
	case SetMAC:
		e.MAC, hint, err = parseMAC(text)
	case SetName:
		if text == "" || strings.ContainsAny(text, " \t/:@") {
			return e, "write a host name as in example.com or *.example.com", fmt.Errorf("%q is not a host name", text)
		}
		e.Name = strings.ToLower(text)
	default:
		err = fmt.Errorf("%q is no type of set", t)
	}
	return e, hint, err
}

// Text writes an entry of a set of type t in the one way in which lists show it.
func (e Entry) Text(t SetType) string {
	switch t {
	case SetPrefix:
		return addressText(e.Addresses)
	case SetPort:
		return portText(e.Ports)
	case SetMAC:
		return e.MAC.String()
	}
	return e.Name
}

// addressText writes one address alone, a prefix as such, and any other range with both its ends.
func addressText(a flowtable.AddrRange) string {
	if a.First == a.Last {
		return a.First.String()
	}
	first, last := a.First.AsSlice(), a.Last.AsSlice()
	bits := 0
	for i := range first {
		x := first[i] ^ last[i]
		if x == 0 {
			bits += 8
			continue
		}
		for x&0x80 == 0 {
			x <<= 1
			bits++
		}
		break
	}
	if p := netip.PrefixFrom(a.First, bits); p == p.Masked() && prefixRange(p) == a {
		return p.String()
	}
	return fmt.Sprintf("%s-%s", a.First, a.Last)
}

// Compare orders entries of one type.
func (e Entry) Compare(other Entry) int {
	return cmp.Or(
		e.Addresses.First.Compare(other.Addresses.First), e.Addresses.Last.Compare(other.Addresses.Last),
		cmp.Compare(e.Ports.First, other.Ports.First), cmp.Compare(e.Ports.Last, other.Ports.Last),
		bytes.Compare(e.MAC[:], other.MAC[:]), strings.Compare(e.Name, other.Name),
	)
}

// Covers reports whether e holds all that other does; both are of type t.
func (e Entry) Covers(t SetType, other Entry) bool {
	switch t {
	case SetPrefix:
		return e.Addresses.First.Is4() == other.Addresses.First.Is4() &&
			!other.Addresses.First.Less(e.Addresses.First) && !e.Addresses.Last.Less(other.Addresses.Last)
	case SetPort:
		return e.Ports.First <= other.Ports.First && other.Ports.Last <= e.Ports.Last
	}
	return e == other
}

// Len returns the number of entries.
func (s *Set) Len() int { return len(s.lines) }

// Entry returns an entry, in the order of the text.
func (s *Set) Entry(i int) Entry {
	switch s.Type {
	case SetPrefix:
		return Entry{Addresses: s.Prefixes[i]}
	case SetPort:
		return Entry{Ports: s.Ports[i]}
	case SetMAC:
		return Entry{MAC: s.MACs[i]}
	}
	return Entry{Name: strings.ToLower(s.Names[i])}
}

// Place says where an entry is written: the policy file, or the set's own.
func (s *Set) Place(i int) (file string, line int) {
	if s.File != "" {
		return s.File, int(s.lines[i])
	}
	return s.Pos.File, int(s.lines[i])
}

// put appends an entry that was written in a line.
func (s *Set) put(e Entry, line int) {
	switch s.Type {
	case SetPrefix:
		s.Prefixes = append(s.Prefixes, e.Addresses)
	case SetPort:
		s.Ports = append(s.Ports, e.Ports)
	case SetMAC:
		s.MACs = append(s.MACs, e.MAC)
	case SetName:
		s.Names = append(s.Names, e.Name)
	}
	s.lines = append(s.lines, int32(line))
}

// Held returns a function that tells whether a set holds all of an entry, be it by several of its own. It
// is quick for any number of calls.
func (s *Set) Held() func(Entry) bool {
	switch s.Type {
	case SetPrefix:
		joined := joinAddresses(s.Prefixes)
		return func(e Entry) bool {
			i, _ := slices.BinarySearchFunc(joined, e.Addresses.First, func(a flowtable.AddrRange, first netip.Addr) int { return a.Last.Compare(first) })
			return i < len(joined) && Entry{Addresses: joined[i]}.Covers(SetPrefix, e)
		}
	case SetPort:
		joined := joinPorts(s.Ports)
		return func(e Entry) bool {
			return slices.ContainsFunc(joined, func(p flowtable.U16Range) bool { return Entry{Ports: p}.Covers(SetPort, e) })
		}
	}
	all := make(map[Entry]bool, s.Len())
	for i := range s.lines {
		all[s.Entry(i)] = true
	}
	return func(e Entry) bool { return all[e] }
}

// Uses reports whether a rule, service or test of the policy names a set.
func (p *Policy) Uses(set string) bool { return p.used["set "+set] }
