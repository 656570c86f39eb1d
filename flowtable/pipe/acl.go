package pipe

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// Pipes have no zones. Instead of where a packet comes from, their classifier is told whether its ports, or its type of
// ICMP, are known: they are not behind a later fragment's header, and 0 is a port like others.
const aclKnown = 1

// Protocols that have ports, or types of ICMP.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

// classifier makes an ACL pipe one of flowtable's.
func (c *compiler) classifier(pl *Planned, records []bpf.PipesPipeEntry) error {
	pl.Form = InACL
	var entries []flowtable.ACLEntry
	for _, i := range pl.Pipe.order() {
		pl.Places[i] = c.place()
		c.Memory.Entries[pl.Places[i]] = records[i]
		entries = append(entries, aclEntries(pl.Pipe.Entries[i], pl.Places[i])...)
	}
	acl, err := flowtable.CompileACLAfter(entries, c.Classifiers()...)
	pl.ACL = acl
	return err
}

// Classifiers are those of the program's ACL pipes. Their memory stands in the maps of sets and of forests in this order.
func (p *Program) Classifiers() []*flowtable.ACL {
	var list []*flowtable.ACL
	for _, n := range p.Order {
		if acl := p.Pipes[n].ACL; acl != nil {
			list = append(list, acl)
		}
	}
	return list
}

// aclEntries returns what a classifier asks for an entry: one row for each protocol that has what it matches on.
func aclEntries(e *Entry, place uint32) []flowtable.ACLEntry {
	row := flowtable.ACLEntry{
		Proto:   flowtable.U8Range{Last: 255},
		SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535},
		Verdict: place,
	}
	protocols := []uint8(nil)
	known := func(among ...uint8) {
		row.From.Add(aclKnown)
		if row.Proto.First != row.Proto.Last {
			protocols = among
		}
	}
	for i := range e.Match {
		if m := &e.Match[i]; m.Field.Name == "ip.proto" {
			row.Proto = flowtable.U8Range{First: uint8(m.Value[0]), Last: uint8(m.Value[0])}
		}
	}
	for i := range e.Match {
		switch m := &e.Match[i]; m.Field.Name {
		case "ipv4.src", "ipv6.src":
			row.Family, row.Src = aclRange(m)
		case "ipv4.dst", "ipv6.dst":
			row.Family, row.Dst = aclRange(m)
		case "l4.sport":
			row.SrcPort = aclPorts(m)
			known(protoTCP, protoUDP)
		case "l4.dport":
			row.DstPort = aclPorts(m)
			known(protoTCP, protoUDP)
		case "icmp.type":
			row.DstPort.First |= uint16(m.Value[0]) << 8
			row.DstPort.Last &= uint16(m.Value[0])<<8 | 0xff
			known(protoICMP, protoICMPv6)
		case "icmp.code":
			row.DstPort.First |= uint16(m.Value[0])
			row.DstPort.Last &= 0xff00 | uint16(m.Value[0])
			known(protoICMP, protoICMPv6)
		}
	}
	if protocols == nil {
		return []flowtable.ACLEntry{row}
	}
	var rows []flowtable.ACLEntry
	for _, p := range protocols {
		row.Proto = flowtable.U8Range{First: p, Last: p}
		rows = append(rows, row)
	}
	return rows
}

// aclRange returns the addresses of a prefix; all of them are as none in the family.
func aclRange(m *Match) (family uint8, list []flowtable.AddrRange) {
	mask := m.Mask
	if mask == nil {
		mask = m.Field.Full()
	}
	var first, last []byte
	for i, w := range m.Value {
		first = binary.BigEndian.AppendUint32(first, w&mask[i])
		last = binary.BigEndian.AppendUint32(last, w|^mask[i])
	}
	a, _ := netip.AddrFromSlice(first)
	b, _ := netip.AddrFromSlice(last)
	family = 4
	if len(first) == 16 {
		family = 6
	}
	return family, []flowtable.AddrRange{{First: a, Last: b}}
}

func aclPorts(m *Match) flowtable.U16Range {
	last := m.Last
	if last == nil {
		last = m.Value
	}
	return flowtable.U16Range{First: uint16(m.Value[0]), Last: uint16(last[0])}
}

// aclKey is what a classifier is asked; not ok: it is not asked.
func aclKey(f *bpf.PipesPipeFields) (k bpf.XDPClassifyKey, ok bool) {
	w := &f.Word
	src, dst := w[wordIPSrc:wordIPSrc+4], w[wordIPDst:wordIPDst+4]
	switch has := w[wordHas]; {
	case has&hasIPv4 != 0:
		k.Family, k.SrcLo, k.DstLo = 4, uint64(src[0]), uint64(dst[0])
	case has&hasIPv6 != 0:
		k.Family = 6
		k.SrcHi, k.SrcLo = uint64(src[0])<<32|uint64(src[1]), uint64(src[2])<<32|uint64(src[3])
		k.DstHi, k.DstLo = uint64(dst[0])<<32|uint64(dst[1]), uint64(dst[2])<<32|uint64(dst[3])
	default:
		return k, false
	}
	k.Proto = uint8(w[wordProto])
	switch has := w[wordHas]; {
	case has&hasPorts != 0:
		k.From, k.Sport, k.Dport = aclKnown, uint16(w[wordSport]), uint16(w[wordDport])
	case has&hasICMP != 0:
		k.From, k.Dport = aclKnown, uint16(w[wordICMPType]<<8|w[wordICMPCode])
	}
	return k, true
}

