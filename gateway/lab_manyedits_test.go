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

	"github.com/softdpu/softdpu/testenv"
)

// A manyPolicy is a policy of many rules like those of ClassBench's sets, in files of a directory, and behind them the
// rule of the flows that live meanwhile.
type manyPolicy struct {
	t      *testing.T
	dir    string
	random *rand.Rand
	files  [][]string // of rules
	rules  int
	names  int
}

const manyHead = "apiVersion: softdpu/v1\nkind: Policy\n"

func newManyPolicy(t *testing.T, dir string, rules, files int) *manyPolicy {
	p := &manyPolicy{t: t, dir: dir, random: rand.New(rand.NewPCG(17, uint64(rules+files))), files: make([][]string, files), rules: rules}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range rules {
		f := i * files / rules
		p.files[f] = append(p.files[f], p.rule())
	}
	var list strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&list, "198.18.%d.%d\n", i/256, i%256)
	}
	p.put("listed.txt", list.String())
	p.put("00-zones.yaml", manyHead+"zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\nsets: {listed: {type: prefix, file: listed.txt}, high: {type: port, entries: [8000-8010, 9000]}}\n")
	p.put("99-live.yaml", manyHead+fmt.Sprintf("rules:\n  - {name: live, from: lan, to: wan, service: udp/%d-%d, action: allow}\n", editPort, editPort+editPorts))
	for f := range p.files {
		p.write(f)
	}
	return p
}

func (p *manyPolicy) put(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *manyPolicy) write(f int) {
	p.t.Helper()
	p.put(fmt.Sprintf("%02d-rules.yaml", 10+f), manyHead+"rules:\n"+strings.Join(p.files[f], ""))
}

// rule makes a rule, one in fifty by sets.
func (p *manyPolicy) rule() string {
	p.names++
	r := p.random
	prefix := func(first int) string {
		bits := []int{32, 32, 32, 31, 30, 24, 23, 22}[r.IntN(8)]
		a, _ := netip.AddrFrom4([4]byte{byte(first + r.IntN(60)), byte(r.IntN(40)), byte(r.IntN(256)), byte(r.IntN(256))}).Prefix(bits)
		return a.String()
	}
	from, service := fmt.Sprintf("{zone: lan, addresses: [%s]}", prefix(16)), fmt.Sprintf("tcp/%d", 1+r.IntN(60_000))
	switch r.IntN(50) {
	case 0:
		from = "{set: listed}"
	case 1:
		service = "{proto: udp, port: {set: high}}"
	case 2, 3, 4, 5, 6:
		service = "tcp"
	case 7, 8, 9:
		service = "udp/1024-65535"
	}
	return fmt.Sprintf("  - {name: r%d, from: %s, to: {zone: wan, addresses: [%s]}, service: %s, action: %s}\n",
		p.names, from, prefix(100), service, []string{"allow", "deny"}[r.IntN(2)])
}

// edit makes a single edit at a random place, which is what it returns.
func (p *manyPolicy) edit(n int) string {
	p.t.Helper()
	f := p.random.IntN(len(p.files))
	lines := p.files[f]
	at := p.random.IntN(len(lines))
	line := lines[at]
	what := ""
	switch n % 5 {
	case 0:
		what, lines = "add", slices.Insert(lines, at, p.rule())
		p.rules++
	case 1:
		what, lines = "delete", slices.Delete(lines, at, at+1)
		p.rules--
	case 2:
		what, lines = "move", slices.Insert(slices.Delete(lines, at, at+1), p.random.IntN(len(lines)-1), line)
	case 3:
		if what, lines[at] = "another action", strings.Replace(line, "action: deny", "action: reject", 1); lines[at] == line {
			lines[at] = strings.Replace(line, "action: allow", "action: deny", 1)
		}
	default:
		what, lines[at] = "widen", strings.NewReplacer("/32]", "/30]", "/31]", "/29]", "/30]", "/28]").Replace(line)
		// Host bits of what it was are no mistake to be made here.
		lines[at] = maskPrefixes(lines[at])
	}
	p.files[f] = lines
	p.write(f)
	return what
}

// maskPrefixes takes the host bits of the prefixes of a rule away.
func maskPrefixes(line string) string {
	fields := strings.SplitAfter(line, "[")
	for i, field := range fields {
		if text, rest, ok := strings.Cut(field, "]"); ok {
			if a, err := netip.ParsePrefix(text); err == nil {
				fields[i] = a.Masked().String() + "]" + rest
			}
		}
	}
	return strings.Join(fields, "")
}

