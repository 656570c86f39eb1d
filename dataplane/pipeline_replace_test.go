package dataplane

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// A stream of numbered packets goes through pipelines that take each other's place: none is lost, none comes twice, none
// overtakes another, each has been through one of them and not through parts of two, and all are counted.
func TestPipelineReplaced(t *testing.T) {
	t.Parallel()
	l := newPipelineLab(t)
	numbered := func(n int) string {
		return fmt.Sprintf(`root: first
bypasses_policy: true
pipes:
  - name: first
    kind: basic
    match: [l4.dport]
    monitor: {count: true}
    miss: policy
    forward: {pipe: second}
    actions: [{do: [{set: eth.src, value: "02:00:00:00:00:%02x"}]}]
    entries: [{name: all, match: {l4.dport: 1}}]
  - name: second
    kind: lpm
    match: [ipv4.dst]
    miss: drop
    forward: {port: wan0}
    actions: [{do: [{set: eth.dst, value: "02:00:00:00:00:%02x"}]}]
    entries: [{prefix: 10.10.0.0/16}]
`, n, n)
	}
	prog := compilePipeline(t, l.plane, numbered(0))
	if err := l.plane.ApplyPipeline(prog); err != nil {
		t.Fatal(err)
	}
	replacements := 12
	if os.Getenv("SOFTDPU_LONG") != "" {
		replacements = 200
	}
	var sent atomic.Int64
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			for range 4 {
				if err := l.sender.Send(pipelineFrame(t, 1, int(sent.Load()))); err != nil {
					done <- err
					return
				}
				sent.Add(1)
			}
			time.Sleep(200 * time.Microsecond)
		}
	}()
	for n := 1; n <= replacements; n++ {
		at := sent.Load()
		prog = compilePipeline(t, l.plane, numbered(n))
		if err := l.plane.ApplyPipeline(prog); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 5*time.Second, func() error { // each of them sees some
			if sent.Load() < at+8 {
				return fmt.Errorf("%d packets are sent", sent.Load()-at)
			}
			return nil
		})
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got := l.arrived(t, "wan0", 0, int(sent.Load()))
	if len(got) != int(sent.Load()) {
		t.Errorf("%d packets arrive of %d", len(got), sent.Load())
	}
	of, seen := byte(0), map[byte]bool{}
	for i, frame := range got {
		at := bytes.Index(frame, []byte(pipelineMark)) + len(pipelineMark)
		if number, err := strconv.Atoi(string(frame[at : at+8])); err != nil || number != i {
			t.Fatalf("packet %d arrives as number %d (%v)", number, i, err)
		}
		switch src, dst := frame[11], frame[5]; {
		case src != dst:
			t.Fatalf("packet %d has been through parts of pipelines %d and %d", i, src, dst)
		case src < of:
			t.Fatalf("packet %d has been through pipeline %d, and %d was in force before", i, src, of)
		default:
			of, seen[src] = src, true
		}
	}
	if len(seen) < replacements*9/10 {
		t.Errorf("packets have been through %d pipelines of %d: the test asks too little", len(seen), replacements)
	}
	if n := entryCount(prog, 0, "all"); n != uint64(len(got)) {
		t.Errorf("the last pipeline has counted %d packets of %d", n, len(got))
	}
	t.Logf("%d packets, %d pipelines", len(got), len(seen))
}
