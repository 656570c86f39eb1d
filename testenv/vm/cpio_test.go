package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// An entry is what the kernel would unpack.
type entry struct {
	name, content string
	mode          uint64
}

// unpack reads an archive as the kernel does: headers and contents start at multiples of four.
func unpack(t *testing.T, b []byte) (all []entry) {
	t.Helper()
	inodes := map[uint64]bool{}
	for at := 0; ; {
		if at%4 != 0 || string(b[at:at+6]) != "070701" {
			t.Fatalf("no header at %d: %q", at, b[at:min(len(b), at+16)])
		}
		field := func(n int) uint64 {
			v, err := strconv.ParseUint(string(b[at+6+8*n:at+14+8*n]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		size, nameSize := int(field(6)), int(field(11))
		name := string(b[at+110 : at+110+nameSize])
		start := (at + 110 + nameSize + 3) &^ 3
		if !strings.HasSuffix(name, "\x00") {
			t.Fatalf("the name %q has no end", name)
		}
		name = name[:nameSize-1]
		if name == "TRAILER!!!" {
			if len(b) != start {
				t.Errorf("%d bytes after the end", len(b)-start)
			}
			return all
		}
		if inodes[field(0)] {
			t.Errorf("%s has the inode of another, which makes it a hard link", name)
		}
		inodes[field(0)] = true
		all = append(all, entry{name, string(b[start : start+size]), field(1)})
		at = (start + size + 3) &^ 3
	}
}

func TestArchive(t *testing.T) {
	source := filepath.Join(t.TempDir(), "program")
	long := strings.Repeat("softdpu", 3000)
	if err := os.WriteFile(source, []byte(long), 0o700); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	a := newArchive(&b)
	a.Link("lib", "usr/lib")
	a.Bytes("etc/a/b", 0o644, []byte("12345"))
	a.Bytes("etc/a/c", 0o600, nil)
	a.Folder("etc/a")
	a.File("usr/lib/program", source)
	a.Bytes("lib/x", 0o644, []byte("1234")) // through the link, so no folder of its name
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	want := []entry{
		{"lib", "usr/lib", 0o120777},
		{"etc", "", 0o040755},
		{"etc/a", "", 0o040755},
		{"etc/a/b", "12345", 0o100644},
		{"etc/a/c", "", 0o100600},
		{"usr", "", 0o040755},
		{"usr/lib", "", 0o040755},
		{"usr/lib/program", long, 0o100700},
		{"lib/x", "1234", 0o100644},
	}
	if got := unpack(t, b.Bytes()); !slices.Equal(got, want) {
		t.Errorf("unpacked:\n%.400s", fmt.Sprint(got))
	}
}

func TestArchiveKeepsItsError(t *testing.T) {
	a := newArchive(new(bytes.Buffer))
	a.File("a", filepath.Join(t.TempDir(), "missing"))
	a.Bytes("b", 0o644, []byte("b"))
	if err := a.Close(); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("got %v", err)
	}
}
