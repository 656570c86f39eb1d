package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
)

// bedded is a scenario with its trace in the kernel.
type bedded struct {
	scenario
	rig      *rig // in which it runs
	prog     *ebpf.Program
	ingress  *dataplane.Port
	outer    []conn // of replies: the connections as the other side sees them
	frame    []byte // the size of the scenario's frames
	prologue *ebpf.Program
	empty    *ebpf.Program
	target   *ebpf.Map
	coll     *ebpf.Collection

	base, cost, whole []float64 // ns, one value a round
}

// bed establishes the scenario's connections and lays its trace.
func (r *rig) bed(s scenario, prog *ebpf.Program, seed uint64) (*bedded, error) {
	b := &bedded{scenario: s, rig: r, prog: prog, ingress: &r.lan}
	if s.replies {
		b.ingress = &r.wan
	}
	for i := range s.flows {
		outer, err := r.establish(s, i, prog)
		if err != nil {
			return nil, err
		}
		b.outer = append(b.outer, outer)
	}
	if s.name == "fragment" { // its first packets are fragments, which open the flows as well
		for i := 0; i < 128; i += 2 {
			if _, err := r.establish(s, i, prog); err != nil {
				return nil, err
			}
		}
	}
	if c := s.conn(0); s.spec(0, c, r).partial {
		if err := r.completes(c, s.spec(0, c, r), prog); err != nil {
			return nil, err
		}
	}
	n := traceMin
	for n < s.flows {
		n *= 2
	}
	spec, err := bpf.LoadBench()
	if err != nil {
		return nil, err
	}
	for name, p := range spec.Programs {
		if name != bpf.BenchProgPrologue && name != bpf.BenchProgEmpty {
			delete(spec.Programs, name)
		} else if !r.plane.MultiBuffer() {
			p.Flags &^= unix.BPF_F_XDP_HAS_FRAGS // the prologue calls only its like
		}
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	var frames []byte // of each as much as the trace keeps
	var size, kept int
	order := make([]int, n)
	for i := range order {
		order[i] = i
		if s.flows > 0 {
			order[i] = i % s.flows
		}
	}
	if s.random {
		rnd.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	for _, i := range order {
		c := s.conn(i)
		f := s.spec(i, c, r)
		if s.replies {
			c, f.dstMAC, f.srcMAC = b.outer[i].reply(), r.wan.MAC, r.serve
		}
		start := len(frames)
		frames = appendFrame(frames, c, f)
		size = len(frames) - start
		kept = min(size, traceBytes)
		frames = frames[:start+kept]
	}
	spec.Maps[bpf.BenchMapTrace].MaxEntries = uint32(n)
	for name, v := range map[string]uint32{bpf.BenchVarFrameSize: uint32(size+3) &^ 3, bpf.BenchVarTraceMask: uint32(n - 1)} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, err
		}
	}
	b.frame = make([]byte, (size+3)&^3)
	if b.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, err
	}
	b.prologue, b.empty, b.target = b.coll.Programs[bpf.BenchProgPrologue], b.coll.Programs[bpf.BenchProgEmpty], b.coll.Maps[bpf.BenchMapTarget]
	mem, err := b.coll.Maps[bpf.BenchMapTrace].Memory()
	if err != nil {
		return nil, err
	}
	slot := make([]byte, traceBytes)
	for i := range n {
		copy(slot, frames[i*kept:(i+1)*kept])
		if _, err := mem.WriteAt(slot, int64(i*len(slot))); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// completes proves that prog completes the checksum of a frame, which no counter shows.
func (r *rig) completes(c conn, spec frameSpec, prog *ebpf.Program) error {
	in := appendFrame(nil, c, spec)
	spec.partial = false
	want := appendFrame(nil, c, spec)
	run := ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)), Context: xdpMD{DataEnd: uint32(len(in)), IngressIfindex: r.lan.Index}}
	if _, err := prog.Run(&run); err != nil {
		return err
	}
	const transport = 14 + 20
	if !bytes.Equal(run.DataOut[transport:], want[transport:]) {
		return fmt.Errorf("the program left checksum %x, expected %x", run.DataOut[transport:transport+20], want[transport:transport+20])
	}
	return nil
}

// establish opens connection i of s and lets the other side answer, packet by packet. It returns the
// connection as the other side sees it.
func (r *rig) establish(s scenario, i int, prog *ebpf.Program) (outer conn, err error) {
	c := s.conn(i)
	there := s.spec(i, c, r)
	there.fragment, there.badChecksum = 0, false
	back := frameSpec{dstMAC: r.wan.MAC, srcMAC: r.serve, size: there.size}
	if there.vlan != 0 {
		back.size -= 4
	}
	type step struct {
		c       conn
		s       frameSpec
		ifindex uint32
	}
	step1, step2, step3 := step{c, there, r.lan.Index}, step{c.reply(), back, r.wan.Index}, step{c, there, r.lan.Index}
	step1.s.flags, step1.s.seq, step1.s.ack = flagSYN, 1, 0
	step2.s.flags, step2.s.seq, step2.s.ack = flagSYN|flagACK, 1, 2
	steps := []step{step1, step2, step3}
	switch {
	case s.oneWay:
		steps = steps[:1]
	case !c.tcp:
		steps = steps[:2]
	}
	outer = c
	for n, st := range steps {
		if n == 1 {
			st.c = outer.reply()
		}
		run := ebpf.RunOptions{Data: appendFrame(nil, st.c, st.s)}
		run.DataOut = make([]byte, len(run.Data)+64)
		run.Context = xdpMD{DataEnd: uint32(len(run.Data)), IngressIfindex: st.ifindex}
		verdict, err := prog.Run(&run)
		if err != nil {
			return conn{}, err
		}
		if verdict != xdpRedirect {
			return conn{}, fmt.Errorf("establish connection %d: verdict %d instead of a redirect; drops so far:%s", i, verdict, r.drops())
		}
		if n == 0 && s.nat {
			ip := run.DataOut[14:]
			outer.src, _ = netip.AddrFromSlice(ip[12:16])
			outer.sport = binary.BigEndian.Uint16(ip[20:])
			if outer.src == c.src {
				return conn{}, fmt.Errorf("establish connection %d: it is not masqueraded", i)
			}
		}
	}
	return outer, nil
}

// drops lists what was dropped so far, for error messages.
func (r *rig) drops() string {
	reasons, err := r.plane.Reasons()
	if err != nil {
		return " " + err.Error()
	}
	var b strings.Builder
	for i, c := range reasons {
		if c.Packets > 0 {
			fmt.Fprintf(&b, " %s %d", bpf.XDPReason(i), c.Packets)
		}
	}
	return b.String()
}
