package gateway

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

func liveOf(t *testing.T, name string, kind firewall.SetType, how liveEntry, texts ...string) *liveSet {
	t.Helper()
	live := &liveSet{name: name, kind: kind, entries: map[firewall.Entry]liveEntry{}}
	for _, text := range texts {
		e, _, err := firewall.ParseEntry(kind, text)
		if err != nil {
			t.Fatal(err)
		}
		live.entries[e] = how
	}
	return live
}

// sameLive compares what sets were given, and by whom.
func sameLive(a, b liveSets) bool {
	return maps.EqualFunc(a, b, func(a, b *liveSet) bool {
		return a.name == b.name && a.kind == b.kind && maps.EqualFunc(a.entries, b.entries, func(a, b liveEntry) bool {
			return a.out == b.out && *a.liveOrigin == *b.liveOrigin
		})
	})
}

// What is saved is read again, but what is over.
func TestLiveStore(t *testing.T) {
	state := filepath.Join(t.TempDir(), "sets", "softdpu.yaml-0")
	s := newLiveStore(state)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	if sets, err := s.load(now); err != nil || len(sets) != 0 {
		t.Fatalf("%v, %v", sets, err)
	}
	long := liveEntry{&liveOrigin{By: "root", At: now, Comment: "a \"b\" é"}, false}
	short := liveEntry{&liveOrigin{By: "uid 7", At: now, Until: now.Add(time.Hour)}, true}
	threats := liveOf(t, "threats", firewall.SetPrefix, long, "192.0.2.0/24", "2001:db8::1", "10.0.0.1-10.0.0.9")
	maps.Copy(threats.entries, liveOf(t, "", firewall.SetPrefix, short, "198.51.100.7").entries)
	sets := liveSets{"threats": threats, "doors": liveOf(t, "doors", firewall.SetPort, long, "80", "8000-8010")}
	if err := s.save(nil, sets); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.file("threats")); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	read, err := newLiveStore(state).load(now)
	if err != nil || !sameLive(read, sets) {
		t.Errorf("read %+v, %v", read, err)
	}
	later, err := newLiveStore(state).load(now.Add(time.Hour))
	if err != nil || len(later["threats"].entries) != 3 || len(later["doors"].entries) != 2 {
		t.Errorf("an hour later %+v, %v", later, err)
	}

	other := newLiveStore(state)
	if err := other.save(sets, liveSets{}); err == nil || !strings.Contains(err.Error(), "`state` of its own") {
		t.Errorf("another gateway: %v", err)
	}
	if err := s.save(sets, liveSets{"doors": sets["doors"]}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.file("threats")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a set that says nothing is still there: %v", err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := other.save(liveSets{"doors": sets["doors"]}, sets); err != nil {
		t.Errorf("after the first is closed: %v", err)
	}
	if err := other.close(); err != nil {
		t.Fatal(err)
	}
}

// What cannot be kept is an error, and what was kept is as it was.
func TestLiveStoreCannotWrite(t *testing.T) {
	state := filepath.Join(t.TempDir(), "sets", "softdpu.yaml-0")
	s := newLiveStore(state)
	sets := liveSets{"doors": liveOf(t, "doors", firewall.SetPort, liveEntry{&liveOrigin{By: "root"}, false}, "80")}
	if err := s.save(nil, sets); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := os.Mkdir(s.file("doors")+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	next := liveSets{"doors": liveOf(t, "doors", firewall.SetPort, liveEntry{&liveOrigin{By: "root"}, false}, "81")}
	if err := s.save(sets, next); err == nil || !strings.Contains(err.Error(), "keep set doors") {
		t.Errorf("says %v", err)
	}
	if read, err := newLiveStore(state).load(time.Now()); err != nil || !sameLive(read, sets) {
		t.Errorf("read %+v, %v", read, err)
	}
}

// What is not to be read names its file and line, and what to do.
func TestLiveStoreRefuses(t *testing.T) {
	head := `{"set":"threats","type":"prefix"}` + "\n"
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "threats.json: the file is empty"},
		{"binary", "\x7fELF\x00", "threats.json:1: "},
		{"truncated", head + `{"by":"root","at":"2026-11-30T12:00:00Z","entr`, "threats.json:2: "},
		{"unknown key", head + `{"bye":"root"}`, `unknown field "bye"`},
		{"a wrong entry", head + `{"by":"root","at":"2026-11-30T12:00:00Z","entries":["192.0.2.1","10.1.2.3/8"]}`, "bits set beyond its length"},
		{"no type", `{"set":"threats"}` + "\n" + `{"by":"root","at":"2026-11-30T12:00:00Z","entries":["192.0.2.1"]}`, "no type of set"},
		{"another set", `{"set":"other","type":"prefix"}` + "\n", `is about set "other"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newLiveStore(filepath.Join(t.TempDir(), "sets", "softdpu.yaml-0"))
			if err := os.MkdirAll(s.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.file("threats"), []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(s.dir, "half.json.new"), []byte("{"), 0o600); err != nil {
				t.Fatal(err) // what a kill in the middle leaves is no set
			}
			_, err := s.load(time.Now())
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "move") {
				t.Errorf("says %v, want %q", err, tt.want)
			}
		})
	}
}

// Where others could lay entries nothing is read: an entry may allow what nobody has allowed.
func TestLiveStoreOfOthers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(s *liveStore) error
		want  string
	}{
		{"everybody may write", func(s *liveStore) error { return os.Chmod(s.dir, 0o777) }, "can be written by others"},
		{"above it too", func(s *liveStore) error { return os.Chmod(filepath.Dir(s.dir), 0o770) }, "can be written by others"},
		{"another's file", func(s *liveStore) error {
			return errors.Join(os.Rename(s.file("doors"), s.dir+"/elsewhere"), os.Symlink(s.dir+"/elsewhere", s.file("doors")))
		}, "no regular file"},
		{"another's directory", func(s *liveStore) error {
			return errors.Join(os.Rename(s.dir, s.dir+"-elsewhere"), os.Symlink(s.dir+"-elsewhere", s.dir))
		}, "is no directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newLiveStore(filepath.Join(t.TempDir(), "sets", "softdpu.yaml-0"))
			sets := liveSets{"doors": liveOf(t, "doors", firewall.SetPort, liveEntry{&liveOrigin{By: "root"}, false}, "80")}
			if err := errors.Join(s.save(nil, sets), s.close(), tt.spoil(s)); err != nil {
				t.Fatal(err)
			}
			if read, err := newLiveStore(s.dir).load(time.Now()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("read %v, says %v, want %q", read, err, tt.want)
			}
		})
	}
}
