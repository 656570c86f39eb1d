package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable"
)

const (
	eventFlush   = time.Second
	eventBatch   = 256 << 10       // bytes that are written before the second is over
	eventBacklog = 4 << 20         // bytes that wait for a full or slow disk; what comes then is lost
	eventGrace   = 5 * time.Second // that a stop waits for the disk
	eventQueries = 1 << 16         // ICMP flows whose type is remembered for their end
)

// An eventLog appends events to a file. Nothing on the packet path waits for it, nor does ageing or
// whoever asks for the status: XDP hands events over through a ring and counts those that find no place;
// here they wait in memory for the one goroutine that waits for the disk, and those above eventBacklog
// are counted.
type eventLog struct {
	rules *inForce
	ports atomic.Pointer[[]string] // by id - 1
	table *flowtable.Table         // where flows that start are looked up; nil until there is one
	rate  int                      // flow ends a second and rule
	log   *slog.Logger
	path  string

	mu        sync.Mutex
	pending   bytes.Buffer // lines that the writer has not seen
	encoder   *json.Encoder
	backlog   int    // bytes that may wait
	unwritten int    // bytes that the writer has
	waiting   uint64 // events in both
	written   uint64
	lost      uint64
	rotations uint64
	failing   error // of the last write: the events wait
	stuck     error // of the last rotation: the events are written
	windows   map[uint32]*eventWindow
	queries   map[uint64]uint16 // type << 8 | code of ICMP, by flow id
	account   eventAccount

	wake     chan struct{} // a batch waits
	stopping chan struct{}
	stopped  chan struct{}

	file  *eventFile // the writer's, as is
	batch []byte     // what it writes
}

// eventWindow counts the flow ends of one rule in one second.
type eventWindow struct {
	second int64
	events int
}

// openEvents opens the file to append to, makes its directory, and starts the writer.
func openEvents(c *Events, r *inForce, log *slog.Logger) (*eventLog, error) {
	file, err := openEventFile(c.File, c.MaxSize, c.Keep)
	if err != nil {
		return nil, err
	}
	e := &eventLog{
		rules: r, rate: c.Rate, log: log, path: c.File, file: file, backlog: eventBacklog,
		windows: make(map[uint32]*eventWindow), queries: make(map[uint64]uint16),
		wake: make(chan struct{}, 1), stopping: make(chan struct{}), stopped: make(chan struct{}),
	}
	e.ports.Store(new([]string))
	e.encoder = json.NewEncoder(&e.pending)
	e.encoder.SetEscapeHTML(false)
	go e.run()
	return e, nil
}

