package worker_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

const (
	prefix = "t-lab-worker"
	// patience is how long a condition may take on a slow and busy machine.
	patience = 20 * time.Second

	lanID, wanID = 1, 2
	monID        = 3

	groups = 64 // of each family
	noCell = 0xffffffff
)

// must ends the test if there is an error, and returns the value.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A bench is a client and a server with a gateway between them, on whose ports a small program does what softdpu's
// does: it puts a handover in front of frames and sends them to the sockets of workers. The handover is in the
// frames themselves: the tests that send them decide.
type bench struct {
	lab                *testenv.Lab
	gw, client, server *testenv.Namespace
	tables             worker.Tables
	queues, sockets    *ebpf.Map
	mapped             [][]byte
	crew               *worker.Crew
	mu                 sync.Mutex
	log                []string
	expectDeaths       bool
	programs           map[string]*attached
}

type attached struct {
	program *ebpf.Program
	link    link.Link
}

func newBench(t *testing.T, o testenv.Options) *bench {
	t.Helper()
	o.Prefix = prefix
	return newBenchIn(t, testenv.New(t, "inline", o), "client", "server")
}

func newBenchIn(t *testing.T, l *testenv.Lab, client, server string) *bench {
	t.Helper()
	b := &bench{lab: l, gw: l.Must(t, "gw"), client: l.Must(t, client), server: l.Must(t, server), programs: make(map[string]*attached)}
	b.queues = must(ebpf.NewMap(&ebpf.MapSpec{Name: "worker_queues", Type: ebpf.Array, KeySize: 4,
		ValueSize: uint32(unsafe.Sizeof(bpf.XDPWorkerQueue{})), MaxEntries: 8 * 64, Flags: unix.BPF_F_MMAPABLE}))(t)
	b.sockets = must(ebpf.NewMap(&ebpf.MapSpec{Name: "sockets", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 8 * 64}))(t)
	b.tables = worker.Tables{
		Queues: view[bpf.XDPWorkerQueue](t, b, b.queues), Sockets: b.sockets, Groups: groups,
		Cells: make([]bpf.XDPCells, 2*groups), Flows4: make([]bpf.XDPFlow4Group, groups), Flows6: make([]bpf.XDPFlow6Group, groups),
	}
	t.Cleanup(func() {
		b.stop(t)
		b.detach()
		for _, m := range b.mapped {
			_ = unix.Munmap(m)
		}
		b.queues.Close()
		b.sockets.Close()
	})
	return b
}

func view[T any](t *testing.T, b *bench, m *ebpf.Map) []T {
	t.Helper()
	var v T
	size := int(unsafe.Sizeof(v)) * int(m.MaxEntries())
	page := os.Getpagesize()
	mem := must(unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	b.mapped = append(b.mapped, mem)
	return unsafe.Slice((*T)(unsafe.Pointer(&mem[0])), m.MaxEntries())
}

// detach takes the programs off all ports.
func (b *bench) detach() {
	for device, a := range b.programs {
		a.link.Close()
		a.program.Close()
		delete(b.programs, device)
	}
}

// attach puts the program on a port.
func (b *bench) attach(t *testing.T, device string, id uint8, frags bool) worker.Port {
	t.Helper()
	return b.attachAs(t, device, id, frags, link.XDPDriverMode)
}

func (b *bench) attachAs(t *testing.T, device string, id uint8, frags bool, flags link.XDPAttachFlags) worker.Port {
	t.Helper()
	if old := b.programs[device]; old != nil {
		old.link.Close()
		old.program.Close()
	}
	spec := &ebpf.ProgramSpec{Name: "to_workers", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: toWorkers(b.queues.FD(), b.sockets.FD(), int32(id))}
	if frags {
		spec.Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	a := &attached{program: must(ebpf.NewProgram(spec))(t)}
	index := must(b.gw.Index(device))(t)
	check(t, b.gw.Do(func() (err error) {
		a.link, err = link.AttachXDP(link.XDPOptions{Program: a.program, Interface: index, Flags: flags})
		return err
	}))
	b.programs[device] = a
	return worker.Port{Name: device, ID: id, Device: device, Index: index}
}

// toWorkers is the program: what has the EtherType of the tests and a worker on its queue goes there, behind the 32
// bytes of its handover, which stand in it from byte 22 on.
func toWorkers(queues, sockets int, port int32) asm.Instructions {
	const start, have = 54, 22
	copyWord := func(at int16) []asm.Instruction {
		return []asm.Instruction{
			asm.LoadMem(asm.R4, asm.R2, 32+have+at, asm.DWord),
			asm.StoreMem(asm.R2, at, asm.R4, asm.DWord),
		}
	}
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, 4, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, start),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R4, asm.R2, 12, asm.Half),
		asm.JNE.Imm(asm.R4, 0xb588, "pass"),
		// The record of the queue.
		asm.LoadMem(asm.R7, asm.R6, 16, asm.Word),
		asm.And.Imm(asm.R7, 63),
		asm.Add.Imm(asm.R7, port*64),
		asm.StoreMem(asm.RFP, -4, asm.R7, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, queues),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.LoadMem(asm.R4, asm.R0, 72, asm.Word), // size
		asm.JEq.Imm(asm.R4, 0, "drop"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word), // sent
		asm.LoadMem(asm.R2, asm.R0, 4, asm.Word),
		asm.Sub.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R2, asm.R0, 64, asm.Word), // taken
		asm.Sub.Reg(asm.R1, asm.R2),
		asm.LSh.Imm(asm.R1, 32),
		asm.RSh.Imm(asm.R1, 32),
		asm.JGE.Reg(asm.R1, asm.R4, "drop"),
		asm.Mov.Imm(asm.R4, 1),
		asm.StoreXAdd(asm.R0, asm.R4, asm.Word), // sent
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, -32),
		asm.FnXdpAdjustHead.Call(),
		asm.JNE.Imm(asm.R0, 0, "drop"),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, 4, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 32+start),
		asm.JGT.Reg(asm.R4, asm.R3, "drop"),
	}
	for at := int16(0); at < 32; at += 8 {
		ins = append(ins, copyWord(at)...)
	}
	return append(ins,
		asm.LoadMapPtr(asm.R1, sockets),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Imm(asm.R3, 1),
		asm.FnRedirectMap.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("drop"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"),
		asm.Return(),
	)
}

