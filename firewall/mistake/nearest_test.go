package mistake

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"addresses", "labels", "set", "workload", "zone"}
	for word, want := range map[string]string{
		"zones": "zone", "adresses": "addresses", "Zone": "zone", "sets": "set", "xyz": "", "wrokload": "workload", "": "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("nearest to %q is %q, want %q", word, got, want)
		}
	}
}
