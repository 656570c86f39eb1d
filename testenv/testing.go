package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// T is what New needs of a *testing.T. It stands here so that a program that builds labs does not
// carry package testing.
type T interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

var testLabs atomic.Uint32

// New builds a lab for a test and removes it when the test ends; after a failure it logs the lab's
// state first. Without a prefix the lab gets one of its own, so that tests run side by side and
// beside a person's lab; what crashed test processes left behind is removed on the way.
//
// Without root the test is skipped, except where the environment variable CI is set: there a test
// that can never run is a failure.
func New(t T, topology string, o Options) *Lab {
	t.Helper()
	RequireRoot(t)
	if o.Prefix == "" {
		removeStale(t)
		o.Prefix = fmt.Sprintf("t%d-%d", os.Getpid(), testLabs.Add(1))
	}
	l, err := Up(topology, o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", l.Describe())
		}
		// An open file elsewhere may hold a namespace for a moment longer; only errors count.
		if _, err := Down(o.Prefix); err != nil {
			t.Logf("%v", err)
		}
	})
	return l
}

// RequireRoot skips the test, visibly, if it does not run as root, and fails it there if the
// environment variable CI is set.
func RequireRoot(t T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("this test needs root and CI runs it without: it would never run")
	}
	t.Skipf("needs root: network namespaces")
}

// RequireProgram returns the path of a program that only this test needs. It leaves the test out on a machine
// without it; in CI, where the test would then never run, that is a failure.
func RequireProgram(t T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("this test needs %s and CI has none: it would never run", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}

// RequireCPUs leaves the test out on a machine with fewer processors; in CI, where it would then never run, that is a
// failure.
func RequireCPUs(t T, n int) {
	t.Helper()
	if runtime.NumCPU() >= n {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("this test needs %d processors and CI has %d: it would never run", n, runtime.NumCPU())
	}
	t.Skipf("needs %d processors", n)
}

// Must returns the node's namespace and ends the test if there is none.
func (l *Lab) Must(t T, node string) *Namespace {
	t.Helper()
	n, err := l.Namespace(node)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return n
}

// removeStale removes the labs of test processes that are gone. Their prefixes are t<pid>-<number>.
func removeStale(t T) {
	entries, err := os.ReadDir(namespaceDir)
	if err != nil {
		return // no folder, no lab
	}
	for _, e := range entries {
		prefix, pid, ok := testPrefix(e.Name())
		if !ok {
			continue
		}
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
			continue
		}
		if _, err := Down(prefix); err != nil {
			t.Logf("remove what a crashed test left: %v", err)
		}
	}
}

func testPrefix(namespace string) (prefix string, pid int, ok bool) {
	cut := strings.LastIndexByte(namespace, '-')
	if cut < 0 || namespace[0] != 't' {
		return "", 0, false
	}
	prefix = namespace[:cut]
	id, number, ok := strings.Cut(prefix[1:], "-")
	if !ok {
		return "", 0, false
	}
	if _, err := strconv.ParseUint(number, 10, 32); err != nil {
		return "", 0, false
	}
	pid, err := strconv.Atoi(id)
	return prefix, pid, err == nil && pid > 0
}

// patienceVariable holds the factor of Patience.
const patienceVariable = "SOFTDPU_PATIENCE"

// Patience returns how long a test should wait for what takes at most so long on an ordinary machine: as much, or
// that many times as much as the environment variable SOFTDPU_PATIENCE says, for machines emulated in software.
func Patience(limit time.Duration) time.Duration {
	if factor, err := strconv.ParseFloat(os.Getenv(patienceVariable), 64); err == nil && factor > 1 {
		return time.Duration(float64(limit) * factor)
	}
	return limit
}

// Eventually calls fn every 10 ms until it returns nil, and ends the test with its last error if
// that takes longer than Patience of the limit.
func Eventually(t T, limit time.Duration, fn func() error) {
	t.Helper()
	limit = Patience(limit)
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %v", limit, err)
		}
	}
}
