package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func openTestFile(t *testing.T, maxSize int64, keep int) *eventFile {
	t.Helper()
	f, err := openEventFile(filepath.Join(t.TempDir(), "log", "eve.json"), maxSize, keep)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.close() })
	return f
}

// put writes lines that must all be taken.
func (f *eventFile) put(t *testing.T, lines string) {
	t.Helper()
	if err := f.refresh(); err != nil {
		t.Fatal(err)
	}
	if n, stuck, err := f.write([]byte(lines)); n != len(lines) || stuck != nil || err != nil {
		t.Fatalf("%d bytes of %d, %v, %v", n, len(lines), stuck, err)
	}
}

func content(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// Batches of any size come out whole and in order, in files of at most the size.
func TestRotation(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	const size, files = 2000, 40
	f := openTestFile(t, size, files)
	var want strings.Builder
	for n := 0; want.Len() < size*(files-10); {
		var batch bytes.Buffer
		for range random.IntN(100) {
			fmt.Fprintf(&batch, "%d %s\n", n, strings.Repeat("x", random.IntN(80)))
			n++
		}
		want.Write(batch.Bytes())
		f.put(t, batch.String())
	}
	var got strings.Builder
	for i := files; i >= 0; i-- {
		name := f.path
		if i > 0 {
			name = rotated(f.path, i)
		}
		text := content(t, name)
		if len(text) > size || text != "" && !strings.HasSuffix(text, "\n") || i > 0 && text != "" && len(text) < size/2 {
			t.Errorf("seed %d: %s has %d bytes, and ends in %q", seed, name, len(text), text[max(0, len(text)-10):])
		}
		got.WriteString(text)
	}
	if got.String() != want.String() || f.rotations < files/2 {
		t.Errorf("seed %d: %d bytes came out of %d, after %d rotations", seed, got.Len(), want.Len(), f.rotations)
	}
}

// The oldest file goes, the new one has the owner and mode of the old, and a long line a file of its own.
func TestRotationKeepsSoMany(t *testing.T) {
	f := openTestFile(t, 10, 2)
	if err := os.Chmod(f.path, 0o644); err != nil {
		t.Fatal(err)
	}
	root := os.Geteuid() == 0
	if root {
		if err := os.Chown(f.path, 0, 4); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{"one 1\n", "two 2\n", "three is longer than ten\n", "four\n", "five\n"} {
		f.put(t, line)
	}
	for name, want := range map[string]string{f.path: "four\nfive\n", f.path + ".1": "three is longer than ten\n", f.path + ".2": "two 2\n", f.path + ".3": "", f.path + ".new": ""} {
		if got := content(t, name); got != want {
			t.Errorf("%s: %q, want %q", filepath.Base(name), got, want)
		}
	}
	info, err := os.Stat(f.path)
	if err != nil || info.Mode().Perm() != 0o644 || root && info.Sys().(*syscall.Stat_t).Gid != 4 {
		t.Errorf("%+v, %v", info, err)
	}
	none := openTestFile(t, 10, 0)
	none.put(t, "one 1\ntwo 2\n")
	if got := content(t, none.path); got != "two 2\n" || content(t, none.path+".1") != "" {
		t.Errorf("with none kept: %q", got)
	}
}

// Whoever moves the file away, removes it or cuts it off, as logrotate does, gets a new one.
func TestFileIsFollowed(t *testing.T) {
	f := openTestFile(t, 0, 0)
	f.put(t, "one\n")
	if err := os.Rename(f.path, f.path+"-moved"); err != nil {
		t.Fatal(err)
	}
	f.put(t, "two\n")
	if content(t, f.path+"-moved") != "one\n" || content(t, f.path) != "two\n" {
		t.Errorf("moved: %q, %q", content(t, f.path+"-moved"), content(t, f.path))
	}
	if err := os.WriteFile(f.path+"-create", nil, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path+"-create", f.path); err != nil { // as `create` does
		t.Fatal(err)
	}
	f.put(t, "three\n")
	if content(t, f.path) != "three\n" {
		t.Errorf("replaced: %q", content(t, f.path))
	}
	if err := os.Truncate(f.path, 0); err != nil { // as `copytruncate` does
		t.Fatal(err)
	}
	f.put(t, "four\n")
	if content(t, f.path) != "four\n" {
		t.Errorf("truncated: %q", content(t, f.path))
	}
	if err := os.RemoveAll(filepath.Dir(f.path)); err != nil {
		t.Fatal(err)
	}
	f.put(t, "five\n")
	info, err := os.Stat(f.path)
	if content(t, f.path) != "five\n" || err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("removed: %q, %v", content(t, f.path), err)
	}
}

// A place where no file can be made costs no line: all go on into the old file.
func TestRotationWithoutAPlace(t *testing.T) {
	f := openTestFile(t, 10, 1)
	f.put(t, "one 1\n")
	if err := os.Mkdir(f.path+".new", 0o750); err != nil {
		t.Fatal(err)
	}
	n, stuck, err := f.write([]byte("two 2\nthree\n"))
	if n != 12 || stuck == nil || err != nil || content(t, f.path) != "one 1\ntwo 2\nthree\n" {
		t.Errorf("%d, %v, %v: %q", n, stuck, err, content(t, f.path))
	}
	moved := f.path + "-moved"
	if err := errors.Join(os.Rename(f.path, moved), os.Mkdir(f.path, 0o750)); err != nil {
		t.Fatal(err)
	}
	if err := f.refresh(); err == nil {
		t.Error("a directory is taken for the file")
	}
	if n, _, err := f.write([]byte("four\n")); n != 5 || err != nil || !strings.HasSuffix(content(t, moved), "three\nfour\n") {
		t.Errorf("%d, %v: %q", n, err, content(t, moved))
	}
	if err := errors.Join(os.Remove(f.path), os.Remove(f.path+".new")); err != nil {
		t.Fatal(err)
	}
	f.put(t, "five\n")
	f.put(t, "sixth\n")
	if content(t, f.path) != "sixth\n" || content(t, f.path+".1") != "five\n" {
		t.Errorf("again: %q, %q", content(t, f.path), content(t, f.path+".1"))
	}
}

// A line that the disk took half of is completed once there is room, and is whole in another file.
func TestTornLines(t *testing.T) {
	f := openTestFile(t, 0, 0)
	f.put(t, "one\n")
	signal.Ignore(unix.SIGXFSZ)
	t.Cleanup(func() { signal.Reset(unix.SIGXFSZ) })
	limit := func(bytes uint64) {
		t.Helper()
		var l unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &l); err != nil {
			t.Fatal(err)
		}
		l.Cur = bytes
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &l); err != nil {
			t.Fatal(err)
		}
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { limit(before.Cur) })
	batch := []byte("two\nthree\nfour\n")
	limit(10) // in "three"
	n, _, err := f.write(batch)
	limit(before.Cur)
	if n != 4 || err == nil || content(t, f.path) != "one\ntwo\nth" {
		t.Fatalf("%d, %v: %q", n, err, content(t, f.path))
	}
	f.put(t, string(batch[n:]))
	if content(t, f.path) != "one\ntwo\nthree\nfour\n" {
		t.Errorf("completed: %q", content(t, f.path))
	}
	limit(22)
	n, _, err = f.write([]byte("fives\n"))
	limit(before.Cur)
	if n != 0 || err == nil {
		t.Fatalf("%d, %v", n, err)
	}
	if err := os.Rename(f.path, f.path+".1"); err != nil {
		t.Fatal(err)
	}
	f.put(t, "fives\n")
	if content(t, f.path) != "fives\n" {
		t.Errorf("in another file: %q", content(t, f.path))
	}
	// one that a crash left is ended before the next begins
	if err := os.WriteFile(f.path, []byte("six\nsev"), 0o640); err != nil {
		t.Fatal(err)
	}
	again, err := openEventFile(f.path, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	again.put(t, "eight\n")
	if got := content(t, f.path); got != "six\nsev\neight\n" {
		t.Errorf("after a crash: %q", got)
	}
}

// What is no file is refused before anything could wait for it.
func TestOnlyFilesAreWrittenTo(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/null", t.TempDir()} {
		if f, err := openEventFile(path, 0, 0); err == nil {
			f.close()
			t.Errorf("%s is taken for a file", path)
		}
	}
}
