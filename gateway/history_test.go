package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// historyPolicy has no tests, which would need routes.
var historyPolicy, _, _ = strings.Cut(testPolicy, "tests:")

// A historyRig is the history of a gateway that does not run, whose policy the test rewrites.
type historyRig struct {
	t      *testing.T
	config *Config
	h      *history
	log    *lockedBuffer
	up     time.Duration // of the machine
	boot   string
	epoch  uint32
}

func newHistoryRig(t *testing.T) *historyRig {
	r := &historyRig{t: t, config: write(t, testConfig, historyPolicy), log: &lockedBuffer{}, boot: "one", up: time.Hour}
	r.open()
	return r
}

// open is what a start does.
func (r *historyRig) open() {
	r.h = openHistory(r.config, slog.New(slog.NewTextHandler(r.log, nil)))
	r.h.uptime, r.h.boot = func() time.Duration { return r.up }, r.boot
}

// read is the policy as it is written.
func (r *historyRig) read() (*candidate, *Ruleset) {
	r.t.Helper()
	k, err := readCandidate(must(LoadConfig(r.config.File)))
	if err != nil {
		r.t.Fatal(err)
	}
	return k, must(k.prepare(k.config.CompileOptions(time.Now()), nil))
}

// rewrite changes the policy on disk so that it is another for each n.
func (r *historyRig) rewrite(n int) {
	r.t.Helper()
	r.write("policy.yaml", strings.Replace(historyPolicy, "tcp/25,", fmt.Sprintf("tcp/%d,", 1000+n), 1))
}

func (r *historyRig) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(r.config.File), name), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// apply notes what is on disk as in force.
func (r *historyRig) apply(q *change) int {
	r.t.Helper()
	k, rules := r.read()
	r.epoch++
	if _, err := r.h.put(q, q.record(k, rules, r.epoch), q.confirm > 0); err != nil {
		r.t.Fatal(err)
	}
	r.h.show()
	return q.entry
}

// rollback notes that an entry is in force again.
func (r *historyRig) rollback(entry int) int {
	r.t.Helper()
	k, err := r.h.load(entry)
	if err != nil {
		r.t.Fatal(err)
	}
	rules := must(k.prepare(k.config.CompileOptions(time.Now()), nil))
	q := &change{by: byRollback}
	r.epoch++
	rec := q.record(k, rules, r.epoch)
	rec.disk = r.h.reader.onDisk(r.config)
	if _, err := r.h.put(q, rec, false); err != nil {
		r.t.Fatal(err)
	}
	r.h.show()
	return q.entry
}

// starts returns the entry that a start would put in force, 0 for the files.
func (r *historyRig) starts() (entry int, by string) {
	r.t.Helper()
	r.open()
	b, err := begin(must(LoadConfig(r.config.File)), r.h, time.Now(), r.h.log)
	if err != nil {
		r.t.Fatal(err)
	}
	return b.restored, b.by
}

