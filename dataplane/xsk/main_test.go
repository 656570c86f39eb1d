package xsk_test

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

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// holderVariable makes the test program one that holds a queue until it is killed: "DEVICE".
const holderVariable = "XSK_TEST_HOLD"

// TestMain fails the run if a test left descriptors or mappings of sockets behind.
func TestMain(m *testing.M) {
	if device := os.Getenv(holderVariable); device != "" {
		fmt.Fprintln(os.Stderr, holdQueue(device))
		os.Exit(1)
	}
	if what := os.Getenv(forwarderVariable); what != "" {
		fmt.Fprintln(os.Stderr, forwarder(what))
		os.Exit(1)
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

// holdQueue binds queue 0 of the device with packets under way, says so, and never ends.
func holdQueue(device string) error {
	u, err := xsk.NewUMEM(xsk.UMEMOptions{})
	if err != nil {
		return err
	}
	p, err := u.NewPool(u.Frames())
	if err != nil {
		return err
	}
	r, err := xsk.Attach(device, xsk.AttachOptions{})
	if err != nil {
		return err
	}
	s, err := xsk.Open(u, p, device, 0, xsk.SocketOptions{})
	if err != nil {
		return err
	}
	if err := r.Add(s); err != nil {
		return err
	}
	var one [1]xsk.Desc
	for range 100 {
		p.Alloc(one[:])
		one[0].Len = 60
		s.Transmit(one[:])
	}
	fmt.Println("held")
	select {}
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
		if errors.Is(err, fs.ErrNotExist) || strings.Contains(name, "anon_inode:[event") {
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
