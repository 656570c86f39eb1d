package gateway

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/softdpu/softdpu/dataplane/worker"
)

// ofWorkers reports whether a metric is served only while workers run.
func ofWorkers(name string) bool {
	return strings.HasPrefix(name, "softdpu_worker_") || strings.HasPrefix(name, "softdpu_workers_") && name != "softdpu_workers_running"
}

// testCrew are two workers on one port with two queues, the second of them silent.
func testCrew() worker.Status {
	return worker.Status{
		Mode:     "copy",
		Attempts: []worker.Attempt{{Port: "lan0", Mode: "zero-copy", Error: "operation not supported"}, {Port: "lan0", Mode: "copy"}},
		Memory:   worker.MemoryStatus{Frames: 8192, FrameSize: 4096, PageSize: 4096, WhySmall: "no huge pages are free", Free: 2000},
		Workers: []worker.WorkerStatus{
			{ID: 0, CPU: 2, NUMA: 0, State: "polling", Packets: 100, Bytes: 6000, Sent: 97, HandedOver: 2, TakenOver: 1, Mirrored: 10, MirrorLost: 3, MovedUp: 4,
				Drops: map[string]uint64{"egress-full": 2}, Batches: [7]uint64{4, 3, 2, 0, 0, 0, 1}, Rounds: 50, IdleRounds: 40, Wakeups: 9, Syscalls: 20, Restarts: 1,
				Queues: []worker.QueueStatus{{Port: "lan0", Queue: 0, Rx: worker.RingStatus{Size: 2048, Used: 7}, Tx: worker.RingStatus{Size: 2048},
					Fill: worker.RingStatus{Size: 2048, Used: 2000}, Completion: worker.RingStatus{Size: 2048},
					Sent: 3, Taken: 0xfffffff0, Lost: 9, // the counts wrap
					RxPackets: 100, TxPackets: 97, TxDone: 98, TxNoRoom: 2, Kicks: 11, KickAgain: 1, KickBusy: 2, KickDown: 3, KickNoMem: 4,
					RxDropped: 21, RxInvalid: 22, TxInvalid: 23, RxRingFull: 24, FillEmpty: 25, TxRingEmpty: 26}}},
			{ID: 1, CPU: -1, NUMA: -1, State: "silent", Queues: []worker.QueueStatus{{Port: "lan0", Queue: 1, Tx: worker.RingStatus{Size: 2048, Used: 2048}}}},
		},
		Stalls: []worker.Stall{{Port: "lan0", Queue: 1, Ring: "tx", Waiting: 2048, Since: time.Now().Add(-3 * time.Second), Why: "the device sends nothing"}},
	}
}

