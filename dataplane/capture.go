package dataplane

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/cbpf"
	"github.com/softdpu/softdpu/flowtable"
)

const (
	// CaptureMax is the most of a frame that a capture copies, in bytes.
	CaptureMax = 65536

	captureRing  = 16 << 20 // bytes of packets that wait for their reader
	captureBatch = 4096     // packets
	// Between two looks at the ring: nobody wakes the reader, and each look takes the packet path's time.
	captureWait  = 50 * time.Millisecond
	captureRush  = 5 * time.Millisecond // while it fills faster than captureMuch in that time
	captureMuch  = captureRing / 16
	captureGrace = 100 * time.Millisecond // for programs under way, where the kernel cannot be asked
)

// ErrCapturing says that a capture is running: there is one at a time.
var ErrCapturing = errors.New("a capture is running")

// Points say at which points packets are captured. A packet is captured once at its arrival, though it is
// dropped there.
type Points struct {
	In   bool // as they arrive, with what becomes of them
	Out  bool // as they leave: forwarded, the kernel's own, and answers to refused ones
	Drop bool // dropped by XDP as they came, by the egress guard as they would have left
}

func (p Points) bits() (b uint8) {
	for point, on := range map[bpf.XDPTapPoint]bool{bpf.XDPTapPointTAP_IN: p.In, bpf.XDPTapPointTAP_OUT: p.Out, bpf.XDPTapPointTAP_DROP: p.Drop} {
		if on {
			b |= 1 << point
		}
	}
	return b
}

// CaptureOptions say which packets a capture copies.
type CaptureOptions struct {
	Ports  []uint8      // ids; none: all
	Points Points       //
	Bytes  int          // of a frame, at most CaptureMax; 0 = CaptureMax
	Filter cbpf.Program // nil: every packet
}

// A Capture is a running one. While it runs, another form of the programs is in force, of every policy that
// is published; Stop puts the ordinary one back. One goroutine reads.
type Capture struct {
	plane   *Plane
	options CaptureOptions

	maps   map[string]*ebpf.Map
	reader *ringbuf.Reader
	record ringbuf.Record
	last   int                   // bytes that the last look found
	failed atomic.Pointer[error] // why it ended by itself
}

// CaptureCount is what a capture did on one port.
type CaptureCount struct {
	Seen    uint64 // packets that the filter was asked about
	Matched uint64
	Lost    uint64 // of them: the ring was full
}

// Capture begins to copy packets. Until Stop they wait in a ring of 16 MiB, and what finds no room is
// counted. It fails with ErrCapturing while another capture runs, and without a published policy.
func (p *Plane) Capture(o CaptureOptions) (c *Capture, err error) {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	if o.Bytes <= 0 || o.Bytes > CaptureMax {
		o.Bytes = CaptureMax
	}
	running := p.running.Load()
	switch {
	case p.capture != nil:
		return nil, ErrCapturing
	case running == nil || running.generation == nil:
		return nil, errors.New("capture: no policy has been published")
	}
	c = &Capture{plane: p, options: o, maps: make(map[string]*ebpf.Map)}
	defer func() {
		if err != nil {
			c.Close()
			c, err = nil, fmt.Errorf("capture: %w", explainPermission(err))
		}
	}()
	for _, name := range captureMaps {
		if c.maps[name], err = ebpf.NewMap(p.spec.Maps[name].Copy()); err != nil {
			return c, fmt.Errorf("make map %s: %w", name, err)
		}
	}
	if c.reader, err = ringbuf.NewReader(c.maps[bpf.XDPMapTaps]); err != nil {
		return c, err
	}
	tapped, err := p.loadPrograms(running.generation, &running.tables, c)
	if err != nil {
		return c, err
	}
	if err := p.putInSlots(tapped); err != nil {
		tapped.close()
		return c, errors.Join(err, p.putInSlots(&running.programs))
	}
	running.tapped, p.capture = tapped, c
	return c, nil
}

// captureMaps are those that only programs of a capture use.
var captureMaps = []string{bpf.XDPMapTaps, bpf.XDPMapTapBuffers, bpf.XDPMapTapCounters}

// withoutCapture takes the maps of a capture out of a spec, so that they are not made.
func withoutCapture(spec *ebpf.CollectionSpec) {
	for _, name := range captureMaps {
		delete(spec.Maps, name)
	}
}

// setCapture prepares a spec's programs for a capture: what it wants, and its filter.
func (c *Capture) setCapture(spec *ebpf.CollectionSpec) error {
	ports := ^uint64(0)
	if len(c.options.Ports) > 0 {
		ports = 0
		for _, id := range c.options.Ports {
			ports |= 1 << (id - 1)
		}
	}
	for name, value := range map[string]any{
		bpf.XDPVarTapPoints: c.options.Points.bits(), bpf.XDPVarTapPorts: ports, bpf.XDPVarTapBytes: uint32(c.options.Bytes),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set constant %s: %w", name, err)
		}
	}
	filter := c.options.Filter
	if filter == nil {
		filter = cbpf.All
	}
	for _, f := range []struct {
		program, function string
		hook              cbpf.Hook
	}{
		{bpf.XDPProgSoftdpuTapped, "tap_matches_xdp", cbpf.XDP},
		{bpf.XDPProgGuardTapped, "tap_matches_tc", cbpf.TC},
	} {
		body, err := filter.Function(f.hook)
		if err != nil {
			return err
		}
		if err := flowtable.ReplaceFunction(spec.Programs[f.program], f.function, body); err != nil {
			return err
		}
	}
	return nil
}

