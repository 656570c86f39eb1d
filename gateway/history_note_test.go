package gateway

import (
	"os"
	"testing"
)

// note notes what is on disk as in force, beside what asks for it.
func (r *historyRig) note(q *change) (written func() error) {
	r.t.Helper()
	k, rules := r.read()
	r.epoch++
	r.h.storeAhead(k.files)
	return r.h.note(q, q.record(k, rules, r.epoch))
}

// Whenever the gateway dies, what is written names no files that are not there yet, though the next change is known already.
func TestHistoryNamesStoredFiles(t *testing.T) {
	r := newHistoryRig(t)
	begin := make(chan struct{})
	r.h.work.begin(func() { <-begin })
	r.note(&change{by: bySocket})
	looked := r.h.work.begin(func() {
		x, err := r.h.read()
		if err != nil {
			t.Error(err)
			return
		}
		if now := x.find(x.Current); now == nil || len(x.Entries[0].Sources) == 0 {
			t.Errorf("written is %+v", x)
		}
		for i := range x.Entries {
			for _, f := range x.Entries[i].Sources {
				if _, err := os.Stat(r.h.blob(f.Sum)); err != nil {
					t.Errorf("entry %d: %v", x.Entries[i].Entry, err)
				}
			}
		}
	})
	r.rewrite(1)
	q := &change{by: bySocket}
	written := r.note(q)
	close(begin)
	<-looked
	if err := written(); err != nil {
		t.Fatal(err)
	}
	r.open()
	if k, err := r.h.load(q.entry); err != nil || q.entry != 2 || len(k.files) == 0 {
		t.Errorf("entry %d: %v", q.entry, err)
	}
}