// scrapeReading serves one reading.
func scrapeReading(t *testing.T, r *reading) string {
	t.Helper()
	c := newCollector(&reporter{}, &policyLoads{})
	r.took = time.Hour // so that it is given out as it is
	c.last, c.at = r, time.Now()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("answers %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestWorkerMetrics(t *testing.T) {
	r := &reading{workers: crewStatus(testCrew(), true, nil)}
	r.states[flowEstablished], r.carried[flowEstablished] = 5, 2
	text := scrapeReading(t, r)
	for _, want := range []string{
		`softdpu_workers_running 1`,
		`softdpu_workers_info{mode="copy"} 1`,
		`softdpu_workers_frames 8192`, `softdpu_workers_free_frames 2000`,
		`softdpu_worker_info{cpu="2",numa_node="0",worker="0"} 1`, `softdpu_worker_info{cpu="-1",numa_node="-1",worker="1"} 1`,
		`softdpu_worker_up{worker="0"} 1`, `softdpu_worker_up{worker="1"} 0`,
		`softdpu_worker_receive_packets_total{worker="0"} 100`, `softdpu_worker_receive_bytes_total{worker="0"} 6000`,
		`softdpu_worker_transmit_packets_total{worker="0"} 97`,
		`softdpu_worker_handed_over_packets_total{worker="0"} 2`, `softdpu_worker_taken_over_packets_total{worker="0"} 1`,
		`softdpu_worker_mirrored_packets_total{worker="0"} 10`, `softdpu_worker_mirror_lost_packets_total{worker="0"} 3`,
		`softdpu_worker_moved_up_flows_total{worker="0"} 4`, `softdpu_worker_drop_packets_total{reason="egress-full",worker="0"} 2`,
		`softdpu_worker_rounds_total{worker="0"} 50`, `softdpu_worker_idle_rounds_total{worker="0"} 40`,
		`softdpu_worker_wakeups_total{worker="0"} 9`, `softdpu_worker_system_calls_total{worker="0"} 20`, `softdpu_worker_restarts_total{worker="0"} 1`,
		`softdpu_worker_batch_packets_bucket{worker="0",le="1"} 4`, `softdpu_worker_batch_packets_bucket{worker="0",le="3"} 7`,
		`softdpu_worker_batch_packets_bucket{worker="0",le="7"} 9`, `softdpu_worker_batch_packets_bucket{worker="0",le="63"} 9`,
		`softdpu_worker_batch_packets_bucket{worker="0",le="64"} 10`, `softdpu_worker_batch_packets_sum{worker="0"} 100`, `softdpu_worker_batch_packets_count{worker="0"} 10`,
		`softdpu_worker_queue_outstanding_packets{port="lan0",queue="0",worker="0"} 10`,
		`softdpu_worker_queue_receive_packets_total{port="lan0",queue="0",worker="0"} 100`, `softdpu_worker_queue_transmit_packets_total{port="lan0",queue="0",worker="0"} 97`,
		`softdpu_worker_queue_transmit_completed_frames_total{port="lan0",queue="0",worker="0"} 98`,
		`softdpu_worker_queue_transmit_no_room_packets_total{port="lan0",queue="0",worker="0"} 2`,
		`softdpu_worker_queue_lost_packets_total{port="lan0",queue="0",worker="0"} 9`,
		`softdpu_worker_queue_kicks_total{port="lan0",queue="0",worker="0"} 11`,
		`softdpu_worker_queue_kick_errors_total{error="again",port="lan0",queue="0",worker="0"} 1`, `softdpu_worker_queue_kick_errors_total{error="busy",port="lan0",queue="0",worker="0"} 2`,
		`softdpu_worker_queue_kick_errors_total{error="down",port="lan0",queue="0",worker="0"} 3`, `softdpu_worker_queue_kick_errors_total{error="no-buffers",port="lan0",queue="0",worker="0"} 4`,
		`softdpu_worker_queue_xdp_statistics_total{port="lan0",queue="0",statistic="rx_dropped",worker="0"} 21`,
		`softdpu_worker_queue_xdp_statistics_total{port="lan0",queue="0",statistic="rx_invalid_descs",worker="0"} 22`,
		`softdpu_worker_queue_xdp_statistics_total{port="lan0",queue="0",statistic="tx_invalid_descs",worker="0"} 23`,
		`softdpu_worker_queue_xdp_statistics_total{port="lan0",queue="0",statistic="rx_ring_full",worker="0"} 24`,
		`softdpu_worker_queue_xdp_statistics_total{port="lan0",queue="0",statistic="rx_fill_ring_empty_descs",worker="0"} 25`,
		`softdpu_worker_queue_xdp_statistics_total{port="lan0",queue="0",statistic="tx_ring_empty_descs",worker="0"} 26`,
		`softdpu_worker_ring_descriptors{port="lan0",queue="0",ring="rx",worker="0"} 7`, `softdpu_worker_ring_descriptors{port="lan0",queue="0",ring="fill",worker="0"} 2000`,
		`softdpu_worker_ring_descriptors_limit{port="lan0",queue="0",ring="completion",worker="0"} 2048`,
		`softdpu_worker_ring_stalled{port="lan0",queue="1",ring="tx"} 1`,
		`softdpu_flows{state="established",tier="xdp"} 3`, `softdpu_flows{state="established",tier="worker"} 2`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			name, _, _ := strings.Cut(want, " ")
			t.Errorf("%s is not served, but %q", want, regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`.*$`).FindString(text))
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	for _, p := range problems {
		t.Errorf("lint: %s: %s", p.Metric, p.Text)
	}
	if err != nil {
		t.Error(err)
	}
	for _, m := range workerMetrics() {
		if !strings.Contains(text, "\n# TYPE "+m.name+" ") {
			t.Errorf("%s is not served", m.name)
		}
	}

	text = scrapeReading(t, &reading{workers: crewStatus(worker.Status{}, false, nil)})
	if !strings.Contains(text, "\nsoftdpu_workers_running 0\n") {
		t.Error("without workers nothing says so")
	}
	for _, m := range workerMetrics() {
		if ofWorkers(m.name) && strings.Contains(text, "\n# TYPE "+m.name+" ") {
			t.Errorf("%s is served without workers", m.name)
		}
	}
}

// What is answered has no null where a list or map stands, and numbers those that are silent.
func TestWorkersAnswer(t *testing.T) {
	empty := crewStatus(worker.Status{}, false, nil)
	if empty.NeededBy == nil || empty.Attempts == nil || empty.Workers == nil || empty.Stalls == nil {
		t.Errorf("lists are null: %+v", empty)
	}
	s := crewStatus(testCrew(), true, []string{"force_stage: forward"})
	if w := s.Workers[1]; w.Drops == nil || w.Queues == nil {
		t.Errorf("lists are null: %+v", w)
	}
	sum := s.summary()
	if !sum.Running || sum.Mode != "copy" || sum.Workers != 2 || len(sum.Silent) != 1 || sum.Silent[0] != 1 || len(sum.Attempts) != 2 || len(sum.Stalls) != 1 {
		t.Errorf("summary %+v", sum)
	}
}
