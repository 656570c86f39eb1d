package dataplane

import (
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TickShift turns nanoseconds of CLOCK_MONOTONIC_COARSE into ticks of 1.048576 ms (abi.h).
const TickShift = 20

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h.
const membarrierGlobal = 1 << 0

// NowTick returns the clock that XDP reads, in ticks. Ticks wrap after 52 days: compare them by
// signed difference.
func NowTick() uint32 {
	var ts unix.Timespec
	// Fails only for a clock that the kernel does not have; this one is there since 2.6.32.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts)
	return uint32(uint64(ts.Nano()) >> TickShift)
}

// Grace waits until every program that was running when it was called has ended (an RCU grace
// period): what the daemon unlinked or marked before is then seen by all packets. It takes some
// milliseconds and is safe for concurrent use.
//
// membarrier(MEMBARRIER_CMD_GLOBAL) is a synchronize_rcu() in the kernel, except that it does nothing
// on a single CPU, where a test run of a program may still be preempted, and is refused with
// nohz_full. There an update of a map of maps, which waits likewise for the programs that may hold
// the old inner map, takes its place.
func Grace() error {
	if runtime.NumCPU() > 1 {
		if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno == 0 {
			return nil
		}
	}
	return graceByMap()
}

func graceByMap() error {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, MaxEntries: 1, InnerMap: inner})
	if err != nil {
		return fmt.Errorf("wait for programs: %w", err)
	}
	defer outer.Close()
	m, err := ebpf.NewMap(inner)
	if err != nil {
		return fmt.Errorf("wait for programs: %w", err)
	}
	defer m.Close()
	if err := outer.Put(uint32(0), m); err != nil {
		return fmt.Errorf("wait for programs: %w", err)
	}
	return nil
}
