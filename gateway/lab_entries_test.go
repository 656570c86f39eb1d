package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

const labEntries = `apiVersion: softdpu/v1
kind: Pipeline
name: edge
root: services
pipes:
  - name: services
    kind: basic
    match: [ip.proto, l4.dport]
    size: 4
    resizable: true
    miss: {pipe: steer}
    monitor: {count: true}
    entries: [{name: closed, match: {ip.proto: tcp, l4.dport: 5002}, forward: drop}]
  - name: steer
    kind: control
    miss: {pipe: nets}
    monitor: {count: true}
  - name: nets
    kind: lpm
    match: [ipv4.dst]
    size: 3
    miss: {pipe: used}
    forward: {pipe: used}
  - name: used
    kind: basic
    match: [l4.dport]
    size: 100
    miss: policy
    forward: policy
    monitor: {count: true, age: 4s, remove: true}
    entries: [{match: {l4.dport: 5001}}, {name: never, match: {l4.dport: 9}}]
`

// entriesLab is a gateway with that pipeline, in front of which people change entries.
type entriesLab struct {
	*testing.T
	*process
	config *Config
	binary string
	client *testenv.Namespace
}

// run is the command that people type; it returns what it says, and its exit code.
func (l *entriesLab) run(input string, args ...string) (string, int) {
	l.Helper()
	cmd := exec.Command(l.binary, append([]string{"pipeline"}, args...)...)
	cmd.Args = append(cmd.Args, "--socket", l.config.Control.Socket)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		l.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// says runs it, and wants an exit code and words in what it says.
func (l *entriesLab) says(code int, words []string, input string, args ...string) {
	l.Helper()
	out, got := l.run(input, args...)
	if got != code {
		l.Errorf("%v ends with code %d, want %d: %s", args, got, code, out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			l.Errorf("%v does not say %q: %s", args, w, out)
		}
	}
}

func (l *entriesLab) dial(port uint16) error {
	conn, err := l.client.Dial(limited(l.T, time.Second), "tcp", netip.AddrPortFrom(server4, port).String())
	if err == nil {
		err = swap(conn, rand.New(rand.NewPCG(3, uint64(port))), 5*time.Second)
		conn.Close()
	}
	return err
}

// open wants a port to answer, or not to.
func (l *entriesLab) open(port uint16, want bool) {
	l.Helper()
	if err := l.dial(port); (err == nil) != want {
		l.Errorf("port %d: %v, want an answer: %v", port, err, want)
	}
}

func (l *entriesLab) found(pipe string, match ...string) *PipelineEntries {
	l.Helper()
	return must(l.PipelineEntries(l.Context(), pipe, "", match, 0, 10_000))
}

// aged are the events of entries that are old.
func (l *entriesLab) aged() (list []evePipelineEntry) {
	l.Helper()
	text, err := os.ReadFile(l.config.Events.File)
	if err != nil {
		l.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e eveEvent
		if err := json.Unmarshal([]byte(line), &e); err == nil && e.Softdpu.Event == "entry-aged" && e.Pipeline.Pipe == "used" {
			list = append(list, *e.Pipeline.Entry)
		}
	}
	return list
}

// Entries of a pipeline in force are added, updated and removed by people while a connection goes on: what is changed
// decides about the next packet, survives kill -9, and ages; a pipe grows; two who change one do not meet.
func TestLabEntries(t *testing.T) {
	t.Parallel()
	lab := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-entry"})
	client, server, gw := lab.Must(t, "client"), lab.Must(t, "server"), lab.Must(t, testenv.Gateway)
	c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1), setsPolicy[:strings.Index(setsPolicy, "sets:")]+`rules: [{name: all, from: {zone: lan}, to: {zone: wan}, action: allow}]
`)
	l := &entriesLab{T: t, config: c, binary: buildSoftdpu(t, ""), client: client}
	l.process = startProcess(t, gw, l.binary, c)
	l.ready(t)
	for _, port := range []uint16{5001, 5002, 5003} {
		echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, port)))
		t.Cleanup(func() { echo.Close() })
	}
	l.says(2, []string{"no pipeline is in force"}, "", "entries", "services")
	l.says(0, []string{"edge is in force: 4 pipes, 3 entries"}, labEntries, "apply", "-")

	// A connection goes on all the time, through all pipes.
	ctx, cancel := context.WithCancel(t.Context())
	live := must(client.Dial(limited(t, 5*time.Second), "tcp", netip.AddrPortFrom(server4, 5001).String()))
	broken := make(chan error, 1)
	go func() {
		defer live.Close()
		for random := rand.New(rand.NewPCG(7, 7)); ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			if err := swap(live, random, 20*time.Second); err != nil {
				broken <- err
				return
			}
		}
		broken <- nil
	}()

	t.Run("one by one", func(t *testing.T) { l.oneByOne() })
	t.Run("refused", func(t *testing.T) { l.refused() })
	t.Run("grows", func(t *testing.T) { l.grows() })
	t.Run("two clients", func(t *testing.T) { l.twoClients() })

	// After kill -9 all is as it was.
	before := map[string]*PipelineEntries{"services": l.found("services"), "steer": l.found("steer"), "nets": l.found("nets")}
	l.kill()
	l.process = startProcess(t, gw, l.binary, c)
	l.ready(t)
	for name, want := range before {
		if got := l.found(name); !slices.Equal(texts(got), texts(want)) {
			t.Errorf("after a start pipe %s has %d entries, and had %d", name, got.Total, want.Total)
		}
	}
	l.open(5002, false)
	l.open(5003, true)

	t.Run("ages", func(t *testing.T) { l.ages() })
	cancel()
	if err := <-broken; err != nil {
		t.Errorf("the connection that went on meanwhile: %v", err)
	}
	for _, d := range must(l.Drops(t.Context(), false)) {
		if d.Reason != "pipe-drop" {
			t.Errorf("packets were dropped: %+v", d)
		}
	}
	l.stop(t)
}

