package worker

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// What a worker counts. It alone writes; others read the copy that it publishes each millisecond, and before it
// sleeps.
const (
	cPackets = iota
	cBytes
	cSent
	cHandedOver
	cTakenOver
	cMirrored
	cMirrorLost
	cMovedUp
	cRounds
	cIdleRounds
	cWakeups
	cSyscalls
	dropInternal
	dropEgressDown
	dropEgressFull
	dropWorkerFull
	dropWorkerAbsent
	cBatches
	counters = cBatches + BatchBuckets
)

// dropReasons are the reasons under which workers drop.
var dropReasons = map[int]bpf.XDPReason{
	dropInternal:     bpf.XDPReasonREASON_INTERNAL,
	dropEgressDown:   bpf.XDPReasonREASON_EGRESS_DOWN,
	dropEgressFull:   bpf.XDPReasonREASON_EGRESS_FULL,
	dropWorkerFull:   bpf.XDPReasonREASON_WORKER_FULL,
	dropWorkerAbsent: bpf.XDPReasonREASON_WORKER_ABSENT,
}

// counts are a worker's own counters.
type counts [counters]uint64

// published is the copy of some counters that others read.
type published []atomic.Uint64

func (p published) store(from []uint64) {
	for i := range from {
		p[i].Store(from[i])
	}
}

func (p published) load(i int) uint64 { return p[i].Load() }

// What a seat publishes of its socket.
const (
	qRxPackets = iota
	qTxPackets
	qTxDone
	qNoRoom
	qKicks
	qAgain
	qBusy
	qDown
	qNoMemory
	seatCounters
)

type seatCounts [seatCounters]uint64

func (c *seatCounts) take(k *xsk.Counters, noRoom uint64) {
	*c = seatCounts{k.RxPackets, k.TxPackets, k.TxCompleted, noRoom, k.Kicks, k.KickAgain, k.KickBusy, k.KickDown, k.KickNoBuffers}
}

// load adds what was published to the counts.
func (c *seatCounts) load(p published) {
	for i := range c {
		c[i] += p.load(i)
	}
}
