package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/firewall"
)

// A liveStore keeps what sets were given at runtime: a file for each set, replaced as a whole. The first
// line names the set, and the file of what stands in the place of its entries; each further one is a call with
// the entries that are left of it.
type liveStore struct {
	dir  string
	lock *os.File // nil until something is there, or is written
}

const liveSuffix = ".json"

// liveHeader is the first line of a file.
type liveHeader struct {
	Set  string           `json:"set"`
	Type firewall.SetType `json:"type"`
	List *liveListLine    `json:"list,omitempty"`
}

// liveLine is each further line.
type liveLine struct {
	liveOrigin
	Out     bool     `json:"out,omitempty"`
	Entries []string `json:"entries"`
}

func newLiveStore(dir string) *liveStore { return &liveStore{dir: dir} }

func (s *liveStore) file(name string) string { return filepath.Join(s.dir, name+liveSuffix) }

// load reads all files, without what is over at now. It changes nothing.
func (s *liveStore) load(now time.Time) (liveSets, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what sets were given at runtime: %w", err)
	}
	if err := ownedState(s.dir); err != nil {
		return nil, fmt.Errorf("read what sets were given at runtime: %w", err)
	}
	sets := make(liveSets)
	for _, e := range entries {
		name, isSet := strings.CutSuffix(e.Name(), liveSuffix)
		if !isSet || e.IsDir() {
			continue
		}
		if !e.Type().IsRegular() {
			return nil, fmt.Errorf("read what set %s was given at runtime: %s is no regular file: move it away to start without", name, s.file(name))
		}
		live, err := readLiveSet(filepath.Join(s.dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read what set %s was given at runtime: %w: move the file away to start without", name, err)
		}
		if live.name != name {
			return nil, fmt.Errorf("read what set %s was given at runtime: %s is about set %q: give the file its name back, or move it away", name, s.file(name), live.name)
		}
		sets[name] = live
	}
	sets, _ = sets.expire(now)
	return sets, nil
}

func readLiveSet(path string) (*liveSet, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	number := 0
	fail := func(err error) (*liveSet, error) { return nil, fmt.Errorf("%s:%d: %w", path, number, err) }
	live := &liveSet{entries: make(map[firewall.Entry]liveEntry)}
	for line := range bytes.Lines(text) {
		if number++; number == 1 {
			var h liveHeader
			if err := strictJSON(line, &h); err != nil {
				return fail(err)
			}
			live.name, live.kind = h.Set, h.Type
			if live.list, err = h.List.read(filepath.Dir(path), h.Set, h.Type); err != nil {
				return fail(err)
			}
			continue
		}
		var l liveLine
		if err := strictJSON(line, &l); err != nil {
			return fail(err)
		}
		how := liveEntry{&l.liveOrigin, l.Out}
		for _, text := range l.Entries {
			e, _, err := firewall.ParseEntry(live.kind, text)
			if err != nil {
				return fail(err)
			}
			live.entries[e] = how
		}
	}
	if number == 0 {
		return nil, fmt.Errorf("%s: the file is empty", path)
	}
	return live, nil
}

func strictJSON(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// acquire makes the directory and keeps other gateways out of it.
func (s *liveStore) acquire() error {
	if s.lock != nil {
		return nil
	}
	if err := makeStateDir(s.dir); err != nil {
		return fmt.Errorf("make the directory of sets: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("lock the directory of sets: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: another softdpu with this configuration keeps its sets there: stop it, or give one a `state` of its own", s.dir)
		}
		return fmt.Errorf("lock %s: %w", s.dir, err)
	}
	s.lock = lock
	return nil
}

// save replaces the files of the sets in which next differs from what is written. When it returns nil they
// outlive a loss of power. After an error some may be replaced: save again what is to hold.
func (s *liveStore) save(written, next liveSets) error {
	if err := s.acquire(); err != nil {
		return err
	}
	changed := false
	for name, live := range next {
		if written[name] == live {
			continue
		}
		if err := s.write(live); err != nil {
			return fmt.Errorf("keep set %s: %w", name, err)
		}
		changed = true
	}
	for name := range written {
		if next[name] != nil {
			continue
		}
		if err := os.Remove(s.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep set %s: %w", name, err)
		}
		changed = true
	}
	if !changed {
		return nil
	}
	return syncDir(s.dir)
}

func (s *liveStore) write(live *liveSet) error {
	if err := live.list.keep(); err != nil {
		return err
	}
	type key struct {
		origin *liveOrigin
		out    bool
	}
	calls := make(map[key]*liveLine)
	for e, how := range live.entries {
		k := key{how.liveOrigin, how.out}
		if calls[k] == nil {
			calls[k] = &liveLine{liveOrigin: *how.liveOrigin, Out: how.out}
		}
		calls[k].Entries = append(calls[k].Entries, e.Text(live.kind))
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	if err := out.Encode(liveHeader{live.name, live.kind, live.list.line()}); err != nil {
		return err
	}
	for _, line := range calls {
		if err := out.Encode(line); err != nil {
			return err
		}
	}
	return replaceFile(s.file(live.name), &text)
}

// close lets others have the directory.
func (s *liveStore) close() error {
	if s.lock == nil {
		return nil
	}
	return s.lock.Close()
}
