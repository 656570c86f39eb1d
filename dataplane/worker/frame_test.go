package worker

import (
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// TestProgress publishes numbers of packets that have left.
func TestProgress(t *testing.T) {
	for _, tt := range []struct {
		name       string
		sent, done uint16 // in the cell before
		numbers    []uint16
		want       uint16
	}{
		{"one", 5, 2, []uint16{3}, 3},
		{"several in a row", 5, 2, []uint16{3, 4, 5}, 5},
		{"a lost one is overtaken", 5, 2, []uint16{4}, 4},
		{"over the end", 3, 65534, []uint16{65535, 0, 1}, 1},
		{"one that came by another way, late", 5, 4, []uint16{3}, 4},
		{"one of a flow that had the slot before", 2, 1, []uint16{9}, 1},
		{"the same", 5, 5, []uint16{5}, 5},
		{"ahead of all that were sent", 5, 5, []uint16{6}, 5},
		{"after more losses than half of the numbers", 50000, 5, []uint16{49999}, 49999},
		{"and one from before them", 50000, 49999, []uint16{5}, 49999},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cells := make([]bpf.XDPCells, 2)
			const cell = 13 // group 1, slot 2, leg 1
			at := &cells[1].Leg[2][1]
			*at = uint32(tt.sent)<<16 | uint32(tt.done)
			p := progress{cells: cells, cell: noCell}
			for _, n := range tt.numbers {
				p.done(cell, n)
			}
			p.publish()
			if want := uint32(tt.sent)<<16 | uint32(tt.want); *at != want {
				t.Errorf("the cell says %#x, want %#x", *at, want)
			}
			p.done(8*2+1, 1) // beyond the tables
			p.publish()
			if n := testing.AllocsPerRun(10, func() { p.done(cell, 1); p.publish() }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestReady marks flows, and only those that are meant.
func TestReady(t *testing.T) {
	const word = 7<<wordGeneration | 4
	for _, tt := range []struct {
		name string
		word uint64
		h    bpf.XDPHandover
		want bool
	}{
		{"meant", word, bpf.XDPHandover{Cell: 1*8 + 3*2 + 1, Generation: 7}, true},
		{"another flow", word, bpf.XDPHandover{Cell: 1*8 + 3*2, Generation: 8}, false},
		{"no flow", 7 << wordGeneration, bpf.XDPHandover{Cell: 1*8 + 3*2, Generation: 7}, false},
		{"marked already", word | wordReady, bpf.XDPHandover{Cell: 1*8 + 3*2, Generation: 7}, false},
		{"judged by another policy since", word, bpf.XDPHandover{Cell: 1*8 + 3*2, Generation: 7, Epoch: 1}, false},
		{"in the overflow", word, bpf.XDPHandover{Cell: noCell, Generation: 7}, false},
		{"beyond the tables", word, bpf.XDPHandover{Cell: 4 * 8, Generation: 7}, false},
	} {
		for _, family := range []int{4, 6} {
			t.Run(tt.name, func(t *testing.T) {
				tables := Tables{Groups: 2, Flows4: make([]bpf.XDPFlow4Group, 2), Flows6: make([]bpf.XDPFlow6Group, 2)}
				at, h := &tables.Flows4[1].Slot[3].Core.Word, tt.h
				if family == 6 {
					at = &tables.Flows6[1].Slot[3].Core.Word
					if h.Cell != noCell {
						h.Cell += 2 * 8
					}
				}
				*at = tt.word
				if got := tables.ready(&h); got != tt.want {
					t.Errorf("marked: %t", got)
				}
				if marked := *at != tt.word; marked != tt.want || marked && *at != tt.word|wordReady {
					t.Errorf("the word is %#x", *at)
				}
			})
		}
	}
}

// TestBuckets counts batches as BatchBuckets says.
func TestBuckets(t *testing.T) {
	for packets, want := range map[uint32]int{1: 0, 2: 1, 3: 1, 4: 2, 7: 2, 8: 3, 15: 3, 16: 4, 31: 4, 32: 5, 63: 5, 64: 6} {
		if got := bucket(packets) - cBatches; got != want {
			t.Errorf("%d packets count in bucket %d, want %d", packets, got, want)
		}
	}
}

// TestCPUs chooses CPUs.
func TestCPUs(t *testing.T) {
	allowed := allowedCPUs()
	if len(allowed) == 0 {
		t.Fatal("the process may run nowhere")
	}
	if got, err := chooseCPUs(nil, []Port{{Device: "nosuch"}}); err != nil || len(got) != len(allowed) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := chooseCPUs(allowed[:1], nil); err != nil || len(got) != 1 || got[0] != allowed[0] {
		t.Errorf("%v, %v", got, err)
	}
}
