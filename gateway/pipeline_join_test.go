package gateway

import (
	"slices"
	"testing"
	"time"
)

// The two halves of a packet's way are told of as one, in whatever order they come; what has no other half waits for a
// moment, and is told of then.
func TestWalksAreJoined(t *testing.T) {
	var told []string
	j := &walkJoiner{both: true, tell: func(w *PipelineWalk) error {
		text := w.Head + ":"
		for _, s := range w.Steps {
			text += " " + s.Pipe
		}
		told = append(told, text+" "+w.Forward)
		return nil
	}}
	half := func(head, pipe, forward string, own bool) heardWalk {
		return heardWalk{&PipelineWalk{Port: "lan", Length: 60, Head: head, Forward: forward, Steps: []PipelineWalkStep{{Pipe: pipe, Policy: own}}}, own}
	}
	start := time.Now()
	for i, h := range []heardWalk{
		half("a", "steer", "policy", false),
		half("b", "flows", "route", true),
		half("c", "steer", "drop", false), // goes no further
		half("b", "steer", "policy", false),
		half("a", "flows", "drop (deny)", true),
		half("d", "steer", "policy", false), // changed on the way
		half("D", "flows", "route", true),
	} {
		if err := j.take(h, start.Add(time.Duration(i)*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"c: steer drop", "b: steer flows route", "a: steer flows drop (deny)"}
	if !slices.Equal(told, want) {
		t.Errorf("told of %q, want %q", told, want)
	}
	if err := j.flush(start.Add(6 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if want = append(want, "d: steer policy"); !slices.Equal(told, want) {
		t.Errorf("told of %q, want %q", told, want)
	}
	if err := j.flush(start.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if want = append(want, "D: flows route"); !slices.Equal(told, want) || len(j.waiting) != 0 {
		t.Errorf("told of %q, want %q", told, want)
	}
}
