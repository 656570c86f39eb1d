package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	pipeline "github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
	"github.com/softdpu/softdpu/testenv"
)

// compilePipeline compiles the text of a pipeline for a plane's ports.
func compilePipeline(t *testing.T, p *Plane, text string) *pipeline.Program {
	t.Helper()
	parsed, _, err := pipefile.Parse("pipeline.yaml", []byte("apiVersion: softdpu/v1\nkind: Pipeline\nname: test\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]uint32)
	for _, port := range p.Ports() {
		ids[port.Name] = uint32(port.ID)
	}
	resolved, err := parsed.Resolve(ids)
	if err != nil {
		t.Fatal(err)
	}
	prog, err := pipeline.Compile(resolved, pipeline.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// A pipeline decides before the policy, which is published behind it; it is replaced and taken away under traffic of
// which nothing is lost, and its counts go on.
func TestPipeline(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.ApplyPipeline(&pipeline.Program{Pipeline: &pipeline.Pipeline{}}); !errors.Is(err, ErrNoPolicy) {
		t.Errorf("before any policy: %v", err)
	}
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	g.follow(t, p)
	client := g.lab.Must(t, "client")
	server := netip.MustParseAddr("10.10.2.2")
	ping := func() bool {
		t.Helper()
		r, err := client.Ping(t.Context(), server, testenv.PingOptions{Timeout: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return r.Received > 0
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if !ping() {
			return errors.New("no answer without a pipeline")
		}
		return nil
	})

	const counting = `root: all
pipes:
  - name: all
    kind: control
    miss: policy
    monitor: {count: true}
    entries:
      - {name: echo, match: {icmp.type: 8}, forward: policy}
`
	apply := func(text string) *pipeline.Program {
		t.Helper()
		prog := compilePipeline(t, p, text)
		if err := p.ApplyPipeline(prog); err != nil {
			t.Fatalf("%+v", err)
		}
		return prog
	}
	count := func(prog *pipeline.Program) uint64 {
		return prog.Memory.Entries[prog.Pipes[0].Places[0]].Packets
	}
	prog := apply(counting)
	for range 3 {
		if !ping() {
			t.Error("no answer behind a pipeline")
		}
	}
	if n := count(prog); n != 3 {
		t.Errorf("it has counted %d packets of 3", n)
	}
	for i := range 20 { // each takes the place of the one before
		prog = apply(counting)
		if !ping() {
			t.Errorf("no answer behind pipeline %d", i)
		}
	}
	if n := count(prog); n != 23 {
		t.Errorf("it has counted %d packets of 23", n)
	}
	if err := p.Publish(Generation{Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	if ping() {
		t.Error("a policy that refuses everything lets a ping through, behind a pipeline")
	}
	if err := p.Publish(Generation{Epoch: 3, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if !ping() {
		t.Error("no answer after another policy")
	}
	if problems := p.generationProblems(); len(problems) > 0 {
		t.Errorf("not in order: %v", problems)
	}
	apply(`root: all
pipes:
  - name: all
    kind: control
    miss: policy
    entries: [{match: {ipv4.dst: 10.10.2.2}, forward: drop}]
`)
	if ping() {
		t.Error("a pipeline drops, and there is an answer")
	}
	reasons, err := p.Reasons()
	if err != nil || reasons[bpf.XDPReasonREASON_PIPE_DROP].Packets != 1 {
		t.Errorf("pipe-drop counts %+v, %v", reasons[bpf.XDPReasonREASON_PIPE_DROP], err)
	}
	if err := errors.Join(p.RemovePipeline(), p.RemovePipeline()); err != nil {
		t.Fatal(err)
	}
	if !ping() {
		t.Error("no answer without the pipeline")
	}
	if err := p.Pipeline(func(in *pipeline.Program) error {
		if in != nil {
			return fmt.Errorf("%s is in force", in.Pipeline.Name)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
