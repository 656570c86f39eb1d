package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/gateway/pcapng"
)

const (
	captureBuffer = 64 << 10    // bytes that go to whoever captures at once
	captureTell   = time.Second // between statistics in the stream
)

const portIDs = 256

// capturePort is a port as a capture shows it.
type capturePort struct {
	name      string
	gone      bool // it is no more, and packets of whoever gets its id are not those that were asked for
	captured  bool
	number    int                    // of its interface
	delivered uint64                 // packets
	before    dataplane.CaptureCount // what another port of its id counted
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
	snaplen  uint32
	rules    *inForce

	ports      [portIDs]capturePort // by id
	known      *Ruleset             // in force when they were looked at
	interfaces int
	total      uint64
	lost       uint64
	start      time.Time
	offset     time.Duration // of the wall clock from that of packets
	comments   map[captureFate]string
	named      *Ruleset // by whom the comments name rules and zones
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
		if err = s.follow(o); err == nil {
			err = s.capture.Read(s.packet)
		}
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
	s.snaplen = uint32(snaplen(o))
	comment := fmt.Sprintf("points=%s epoch=%d", strings.Join(s.of.status.Points, ","), epoch)
	errs := []error{s.out.Section(pcapng.Section{Application: "softdpu " + r.version, OS: "Linux " + kernelRelease(), Comment: comment})}
	s.known = s.rules.Load()
	for _, p := range r.plane.Ports() {
		s.ports[p.ID].name = p.Name
		if len(o.Ports) == 0 || slices.Contains(o.Ports, p.ID) {
			errs = append(errs, s.describe(&p))
		}
	}
	return errors.Join(append(errs, s.flush())...)
}

// describe writes the interface that stands for a port.
func (s *captureStream) describe(p *dataplane.Port) error {
	s.ports[p.ID] = capturePort{name: p.Name, captured: true, number: s.interfaces, before: s.ports[p.ID].before}
	s.interfaces++
	return s.out.Interface(pcapng.Interface{
		Name: p.Name, Description: "device " + p.Device, Filter: s.of.status.Filter, Snaplen: s.snaplen,
	})
}

// follow looks at the ports anew once another policy is in force: one may have another name, and the id of one
// that is no more may be another's.
func (s *captureStream) follow(o dataplane.CaptureOptions) error {
	now := s.rules.Load()
	if now == s.known {
		return nil
	}
	s.known = now
	names := make(map[uint8]string)
	for _, p := range s.captures.reporter.plane.Ports() {
		names[p.ID] = p.Name
	}
	told := false
	for id := range s.ports {
		at, name := &s.ports[id], names[uint8(id)]
		if at.name == name {
			continue
		}
		if at.captured && !told {
			told = true
			if err := s.statistics(); err != nil { // the last of those that were
				return err
			}
		}
		at.gone = at.gone || at.captured && name == "" && len(o.Ports) > 0
		if at.captured && name != "" && !at.gone {
			counts, err := s.capture.Counts()
			if err != nil {
				return err
			}
			at.captured, at.before = false, counts[id]
		}
		at.name = name
	}
	return nil
}

// meet describes a port that was not there when the capture began.
func (s *captureStream) meet(id uint8) error {
	for _, p := range s.captures.reporter.plane.Ports() {
		if p.ID == id {
			return s.describe(&p)
		}
	}
	return fmt.Errorf("capture: a packet came by port %d, which there is not", id)
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
	if at.gone {
		return nil
	}
	if !at.captured {
		if err := s.meet(head.Port); err != nil {
			return err
		}
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
	for id := range counts {
		at, n := &s.ports[id], &counts[id]
		s.lost += n.Lost
		if !at.captured {
			continue
		}
		err = errors.Join(err, s.out.Statistics(pcapng.Statistics{
			Interface: at.number, Start: s.start, End: now, Delivered: at.delivered,
			Received: n.Seen - at.before.Seen, Accepted: n.Matched - at.before.Matched, Dropped: n.Lost - at.before.Lost,
		}))
	}
	return err
}