// What a start puts in force after what happened before.
func TestHistoryStart(t *testing.T) {
	window := 2 * time.Minute
	for _, tt := range []struct {
		name  string
		do    func(*historyRig)
		entry int
		by    string
	}{
		{"nothing before", func(*historyRig) {}, 0, ""},
		{"the files as they were", func(r *historyRig) { r.apply(&change{}) }, 0, ""},
		{"other files", func(r *historyRig) { r.apply(&change{}); r.rewrite(1) }, 0, ""},
		{"a change that waits", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{confirm: window})
			r.up += window - time.Second
		}, 2, ""},
		{"a change that waits, and files that are wrong", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{confirm: window})
			r.write("policy.yaml", "rules: [")
		}, 2, ""},
		{"a change whose time is over", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{confirm: window})
			r.up += window
		}, 1, byNotConfirmed},
		{"a change that waits, after another boot", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{confirm: window})
			r.up, r.boot = time.Second, "two"
		}, 1, byNotConfirmed},
		{"a change that was confirmed", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{confirm: window})
			if err := r.h.confirm(); err != nil {
				r.t.Fatal(err)
			}
			r.up += window
		}, 0, ""},
		{"a change whose own files are damaged", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{confirm: window})
			r.damage(2)
		}, 1, byNotConfirmed},
		{"all is damaged", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{confirm: window})
			r.damage(1)
			r.damage(2)
		}, 0, ""},
		{"rolled back", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{})
			r.rollback(1)
		}, 3, ""},
		{"rolled back, and the files have changed since", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{})
			r.rollback(1)
			r.rewrite(2)
		}, 0, ""},
		{"rolled back, and there is a new file", func(r *historyRig) {
			r.write("softdpu.yaml", strings.Replace(testConfig, "policy.yaml", "../"+filepath.Base(filepath.Dir(r.config.File))+"/policy.d", 1))
			if err := os.Mkdir(filepath.Join(filepath.Dir(r.config.File), "policy.d"), 0o700); err != nil {
				r.t.Fatal(err)
			}
			r.write("policy.d/a.yaml", historyPolicy)
			r.apply(&change{})
			r.write("policy.d/a.yaml", historyPolicy+"# x\n")
			r.apply(&change{})
			r.rollback(1)
			r.write("policy.d/b.yaml", "apiVersion: softdpu/v1\nkind: Policy\n")
		}, 0, ""},
		{"rolled back, and there is a new file that cannot be read", func(r *historyRig) {
			r.write("softdpu.yaml", strings.Replace(testConfig, "policy.yaml", "policy.d", 1))
			dir := filepath.Join(filepath.Dir(r.config.File), "policy.d")
			if err := os.Mkdir(dir, 0o700); err != nil {
				r.t.Fatal(err)
			}
			r.write("policy.d/a.yaml", historyPolicy)
			r.apply(&change{})
			r.write("policy.d/a.yaml", historyPolicy+"# x\n")
			r.apply(&change{})
			r.rollback(1)
			if err := os.Symlink("nowhere", filepath.Join(dir, "b.yaml")); err != nil {
				r.t.Fatal(err)
			}
			if r.open(); len(r.h.choices(r.config, r.h.log)) != 0 {
				r.t.Error("a start would not see the new file")
			}
			if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
				r.t.Fatal(err)
			}
		}, 3, ""},
		{"rolled back, and what of the configuration is no policy has changed", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{})
			r.rollback(1)
			r.write("softdpu.yaml", strings.Replace(testConfig, "max: 1000", "max: 2000", 1))
		}, 3, ""},
		{"rolled back, and management has changed", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{})
			r.rollback(1)
			r.write("softdpu.yaml", strings.Replace(testConfig, "management: none", "management: {from: [lan], services: [tcp/22]}", 1))
		}, 0, ""},
		{"rolled back to what the files are", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{})
			r.write("policy.yaml", historyPolicy)
			r.rollback(1)
			if held := r.h.held(); held != nil {
				r.t.Errorf("the files are what is in force, and %+v is held", held)
			}
		}, 0, ""},
		{"rolled back, then applied", func(r *historyRig) {
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{})
			r.rollback(1)
			r.apply(&change{})
		}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newHistoryRig(t)
			tt.do(r)
			if entry, by := r.starts(); entry != tt.entry || by != tt.by {
				t.Errorf("starts with entry %d %q, want %d %q\n%s", entry, by, tt.entry, tt.by, r.log)
			}
		})
	}
}

