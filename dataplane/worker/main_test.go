package worker_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain fails the run if a test left descriptors, mappings of sockets or threads behind.
func TestMain(m *testing.M) {
	if r, w, err := os.Pipe(); err == nil { // the runtime's poller, with its own descriptors
		r.Close()
		w.Close()
	}
	files, maps := openFiles(), socketMappings()
	code := m.Run()
	if code == 0 {
		leaked := ""
		for range 100 {
			if leaked = more(files, openFiles()) + more(maps, socketMappings()); leaked == "" {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if leaked != "" {
			fmt.Fprintln(os.Stderr, "tests left open:\n"+leaked)
			code = 1
		}
	}
	os.Exit(code)
}

// more returns what there is more of, a line each.
func more(before, after map[string]int) string {
	var lines []string
	for name, n := range after {
		if n > before[name] {
			lines = append(lines, fmt.Sprintf("%s: %d more\n", name, n-before[name]))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// openFiles counts this process's descriptors by what they are.
func openFiles() map[string]int {
	files := map[string]int{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if errors.Is(err, fs.ErrNotExist) || strings.Contains(name, "anon_inode:[eventpoll]") {
			continue // the listing's own, and the runtime's poller
		}
		if i := strings.Index(name, ":["); i >= 0 && !strings.HasPrefix(name, "anon_inode") {
			name = name[:i]
		}
		files[name]++
	}
	return files
}

// socketMappings counts this process's mappings of sockets: rings.
func socketMappings() map[string]int {
	maps := map[string]int{}
	text, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "socket:") {
			maps["mappings of sockets"]++
		}
	}
	return maps
}
