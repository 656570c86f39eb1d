package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain fails the run if a test left files, BPF objects or threads in other namespaces behind.
func TestMain(m *testing.M) {
	before := openFiles()
	code := m.Run()
	if code == 0 {
		if leaked := waitForFiles(before); leaked != "" {
			fmt.Fprintln(os.Stderr, "tests left files open:\n"+leaked)
			code = 1
		}
	}
	os.Exit(code)
}

// waitForFiles gives finalisers of what tests closed implicitly no chance to help: it only waits for
// closes that are under way.
func waitForFiles(before map[string]int) (leaked string) {
	for range 50 {
		var lines []string
		for name, n := range openFiles() {
			if n > before[name] {
				lines = append(lines, fmt.Sprintf("%s: %d more", name, n-before[name]))
			}
		}
		slices.Sort(lines)
		if leaked = strings.Join(lines, "\n"); leaked == "" {
			return ""
		}
		time.Sleep(20 * time.Millisecond)
	}
	return leaked
}

// openFiles counts this process's descriptors by what they are.
func openFiles() map[string]int {
	runtime.Gosched()
	files := make(map[string]int)
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if errors.Is(err, fs.ErrNotExist) || strings.Contains(name, "anon_inode:[event") {
			continue // the listing's own, and the runtime's poller
		}
		// Sockets and pipes have numbers in their names.
		name, _, _ = strings.Cut(name, ":[0-9")
		if i := strings.Index(name, ":["); i >= 0 && !strings.HasPrefix(name, "anon_inode") {
			name = name[:i]
		}
		files[name]++
	}
	return files
}
