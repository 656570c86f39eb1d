package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

const (
	eventFlush  = time.Second
	eventBuffer = 256 << 10 // bytes kept before they are written
)

// An eventLog appends events to a file. Nothing on the packet path waits for it: XDP hands events over
// through a ring and counts those that find no place; what cannot be written here is counted too.
type eventLog struct {
	rules *inForce
	rate  int // flow ends a second and rule
	log   *slog.Logger

	mu       sync.Mutex
	file     *os.File
	buffer   bytes.Buffer
	encoder  *json.Encoder
	buffered uint64 // events in buffer
	written  uint64
	lost     uint64 // that the file did not take
	torn     bool   // the file ends inside a line
	failing  error  // of the last write
	windows  map[uint32]*eventWindow
}

// eventWindow counts the flow ends of one rule in one second.
type eventWindow struct {
	second int64
	events int
}

// openEvents opens the file to append to, and makes its directory.
func openEvents(c *Events, r *inForce, log *slog.Logger) (*eventLog, error) {
	if err := os.MkdirAll(filepath.Dir(c.File), 0o750); err != nil {
		return nil, fmt.Errorf("make the directory of events.file: %w", err)
	}
	f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open events.file: %w", err)
	}
	e := &eventLog{rules: r, rate: c.Rate, log: log, file: f, windows: make(map[uint32]*eventWindow)}
	e.encoder = json.NewEncoder(&e.buffer)
	e.encoder.SetEscapeHTML(false)
	return e, nil
}

// packet writes an event of XDP.
func (e *eventLog) packet(event *bpf.XDPEvent) {
	e.write(e.rules.Names().packetEvent(event, newEveClock()))
}

// flowEnd writes the end of a flow, unless its rule has had its share of this second. It reports
// whether it did.
func (e *eventLog) flowEnd(f *flowtable.Flow, now uint32, reason string) bool {
	clock := newEveClock()
	e.mu.Lock()
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
	e.mu.Unlock()
	if due {
		e.write(e.rules.Names().endEvent(f, now, reason, clock))
	}
	return due
}

func (e *eventLog) write(event eveEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// Strings, numbers and addresses always have a JSON form.
	_ = e.encoder.Encode(event)
	e.buffered++
	if e.buffer.Len() >= eventBuffer {
		e.flush()
	}
}

// flush writes the buffer. What a full or broken disk does not take is lost and counted: waiting for it
// would fill the ring behind. e.mu is held.
func (e *eventLog) flush() {
	if e.buffered == 0 {
		return
	}
	var err error
	if e.torn {
		if _, err = e.file.Write([]byte("\n")); err == nil {
			e.torn = false
		}
	}
	n := 0
	if err == nil {
		n, err = e.file.Write(e.buffer.Bytes())
	}
	whole := uint64(bytes.Count(e.buffer.Bytes()[:n], []byte("\n")))
	e.torn = e.torn || n > 0 && e.buffer.Bytes()[n-1] != '\n'
	e.written += whole
	e.lost += e.buffered - whole
	switch {
	case err != nil && e.failing == nil:
		e.log.Error("events are lost", "file", e.file.Name(), "error", err)
	case err == nil && e.failing != nil:
		e.log.Info("events are written again", "file", e.file.Name(), "lost", e.lost)
	}
	e.failing = err
	e.buffer.Reset()
	e.buffered = 0
}

// run flushes every second until ctx is done.
func (e *eventLog) run(ctx context.Context) {
	ticker := time.NewTicker(eventFlush)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			e.mu.Lock()
			e.flush()
			e.mu.Unlock()
		}
	}
}

// close writes what is left.
func (e *eventLog) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flush()
	if err := errors.Join(e.failing, e.file.Close()); err != nil {
		return fmt.Errorf("write events.file: %w", err)
	}
	return nil
}

// counts returns how many events were written, and how many the file did not take.
func (e *eventLog) counts() (written, lost uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.written + e.buffered, e.lost
}
