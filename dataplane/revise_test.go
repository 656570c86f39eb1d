package dataplane

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/testenv"
)

// An editedPipe is a pipe of more entries than become instructions, of which one changes at a time. Each has a rule of
// its own.
type editedPipe struct {
	*rand.Rand
	entries []flowtable.ACLEntry
	acl     *flowtable.ACL
	revised *flowtable.ACL // of which it is a change, nil: it was compiled anew
	change  *flowtable.ForestChange
	rules   uint32 // the highest
}

const editedEntries = 2300 // of which some hundred are of either family alone

func newEditedPipe(t *testing.T, seed uint64) *editedPipe {
	t.Helper()
	e := &editedPipe{Rand: rand.New(rand.NewPCG(seed, 1))}
	for range editedEntries {
		e.entries = append(e.entries, e.entry())
	}
	var err error
	if e.acl, err = flowtable.CompileACL(e.entries); err != nil {
		t.Fatal(err)
	}
	return e
}

// prefix4 is of 10.0.0.0/8, or any.
func (e *editedPipe) prefix4() []flowtable.AddrRange {
	bits := 8 + e.IntN(25)
	p, _ := netip.AddrFrom4([4]byte{10, byte(e.Uint32()), byte(e.Uint32()) & 3, byte(e.Uint32())}).Prefix(bits)
	return []flowtable.AddrRange{{First: p.Addr(), Last: lastOf(p)}}
}

func (e *editedPipe) prefix6() []flowtable.AddrRange {
	a := netip.MustParseAddr("2001:db8::").As16()
	binary.BigEndian.PutUint64(a[8:], uint64(e.IntN(1<<16))<<40)
	p, _ := netip.AddrFrom16(a).Prefix(32 + e.IntN(90))
	return []flowtable.AddrRange{{First: p.Addr(), Last: lastOf(p)}}
}

// entry is a random one, under the next rule.
func (e *editedPipe) entry() flowtable.ACLEntry {
	e.rules++
	out := flowtable.ACLEntry{
		Proto: flowtable.U8Range{Last: 255}, SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535},
		Verdict: flowtable.Verdict(e.rules, uint32(bpf.XDPActionACTION_ALLOW), 0),
	}
	if e.IntN(3) == 0 {
		out.Verdict = flowtable.Verdict(e.rules, uint32(bpf.XDPActionACTION_DENY), 0)
	}
	switch e.IntN(5) {
	case 0:
		out.Src = e.prefix6()
	case 1:
		out.Dst = e.prefix4()
	case 2:
		out.Src, out.Dst = e.prefix4(), e.prefix4()
	default:
		out.Src = e.prefix4()
	}
	if e.IntN(2) == 0 {
		out.Proto = flowtable.U8Range{First: packet.ProtoUDP, Last: packet.ProtoUDP}
	}
	if first := uint16(e.IntN(1000)); e.IntN(3) > 0 {
		out.DstPort = flowtable.U16Range{First: first, Last: first + uint16(e.IntN(3))}
	}
	if e.IntN(4) == 0 {
		out.From.Add(2)
	}
	return out
}

// edit changes one entry at a random place: one is added, deleted, moved, gets another action, or asks for more.
func (e *editedPipe) edit(t *testing.T) {
	t.Helper()
	entries, at := slices.Clone(e.entries), e.IntN(len(e.entries))
	switch e.IntN(5) {
	case 0:
		entries = slices.Insert(entries, at, e.entry())
	case 1:
		entries = slices.Delete(entries, at, at+1)
	case 2:
		moved := entries[at]
		entries = slices.Insert(slices.Delete(entries, at, at+1), e.IntN(len(entries)-1), moved)
	case 3:
		entries[at].Verdict ^= flowtable.Verdict(0, uint32(bpf.XDPActionACTION_ALLOW)^uint32(bpf.XDPActionACTION_DENY), 0)
	case 4:
		wider := e.entry()
		e.rules--
		wider.Verdict = entries[at].Verdict
		entries[at] = wider
	}
	e.become(t, entries)
}

