package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/softdpu/softdpu/firewall"
)

// Sides of a comparison beside the numbers of entries.
const (
	sideInForce = "in-force"
	sideEntry   = "entry"
	sideFiles   = "files"
)

// A differ compares policies, one comparison at a time: it takes seconds if they are large. It is safe for
// concurrent use.
type differ struct {
	config  *Config
	rules   *inForce
	history *history
	turn    chan struct{} // holds one while somebody compares
}

func newDiffer(c *Config, r *inForce, h *history) *differ {
	return &differ{c, r, h, make(chan struct{}, 1)}
}

// diff compares the policy of an entry, or with 0 that in force, with that of another, or with 0 the
// files. The error is a firewall.Errors if the files are at fault, and a Conflict if there is no such
// entry.
func (d *differ) diff(ctx context.Context, from, to int) (*PolicyDiff, error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	now := d.rules.Load()
	before := &candidate{config: now.config, policy: now.policy}
	out := &PolicyDiff{From: DiffSide{What: sideInForce, Entry: d.history.current()}, To: DiffSide{What: sideFiles}}
	var err error
	if from != 0 {
		out.From = DiffSide{What: sideEntry, Entry: from}
		if before, err = d.entry(from); err != nil {
			return nil, err
		}
	}
	var after *candidate
	if to != 0 {
		out.To = DiffSide{What: sideEntry, Entry: to}
		after, err = d.entry(to)
	} else {
		after, err = d.files()
	}
	if err != nil {
		return nil, err
	}
	out.From.Hash, out.To.Hash = before.hash(), after.hash()
	out.Differences = firewall.Diff(before.policy, after.policy)
	out.Changes = firewall.CountChanges(out.Differences)
	out.Configuration = []firewall.FieldDiff{}
	is := after.config.reloadKeys()
	for i, was := range before.config.reloadKeys() {
		if was != is[i] {
			out.Configuration = append(out.Configuration, firewall.FieldDiff{Key: was[0], Old: was[1], New: is[i][1]})
		}
	}
	out.Restart = []Mistake{}
	if to == 0 {
		out.Restart = Mistakes(d.config.restartFor(after.config))
	}
	out.Same = len(out.Differences)+len(out.Configuration)+len(out.Restart) == 0
	return out, nil
}

// files reads what is on disk.
func (d *differ) files() (*candidate, error) {
	c, err := LoadConfig(d.config.File)
	if err != nil {
		return nil, err
	}
	return d.history.reader.read(c)
}

// entry reads what the history keeps.
func (d *differ) entry(n int) (*candidate, error) {
	if why := d.history.unkept(n); why != "" {
		return nil, &Conflict{why, "'softdpu policy history' shows what there is"}
	}
	k, err := d.history.load(n)
	if errs := (firewall.Errors)(nil); errors.As(err, &errs) {
		return nil, fmt.Errorf("this version does not read it any more: %v", err) // it is nobody's mistake
	}
	return k, err
}

// current is the entry in force, 0 if it is none.
func (h *history) current() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shown.Current
}

// unkept says why the files of an entry are not there, "" if they are.
func (h *history) unkept(entry int) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.index.find(entry)
	switch {
	case r == nil:
		return fmt.Sprintf("the history has no entry %d", entry)
	case r.Result == resultRefused:
		return fmt.Sprintf("entry %d was refused, and of what was refused no files are kept", entry)
	case len(r.Sources) == 0:
		return fmt.Sprintf("the files of entry %d are no longer kept", entry)
	}
	return ""
}
