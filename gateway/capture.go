package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/cbpf"
)

const (
	captureMedia    = "application/x-pcapng"
	captureID       = "Softdpu-Capture" // header: what DELETE /v1/capture wants
	captureFarewell = 2 * time.Second   // that whoever captures has to read the end
)

// CaptureRequest is the body of POST /v1/capture.
type CaptureRequest struct {
	Ports   []string `json:"ports,omitempty"`    // none: all
	Points  []string `json:"points,omitempty"`   // of in, out, drop; none: in
	Filter  string   `json:"filter,omitempty"`   // as people wrote it; the program is what counts
	Program string   `json:"program,omitempty"`  // as `tcpdump -ddd -y EN10MB FILTER` prints it; "" takes every packet
	Snaplen int      `json:"snaplen,omitempty"`  // bytes of a frame; 0: 65,536, which is the most
	Count   uint64   `json:"count,omitempty"`    // packets after which it ends; 0: no limit
	Seconds float64  `json:"duration,omitempty"` // seconds after which it ends; 0: no limit
}

// CaptureStatus is the capture that runs.
type CaptureStatus struct {
	ID       uint64    `json:"id"`
	UID      uint32    `json:"uid"` // of whoever captures
	PID      int32     `json:"pid"`
	Since    time.Time `json:"since"`
	Ports    []string  `json:"ports"` // none: all
	Points   []string  `json:"points"`
	Filter   string    `json:"filter"`
	Captured uint64    `json:"captured"` // packets
	Lost     uint64    `json:"lost"`     // packets that the filter took and that found no room
}

// CapturePoints are the points at which packets can be captured.
var CapturePoints = []string{"in", "out", "drop"}

// captures serves packets, to one at a time.
type captures struct {
	reporter *reporter
	log      *slog.Logger
	closing  context.Context // done: the server stops

	mu      sync.Mutex
	last    uint64 // id
	running *capturing
}

// capturing is a capture that runs. The status changes under captures.mu.
type capturing struct {
	status CaptureStatus
	end    context.CancelFunc
}

// status returns the capture that runs, nil if there is none.
func (c *captures) status() *CaptureStatus {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		return nil
	}
	s := c.running.status
	return &s
}

// check reads a request into what the plane is asked for.
func (q *CaptureRequest) check(plane *dataplane.Plane) (o dataplane.CaptureOptions, wrong *apiError) {
	if len(q.Points) == 0 {
		q.Points = CapturePoints[:1]
	}
	for _, point := range q.Points {
		switch point {
		case "in":
			o.Points.In = true
		case "out":
			o.Points.Out = true
		case "drop":
			o.Points.Drop = true
		default:
			return o, &apiError{Error: fmt.Sprintf("there is no point %q", shortened(point)), Hint: fmt.Sprintf("the points are %q", CapturePoints)}
		}
	}
	var err error
	if o.Ports, err = plane.PortIDs(q.Ports); err != nil {
		return o, &apiError{Error: err.Error(), Hint: "name ports as the configuration does"}
	}
	if q.Snaplen < 0 || q.Snaplen > dataplane.CaptureMax {
		return o, &apiError{Error: fmt.Sprintf("there are no %d bytes of a frame", q.Snaplen), Hint: fmt.Sprintf("snaplen can be from 1 to %d", dataplane.CaptureMax)}
	}
	if q.Seconds < 0 || q.Seconds > (1<<31) {
		return o, &apiError{Error: fmt.Sprintf("there are no %v seconds to capture", q.Seconds), Hint: "duration is a number of seconds, 0 for no limit"}
	}
	o.Bytes = q.Snaplen
	switch {
	case q.Program != "":
		if o.Filter, err = cbpf.Parse(q.Program); err != nil {
			return o, &apiError{Error: err.Error(), Hint: "the gateway runs what `tcpdump -ddd -y EN10MB FILTER` prints"}
		}
	case strings.TrimSpace(q.Filter) != "":
		return o, &apiError{Error: "the filter comes without its program", Hint: "the gateway runs what `tcpdump -ddd -y EN10MB FILTER` prints"}
	}
	return o, nil
}

