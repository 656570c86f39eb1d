package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/softdpu/softdpu/bpf"
)

const (
	latencyFrame = 256     // bytes
	latencyFlows = 1024    // frames of the gateway's flows in turn, the first few twice
	latencyMost  = 1 << 21 // frames in one measurement
)

// journeys is the memory in which both ends of a lane write down when frames left and arrived. One is
// enough for all lanes, since they take turns.
type journeys struct {
	maps               map[string]*ebpf.Map
	due, sent, arrived *ebpf.Memory
}

func newJourneys() (*journeys, error) {
	spec, err := bpf.LoadLatency()
	if err != nil {
		return nil, err
	}
	j := &journeys{maps: map[string]*ebpf.Map{}}
	for _, m := range []struct {
		name    string
		entries uint32
		memory  **ebpf.Memory
	}{{bpf.LatencyMapDue, latencyMost, &j.due}, {bpf.LatencyMapSent, latencyMost, &j.sent}, {bpf.LatencyMapArrived, latencyMost, &j.arrived}, {bpf.LatencyMapPaceState, 1, nil}} {
		spec.Maps[m.name].MaxEntries = m.entries
		made, err := ebpf.NewMap(spec.Maps[m.name])
		if err != nil {
			j.close()
			return nil, fmt.Errorf("make map %s: %w", m.name, err)
		}
		j.maps[m.name] = made
		if m.memory == nil {
			continue
		}
		if *m.memory, err = made.Memory(); err != nil {
			j.close()
			return nil, fmt.Errorf("map %s into memory: %w", m.name, err)
		}
	}
	return j, nil
}

func (j *journeys) close() {
	for _, m := range j.maps {
		m.Close()
	}
}

func (j *journeys) state() (s bpf.LatencyPacing, err error) {
	if err := j.maps[bpf.LatencyMapPaceState].Lookup(uint32(0), &s); err != nil {
		return s, fmt.Errorf("read pace: %w", err)
	}
	return s, nil
}

// begin prepares a measurement of frames that are due at given times, ns after the first.
func (j *journeys) begin(due []uint64) error {
	if len(due) == 0 || len(due) > latencyMost {
		return fmt.Errorf("prepare %d frames: a measurement has 1 to %d", len(due), latencyMost)
	}
	b := make([]byte, 8*len(due))
	for _, m := range []*ebpf.Memory{j.sent, j.arrived} {
		if _, err := m.WriteAt(b, 0); err != nil {
			return fmt.Errorf("reset times: %w", err)
		}
	}
	for i, at := range due {
		binary.NativeEndian.PutUint64(b[8*i:], at)
	}
	if _, err := j.due.WriteAt(b, 0); err != nil {
		return fmt.Errorf("write schedule: %w", err)
	}
	if err := j.maps[bpf.LatencyMapPaceState].Put(uint32(0), bpf.LatencyPacing{Frames: uint64(len(due))}); err != nil {
		return fmt.Errorf("reset pace: %w", err)
	}
	return nil
}

// passage is what one measurement of a lane found.
type passage struct {
	sent, received, lost, doubled uint64
	latency                       histogram // from when frames left to their arrival
	sinceDue                      histogram // from when frames were due to their arrival
	late                          histogram // from when frames were due to their leaving
}

// read makes a passage of what both ends wrote down, without the first frames.
func (j *journeys) read(due []uint64, warmup int) (*passage, error) {
	s, err := j.state()
	if err != nil {
		return nil, err
	}
	if s.Strange > 0 {
		return nil, fmt.Errorf("%d frames arrived that were never sent", s.Strange)
	}
	sent, arrived := make([]uint64, len(due)), make([]uint64, len(due))
	b := make([]byte, 8*len(due))
	for _, times := range []struct {
		memory *ebpf.Memory
		of     []uint64
	}{{j.sent, sent}, {j.arrived, arrived}} {
		if _, err := times.memory.ReadAt(b, 0); err != nil {
			return nil, fmt.Errorf("read times: %w", err)
		}
		for i := range times.of {
			times.of[i] = binary.NativeEndian.Uint64(b[8*i:])
		}
	}
	p := newPassage(s.Begin, due[warmup:], sent[warmup:], arrived[warmup:])
	p.doubled = s.Doubled
	return p, nil
}

// newPassage makes a passage of the times of every frame in ns: due after begin, sent, arrived or 0.
func newPassage(begin uint64, due, sent, arrived []uint64) *passage {
	p := &passage{sent: uint64(len(due))}
	for i, at := range due {
		at += begin
		p.late.add(int64(sent[i] - at))
		if arrived[i] == 0 {
			p.lost++
			continue
		}
		p.received++
		p.latency.add(int64(arrived[i] - sent[i]))
		p.sinceDue.add(int64(arrived[i] - at))
	}
	return p
}

