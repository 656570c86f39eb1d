package pipe

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
)

const lpmExact = int(bpf.PipesPipeLimitPIPE_ADDRESS) // most words of an exact part

// LPMConfig says where a table of prefixes lies.
type LPMConfig struct {
	Six   bool // addresses of IPv6
	Arena *Arena
	// Word is the table's own of pipe_tries; of a table with an exact part nil.
	Word *uint64
	// Groups has an entry for each exact part, with as many words; it is the table's alone. Nil: there is no exact part.
	Groups *Table
	Grace  func() // as of TableConfig
}

// LPMTable is a table of prefixes in memory that packets look addresses up in, beside it perhaps fields that must be
// equal. One goroutine may change it, while others call Lookup and XDP does the same.
type LPMTable struct {
	LPMConfig
	alone  *trie
	groups map[[lpmExact]uint32]*trie
	n      int
}

// NewLPMTable makes an empty table.
func NewLPMTable(c LPMConfig) (*LPMTable, error) {
	l := &LPMTable{LPMConfig: c}
	if l.Grace == nil {
		l.Grace = func() {}
	}
	switch {
	case (c.Word == nil) == (c.Groups == nil):
		return nil, errors.New("make a table of prefixes: it has either a word of its own or a table of exact parts")
	case c.Groups != nil && (c.Groups.Words > lpmExact || c.Groups.Len() > 0):
		return nil, fmt.Errorf("make a table of prefixes: its exact part has %d words, and may have %d; %d are there already", c.Groups.Words, lpmExact, c.Groups.Len())
	case c.Groups != nil:
		l.groups = map[[lpmExact]uint32]*trie{}
	default:
		l.alone = &trie{arena: c.Arena, six: c.Six, word: c.Word}
	}
	return l, nil
}

// Len is the number of prefixes.
func (l *LPMTable) Len() int { return l.n }

// Process does what a batch asks for, and appends one completion for each request to done. To packets, all changes of
// one exact part come in force at once. It waits for a grace period and leaves the entries themselves to the caller: one
// that no prefix names any more is out of use when Process returns. An error, as ErrFull, means that nothing has changed, or
// with an exact part, that only what the completions say has.
func (l *LPMTable) Process(batch []PrefixRequest, done []Completion) ([]Completion, error) {
	first := len(done)
	for i := range batch {
		done = append(done, Completion{Request: i})
	}
	mine := done[first:]
	var gone []lpmRun
	var err error
	if l.alone != nil {
		which := make([]int, len(batch))
		for i := range which {
			which[i] = i
		}
		gone, err = l.change(l.alone, batch, which, mine, nil)
	} else {
		gone, err = l.changeGroups(batch, mine)
	}
	if len(gone) > 0 {
		l.Grace()
		t := trie{arena: l.Arena, six: l.Six}
		t.free(gone)
	}
	return done, err
}

// change does what a batch asks of one exact part.
func (l *LPMTable) change(t *trie, batch []PrefixRequest, which []int, done []Completion, gone []lpmRun) ([]lpmRun, error) {
	sorted, changed, err := t.merge(batch, which, done)
	before := len(t.sorted)
	if err == nil {
		gone, err = t.change(sorted, changed, gone)
	}
	if err != nil {
		for _, n := range which {
			done[n] = Completion{Request: done[n].Request, Err: err}
		}
		return gone, err
	}
	t.sorted = sorted
	l.n += len(sorted) - before
	return gone, nil
}

func (l *LPMTable) changeGroups(batch []PrefixRequest, done []Completion) (gone []lpmRun, err error) {
	which := map[[lpmExact]uint32][]int{}
	var order [][lpmExact]uint32
	for i := range batch {
		exact := batch[i].Exact
		clear(exact[l.Groups.Words:])
		if which[exact] == nil {
			order = append(order, exact)
		}
		which[exact] = append(which[exact], i)
	}
	var unused []Request
	for _, exact := range order {
		t := l.groups[exact]
		if t == nil {
			t = &trie{arena: l.Arena, six: l.Six, word: new(uint64)}
		}
		var failed error
		if gone, failed = l.change(t, batch, which[exact], done, gone); failed == nil {
			failed = l.join(exact, t)
		}
		if failed != nil {
			err = errors.Join(err, failed)
			for _, n := range which[exact] {
				done[n].Err = failed
			}
			continue
		}
		if len(t.sorted) == 0 && l.groups[exact] != nil {
			r := Request{Change: RemoveEntry}
			copy(r.Entry.Key[:], exact[:])
			unused = append(unused, r)
			gone = t.everything(gone)
			delete(l.groups, exact)
		}
	}
	l.Groups.Process(unused, nil)
	return gone, err
}

// join has packets find a group that is new.
func (l *LPMTable) join(exact [lpmExact]uint32, t *trie) error {
	if len(t.sorted) == 0 || l.groups[exact] != nil {
		return nil
	}
	r := Request{Change: InsertEntry}
	copy(r.Entry.Key[:], exact[:])
	*wordOf(&r.Entry) = *t.word
	c := l.Groups.Process([]Request{r}, nil)[0]
	if c.Err != nil {
		l.n -= len(t.sorted)
		t.free(t.everything(nil)) // no packet has seen it
		return c.Err
	}
	t.word = wordOf(&l.Groups.Entries[c.Place])
	l.groups[exact] = t
	return nil
}

// wordOf is the word of the table that the entry of an exact part has in the place of operands.
func wordOf(e *bpf.PipesPipeEntry) *uint64 { return (*uint64)(unsafe.Pointer(&e.Value)) }

// Lookup returns the place of the entry for a key laid out as in struct pipe_fields: the exact part, and the address
// from word PIPE_ADDRESS on. 0 = none.
func (l *LPMTable) Lookup(key *[MaxKey]uint32) uint32 {
	word := l.Word
	if l.Groups != nil {
		place := l.Groups.Lookup(key[:l.Groups.Words])
		if place == 0 {
			return 0
		}
		word = wordOf(&l.Groups.Entries[place])
	}
	a := key[lpmExact:]
	address := wide{hi: uint64(a[0]) << 32}
	if l.Six {
		address = wide{uint64(a[0])<<32 | uint64(a[1]), uint64(a[2])<<32 | uint64(a[3])}
	}
	return l.Arena.longest(atomic.LoadUint64(word), l.Six, address)
}

// AddressKey puts an address where Lookup looks for it.
func AddressKey(key *[MaxKey]uint32, a netip.Addr) {
	w := wideOf(a)
	copy(key[lpmExact:], []uint32{uint32(w.hi >> 32), uint32(w.hi), uint32(w.lo >> 32), uint32(w.lo)})
}
