package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type opener struct{ code int }

func (o opener) Run() int { return o.code }

func TestHolding(t *testing.T) {
	before := Holding()
	if more := before.More(); more != "" {
		t.Fatalf("nothing was opened: %s", more)
	}
	name := filepath.Join(t.TempDir(), "left-open")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if more := before.More(); !strings.Contains(more, "left-open: 1 more") {
		t.Errorf("an open file is told as %q", more)
	}
	f.Close()
	if more := before.More(); more != "" {
		t.Errorf("after it was closed: %s", more)
	}
	for _, code := range []int{0, 3} {
		if got := RunWithoutLeaks(opener{code}); got != code {
			t.Errorf("tests that leave nothing open and end with %d: %d", code, got)
		}
	}
}
