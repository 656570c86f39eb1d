package pipe

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

// Ten million entries come in batches into a table that packets look things up in, at 300,000 a second at least, and take at
// most 2 GiB, process and maps together. Without SOFTDPU_LONG it is 50,000 entries, and no clock is looked at.
func TestTableOfMillions(t *testing.T) {
	needGrace(t)
	const batchSize, rate, limit = 4096, 300_000, 2 << 30
	size, long := 50_000, os.Getenv("SOFTDPU_LONG") != ""
	if long {
		size = 10_000_000
	}
	s := sizesFor(size, 5, 1<<12)
	k := loadTables(t, s)
	table, err := NewTable(k.config(&s, size))
	if err != nil {
		t.Fatal(err)
	}
	request := func(change Change, n uint32) Request {
		return requestFor(change, n, 0x0a000000|n&0xffffff, 0xc0a80000|n*7919>>8, n*31&0xffff, 443, 6)
	}
	var stop atomic.Bool
	done := make(chan error)
	for i := range k.probes {
		k.probes[i].Key = request(InsertEntry, uint32(i)).Entry.Key
	}
	go func() {
		var err error
		for !stop.Load() && err == nil {
			_, err = k.Programs[bpf.PipeBenchProgProbeFind].Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 20_000})
		}
		done <- err
	}()
	var batch []Request
	var completions []Completion
	all := func(change Change, times int) float64 {
		begin := time.Now()
		for n := 0; n < times; n += batchSize {
			batch = batch[:0]
			for i := n; i < min(times, n+batchSize); i++ {
				batch = append(batch, request(change, uint32(i)))
			}
			completions = table.Process(batch, completions[:0])
			for i := range completions {
				if completions[i].Err != nil {
					t.Fatalf("entry %d of %d: %v", n+i, size, completions[i].Err)
				}
			}
		}
		return float64(times) / time.Since(begin).Seconds()
	}
	inserts := all(InsertEntry, size)
	updates := all(UpdateEntry, min(size, 200_000))
	debug.FreeOSMemory()
	process := anonymous(t)
	var maps uint64
	for _, name := range []string{bpf.PipeBenchMapPipeEntries, bpf.PipeBenchMapPipeBuckets} {
		m := k.Maps[name]
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		memory, ok := info.Memlock()
		if !ok {
			t.Fatalf("the kernel does not say what map %s takes", name)
		}
		maps += memory
	}
	removes := all(RemoveEntry, min(size, 1_000_000))
	stop.Store(true)
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.Logf("%d entries: %.0f inserts/s, %.0f updates/s, %.0f removes/s under load; %d MiB of maps, %d MiB of the process",
		size, inserts, updates, removes, maps>>20, process>>20)
	if used := maps + process; long && used > limit {
		t.Errorf("%d MiB, more than %d", used>>20, limit>>20)
	}
	if long && inserts < rate {
		t.Errorf("%.0f inserts a second, less than %d", inserts, rate)
	}
}

// anonymous is the memory that is the process's own: mapped maps are counted as maps.
func anonymous(t *testing.T) uint64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("the kernel does not say what the process has taken")
	return 0
}
