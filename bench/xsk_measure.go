package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// XSKDetail says how a result of `bench xsk` came about. Counts are sums over all parts and queues. What the
// workers and the rings counted holds from the first packet to the last; rates and times hold for the time
// that was measured.
type XSKDetail struct {
	Mode       string   `json:"mode"`     // really used
	Attempts   []string `json:"attempts"` // modes that were tried, and what the kernel said
	Batch      int      `json:"batch"`
	FrameSize  int      `json:"frame_size"`
	RingSize   int      `json:"ring_size"`
	UMEMFrames int      `json:"umem_frames"`
	PageSize   int      `json:"page_size"`              // of the UMEM, in bytes
	PagesWhy   string   `json:"pages_why,omitempty"`    // if huge pages were asked for and not had
	BusyPoll   float64  `json:"busy_poll_us,omitempty"` // microseconds
	Queues     int      `json:"queues"`
	CPUs       []int    `json:"cpus"` // of the workers
	Rate       float64  `json:"rate,omitempty"`
	Flows      int      `json:"flows,omitempty"`
	Pcap       string   `json:"pcap,omitempty"`

	Seconds          float64 `json:"seconds"` // measured
	Packets          uint64  `json:"packets"` // in them
	Bytes            uint64  `json:"bytes"`
	PacketsPerSecond float64 `json:"packets_per_second"` // the median of the parts
	BytesPerSecond   float64 `json:"bytes_per_second"`
	NsPerPacket      float64 `json:"ns_per_packet"` // of one worker

	WorkerUserNs    float64 `json:"worker_user_ns"`   // CPU time of the workers a packet, outside of the kernel
	WorkerSystemNs  float64 `json:"worker_system_ns"` // in it, what it does for others on the way included
	SoftirqNs       float64 `json:"softirq_ns"`       // CPU time of softirqs a packet, on all CPUs
	SoftirqWorkerNs float64 `json:"softirq_worker_ns"`
	SystemCalls     float64 `json:"system_calls_per_packet"`

	Hardware    map[string]float64 `json:"hardware,omitempty"` // of the workers, a packet
	HardwareWhy string             `json:"hardware_why,omitempty"`

	Sent     *uint64  `json:"sent,omitempty"` // by the generator
	Handled  uint64   `json:"handled"`        // by the workers
	Returned *uint64  `json:"returned,omitempty"`
	Drops    XSKDrops `json:"drops"`

	PeerCommand string `json:"peer_command,omitempty"`
	PeerWhy     string `json:"peer_why,omitempty"` // there is none
}

// XSKDrops are packets that were lost, by the place where, and what else the kernel and the sockets count of
// their rings.
type XSKDrops struct {
	Wire uint64 `json:"wire"` // refused by the veth queue in front of the socket

	// XDP_STATISTICS, all of it.
	RxRingFull    uint64 `json:"rx_ring_full"`
	RxDropped     uint64 `json:"rx_dropped"`      // no free frame, or longer than a frame
	FillRingEmpty uint64 `json:"fill_ring_empty"` // times; the packets are in rx_dropped
	RxInvalid     uint64 `json:"rx_invalid_descs"`
	TxInvalid     uint64 `json:"tx_invalid_descs"`
	TxRingEmpty   uint64 `json:"tx_ring_empty"` // times; no loss

	// What the sockets count themselves.
	Oversize    uint64 `json:"oversize"`
	TxTooLong   uint64 `json:"tx_too_long"`
	TxDevice    uint64 `json:"tx_device_full"` // packets that found the device's queue full
	TxNoBuffers uint64 `json:"tx_no_buffers"`  // times that the kernel was short of memory
	TxDown      uint64 `json:"tx_device_down"` // times
	TxSpurious  uint64 `json:"tx_spurious"`    // completions of frames that had not been sent
	TxAgain     uint64 `json:"tx_again"`       // system calls that left something to send; no loss
}

// A Counter is one of several, under the name that it has in JSON.
type Counter struct {
	Name  string
	Value uint64
}

// Counters lists them in order.
func (d XSKDrops) Counters() (all []Counter) {
	v := reflect.ValueOf(d)
	for i := range v.NumField() {
		all = append(all, Counter{v.Type().Field(i).Tag.Get("json"), v.Field(i).Uint()})
	}
	return all
}

// xskTotal sums up the parts.
type xskTotal struct {
	mode     xsk.Mode
	driver   string
	attempts []string
	pageSize int
	pagesWhy error

	elapsed             time.Duration
	measured            tally // in it
	handled             tally
	worker              tally // handled by workers while it was measured
	user, system        time.Duration
	softirq, softirqOwn time.Duration
	calls               uint64
	hardware            hardwareCounts
	sent, returned      tally
	drops               XSKDrops
}