// liveFlows sends numbered packets on flows of UDP, in turn, until it is stopped.
type liveFlows struct {
	probe *editProbe
	conns []net.PacketConn
	sent  []uint32
	stop  func()
}

func startLiveFlows(t *testing.T, probe *editProbe, flows int) *liveFlows {
	t.Helper()
	l := &liveFlows{probe: probe}
	for range flows {
		c := probe.socket()
		t.Cleanup(func() { c.Close() })
		l.conns = append(l.conns, c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	l.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(l.stop)
	wg.Go(func() {
		for n := uint32(1); ctx.Err() == nil; n++ {
			b := binary.BigEndian.AppendUint32([]byte(editMagic), n)
			to := netip.AddrPortFrom(server4, editPort+uint16(n)%editPorts)
			if _, err := l.conns[int(n)%flows].WriteTo(b, net.UDPAddrFromAddrPort(to)); err != nil {
				t.Errorf("send packet %d: %v", n, err)
				return
			}
			l.sent = append(l.sent, n)
			if n%4 == 0 {
				time.Sleep(2 * time.Millisecond)
			}
		}
	})
	return l
}

// A policy of many rules, in one file and in several, is edited one rule at a time, by the control socket, under
// live flows that lose nothing. SOFTDPU_LONG=1 makes it 100 edits of 100,000 rules under 1,000 flows.
func TestLabManyEdits(t *testing.T) {
	binary := buildSoftdpu(t, thisVersion)
	rules, edits, flows := sized(3000, 100_000), sized(5, 100), sized(50, 1000)
	for _, row := range []struct {
		name  string
		files int
		sets  bool // were given entries at runtime
	}{{"one file", 1, false}, {"a directory and sets", 20, true}} {
		files := row.files
		t.Run(row.name, func(t *testing.T) {
			l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-many"})
			c := write(t, strings.Replace(labRouted, "policy.yaml", "policy.d", 1), labPolicy)
			policy := newManyPolicy(t, filepath.Join(filepath.Dir(c.File), "policy.d"), rules, files)
			c = must(LoadConfig(c.File))
			p := startProcess(t, l.Must(t, testenv.Gateway), binary, c)
			p.ready(t)
			if row.sets {
				must(p.AddToSet(t.Context(), "listed", entries("203.0.113.77")))
			}
			live := startLiveFlows(t, newEditProbe(t, l), flows)
			var inForce, answered []float64
			inPlace := 0
			for n := range edits {
				program := idInForce(t, l.Must(t, testenv.Gateway))
				what := policy.edit(n)
				began := time.Now()
				done, err := p.Reload(t.Context())
				if err != nil {
					t.Fatalf("edit %d, %s: %v", n, what, err)
				}
				answered, inForce = append(answered, time.Since(began).Seconds()*1000), append(inForce, done.TookMS)
				if done.Rules != policy.rules+1 {
					t.Errorf("edit %d, %s: %d rules are in force, want %d", n, what, done.Rules, policy.rules+1)
				}
				if program == idInForce(t, l.Must(t, testenv.Gateway)) {
					inPlace++
				}
			}
			live.stop()
			live.probe.arrive("behind all edits", live.sent)
			for _, d := range must(p.Drops(t.Context(), false)) {
				t.Errorf("%d packets were dropped: %s", d.Packets, d.Reason)
			}
			last := must(p.History(t.Context()))
			if changed := last[0].Changes; len(last) < min(edits, historyEntries) || last[0].Rules != policy.rules+1 || changed == nil || changed.Rules.Added+changed.Rules.Removed+changed.Rules.Changed+changed.Rules.Moved == 0 {
				t.Errorf("the history has %d entries, the last %+v", len(last), last[0])
			}
			at := func(ms []float64, share int) float64 {
				return slices.Sorted(slices.Values(ms))[(len(ms)-1)*share/100]
			}
			t.Logf("%d edits of %d rules, %d of them in place, under %d flows, %d packets: in force after %.0f ms (p50), %.0f (p90), %.0f (p99), answered after %.0f, %.0f, %.0f",
				edits, rules, inPlace, flows, len(live.sent), at(inForce, 50), at(inForce, 90), at(inForce, 99), at(answered, 50), at(answered, 90), at(answered, 99))
			if inPlace < edits*3/4 {
				t.Errorf("only %d of %d edits were made in place", inPlace, edits)
			}
			if most := sized(2000.0, 500); at(inForce, 50) > most { // far below what reading all of it takes
				t.Errorf("in force after %.0f ms, want %.0f at most", at(inForce, 50), most)
			}
			p.stop(t)
		})
	}
}
