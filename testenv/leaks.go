package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Held counts what this process holds of the kernel's, by name: open files, and mappings of sockets.
type Held map[string]int

// Holding looks what this process holds now.
func Holding() Held {
	h := Held{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if errors.Is(err, fs.ErrNotExist) || strings.Contains(name, "anon_inode:[eventpoll]") {
			continue // the listing's own, and the runtime's poller
		}
		if i := strings.Index(name, ":["); i >= 0 && !strings.HasPrefix(name, "anon_inode") {
			name = name[:i]
		}
		h[name]++
	}
	text, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "socket:") { // an AF_XDP ring
			h["mappings of sockets"]++
		}
	}
	return h
}

// More returns what the process holds more of now than then, a line each; "" is nothing.
func (h Held) More() string {
	var lines []string
	for name, n := range Holding() {
		if n > h[name] {
			lines = append(lines, fmt.Sprintf("%s: %d more\n", name, n-h[name]))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// RunWithoutLeaks runs a package's tests and returns the code to exit with. It is 1, and standard error says why, if
// they left something open. The kernel may take 2 s to close what was given up.
func RunWithoutLeaks(m interface{ Run() int }) int {
	if r, w, err := os.Pipe(); err == nil { // the runtime's poller, with its own descriptors
		r.Close()
		w.Close()
	}
	before := Holding()
	code := m.Run()
	if code != 0 {
		return code
	}
	leaked := ""
	for range 100 {
		if leaked = before.More(); leaked == "" {
			return 0
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "tests left open:\n"+leaked)
	return 1
}
