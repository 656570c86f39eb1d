package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// allowedCPUs are those that the process may run on.
func allowedCPUs() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var cpus []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// chooseCPUs returns the CPUs for workers, in turn: those that were asked for, else those of the node of the first
// port that has one, else all. It is an error to ask for one that the process may not run on.
func chooseCPUs(asked []int, ports []Port) ([]int, error) {
	allowed := allowedCPUs()
	for _, cpu := range asked {
		if !slices.Contains(allowed, cpu) {
			return nil, fmt.Errorf("pin a worker to CPU %d: the process may run on %v", cpu, allowed)
		}
	}
	if len(asked) > 0 {
		return asked, nil
	}
	for _, p := range ports {
		node := readNumber(filepath.Join("/sys/class/net", p.Device, "device/numa_node"))
		if node < 0 {
			continue
		}
		near := slices.DeleteFunc(slices.Clone(allowed), func(cpu int) bool { return nodeOf(cpu) != node })
		if len(near) > 0 {
			return near, nil
		}
	}
	return allowed, nil
}

// nodeOf returns the NUMA node of a CPU, -1 if the machine has none.
func nodeOf(cpu int) int {
	nodes, _ := filepath.Glob(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/node*", cpu))
	for _, n := range nodes {
		if node, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(n), "node")); err == nil {
			return node
		}
	}
	return -1
}

// readNumber returns the number that a file holds, -1 if there is none.
func readNumber(file string) int {
	text, err := os.ReadFile(file)
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return n
}
