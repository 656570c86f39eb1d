package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/softdpu/softdpu/firewall"
)

// What a history consists of, below STATE/history/NAME-HASH of the configuration's path, for root alone:
//
//	history.json    historyIndex
//	files/SHA256    the files of policies, each content once
const historyVersion = 1

// openHistory reads what the runs before have left. What is wrong with it is logged and kept as the
// history's trouble. Nothing is written yet.
func openHistory(c *Config, log *slog.Logger) *history {
	h := &history{dir: stateDir(c, "history"), log: log, boot: bootID(), uptime: uptime, reader: new(policyReader)}
	h.index = historyIndex{Version: historyVersion, Config: c.File, Next: 1}
	index, err := h.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		h.lost, h.aside = err, true
		log.Error("the history of the policy cannot be read: it begins anew, and what was rolled back or not confirmed is not known",
			"directory", h.dir, "error", err)
	default:
		h.index = *index
	}
	h.show()
	return h
}

func (h *history) read() (*historyIndex, error) {
	if err := ownedState(h.dir); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	path := filepath.Join(h.dir, "history.json")
	text, err := firewall.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	x := new(historyIndex)
	if err = json.Unmarshal(text, x); err == nil {
		err = x.check()
	}
	if err != nil {
		return nil, fmt.Errorf("read history %s: %w", path, err)
	}
	return x, nil
}

// check looks whether what was read can be relied on.
func (x *historyIndex) check() error {
	if x.Version != historyVersion {
		return fmt.Errorf("it is of version %d, not %d", x.Version, historyVersion)
	}
	last := 0
	for i := range x.Entries {
		r := &x.Entries[i]
		if r.Entry <= last || r.Entry >= x.Next {
			return fmt.Errorf("entry %d stands behind entry %d", r.Entry, last)
		}
		last = r.Entry
		for _, f := range r.Sources {
			if b, err := hex.DecodeString(f.Sum); err != nil || len(b) != sha256.Size {
				return fmt.Errorf("entry %d has a file without a hash", r.Entry)
			}
		}
	}
	if x.Current != 0 && x.find(x.Current) == nil {
		return fmt.Errorf("entry %d, which is in force, is missing", x.Current)
	}
	if p := x.Pending; p != nil && (x.find(p.Entry) == nil || x.find(p.Before) == nil) {
		return fmt.Errorf("entry %d or %d, of a change that waits to be confirmed, is missing", p.Entry, p.Before)
	}
	if x.Held != nil && x.find(x.Held.Entry) == nil {
		return fmt.Errorf("entry %d, which was rolled back to, is missing", x.Held.Entry)
	}
	return nil
}

// ready makes the directories.
func (h *history) ready() error {
	if err := makeStateDir(h.dir); err != nil {
		return fmt.Errorf("make the directory of the history: %w", err)
	}
	files := filepath.Join(h.dir, "files")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return fmt.Errorf("make the directory of the history: %w", err)
	}
	return owned(files)
}

// blob is where the content with a hash lies.
func (h *history) blob(sum string) string { return filepath.Join(h.dir, "files", sum) }

// store writes the files that are not there yet, or not as they should be. Those whose texts are gone
// must be there.
func (h *history) store(files []sourceFile) error {
	if err := h.ready(); err != nil {
		return err
	}
	written := false
	for _, f := range files {
		info, err := os.Lstat(h.blob(f.Sum))
		there := err == nil && info.Mode().IsRegular() && info.Size() == f.Size
		if f.text == nil && f.Size > 0 {
			if !there {
				return fmt.Errorf("the history has lost %s", f.Path)
			}
			continue
		}
		if there {
			if text, err := firewall.ReadFile(h.blob(f.Sum)); err == nil && bytes.Equal(text, f.text) {
				continue
			}
		}
		if err := replaceFile(h.blob(f.Sum), bytes.NewReader(f.text)); err != nil {
			return fmt.Errorf("keep %s: %w", f.Path, err)
		}
		written = true
	}
	if !written {
		return nil
	}
	return syncDir(filepath.Join(h.dir, "files"))
}

// A storing writes files that an entry may come to have.
type storing struct {
	files []sourceFile
	done  <-chan struct{}
	err   error // once done
}