// packet writes an event of XDP.
func (e *eventLog) packet(event *bpf.XDPEvent) {
	var out eveEvent
	if bpf.XDPEventKind(event.Kind) == bpf.XDPEventKindEVENT_DROP {
		out = e.rules.Names().dropEvent(event, *e.ports.Load(), newEveClock())
	} else {
		names := e.rules.Names()
		out = names.packetEvent(event, newEveClock())
		out.NAT = names.translation(e.translated(event))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recall(&out)
	e.add(&out)
}

// translated returns what becomes of the packets of a flow that starts; nil: nothing, or it has ended since.
func (e *eventLog) translated(event *bpf.XDPEvent) *flowtable.Translation {
	if e.table == nil || bpf.XDPEventKind(event.Kind) != bpf.XDPEventKindEVENT_FLOW_START || atomic.LoadInt64(&e.table.State().Aliases) == 0 {
		return nil
	}
	t := flowtable.Tuple{Family: event.Family, Proto: event.Proto, SrcPort: hostOrder(event.Sport), DstPort: hostOrder(event.Dport)}
	src, dst := eventAddress(event.Family, &event.Src), eventAddress(event.Family, &event.Dst)
	copy(t.Src[:], src.AsSlice())
	copy(t.Dst[:], dst.AsSlice())
	if f, ok := e.table.Lookup(t); ok && f.Created == event.Created && f.Tuple == t {
		return f.NAT
	}
	return nil
}

// flowEnd writes the end of a flow, unless its rule has had its share of this second. It reports
// whether it did.
func (e *eventLog) flowEnd(f *flowtable.Flow, now uint32, reason string) bool {
	clock := newEveClock()
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.windows[f.Rule]
	if w == nil {
		w = &eventWindow{}
		e.windows[f.Rule] = w
	}
	if second := clock.wall.Unix(); w.second != second {
		*w = eventWindow{second: second}
	}
	w.events++
	due := w.events <= e.rate
	if due || isICMP(f.Tuple.Proto) {
		out := e.rules.Names().endEvent(f, now, reason, clock)
		e.recall(&out)
		if due {
			e.add(&out)
		}
	}
	return due
}

// recall keeps the type of an ICMP flow, which the flow table does not, from its start to its end.
// e.mu is held.
func (e *eventLog) recall(event *eveEvent) {
	if event.EventType != eveFlowType || event.Proto != protoEVE(protoICMP) && event.Proto != protoEVE(protoICMPv6) {
		return
	}
	if event.ICMPType != nil {
		if len(e.queries) < eventQueries {
			e.queries[event.FlowID] = uint16(*event.ICMPType)<<8 | uint16(*event.ICMPCode)
		}
		return
	}
	if query, known := e.queries[event.FlowID]; known {
		delete(e.queries, event.FlowID)
		event.icmp(query)
	}
}

// write adds an event that is about no packet. They are few, and written at once: who looks for the end of
// a gateway wants to find its start.
func (e *eventLog) write(event *eveEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.add(event)
	if e.failing == nil {
		e.hurry()
	}
}

// add puts an event behind those that wait. e.mu is held.
func (e *eventLog) add(event *eveEvent) {
	if e.pending.Len()+e.unwritten >= e.backlog {
		e.lost++
		return
	}
	// Strings, numbers and addresses always have a JSON form.
	_ = e.encoder.Encode(event)
	e.waiting++
	e.account.take()
	if e.pending.Len() >= eventBatch && e.failing == nil {
		e.hurry()
	}
}

// hurry has the writer write now.
func (e *eventLog) hurry() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run writes what waits every second, and sooner if it is much, until close.
func (e *eventLog) run() {
	defer close(e.stopped)
	ticker := time.NewTicker(eventFlush)
	defer ticker.Stop()
	for {
		select {
		case <-e.stopping:
			e.drain()
			return
		case <-e.wake:
		case <-ticker.C:
		}
		e.drain()
	}
}

// drain writes what waits. It is the writer's, and holds e.mu only while it touches no file.
func (e *eventLog) drain() {
	e.mu.Lock()
	e.batch = append(e.batch, e.pending.Bytes()...)
	e.pending.Reset()
	e.unwritten = len(e.batch)
	e.mu.Unlock()

	stuck := e.file.refresh()
	taken, unrotated, err := e.file.write(e.batch)
	if stuck == nil {
		stuck = unrotated
	}
	written := uint64(bytes.Count(e.batch[:taken], []byte("\n")))
	e.batch = append(e.batch[:0], e.batch[taken:]...)

	e.mu.Lock()
	wasFailing, wasStuck := e.failing, e.stuck
	e.unwritten = len(e.batch)
	e.waiting -= written
	e.written += written
	e.account.settle(written)
	e.rotations = e.file.rotations
	e.failing, e.stuck = err, stuck
	lost := e.lost
	e.mu.Unlock()
	e.tell(wasFailing, err, wasStuck, stuck, lost)
}

// tell says once that something is wrong with the file, and once that it no longer is.
func (e *eventLog) tell(wasFailing, failing, wasStuck, stuck error, lost uint64) {
	switch {
	case failing != nil && wasFailing == nil:
		e.log.Error("events cannot be written: they wait in memory, and then are lost", "file", e.path, "error", failing)
	case failing == nil && wasFailing != nil:
		e.log.Info("events are written again", "file", e.path, "lost", lost)
	}
	switch {
	case stuck != nil && wasStuck == nil:
		e.log.Warn("events go on into the old file", "file", e.path, "error", stuck)
	case stuck == nil && wasStuck != nil:
		e.log.Info("events go into a new file again", "file", e.path)
	}
}

// close writes what is left. A disk that does not answer is not waited for longer than eventGrace.
func (e *eventLog) close() error {
	close(e.stopping)
	select {
	case <-e.stopped:
	case <-time.After(eventGrace):
		return fmt.Errorf("write events.file: the disk has not answered for %s, %d events are lost", eventGrace, e.forsake())
	}
	e.forsake()
	if err := errors.Join(e.failing, e.file.close()); err != nil {
		return fmt.Errorf("close events: %w", err)
	}
	return nil
}

// keepAccount counts from now on what would be lost if the process were killed, where the next run finds
// it, and counts what the run before has lost that way.
func (e *eventLog) keepAccount(credit *dataplane.Credit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lostBefore(e.account.open(credit, e.waiting))
}

// lostBefore counts events that the run before had and did not write. e.mu is held.
func (e *eventLog) lostBefore(n uint64) {
	e.lost += n
	if n > 0 {
		e.log.Warn("the run before was killed before it had written all events", "lost", n)
	}
}

// inheritLosses counts events of a run before of which there is nothing else.
func (e *eventLog) inheritLosses(n uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lostBefore(n)
}

// forsake counts what waits as lost, ends the account, and returns how much that is.
func (e *eventLog) forsake() (n uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n = e.waiting
	e.waiting = 0
	e.lost += n
	e.account.settle(n)
	e.account.close()
	return n
}

// status fills in what the log knows of its file.
func (e *eventLog) status(s *EventStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.File, s.Written, s.Waiting, s.Lost, s.Rotations = e.path, e.written, e.waiting, e.lost, e.rotations
	if err := errors.Join(e.failing, e.stuck); err != nil {
		s.Error = err.Error()
	}
}
