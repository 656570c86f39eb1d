package pipe

import (
	"crypto/sha256"
	"fmt"
	"math"
	"unsafe"

	"github.com/softdpu/softdpu/flowtable"
)

// The cost model: what a packet takes in a pipe, in ns, beyond a program that does nothing. The constants are fitted to
// measurements on one core of a virtual machine (Linux 6.18) by TestPrediction, in which packets ask for
// 1,024 entries at random, so that no branch is predicted; the forest's are those of docs/CLASSIFIER.md. Only their proportions
// decide: below about nine entries a search in instructions is the faster one, beyond them a table.
const (
	costPipe   = 1.0  // of coming to a pipe
	costStep   = 2.6  // compare and branch, which is predicted wrongly every other time
	costProbe  = 16.0 // hash a key, read a bucket and the entry's record
	costTrie   = 21.0 // longest prefix: array look-ups
	costACL    = 6.0  // fill in a classifier's key, and call it
	costForest = 60.0 // a classifier of 4,000 entries
	costLevel  = 75.0 // each time that its entries double
	costSlot   = 4.0  // a record by number
	costHash   = 3.0
	costFlow   = 40.0 // look-up in the flow table
	costCount  = 4.0  // two atomic additions
	costRecord = 4.0  // look a record up
	costOp     = 0.7  // a step of an action
	costMeter  = 37.0 // the clock, and a lock
)

// codeEntries is the most entries of a pipe that become instructions where a table could hold them.
const codeEntries = 2048

// costMemory is what a look-up takes longer since memory is not in the first cache.
func costMemory(bytes int) float64 {
	switch {
	case bytes <= 16<<10:
		return 1
	case bytes <= 256<<10:
		return 5
	case bytes <= 8<<20:
		return 10
	}
	return 25
}

// entryBytes is what an entry of a table takes, its slot and a share of what is free included.
const entryBytes = 128 + 16

func (t *tree) cost() float64 { return costStep * t.depth }

// costExact is what a look-up in a table of exact matches takes.
func costExact(entries int) float64 { return costProbe + costMemory(entries*entryBytes) }

// costClassifier is what a classifier of so many entries takes.
func costClassifier(acl *flowtable.ACL, entries int) float64 {
	if len(acl.Forest().Nodes) > 0 {
		return costACL + costForest + costLevel*math.Max(0, math.Log2(float64(entries)/4000))
	}
	return costACL + 1.25*costStep*math.Log2(float64(entries+1))
}

// predict says what a pipe takes.
func (c *compiler) predict(pl *Planned) float64 {
	n := len(pl.Pipe.Entries)
	ns := costPipe
	switch pl.Form {
	case InCode:
		ns += pl.tree.cost()
	case InBuckets:
		if pl.Table != nil {
			ns += costExact(n)
			break
		}
		if pl.tree != nil {
			ns += pl.tree.cost() + costRecord
		}
		for _, t := range pl.tuples {
			ns += costExact(len(t.entries))
		}
	case InTrie:
		ns += costTrie + costMemory(n*entryBytes)
		if len(pl.keys) > 0 {
			ns += costExact(n)
		}
	case InACL:
		ns += costClassifier(pl.ACL, n)
	case InSlots:
		ns += costSlot
		if len(pl.keys) > 0 {
			ns += costHash
		}
	case InFlows:
		ns += costFlow
	}
	t := c.predicted()
	if !pl.alone && !pl.single() && t.asks(pl, nil) && pl.Form == InCode {
		ns += costRecord
	}
	for _, s := range []source{pl.counts, pl.counter} {
		if s != nowhere {
			ns += costCount
			if pl.Form != InCode {
				ns += costRecord // that the search has not read
			}
		}
	}
	if pl.meter != nowhere {
		ns += costMeter
	}
	steps := 0
	for i := range pl.actions {
		steps += len(pl.actions[i].steps)
	}
	if steps > 0 {
		ns += costOp * float64(steps) / float64(len(pl.actions))
	}
	return ns
}

// predicted is a text that is asked, not written.
func (c *compiler) predicted() *text { return (&emitter{Program: c.Program}).text() }

// why says in a sentence why a pipe has its form.
func (c *compiler) why(pl *Planned) string {
	n := len(pl.Pipe.Entries)
	switch {
	case pl.Form == InCode && pl.Pipe.Kind == OrderedList:
		return "lists of actions are instructions, one behind the other"
	case pl.Form == InCode && n == 0:
		return "it has no entries"
	case pl.Form == InCode && pl.Pipe.Kind == Control:
		return fmt.Sprintf("a search of about %.0f questions is the fastest for entries with conditions of their own", pl.tree.depth)
	case pl.Form == InCode:
		return fmt.Sprintf("its %d entries are fixed: a search of about %.0f questions takes less than a look-up in memory", n, pl.tree.depth)
	case pl.Form == InBuckets && pl.Table == nil:
		text := fmt.Sprintf("%d tables of exact matches hold the entries that ask the same fields", len(pl.tuples))
		if c.tables[pl.Number] || n > c.options.Limits.code() {
			text = "its search is larger than a program may be: " + text
		} else {
			text = "a look-up takes less than its search: " + text
		}
		if pl.tree != nil {
			text += ", and a search the others"
		}
		return text
	case pl.Form == InBuckets && !pl.Pipe.Fixed:
		return "its entries may change while packets come: a table in memory takes them one by one"
	case pl.Form == InBuckets && c.tables[pl.Number]:
		return "its search is larger than a program may be"
	case pl.Form == InBuckets:
		return fmt.Sprintf("it has %d entries: a look-up takes less than a search of instructions", n)
	case pl.Form == InTrie && !pl.Pipe.Fixed:
		return "its prefixes may change while packets come: tables in memory take them one by one"
	case pl.Form == InTrie:
		return fmt.Sprintf("it has %d prefixes: a look-up in arrays takes less than a search of instructions", n)
	case pl.Form == InACL && len(pl.ACL.Forest().Nodes) > 0:
		return fmt.Sprintf("%d entries are too many for instructions: decision trees in memory", n)
	case pl.Form == InACL:
		return "prefixes, ranges and priorities become a search of instructions"
	case pl.Pipe.floods():
		return "the kernel copies the packet to a group of ports"
	case pl.Form == InSlots:
		return "its entries are chosen by number"
	}
	return "flows are looked up where the gateway keeps them"
}

// fit makes the program, to know that it is small enough, and notes what each pipe takes.
func (c *compiler) fit() error {
	first, others, err := c.Instructions()
	if err != nil {
		return err
	}
	for _, n := range c.Order {
		c.Pipes[n].NS, c.Pipes[n].Why = c.predict(c.Pipes[n]), c.why(c.Pipes[n])
	}
	h := sha256.New()
	for _, p := range c.Pipeline.Pipes {
		fmt.Fprintf(h, "%s %s ", p.Name, p.Kind)
		for _, e := range p.Entries {
			fmt.Fprintf(h, "%s ", e.Name)
		}
	}
	for _, memory := range [][]byte{raw(c.Memory.Entries), raw(c.Memory.Meters), raw(c.Memory.Tries), raw(c.Memory.Arena.Nodes4), raw(c.Memory.Arena.Nodes6)} {
		h.Write(memory)
	}
	fmt.Fprint(h, c.Groups, first, others)
	c.Hash = [32]byte(h.Sum(nil))
	return nil
}

// raw is the memory of a slice, which holds no pointers.
func raw[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}
