package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable"
)

// XDPOptions of `bench xdp`. The zero value is a full run.
type XDPOptions struct {
	Rounds   int      // of each scenario; 0 = 15
	Seed     uint64   // of flows and their order; 0 = 1
	Only     []string // scenarios by name; empty = all
	Progress func(string)
}

const (
	rigVLAN    = 10
	xdpFlowMax = 1 << 20
	traceMin   = 1 << 16
	traceBytes = int(unsafe.Sizeof(bpf.BenchTraceFrame{}))
)

// scenario is one way through the packet path.
type scenario struct {
	name      string
	limit     float64 // ns over empty, 0 = none is set
	limitOver float64 // ns over ipv4-hit, likewise
	flows     int     // connections that must be established
	conn      func(i int) conn
	// frame of round i; c is the connection of that round
	spec   func(i int, c conn, rig *rig) frameSpec
	rounds int // packets in one measurement
	// outcome of every packet, checked against counters after each measurement
	reason  bpf.XDPReason // drop, or REASON_NONE: sent
	creates bool          // every packet creates a flow, which is taken away again
	oneWay  bool          // the other side never answers
	nat     bool          // connections are masqueraded
	replies bool          // the packets are the other side's
	random  bool          // visit connections in random order; else in the order of i
}

func scenarios() []scenario {
	v4 := func(proto int) func(i int) conn {
		return func(i int) conn {
			u := uint32(i) * 2654435761
			return conn{src: ip4(10<<24 | 1<<23 | u&0x7fffff), dst: ip4(10<<24 | 1<<22 | uint32(i)&0x3fffff>>3),
				sport: uint16(1024 + i%60000), dport: 443, tcp: proto == 6 || proto == 0 && i%2 == 0}
		}
	}
	v6 := func(i int) conn {
		return conn{src: ip6(0xfd20, i), dst: ip6(0xfd30, i>>3), sport: uint16(1024 + i%60000), dport: 443, tcp: i%2 == 0}
	}
	plain := func(size int) func(int, conn, *rig) frameSpec {
		return func(i int, c conn, r *rig) frameSpec {
			return frameSpec{dstMAC: r.lan.MAC, srcMAC: r.client, size: size, flags: flagACK, seq: 2, ack: 2}
		}
	}
	partial := func(size int) func(int, conn, *rig) frameSpec {
		return func(i int, c conn, r *rig) frameSpec {
			s := plain(size)(i, c, r)
			s.partial = true
			return s
		}
	}
	return []scenario{
		{name: "ipv4-hit", limit: 50, flows: 64, conn: v4(0), spec: plain(60), rounds: 400_000, random: true},
		{name: "ipv4-hit-1k", flows: 1000, conn: v4(17), spec: plain(60), rounds: 400_000, random: true},
		{name: "ipv4-hit-1m", flows: scanFlows, conn: v4(17), spec: plain(60), rounds: 1 << 20, random: true},
		{name: "ipv6-hit", limit: 65, flows: 64, conn: v6, spec: plain(76), rounds: 400_000, random: true},
		{name: "drop-miss-100", limit: 200, conn: func(i int) conn {
			c := v4(17)(i % 1000)
			c.dport = 9 // no rule has it
			return c
		}, spec: plain(60), rounds: 200_000, reason: bpf.XDPReasonREASON_NO_RULE_MATCHED, random: true},
		// the kernel here may have no VLAN devices, so that there is no way back into the VLAN
		{name: "vlan-hit", flows: 64, oneWay: true, conn: func(i int) conn {
			c := v4(17)(i)
			c.dport = 444
			return c
		}, spec: func(i int, c conn, r *rig) frameSpec {
			s := plain(64)(i, c, r)
			s.vlan = rigVLAN
			return s
		}, rounds: 200_000, random: true},
		{name: "fragment", flows: 0, conn: func(i int) conn {
			c := v4(17)(i / 2 % 64)
			c.dport = 445
			return c
		}, spec: func(i int, c conn, r *rig) frameSpec {
			// first and last fragment in turn, 24 + 26 bytes of payload
			s := plain(58)(i, c, r)
			s.id = uint16(i / 2)
			s.fragment = 1 << 13
			if i%2 == 1 {
				s.size, s.fragment = 58, 3
			}
			return s
		}, rounds: traceMin},
		{name: "malformed", conn: v4(17), spec: func(i int, c conn, r *rig) frameSpec {
			s := plain(60)(i, c, r)
			s.badChecksum = true
			return s
		}, rounds: 400_000, reason: bpf.XDPReasonREASON_MALFORMED_IPV4CHECKSUM, random: true},
		// ipv4-hit beside them: what it costs to complete a checksum
		{name: "checksum-60", flows: 64, conn: v4(0), spec: partial(60), rounds: 400_000, random: true},
		{name: "checksum-1514", flows: 64, conn: v4(0), spec: partial(1514), rounds: 200_000, random: true},
		{name: "nat-hit", flows: 64, conn: v4(0), spec: plain(60), rounds: 400_000, random: true, nat: true, limitOver: 25},
		{name: "nat-reply", flows: 64, conn: v4(0), spec: plain(60), rounds: 400_000, random: true, nat: true, limitOver: 25, replies: true},
		{name: "nat-new-flow", conn: func(i int) conn {
			c := v4(17)(i)
			c.dport = 446
			return c
		}, spec: plain(60), rounds: traceMin / 2, creates: true, nat: true},
		{name: "new-flow", conn: func(i int) conn {
			c := v4(17)(i)
			c.dport = 446
			return c
		}, spec: plain(60), rounds: traceMin / 2, creates: true}, // what the million leaves room for
	}
}