// storeAhead begins to store files, unless they are those in force. What becomes of no entry is swept with the next
// change.
func (h *history) storeAhead(files []sourceFile) {
	h.ahead = nil
	h.mu.Lock()
	now := h.index.find(h.index.Current)
	there := now != nil && slices.EqualFunc(now.Sources, files, func(a, b sourceFile) bool { return a.Path == b.Path && a.Sum == b.Sum })
	h.mu.Unlock()
	if !there {
		if h.work.full() {
			h.work.wait()
		}
		h.ahead = h.storing(files)
	}
}

func (h *history) storing(files []sourceFile) *storing {
	s := &storing{files: files}
	s.done = h.work.begin(func() { s.err = h.store(files) })
	return s
}

// stored returns the storing of files, which may have been begun ahead.
func (h *history) stored(files []sourceFile) *storing {
	s := h.ahead
	h.ahead = nil
	if s != nil && len(s.files) > 0 && len(files) > 0 && &s.files[0] == &files[0] {
		return s
	}
	return h.storing(files)
}

// write replaces the index, and removes the files that none of its entries has.
func (h *history) write(x *historyIndex) error {
	if err := h.ready(); err != nil {
		return err
	}
	path := filepath.Join(h.dir, "history.json")
	if h.aside {
		if err := os.Rename(path, path+".corrupt"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("put the history aside that cannot be read: %w", err)
		}
		h.aside = false
	}
	text, err := json.MarshalIndent(x, "", " ")
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if err := replaceFile(path, bytes.NewReader(append(text, '\n'))); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if err := syncDir(h.dir); err != nil {
		return err
	}
	h.sweep(x)
	return nil
}

// sweep removes what no entry has. What cannot be removed stays until the next time.
func (h *history) sweep(x *historyIndex) {
	kept := make(map[string]bool)
	for i := range x.Entries {
		for _, f := range x.Entries[i].Sources {
			kept[f.Sum] = true
		}
	}
	entries, _ := os.ReadDir(filepath.Join(h.dir, "files"))
	for _, e := range entries {
		if !kept[e.Name()] {
			_ = os.Remove(h.blob(e.Name()))
		}
	}
}

// prune takes the oldest entries out, and the files of the oldest that are left, down to the bounds.
func (x *historyIndex) prune() {
	needed := map[int]bool{x.Current: true}
	if x.Pending != nil {
		needed[x.Pending.Entry], needed[x.Pending.Before] = true, true
	}
	if x.Held != nil {
		needed[x.Held.Entry] = true
	}
	inForce, refused := 0, 0
	for i := len(x.Entries) - 1; i >= 0; i-- {
		r := &x.Entries[i]
		n := &inForce
		if r.Result == resultRefused {
			n = &refused
		}
		if *n++; *n > historyEntries && !needed[r.Entry] {
			x.Entries = slices.Delete(x.Entries, i, i+1)
		}
	}
	seen, total := make(map[string]bool), int64(0)
	size := func(r *record) (n int64) {
		for _, f := range r.Sources {
			if !seen[f.Sum] {
				seen[f.Sum] = true
				n += f.Size
			}
		}
		return n
	}
	for i := range x.Entries {
		if needed[x.Entries[i].Entry] {
			total += size(&x.Entries[i])
		}
	}
	full := false
	for i := len(x.Entries) - 1; i >= 0; i-- {
		r := &x.Entries[i]
		if needed[r.Entry] {
			continue
		}
		if !full {
			total += size(r)
		}
		if full = full || total > historyBytes; full {
			r.Sources = nil
		}
	}
}

// load reads the files of an entry and the policy that they make.
func (h *history) load(entry int) (*candidate, error) {
	h.work.wait() // they may be on their way
	h.mu.Lock()
	r := h.index.find(entry)
	var files []sourceFile
	if r != nil {
		files = slices.Clone(r.Sources)
	}
	h.mu.Unlock()
	if len(files) == 0 {
		return nil, fmt.Errorf("read entry %d of the history: its files are not kept", entry)
	}
	for i := range files {
		f := &files[i]
		text, err := firewall.ReadFile(h.blob(f.Sum))
		if err != nil {
			return nil, fmt.Errorf("read entry %d of the history: %s: %w", entry, f.Path, err)
		}
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != f.Sum {
			return nil, fmt.Errorf("read entry %d of the history: what is kept of %s is damaged", entry, f.Path)
		}
		f.text = text
	}
	k := &candidate{files: files, restored: entry}
	if err := h.reader.reread(k); err != nil {
		return nil, fmt.Errorf("read entry %d of the history: %w", entry, err)
	}
	return k, nil
}