// texts are the entries as files have them, in no order.
func texts(all *PipelineEntries) (list []string) {
	for i := range all.Entries {
		list = append(list, string(all.Entries[i].Entry))
	}
	slices.Sort(list)
	return list
}

// oneByOne changes single entries of each kind that changes in another way.
func (l *entriesLab) oneByOne() {
	l.open(5003, true)
	tcp5003 := []string{"--match", "ip.proto=tcp", "--match", "l4.dport=5003"}
	l.says(0, []string{"services: 1 added; 2 entries in force, room for 4"}, "", append([]string{"entry", "add", "services", "--forward", "drop", "-m", "CHG-1"}, tcp5003...)...)
	l.open(5003, false)
	l.open(5001, true)
	e := l.found("services", "l4.dport=5003", "ip.proto=tcp")
	if len(e.Entries) != 1 || e.Total != 2 || *e.Entries[0].Packets == 0 || e.Entries[0].Forward != "drop" {
		l.Fatalf("found %+v", e)
	}
	counted := *e.Entries[0].Packets
	l.says(0, []string{"services: 1 updated; 2 entries"}, `[{match: {l4.dport: 5003, ip.proto: tcp}, forward: policy}]`, "entry", "update", "services", "-")
	l.open(5003, true)
	if e := l.found("services", "l4.dport=5003", "ip.proto=tcp"); *e.Entries[0].Packets <= counted || e.Entries[0].Forward != "policy" {
		l.Errorf("after an update it is %+v, and had counted %d", e.Entries[0], counted)
	}
	done := must(l.ChangePipelineEntries(l.Context(), "services", "", "", strings.NewReader(`{"remove": [{"match": {"ip.proto": "tcp", "l4.dport": 5003}}], "update": [{"name": "shut", "match": {"ip.proto": "tcp", "l4.dport": 5002}, "forward": "drop"}]}`)))
	if done.Removed != 1 || done.Updated != 1 || done.Rebuilt || *done.Results[0].Packets <= counted || done.Results[1].Packets != nil {
		l.Errorf("a batch comes to %+v", done)
	}
	// What is compiled anew is another program, which nobody notices.
	l.says(0, []string{"steer: 1 added; 1 entry"}, "", "entry", "add", "steer", "--name", "no-5003", "--match", "l4.dport=5003", "--forward", "drop")
	l.open(5003, false)
	if e := l.found("services"); e.Total != 1 || e.Entries[0].Name != "shut" {
		l.Errorf("then the other pipe has %+v", e)
	}
	l.says(0, []string{"steer: 1 removed; 0 entries"}, "", "entry", "remove", "steer", "--name", "no-5003")
	l.open(5003, true)
	// Prefixes.
	l.says(0, []string{"nets: 1 added"}, "", "entry", "add", "nets", "--prefix", server4.String()+"/32", "--forward", "pipe:used")
	l.says(0, nil, "", "entries", "nets", "--match", "ipv4.dst="+server4.String()+"/32")
	l.says(1, nil, "", "entries", "nets", "--match", "ipv4.dst=203.0.113.0/24")
}

// refused asks for what cannot be done.
func (l *entriesLab) refused() {
	before := texts(l.found("nets"))
	l.says(1, []string{"nets: 2 added, 2 not changed; 3 entries in force, room for 3", `standard input:1: the entry is there already`, "(update it)", `standard input:4: pipe "nets" is full: it has room for 3 entries (raise its size`},
		"- prefix: "+server4.String()+"/32\n- prefix: 198.51.100.0/24\n- prefix: 203.0.113.0/24\n- prefix: 192.0.2.0/24\n", "entry", "add", "nets", "-")
	l.says(1, []string{"there is no such entry", "2 removed, 1 not changed"}, "[{prefix: 198.51.100.0/24}, {prefix: 203.0.113.0/24}, {prefix: 192.0.2.0/24}]", "entry", "remove", "nets", "-")
	l.says(1, []string{`entry "x": field ipv4.dst: it has no prefix`, "1 not changed"}, "[{name: x}]", "entry", "add", "nets", "-")
	l.says(2, []string{"standard input:1:", "nothing was changed", "did you mean"}, "[{prefx: 1.0.0.0/8}]", "entry", "add", "nets", "-")
	l.says(2, []string{`unknown pipe "nest"`, `did you mean "nets"`}, "[]", "entry", "add", "nest", "-")
	l.says(1, []string{`the gateway has no port "lam"`, `did you mean "lan"`}, "[{match: {port: lam}, forward: drop}]", "entry", "add", "steer", "-")
	// What the whole pipeline cannot do is refused as a whole.
	l.says(2, []string{"packets would come back to pipe"}, "[{match: {l4.dport: 5003}, forward: {pipe: services}}]", "entry", "add", "used", "-")
	if got := texts(l.found("nets")); !slices.Equal(got, before) {
		l.Errorf("then there are %v, before there were %v", got, before)
	}
	l.open(5003, true)
}

