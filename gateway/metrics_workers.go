package gateway

import (
	"maps"
	"slices"
	"strconv"

	"github.com/softdpu/softdpu/dataplane/worker"
)

var (
	workerLabels = []string{"worker"}
	queueLabels  = []string{"port", "queue", "worker"}
	ringLabels   = []string{"port", "queue", "worker", "ring"}
)

// workerMetrics are those of workers. Without workers all but the first are absent.
func workerMetrics() []metric {
	perWorker := func(name, help string, value func(*worker.WorkerStatus) uint64) metric {
		return metric{name, help, counter, workerLabels, eachWorker(func(w *worker.WorkerStatus, emit emit) {
			emit(float64(value(w)), strconv.Itoa(w.ID))
		})}
	}
	perQueue := func(name, help string, value func(*worker.QueueStatus) uint64) metric {
		return metric{name, help, counter, queueLabels, eachQueue(func(q *worker.QueueStatus, labels []string, emit emit) {
			emit(float64(value(q)), labels...)
		})}
	}
	return []metric{
		{"softdpu_workers_running", "1 if workers run.", gauge, nil,
			func(r *reading, emit emit) { emit(truth(r.workers.Running)) }},
		{"softdpu_workers_info", "Always 1: how packets come to the workers.", gauge, []string{"mode"},
			func(r *reading, emit emit) {
				if r.workers.Running {
					emit(1, r.workers.Mode)
				}
			}},
		{"softdpu_workers_frames", "Frames of the workers' packet memory.", gauge, nil,
			func(r *reading, emit emit) {
				if r.workers.Running {
					emit(float64(r.workers.Memory.Frames))
				}
			}},
		{"softdpu_workers_free_frames", "Of the frames, those that no ring and no worker has.", gauge, nil,
			func(r *reading, emit emit) {
				if r.workers.Running {
					emit(float64(r.workers.Memory.Free))
				}
			}},
		{"softdpu_worker_info", "Always 1: where a worker runs. A CPU of -1 is none of its own.", gauge, []string{"worker", "cpu", "numa_node"},
			eachWorker(func(w *worker.WorkerStatus, emit emit) {
				emit(1, strconv.Itoa(w.ID), strconv.Itoa(w.CPU), strconv.Itoa(w.NUMA))
			})},
		{"softdpu_worker_up", "0 while a worker gives no sign of life, or is started again.", gauge, workerLabels,
			eachWorker(func(w *worker.WorkerStatus, emit emit) { emit(truth(alive(w.State)), strconv.Itoa(w.ID)) })},
		perWorker("softdpu_worker_receive_packets_total", "Packets that a worker took from its sockets.",
			func(w *worker.WorkerStatus) uint64 { return w.Packets }),
		perWorker("softdpu_worker_receive_bytes_total", "Bytes of frames that a worker took from its sockets.",
			func(w *worker.WorkerStatus) uint64 { return w.Bytes }),
		perWorker("softdpu_worker_transmit_packets_total", "Packets that a worker gave to the kernel to send.",
			func(w *worker.WorkerStatus) uint64 { return w.Sent }),
		perWorker("softdpu_worker_handed_over_packets_total", "Packets that a worker gave to another one, whose flows they are.",
			func(w *worker.WorkerStatus) uint64 { return w.HandedOver }),
		perWorker("softdpu_worker_taken_over_packets_total", "Packets that a worker got from others.",
			func(w *worker.WorkerStatus) uint64 { return w.TakenOver }),
		perWorker("softdpu_worker_mirrored_packets_total", "Copies that a worker sent to monitor ports.",
			func(w *worker.WorkerStatus) uint64 { return w.Mirrored }),
		perWorker("softdpu_worker_mirror_lost_packets_total", "Copies that were left out: there was no frame or room for them, or the port was gone.",
			func(w *worker.WorkerStatus) uint64 { return w.MirrorLost }),
		perWorker("softdpu_worker_moved_up_flows_total", "Flows that a worker was done with, and that go on in XDP.",
			func(w *worker.WorkerStatus) uint64 { return w.MovedUp }),
		{"softdpu_worker_drop_packets_total", "Packets that a worker dropped, by reason; they are in softdpu_drop_packets_total too.", counter, []string{"worker", "reason"},
			eachWorker(func(w *worker.WorkerStatus, emit emit) {
				for _, reason := range slices.Sorted(maps.Keys(w.Drops)) {
					emit(float64(w.Drops[reason]), strconv.Itoa(w.ID), reason)
				}
			})},
		perWorker("softdpu_worker_rounds_total", "Times that a worker looked at its rings.",
			func(w *worker.WorkerStatus) uint64 { return w.Rounds }),
		perWorker("softdpu_worker_idle_rounds_total", "Of the rounds, those in which there was nothing to do.",
			func(w *worker.WorkerStatus) uint64 { return w.IdleRounds }),
		perWorker("softdpu_worker_wakeups_total", "Times that a worker was woken from its sleep.",
			func(w *worker.WorkerStatus) uint64 { return w.Wakeups }),
		perWorker("softdpu_worker_system_calls_total", "System calls of a worker: to send, to have rings filled, to sleep.",
			func(w *worker.WorkerStatus) uint64 { return w.Syscalls }),
		perWorker("softdpu_worker_restarts_total", "Times that a worker was started again.",
			func(w *worker.WorkerStatus) uint64 { return w.Restarts }),
		{"softdpu_worker_queue_outstanding_packets", "Packets that XDP sent to a queue's socket and the worker has not taken yet.", gauge, queueLabels,
			eachQueue(func(q *worker.QueueStatus, labels []string, emit emit) {
				emit(float64(q.Waiting()), labels...)
			})},
		perQueue("softdpu_worker_queue_receive_packets_total", "Packets that came by a queue's socket.",
			func(q *worker.QueueStatus) uint64 { return q.RxPackets }),
		perQueue("softdpu_worker_queue_transmit_packets_total", "Packets that were given to a queue's socket to send.",
			func(q *worker.QueueStatus) uint64 { return q.TxPackets }),
		perQueue("softdpu_worker_queue_transmit_completed_frames_total", "Frames that have left by a queue's socket.",
			func(q *worker.QueueStatus) uint64 { return q.TxDone }),
		perQueue("softdpu_worker_queue_transmit_no_room_packets_total", "Packets dropped because a queue's tx ring was full.",
			func(q *worker.QueueStatus) uint64 { return q.TxNoRoom }),
		perQueue("softdpu_worker_queue_lost_packets_total", "Packets that the kernel dropped between XDP and a queue's socket: the drop worker-full.",
			func(q *worker.QueueStatus) uint64 { return uint64(q.Lost) }),
		perQueue("softdpu_worker_queue_kicks_total", "System calls that had the kernel send what is in a queue's tx ring.",
			func(q *worker.QueueStatus) uint64 { return q.Kicks }),
		{"softdpu_worker_queue_kick_errors_total", "Of the kicks, those that the kernel did not follow at once, by why.", counter, append(slices.Clone(queueLabels), "error"),
			eachQueue(func(q *worker.QueueStatus, labels []string, emit emit) {
				for _, e := range []struct {
					why string
					n   uint64
				}{{"again", q.KickAgain}, {"busy", q.KickBusy}, {"down", q.KickDown}, {"no-buffers", q.KickNoMem}} {
					emit(float64(e.n), append(slices.Clone(labels), e.why)...)
				}
			})},
		{"softdpu_worker_queue_xdp_statistics_total", "The kernel's own counters of a queue's socket (XDP_STATISTICS), by their names.", counter, append(slices.Clone(queueLabels), "statistic"),
			eachQueue(func(q *worker.QueueStatus, labels []string, emit emit) {
				for _, s := range xdpStatistics(q) {
					emit(float64(s.n), append(slices.Clone(labels), s.name)...)
				}
			})},
		{"softdpu_worker_ring_descriptors", "Descriptors in a ring.", gauge, ringLabels,
			eachRing(func(ring worker.RingStatus, labels []string, emit emit) { emit(float64(ring.Used), labels...) })},
		{"softdpu_worker_ring_descriptors_limit", "Descriptors that a ring has room for.", gauge, ringLabels,
			eachRing(func(ring worker.RingStatus, labels []string, emit emit) { emit(float64(ring.Size), labels...) })},
		{"softdpu_worker_ring_stalled", "1 while a ring has something in it and does not move; absent for rings that do.", gauge, []string{"port", "queue", "ring"},
			func(r *reading, emit emit) {
				for _, s := range r.workers.Stalls {
					emit(1, s.Port, strconv.Itoa(s.Queue), s.Ring)
				}
			}},
	}
}

