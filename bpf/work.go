package bpf

// Stages: what a worker does with a packet, in the order of their bits (abi.h: STAGE_*).
const (
	StageForward = 0x01 // nothing but carrying it on
	StageMirror  = 0x02 // a copy goes to a monitor port
)

// Numbers of abi.h about workers, which bpf2go does not carry over.
const (
	QueueMax     = 64         // receive queues of a port that workers can serve
	WorkerSilent = 48         // ticks after which a worker that gave no sign of life counts as full
	CellNone     = 0xffffffff // flows of the overflow tables have no cell
)

// QueueIndex is the place of a port's receive queue in the maps worker_queues and sockets.
func QueueIndex(port uint8, queue int) uint32 { return uint32(port)*QueueMax + uint32(queue) }
