package gateway

import (
	"errors"
	"slices"
)

// update writes a changed index. After an error it is in memory alone, or, if it must be on disk, nowhere.
func (h *history) update(must bool, fn func(*historyIndex)) (err error) {
	<-h.work.begin(func() {
		next := h.changed(fn)
		if err = h.told(h.write(&next)); err == nil || !must {
			h.mu.Lock()
			h.index = next
			h.mu.Unlock()
		}
	})
	return err
}

// changed returns the index with a change.
func (h *history) changed(fn func(*historyIndex)) historyIndex {
	h.mu.Lock()
	next := h.index.clone()
	h.mu.Unlock()
	fn(&next)
	next.prune()
	return next
}

// told notes why the history could not be written, and returns it.
func (h *history) told(err error) error {
	h.mu.Lock()
	was := h.trouble
	h.trouble = err
	h.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		h.log.Error("the history of the policy cannot be written", "directory", h.dir, "error", err)
	}
	if err == nil && was != nil {
		h.log.Info("the history of the policy is written again", "directory", h.dir)
	}
	return err
}

// put notes what is in force from now on, and returns what takes that back. With must an error means that nothing was
// noted.
func (h *history) put(q *change, r record, must bool) (back func(), err error) {
	h.mu.Lock()
	before := h.index
	h.mu.Unlock()
	fn, files := h.place(q, &r)
	stored := error(nil)
	if files != nil {
		s := h.stored(files)
		<-s.done
		if stored = s.err; stored != nil {
			if must {
				return nil, stored
			}
			r.Sources = nil
		}
	}
	err = h.update(must, fn)
	return func() {
		_ = h.update(false, func(x *historyIndex) { *x = before.clone() }) // which has been logged
	}, errors.Join(stored, err)
}

// note is put of what nobody has to know after a crash before it is done: the files are written behind it, for which the
// function that it returns waits.
func (h *history) note(q *change, r record) (wait func() error) {
	fn, files := h.place(q, &r)
	next := h.changed(fn)
	h.mu.Lock()
	h.index = next
	h.mu.Unlock()
	s, entry, err := (*storing)(nil), q.entry, error(nil)
	if files != nil {
		s = h.stored(files)
	}
	done := h.work.begin(func() {
		if s != nil && s.err != nil {
			h.lose(entry)
		}
		h.mu.Lock()
		x := h.index.clone() // with what has come since, but for files that are stored behind this
		h.mu.Unlock()
		for i := range x.Entries {
			if x.Entries[i].Entry > entry {
				x.Entries[i].Sources = nil
			}
		}
		if err = h.told(h.write(&x)); s != nil {
			err = errors.Join(s.err, err)
		}
	})
	return func() error { <-done; return err }
}

// lose forgets the files of an entry, which could not be stored.
func (h *history) lose(entry int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range []*historyIndex{&h.index, &h.shown} {
		*x = x.clone()
		if r := x.find(entry); r != nil {
			r.Sources = nil
		}
	}
}

// place makes the entry of what is in force from now on, and returns how the index changes with it, and the files to store,
// nil if that is no news: what was in force before is none without something to say of it.
func (h *history) place(q *change, r *record) (fn func(*historyIndex), files []sourceFile) {
	h.mu.Lock()
	before := h.index
	h.mu.Unlock()
	var held *heldPolicy
	current := before.find(before.Current)
	news := current == nil || len(current.Sources) == 0 || !current.same(r) || q.comment != "" || q.confirm > 0 || r.Restored != 0
	q.entry = before.Current
	if news {
		q.entry, files = before.Next, r.Sources
	}
	if r.Restored != 0 {
		if held = (&heldPolicy{q.entry, *r.disk}); r.disk.equal(r.state()) {
			held = nil // the files are those again
		}
	}
	r.Entry = q.entry
	var pending *pendingChange
	if q.confirm > 0 {
		r.Confirm = confirmWaiting
		pending = &pendingChange{
			Entry: q.entry, Before: before.Current, Deadline: r.Time.Add(q.confirm), Boot: h.boot, Uptime: h.uptime() + q.confirm,
		}
	}
	r.Sources = slices.Clone(r.Sources)
	for i := range r.Sources {
		r.Sources[i].text = nil // it is on disk, or will be
	}
	entry := q.entry
	return func(x *historyIndex) {
		if p := x.Pending; p != nil {
			if was := x.find(p.Entry); was != nil {
				was.Confirm = confirmRolledBack
			}
		}
		if news {
			x.Entries = append(x.Entries, *r)
			x.Next++
		}
		x.Current, x.Pending, x.Held = entry, pending, held
	}, files
}
