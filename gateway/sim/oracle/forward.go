package oracle

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/firewall"
)

// forward sends a packet on its way. Cause says why it goes to the kernel instead, "" if it does not.
func forward(p *packet, f *flow, h hop, cause string, fromOpener, later bool) Verdict {
	p.frame = p.rewritten(f.leaves(p.about, fromOpener), later, cause != "")
	v := Verdict{Verdict: Forward, Rule: f.rule, Out: firewall.NameHost, Pass: cause, State: f.state, Frame: p.frame}
	v.Flow = f.name()
	v.Later = later
	if !h.host() {
		v.Out = h.port.Name
	}
	switch {
	case cause != "":
		v.Verdict = Pass
	case !h.peer:
		v.Frame = p.routed(h)
	}
	v.Worker = cause == "" && f.worked
	return v
}

// routed returns the frame as a router sends it: other MACs, the egress's VLAN tag and no other, TTL
// or hop limit one less.
func (p *packet) routed(h hop) []byte {
	out := append(h.mac[:], h.port.MAC[:]...)
	if h.vlan != 0 {
		out = binary.BigEndian.AppendUint16(out, 0x8100)
		out = binary.BigEndian.AppendUint16(out, h.vlan)
	}
	out = binary.BigEndian.AppendUint16(out, p.ethertype)
	ip := len(out)
	out = append(out, p.frame[p.ip:]...)
	if !p.is4() {
		out[ip+7]--
		return out
	}
	header := out[ip : ip+int(out[ip]&15)*4]
	header[8]--
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], ^sum(header))
	return out
}