// team are the workers of one part, with their sockets.
type team struct {
	rig      *xskRig
	redirect *xsk.Redirect
	workers  []*xskWorker
	umems    []*xsk.UMEM
	running  bool
}

// newTeam opens the sockets, in the mode that the first part had, if that is not the first.
func (r *xskRig) newTeam(total *xskTotal) (t *team, err error) {
	o := r.options
	t = &team{rig: r}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	mode := o.Mode
	if total.mode != xsk.Any {
		mode = total.mode
	}
	var attempts []string
	err = r.do(func() error {
		if t.redirect, err = xsk.Attach(r.device, xsk.AttachOptions{Mode: mode}); err != nil {
			return err
		}
		for _, a := range t.redirect.Attempts() {
			attempts = append(attempts, "program: "+a.String())
		}
		for q, cpu := range r.workers {
			w, err := t.open(q, cpu, mode)
			if err != nil {
				return err
			}
			for _, a := range w.socket.Attempts() {
				attempts = append(attempts, fmt.Sprintf("queue %d: %s", q, a))
			}
		}
		return nil
	})
	if err != nil {
		return t, err
	}
	if total.attempts == nil {
		first := t.workers[0]
		total.attempts, total.mode, total.driver = attempts, first.socket.Mode(), first.socket.Device().Driver
		total.pageSize, total.pagesWhy = first.umem.Pages()
	}
	return t, nil
}

// open opens the socket of a queue. Each has a UMEM of its own, as each process of a peer has.
func (t *team) open(queue, cpu int, mode xsk.Mode) (*xskWorker, error) {
	r, o := t.rig, t.rig.options
	u, err := xsk.NewUMEM(xsk.UMEMOptions{Frames: o.UMEMFrames, FrameSize: o.FrameSize, HugePages: o.HugePages, Mode: mode})
	if err != nil {
		return nil, err
	}
	t.umems = append(t.umems, u)
	pool, err := u.NewPool(u.Frames())
	if err != nil {
		return nil, err
	}
	options := xsk.SocketOptions{Rx: o.RingSize, Tx: o.RingSize, Fill: 2 * o.RingSize, Completion: o.RingSize,
		BusyPoll: xsk.BusyPoll{Time: o.BusyPoll, Budget: o.Batch}}
	w := &xskWorker{cpu: cpu, umem: u, pool: pool, batch: make([]xsk.Desc, o.Batch)}
	if o.Bench == TxPush {
		options.Rx, options.Fill = 1, 1 // nothing arrives
		w.source = newSource(r.traffic, o.Queues, r.template)
	}
	if w.socket, err = xsk.Open(u, pool, r.device, queue, options); err != nil {
		return nil, err
	}
	w.fill = 2 * o.RingSize
	if w.socket.Mode() != xsk.ZeroCopy {
		// Half of what the rx ring can take: fewer frames that go round stay in the cache. A device that takes
		// frames itself keeps as many as it likes.
		w.fill = max(o.RingSize/2, min(o.Batch, o.RingSize))
	}
	t.workers = append(t.workers, w)
	if o.Bench == TxPush {
		return w, nil
	}
	return w, t.redirect.Add(w.socket)
}

func (t *team) start() {
	loop := map[string]func(*xskWorker) error{RxDrop: (*xskWorker).drop, TxPush: (*xskWorker).push, L2Fwd: (*xskWorker).forward}[t.rig.options.Bench]
	for _, w := range t.workers {
		w.start(loop)
	}
	t.running = true
}