// A statistic is one number of XDP_STATISTICS, by the name that the kernel gives it.
type statistic struct {
	name string
	n    uint64
}

func xdpStatistics(q *worker.QueueStatus) []statistic {
	return []statistic{
		{"rx_dropped", q.RxDropped}, {"rx_invalid_descs", q.RxInvalid}, {"tx_invalid_descs", q.TxInvalid},
		{"rx_ring_full", q.RxRingFull}, {"rx_fill_ring_empty_descs", q.FillEmpty}, {"tx_ring_empty_descs", q.TxRingEmpty},
	}
}

func eachWorker(of func(*worker.WorkerStatus, emit)) func(*reading, emit) {
	return func(r *reading, emit emit) {
		for i := range r.workers.Workers {
			of(&r.workers.Workers[i], emit)
		}
	}
}

func eachQueue(of func(q *worker.QueueStatus, labels []string, emit emit)) func(*reading, emit) {
	return eachWorker(func(w *worker.WorkerStatus, emit emit) {
		for i := range w.Queues {
			q := &w.Queues[i]
			of(q, []string{q.Port, strconv.Itoa(q.Queue), strconv.Itoa(w.ID)}, emit)
		}
	})
}

func eachRing(of func(ring worker.RingStatus, labels []string, emit emit)) func(*reading, emit) {
	return eachQueue(func(q *worker.QueueStatus, labels []string, emit emit) {
		for _, ring := range []struct {
			name string
			of   worker.RingStatus
		}{{"rx", q.Rx}, {"tx", q.Tx}, {"fill", q.Fill}, {"completion", q.Completion}} {
			of(ring.of, append(slices.Clone(labels), ring.name), emit)
		}
	})
}

// A histogram is one that /metrics serves.
type histogram struct {
	name, help string
	labels     []string
	each       func(r *reading, emit emitHistogram)
}

// emitHistogram takes one histogram: how many were observed, their sum, and how many were at most as large
// as each bound.
type emitHistogram func(count uint64, sum float64, buckets map[float64]uint64, labels ...string)

// batchBounds are the upper ends of worker.BatchBuckets.
var batchBounds = [worker.BatchBuckets]float64{1, 3, 7, 15, 31, 63, 64}

// histograms returns the histograms that are served, behind metrics.
func histograms() []histogram {
	return []histogram{{"softdpu_worker_batch_packets", "Packets that a worker took from a socket at once.", workerLabels,
		func(r *reading, emit emitHistogram) {
			for i := range r.workers.Workers {
				w := &r.workers.Workers[i]
				buckets, n := make(map[float64]uint64, len(batchBounds)), uint64(0)
				for k, bound := range batchBounds {
					n += w.Batches[k]
					buckets[bound] = n
				}
				emit(n, float64(w.Packets), buckets, strconv.Itoa(w.ID))
			}
		}}}
}