// become compiles other entries, as a change of those before where that is possible.
func (e *editedPipe) become(t *testing.T, entries []flowtable.ACLEntry) {
	t.Helper()
	acl, change, ok := e.acl.Revise(entries)
	if !ok {
		var err error
		if acl, err = flowtable.CompileACL(entries); err != nil {
			t.Fatal(err)
		}
		change, e.acl = nil, nil
	}
	e.entries, e.acl, e.revised, e.change = entries, acl, e.acl, change
}

func (e *editedPipe) generation(epoch uint32) Generation {
	return Generation{Epoch: epoch, ACL: e.acl, Revised: e.revised, Change: e.change, Rules: int(e.rules)}
}

// scan is the verdict of the first entry that matches.
func scan(entries []flowtable.ACLEntry, m made, from, to uint8) uint32 {
	within := func(list []flowtable.AddrRange, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(r flowtable.AddrRange) bool {
			return r.First.Is4() == a.Is4() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
		})
	}
	for i := range entries {
		e := &entries[i]
		if within(e.Src, m.src.Addr()) && within(e.Dst, m.dst.Addr()) && e.Proto.First <= m.proto && m.proto <= e.Proto.Last &&
			e.SrcPort.First <= m.src.Port() && m.src.Port() <= e.SrcPort.Last && e.DstPort.First <= m.dst.Port() && m.dst.Port() <= e.DstPort.Last &&
			e.From.Has(from) && e.To.Has(to) {
			return e.Verdict
		}
	}
	return 0
}

// packet is a random one that the entry at a place is about, but for its port now and then.
func (e *editedPipe) packet(at int, sport uint16) made {
	entry := &e.entries[at]
	m := made{proto: packet.ProtoUDP}
	pick := func(list []flowtable.AddrRange, six bool, other string) netip.Addr {
		if len(list) == 0 {
			if six {
				return netip.MustParseAddr("2001:db8:9::9")
			}
			return netip.MustParseAddr(other)
		}
		if e.IntN(2) == 0 {
			return list[0].First
		}
		return list[0].Last
	}
	six := len(entry.Src) > 0 && entry.Src[0].First.Is6()
	m.src = netip.AddrPortFrom(pick(entry.Src, six, "10.7.1.1"), sport)
	m.dst = netip.AddrPortFrom(pick(entry.Dst, six, "10.9.2.2"), entry.DstPort.First+uint16(e.IntN(4)))
	return m
}

// key is what the rules are asked about a packet from LAN to WAN.
func (m made) key() *bpf.XDPClassifyKey {
	k := &bpf.XDPClassifyKey{Sport: m.src.Port(), Dport: m.dst.Port(), Proto: m.proto, Family: 4, From: 2, To: 3}
	if m.src.Addr().Is4() {
		src, dst := m.src.Addr().As4(), m.dst.Addr().As4()
		k.SrcLo, k.DstLo = uint64(binary.BigEndian.Uint32(src[:])), uint64(binary.BigEndian.Uint32(dst[:]))
		return k
	}
	src, dst := m.src.Addr().As16(), m.dst.Addr().As16()
	k.Family = 6
	k.SrcHi, k.SrcLo = binary.BigEndian.Uint64(src[:8]), binary.BigEndian.Uint64(src[8:])
	k.DstHi, k.DstLo = binary.BigEndian.Uint64(dst[:8]), binary.BigEndian.Uint64(dst[8:])
	return k
}

func edits(reduced, full int) int {
	if os.Getenv("SOFTDPU_LONG") != "" {
		return full
	}
	return reduced
}

