package firewall

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// linear evaluates entries one after the other.
type linear []flowtable.ACLEntry

func (l linear) Classify(k *bpf.XDPClassifyKey, audit func(uint32)) uint32 {
	for i := range l {
		e := &l[i]
		src, dst := keyAddr(k, k.SrcHi, k.SrcLo), keyAddr(k, k.DstHi, k.DstLo)
		if !e.From.Has(k.From) || !e.To.Has(k.To) || e.Family != 0 && e.Family != k.Family ||
			k.Proto < e.Proto.First || e.Proto.Last < k.Proto ||
			k.Sport < e.SrcPort.First || e.SrcPort.Last < k.Sport ||
			k.Dport < e.DstPort.First || e.DstPort.Last < k.Dport ||
			len(e.Contexts) > 0 && !slices.Contains(e.Contexts, k.Context) ||
			!inRanges(e.Src, src) || !inRanges(e.Dst, dst) {
			continue
		}
		if !e.Audit {
			return e.Verdict
		}
		if audit != nil {
			audit(e.Verdict & 0xffffff)
		}
	}
	return 0
}

func inRanges(ranges []flowtable.AddrRange, a netip.Addr) bool {
	return len(ranges) == 0 || slices.ContainsFunc(ranges, func(r flowtable.AddrRange) bool {
		return r.First.Is4() == a.Is4() && !a.Less(r.First) && !r.Last.Less(a)
	})
}

func keyAddr(k *bpf.XDPClassifyKey, hi, lo uint64) netip.Addr {
	if k.Family == 4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}
