package main

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

// An archive writes what the kernel unpacks as its first root: a cpio archive in the format "newc"
// (Documentation/driver-api/early-userspace/buffer-format.rst). Names are relative to the root; folders
// above a name are made when they are missing. The first error stays, and is Close's.
type archive struct {
	w      *bufio.Writer
	at     int64
	inode  int
	folder map[string]bool
	err    error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), folder: map[string]bool{".": true}}
}

// Types of files in a header's mode.
const (
	modeFolder = 0o040000
	modeFile   = 0o100000
	modeLink   = 0o120000
)

// Folder adds a folder, once.
func (a *archive) Folder(name string) {
	if name = path.Clean(name); a.folder[name] {
		return
	}
	a.folder[name] = true
	a.Folder(path.Dir(name))
	a.header(name, modeFolder|0o755, 0)
}

// Link adds a symbolic link. A folder's link stands for the folder from then on.
func (a *archive) Link(name, target string) {
	a.Folder(path.Dir(name))
	a.folder[path.Clean(name)] = true
	a.header(name, modeLink|0o777, int64(len(target)))
	a.write([]byte(target))
	a.pad()
}

// Bytes adds a file.
func (a *archive) Bytes(name string, mode fs.FileMode, content []byte) {
	a.Folder(path.Dir(name))
	a.header(name, modeFile|int64(mode.Perm()), int64(len(content)))
	a.write(content)
	a.pad()
}

// File adds a file of the host's, with the bytes and permissions that it has now.
func (a *archive) File(name, source string) {
	if a.err != nil {
		return
	}
	f, err := os.Open(source)
	if err != nil {
		a.err = err
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		a.err = err
		return
	}
	a.Folder(path.Dir(name))
	a.header(name, modeFile|int64(info.Mode().Perm()), info.Size())
	n, err := io.Copy(a.w, io.LimitReader(f, info.Size()))
	a.at += n
	if err == nil && n != info.Size() {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && a.err == nil {
		a.err = fmt.Errorf("copy %s: %w", source, err)
	}
	a.pad()
}

// Close ends the archive. It does not close what it was written to.
func (a *archive) Close() error {
	a.header("TRAILER!!!", 0, 0)
	if a.err == nil {
		a.err = a.w.Flush()
	}
	return a.err
}

func (a *archive) header(name string, mode, size int64) {
	if size > 0xffffffff {
		a.err = fmt.Errorf("archive %s: %d bytes do not fit", name, size)
		return
	}
	a.inode++
	links := 1
	// Fields: inode, mode, user, group, links, time, size, device, device of a node, length of the name
	// with its zero, and a checksum that this format leaves at zero.
	a.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name)+1, 0, name))
	a.pad()
}

// pad fills up to a multiple of four.
func (a *archive) pad() {
	a.write(make([]byte, -a.at&3))
}

func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	n, err := a.w.Write(b)
	a.at += int64(n)
	a.err = err
}
