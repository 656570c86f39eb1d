package doctor

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/softdpu/softdpu/gateway"
)

const (
	onlineCPUs    = "/sys/devices/system/cpu/online"
	freeHugePages = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
)

// workersWanted looks at what the configuration asks for workers, on a machine with these CPUs and so many
// free huge pages.
func (e *examination) workersWanted(w *gateway.Workers, cpus []int, huge int64) {
	for _, cpu := range w.CPUs {
		if !slices.Contains(cpus, cpu) {
			e.find(Error, "workers", "name others by workers.cpus, or leave it out", "workers.cpus names CPU %d, which is not online", cpu)
		}
	}
	if w.Count > len(cpus) {
		e.find(Warning, "workers", "lower workers.count", "%d workers share %d CPUs", w.Count, len(cpus))
	}
	if w.Poll == gateway.WorkerPollAlways && max(w.Count, len(w.CPUs)) >= len(cpus) {
		e.find(Warning, "workers", "leave the system a CPU, or poll: adaptive", "workers that never sleep use up every CPU of the machine")
	}
	if w.HugePages && huge == 0 {
		e.find(Warning, "workers", "`sysctl vm.nr_hugepages=64` sets 128 MiB aside", "workers.huge_pages is set, and no huge page is free")
	}
}

// crew looks at the workers of the running gateway.
func (e *examination) crew(s *gateway.WorkersStatus) {
	if !s.Running {
		return
	}
	var refused []string
	for _, a := range s.Attempts {
		if a.Error != "" {
			refused = append(refused, fmt.Sprintf("%s on port %s: %s", a.Mode, a.Port, a.Error))
		}
	}
	why := ""
	if len(refused) > 0 {
		why = ": " + strings.Join(refused, "; ")
	}
	switch s.Mode {
	case "generic":
		e.find(Warning, "workers", "a driver with native XDP on every port", "workers get their packets in generic mode, several times slower%s", why)
	case "copy":
		e.find(Info, "workers", "", "workers get copies of their packets%s", why)
	}
	if s.Memory.WhySmall != "" {
		e.find(Warning, "workers", "`sysctl vm.nr_hugepages` sets some aside, and a restart takes them", "the workers' memory is in small pages: %s", s.Memory.WhySmall)
	}
	for i := range s.Workers {
		w := &s.Workers[i]
		if w.State != "polling" && w.State != "sleeping" {
			e.find(Error, "workers", "`top -H` shows what holds its CPU; workers.cpus gives it another", "worker %d on CPU %d is %s: flows that it carries are dropped, or go on in XDP as their rules say", w.ID, w.CPU, w.State)
		}
		queues := make(map[string]int)
		for k := range w.Queues {
			queues[w.Queues[k].Port]++
		}
		for _, port := range slices.Sorted(maps.Keys(queues)) {
			if n := queues[port]; n > 1 {
				e.port(Warning, "workers", port, "raise workers.count if there are CPUs, or lower the port's queues (`ethtool -L`)", "worker %d serves %d of its receive queues alone", w.ID, n)
			}
		}
	}
	for _, stall := range s.Stalls {
		e.port(Error, "workers", stall.Port, "look at the device's link; else another workers.mode, or a restart", "the %s ring of queue %d stands still since %s with %d in it: %s",
			stall.Ring, stall.Queue, stall.Since.Format(time.RFC3339), stall.Waiting, stall.Why)
	}
}

// readCPUs returns the CPUs that are online, by a list such as 0-3,6.
func readCPUs(path string) (cpus []int) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil {
			continue
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}
