package bench

import (
	"math"
	"os"
	"strings"
	"testing"
)

// Both find every key, and entries come and go on both sides. Times are not looked at.
func TestPipes(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("loading programs needs root, and CI has it")
		}
		t.Skip("loading programs needs root")
	}
	r, err := Pipes(t.Context(), PipesOptions{Rounds: 1, Sizes: []int{1000, 6000}, Probes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range r.Results {
		names = append(names, v.Name)
		if v.Peer == "" || v.Rounds != 1 || math.IsNaN(v.Ratio) || v.Unit == "entries/s" && v.Value <= 0 {
			t.Errorf("%+v", v)
		}
	}
	want := "lookup-1k insert-1k insert-1k/bpf-hash remove-1k lookup-6k insert-6k insert-6k/bpf-hash remove-6k"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("results %s, want %s", got, want)
	}
	if _, err := Pipes(t.Context(), PipesOptions{Sizes: []int{0}}); err == nil {
		t.Error("a table of no entries was measured")
	}
	if _, err := Pipes(t.Context(), PipesOptions{Sizes: []int{10}, Probes: 1000}); err == nil {
		t.Error("1,000 probes, no power of two, were taken")
	}
}
