package pipe

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Text writes a value of the field as people do, so that [Field.ParseValue] reads it again.
func (f *Field) Text(v Value) string {
	switch {
	case len(v) != f.Words():
		return hexText(v)
	case f.say != nil:
		return f.say(v[0])
	}
	switch f.Format {
	case MACAddress:
		if v[0]>>16 == 0 {
			b := binary.BigEndian.AppendUint16(nil, uint16(v[0]))
			return net.HardwareAddr(binary.BigEndian.AppendUint32(b, v[1])).String()
		}
		return hexText(v)
	case IPv4, IPv6:
		return v.address().String()
	}
	for _, n := range f.Names() {
		if n.Value == v[0] && f.Format != Flags {
			return n.Word
		}
	}
	switch {
	case f.Format == Flags || f.Only != 0 || strings.HasPrefix(f.Name, rawPrefix):
		return hexText(v)
	}
	return fmt.Sprint(v[0])
}

// address is a value of a field that holds one.
func (v Value) address() netip.Addr {
	var b []byte
	for _, w := range v {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Text writes what the match asks as people do, so that [Field.Parse] reads it again.
func (m *Match) Text() string {
	f := m.Field
	switch {
	case m.Port != "":
		return m.Port
	case m.Among != nil:
		return f.amongText(m.Among)
	case m.Last != nil:
		return f.numberText(m.Value) + "-" + f.numberText(m.Last)
	case m.Mask == nil || slices.Equal(m.Mask, f.Full()):
		return f.Text(m.Value)
	case !slices.ContainsFunc(m.Mask, func(w uint32) bool { return w != 0 }):
		return anyValue
	}
	if f.Format == Flags && m.Mask[0]>>f.Bits == 0 {
		var words []string
		for _, n := range f.Names() {
			if m.Mask[0]&n.Value == 0 {
				continue
			} else if m.Value[0]&n.Value == 0 {
				n.Word = "!" + n.Word
			}
			words = append(words, n.Word)
		}
		return strings.Join(words, ",")
	}
	return f.maskedText(m.Value, m.Mask)
}

// numberText writes a value without words, whose dashes would be those of ranges.
func (f *Field) numberText(v Value) string {
	if f.Format == IPv4 || len(v) != 1 {
		return f.Text(v)
	}
	return fmt.Sprint(v[0])
}

func (f *Field) maskedText(v, mask Value) string { return f.Text(v) + "/" + f.MaskText(mask) }

// MaskText writes a mask as people do, so that [Field.ParseMask] reads it again.
func (f *Field) MaskText(mask Value) string {
	switch f.Format {
	case MACAddress, IPv4, IPv6:
		for n := range f.Bits + 1 {
			if slices.Equal(mask, f.prefixMask(n)) {
				return fmt.Sprint(n)
			}
		}
		return f.Text(mask)
	}
	return hexText(mask)
}

// amongTold is how many ranges of a match are written out.
const amongTold = 3

// amongText writes ranges as people do, the first ones where they are many.
func (f *Field) amongText(among []Span) string {
	var words []string
	for _, s := range among[:min(amongTold, len(among))] {
		words = append(words, f.spanText(&s))
	}
	if n := len(among) - len(words); n > 0 {
		words = append(words, fmt.Sprintf("%d more", n))
	}
	return strings.Join(words, ",")
}

func (f *Field) spanText(s *Span) string {
	first, last := Value(s.First[:f.Words()]), Value(s.Last[:f.Words()])
	if slices.Equal(first, last) {
		return f.Text(first)
	}
	if f.Format == IPv4 || f.Format == IPv6 {
		for n := range f.Bits {
			if isBlock(first, last, f.prefixMask(n)) {
				return fmt.Sprintf("%s/%d", f.Text(first), n)
			}
		}
	}
	return f.numberText(first) + "-" + f.numberText(last)
}

// isBlock says that a range is all values that are alike under a mask.
func isBlock(first, last, mask Value) bool {
	for i := range mask {
		if first[i]&^mask[i] != 0 || last[i] != first[i]|^mask[i] {
			return false
		}
	}
	return true
}