// Read waits a moment and then calls handle for the packets that are there, but not for more than some
// thousand, in the order in which XDP saw them. Header and frame are valid during the call. It returns
// handle's error, or why the capture cannot go on.
func (c *Capture) Read(handle func(head *bpf.XDPTapped, frame []byte) error) error {
	if err := c.failed.Load(); err != nil {
		return *err
	}
	wait := captureWait
	if c.last > captureMuch {
		wait = captureRush
	}
	_, err := c.read(wait, handle)
	return err
}

// Drain is Read for what is left behind a Stop. It does not wait, and leaves nothing.
func (c *Capture) Drain(handle func(head *bpf.XDPTapped, frame []byte) error) error {
	for {
		if n, err := c.read(0, handle); err != nil || n < captureBatch {
			return err
		}
	}
}

func (c *Capture) read(wait time.Duration, handle func(*bpf.XDPTapped, []byte) error) (n int, err error) {
	var head bpf.XDPTapped
	size := int(unsafe.Sizeof(head))
	c.reader.SetDeadline(time.Now().Add(wait))
	c.last = 0
	for ; n < captureBatch; n++ {
		if err := c.reader.ReadInto(&c.record); errors.Is(err, os.ErrDeadlineExceeded) {
			return n, nil
		} else if err != nil {
			return n, fmt.Errorf("read captured packets: %w", err)
		}
		b := c.record.RawSample
		c.last += len(b)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&head)), size), b)
		if len(b) < size || uint64(len(b)-size) < uint64(head.Captured) {
			return n, fmt.Errorf("read captured packets: a record of %d bytes is none: the program object does not fit this binary", len(b))
		}
		if err := handle(&head, b[size:size+int(head.Captured)]); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Counts returns what the capture did, by port id.
func (c *Capture) Counts() ([]CaptureCount, error) {
	counts := make([]CaptureCount, portMax+1)
	for id := range counts {
		var perCPU []bpf.XDPTapCounter
		if err := c.maps[bpf.XDPMapTapCounters].Lookup(uint32(id), &perCPU); err != nil {
			return nil, fmt.Errorf("read counters of the capture: %w", err)
		}
		for _, n := range perCPU {
			counts[id].Seen += n.Seen
			counts[id].Matched += n.Matched
			counts[id].Lost += n.Lost
		}
	}
	return counts, nil
}

// Stop puts the ordinary form of the running policy in force again, and returns once no packet is under way
// that could be copied. What was copied can still be read, and counted, until Close.
func (c *Capture) Stop() error {
	p := c.plane
	p.publishing.Lock()
	defer p.publishing.Unlock()
	if p.capture != c {
		return nil // ended by itself
	}
	running := p.running.Load()
	if err := p.putInSlots(&running.programs); err != nil {
		return fmt.Errorf("stop capture: %w", err)
	}
	p.capture = nil
	running.untap()
	if Grace() != nil {
		time.Sleep(captureGrace)
	}
	return nil
}

// Close frees what the capture used. Stop comes first.
func (c *Capture) Close() error {
	var err error
	if c.reader != nil {
		err = c.reader.Close()
	}
	for _, m := range c.maps {
		err = errors.Join(err, m.Close())
	}
	return err
}

// captureGeneration gives a generation that is about to be published the form that the running capture
// needs. If it cannot have that, the capture ends, not the policy. p.publishing is held.
func (p *Plane) captureGeneration(next *loaded) {
	if p.capture == nil {
		return
	}
	tapped, err := p.loadPrograms(next.generation, &next.tables, p.capture)
	if err != nil {
		err = fmt.Errorf("capture: policy %d is in force and cannot be captured: %w", next.generation.Epoch, err)
		p.capture.failed.Store(&err)
		p.capture = nil
		return
	}
	next.tapped = tapped
}

// PortIDs returns the ids of ports by name; an unknown name is an error that says which there are.
func (p *Plane) PortIDs(names []string) ([]uint8, error) {
	var ids []uint8
	ports := p.Ports()
	for _, name := range names {
		i := slices.IndexFunc(ports, func(port Port) bool { return port.Name == name })
		if i < 0 {
			var have []string
			for _, port := range ports {
				have = append(have, port.Name)
			}
			return nil, fmt.Errorf("there is no port %q: the ports are %q", name, have)
		}
		ids = append(ids, ports[i].ID)
	}
	return ids, nil
}
