package worker

import "time"

// Status is how the workers run and what they have counted since their start. Its JSON is that of the
// control API.
type Status struct {
	Mode     string         `json:"mode"`     // of all sockets: zero-copy, copy or generic; "" without sockets
	Attempts []Attempt      `json:"attempts"` // the modes that were tried, in order, and then ports that have no sockets now
	Memory   MemoryStatus   `json:"memory"`
	Workers  []WorkerStatus `json:"workers"`
	Stalls   []Stall        `json:"stalls"` // rings that stand still now
}

// Attempt is one mode tried on a port, and what the kernel said to it.
type Attempt struct {
	Port  string `json:"port"`
	Mode  string `json:"mode"`
	Error string `json:"error,omitempty"` // empty: granted
}

// MemoryStatus is the packet memory that all workers share.
type MemoryStatus struct {
	Frames    int    `json:"frames"`
	FrameSize int    `json:"frame_size"` // bytes
	PageSize  int    `json:"page_size"`  // bytes
	WhySmall  string `json:"why_small_pages,omitempty"`
	Free      int    `json:"free"` // frames that no ring and no worker has
}

// BatchBuckets are the buckets of a batch-size histogram: 1, 2-3, 4-7, 8-15, 16-31, 32-63, 64.
const BatchBuckets = 7

// WorkerStatus is one worker.
type WorkerStatus struct {
	ID    int    `json:"id"`
	CPU   int    `json:"cpu"`       // -1: not pinned
	NUMA  int    `json:"numa_node"` // of the CPU; -1: the machine has none
	State string `json:"state"`     // polling, sleeping, silent (no sign of life for 50 ms) or restarting

	Packets    uint64               `json:"packets"` // taken from sockets
	Bytes      uint64               `json:"bytes"`   // of their frames
	Sent       uint64               `json:"sent"`    // packets given to the kernel
	HandedOver uint64               `json:"handed_over"`
	TakenOver  uint64               `json:"taken_over"` // from other workers
	Mirrored   uint64               `json:"mirrored"`
	MirrorLost uint64               `json:"mirror_lost"` // copies for which there was no frame, no room or no port
	MovedUp    uint64               `json:"moved_up"`    // flows marked ready
	Drops      map[string]uint64    `json:"drops"`       // by reason
	Batches    [BatchBuckets]uint64 `json:"batches"`     // of packets taken at once
	Rounds     uint64               `json:"rounds"`
	IdleRounds uint64               `json:"idle_rounds"`
	Wakeups    uint64               `json:"wakeups"` // returns from waiting
	Syscalls   uint64               `json:"syscalls"`
	Restarts   uint64               `json:"restarts"`

	Queues []QueueStatus `json:"queues"`
}

// QueueStatus is one socket: a queue of a port, and its four rings.
type QueueStatus struct {
	Port       string     `json:"port"`
	Queue      int        `json:"queue"`
	Rx         RingStatus `json:"rx"`
	Tx         RingStatus `json:"tx"`
	Fill       RingStatus `json:"fill"`
	Completion RingStatus `json:"completion"`

	Sent  uint32 `json:"xdp_sent"` // modulo 2^32, as in struct worker_queue
	Taken uint32 `json:"taken"`
	Lost  uint32 `json:"lost"`

	RxPackets uint64 `json:"rx_packets"`
	TxPackets uint64 `json:"tx_packets"`
	TxDone    uint64 `json:"tx_completed"` // frames
	TxNoRoom  uint64 `json:"tx_no_room"`   // packets dropped: the tx ring was full
	Kicks     uint64 `json:"kicks"`        // system calls
	KickAgain uint64 `json:"kick_again"`
	KickBusy  uint64 `json:"kick_busy"`
	KickDown  uint64 `json:"kick_down"`
	KickNoMem uint64 `json:"kick_no_buffers"`

	// XDP_STATISTICS of the kernel.
	RxDropped   uint64 `json:"rx_dropped"`
	RxInvalid   uint64 `json:"rx_invalid_descs"`
	TxInvalid   uint64 `json:"tx_invalid_descs"`
	RxRingFull  uint64 `json:"rx_ring_full"`
	FillEmpty   uint64 `json:"rx_fill_ring_empty_descs"`
	TxRingEmpty uint64 `json:"tx_ring_empty_descs"`
}

// Waiting is how many packets XDP has sent to the socket that the worker has not taken yet.
func (q *QueueStatus) Waiting() int { return max(0, int(int32(q.Sent-q.Taken-q.Lost))) }

// RingStatus is how full a ring is, in descriptors.
type RingStatus struct {
	Size int `json:"size"`
	Used int `json:"used"`
}

// Stall is a ring that has something in it and does not move.
type Stall struct {
	Port    string    `json:"port"`
	Queue   int       `json:"queue"`
	Ring    string    `json:"ring"` // rx, tx, fill or completion
	Waiting int       `json:"waiting"`
	Since   time.Time `json:"since"`
	Why     string    `json:"why"`
}