// run starts a crew. Its memory and rings are small unless the options say otherwise.
func (b *bench) run(t *testing.T, o worker.Options, ports ...worker.Port) {
	t.Helper()
	o.Tables, o.In = b.tables, b.gw.Do
	o.Log = func(text string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.log = append(b.log, text)
	}
	if o.Ring == 0 {
		o.Ring = 512
	}
	b.crew = must(worker.Start(o, ports))(t)
}

// stop closes the crew: every frame must be in its place.
func (b *bench) stop(t *testing.T) {
	t.Helper()
	if b.crew == nil {
		return
	}
	if err := b.crew.Close(); err != nil {
		t.Error(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.log {
		if strings.Contains(text, "has ended") && !b.expectDeaths {
			t.Error(text)
		}
	}
	if t.Failed() {
		t.Logf("log:\n%s", strings.Join(b.log, "\n"))
	}
	b.crew = nil
}

// logged reports whether the log has a line with the text, or has it soon.
func (b *bench) logged(text string) bool {
	has := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.ContainsFunc(b.log, func(line string) bool { return strings.Contains(line, text) })
	}
	for end := time.Now().Add(patience); !has(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// serve gives the crew its ports, and waits until they are served. The kernel may hold a queue for the socket before it
// for so long that it is tried again.
func (b *bench) serve(t *testing.T, ports ...worker.Port) {
	t.Helper()
	if err := b.crew.SetPorts(ports); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatal(err)
	}
	until(t, func() error {
		for _, p := range ports {
			if b.size(p.ID, 0) == 0 {
				return fmt.Errorf("port %s has no workers: %+v", p.Name, b.crew.Status().Attempts)
			}
		}
		return nil
	})
}

// size returns how many packets may be outstanding on a queue, as XDP sees it.
func (b *bench) size(id uint8, queue int) uint32 {
	return atomic.LoadUint32(&b.tables.Queues[int(id)*64+queue].Size)
}

// A stream is numbered frames that arrive at one queue of a port, in order.
type stream struct {
	number uint8
	h      bpf.XDPHandover
	length func(n uint64) int
	sent   atomic.Uint64
}

const shortest = 64 // of a stream's frames, in bytes

// frame makes frame n of the stream, which differs from all others.
func (s *stream) frame(n uint64) []byte {
	length := shortest
	if s.length != nil {
		length = s.length(n)
	}
	f := make([]byte, length)
	source := rand.NewPCG(n, uint64(s.number))
	for i := 0; i+8 <= length; i += 8 {
		binary.LittleEndian.PutUint64(f[i:], source.Uint64())
	}
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	binary.BigEndian.PutUint64(f[14:], n)
	h := s.h
	h.Number = uint16(n + 1)
	h.Nth = uint32(n + 1)
	copy(f[22:], unsafe.Slice((*byte)(unsafe.Pointer(&h)), unsafe.Sizeof(h)))
	f[54] = s.number
	return f
}

// ours reports whether a frame is of a stream.
func ours(f []byte) bool { return len(f) >= shortest && f[12] == 0x88 && f[13] == 0xb5 }

// A source sends frames by one queue of a device, which is the queue of its other end by which they arrive.
type source struct {
	umem   *xsk.UMEM
	pool   *xsk.Pool
	socket *xsk.Socket
}

func newSource(t *testing.T, n *testenv.Namespace, device string, queue int, multi bool) *source {
	t.Helper()
	s := &source{}
	s.umem = must(xsk.NewUMEM(xsk.UMEMOptions{Frames: 512, Mode: xsk.Copy, MultiBuffer: multi, FrameSize: 4096}))(t)
	s.pool = must(s.umem.NewPool(512))(t)
	check(t, n.Do(func() (err error) {
		s.socket, err = xsk.Open(s.umem, s.pool, device, queue, xsk.SocketOptions{Rx: 64, Tx: 256, Fill: 64, Completion: 256})
		return err
	}))
	t.Cleanup(s.close)
	return s
}

func (s *source) close() {
	if s.socket != nil {
		s.socket.Close()
		s.pool.Close()
		s.umem.Close()
		s.socket = nil
	}
}

// send sends one frame, and waits for room. It gives up when the device takes nothing.
func (s *source) send(f []byte) error {
	size := s.umem.Payload()
	packet := make([]xsk.Desc, (len(f)+size-1)/size)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Microsecond) {
		s.socket.Reclaim()
		if s.pool.Len() >= len(packet) {
			s.pool.Alloc(packet)
			break
		}
		if err := s.socket.Kick(); err != nil {
			return err
		}
		if time.Now().After(end) {
			return errors.New("no room to send")
		}
	}
	for i := range packet {
		part := f[i*size : min(len(f), (i+1)*size)]
		packet[i].Len = uint32(len(part))
		copy(s.umem.Frame(packet[i]), part)
		if i < len(packet)-1 {
			packet[i].Options = xsk.Continues
		}
	}
	for end := time.Now().Add(patience); s.socket.Transmit(packet) == 0; time.Sleep(20 * time.Microsecond) {
		if err := s.socket.Kick(); err != nil {
			return err
		}
		s.socket.Reclaim()
		if time.Now().After(end) {
			return errors.New("no room to send")
		}
	}
	return s.socket.Kick()
}

// A sink checks frames of streams as they arrive.
type sink struct {
	capture *testenv.Capture
}

func newSink(t *testing.T, n *testenv.Namespace, device string) *sink {
	t.Helper()
	return &sink{must(n.StartCapture(device, testenv.CaptureOptions{Match: ours, Keep: 200_000}))(t)}
}

// result is what arrived of one stream.
type result struct{ arrived, lost uint64 }

// stop ends the capture and returns what arrived of each stream, byte for byte as it was sent, in order and once;
// anything else is an error.
func (k *sink) stop(t *testing.T, streams ...*stream) map[*stream]result {
	t.Helper()
	must(k.capture.Stop())(t)
	results := make(map[*stream]result)
	next := make(map[*stream]uint64)
	for _, f := range k.capture.Frames() {
		var s *stream
		for _, one := range streams {
			if one.number == f.Data[54] {
				s = one
			}
		}
		if s == nil {
			t.Fatalf("a frame of stream %d, which does not end here", f.Data[54])
		}
		n := binary.BigEndian.Uint64(f.Data[14:])
		if n < next[s] {
			t.Fatalf("stream %d: frame %d came after frame %d, or twice", s.number, n, next[s]-1)
		}
		if want := s.frame(n); !bytes.Equal(f.Data, want) {
			t.Fatalf("stream %d: frame %d came with %d bytes that are not the %d sent", s.number, n, len(f.Data), len(want))
		}
		r := results[s]
		r.arrived++
		r.lost += n - next[s]
		results[s], next[s] = r, n+1
	}
	for _, s := range streams {
		r := results[s]
		r.lost += s.sent.Load() - next[s]
		results[s] = r
	}
	return results
}

// pour sends n frames of a stream, and never has more than window of all that the sink shall see under way.
func pour(s *source, st *stream, n int, sent *atomic.Int64, k *sink, window int) error {
	for range n {
		for end := time.Now().Add(patience); sent.Load()-int64(k.capture.Count()) >= int64(window); time.Sleep(50 * time.Microsecond) {
			if time.Now().After(end) {
				return fmt.Errorf("stream %d: frame %d waits for earlier ones: %d of %d arrived", st.number, st.sent.Load(), k.capture.Count(), sent.Load())
			}
		}
		if err := s.send(st.frame(st.sent.Load())); err != nil {
			return fmt.Errorf("stream %d: %w", st.number, err)
		}
		st.sent.Add(1)
		sent.Add(1)
	}
	return nil
}

// atLeast is an error if there are too few.
func atLeast(have, want uint64) error {
	if have < want {
		return fmt.Errorf("%d, want %d at least", have, want)
	}
	return nil
}

// until waits for a condition.
func until(t *testing.T, fn func() error) {
	t.Helper()
	testenv.Eventually(t, patience, fn)
}
