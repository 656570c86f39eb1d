package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/testenv"
)

const labPipeline = `apiVersion: softdpu/v1
kind: Pipeline
name: edge
root: steer
pipes:
  - name: steer
    kind: control
    miss: policy
    monitor: {count: true}
    entries:
      - {name: closed, priority: 1, match: {ip.proto: tcp, l4.dport: 5002}, forward: drop}
      - {name: bulk, priority: 2, match: {port: lan, ip.proto: tcp, l4.dport: 5001}, forward: {pipe: hosts}}
  - name: hosts
    kind: basic
    match: [ipv4.src]
    size: 1000
    miss: drop
    monitor: {count: true}
    actions: [{name: note, do: [{set: ip.dscp, value: cs1}]}]
    entries: [{match: {ipv4.src: 10.10.1.2}, forward: policy}]
`

// A pipeline is applied by the command that people type, under a live connection that loses nothing; it is in force after
// a reload and after kill -9, tells of packets, refuses what is wrong, and is gone when it is removed or the gateway stops.
func TestLabPipeline(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-pipe"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1), setsPolicy[:strings.Index(setsPolicy, "sets:")]+`rules: [{name: all, from: {zone: lan}, to: {zone: wan}, action: allow}]
`)
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	random := rand.New(rand.NewPCG(12, 12))
	for _, port := range []uint16{5001, 5002} {
		echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, port)))
		t.Cleanup(func() { echo.Close() })
	}
	dial := func(port uint16) error {
		conn, err := client.Dial(limited(t, time.Second), "tcp", netip.AddrPortFrom(server4, port).String())
		if err == nil {
			err = swap(conn, random, 5*time.Second)
			conn.Close()
		}
		return err
	}
	live := must(client.Dial(limited(t, 5*time.Second), "tcp", netip.AddrPortFrom(server4, 5001).String()))
	defer live.Close()
	works := func() {
		t.Helper()
		if err := swap(live, random, 10*time.Second); err != nil {
			t.Error(err)
		}
	}
	works()
	run := func(input string, args ...string) (string, error) {
		t.Helper()
		cmd := exec.Command(binary, append([]string{"pipeline"}, args...)...)
		cmd.Args = append(cmd.Args, "--socket", c.Control.Socket)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	file := filepath.Join(t.TempDir(), "edge.yaml")
	if err := os.WriteFile(file, []byte(labPipeline), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := run("", "show"); err != nil || !strings.Contains(out, "no pipeline is in force") {
		t.Errorf("before: %v: %s", err, out)
	}
	if err := dial(5002); err != nil {
		t.Errorf("before: %v", err)
	}
	if out, err := run("", "apply", file, "-m", "CHG-9"); err != nil || out != "edge is in force: 2 pipes, 3 entries\n" {
		t.Fatalf("%v: %s", err, out)
	}
	closed := func() {
		t.Helper()
		works()
		if err := dial(5002); err == nil {
			t.Error("what a pipe drops is connected")
		}
		if err := dial(5001); err != nil {
			t.Error(err)
		}
	}
	closed()
	in := must(p.Pipeline(t.Context(), 10))
	if in == nil || in.AppliedBy != "root" || in.Comment != "CHG-9" || len(in.Runs.Pipes) != 2 || *in.Runs.Pipes[0].Entries[0].Packets == 0 || *in.Runs.Pipes[1].Entries[0].Packets == 0 {
		t.Errorf("in force is %+v", in)
	}
	// Another one, with the same names, goes on counting; one that is wrong changes nothing.
	before := *in.Runs.Pipes[0].Entries[0].Packets
	if out, err := run(labPipeline, "apply", "-"); err != nil || !strings.Contains(out, ", in the place of edge\n") {
		t.Errorf("%v: %s", err, out)
	}
	if in := must(p.Pipeline(t.Context(), 10)); *in.Runs.Pipes[0].Entries[0].Packets < before {
		t.Errorf("it counts %d, and %d before", *in.Runs.Pipes[0].Entries[0].Packets, before)
	}
	out, err := run(strings.Replace(labPipeline, "port: lan", "port: lam", 1), "apply", "-")
	if err == nil || !strings.Contains(out, "standard input:12:") || !strings.Contains(out, `did you mean "lan"`) {
		t.Errorf("a port that there is not: %v: %s", err, out)
	}
	var errs firewall.Errors
	if _, err := p.ApplyPipeline(t.Context(), "", strings.NewReader(strings.Replace(labPipeline, "miss: drop", "miss: {pipe: steer}", 1))); !errors.As(err, &errs) || errs[0].Line == 0 {
		t.Errorf("a circle: %v", err)
	}
	closed()
	if _, err := p.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	closed()

	// Somebody looks on.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	seen := errors.New("seen")
	go func() {
		for ctx.Err() == nil {
			_ = dial(5002)
		}
	}()
	err = p.TracePipeline(ctx, func(w *PipelineWalk) error {
		if w.Forward == "drop" && w.Port == "lan" && len(w.Steps) == 1 && w.Steps[0].Pipe == "steer" && w.Steps[0].Entry == "closed" && len(w.Head) > 60 {
			return seen
		}
		return nil
	})
	cancel()
	if !errors.Is(err, seen) {
		t.Errorf("a trace shows no packet that is dropped: %v", err)
	}
	works()

	// A configuration without a port that the pipeline names is refused as a whole.
	edit := func(from, to string) {
		t.Helper()
		for file, part := range map[string]string{c.File: "ports: {%s: {device: lan}", filepath.Join(filepath.Dir(c.File), "policy.yaml"): "{ports: [%s]}"} {
			text := string(must(os.ReadFile(file)))
			if text = strings.Replace(text, fmt.Sprintf(part, from), fmt.Sprintf(part, to), 1); !strings.Contains(text, fmt.Sprintf(part, to)) {
				t.Fatalf("nothing changes in %s", file)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	edit("lan", "lan9")
	if _, err := p.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "there is no port lan any more, and pipeline edge names it") {
		t.Errorf("a configuration without a port of the pipeline: %v", err)
	}
	edit("lan9", "lan")
	works()
	// One that forwards to workers starts them.
	staged := strings.Replace(labPipeline, "root: steer", "root: steer\nbypasses_policy: true", 1) +
		"  - {name: spare, kind: control, miss: {stage: forward, port: wan}}\n"
	if out, err := run(staged, "apply", "-"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if s := must(p.Workers(t.Context())); !s.Running || !slices.Equal(s.NeededBy, []string{"pipeline edge forwards to stage forward"}) {
		t.Errorf("workers run: %v, needed by %q", s.Running, s.NeededBy)
	}
	closed()
	if out, err := run(labPipeline, "apply", "-", "-m", "CHG-9"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if s := must(p.Workers(t.Context())); len(s.NeededBy) != 0 {
		t.Errorf("workers are needed by %q", s.NeededBy)
	}

	before = *must(p.Pipeline(t.Context(), 10)).Runs.Pipes[0].Entries[0].Packets
	p.kill()
	works() // nobody runs
	if err := dial(5002); err == nil {
		t.Error("what a pipe drops is connected after kill -9")
	}
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	closed()
	if in := must(p.Pipeline(t.Context(), 10)); in == nil || in.Comment != "CHG-9" || *in.Runs.Pipes[0].Entries[0].Packets < before {
		t.Errorf("after a start in force is %+v, and before it had counted %d", in, before)
	}
	if out, err := run("", "remove"); err != nil || out != "edge is out of force\n" {
		t.Errorf("%v: %s", err, out)
	}
	works()
	if err := dial(5002); err != nil {
		t.Errorf("after the pipeline: %v", err)
	}
	if files, _ := filepath.Glob(filepath.Join(stateDir(c, "pipeline"), "*")); len(files) != 0 {
		t.Errorf("left are %v", fmt.Sprint(files))
	}
	p.stop(t)
}
