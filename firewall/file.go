package firewall

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const maxFile = 64 << 20 // bytes, far above what a person writes

// How often, and how long after another, a file is read again that somebody writes meanwhile.
const (
	readAttempts = 5
	readPause    = 20 * time.Millisecond
)

// A FileError says why a file that a person wrote cannot be read, and what to do about it.
type FileError struct {
	Path string
	Err  error
	Hint string // "" if none is known
}

// Error renders path: reason: remedy.
func (e *FileError) Error() string {
	if e.Hint == "" {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Path, e.Err, e.Hint)
}

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }

var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = fmt.Errorf("file is larger than %d MiB", maxFile>>20)
	errChanging   = errors.New("file changes while it is read")
)

// ReadFile reads a configuration, a policy or the entries of a set: a regular file of at most 64 MiB, which
// nobody writes meanwhile. It never waits for a writer, as a FIFO would have it do. The error is a *FileError.
func ReadFile(path string) ([]byte, error) {
	text, err := readStable(path)
	for i := 1; errors.Is(err, errChanging) && i < readAttempts; i++ {
		time.Sleep(readPause)
		text, err = readStable(path)
	}
	if err != nil {
		return nil, fileError(path, err)
	}
	return text, nil
}

// readStable reads a file that is the same afterwards as before.
func readStable(path string) ([]byte, error) {
	// A device is not even opened, which some take for a command.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if err := readable(info); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := readable(before); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	text.Grow(int(min(before.Size(), maxFile)) + bytes.MinRead)
	if _, err := text.ReadFrom(io.LimitReader(f, maxFile+1)); err != nil {
		return nil, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if after.Size() != int64(text.Len()) || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return nil, errChanging
	}
	return text.Bytes(), nil
}

func readable(info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return unix.EISDIR
	case !info.Mode().IsRegular():
		return errNotRegular
	case info.Size() > maxFile:
		return errTooLarge
	}
	return nil
}

// fileError adds the remedy. The path, which errors of package os hold too, is told once.
func fileError(path string, err error) *FileError {
	e := &FileError{Path: path, Err: err}
	var inner *fs.PathError
	if errors.As(err, &inner) {
		e.Err = inner.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		e.Hint = "look for a slip in its name, or write it"
	case errors.Is(err, fs.ErrPermission):
		e.Hint = "run as root, or let this user read it"
	case errors.Is(err, unix.ELOOP):
		e.Hint = "it is a symbolic link to itself: replace it by the file"
	case errors.Is(err, unix.EISDIR):
		e.Hint = "name a file in it"
	case errors.Is(err, errNotRegular):
		e.Hint = "copy what it yields into a file"
	case errors.Is(err, errTooLarge):
		e.Hint = "split it, and keep long lists in the files of sets"
	case errors.Is(err, errChanging):
		e.Hint = "try again when it is written; whoever writes a new file and renames it is never in the way"
	}
	return e
}

// Unreadable is the mistake at p, which names a file that cannot be read. What says what it was to be; missing is
// the remedy if there is no such file.
func Unreadable(p Pos, what string, err error, missing string) Error {
	var e *FileError
	switch {
	case !errors.As(err, &e):
		return p.Errorf("read %s: %v", what, err).WithHint("%s", missing)
	case errors.Is(err, fs.ErrNotExist):
		return p.Errorf("read %s: %s: %v", what, e.Path, e.Err).WithHint("%s", missing)
	}
	return p.Errorf("read %s: %s: %v", what, e.Path, e.Err).WithHint("%s", e.Hint)
}
