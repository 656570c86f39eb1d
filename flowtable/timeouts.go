package flowtable

import (
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Class is the protocols that have time-outs in common.
type Class uint8

const (
	ClassOther Class = iota // all that have no class of their own
	ClassTCP
	ClassUDP
	ClassICMP // and ICMPv6
	ClassLen
)

var classes = [256]Class{
	packet.ProtoTCP: ClassTCP, packet.ProtoUDP: ClassUDP, packet.ProtoICMP: ClassICMP, packet.ProtoICMPv6: ClassICMP,
}

// ClassOf returns the class of an IP protocol.
func ClassOf(proto uint8) Class { return classes[proto] }

// Timeouts are the times in ticks, by class and state, after which a scan frees a flow: since its last
// packet in either direction, of a TCP handshake since its opening packet. 0 means never; the longest is
// 24 days, see TimeoutTicks. Aliases have none: they end with their flows.
type Timeouts [ClassLen][bpf.XDPFlowStateFLOW_STATE_LEN]uint32

// UniformTimeouts gives every flow the same time-out.
func UniformTimeouts(ticks uint32) (t Timeouts) {
	for class := range t {
		for state := range t[class] {
			t[class][state] = ticks
		}
	}
	return t
}

// timeoutSlack is what the clock of packets may hide of an idle time, in ticks: one because both its ends
// are rounded down, the others because CLOCK_MONOTONIC_COARSE stands still for up to 10 ms.
const timeoutSlack = 1 + 10

// TimeoutTicks converts a time-out to ticks so that no flow ends before it has passed.
func TimeoutTicks(d time.Duration) uint32 {
	return uint32((d.Nanoseconds()+1<<tickShift-1)>>tickShift) + timeoutSlack
}

// Expired reports whether a flow has been idle for its time-out at tick now.
func (t *Timeouts) Expired(now uint32, proto uint8, core *bpf.XDPFlowCore, leg *[2]bpf.XDPLeg) bool {
	s := stateOf(atomic.LoadUint64(&core.Word))
	if s == bpf.XDPFlowStateFLOW_FREE || s == bpf.XDPFlowStateFLOW_ALIAS || s >= bpf.XDPFlowStateFLOW_STATE_LEN || t[ClassOf(proto)][s] == 0 {
		return false
	}
	return int32(now-since(s, core, leg)) >= int32(t[ClassOf(proto)][s])
}

// since returns the tick from which a flow's time-out counts. A handshake that segments keep alive
// without completing it ends all the same.
func since(s bpf.XDPFlowState, core *bpf.XDPFlowCore, leg *[2]bpf.XDPLeg) uint32 {
	if handshake(s) {
		return core.Created
	}
	return later(atomic.LoadUint32(&leg[0].Seen), atomic.LoadUint32(&leg[1].Seen))
}

// handshake reports whether a state is that of a TCP connection that is not yet established.
func handshake(s bpf.XDPFlowState) bool {
	return s == bpf.XDPFlowStateFLOW_SYN_SENT || s == bpf.XDPFlowStateFLOW_SYN_RECEIVED
}

// later returns the later of two ticks that are less than 24 days apart.
func later(a, b uint32) uint32 {
	if int32(b-a) > 0 {
		return b
	}
	return a
}
