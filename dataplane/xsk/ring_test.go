package xsk

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// pairOf returns the two ends of one ring in plain memory: as producer and as consumer. Indices start at
// a number of the test's choice, which no ring of the kernel's does.
func pairOf(size uint32, start uint32) (producer, consumer descRing) {
	prod, cons, flags := new(uint32), new(uint32), new(uint32)
	*prod, *cons = start, start
	desc := make([]Desc, size)
	end := func() descRing {
		return descRing{ring{prod: start, cons: start, size: size, mask: size - 1, producer: prod, consumer: cons, flags: flags}, desc}
	}
	return end(), end()
}

// A step is one act of a producer and a consumer: how much each would like to move.
type step struct{ put, take uint8 }

// runModel runs steps over a ring and over a slice that grows and shrinks, and says where they differ.
func runModel(size, start uint32, steps []step) error {
	producer, consumer := pairOf(size, start)
	var model []uint64
	next := uint64(0)
	for i, st := range steps {
		want := uint32(st.put)
		room := producer.room(want)
		if truth := size - uint32(len(model)); room > truth || room < min(want, truth) {
			return fmt.Errorf("step %d: room for %d, there is room for %d and %d are wanted", i, room, truth, want)
		}
		n := min(room, want)
		batch := make([]Desc, n)
		for j := range batch {
			batch[j].Addr = next
			model = append(model, next)
			next++
		}
		producer.put(batch)
		producer.publish(n)
		if got := producer.pending(); got != uint32(len(model)) {
			return fmt.Errorf("step %d: %d pending, want %d", i, got, len(model))
		}

		want = uint32(st.take)
		filled := consumer.filled(want)
		if truth := uint32(len(model)); filled > truth || filled < min(want, truth) {
			return fmt.Errorf("step %d: %d filled, there are %d and %d are wanted", i, filled, truth, want)
		}
		batch = make([]Desc, min(filled, want))
		consumer.peek(batch)
		for j, d := range batch {
			if d.Addr != model[j] {
				return fmt.Errorf("step %d: entry %d is %d, want %d", i, j, d.Addr, model[j])
			}
		}
		model = model[len(batch):]
		consumer.release(uint32(len(batch)))
	}
	return nil
}

// TestRingMatchesAQueue runs rings of all small sizes over the wrap of their indices.
func TestRingMatchesAQueue(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for size := uint32(1); size <= 64; size *= 2 {
		for range 50 {
			steps := make([]step, 100)
			for i := range steps {
				steps[i] = step{uint8(r.IntN(int(2*size + 1))), uint8(r.IntN(int(2*size + 1)))}
			}
			start := math.MaxUint32 - r.Uint32N(50*size)
			if err := runModel(size, start, steps); err != nil {
				t.Fatalf("ring of %d from %d: %v", size, start, err)
			}
		}
	}
}

func FuzzRing(f *testing.F) {
	f.Add(uint8(2), uint32(math.MaxUint32-3), []byte{4, 0, 4, 4, 0, 4, 1, 2, 3, 4})
	f.Add(uint8(0), uint32(0), []byte{1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, log uint8, start uint32, raw []byte) {
		var steps []step
		for i := 0; i+1 < len(raw); i += 2 {
			steps = append(steps, step{raw[i], raw[i+1]})
		}
		if err := runModel(1<<(log%9), start, steps); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAddrRingWraps(t *testing.T) {
	prod, cons := new(uint32), new(uint32)
	start := uint32(math.MaxUint32 - 2)
	*prod, *cons = start, start
	r := addrRing{ring{prod: start, cons: start, size: 8, mask: 7, producer: prod, consumer: cons}, make([]uint64, 8)}
	for round := range uint64(10) {
		put := []uint64{round, round + 100, round + 200, round + 300, round + 400}
		r.put(put)
		r.publish(5)
		got := make([]uint64, 5)
		r.peek(got)
		for i := range got {
			if got[i] != put[i] {
				t.Errorf("round %d: %v, want %v", round, got, put)
			}
		}
		r.release(5)
	}
	if *prod != start+50 || *cons != start+50 {
		t.Errorf("indices %d and %d, want %d", *prod, *cons, start+50)
	}
}