// damage changes a byte of what is kept of the policy file of an entry.
func (r *historyRig) damage(entry int) {
	r.t.Helper()
	for _, f := range r.h.index.find(entry).Sources {
		if f.Kind == sourcePolicy {
			if err := os.WriteFile(r.h.blob(f.Sum), []byte(strings.Repeat("x", int(f.Size))), 0o600); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// A start under a rolled-back policy has the policy's own management, and all else of the configuration as
// it is written now.
func TestHistoryBringsConfigurationBack(t *testing.T) {
	r := newHistoryRig(t)
	r.apply(&change{})
	r.write("softdpu.yaml", strings.Replace(testConfig, "management: none", "management: {from: [lan], services: [tcp/22]}", 1))
	r.apply(&change{})
	r.rollback(1)
	r.write("softdpu.yaml", strings.NewReplacer("management: none", "management: {from: [lan], services: [tcp/22]}", "max: 1000", "max: 2000").Replace(testConfig))
	r.open()
	b, err := begin(must(LoadConfig(r.config.File)), r.h, time.Now(), r.h.log)
	if err != nil {
		t.Fatal(err)
	}
	if b.restored != 3 || len(b.config.Management.From) != 0 || b.config.Flows.Max != 2000 {
		t.Errorf("entry %d, management %v, %d flows", b.restored, b.config.Management, b.config.Flows.Max)
	}
	if changed := changedFiles(b.rules); len(changed) != 1 || !strings.HasSuffix(changed[0].File, "softdpu.yaml") {
		t.Errorf("changed are %v", changed)
	}
}

// Which entry a rollback goes to.
func TestHistoryTarget(t *testing.T) {
	r := newHistoryRig(t)
	want := func(asked, target int, says string) {
		t.Helper()
		got, err := r.h.target(asked)
		var c *Conflict
		if got != target || (err != nil) != (says != "") || err != nil && (!errors.As(err, &c) || !strings.Contains(err.Error(), says)) {
			t.Errorf("rollback %d goes to %d, %v, and not to %d", asked, got, err, target)
		}
	}
	want(0, 0, "not known what was in force")
	r.apply(&change{}) // 1
	want(0, 0, "nothing that was in force before is kept")
	want(1, 0, "in force already")
	want(7, 0, "no entry 7")
	r.rewrite(1)
	r.apply(&change{}) // 2
	r.h.refuse(&change{}, nil, time.Now(), errors.New("no"))
	want(3, 0, "was refused")
	r.rewrite(2)
	r.apply(&change{}) // 4
	want(0, 2, "")
	r.rollback(2)  // 5
	want(0, 1, "") // again is further back
	want(2, 0, "in force already")
	want(4, 4, "")
	r.rollback(1) // 6
	want(0, 0, "nothing that was in force before is kept")
	r.rewrite(3)
	r.apply(&change{}) // 7
	want(0, 6, "")
	if again := r.apply(&change{}); again != 7 {
		t.Errorf("what is in force already is entry %d", again)
	}
	if again := r.apply(&change{comment: "looked at it"}); again != 8 {
		t.Errorf("with a comment it is entry %d", again)
	}
	want(0, 6, "")
	r.rewrite(4)
	r.apply(&change{confirm: time.Minute}) // 9
	want(0, 8, "")
}

// The history is bounded, by entries and by bytes, and what is needed stays.
func TestHistoryIsBounded(t *testing.T) {
	r := newHistoryRig(t)
	for n := range historyEntries + 10 {
		r.rewrite(n)
		r.apply(&change{})
		r.h.refuse(&change{}, nil, time.Now(), errors.New("no"))
	}
	r.open()
	if n := len(r.h.list()); n != 2*historyEntries {
		t.Errorf("%d entries", n)
	}
	files, err := os.ReadDir(filepath.Join(r.h.dir, "files"))
	if err != nil || len(files) != historyEntries+1 { // and the configuration, once
		t.Errorf("%d files, %v", len(files), err)
	}

	x := historyIndex{Current: 4, Pending: &pendingChange{Entry: 4, Before: 1}}
	for n := 1; n <= 4; n++ {
		x.Entries = append(x.Entries, record{HistoryEntry: HistoryEntry{Entry: n, Result: resultInForce},
			Sources: []sourceFile{{Sum: fmt.Sprint(n), Size: historyBytes / 3}, {Sum: "same", Size: historyBytes / 4}}})
	}
	x.prune()
	var kept []int
	for _, e := range x.Entries {
		if len(e.Sources) > 0 {
			kept = append(kept, e.Entry)
		}
	}
	if fmt.Sprint(kept) != "[1 4]" || len(x.Entries) != 4 {
		t.Errorf("%d entries, and the files of %v", len(x.Entries), kept)
	}
}

// The history is for root alone, in files and directories that a crash leaves whole.
func TestHistoryIsPrivate(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	r := newHistoryRig(t)
	r.apply(&change{})
	seen := 0
	err := filepath.Walk(filepath.Join(r.config.State, "history"), func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		seen++
		if info.Mode().Perm()&0o077 != 0 || strings.HasSuffix(path, ".new") {
			t.Errorf("%s is %v", path, info.Mode())
		}
		return nil
	})
	if err != nil || seen != 6 {
		t.Errorf("%d files and directories, %v", seen, err)
	}
	if err := os.Chmod(r.h.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if r.open(); r.h.lost == nil || !strings.Contains(r.h.lost.Error(), "can be written by others") {
		t.Errorf("a directory of everybody's: %v", r.h.lost)
	}
}

// Whatever is wrong with the history, policies are taken, and it is told.
func TestHistoryTrouble(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(r *historyRig) error
		says  string
		works bool // from then on
	}{
		{"binary", func(r *historyRig) error { return os.WriteFile(r.index(), []byte("\x7fELF\x00\xff"), 0o600) }, "history.json", true},
		{"empty", func(r *historyRig) error { return os.WriteFile(r.index(), nil, 0o600) }, "history.json", true},
		{"truncated", func(r *historyRig) error { return os.Truncate(r.index(), 300) }, "history.json", true},
		{"of another version", func(r *historyRig) error { return os.WriteFile(r.index(), []byte(`{"version":9}`), 0o600) }, "version 9", true},
		{"an entry in force that is not there", func(r *historyRig) error {
			return os.WriteFile(r.index(), []byte(`{"version":1,"next":5,"current":4,"entries":[]}`), 0o600)
		}, "entry 4", true},
		{"a path in place of a hash", func(r *historyRig) error {
			return os.WriteFile(r.index(), []byte(`{"version":1,"next":2,"current":1,"entries":[{"entry":1,"sources":[{"path":"x","kind":"policy","sha256":"../../../etc/passwd"}]}]}`), 0o600)
		}, "without a hash", true},
		{"a directory", func(r *historyRig) error {
			return errors.Join(os.Remove(r.index()), os.MkdirAll(filepath.Join(r.index(), "x"), 0o700))
		}, "history.json", true},
		{"a FIFO", func(r *historyRig) error {
			return errors.Join(os.Remove(r.index()), unix.Mkfifo(r.index(), 0o600))
		}, "not a regular file", true},
		{"a file in place of the directory", func(r *historyRig) error {
			return errors.Join(os.RemoveAll(r.config.State), os.WriteFile(r.config.State, nil, 0o600))
		}, "state", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newHistoryRig(t)
			r.apply(&change{})
			r.rewrite(1)
			r.apply(&change{})
			r.rollback(1)
			if err := tt.spoil(r); err != nil {
				t.Fatal(err)
			}
			if entry, by := r.starts(); entry != 0 || by != "" {
				t.Errorf("starts with entry %d %q", entry, by)
			}
			k, rules := r.read()
			q := &change{by: byStart}
			_, err := r.h.put(q, q.record(k, rules, 1), false)
			r.h.show()
			var s PolicyStatus
			r.h.status(&s)
			if (err == nil) != tt.works || !strings.Contains(s.HistoryError, tt.says) || !strings.Contains(r.log.String(), tt.says) {
				t.Errorf("%v, status says %q\n%s", err, s.HistoryError, r.log)
			}
			if s.Entry == 0 || r.h.list()[0].Kept != tt.works || (r.h.inForce(rules) != nil) != tt.works {
				t.Errorf("entry %d of %+v", s.Entry, r.h.list())
			}
			r.rewrite(2)
			k, rules = r.read()
			q = &change{confirm: time.Minute}
			if _, err := r.h.put(q, q.record(k, rules, 2), true); (err == nil) != tt.works || (r.h.pending() != nil) != tt.works {
				t.Errorf("a change that is to come back: %v", err)
			}
			if tt.works {
				if r.open(); r.h.lost != nil || len(r.h.list()) != 2 {
					t.Errorf("%v, %+v", r.h.lost, r.h.list())
				}
			}
		})
	}
}

func (r *historyRig) index() string { return filepath.Join(r.h.dir, "history.json") }

// A policy that comes back from memory is noted with files that the history has, and not with those that
// it has lost.
func TestHistoryLosesFiles(t *testing.T) {
	r := newHistoryRig(t)
	r.apply(&change{})
	_, rules := r.read()
	back := r.h.inForce(rules)
	r.rewrite(1)
	r.apply(&change{confirm: time.Minute})
	if err := os.RemoveAll(filepath.Join(r.h.dir, "files")); err != nil {
		t.Fatal(err)
	}
	q := &change{by: byNotConfirmed}
	rec := q.record(back, rules, 3)
	rec.disk = r.h.reader.onDisk(r.config)
	_, err := r.h.put(q, rec, false)
	r.h.show()
	if now := r.h.list()[0]; err == nil || !strings.Contains(err.Error(), "has lost") || now.Entry != 3 || now.Kept || r.h.pending() != nil {
		t.Errorf("%v, %+v", err, now)
	}
}

// The wall clock decides nothing: it may jump as it likes.
func TestHistoryClock(t *testing.T) {
	r := newHistoryRig(t)
	r.apply(&change{})
	r.rewrite(1)
	r.apply(&change{confirm: time.Minute})
	r.h.index.Pending.Deadline = time.Unix(0, 0)
	if left := r.h.left(r.h.pending()); left != time.Minute {
		t.Errorf("%s are left", left)
	}
	r.up += 61 * time.Second
	if left := r.h.left(r.h.pending()); left > 0 {
		t.Errorf("%s are left when the time is over", left)
	}
}
