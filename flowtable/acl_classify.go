package flowtable

import (
	"encoding/binary"
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
)

// aclAddr returns an address as it stands in a key.
func aclAddr(a netip.Addr) aclNum {
	if a.Is4() {
		b := a.As4()
		return aclNum{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return aclNum{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// Classify returns the verdict of the first entry that matches k, 0 if none does. Rules of audit
// entries that match before it are given to audit in their order; audit may be nil. It does what
// the generated program does, and allocates nothing.
func (a *ACL) Classify(k *bpf.XDPClassifyKey, audit func(rule uint32)) uint32 {
	if a.forest != nil {
		return a.forest.classify(a, k, audit)
	}
	field := [treeDims]aclNum{
		treeSrc:     {k.SrcHi, k.SrcLo},
		treeDst:     {k.DstHi, k.DstLo},
		treeSrcPort: {lo: uint64(k.Sport)},
		treeDstPort: {lo: uint64(k.Dport)},
		treeProto:   {lo: uint64(k.Proto)},
		treeFrom:    {lo: uint64(k.From)},
		treeTo:      {lo: uint64(k.To)},
		treeContext: {lo: uint64(k.Context)},
	}
	for at := a.root; ; {
		n := &a.nodes[at]
		var yes bool
		switch n.op {
		case treeVerdict:
			return uint32(n.value.lo)
		case treeAtLeast:
			yes = !field[n.dim].less(n.value)
		case treeEqual:
			yes = field[n.dim] == n.value
		case treeIn:
			yes = aclSetHas(a.sets[n.set].ranges, field[n.dim])
		case treeReport:
			if audit != nil {
				audit(uint32(n.value.lo) & aclRuleMask)
			}
			yes = true
		case treeIsFamily:
			yes = uint64(k.Family) == n.value.lo
		}
		if yes {
			at = n.yes
		} else {
			at = n.no
		}
	}
}
