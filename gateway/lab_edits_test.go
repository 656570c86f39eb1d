package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/testenv"
)

// An editRule is a rule about UDP to a run of ports, by number from editPort on, of some sources.
type editRule struct {
	name        string
	first, last int
	from        netip.Prefix
	allow       bool
}

const (
	editRules = 2400 // more than become instructions
	editPorts = 400
	editPort  = 20000
	editMagic = "edited:" // and a number
)

func (r *editRule) String() string {
	action := "deny"
	if r.allow {
		action = "allow"
	}
	return fmt.Sprintf("{name: %s, from: {zone: LAN, addresses: [%s]}, to: {zone: WAN}, service: udp/%d-%d, action: %s}",
		r.name, r.from, editPort+r.first, editPort+r.last, action)
}

func randomRule(random *rand.Rand, name string) editRule {
	r := editRule{name: name, first: random.IntN(editPorts), allow: random.IntN(2) == 0}
	r.last = min(r.first+random.IntN(3), editPorts-1)
	r.from, _ = client4.Prefix(20 + random.IntN(13))
	if random.IntN(4) == 0 {
		r.from, _ = client4.Next().Next().Prefix(25 + random.IntN(8)) // until it is widened another's, perhaps
	}
	return r
}

// editOne changes one rule: one is added, deleted, moved, gets another action or more sources.
func editOne(random *rand.Rand, rules []editRule, n int) (string, []editRule) {
	rules, at := slices.Clone(rules), random.IntN(len(rules))
	r := rules[at]
	switch random.IntN(5) {
	case 0:
		return "add", slices.Insert(rules, at, randomRule(random, fmt.Sprintf("added-%d", n)))
	case 1:
		return "delete " + r.name, slices.Delete(rules, at, at+1)
	case 2:
		return "move " + r.name, slices.Insert(slices.Delete(rules, at, at+1), random.IntN(len(rules)-1), r)
	case 3:
		rules[at].allow = !r.allow
		return "another action of " + r.name, rules
	}
	rules[at].from, _ = r.from.Addr().Prefix(max(16, r.from.Bits()-1-random.IntN(4)))
	return "widen " + r.name, rules
}

// verdicts say for each port whether the client may send there.
func verdicts(rules []editRule) (allowed [editPorts]bool) {
	var decided [editPorts]bool
	for i := range rules {
		r := &rules[i]
		if !r.from.Contains(client4) {
			continue
		}
		for port := r.first; port <= r.last; port++ {
			if !decided[port] {
				decided[port], allowed[port] = true, r.allow
			}
		}
	}
	return allowed
}

// An editProbe sends numbered packets and knows which have arrived.
type editProbe struct {
	t      *testing.T
	client *testenv.Namespace
	far    *testenv.Capture
	next   uint32

	mu      sync.Mutex
	arrived map[uint32]bool
	never   map[uint32]string // which must not, and why
}

func newEditProbe(t *testing.T, l *testenv.Lab) *editProbe {
	p := &editProbe{t: t, client: l.Must(t, "client"), arrived: make(map[uint32]bool), never: make(map[uint32]string)}
	p.far = must(l.Must(t, "server").StartCapture("s0", testenv.CaptureOptions{Match: func(frame []byte) bool {
		if i := strings.Index(string(frame), editMagic); i >= 0 && len(frame) >= i+len(editMagic)+4 {
			p.mu.Lock()
			p.arrived[binary.BigEndian.Uint32(frame[i+len(editMagic):])] = true
			p.mu.Unlock()
		}
		return false
	}}))
	t.Cleanup(func() { p.far.Stop() })
	return p
}

// socket is one of the client, closed by the test.
func (p *editProbe) socket() net.PacketConn {
	p.t.Helper()
	c := must(p.client.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(client4, 0).String()))
	return c
}

// send sends one packet and returns its number.
func (p *editProbe) send(c net.PacketConn, port int) uint32 {
	p.t.Helper()
	p.next++
	b := binary.BigEndian.AppendUint32([]byte(editMagic), p.next)
	if _, err := c.WriteTo(b, net.UDPAddrFromAddrPort(netip.AddrPortFrom(server4, uint16(editPort+port)))); err != nil {
		p.t.Fatal(err)
	}
	return p.next
}

