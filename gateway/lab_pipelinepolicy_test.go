package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall/pipes"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/testenv"
)

const tracedRules = `nat: [{name: branch, from: lan, to: wan, masquerade: {}}]
rules:
  - {name: watch, from: lan, to: wan, service: tcp/5001, action: deny, mode: audit}
  - {name: closed, from: lan, to: wan, service: tcp/5002, action: deny}
  - {name: all, from: lan, to: wan, action: allow}
`

const tracedPipeline = `apiVersion: softdpu/v1
kind: Pipeline
name: edge
root: steer
pipes:
  - name: steer
    kind: control
    miss: policy
    entries: [{name: bulk, match: {ip.proto: tcp, l4.dport: 5001}, forward: policy}]
`

// The policy's own pipes are shown with what rules have counted, and live packets are followed through them, behind a pipeline
// in front if there is one.
func TestLabPolicyPipes(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-pipo"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	c := write(t, labRouted, setsPolicy[:strings.Index(setsPolicy, "sets:")]+tracedRules)
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	random := rand.New(rand.NewPCG(13, 13))
	echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 5001)))
	t.Cleanup(func() { echo.Close() })
	dial := func(ctx context.Context, port uint16) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := client.Dial(ctx, "tcp", netip.AddrPortFrom(server4, port).String())
		if err == nil {
			err = swap(conn, random, 5*time.Second)
			conn.Close()
		}
		return err
	}
	if err := dial(t.Context(), 5001); err != nil {
		t.Fatal(err)
	}
	_ = dial(t.Context(), 5002)

	find := func(r *pipe.Report, of, entry string) *pipe.EntryReport {
		t.Helper()
		for i := range r.Pipes {
			if j := slices.IndexFunc(r.Pipes[i].Entries, func(e pipe.EntryReport) bool { return e.Name == entry }); j >= 0 && r.Pipes[i].Name == of {
				return &r.Pipes[i].Entries[j]
			}
		}
		t.Fatalf("there is no entry %s in pipe %s of %+v", entry, of, r)
		return nil
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		own := must(p.PolicyPipes(t.Context(), 100))
		rules := must(p.Rules(t.Context()))
		for _, name := range []string{"watch", "closed", "all"} {
			e := find(&own.Runs, pipes.Rules, name)
			i := slices.IndexFunc(rules, func(r RuleStatus) bool { return r.Name == name })
			counts := e.Bytes != nil && *e.Packets == rules[i].Packets && *e.Bytes == rules[i].Bytes
			if name == "watch" {
				counts = e.Audit && *e.Packets == rules[i].Judged
			}
			if !counts || e.Line != rules[i].Line || rules[i].Judged == 0 || e.IdleS == nil {
				return errors.New(name + " counts otherwise than the rule does")
			}
		}
		if e := find(&own.Runs, pipes.Sources, "branch"); *e.Flows == 0 || e.Does != "masquerade" {
			return errors.New("the nat rule has translated nothing")
		}
		return nil
	})
	run := func(input string, args ...string) string {
		t.Helper()
		cmd := exec.Command(binary, append([]string{"pipeline"}, args...)...)
		cmd.Args = append(cmd.Args, "--socket", c.Control.Socket)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	for args, want := range map[string]string{
		"show": "no pipeline is in force", "show --plan": "rows become a search of instructions", "show -o mermaid": "in((packets)) --> own_flows",
		"show -o json": `"pipeline": null`,
	} {
		if out := run("", strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("%s lacks %q", args, want)
		}
	}

	told := func(w *PipelineWalk) string {
		var parts []string
		for _, s := range w.Steps {
			parts = append(parts, strings.TrimRight(s.Pipe+": "+strings.Join(append(slices.Clone(s.Audited), s.Entry), " "), " "))
		}
		return strings.Join(append(parts, w.Forward), " -> ")
	}
	// follow looks on until each of these was seen.
	follow := func(wanted ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		seen := errors.New("seen")
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			for ctx.Err() == nil {
				_ = dial(ctx, 5001)
				short, end := context.WithTimeout(ctx, 100*time.Millisecond)
				_ = dial(short, 5002)
				end()
			}
		}()
		lines := make(map[string]int)
		err := p.TracePipeline(ctx, func(w *PipelineWalk) error {
			lines[told(w)]++
			for _, want := range wanted {
				if lines[want] == 0 {
					return nil
				}
			}
			return seen
		})
		cancel()
		<-asked
		if !errors.Is(err, seen) {
			t.Errorf("a trace shows %v, %v, want %q", lines, err, wanted)
		}
	}
	opening := "flows: -> rules: watch all -> nat-out: -> nat-sources: branch -> route"
	closed := "flows: -> rules: closed -> drop (deny)"
	follow(opening, closed, "flows: known -> route")
	run(tracedPipeline, "apply", "-")
	follow("steer: bulk -> "+opening, "steer: -> "+closed, "steer: bulk -> flows: known -> route")
	if out := run("", "show"); !strings.Contains(out, "The policy's own pipes:") || !strings.Contains(out, "steer") {
		t.Error("not all pipes are shown")
	}
	p.stop(t)
}
