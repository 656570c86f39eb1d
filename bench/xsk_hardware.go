package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hardwareEvents are the counters of the processor that a worker's thread is measured by.
var hardwareEvents = [...]struct {
	name  string
	event uint64
}{
	{"cycles", unix.PERF_COUNT_HW_CPU_CYCLES},
	{"instructions", unix.PERF_COUNT_HW_INSTRUCTIONS},
	{"cache_misses", unix.PERF_COUNT_HW_CACHE_MISSES},
}

// hardwareCounts are their values, in the kernel and outside of it; nothing if the machine has none.
type hardwareCounts struct {
	values [len(hardwareEvents)]uint64
	why    error // there are none
}

// hardware counts what the calling thread does.
type hardware struct {
	fds [len(hardwareEvents)]int
	why error
}

// openHardware starts to count for the calling thread. Machines without such counters, as most virtual
// ones are, say so in what read returns.
func openHardware() *hardware {
	h := &hardware{}
	for i := range h.fds {
		h.fds[i] = -1
	}
	for i, e := range hardwareEvents {
		attr := unix.PerfEventAttr{
			Type:        unix.PERF_TYPE_HARDWARE,
			Config:      e.event,
			Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
			Read_format: unix.PERF_FORMAT_TOTAL_TIME_ENABLED | unix.PERF_FORMAT_TOTAL_TIME_RUNNING,
		}
		fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		switch {
		case err == nil:
			h.fds[i] = fd
			continue
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV):
			h.why = fmt.Errorf("this machine has no counter of %s: %w", e.name, err)
		case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
			h.why = fmt.Errorf("count %s: %w: it needs CAP_PERFMON", e.name, err)
		default:
			h.why = fmt.Errorf("count %s: %w", e.name, err)
		}
		h.close()
		return h
	}
	return h
}

func (h *hardware) close() {
	for i, fd := range h.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
		h.fds[i] = -1
	}
}

// read returns the counts so far, those of counters that had to share a register being made up to the
// whole time.
func (h *hardware) read() (c hardwareCounts) {
	if c.why = h.why; c.why != nil {
		return c
	}
	for i, fd := range h.fds {
		var b [24]byte // value, time enabled, time running
		if n, err := unix.Read(fd, b[:]); err != nil || n != len(b) {
			c.why = fmt.Errorf("read the counter of %s: %w", hardwareEvents[i].name, err)
			return c
		}
		value, enabled, running := binary.NativeEndian.Uint64(b[0:]), binary.NativeEndian.Uint64(b[8:]), binary.NativeEndian.Uint64(b[16:])
		if running > 0 && running < enabled {
			value = uint64(float64(value) * float64(enabled) / float64(running))
		}
		c.values[i] = value
	}
	return c
}