// A pipe of many entries changes in place, one entry at a time: behind each change the program, the walk in Go and a scan
// of the list say the same of packets that the entries around are about.
func TestReviseEquals(t *testing.T) {
	r := openRig(t, Options{Rules: 1 << 14})
	e := newEditedPipe(t, 7)
	epoch, sport, inPlace := uint32(0), uint16(1024), 0
	publish := func(others bool) {
		t.Helper()
		epoch++
		g := e.generation(epoch)
		if others { // than before: what has changed in memory so far goes into tables of its own
			g.MACs = map[[6]byte]uint16{{2, 0, 0, 0, 0, 9}: 1}
		}
		if err := r.p.Publish(g); err != nil {
			t.Fatal(err)
		}
		if got, _ := r.p.Epoch(); got != epoch {
			t.Fatalf("epoch %d is in force, not %d", got, epoch)
		}
	}
	publish(false)
	rounds := edits(40, 2000)
	for n := range rounds {
		before, tag := r.p.running.Load().xdp, e.change
		e.edit(t)
		publish(n >= rounds/2)
		if same := r.p.running.Load().xdp == before; same != r.p.InPlace() || same && e.change == nil {
			t.Fatalf("edit %d: the same program %v, in place %v, change %p after %p", n, same, r.p.InPlace(), e.change, tag)
		}
		if r.p.InPlace() {
			inPlace++
		}
		for range 60 {
			sport++
			m := e.packet(e.IntN(len(e.entries)), max(sport, 1024))
			if m.src.Addr() == m.dst.Addr() {
				continue // martian
			}
			want := scan(e.entries, m, 2, 3)
			got := r.send("lan", m, toWAN)
			if rule, action := want&0xffffff, want>>24; got.Rule != rule || got.Action != action {
				t.Fatalf("edit %d: XDP gives %+v rule %d, action %d (%v); a scan %d, %d", n, m, got.Rule, got.Action, bpf.XDPReason(got.Reason), rule, action)
			}
			if walk := e.acl.Classify(m.key(), nil); walk != want {
				t.Fatalf("edit %d: the walk gives %+v %#x, a scan %#x", n, m, walk, want)
			}
		}
		r.end()
	}
	t.Logf("%d of %d edits in place", inPlace, rounds)
	if inPlace < rounds*3/4 {
		t.Errorf("only %d of %d edits were made in place", inPlace, rounds)
	}
}

// What differs beside the rules takes another program, and so does a change that was made for another pipe than the
// one in force.
func TestReviseNeedsAProgram(t *testing.T) {
	p := openPlane(t, Options{Simulate: true, Rules: 1 << 14})
	e := newEditedPipe(t, 8)
	epoch := uint32(0)
	publish := func(what string, inPlace bool, with func(g *Generation)) {
		t.Helper()
		epoch++
		g := e.generation(epoch)
		with(&g)
		if err := p.Publish(g); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got, _ := p.Epoch(); p.InPlace() != inPlace || got != epoch {
			t.Errorf("%s: in place %v, epoch %d of %d", what, p.InPlace(), got, epoch)
		}
	}
	turn := func(at int) { // an edit that a change can always say
		entries := slices.Clone(e.entries)
		entries[at].Verdict ^= flowtable.Verdict(0, uint32(bpf.XDPActionACTION_ALLOW)^uint32(bpf.XDPActionACTION_DENY), 0)
		e.become(t, entries)
	}
	plain := func(*Generation) {}
	publish("the first", false, plain)
	turn(1)
	publish("one rule", true, plain)
	publish("the same again", false, plain) // its change is of what was before
	for i, tt := range []struct {
		what  string
		stays bool // the programs have it from then on
		with  func(g *Generation)
	}{
		{"with a MAC", false, func(g *Generation) { g.MACs = map[[6]byte]uint16{{2, 0, 0, 0, 0, 9}: 1} }},
		{"with workers", true, func(g *Generation) { g.Workers = true }},
		{"with a rule that wants a worker", false, func(g *Generation) { g.Works = map[uint32]RuleWork{3: {Stages: bpf.StageForward}} }},
		{"that translates", false, func(g *Generation) {
			g.NAT, g.NATNames = &flowtable.NAT{Rules: []bpf.XDPNatRule{{}}}, []string{""}
		}},
	} {
		turn(2 * i)
		publish(tt.what, false, tt.with)
		turn(2*i + 1)
		publish("behind one "+tt.what, tt.stays, plain)
		turn(2*i + 1)
		publish("and then one rule", true, plain)
	}
	few, err := flowtable.CompileACL(e.entries[:10])
	if err != nil {
		t.Fatal(err)
	}
	e.acl, e.entries, e.revised, e.change = few, e.entries[:10], nil, nil
	publish("with few rules", false, plain)
	e.rules = 1 << 20
	turn(1)
	if err := p.Publish(e.generation(epoch + 1)); err == nil {
		t.Error("a rule without a counter is in force")
	}
}

