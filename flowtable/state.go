package flowtable

import (
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

// The flow word (abi.h: WORD_*): state | flags << 8 | layer-7 verdict id << 16 | generation << 32.
const (
	WordStateMask     = 0xff
	WordHiOpened      = 1 << 8  // the flow was opened by the endpoint `hi` of its key
	WordRevoked       = 1 << 9  // no longer allowed: a drop until its idle time-out
	WordLog           = 1 << 10 // events at start and end
	WordMarked        = 1 << 11 // the ageing scan means to free it; a hit takes this off
	WordMidstream     = 1 << 12 // picked up without its SYN
	WordBusy          = 1 << 13 // with state FREE: a creator is filling the slot
	WordReady         = 1 << 14 // the worker has done with it: each leg moves up when it can
	WordInside        = 1 << 15 // opened through a mapping: rules judge the end inside
	WordGenerationBit = 32
)

// Flags of a leg (abi.h: LEG_*).
const (
	legScaleMask = 0x0f
	legScaleSeen = 0x10
	legFIN       = 0x20
	legWindow    = 0x40
	legXlat      = 0x80
)

// What of a packet is translated (abi.h: XLAT_*).
const (
	XlatSource      = 0x01 // source address or port
	XlatDestination = 0x02 // destination address or port
	XlatReply       = 0x04 // it was found by the alias of its flow
)

// Zones with a fixed meaning (abi.h: ZONE_*).
const (
	ZoneNone  = 0
	ZoneHost  = 1
	ZoneFirst = 2
)

// Verdicts of the classifier (abi.h: VERDICT_*).
const (
	verdictRuleMask    = 0x00ffffff
	verdictActionShift = 24
	verdictActionMask  = 0x07
	VerdictLog         = 1 << 28
	VerdictMidstream   = 1 << 29
)

const tickShift = 20

// Tick converts nanoseconds to ticks of 2^20 ns. Ticks wrap after 52 days: compare differences.
func Tick(ns uint64) uint32 { return uint32(ns >> tickShift) }

// Ticks converts a duration to ticks, rounded down.
func Ticks(d time.Duration) uint32 { return uint32(d.Nanoseconds() >> tickShift) }

// age returns the ticks from then to now, 0 if then is ahead.
func age(now, then uint32) uint32 { return uint32(max(int32(now-then), 0)) }

// stateOf returns the state in a flow word.
func stateOf(word uint64) bpf.XDPFlowState { return bpf.XDPFlowState(word & WordStateMask) }

// isOver reports whether a state is that of a connection that a SYN opens anew.
func isOver(s bpf.XDPFlowState) bool {
	return s == bpf.XDPFlowStateFLOW_TIME_WAIT || s == bpf.XDPFlowStateFLOW_CLOSED
}

// halfOpen reports whether a state is that of a flow whose other end has not confirmed it.
func halfOpen(s bpf.XDPFlowState) bool {
	return s >= bpf.XDPFlowStateFLOW_SYN_SENT && s <= bpf.XDPFlowStateFLOW_NEW
}

// isFree reports whether a slot with this word can be taken.
func isFree(word uint64) bool { return word&(WordStateMask|WordBusy) == 0 }

// setWord changes bits of a flow word by compare-and-swap, because an ageing scan may set and take
// its mark at the same time, and returns the word written.
func setWord(word *uint64, remove, add uint64) uint64 {
	for {
		old := atomic.LoadUint64(word)
		next := old&^remove | add
		if next == old || atomic.CompareAndSwapUint64(word, old, next) {
			return next
		}
	}
}

// storeSeen writes the time of a leg's last packet, which a scan reads at the same time.
func storeSeen(leg *bpf.XDPLeg, now uint32) { atomic.StoreUint32(&leg.Seen, now) }