// Places in struct classify_key, as it stands in struct pipe_fields.
const (
	aclSrcHi  = fieldsACL + int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.SrcHi))
	aclSrcLo  = fieldsACL + int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.SrcLo))
	aclDstHi  = fieldsACL + int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.DstHi))
	aclDstLo  = fieldsACL + int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.DstLo))
	aclSport  = fieldsACL + int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.Sport))
	aclDport  = fieldsACL + int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.Dport))
	aclProto  = fieldsACL + int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.Proto))
	aclFamily = fieldsACL + int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.Family))
	aclFrom   = fieldsACL + int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.From))
)

// classify asks the pipe's classifier.
func (t *text) classify(pl *Planned, miss label) error {
	name := fmt.Sprintf("%s_acl%d", emitName, pl.Number)
	insns, err := pl.ACL.Function(name)
	if err != nil {
		return err
	}
	t.e.functions = append(t.e.functions, insns)
	for i := range insns {
		t.e.slots += int(insns[i].Width())
	}
	put := func(offset int16, size asm.Size, r asm.Register) { t.Add(asm.StoreMem(regFields, offset, r, size)) }
	set := func(offset int16, size asm.Size, v int64) { t.Add(asm.StoreImm(regFields, offset, v, size)) }
	six, known, ports, icmp, ask := t.Label(), t.Label(), t.Label(), t.Label(), t.Label()
	t.load(asm.R3, wordHas)
	has := func(bit uint32, l label) {
		t.Add(asm.Mov.Reg32(asm.R1, asm.R3), asm.And.Imm32(asm.R1, int32(bit)))
		t.JumpImm(asm.JNE, asm.R1, 0, l)
	}
	has(hasIPv6, six)
	t.Add(asm.And.Imm32(asm.R3, int32(hasIPv4|hasPorts|hasICMP)), asm.Mov.Reg32(asm.R1, asm.R3), asm.And.Imm32(asm.R1, int32(hasIPv4)))
	t.JumpImm(asm.JEq, asm.R1, 0, miss)
	set(aclFamily, asm.Byte, 4)
	for _, end := range []struct {
		word   int
		hi, lo int16
	}{{wordIPSrc, aclSrcHi, aclSrcLo}, {wordIPDst, aclDstHi, aclDstLo}} {
		t.Add(asm.Mov.Imm(asm.R1, 0))
		put(end.hi, asm.DWord, asm.R1)
		t.load(asm.R1, end.word)
		put(end.lo, asm.DWord, asm.R1)
	}
	t.GoTo(known)
	t.Place(six)
	set(aclFamily, asm.Byte, 6)
	for _, half := range []struct {
		word int
		at   int16
	}{{wordIPSrc, aclSrcHi}, {wordIPSrc + 2, aclSrcLo}, {wordIPDst, aclDstHi}, {wordIPDst + 2, aclDstLo}} {
		t.load(asm.R1, half.word)
		t.load(asm.R2, half.word+1)
		t.Add(asm.LSh.Imm(asm.R1, 32), asm.Or.Reg(asm.R1, asm.R2))
		put(half.at, asm.DWord, asm.R1)
	}
	t.Place(known)
	t.load(asm.R1, wordProto)
	put(aclProto, asm.Byte, asm.R1)
	has(hasPorts, ports)
	has(hasICMP, icmp)
	set(aclFrom, asm.Byte, 0)
	set(aclSport, asm.Half, 0)
	set(aclDport, asm.Half, 0)
	t.GoTo(ask)
	t.Place(ports)
	set(aclFrom, asm.Byte, aclKnown)
	t.load(asm.R1, wordSport)
	put(aclSport, asm.Half, asm.R1)
	t.load(asm.R1, wordDport)
	put(aclDport, asm.Half, asm.R1)
	t.GoTo(ask)
	t.Place(icmp)
	set(aclFrom, asm.Byte, aclKnown)
	set(aclSport, asm.Half, 0)
	t.load(asm.R1, wordICMPType)
	t.load(asm.R2, wordICMPCode)
	t.Add(asm.LSh.Imm32(asm.R1, 8), asm.Or.Reg32(asm.R1, asm.R2))
	put(aclDport, asm.Half, asm.R1)
	t.Place(ask)
	t.Add(asm.Mov.Reg(asm.R1, regFields), asm.Add.Imm(asm.R1, int32(fieldsACL)))
	t.Call(name)
	t.JumpImm(asm.JEq, asm.R0, 0, miss)
	t.Add(asm.Mov.Reg32(regPlace, asm.R0))
	return nil
}
