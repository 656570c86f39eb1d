package flowtable

import (
	"math/bits"

	"github.com/softdpu/softdpu/bpf"
)

// A schedule is what the scans of one table remember: for each group the tick before which none of its
// flows can expire. Until then a scan need not touch the group, so that it costs as much as the flows
// that come and go, and not as much as the table is large.
//
// It needs no word from the packet path. A flow that was looked at and sees no packet expires when it was
// seen to; one that does see a packet, whatever that makes of its state, expires no sooner than the least
// of all time-outs after it, and so does a flow that comes into the group. Hence a group is due at the
// earliest time-out of its flows, and never later than the least of all time-outs after it was looked at.
// One kind of packet counts as none: what ends a TCP handshake and is refused then. Flows in their
// handshake are therefore taken to have the least of TCP's time-outs.
type schedule struct {
	timeouts Timeouts             // that due was computed with
	limit    [ClassLen][16]uint32 // time-outs; 0 = never, or no flow
	least    uint32               // of all time-outs
	tcp      uint32               // of TCP's
	due4     []uint32
	due6     []uint32
}

// singular are the states, one bit each, whose end is not that of the last packet and a time-out.
const singular = 1<<bpf.XDPFlowStateFLOW_SYN_SENT | 1<<bpf.XDPFlowStateFLOW_SYN_RECEIVED | 1<<bpf.XDPFlowStateFLOW_ALIAS |
	1<<bpf.XDPFlowStateFLOW_MAPPING

// horizon bounds what is never: ticks compare over 24 days.
const horizon = 1 << 30

// begin makes the schedule one of these time-outs. With others than before it forgets everything.
func (s *schedule) begin(timeouts *Timeouts) {
	if s.least != 0 && s.timeouts == *timeouts {
		return
	}
	*s = schedule{timeouts: *timeouts, least: horizon, tcp: horizon, due4: s.due4[:0], due6: s.due6[:0]}
	for class := range timeouts {
		for state, ticks := range timeouts[class] {
			if ticks == 0 || state == int(bpf.XDPFlowStateFLOW_FREE) || state == int(bpf.XDPFlowStateFLOW_ALIAS) {
				continue
			}
			s.limit[class][state] = ticks
			s.least = min(s.least, ticks)
			if Class(class) == ClassTCP {
				s.tcp = min(s.tcp, ticks)
			}
		}
	}
}

// started returns the due ticks of n groups; if there are none yet, all are due now.
func started(due []uint32, n int, now uint32) []uint32 {
	if len(due) == n {
		return due
	}
	if cap(due) < n {
		due = make([]uint32, n)
	}
	due = due[:n]
	for g := range due {
		due[g] = now
	}
	return due
}

// revisits spread the groups over the second half of the time in which all must be looked at again: the
// 64th parts of the table come one after the other.
const revisits = 64

// revisit says when a group is due at the latest that is looked at now.
type revisit struct {
	latest, step uint32
	shift        int
}

func (s *schedule) revisit(groups int, now uint32) revisit {
	return revisit{
		latest: now + s.least,
		step:   s.least / 2 / revisits,
		shift:  max(bits.Len(uint(groups-1))-bits.Len(revisits-1), 0),
	}
}

func (r *revisit) of(group int) uint32 { return r.latest - r.step*uint32(group>>r.shift) }

// handshake returns when a flow ends that has not ended its handshake, and the tick before which it cannot
// end. Ticks is the time-out of its state, never what stands for none.
func (s *schedule) handshake(ticks, never uint32, core *bpf.XDPFlowCore) (end, early uint32) {
	if ticks == 0 {
		return never, core.Created + s.tcp
	}
	return core.Created + ticks, core.Created + s.tcp
}
