package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// An eventFile is the file at a path: appended to, rotated by size, and opened anew when another program
// has moved it away. Whole lines are written to it and no line is split between two files. It belongs to
// one goroutine, which may have to wait for the disk.
type eventFile struct {
	path    string
	maxSize int64 // bytes; 0: not rotated here
	keep    int   // rotated files, path.1 being the youngest

	file      *os.File
	info      fs.FileInfo // of file, to tell it from others
	size      int64
	torn      int  // bytes of the next line that file has already
	unended   bool // file ends inside a line of which no more comes
	rotations uint64
}

func openEventFile(path string, maxSize int64, keep int) (*eventFile, error) {
	f := &eventFile{path: path, maxSize: maxSize, keep: keep}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

// open makes what is at the path now the file. The file before stays if that fails.
func (f *eventFile) open() error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o750); err != nil {
		return fmt.Errorf("make the directory of events.file: %w", err)
	}
	file, info, err := openRegular(f.path, 0)
	if err != nil {
		return fmt.Errorf("open events.file: %w", err)
	}
	last := []byte{'\n'}
	if info.Size() > 0 {
		if _, err := file.ReadAt(last, info.Size()-1); err != nil {
			file.Close()
			return fmt.Errorf("read the end of events.file: %w", err)
		}
	}
	if f.file != nil {
		f.file.Close()
	}
	f.use(file, info)
	f.unended = last[0] != '\n'
	return nil
}

func (f *eventFile) use(file *os.File, info fs.FileInfo) {
	f.file, f.info, f.size, f.torn, f.unended = file, info, info.Size(), 0, false
}

// openRegular opens a file to append to. Anything else, a named pipe above all, might hold its writer.
func openRegular(path string, flags int) (*os.File, fs.FileInfo, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK|flags, 0o640)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file (%s): name one, or remove it", path, info.Mode().Type())
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// refresh follows whoever has moved or removed the file, as logrotate does: what comes is written to a
// new one. After an error lines go on into the file that was moved.
func (f *eventFile) refresh() error {
	info, err := os.Stat(f.path)
	switch {
	case err == nil && os.SameFile(info, f.info):
		f.size = info.Size() // it may have been truncated
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look at events.file: %w", err)
	}
	return f.open()
}

// write appends lines and returns how many bytes of them, up to the end of a line, need not be given
// again. Stuck says why the file could not be rotated, which keeps no line from being written.
func (f *eventFile) write(lines []byte) (taken int, stuck, err error) {
	if f.unended {
		if _, err := f.file.Write([]byte("\n")); err != nil {
			return 0, nil, fmt.Errorf("write events.file: %w", err)
		}
		f.unended = false
		f.size++
	}
	for taken < len(lines) {
		part := lines[taken:]
		if stuck == nil {
			n := f.fitting(part)
			if n == 0 {
				if stuck = f.rotate(); stuck != nil {
					stuck = fmt.Errorf("rotate events.file: %w", stuck)
				}
				continue
			}
			part = part[:n]
		}
		n, err := f.file.Write(part[f.torn:])
		f.size += int64(n)
		n += f.torn
		whole := bytes.LastIndexByte(part[:n], '\n') + 1
		f.torn = n - whole
		taken += whole
		if err != nil {
			return taken, stuck, fmt.Errorf("write events.file: %w", err)
		}
	}
	return taken, stuck, nil
}

// fitting returns how many bytes of lines the file has place for, 0 if it is to be rotated first. A line
// that is longer than all files gets one.
func (f *eventFile) fitting(lines []byte) int {
	room := f.maxSize - f.size + int64(f.torn)
	if f.maxSize == 0 || int64(len(lines)) <= room {
		return len(lines)
	}
	if n := bytes.LastIndexByte(lines[:max(0, room)], '\n') + 1; n > 0 {
		return n
	}
	if f.torn > 0 || f.size == 0 {
		return bytes.IndexByte(lines, '\n') + 1
	}
	return 0
}

// rotate puts a new file, with the owner and mode of the old, in the place of the old one, which becomes
// path.1. The new one is made first: a full or read-only directory leaves all as it is.
func (f *eventFile) rotate() error {
	fresh := f.path + ".new"
	file, info, err := openRegular(fresh, os.O_TRUNC)
	if err != nil {
		return err
	}
	if err := f.shift(file, fresh); err != nil {
		file.Close()
		os.Remove(fresh)
		return err
	}
	f.file.Close()
	f.use(file, info)
	f.rotations++
	return nil
}

func (f *eventFile) shift(file *os.File, fresh string) error {
	old, err := f.file.Stat()
	if err != nil {
		return err
	}
	if err := file.Chmod(old.Mode().Perm()); err != nil {
		return err
	}
	if s, ok := old.Sys().(*syscall.Stat_t); ok {
		if err := file.Chown(int(s.Uid), int(s.Gid)); err != nil {
			return err
		}
	}
	for i := f.keep; i > 0; i-- {
		from := f.path
		if i > 1 {
			from = rotated(f.path, i-1)
		}
		if err := os.Rename(from, rotated(f.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(fresh, f.path)
}

// rotated names a file that was rotated i times, as logrotate does.
func rotated(path string, i int) string { return fmt.Sprintf("%s.%d", path, i) }

func (f *eventFile) close() error { return f.file.Close() }