func ip4(a uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], a)
	return netip.AddrFrom4(b)
}

func ip6(net uint16, i int) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint16(b[0:], net)
	binary.BigEndian.PutUint64(b[8:], uint64(i)+2)
	return netip.AddrFrom16(b)
}

// xdpPolicy has 100 rules that no scenario's packets match but the last three, which admit them: what
// is dropped has passed all.
func xdpPolicy() string {
	var b strings.Builder
	b.WriteString(`apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  lan10: {ports: [lan], vlans: [10]}
  wan: {ports: [wan]}
rules:
`)
	for i := range 97 {
		fmt.Fprintf(&b, "  - {name: r%d, from: {zone: lan, addresses: [10.%d.0.0/16]}, to: {zone: wan, addresses: [10.%d.%d.0/24]}, service: tcp/%d, action: allow}\n",
			i, i%40, 64+i%3, i, 1000+i)
	}
	b.WriteString(`  - {name: web, from: [lan, lan10], to: wan, service: [tcp/443-446, udp/443-446], action: allow}
  - {name: dns, from: lan, to: wan, service: udp/53, action: allow}
  - {name: back, from: wan, to: lan, service: tcp/22, action: allow}
`)
	return b.String()
}

// natPolicy masquerades whatever goes out.
func natPolicy() string {
	return xdpPolicy() + "nat:\n  - {name: out, from: lan, to: wan, masquerade: {}}\n"
}

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

// XDP measures the packet path without a network: method in docs/BENCHMARKS.md.
func XDP(ctx context.Context, o XDPOptions) (report *Report, err error) {
	if o.Rounds == 0 {
		o.Rounds = 15
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	o.Progress("building the labs and the programs")
	plain, err := newRig(labPrefix, dataplane.Options{FlowsMax: xdpFlowMax, HalfOpenShare: 1}, xdpPolicy())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plain.close()) }()
	// A lab of its own, since the program without translation has nothing of it.
	nat, err := newRig(labPrefix+"-nat", dataplane.Options{FlowsMax: 1 << 18, HalfOpenShare: 1}, natPolicy())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nat.close()) }()
	return benchXDP(ctx, plain, nat, o)
}

