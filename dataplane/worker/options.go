package worker

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// Poll says what a worker does that has nothing to do.
type Poll uint8

const (
	// Adaptive goes on looking for packets for some rounds, and then sleeps until there are some.
	Adaptive Poll = iota
	// Always never sleeps: the worker takes a CPU of its own, and packets wait for nothing.
	Always
)

// String returns the name in configuration and status.
func (p Poll) String() string { return [...]string{"adaptive", "always"}[p] }

// Options of Start. Tables must be given; all else has a useful zero value.
type Options struct {
	// Count is how many workers there are; 0 is as many as the port with the most receive queues has, but no
	// more than CPUs.
	Count int
	// CPUs are those that workers are pinned to, in turn; nil is those of the node of the NIC that the process may
	// run on.
	CPUs []int
	// Mode is that of all sockets. Any is zero-copy if all ports have it, else copy.
	Mode xsk.Mode
	// Ring is the size of each of a socket's rings, in descriptors: a power of two; 0 is 2,048.
	Ring int
	// Frames is how many the packet memory has; 0 is two rings for each queue of the first ports, as many for one
	// port more, and half a ring for each worker.
	Frames int
	// FrameSize is in bytes, 2,048 or a page; 0 is the smaller one that holds packets of all ports.
	FrameSize int
	HugePages bool
	BusyPoll  xsk.BusyPoll
	Poll      Poll

	Tables Tables
	// In calls a function on a thread inside the ports' network namespace; nil calls it as it is.
	In func(func() error) error
	// Log, if not nil, is told what the operator should know, once each. It may be called by any goroutine.
	Log func(text string)
	// Hook, if not nil, is called by each worker at the beginning of each round, by tests: it may hold the worker up, or
	// end it by a panic.
	Hook func(worker int)
}

// Tables is the memory that XDP and the workers share, and the map of sockets. They must stay until the crew is
// closed.
type Tables struct {
	Queues  []bpf.XDPWorkerQueue // by port id * QUEUE_MAX + queue
	Cells   []bpf.XDPCells       // by group, IPv4's first
	Groups  int                  // of each family
	Flows4  []bpf.XDPFlow4Group
	Flows6  []bpf.XDPFlow6Group
	Sockets *ebpf.Map // XSKMAP, by the same number as Queues
}

// A Port is a port as workers need it.
type Port struct {
	Name   string // the operator's
	ID     uint8
	Device string // what it is called now
	Index  int    // of the interface
}

// Work is what the stages are told of a rule.
type Work struct {
	// MirrorPort is the number of the port that copies go to; 0 is none.
	MirrorPort uint8
	// MirrorPackets is how many packets of each flow are copied, of both directions together; 0 is all.
	MirrorPackets uint32
	// Bypass lets packets go on without the stages while their home worker is full, or gives no sign of life.
	Bypass bool
}

const (
	queueMax    = 64 // QUEUE_MAX of abi.h
	portIDs     = 256
	maxWorkers  = 64 // a handover has 8 bits for 1 + home; queues are no more either
	defaultRing = 2048

	// handoverLen is how many bytes in front of a packet XDP has put its struct handover into.
	handoverLen = 32
	// overhead is what a frame holds beside the MTU: Ethernet header, two VLAN tags and the handover, in bytes.
	overhead = 14 + 4 + 4 + handoverLen
	// kernelHeadroom is what the kernel keeps free in front of packets that arrive, in bytes.
	kernelHeadroom = 256

	// silentAfter is for how long a worker that gives no sign of life is taken to be alive, in ticks (WORKER_SILENT):
	// 50 ms.
	silentAfter = 48
)

func (o *Options) normal() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Count < 0 || o.Count > maxWorkers {
		add("%d workers: there must be 1 to %d", o.Count, maxWorkers)
	}
	if o.Ring == 0 {
		o.Ring = defaultRing
	}
	if o.Ring < batchSize || o.Ring > 32768 || o.Ring&(o.Ring-1) != 0 {
		add("rings of %d entries: it must be a power of two from %d to 32768", o.Ring, batchSize)
	}
	if o.FrameSize != 0 && o.FrameSize != 2048 && o.FrameSize != os.Getpagesize() {
		add("frames of %d bytes: they have 2048 or %d", o.FrameSize, os.Getpagesize())
	}
	if o.Frames < 0 || o.Frames > 0 && o.Frames < 2*batchSize {
		add("%d frames: there must be %d at least", o.Frames, 2*batchSize)
	}
	if o.Tables.Sockets == nil || len(o.Tables.Queues) == 0 {
		add("there are no tables to share with XDP")
	}
	if o.In == nil {
		o.In = func(fn func() error) error { return fn() }
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	return errors.Join(errs...)
}
