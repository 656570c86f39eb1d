package pipe

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// heapTable makes a table of the heap.
func heapTable(tb testing.TB, words, size int) *Table {
	tb.Helper()
	t, err := NewTable(heapConfig(words, size))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func heapConfig(words, size int) TableConfig {
	return TableConfig{
		Words: words, Size: size, Seed: 0x5eed, First: 3,
		Buckets: make([]bpf.PipesPipeBucket, TableBuckets(size)), Entries: make([]bpf.PipesPipeEntry, 3+TablePlaces(size)),
	}
}

func requestFor(change Change, number uint32, key ...uint32) Request {
	r := Request{Change: change, Entry: bpf.PipesPipeEntry{Number: number, Forward: number ^ 0xff}}
	copy(r.Entry.Key[:], key)
	return r
}

func only(tb testing.TB, t *Table, r Request) Completion {
	tb.Helper()
	done := t.Process([]Request{r}, nil)
	if len(done) != 1 {
		tb.Fatalf("%d completions of one request", len(done))
	}
	return done[0]
}

func TestTableChanges(t *testing.T) {
	graces := 0
	c := heapConfig(3, 100)
	c.Grace = func() { graces++ }
	c.Now = func() uint32 { return 77 }
	table, err := NewTable(c)
	if err != nil {
		t.Fatal(err)
	}
	first := only(t, table, requestFor(InsertEntry, 1, 10, 20, 30))
	if first.Err != nil || first.Place < 3 || table.Lookup([]uint32{10, 20, 30}) != first.Place || graces != 0 {
		t.Fatalf("inserted: %+v after %d graces", first, graces)
	}
	if again := only(t, table, requestFor(InsertEntry, 2, 10, 20, 30)); !errors.Is(again.Err, ErrDuplicate) || again.Place != first.Place {
		t.Errorf("inserted again: %+v", again)
	}
	e := &table.Entries[first.Place]
	e.Packets, e.Bytes, e.Used = 5, 500, 90
	updated := only(t, table, requestFor(UpdateEntry, 9, 10, 20, 30))
	got, ok := table.Query([]uint32{10, 20, 30})
	if updated.Err != nil || updated.Place == first.Place || graces != 1 || !ok || got.Number != 9 || got.Packets != 5 || got.Bytes != 500 || got.Used != 90 {
		t.Errorf("updated: %+v, %+v after %d graces", updated, got, graces)
	}
	removed := only(t, table, requestFor(RemoveEntry, 0, 10, 20, 30))
	if removed.Err != nil || removed.Packets != 5 || removed.Bytes != 500 || removed.Used != 90 || table.Len() != 0 {
		t.Errorf("removed: %+v, %d left", removed, table.Len())
	}
	for _, change := range []Change{UpdateEntry, RemoveEntry} {
		if c := only(t, table, requestFor(change, 1, 10, 20, 30)); !errors.Is(c.Err, ErrNotFound) {
			t.Errorf("change %d of nothing: %+v", change, c)
		}
	}
}

// One batch may do anything to one key, and waits once.
func TestTableBatchOfOneKey(t *testing.T) {
	graces := 0
	c := heapConfig(1, 4)
	c.Grace = func() { graces++ }
	table, err := NewTable(c)
	if err != nil {
		t.Fatal(err)
	}
	place := only(t, table, requestFor(InsertEntry, 1, 7)).Place
	table.Entries[place].Packets = 3
	done := table.Process([]Request{
		requestFor(UpdateEntry, 2, 7), requestFor(UpdateEntry, 3, 7), requestFor(RemoveEntry, 0, 7), requestFor(InsertEntry, 4, 7),
	}, nil)
	got, ok := table.Query([]uint32{7})
	if done[2].Packets != 3 || !ok || got.Number != 4 || got.Packets != 0 || graces != 1 {
		t.Errorf("%+v; entry %+v after %d graces", done, got, graces)
	}
}

// A full table can still update, and has room again after a removal.
func TestTableFull(t *testing.T) {
	for _, size := range []int{1, 2, 9, 100, 5000} {
		table := heapTable(t, 2, size)
		for i := range uint32(size) {
			if c := only(t, table, requestFor(InsertEntry, i, i, 1)); c.Err != nil {
				t.Fatalf("entry %d of %d: %v", i, size, c.Err)
			}
		}
		if c := only(t, table, requestFor(InsertEntry, 0, 1, 2)); !errors.Is(c.Err, ErrFull) {
			t.Errorf("entry beyond %d: %+v", size, c)
		}
		batch := []Request{requestFor(UpdateEntry, 9, 0, 1), requestFor(UpdateEntry, 10, 0, 1), requestFor(RemoveEntry, 0, 0, 1), requestFor(InsertEntry, 11, 1, 2)}
		for i, c := range table.Process(batch, nil) {
			if c.Err != nil {
				t.Errorf("request %d to a full table of %d: %v", i, size, c.Err)
			}
		}
		if !table.Congested(100) || table.Lookup([]uint32{1, 2}) == 0 {
			t.Errorf("table of %d has %d entries", size, table.Len())
		}
	}
}

// A table does what a Go map does, over many batches, and a table opened on its memory goes on with that.
func TestTableAgainstMap(t *testing.T) {
	const size = 3000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	c := heapConfig(3, size)
	table, err := NewTable(c)
	if err != nil {
		t.Fatal(err)
	}
	have := map[[3]uint32]uint32{}
	for round := range 300 {
		var batch []Request
		var want []error
		for range rnd.IntN(60) {
			key := [3]uint32{rnd.Uint32N(4000), 0, 5}
			change := Change(rnd.IntN(3))
			number, there := have[key]
			var err error
			switch {
			case change == InsertEntry && there:
				err = ErrDuplicate
			case change == InsertEntry && len(have) == size:
				err = ErrFull
			case change != InsertEntry && !there:
				err = ErrNotFound
			case change == RemoveEntry:
				delete(have, key)
			default:
				number = rnd.Uint32()
				have[key] = number
			}
			batch, want = append(batch, requestFor(change, number, key[:]...)), append(want, err)
		}
		for i, c := range table.Process(batch, nil) {
			if !errors.Is(c.Err, want[i]) || (c.Err == nil) != (want[i] == nil) {
				t.Fatalf("round %d: request %+v: %v, want %v", round, batch[i], c.Err, want[i])
			}
		}
		if round%50 == 49 {
			if table, err = OpenTable(c); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := 0
	for place, e := range table.All() {
		key := [3]uint32(e.Key[:3])
		if number, ok := have[key]; !ok || number != e.Number || table.Lookup(key[:]) != place {
			t.Errorf("place %d: %+v, want %d", place, e, number)
		}
		seen++
	}
	if seen != len(have) || table.Len() != len(have) {
		t.Errorf("%d entries seen, %d counted, want %d", seen, table.Len(), len(have))
	}
}

func TestTableGrows(t *testing.T) {
	small := heapTable(t, 2, 500)
	for i := range uint32(500) {
		place := only(t, small, requestFor(InsertEntry, i, i, i)).Place
		small.Entries[place].Packets = uint64(i)
	}
	only(t, small, requestFor(RemoveEntry, 0, 100, 100))
	large, err := small.GrowInto(heapConfig(2, 4000))
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, more uint64) {
		t.Helper()
		for i := range uint32(500) {
			if e, ok := large.Query([]uint32{i, i}); ok != (i != 100) || ok && (e.Packets != uint64(i)+more || e.Number != i) {
				t.Fatalf("%s: entry %d is %+v, %v", when, i, e, ok)
			}
		}
	}
	check("before the switch", 0)
	for i := range uint32(500) {
		if i != 100 {
			small.Entries[small.Lookup([]uint32{i, i})].Packets++
			large.Entries[large.Lookup([]uint32{i, i})].Packets++
		}
	}
	check("during the switch", 2)
	large.Adopt()
	check("after the switch", 2)
	for i := range uint32(3000) {
		if c := only(t, large, requestFor(InsertEntry, i, i, 1<<31)); c.Err != nil {
			t.Fatalf("entry %d after growing: %v", i, c.Err)
		}
	}
	if _, err := large.GrowInto(heapConfig(2, 3000)); err == nil {
		t.Error("a table became smaller")
	}
}

func TestAged(t *testing.T) {
	now := ^uint32(0) - 5 // ticks wrap
	c := heapConfig(1, 50)
	c.Now = func() uint32 { return now }
	table, err := NewTable(c)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(30) {
		r := requestFor(InsertEntry, i, i)
		r.Entry.Age = i % 3 * 10 // 0, 10, 20
		only(t, table, r)
	}
	now += 15
	var batch []Request
	table.Aged(now, 4, func(places []uint32) {
		if len(places) > 4 {
			t.Errorf("%d in a batch", len(places))
		}
		batch = table.RemoveRequests(batch, places)
	})
	if len(batch) != 10 {
		t.Fatalf("%d of 10 have aged", len(batch))
	}
	for _, c := range table.Process(batch, nil) {
		if c.Err != nil {
			t.Error(c.Err)
		}
	}
	for i := range uint32(30) {
		if there := table.Lookup([]uint32{i}) != 0; there != (i%3 != 1) {
			t.Errorf("entry %d of age %d is there: %v", i, i%3*10, there)
		}
	}
	now += 15
	n := 0
	table.Aged(now, 100, func(places []uint32) { n += len(places) })
	if n != 10 {
		t.Errorf("%d of 10 have aged later", n)
	}
}
