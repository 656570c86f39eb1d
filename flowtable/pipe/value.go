package pipe

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/firewall/mistake"
)

// A ValueError says what is wrong with a value that somebody wrote.
type ValueError struct{ Msg, Hint string }

// Error renders the message and the remedy on one line.
func (e *ValueError) Error() string { return fmt.Sprintf("%s (%s)", e.Msg, e.Hint) }

// anyValue is what people write for "the packet has the field, whatever it holds".
const anyValue = "any"

// Parse reads what an entry asks of the field, as people write it: a value, VALUE/MASK, a prefix, FIRST-LAST, words as in
// syn,!ack, the name of a port, or "any". What it says may still be too wide for the field ([Pipeline.Check]). The error
// is a *ValueError.
func (f *Field) Parse(text string) (Match, error) {
	m := Match{Field: f}
	switch {
	case f.Format == Port:
		m.Port = text
		return m, nil
	case text == anyValue:
		m.Value, m.Mask = make(Value, f.Words()), make(Value, f.Words())
		return m, nil
	case f.Format == Flags && !strings.ContainsAny(text, "0123456789"):
		return f.flags(text)
	}
	if value, mask, masked := strings.Cut(text, "/"); masked {
		var err error
		if m.Value, err = f.ParseValue(value); err != nil {
			return m, err
		}
		m.Mask, err = f.ParseMask(mask)
		return m, err
	}
	v, err := f.ParseValue(text)
	first, last, isRange := strings.Cut(text, "-")
	if err == nil || !isRange || f.Format == MACAddress {
		m.Value = v
		return m, err
	}
	if m.Value, err = f.ParseValue(first); err == nil {
		m.Last, err = f.ParseValue(last)
	}
	return m, err
}

// ParseValue reads one value, without a mask. The error is a *ValueError.
func (f *Field) ParseValue(text string) (Value, error) {
	text = strings.TrimSpace(text)
	switch f.Format {
	case MACAddress:
		if mac, err := net.ParseMAC(text); err == nil && len(mac) == 6 {
			return macValue(mac), nil
		}
		return nil, &ValueError{fmt.Sprintf("%q is no MAC address", text), "as in 02:00:5e:10:00:01"}
	case IPv4, IPv6:
		return f.address(text)
	}
	for _, n := range f.Names() {
		if n.Word == text {
			return Value{n.Value}, nil
		}
	}
	if f.Only == 0 {
		if n, err := strconv.ParseUint(text, 0, 32); err == nil && !strings.Contains(text, "_") {
			return Value{uint32(n)}, nil
		}
	}
	return nil, f.unknown(text)
}

// unknown is the error for a word that is no value of the field.
func (f *Field) unknown(text string) error {
	known := f.words()
	e := &ValueError{fmt.Sprintf("%q is no value of %s", text, f.Name), "a number, as in 80 or 0x50"}
	switch n := mistake.Nearest(strings.TrimPrefix(text, "!"), known); {
	case n != "":
		e.Hint = fmt.Sprintf("did you mean %q?", n)
	case f.Format == Flags:
		e.Hint = "as in syn,!ack, or 0x02/0x12"
	case f.Only != 0:
		e.Hint = "it is one of: " + strings.Join(known, ", ")
	case len(known) > 0:
		e.Hint = "a number, or one of: " + strings.Join(known, ", ")
	}
	return e
}

func (f *Field) words() []string {
	var list []string
	for _, n := range f.Names() {
		list = append(list, n.Word)
	}
	return list
}

// flags reads words of which those with a ! in front must be absent.
func (f *Field) flags(text string) (Match, error) {
	m := Match{Field: f, Value: Value{0}, Mask: Value{0}}
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		name, absent := strings.CutPrefix(word, "!")
		i := slices.IndexFunc(f.Names(), func(n Name) bool { return n.Word == name })
		if i < 0 {
			return m, f.unknown(word)
		}
		bit := f.Names()[i].Value
		if m.Mask[0]&bit != 0 {
			return m, &ValueError{fmt.Sprintf("%s is named twice in %q", name, text), "a flag is there or absent"}
		}
		m.Mask[0] |= bit
		if !absent {
			m.Value[0] |= bit
		}
	}
	return m, nil
}

// ParseMask reads a mask: a number, the length of a prefix for addresses, or written like an address. The error is a
// *ValueError.
func (f *Field) ParseMask(text string) (Value, error) {
	switch f.Format {
	case IPv4, IPv6, MACAddress:
		if n, err := strconv.Atoi(text); err == nil {
			if n < 0 || n > f.Bits {
				return nil, &ValueError{fmt.Sprintf("/%d is longer than the address", n), fmt.Sprintf("it is 0 to %d", f.Bits)}
			}
			return f.prefixMask(n), nil
		}
		return f.ParseValue(text)
	}
	if f.Only != 0 {
		return nil, &ValueError{fmt.Sprintf("%s has no mask", f.Name), "it is one of: " + strings.Join(f.words(), ", ")}
	}
	n, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		return nil, &ValueError{fmt.Sprintf("%q is no mask", text), "as in 0xf0"}
	}
	return Value{uint32(n)}, nil
}

// prefixMask is the mask of the first n of the field's bits.
func (f *Field) prefixMask(n int) Value {
	v := make(Value, f.Words())
	for bit := range n {
		at := 32*len(v) - f.Bits + bit
		v[at/32] |= 1 << (31 - at%32)
	}
	return v
}

func (f *Field) address(text string) (Value, error) {
	a, err := netip.ParseAddr(text)
	e := &ValueError{fmt.Sprintf("%q is no address", text), "as in 192.0.2.1, 192.0.2.0/24"}
	if f.Format == IPv6 {
		e.Hint = "as in 2001:db8::1, 2001:db8::/32"
	}
	if err != nil || a.Zone() != "" {
		return nil, e
	}
	if a.Is4() != (f.Format == IPv4) || a.Is4In6() {
		e.Msg = fmt.Sprintf("%q is of the other family than %s", text, f.Name)
		return nil, e
	}
	return addressValue(a), nil
}

// addressValue is an address as the words of a field.
func addressValue(a netip.Addr) Value {
	b := a.AsSlice()
	v := make(Value, len(b)/4)
	for i := range v {
		v[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	return v
}

func macValue(mac net.HardwareAddr) Value {
	return Value{uint32(binary.BigEndian.Uint16(mac)), binary.BigEndian.Uint32(mac[2:])}
}