// grows adds far more entries than there is room for.
func (l *entriesLab) grows() {
	const many = 10_000
	var b strings.Builder
	for i := range many {
		fmt.Fprintf(&b, "%c{\"match\": {\"ip.proto\": %d, \"l4.dport\": %d}, \"forward\": \"drop\"}\n", ",["[min(1, 1-min(i, 1))], 17+i/5000*83, 10_000+i%5000)
	}
	b.WriteString("]")
	began := time.Now()
	done, err := l.ChangePipelineEntries(l.Context(), "services", "add", "", strings.NewReader(b.String()))
	if err != nil {
		l.Fatal(err)
	}
	l.Logf("%d entries in %s", many, time.Since(began))
	if done.Added != many || done.Failed != 0 || done.Entries != many+1 || done.Size < done.Entries || !done.Rebuilt {
		l.Errorf("%d added, %d failed, %d there, room for %d, rebuilt %v", done.Added, done.Failed, done.Entries, done.Size, done.Rebuilt)
	}
	for i := range must(l.Pipeline(l.Context(), 0)).Runs.Pipes {
		if p := must(l.Pipeline(l.Context(), 0)).Runs.Pipes[i]; p.Name == "services" && (p.Total != many+1 || p.Size != done.Size) {
			l.Errorf("show says %d of %d", p.Total, p.Size)
		}
	}
	l.open(5002, false)
	l.open(5003, true)
	if done := must(l.ChangePipelineEntries(l.Context(), "services", "remove", "", strings.NewReader(b.String()))); done.Removed != many || done.Rebuilt {
		l.Errorf("%d removed, rebuilt %v", done.Removed, done.Rebuilt)
	}
}

// twoClients add and remove entries at the same time, each their own.
func (l *entriesLab) twoClients() {
	var wg sync.WaitGroup
	for who := range 2 {
		wg.Go(func() {
			entry := func(port int) *strings.Reader {
				return strings.NewReader(fmt.Sprintf("[{match: {ip.proto: udp, l4.dport: %d}, forward: drop}]", port))
			}
			for i := range 40 {
				port := 20_000 + who*1000 + i
				if done, err := l.ChangePipelineEntries(l.Context(), "services", "add", "", entry(port)); err != nil || done.Added != 1 {
					l.Errorf("adding %d comes to %+v, %v", port, done, err)
				}
				if i%2 == 1 {
					if done, err := l.ChangePipelineEntries(l.Context(), "services", "remove", "", entry(port-1)); err != nil || done.Removed != 1 {
						l.Errorf("removing %d comes to %+v, %v", port-1, done, err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := l.found("services").Total; n != 41 {
		l.Errorf("there are %d entries, want 41", n)
	}
}

// ages waits for an entry that nobody uses to be old: it is told of once, and gone; one that is used stays.
func (l *entriesLab) ages() {
	if _, err := l.ChangePipelineEntries(l.Context(), "used", "add", "", strings.NewReader("[{name: idle, match: {l4.dport: 5003}}]")); err != nil {
		l.Fatal(err)
	}
	testenv.Eventually(l, 20*time.Second, func() error {
		if all := l.found("used"); all.Total != 1 {
			return fmt.Errorf("there are %d entries", all.Total)
		}
		return nil
	})
	testenv.Eventually(l, 10*time.Second, func() error {
		for _, e := range l.aged() {
			if e.Name == "idle" {
				return nil
			}
		}
		return errors.New("no event of the entry")
	})
	told := map[string]int{}
	for _, e := range l.aged() {
		told[e.Name]++
		if e.IdleS < 4 || !e.Removed {
			l.Errorf("old is %+v", e)
		}
	}
	if told["idle"] != 1 || told[""] != 0 {
		l.Errorf("told of are %v", told)
	}
	all := l.found("used")
	if e := &all.Entries[0]; e.Match[0] != "l4.dport=5001" || *e.AgeS != 4 || *e.UnusedS > 4 || *e.Packets == 0 {
		l.Errorf("what is used is %+v", e)
	}
	l.says(1, nil, "", "entries", "used", "--name", "idle")
	l.open(5003, true) // a miss
}
