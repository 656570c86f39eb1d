package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/cbpf"
	"github.com/softdpu/softdpu/gateway/pcapng"
)

const (
	captureMedia    = "application/x-pcapng"
	captureID       = "Softdpu-Capture" // header: what DELETE /v1/capture wants
	captureBuffer   = 64 << 10          // bytes that go to whoever captures at once
	captureTell     = time.Second       // between statistics in the stream
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

const portIDs = 256

// capturePort is a port as a capture shows it.
type capturePort struct {
	name      string
	captured  bool
	number    int    // of its interface
	delivered uint64 // packets
}

// captureStream writes a capture as pcapng.
type captureStream struct {
	captures *captures
	of       *capturing
	capture  *dataplane.Capture
	buffer   *bufio.Writer
	out      *pcapng.Writer // into the buffer
	control  *http.ResponseController
	limit    uint64
	rules    *inForce

	ports    [portIDs]capturePort // by id
	total    uint64
	lost     uint64
	start    time.Time
	offset   time.Duration // of the wall clock from that of packets
	comments map[captureFate]string
	named    *Ruleset // by whom the comments name rules and zones
}

var errCaptured = errors.New("as many as were asked for")

func newCaptureStream(c *captures, run *capturing, capture *dataplane.Capture, w io.Writer) *captureStream {
	buffer := bufio.NewWriterSize(w, captureBuffer)
	return &captureStream{
		captures: c, of: run, capture: capture, buffer: buffer, out: pcapng.NewWriter(buffer), rules: c.reporter.rules,
		start:    time.Now(),
		comments: make(map[captureFate]string),
	}
}

// flush has the reader see what has been written.
func (s *captureStream) flush() error {
	s.captures.count(s.of, s.total, s.lost)
	if s.buffer.Buffered() == 0 {
		return nil
	}
	if err := s.buffer.Flush(); err != nil {
		return err
	}
	return s.control.Flush()
}

// run writes until ctx is done, and then what is left.
func (s *captureStream) run(ctx context.Context, o dataplane.CaptureOptions) error {
	if err := s.begin(o); err != nil {
		return err
	}
	told := time.Now()
	var err error
	for err == nil && ctx.Err() == nil {
		s.setClock()
		err = s.capture.Read(s.packet)
		if err == nil && time.Since(told) >= captureTell {
			err = s.statistics()
			told = time.Now()
		}
		if err == nil {
			err = s.flush()
		}
	}
	stopErr := s.capture.Stop()
	if err == nil {
		err = s.capture.Drain(s.packet)
	}
	if errors.Is(err, errCaptured) {
		err = nil
	}
	return errors.Join(err, stopErr, s.statistics(), s.flush())
}

// begin writes what the capture is and which ports there are.
func (s *captureStream) begin(o dataplane.CaptureOptions) error {
	r := s.captures.reporter
	epoch, _ := r.plane.Epoch()
	interfaces := 0
	comment := fmt.Sprintf("points=%s epoch=%d", strings.Join(s.of.status.Points, ","), epoch)
	errs := []error{s.out.Section(pcapng.Section{Application: "softdpu " + r.version, OS: "Linux " + kernelRelease(), Comment: comment})}
	for _, p := range r.plane.Ports() {
		at := &s.ports[p.ID]
		at.name = p.Name
		if len(o.Ports) > 0 && !slices.Contains(o.Ports, p.ID) {
			continue
		}
		at.captured, at.number = true, interfaces
		interfaces++
		errs = append(errs, s.out.Interface(pcapng.Interface{
			Name: p.Name, Description: "device " + p.Device, Filter: s.of.status.Filter, Snaplen: uint32(snaplen(o)),
		}))
	}
	return errors.Join(append(errs, s.flush())...)
}

func snaplen(o dataplane.CaptureOptions) int {
	if o.Bytes == 0 {
		return dataplane.CaptureMax
	}
	return o.Bytes
}

// setClock compares the clock of packets with that of people, which may be set.
func (s *captureStream) setClock() {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) == nil {
		s.offset = time.Duration(time.Now().UnixNano() - now.Nano())
	}
}

// packet writes one.
func (s *captureStream) packet(head *bpf.XDPTapped, frame []byte) error {
	at := &s.ports[head.Port]
	if !at.captured {
		return fmt.Errorf("capture: a packet came by a port %d that is not captured", head.Port)
	}
	p := pcapng.Packet{
		Interface: at.number, Time: time.Unix(0, int64(head.Time)).Add(s.offset), Data: frame, Length: int(head.Length),
		Direction: pcapng.Inbound, Comment: s.comment(head),
	}
	if head.Guard != 0 || bpf.XDPTapPoint(head.Point) == bpf.XDPTapPointTAP_OUT {
		p.Direction = pcapng.Outbound
	}
	if head.VlanProto != 0 && len(frame) >= 12 {
		tag := networkOrder(head.VlanProto)
		p.Data = slices.Concat(frame[:12], tag[:], []byte{byte(head.VlanTci >> 8), byte(head.VlanTci)}, frame[12:])
		p.Length += 4
	}
	if err := s.out.Packet(&p); err != nil {
		return err
	}
	at.delivered++
	s.total++
	if s.total == s.limit {
		return errCaptured
	}
	return nil
}

func (c *captures) count(run *capturing, total, lost uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	run.status.Captured, run.status.Lost = total, lost
}

// networkOrder returns the bytes of a number that stands in memory as in the packet.
func networkOrder(v uint16) [2]byte { return [2]byte{byte(v), byte(v >> 8)} }

// statistics writes what became of packets, of each port.
func (s *captureStream) statistics() error {
	counts, err := s.capture.Counts()
	if err != nil {
		return err
	}
	now := time.Now()
	s.lost = 0
	for id := range s.ports {
		at, n := &s.ports[id], counts[min(id, len(counts)-1)]
		if !at.captured {
			continue
		}
		s.lost += n.Lost
		err = errors.Join(err, s.out.Statistics(pcapng.Statistics{
			Interface: at.number, Start: s.start, End: now,
			Received: n.Seen, Accepted: n.Matched, Dropped: n.Lost, Delivered: at.delivered,
		}))
	}
	return err
}