// arrive waits for packets, and then finds none that should not have come.
func (p *editProbe) arrive(what string, wanted []uint32) {
	p.t.Helper()
	testenv.Eventually(p.t, 10*time.Second, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, n := range wanted {
			if !p.arrived[n] {
				return fmt.Errorf("%s: packet %d, which is allowed, has not arrived", what, n)
			}
		}
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, why := range p.never {
		if p.arrived[n] {
			p.t.Fatalf("%s: packet %d has arrived: %s", what, n, why)
		}
	}
}

// idInForce is the number of the XDP program that packets in a namespace meet.
func idInForce(t *testing.T, ns *testenv.Namespace) ebpf.ProgramID {
	t.Helper()
	id, ok := programInForce(t, ns).ID()
	if !ok {
		t.Fatal("this kernel does not number programs")
	}
	return id
}

// A policy of thousands of rules is edited one rule at a time, and each edit is in force with the next packet: what is
// allowed before and denied then, on flows that are there and on new ones, and the other way round. Streams
// of both kinds lose nothing meanwhile, also where the gateway is killed, behind an edit and in one; what is killed in
// an edit leaves one of the two policies whole.
func TestLabSingleEdits(t *testing.T) {
	binary := buildSoftdpu(t, thisVersion)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-edits"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	random := rand.New(rand.NewPCG(5, 5))
	var rules []editRule
	for i := range editRules {
		rules = append(rules, randomRule(random, fmt.Sprintf("rule-%d", i)))
	}
	text := func(rules []editRule) string {
		all := []string{refusedRule, streamRule}
		for i := range rules {
			all = append(all, rules[i].String())
		}
		return policyOf("lan", "wan", "talk", append(all, talkRule)...)
	}
	c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1), text(rules))
	rewrite := func(rules []editRule) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), "policy.yaml"), []byte(text(rules)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 17)))
	defer echo.Close()
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	s := startStream(t, l)
	first := s.sent.Load()
	conn := must(client.Dial(limited(t, 5*time.Second), "tcp", echo.Addr().String()))
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	swaps := 0
	wg.Go(func() {
		talk := rand.New(rand.NewPCG(7, 7))
		for ; ctx.Err() == nil; swaps++ {
			if err := swap(conn, talk, 20*time.Second); err != nil {
				t.Errorf("exchange %d: %v", swaps, err)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	defer func() { cancel(); wg.Wait() }()

	probe := newEditProbe(t, l)
	times, inPlace, kills := sized(9, 100), 0, 0
	for n := range times {
		now := verdicts(rules)
		var what string
		var next []editRule
		var ports []int
		for try := 0; len(ports) == 0 && try < 500; try++ {
			what, next = editOne(random, rules, n)
			ports = nil
			for port, allowed := range verdicts(next) {
				if allowed != now[port] {
					ports = append(ports, port)
				}
			}
		}
		what = fmt.Sprintf("edit %d, %s", n, what)
		then := verdicts(next)
		ports = append(ports, random.IntN(editPorts), random.IntN(editPorts))
		old := make(map[int]net.PacketConn)
		var wanted []uint32
		sent := func(from net.PacketConn, port int, allowed bool, why string) {
			if number := probe.send(from, port); allowed {
				wanted = append(wanted, number)
			} else {
				probe.mu.Lock()
				probe.never[number] = fmt.Sprintf("%s: port %d is denied %s", what, port, why)
				probe.mu.Unlock()
			}
		}
		for _, port := range ports {
			if old[port] == nil {
				old[port] = probe.socket()
			}
			sent(old[port], port, now[port], "before it")
		}
		probe.arrive(what+", before", wanted)

		refused := n%13 == 1
		if refused { // and with the one that is put right it goes on in the same memory
			wrong := text(next) + "tests:\n  - {name: wrong, packet: {in: lan, out: wan, src: 10.10.1.2, dst: 10.10.2.2, service: udp/6000}, expect: {verdict: allow}}\n"
			if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), "policy.yaml"), []byte(wrong), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Reload(t.Context()); err == nil {
				t.Fatalf("%s: a policy whose test fails is in force", what)
			}
		}
		rewrite(next)
		program := idInForce(t, gw)
		killed := n%13 == 3
		if killed {
			kills++
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = p.Reload(t.Context()) // which does not come to its end, perhaps
			}()
			time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
			p.kill()
			<-ended
			// One of the two, as a whole.
			wanted = nil
			numbers := make(map[int]uint32)
			socket := probe.socket()
			for _, port := range ports {
				numbers[port] = probe.send(socket, port)
			}
			always := 0
			for !now[always] || !then[always] {
				always++
			}
			probe.arrive(what+", killed", []uint32{probe.send(socket, always)}) // and with it those before it
			socket.Close()
			probe.mu.Lock()
			before, after := true, true
			for port, number := range numbers {
				before = before && probe.arrived[number] == now[port]
				after = after && probe.arrived[number] == then[port]
			}
			probe.mu.Unlock()
			if before == after && slices.ContainsFunc(ports, func(port int) bool { return now[port] != then[port] }) {
				t.Fatalf("%s, killed: neither policy is in force as a whole, or both", what)
			}
			p = startProcess(t, gw, binary, c)
			p.ready(t)
		} else {
			must(p.Reload(t.Context()))
			if program == idInForce(t, gw) {
				inPlace++
			} else if refused {
				t.Errorf("%s, behind one that was refused, takes a program of its own", what)
			}
		}
		wanted = nil
		for _, port := range ports {
			sent(old[port], port, then[port], "behind it, on a flow that was there")
			socket := probe.socket()
			sent(socket, port, then[port], "behind it")
			socket.Close()
		}
		probe.arrive(what, wanted)
		for _, socket := range old {
			socket.Close()
		}
		rules = next
		if n%13 == 6 {
			p.kill()
			p = startProcess(t, gw, binary, c)
			p.ready(t)
			if !strings.Contains(p.log.String(), "is taken over") {
				t.Errorf("not taken over:\n%s", p.log)
			}
		}
	}
	cancel()
	wg.Wait()
	last := s.sent.Load()
	if missing := s.missing(first+2, last); len(missing) > 0 {
		t.Errorf("missing of %d..%d: %v", first, last, missing)
	}
	probe.arrive("in the end", nil)
	for _, reason := range []string{"wrong-zone", "flow-gone", "generation-absent", "internal"} {
		if d := (&testGateway{Client: p.Client}).dropped(t, reason); d.Packets > 0 {
			t.Errorf("%d packets were dropped: %s", d.Packets, reason)
		}
	}
	t.Logf("%d edits, %d of them in place; %d exchanges, %d numbers", times, inPlace, swaps, last-first)
	if inPlace < (times-kills)*3/4 {
		t.Errorf("only %d of %d edits were made in place", inPlace, times-kills)
	}
}
