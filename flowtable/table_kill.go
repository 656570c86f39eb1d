package flowtable

import "sync/atomic"

const (
	// killBatch bounds the memory of a Kill: flows that wait for one grace period.
	killBatch = 1 << 16
	// killRounds bounds how often a new policy may revive a flow that is being killed.
	killRounds = 8
)

// A doomed flow is one that a Kill has revoked and means to free.
type doomed struct {
	e          entry
	generation uint32
	revoked    bool // before
}

// Kill ends the flows that choose picks, busy or idle, and calls freed with a last copy of each; its
// counts are the caller's to credit to its rule. It returns their number. Flows that come while it runs
// may or may not be asked about.
//
// It runs against packets under way. A slot that is freed may hold another flow at once, and a packet
// that has found the old one would count there. So each flow is revoked first, which keeps its packets
// from everything; grace returns when every packet that could have read its word before is done, as for
// Scan; and only then is it freed. Meanwhile, for some milliseconds, its packets are dropped; from then
// on they are judged as if there had been no flow. If the daemon dies in between, the flow stays
// revoked until its time-out.
//
// One Kill or Scan at a time.
func (t *Table) Kill(choose func(*Flow) bool, grace func(), freed func(*Flow)) int {
	n := 0
	var batch []doomed
	for e := range t.entries() {
		if d, ok := t.revoke(e, choose); ok {
			batch = append(batch, d)
		}
		if len(batch) == killBatch {
			n += t.kill(batch, grace, freed)
			batch = batch[:0]
		}
	}
	return n + t.kill(batch, grace, freed)
}

// revoke turns a flow that choose picks into a drop.
func (t *Table) revoke(e entry, choose func(*Flow) bool) (doomed, bool) {
	for {
		word := e.word()
		if !isFlow(word) {
			return doomed{}, false
		}
		f := viewOf(&e, word)
		if e.word() != word {
			continue // what was read may be of two flows
		}
		t.Complete(&f)
		if !choose(&f) {
			return doomed{}, false
		}
		if atomic.CompareAndSwapUint64(&e.core.Word, word, word|WordRevoked) {
			return doomed{e, f.ID.Generation, f.Revoked}, true
		}
	}
}

// kill frees revoked flows after a grace period. One that a packet has revived under a policy published
// meanwhile is revoked again.
func (t *Table) kill(batch []doomed, grace func(), freed func(*Flow)) int {
	n := 0
	for round := 0; len(batch) > 0 && round < killRounds; round++ {
		grace()
		left := batch[:0]
		for i := range batch {
			d := batch[i]
			switch ended, again := t.finish(&d, freed); {
			case ended:
				n++
			case again:
				left = append(left, d)
			}
		}
		batch = left
	}
	return n
}

// finish frees a flow that is revoked still. Again: it was not, and is now.
func (t *Table) finish(d *doomed, freed func(*Flow)) (ended, again bool) {
	for {
		word := d.e.word()
		if uint32(word>>WordGenerationBit) != d.generation || !isFlow(word) {
			return false, false // it ended by itself: whoever replaced it has counted it
		}
		if word&WordRevoked == 0 {
			if atomic.CompareAndSwapUint64(&d.e.core.Word, word, word|WordRevoked) {
				return false, true
			}
			continue
		}
		f := viewOf(&d.e, word)
		f.Revoked = d.revoked
		if f.NAT != nil {
			// First, while nothing passes by the flow and nobody can make it anew: one that is opened as soon as
			// this one is gone may have the same alias.
			t.Complete(&f)
			t.dropAlias(&d.e)
		}
		if !atomic.CompareAndSwapUint64(&d.e.core.Word, word, (word>>WordGenerationBit+1)<<WordGenerationBit) {
			continue
		}
		t.counted(f.Tuple.Family, f.State, -1)
		if d.e.id.Overflow {
			t.leaveOverflow(&d.e)
		}
		freed(&f)
		return true, false
	}
}