// What translates stays as it is where the rules change in place, trees of its own too.
func TestReviseKeepsTranslation(t *testing.T) {
	r := openNATRig(t, Options{Rules: 1 << 14}, masquerade("out", "10.0.0.0/8", 1024, 65535))
	e := newEditedPipe(t, 11)
	all := flowtable.ACLEntry{
		Proto: flowtable.U8Range{Last: 255}, SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535},
		Verdict: flowtable.Verdict(5000, uint32(bpf.XDPActionACTION_ALLOW), 0),
	}
	e.rules = 5000
	e.become(t, append(slices.Clone(e.entries), all))
	var sources []flowtable.ACLEntry
	for i := range 3000 { // every other network
		one := all
		first := netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1), 0})
		one.Src = []flowtable.AddrRange{{First: first, Last: lastOf(netip.PrefixFrom(first, 24))}}
		one.Verdict = flowtable.Verdict(1, uint32(bpf.XDPActionACTION_ALLOW), 0)
		sources = append(sources, one)
	}
	nat := *r.p.running.Load().generation.NAT
	var err error
	if nat.Sources, err = flowtable.CompileACLAfter(sources, e.acl); err != nil {
		t.Fatal(err)
	}
	nat.Destinations = nil
	inPlace := 0
	for n := range 12 {
		g := e.generation(uint32(natEpoch + 1 + n))
		g.NAT, g.NATNames = &nat, []string{"", "out"}
		if err := r.p.Publish(g); err != nil {
			t.Fatal(err)
		}
		if r.p.InPlace() {
			inPlace++
		}
		for i := range 40 {
			m := made{proto: packet.ProtoUDP, src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i / 2), byte(n<<3 + i), 9}), uint16(3000+40*n+i)), dst: at("198.51.100.9:53")}
			want, got := scan(e.entries, m, 2, 3), r.send("lan", m, toWAN)
			allowed, translated := want>>24 == uint32(bpf.XDPActionACTION_ALLOW), scan(sources, m, 2, 3) != 0
			if got.Rule != want&0xffffff || (got.Reason == 0) != allowed || (got.Xlat != 0) != (allowed && translated) {
				t.Fatalf("change %d: %+v meets rule %d of %d (%v), translated %#x of %v", n, m, got.Rule, want&0xffffff, bpf.XDPReason(got.Reason), got.Xlat, translated)
			}
		}
		entries := slices.Clone(e.entries)
		entries[n].Verdict ^= flowtable.Verdict(0, uint32(bpf.XDPActionACTION_ALLOW)^uint32(bpf.XDPActionACTION_DENY), 0)
		e.become(t, entries)
	}
	if inPlace < 6 {
		t.Errorf("%d of 11 changes were made in place", inPlace)
	}
}

