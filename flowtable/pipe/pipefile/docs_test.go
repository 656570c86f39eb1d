package pipefile

import (
	"os"
	"strings"
	"testing"
)

// TestPageNamesAllKeys: the page about pipes speaks of every key that files may hold.
func TestPageNamesAllKeys(t *testing.T) {
	text, err := os.ReadFile("../../../docs/pipes.md")
	if err != nil {
		t.Fatal(err)
	}
	for kind, list := range keys {
		for _, key := range list {
			if !strings.Contains(string(text), "`"+key+"`") && !strings.Contains(string(text), key+":") {
				t.Errorf("docs/pipes.md does not speak of %s of a %s", key, kind)
			}
		}
	}
}
