package gateway

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// Whoever may open the socket may read; only root, and whom the daemon runs as, gets through to a change.
func TestChanges(t *testing.T) {
	testenv.RequireRoot(t) // to be somebody else
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	s := &http.Server{
		Handler:           changes(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "changed") }),
		ConnContext:       withConn,
		ReadHeaderTimeout: time.Second,
	}
	go s.Serve(l)
	defer s.Close()
	for uid, want := range map[int]string{0: "200 OK", 65534: "403 Forbidden"} {
		got := make(chan string, 1)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, and its user with it
			got <- askAs(uid, path, "POST /")
		}()
		if answer := <-got; !strings.Contains(answer, want) || strings.Contains(answer, "changed") != (uid == 0) {
			t.Errorf("uid %d is answered %q", uid, answer)
		}
	}
	if mayChange(65533) {
		t.Error("anybody may change the gateway")
	}
}

// askAs makes a request as another user. The user is the thread's alone: system calls and not package
// net, which may use other threads.
func askAs(uid int, path, request string) string {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), 0); errno != 0 {
		return errno.Error()
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err.Error()
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return err.Error()
	}
	if _, err := unix.Write(fd, []byte(request+" HTTP/1.0\r\n\r\n")); err != nil {
		return err.Error()
	}
	var answer []byte
	b := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, b)
		if n <= 0 || err != nil {
			return string(answer)
		}
		answer = append(answer, b[:n]...)
	}
}