// enter admits a capture, or says who has it.
func (c *captures) enter(ctx context.Context, q *CaptureRequest, end context.CancelFunc) (*capturing, *CaptureStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil {
		s := c.running.status
		return nil, &s
	}
	c.last++
	cred, _ := peerCred(ctx)
	c.running = &capturing{end: end, status: CaptureStatus{
		ID: c.last, UID: cred.Uid, PID: cred.Pid, Since: time.Now(),
		Ports: append([]string{}, q.Ports...), Points: q.Points, Filter: q.Filter,
	}}
	return c.running, nil
}

func (c *captures) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = nil
}

// refuseBusy says who captures.
func refuseBusy(w http.ResponseWriter, s *CaptureStatus) {
	process := ""
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", s.PID)); err == nil {
		process = fmt.Sprintf(" (%s)", strings.TrimSpace(string(comm)))
	}
	refuse(w, http.StatusConflict, apiError{
		Error: fmt.Sprintf("process %d%s of user %d has been capturing since %s, and there is one capture at a time", s.PID, process, s.UID, s.Since.Format(time.TimeOnly)),
		Hint:  fmt.Sprintf("end that, or ask for its end: DELETE /v1/capture?id=%d", s.ID),
	})
}

// start answers POST /v1/capture by a stream of pcapng, until one of the limits, an end of the connection,
// or stop.
func (c *captures) start(w http.ResponseWriter, req *http.Request) {
	var q CaptureRequest
	d := json.NewDecoder(req.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil && !errors.Is(err, io.EOF) {
		refuse(w, http.StatusBadRequest, apiError{Error: fmt.Sprintf("read what to capture: %v", err), Hint: "send a CaptureRequest of GET /v1/openapi.json"})
		return
	}
	options, wrong := q.check(c.reporter.plane)
	if wrong != nil {
		refuse(w, http.StatusBadRequest, *wrong)
		return
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)()
	if q.Seconds > 0 {
		var over context.CancelFunc
		ctx, over = context.WithTimeout(ctx, time.Duration(q.Seconds*float64(time.Second)))
		defer over()
	}
	run, busy := c.enter(req.Context(), &q, cancel)
	if busy != nil {
		refuseBusy(w, busy)
		return
	}
	defer c.leave()
	capture, err := c.reporter.plane.Capture(options)
	if err != nil {
		refuse(w, http.StatusInternalServerError, apiError{Error: err.Error(), Hint: "the log of softdpu may say more"})
		return
	}
	log := c.log.With("capture", run.status.ID, "uid", run.status.UID, "pid", run.status.PID)
	log.Info("capture begins", "ports", q.Ports, "points", q.Points, "filter", q.Filter)
	defer func() {
		if err := errors.Join(capture.Stop(), capture.Close()); err != nil {
			log.Error("the end of a capture failed", "error", err)
		}
	}()
	control := http.NewResponseController(w)
	defer context.AfterFunc(ctx, func() { control.SetWriteDeadline(time.Now().Add(captureFarewell)) })()
	w.Header().Set("Content-Type", captureMedia)
	w.Header().Set(captureID, strconv.FormatUint(run.status.ID, 10))
	s := newCaptureStream(c, run, capture, w)
	s.limit, s.control = q.Count, control
	err = s.run(ctx, options)
	log.Info("capture ends", "captured", s.total, "lost", s.lost, "error", err)
	if err != nil {
		panic(http.ErrAbortHandler) // the answer has begun: only breaking it off tells the reader
	}
}

// stop answers DELETE /v1/capture?id=N: the stream of that capture comes to its end.
func (c *captures) stop(w http.ResponseWriter, req *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := req.Form.Get("id")
	if c.running == nil || strconv.FormatUint(c.running.status.ID, 10) != id {
		refuse(w, http.StatusNotFound, apiError{Error: fmt.Sprintf("there is no capture %q", shortened(id)), Hint: "GET /v1/status names the one that runs"})
		return
	}
	c.running.end()
	s := c.running.status
	answer(w, func() (*CaptureStatus, error) { return &s, nil })
}

func (c *captures) count(run *capturing, total, lost uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	run.status.Captured, run.status.Lost = total, lost
}
