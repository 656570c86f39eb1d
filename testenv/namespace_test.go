package testenv_test

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

func TestDoEntersAndLeaves(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{})
	want := inode(t, l.Must(t, "client").Path())
	outside := inode(t, "/proc/thread-self/ns/net")
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			err := l.Must(t, "client").Do(func() error {
				if got := inode(t, "/proc/thread-self/ns/net"); got != want {
					t.Errorf("inside namespace %d, want %d", got, want)
				}
				// Inside of one namespace, another can be entered.
				return l.Must(t, "server").Do(func() error {
					if inode(t, "/proc/thread-self/ns/net") == want {
						t.Error("the second namespace is the first")
					}
					return nil
				})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/task/"+task.Name()+"/ns/net", &st); err == nil && st.Ino != outside {
			t.Errorf("thread %s was left in namespace %d", task.Name(), st.Ino)
		}
	}
}

func TestDoPassesOnErrorsAndGoexit(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{})
	n := l.Must(t, "client")
	want := errors.New("no")
	if err := n.Do(func() error { return want }); err != want {
		t.Errorf("error %v", err)
	}
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.Do(func() error { runtime.Goexit(); return nil })
		returned = true
	}()
	<-done
	if returned {
		t.Error("Do returned although its function called Goexit")
	}
}

func TestCommandRunsInside(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{})
	cmd := l.Must(t, "server").Command(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitUntilInside(t, l.Must(t, "server"), cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("killed command ended well")
	}
}

func waitUntilInside(t *testing.T, n *testenv.Namespace, pid int) {
	t.Helper()
	want := inode(t, n.Path())
	testenv.Eventually(t, 5*time.Second, func() error {
		var st unix.Stat_t
		if err := unix.Stat("/proc/"+itoa(pid)+"/ns/net", &st); err != nil {
			return err
		}
		if st.Ino != want {
			return errors.New("the process is not inside yet")
		}
		return nil
	})
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func itoa(n int) string { return strconv.Itoa(n) }