func benchXDP(ctx context.Context, plain, nat *rig, o XDPOptions) (*Report, error) {
	progs := map[*rig]*ebpf.Program{}
	for _, r := range []*rig{plain, nat} {
		prog, err := r.plane.Program()
		if err != nil {
			return nil, err
		}
		defer prog.Close()
		progs[r] = prog
	}
	var all []*bedded
	defer func() {
		for _, b := range all {
			b.coll.Close()
		}
	}()
	for _, s := range scenarios() {
		if !selected(o.Only, s.name) {
			continue
		}
		r := plain
		if s.nat {
			r = nat
		}
		o.Progress("preparing " + s.name)
		err := r.pinned(func() error {
			b, err := r.bed(s, progs[r], o.Seed)
			if err == nil {
				all = append(all, b)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("prepare %s: %w", s.name, err)
		}
	}
	for round := -1; round < o.Rounds; round++ { // the first warms up
		for _, b := range all {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			// The lab's own hosts send a multicast report now and then, which counters cannot tell
			// from ours: such a round is taken again.
			measure := func() error { return b.rig.measure(b, round >= 0) }
			err := b.rig.pinned(measure)
			for try := 0; err != nil && try < 3; try++ {
				err = b.rig.pinned(measure)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.name, err)
			}
		}
		o.Progress(fmt.Sprintf("round %d of %d", round+1, o.Rounds))
	}
	var report *Report
	err := plain.pinned(func() (err error) {
		report, err = plain.reportXDP(all, progs[plain], o)
		return err
	})
	return report, err
}

// pinned calls fn in the gateway's namespace, on CPU 1.
func (r *rig) pinned(fn func() error) error {
	return r.gw.Do(func() error {
		unpin, err := pin(1)
		if err != nil {
			return err
		}
		defer unpin()
		return fn()
	})
}

func selected(only []string, name string) bool {
	for _, n := range only {
		if n == name {
			return true
		}
	}
	return len(only) == 0
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

const (
	xdpDrop     = 1
	xdpRedirect = 4
)

// measure takes one round of a scenario beside one of the empty program, and proves by counters that
// every packet took the path that its name says.
func (r *rig) measure(b *bedded, keep bool) error {
	if err := b.target.Put(uint32(0), b.empty); err != nil {
		return err
	}
	_, base, err := testRun(b.prologue, b.frame, b.ingress.Index, b.rounds)
	if err != nil {
		return err
	}
	if err := b.target.Put(uint32(0), b.prog); err != nil {
		return err
	}
	reasons, err := r.plane.Reasons()
	if err != nil {
		return err
	}
	passes, err := r.plane.Passes()
	if err != nil {
		return err
	}
	table, err := r.plane.TableCounters()
	if err != nil {
		return err
	}
	verdict, whole, err := testRun(b.prologue, b.frame, b.ingress.Index, b.rounds)
	if err != nil {
		return err
	}
	if err := r.prove(b, verdict, reasons, passes, table); err != nil {
		if b.creates { // the next try must not find its flows there
			_, clearErr := r.clear(b)
			err = errors.Join(err, clearErr)
		}
		return err
	}
	if keep {
		b.base = append(b.base, float64(base))
		b.whole = append(b.whole, float64(whole))
		b.cost = append(b.cost, float64(whole-base))
	}
	return nil
}

func (r *rig) prove(b *bedded, verdict uint32, reasons [bpf.XDPReasonREASON_LEN]bpf.XDPCounter, passes [bpf.XDPPassCausePASS_LEN]bpf.XDPCounter, table bpf.XDPTableCounter) error {
	after, err := r.plane.Reasons()
	if err != nil {
		return err
	}
	for i := range after {
		want := uint64(0)
		if bpf.XDPReason(i) == b.reason && b.reason != bpf.XDPReasonREASON_NONE {
			want = uint64(b.rounds)
		}
		if got := after[i].Packets - reasons[i].Packets; got != want {
			return fmt.Errorf("%d of %d packets ended as %s, expected %d", got, b.rounds, bpf.XDPReason(i), want)
		}
	}
	if p, err := r.plane.Passes(); err != nil || p != passes {
		return errors.Join(err, errors.New("packets went to the kernel"))
	}
	want := uint32(xdpRedirect)
	if b.reason != bpf.XDPReasonREASON_NONE {
		want = xdpDrop
	}
	if verdict != want {
		return fmt.Errorf("last verdict %d, expected %d", verdict, want)
	}
	now, err := r.plane.TableCounters()
	if err != nil {
		return err
	}
	created := now.Created - table.Created
	switch {
	case b.creates && created != uint64(b.rounds):
		return fmt.Errorf("%d of %d packets created a flow", created, b.rounds)
	case !b.creates && created != 0:
		return fmt.Errorf("%d packets created a flow", created)
	case b.creates:
		gone, err := r.clear(b)
		if left := int64(created - (now.Evicted - table.Evicted)); err == nil && gone != left {
			err = fmt.Errorf("%d flows were in the table, expected %d", gone, left)
		}
		return err
	}
	return nil
}

// clear takes the flows away that a creating scenario left, and returns their number.
func (r *rig) clear(b *bedded) (int64, error) {
	if b.nat {
		return r.clearTranslated(b.conn(0).dport)
	}
	flows := r.plane.Flows()
	port := b.conn(0).dport
	var network [2]byte
	binary.BigEndian.PutUint16(network[:], port)
	port = binary.NativeEndian.Uint16(network[:])
	gone := int64(0)
	for g := range flows.Groups4 {
		for s := range flows.Groups4[g].Slot {
			f := &flows.Groups4[g].Slot[s]
			if f.Core.Word&0xff != 0 && (f.Key.LoPort == port || f.Key.HiPort == port) {
				f.Core.Word &^= 0xff
				gone++
			}
		}
	}
	flows.Gateway.Flows -= gone
	flows.Gateway.HalfOpen -= gone
	var half flowtable.Timeouts
	half[flowtable.ClassUDP][bpf.XDPFlowStateFLOW_NEW] = 1
	overflowed, err := r.plane.AgeOverflow(dataplane.NowTick()+flowtable.Ticks(time.Second), &half, func(*bpf.XDPFlow4) {}, func(*bpf.XDPFlow6) {})
	return gone + int64(overflowed), err
}

// clearTranslated is clear for flows that hold ports.
func (r *rig) clearTranslated(port uint16) (int64, error) {
	table, err := r.plane.Table()
	if err != nil {
		return 0, err
	}
	held, done := r.plane.NATPorts()
	defer done()
	table.SetNATPorts(held.Layout, held.Bitmaps)
	grace := func() {
		if graceErr := dataplane.Grace(); graceErr != nil {
			err = graceErr
		}
	}
	gone := table.Kill(func(f *flowtable.Flow) bool { return f.Tuple.DstPort == port }, grace, func(*flowtable.Flow) {})
	return int64(gone), err
}

func (r *rig) reportXDP(all []*bedded, prog *ebpf.Program, o XDPOptions) (*Report, error) {
	info, err := prog.Info()
	if err != nil {
		return nil, err
	}
	env := newEnvironment(o.Seed)
	env.ProgramTag = info.Tag
	env.Driver, env.XDPMode, env.Engine = "test run on "+r.lan.Kind, r.lan.Running.String(), "xdp"
	env.Pinning = "CPU 1"
	env.Method = "BPF_PROG_TEST_RUN; a prologue restores the frame from a trace and tail-calls the program; empty = the same prologue before an empty program, subtracted round by round"
	report := &Report{Bench: "xdp", Environment: env}
	var base []float64
	by := map[string]*bedded{}
	for _, b := range all {
		base = append(base, b.base...)
		by[b.name] = b
	}
	if len(base) > 0 { // or the scan alone was asked for
		report.Results = append(report.Results, summarize("empty", "ns", base))
	}
	for _, b := range all {
		res := summarize(b.name, "ns", b.cost)
		if b.limit > 0 {
			res = res.against(b.limit)
		}
		if k := by["ipv4-hit"]; b.limitOver > 0 && k != nil {
			limits := make([]float64, len(k.cost))
			for i, ns := range k.cost {
				limits[i] = ns + b.limitOver
			}
			res = res.versus(fmt.Sprintf("ipv4-hit and %.0f ns", b.limitOver), b.cost, limits)
		}
		if k := by["ipv4-hit-1k"]; b.name == "ipv4-hit-1m" && k != nil {
			// absolute times: the goal is one of the whole run
			res = res.versus("ipv4-hit-1k, absolute times", b.whole, k.whole)
		}
		report.Results = append(report.Results, res)
	}
	if selected(o.Only, "scan-1m") {
		scan, err := r.scan(o.Rounds, prog)
		if err != nil {
			return nil, err
		}
		report.Results = append(report.Results, scan...)
	}
	return report, nil
}
