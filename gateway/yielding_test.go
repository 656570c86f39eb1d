package gateway

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What runs behind the packets is on a nicer thread, and only it: the caller's thread and those that come after
// it are as they were.
func TestYielding(t *testing.T) {
	nice := func() int {
		n, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid()) // 20 less the niceness
		if err != nil {
			t.Fatal(err)
		}
		return 20 - n
	}
	wrong := errors.New("wrong")
	var inside, thread int
	if err := yielding(func() error { inside, thread = nice(), unix.Gettid(); return wrong }); !errors.Is(err, wrong) || inside != yieldingNice {
		t.Errorf("niceness %d: %v", inside, err)
	}
	if n := nice(); n == yieldingNice {
		t.Errorf("the caller has niceness %d", n)
	}
	for range 50 {
		done := make(chan bool)
		go func() { done <- unix.Gettid() == thread && nice() == yieldingNice }()
		if <-done {
			t.Error("the nicer thread goes on with other work")
		}
	}
	if err := yielding(func() error { panic("oops") }); err == nil || !strings.Contains(err.Error(), "oops") {
		t.Errorf("a panic is told as %v", err)
	}
}