// Packets come while the rules change, and each is under one of the policies as a whole. One rule moves about, has
// another number in each policy, and allows one of two ports by turns; what it does not allow another one denies.
// Captured, each packet says under which epoch it was judged and by which rule; and the flows say so too.
func TestReviseUnderLoad(t *testing.T) {
	t.Parallel()
	const firstPort = 40000
	g := newGateway(t, "client-server")
	var p *Plane
	g.do(t, func() (err error) {
		p, err = Open(Options{FlowsMax: 1 << 16, Rules: 1 << 14})
		return err
	})
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	e := newEditedPipe(t, 9)
	for i := range e.entries { // they are about others
		e.entries[i].DstPort = flowtable.U16Range{First: uint16(i), Last: uint16(i) + 3}
	}
	rest := e.entries
	denied := e.rules + 1
	e.rules = 10000
	ruleOf := func(epoch uint32) uint32 { return denied + 1 + epoch%1000 }
	at := func(epoch uint32) []flowtable.ACLEntry {
		any := flowtable.ACLEntry{Proto: flowtable.U8Range{Last: 255}, SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535}}
		one, last := any, any
		port := firstPort + uint16(epoch%2)
		one.DstPort = flowtable.U16Range{First: port, Last: port}
		one.Verdict = flowtable.Verdict(ruleOf(epoch), uint32(bpf.XDPActionACTION_ALLOW), 0)
		last.Verdict = flowtable.Verdict(denied, uint32(bpf.XDPActionACTION_DENY), 0)
		return append(slices.Insert(slices.Clone(rest), e.IntN(len(rest)), one), last)
	}
	want := func(epoch uint32, port uint16) (rule uint32, action bpf.XDPAction) {
		if port == firstPort+uint16(epoch%2) {
			return ruleOf(epoch), bpf.XDPActionACTION_ALLOW
		}
		return denied, bpf.XDPActionACTION_DENY
	}
	var err error
	if e.acl, err = flowtable.CompileACL(at(1)); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(e.generation(1)); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	follow(t, p)
	client, server := g.lab.Must(t, "client"), g.lab.Must(t, "server")
	sender, err := client.OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	gateway, err := g.ns.MAC("lan")
	if err != nil {
		t.Fatal(err)
	}
	own, err := client.MAC("c0")
	if err != nil {
		t.Fatal(err)
	}
	sink, err := server.StartCapture("s0", testenv.CaptureOptions{Match: func([]byte) bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Stop()

	epoch, changes := uint32(1), 0
	// load sends while the policy changes some times. No two packets are of one flow.
	sources := 0
	load := func(times int, meanwhile func()) {
		t.Helper()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				sources++
				m := made{proto: packet.ProtoUDP, payload: []byte{1, 2, 3, 4}}
				m.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(sources >> 22), byte(sources >> 14)}), 1024+uint16(sources&0x3fff))
				m.dst = netip.AddrPortFrom(netip.MustParseAddr("10.10.2.2"), firstPort+uint16(n%2))
				frame := append(append(append(slices.Clone([]byte(gateway)), own...), 8, 0), m.ip()...)
				if err := sender.Send(frame); err != nil {
					t.Error(err)
					return
				}
				if n%16 == 0 {
					time.Sleep(100 * time.Microsecond) // so that the capture's ring has room
				}
			}
		})
		for range times {
			epoch++
			e.become(t, at(epoch))
			if err := p.Publish(e.generation(epoch)); err != nil {
				t.Fatal(err)
			}
			if p.InPlace() {
				changes++
			}
			meanwhile()
		}
		close(stop)
		wg.Wait()
	}

	load(3, func() {}) // or a capture would never begin in changed memory
	c, err := p.Capture(CaptureOptions{Points: Points{In: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	seen, epochs := 0, make(map[uint32]bool)
	look := func(head *bpf.XDPTapped, frame []byte) error {
		if len(frame) < 42 || frame[12] != 8 || frame[26] != 10 || frame[27] != 200 {
			return nil
		}
		seen++
		epochs[head.Epoch] = true
		port := binary.BigEndian.Uint16(frame[36:])
		if rule, action := want(head.Epoch, port); head.Rule != rule || bpf.XDPAction(head.Action) != action {
			t.Errorf("a packet to port %d under epoch %d met rule %d, %v: want %d, %v", port, head.Epoch, head.Rule, bpf.XDPAction(head.Action), rule, action)
		}
		return nil
	}
	rounds := edits(25, 1000)
	load(rounds, func() {
		if err := c.Read(look); err != nil {
			t.Fatal(err)
		}
	})
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := c.Drain(look); err != nil {
		t.Fatal(err)
	}
	if seen < 100*rounds || len(epochs) < rounds*3/4 {
		t.Errorf("%d packets were seen, under %d policies", seen, len(epochs))
	}

	table, err := p.Table()
	if err != nil {
		t.Fatal(err)
	}
	flows := 0
	load(rounds, func() {
		time.Sleep(2 * time.Millisecond)
	})
	for f := range table.All() {
		if f.Tuple.Proto != packet.ProtoUDP || f.Tuple.DstPort < firstPort {
			continue
		}
		flows++
		rule, action := want(f.Epoch, f.Tuple.DstPort)
		if f.Revoked { // an ICMP error about it came under a later policy; its rule is that of its first packet
			if action != bpf.XDPActionACTION_DENY {
				t.Errorf("a flow to port %d was revoked by epoch %d, which allows it", f.Tuple.DstPort, f.Epoch)
			}
			continue
		}
		if action != bpf.XDPActionACTION_ALLOW || f.Rule != rule {
			t.Errorf("a flow to port %d of epoch %d is of rule %d", f.Tuple.DstPort, f.Epoch, f.Rule)
		}
	}
	t.Logf("%d packets and %d flows under %d policies, %d of which were changed in place", seen, flows, epoch, changes)
	if flows == 0 || changes < rounds {
		t.Errorf("%d flows; %d changes in place", flows, changes)
	}
}