// at returns a percentile of h, the times of what arrived, over all frames that were sent: what was lost
// is later than anything that came.
func (p *passage) at(h *histogram, percent float64) float64 {
	d, ok := h.at(percent/100, p.lost)
	if !ok {
		d = latencyPatience
	}
	return microseconds(d)
}

func (p *passage) merge(o *passage) {
	p.sent, p.received, p.lost, p.doubled = p.sent+o.sent, p.received+o.received, p.lost+o.lost, p.doubled+o.doubled
	p.latency.merge(&o.latency)
	p.sinceDue.merge(&o.sinceDue)
	p.late.merge(&o.late)
}

// core is what keeps the gateway's core at work.
type core interface {
	// poll has CPU 1 forward while frames are sent, for a span from the first on, and a moment more.
	poll(j *journeys, span time.Duration) error
	close() error
}

// pollAfter is for how long the gateway's core goes on after the last frame was due.
const pollAfter = 3 * time.Millisecond

// onSender tells whether a part of the gateway runs on the core that sends, so that it can hold the sender up.
func (l *lane) onSender() bool {
	_, ok := l.core.(*workerCore)
	return ok
}

// openCore opens what is the gateway's core of this lane.
func (l *lane) openCore() (core, error) {
	if f, ok := l.forwarder.(softdpuForwarder); ok && f.worker != nil {
		f.worker.rests.Store(true)
		return f.worker, nil
	}
	f, ok := l.forwarder.(*wiresForwarder)
	ok = ok && f.redirect != ""
	if ok { // the poller learns its NAPI from a packet to the gateway, which redirects all
		if err := errors.Join(f.stop(), f.gw.Do(func() error { return groOn("lan", "wan") })); err != nil {
			return nil, err
		}
	}
	p, err := l.openPoller()
	if err != nil {
		return nil, err
	}
	if ok {
		if err := f.gw.Do(func() error { return f.attachRedirect(f.redirect) }); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	return p, nil
}

// lane is a running contender with both ends of its wire.
type lane struct {
	*load
	name     string
	journeys *journeys
	core     core

	all    passage     // of all rounds
	rounds [][]float64 // us from when frames left, by latencyShares
	due    [][]float64 // us from when frames were due, likewise
}

func startLane(prefix string, c *contestant, j *journeys) (l *lane, err error) {
	l = &lane{name: c.name, journeys: j, rounds: make([][]float64, len(latencyShares)), due: make([][]float64, len(latencyShares))}
	if l.load, err = newLoad(prefix, c); err != nil {
		return nil, err
	}
	if err = l.client.Do(l.loadPace); err == nil {
		err = l.server.Do(l.attachStamp)
	}
	if err == nil {
		l.core, err = l.openCore()
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *lane) loadPace() error {
	spec, err := bpf.LoadLatency()
	if err != nil {
		return err
	}
	spec.Maps[bpf.LatencyMapFlows].MaxEntries = latencyFlows
	for name, m := range l.journeys.maps {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	if err := spec.Variables[bpf.LatencyVarHeadersMask].Set(uint32(latencyFlows - 1)); err != nil {
		return err
	}
	if l.coll, err = loadBench(spec, l.journeys.maps, bpf.LatencyProgPace, bpf.LatencyProgStamp); err != nil {
		return err
	}
	for i := range latencyFlows {
		if err := l.setFlow(i, gatewayConn(i%gatewayFlows)); err != nil {
			return err
		}
	}
	index, err := deviceIndex("c0")
	if err != nil {
		return err
	}
	return l.coll.Maps[bpf.LatencyMapWire].Put(uint32(0), index)
}

// setFlow makes c's frame what is sent in place i.
func (l *lane) setFlow(i int, c conn) error {
	w := l.wire()
	l.frame = appendFrame(nil, c, frameSpec{dstMAC: w.lanMAC, srcMAC: w.client, size: latencyFrame})
	l.frame[40], l.frame[41] = 0, 0 // no checksum, which the frame's number would make wrong
	var h bpf.LatencyHeaders
	for i := range h.Word {
		h.Word[i] = binary.NativeEndian.Uint32(l.frame[4*i:])
	}
	if err := l.coll.Maps[bpf.LatencyMapFlows].Put(uint32(i), h); err != nil {
		return fmt.Errorf("set frame %d: %w", i, err)
	}
	return nil
}

// sendOne sends one packet of another connection than those that are measured.
func (l *lane) sendOne(c conn) error {
	if err := l.setFlow(0, c); err != nil {
		return err
	}
	if err := l.journeys.begin([]uint64{0}); err != nil {
		return err
	}
	return errors.Join(l.send(0), l.setFlow(0, gatewayConn(0)))
}

func (l *lane) attachStamp() error {
	index, err := deviceIndex("s0")
	if err != nil {
		return err
	}
	l.sink, err = link.AttachXDP(link.XDPOptions{Program: l.coll.Programs[bpf.LatencyProgStamp], Interface: int(index), Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("attach stamp to s0: %w", err)
	}
	return nil
}

// latencyLead is how long after the start of pace the first frame is due: LEAD in latency.c.
const latencyLead = 20 * time.Millisecond

// latencyPatience is how long after the last frame was due a frame may still arrive; then it is lost.
const latencyPatience = 200 * time.Millisecond

// pass sends a frame at each of the times in due, ns after the first, and waits for what arrives. The first
// frames, as many as warmup says, are not counted.
func (l *lane) pass(due []uint64, warmup int) (*passage, error) {
	if err := l.journeys.begin(due); err != nil {
		return nil, err
	}
	span := time.Duration(due[len(due)-1])
	polled := make(chan error, 1)
	go func() { polled <- l.core.poll(l.journeys, span) }()
	err := l.send(span)
	if err := errors.Join(err, <-polled); err != nil {
		return nil, err
	}
	s, err := l.journeys.state()
	if err == nil && s.Next < s.Frames {
		err = fmt.Errorf("only %d of %d frames were sent", s.Next, s.Frames)
	}
	for end := time.Now().Add(latencyPatience); err == nil && s.Received < s.Frames && time.Now().Before(end); s, err = l.journeys.state() {
		time.Sleep(2 * time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	return l.journeys.read(due, warmup)
}

// send runs pace on CPU 0 until all frames have left.
func (l *lane) send(span time.Duration) error {
	unpin, err := pin(0)
	if err != nil {
		return err
	}
	defer unpin()
	normal, err := realtime()
	if err != nil {
		return err
	}
	defer normal()
	begun, asked := false, 0
	left := func() time.Duration {
		s, err := l.journeys.state()
		if err != nil || s.Next == s.Frames || asked > 5000 {
			return 0
		}
		asked++
		if s.Begin != 0 && !begun {
			begun = true
			return latencyLead + span
		}
		return time.Millisecond
	}
	return sendUntil(l.coll.Programs[bpf.LatencyProgPace], l.frame, 0, 1, math.MaxUint32, left)
}

// latencyWarmup is the part of a measurement, at its beginning, that does not count. Contenders take turns,
// so that a lane was idle for seconds: its caches are cold, its flows' routes are due to be looked up again,
// and a hypervisor may have taken its memory away: touching such a page took 130 us on the machine of the
// documented figures, and a tenth of all pages were such after half a second.
const latencyWarmup = 50 * time.Millisecond

// warmed returns a schedule of frames at a rate for a time, and how many of them come before it, to warm up.
func warmed(rate float64, d time.Duration, random *rand.Rand) (due []uint64, warmup int) {
	due = randomly(rate, latencyWarmup+d, random)
	return due, min(int(rate*latencyWarmup.Seconds()), len(due)-1)
}

// randomly returns when frames are due that come independently of each other, at a mean rate in frames
// a second, for a time: a Poisson process, as RFC 2330 (11.1.1) recommends for sampling.
func randomly(rate float64, d time.Duration, random *rand.Rand) []uint64 {
	due := make([]uint64, min(max(int(rate*d.Seconds()), 1), latencyMost))
	at := 0.0
	for i := range due {
		due[i] = uint64(at)
		at += random.ExpFloat64() * 1e9 / rate
	}
	return due
}

// add counts a round.
func (l *lane) add(p *passage) {
	l.all.merge(p)
	for i, s := range latencyShares {
		l.rounds[i] = append(l.rounds[i], p.at(&p.latency, s.percent))
		l.due[i] = append(l.due[i], p.at(&p.sinceDue, s.percent))
	}
}

func (l *lane) histogram() Histogram {
	h := Histogram{Name: l.name, Unit: "us", Sent: l.all.sent, Received: l.all.received, Lost: l.all.lost, Doubled: l.all.doubled, Buckets: l.all.latency.buckets()}
	for _, s := range latencyShares {
		late, _ := l.all.late.at(s.percent/100, 0)
		h.Percentiles = append(h.Percentiles, Percentile{s.percent, l.all.at(&l.all.latency, s.percent), l.all.at(&l.all.sinceDue, s.percent), microseconds(late)})
	}
	return h
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// close takes the lane down.
func (l *lane) close() error {
	err := l.load.close()
	if l.core != nil {
		err = errors.Join(err, l.core.close())
	}
	return err
}
