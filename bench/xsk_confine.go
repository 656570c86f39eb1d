package bench

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// confine keeps the process's threads on some CPUs, but for those that are pinned afterwards, until the
// function that it returns is called.
//
// Every 10 ms the Go runtime makes a busy goroutine pause. Where that one is locked to its thread, another
// thread has to run in between to hand it on. If that one has to wait for a CPU that the generator keeps busy,
// the worker waits for milliseconds. On the worker's own CPU, which is free at that moment, it runs at once.
func confine(cpus []int) (func(), error) {
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	for _, c := range cpus {
		set.Set(c)
	}
	if err := setAffinity(&set); err != nil {
		return nil, err
	}
	return func() { _ = setAffinity(&before) }, nil // to what it was: this cannot be refused
}

// setAffinity sets where the process's threads run, and those that they make later.
func setAffinity(set *unix.CPUSet) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	for _, t := range tasks {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(id, set); err != nil && err != unix.ESRCH {
			return fmt.Errorf("keep thread %d to its CPUs: %w", id, err)
		}
	}
	return nil
}
