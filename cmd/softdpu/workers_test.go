package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/gateway"
)

func testWorkers(now time.Time) *gateway.WorkersStatus {
	ring := worker.RingStatus{Size: 2048}
	return &gateway.WorkersStatus{
		Running: true, NeededBy: []string{"force_stage: forward"}, Mode: "copy",
		Attempts: []worker.Attempt{
			{Port: "lan0", Mode: "zero-copy", Error: "operation not supported"}, {Port: "wan0", Mode: "zero-copy", Error: "operation not supported"},
			{Port: "lan0", Mode: "copy"}, {Port: "wan0", Mode: "copy"},
		},
		Memory: worker.MemoryStatus{Frames: 8192, FrameSize: 4096, PageSize: 4096, WhySmall: "no huge pages are free", Free: 2000},
		Workers: []worker.WorkerStatus{
			{ID: 0, CPU: 2, State: "polling", Packets: 100, Bytes: 6000, HandedOver: 2, Mirrored: 10, MirrorLost: 1, MovedUp: 4, Drops: map[string]uint64{"egress-full": 3, "worker-full": 0},
				Batches: [7]uint64{4, 3, 2, 0, 0, 0, 1}, Wakeups: 9, Syscalls: 25, Restarts: 1,
				Queues: []worker.QueueStatus{{Port: "lan0", Rx: worker.RingStatus{Size: 2048, Used: 7}, Tx: ring, Fill: worker.RingStatus{Size: 2048, Used: 2000}, Completion: ring,
					Sent: 3, Taken: 0xfffffff0, Lost: 9, RxPackets: 100, TxPackets: 97, TxNoRoom: 2, RxRingFull: 24, TxRingEmpty: 26}}},
			{ID: 1, CPU: -1, State: "silent", Queues: []worker.QueueStatus{{Port: "lan0", Queue: 1, Rx: ring, Tx: worker.RingStatus{Size: 2048, Used: 2048}, Fill: ring, Completion: ring}}},
		},
		Stalls: []worker.Stall{{Port: "lan0", Queue: 1, Ring: "tx", Waiting: 2048, Since: now.Add(-3 * time.Second), Why: "the device sends nothing"}},
	}
}

func TestWorkersText(t *testing.T) {
	now := time.Now()
	var b strings.Builder
	if err := writeWorkers(&b, testWorkers(now), now, 0); err != nil {
		t.Fatal(err)
	}
	const want = `Workers        2 in copy mode
               for force_stage: forward
               not zero-copy: lan0, wan0: operation not supported
Memory         8192 frames of 4096 bytes, 2000 of them free
               pages of 4.0K: no huge pages are free

WORKER  CPU  STATE    PACKETS  BATCH  SYSCALLS  WAKEUPS  OVER  MIRRORED  MOVED UP  DROPPED  RESTARTS
0         2  polling      100  10.00      0.25        9     2        10         4        3         1
1       any  silent         0      -         -        0     0         0         0        0         0

PORT  QUEUE  WORKER  RX      TX         FILL       COMPL   WAITING  RECEIVED  SENT  DROPPED
lan0      0       0  7/2048  0/2048     2000/2048  0/2048       10       100    97       11
lan0      1       1  0/2048  2048/2048  0/2048     0/2048        0         0     0        0

! worker 0 dropped 3 packets: egress-full
! worker 0 left out 1 copy for monitor ports: there was no frame, no room or no
  port
! port lan0 queue 0: the kernel counts 24 rx_ring_full
! worker 1 is silent: its flows are dropped (worker-full) or go on in XDP, as
  their rules say
! port lan0 queue 1: the tx ring stands still for 3.0s with 2048 in it: the
  device sends nothing
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
	for _, row := range []struct {
		needed []string
		want   string
	}{
		{nil, "Workers        none: nothing in configuration or policy needs them\n"},
		{[]string{"rule web mirrors to mon0"}, "Workers        none: though needed for rule web mirrors to mon0\n"},
	} {
		b.Reset()
		if err := writeWorkers(&b, &gateway.WorkersStatus{NeededBy: row.needed}, now, 0); err != nil || b.String() != row.want {
			t.Errorf("%v: %q", err, b.String())
		}
	}
}

// The rates are those between two looks; a worker that was started anew counts from 0.
func TestWorkerWatch(t *testing.T) {
	now := time.Now()
	s := testWorkers(now)
	w := &workerWatch{sort: "number", read: func(context.Context) (*gateway.WorkersStatus, error) { return s, nil }}
	f, err := w.next(t.Context(), 20, 0)
	if err != nil || len(f.table.rows) != 2 || f.table.rows[0][3] != "-" {
		t.Fatalf("first look: %v, %v", f.table.rows, err)
	}
	again := testWorkers(now)
	x := &again.Workers[0]
	x.Packets, x.Bytes, x.Syscalls, x.Wakeups, x.HandedOver = 1100, 66000, 65, 11, 6
	x.Batches[0] += 20
	x.Drops["egress-full"] = 5
	again.Workers[1].Packets = 3000
	s = again
	f, err = w.next(t.Context(), 20, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(f.table.rows[0], " "); got != "0 2 polling 500 240k 50.00 0.04 1.0 2.0 1.0 10" {
		t.Errorf("row %s", got)
	}
	if !strings.Contains(f.title, "2 workers in copy mode: 2000 packets/s") || !strings.HasPrefix(f.below, "! port lan0 queue 1: the tx ring stands still") {
		t.Errorf("%q, %q", f.title, f.below)
	}
	s = testWorkers(now)
	if f, _ = w.next(t.Context(), 20, time.Second); f.table.rows[0][3] != "0" {
		t.Errorf("a counter that fell: %v", f.table.rows[0])
	}
	w.sort, w.before = "rate", nil
	if f = w.frame(again, 1, time.Second, now); f.table.rows[0][0] != "1" {
		t.Errorf("the busiest is not first: %v", f.table.rows)
	}
	again.Stalls = nil
	if f = w.frame(again, 1, time.Second, now); f.below != "... and 1 more" {
		t.Errorf("below stands %q", f.below)
	}
}

func TestStatusTellsOfWorkers(t *testing.T) {
	now := time.Now()
	crew := testWorkers(now)
	s := testStatus(now)
	s.Workers = gateway.WorkersSummary{Running: true, NeededBy: crew.NeededBy, Mode: "copy", Attempts: crew.Attempts, Workers: 2, Silent: []int{1}, Stalls: crew.Stalls}
	var b strings.Builder
	if err := writeStatus(&b, s, now, 80); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Workers        2 in copy mode\n               for force_stage: forward\n               not zero-copy: lan0, wan0: operation not supported\n",
		"! worker 1 gives no sign of life", "! port lan0 queue 1: the tx ring stands still for 3.0s",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("status lacks %q:\n%s", want, b.String())
		}
	}
}
