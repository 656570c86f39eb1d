package firewall

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Whatever lies where a file should, reading ends at once and says what to do.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(at("text"), []byte("rules: []\n"), 0o644))
	check(os.Symlink("text", at("link")))
	check(os.Symlink("loop", at("loop")))
	check(unix.Mkfifo(at("fifo"), 0o644))
	check(os.WriteFile(at("sparse"), nil, 0o644))
	check(os.Truncate(at("sparse"), maxFile+1))
	for _, tt := range []struct{ name, want, hint string }{
		{"text", "", ""},
		{"link", "", ""},
		{"absent", "no such file", "slip in its name"},
		{"text/below", "not a directory", "slip in its name"},
		{".", "is a directory", "name a file in it"},
		{"loop", "too many levels of symbolic links", "replace it by the file"},
		{"fifo", "not a regular file", "copy what it yields"},
		{"../../../../../../../../dev/zero", "not a regular file", "copy what it yields"},
		{"sparse", "larger than 64 MiB", "split it"},
		{"../../../../../../../../proc/self/stat", "changes while it is read", "try again"}, // never as long as it says
	} {
		start := time.Now()
		text, err := ReadFile(at(tt.name))
		var e *FileError
		switch {
		case tt.want == "" && (err != nil || string(text) != "rules: []\n"):
			t.Errorf("%s: %q, %v", tt.name, text, err)
		case tt.want != "" && (!errors.As(err, &e) || !strings.Contains(e.Err.Error(), tt.want) || !strings.Contains(e.Hint, tt.hint)):
			t.Errorf("%s: says %v, want %q and %q", tt.name, err, tt.want, tt.hint)
		case time.Since(start) > 10*time.Second:
			t.Errorf("%s takes %s", tt.name, time.Since(start))
		}
	}
}

// A file that somebody writes meanwhile is not read in halves: it is waited for a moment, then refused.
func TestReadFileWhileWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	line := "# one of many lines, all of the same length\n"
	whole := strings.Repeat(line, 200_000)
	if err := os.WriteFile(file, []byte(whole), 0o644); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				_ = os.WriteFile(file, []byte(whole), 0o644)
				return
			default:
			}
			f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return
			}
			_, _ = f.WriteString(line)
			f.Close()
		}
	}()
	// Between two writes it can be read.
	for end := time.Now().Add(30 * time.Second); ; {
		_, err := ReadFile(file)
		if errors.Is(err, errChanging) {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("says %v", err)
		}
	}
	close(stop)
	<-stopped
	if text, err := ReadFile(file); err != nil || string(text) != whole {
		t.Errorf("afterwards: %d bytes, %v", len(text), err)
	}
}