// read returns where the workers stand.
func (t *team) read() ([]xskReading, error) {
	all := make([]xskReading, len(t.workers))
	for i, w := range t.workers {
		var err error
		if all[i], err = w.read(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (t *team) stop() error {
	var errs []error
	if t.running {
		for _, w := range t.workers {
			errs = append(errs, w.stop())
		}
		t.running = false
	}
	return errors.Join(errs...)
}

func (t *team) close() error {
	err := t.stop()
	for _, w := range t.workers {
		w.pool.Free(w.held)
		err = errors.Join(err, w.socket.Close())
	}
	if t.redirect != nil {
		err = errors.Join(err, t.redirect.Close())
	}
	for _, u := range t.umems {
		err = errors.Join(err, u.Close())
	}
	return err
}

// xskWarmUp passes before a part is measured.
const xskWarmUp = 100 * time.Millisecond

// measure measures one part and adds it to the total. It returns the rate, 0 if nothing arrived or the
// context ended too early.
func (r *xskRig) measure(ctx context.Context, part time.Duration, total *xskTotal, live func(string)) (rate float64, err error) {
	t, err := r.newTeam(total)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	start, err := r.wire()
	if err != nil {
		return 0, err
	}
	t.start()
	if r.generator != nil && r.options.Bench != TxPush {
		r.generator.start()
		defer func() { err = errors.Join(err, r.generator.stop()) }()
	}
	sleep(ctx, min(xskWarmUp, part))
	from, err := r.look(t)
	if err != nil {
		return 0, err
	}
	to := from
	for end := from.at.Add(part); ctx.Err() == nil && time.Now().Before(end); {
		sleep(ctx, min(500*time.Millisecond, time.Until(end)))
		before := to
		if to, err = r.look(t); err != nil {
			return 0, err
		}
		live(r.say(before, to))
	}
	if err := r.drain(t); err != nil {
		return 0, err
	}
	last, err := t.read()
	if err != nil {
		return 0, err
	}
	if err := t.stop(); err != nil {
		return 0, err
	}
	end, err := r.wire()
	if err != nil {
		return 0, err
	}
	if err := total.lost(t, last, start, end); err != nil {
		return 0, err
	}
	if to.at.Sub(from.at) < 10*time.Millisecond {
		return 0, nil // interrupted
	}
	return total.add(r, from, to), nil
}

// drain stops the traffic and waits until what is under way has arrived.
func (r *xskRig) drain(t *team) error {
	if r.generator == nil {
		return nil
	}
	if err := r.generator.stop(); err != nil {
		return err
	}
	if r.options.Bench == TxPush {
		return nil
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		all, err := t.read()
		if err != nil {
			return err
		}
		left := 0
		for _, w := range all {
			left += w.rings.Rx + w.rings.Tx + w.held
		}
		if left == 0 {
			return nil
		}
	}
	return nil
}

// sleep waits, until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// xskLook is where everything stands at about one moment.
type xskLook struct {
	at      time.Time
	workers []xskReading
	back    tally // at the far end
	cpus    map[int]time.Duration
}

func (r *xskRig) look(t *team) (l xskLook, err error) {
	if r.generator != nil {
		if err := r.generator.failed(); err != nil {
			return l, err
		}
	}
	if l.workers, err = t.read(); err != nil {
		return l, err
	}
	if r.generator != nil {
		if l.back, err = r.generator.back(); err != nil {
			return l, err
		}
	}
	l.at = time.Now()
	l.cpus, err = softirqTimes()
	return l, err
}

// progress returns what was achieved between two looks: at the far end where there is one, else by the
// workers.
func (r *xskRig) progress(from, to xskLook) (done tally, took time.Duration) {
	if r.generator != nil && r.options.Bench != RxDrop {
		return to.back.minus(from.back), to.at.Sub(from.at)
	}
	return handled(from, to), to.at.Sub(from.at)
}

func handled(from, to xskLook) (done tally) {
	for i := range to.workers {
		done.packets += to.workers[i].packets - from.workers[i].packets
		done.bytes += to.workers[i].bytes - from.workers[i].bytes
	}
	return done
}

// say tells what happened between two looks, for the progress line.
func (r *xskRig) say(from, to xskLook) string {
	done, took := r.progress(from, to)
	return fmt.Sprintf("%.3f Mpps, %.2f Gbit/s", float64(done.packets)/took.Seconds()/1e6, float64(done.bytes)*8/took.Seconds()/1e9)
}

// add adds a part that was measured, and returns its rate.
func (m *xskTotal) add(r *xskRig, from, to xskLook) float64 {
	done, took := r.progress(from, to)
	m.elapsed += took
	m.measured.packets += done.packets
	m.measured.bytes += done.bytes
	mine := handled(from, to)
	m.worker.packets += mine.packets
	m.worker.bytes += mine.bytes
	for i, w := range to.workers {
		before := from.workers[i]
		m.user += w.user - before.user
		m.system += w.system - before.system
		m.calls += w.counters.Kicks + w.counters.Waits - before.counters.Kicks - before.counters.Waits
		if m.hardware.why = w.hardware.why; m.hardware.why == nil {
			for e := range m.hardware.values {
				m.hardware.values[e] += w.hardware.values[e] - before.hardware.values[e]
			}
		}
	}
	for cpu, spent := range to.cpus {
		m.softirq += spent - from.cpus[cpu]
	}
	seen := map[int]bool{}
	for _, cpu := range r.workers {
		if !seen[cpu] {
			m.softirqOwn += to.cpus[cpu] - from.cpus[cpu]
		}
		seen[cpu] = true
	}
	return float64(done.packets) / took.Seconds()
}

// wireCounts are what the bench's own veth pair has counted so far.
type wireCounts struct {
	sent, back tally
	refused    uint64
}

func (r *xskRig) wire() (c wireCounts, err error) {
	if r.generator == nil {
		return c, nil
	}
	if c.sent, err = r.generator.sent(); err != nil {
		return c, err
	}
	if c.back, err = r.generator.back(); err != nil {
		return c, err
	}
	c.refused, err = r.refused()
	return c, err
}

// lost adds what was sent, handled and lost in a part, from its first packet to its last.
func (m *xskTotal) lost(t *team, last []xskReading, start, end wireCounts) error {
	sent, back := end.sent.minus(start.sent), end.back.minus(start.back)
	m.sent.packets += sent.packets
	m.sent.bytes += sent.bytes
	m.returned.packets += back.packets
	m.returned.bytes += back.bytes
	d := &m.drops
	d.Wire += end.refused - start.refused
	for i, w := range t.workers {
		k, err := w.socket.Stats()
		if err != nil {
			return err
		}
		m.handled.packets += w.packets
		m.handled.bytes += w.bytes
		d.RxRingFull += k.RxRingFull
		d.RxDropped += k.RxDropped
		d.FillRingEmpty += k.FillEmpty
		d.RxInvalid += k.RxInvalid
		d.TxInvalid += k.TxInvalid
		d.TxRingEmpty += k.TxRingEmpty
		c := last[i].counters
		d.Oversize += c.Oversize
		d.TxTooLong += c.TxTooLong
		d.TxDevice += c.KickBusy
		d.TxNoBuffers += c.KickNoBuffers
		d.TxDown += c.KickDown
		d.TxSpurious += c.TxSpurious
		d.TxAgain += c.KickAgain
	}
	return nil
}

func (m *xskTotal) detail(r *xskRig, rate float64) *XSKDetail {
	o := r.options
	d := &XSKDetail{
		Mode: m.mode.String(), Attempts: m.attempts, Batch: o.Batch, FrameSize: o.FrameSize, RingSize: o.RingSize, UMEMFrames: o.UMEMFrames,
		PageSize: m.pageSize, BusyPoll: float64(o.BusyPoll) / 1e3, Queues: o.Queues, CPUs: r.workers, Rate: o.Rate, Pcap: o.Pcap,
		Seconds: m.elapsed.Seconds(), Packets: m.measured.packets, Bytes: m.measured.bytes,
		PacketsPerSecond: rate, BytesPerSecond: float64(m.measured.bytes) / m.elapsed.Seconds(), NsPerPacket: 1e9 / rate * float64(o.Queues),
		Handled: m.handled.packets, Drops: m.drops,
	}
	if m.pagesWhy != nil {
		d.PagesWhy = m.pagesWhy.Error()
	}
	if o.generates() && o.Pcap == "" {
		d.Flows = o.Flows
	}
	if n := float64(m.worker.packets); n > 0 {
		d.WorkerUserNs, d.WorkerSystemNs = float64(m.user)/n, float64(m.system)/n
		d.SoftirqNs, d.SoftirqWorkerNs = float64(m.softirq)/n, float64(m.softirqOwn)/n
		d.SystemCalls = float64(m.calls) / n
		if m.hardware.why == nil {
			d.Hardware = map[string]float64{}
			for e, v := range m.hardware.values {
				d.Hardware[hardwareEvents[e].name] = float64(v) / n
			}
		}
	}
	if m.hardware.why != nil {
		d.HardwareWhy = m.hardware.why.Error()
	}
	if r.generator != nil {
		if o.Bench != TxPush {
			d.Sent = &m.sent.packets
		}
		if o.Bench != RxDrop {
			d.Returned = &m.returned.packets
		}
	}
	return d
}

// softirqTimes returns how long each CPU has spent in softirqs, in steps of 10 ms (/proc/stat).
func softirqTimes() (map[int]time.Duration, error) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return nil, fmt.Errorf("read CPU times: %w", err)
	}
	defer f.Close()
	const tick = time.Second / 100 // USER_HZ is 100 on all machines
	times := map[int]time.Duration{}
	for s := bufio.NewScanner(f); s.Scan(); {
		// cpu0 user nice system idle iowait irq softirq ...
		fields := strings.Fields(s.Text())
		if len(fields) < 8 || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		cpu, err := strconv.Atoi(fields[0][3:])
		if err != nil {
			continue // the sum
		}
		n, err := strconv.ParseInt(fields[7], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read CPU times: %w", err)
		}
		times[cpu] = time.Duration(n) * tick
	}
	return times, nil
}
