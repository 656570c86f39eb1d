package bpf

import (
	"regexp"
	"testing"
)

// Every value of the C enums has a name of its own in the Go tables.
func TestNamesAreComplete(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	for what, names := range map[string][]string{
		"reason": reasonNames[:], "pass cause": passNames[:], "flow state": stateNames[:],
	} {
		seen := map[string]bool{}
		for i, n := range names {
			if !kebab.MatchString(n) || seen[n] {
				t.Errorf("%s %d: name %q is missing, doubled or not kebab-case", what, i, n)
			}
			seen[n] = true
		}
	}
}
