package gateway

import (
	"io"
	"os"
	"os/exec"
	"testing"
)

// findPromtool returns the path of promtool: where `make deps-test` puts it, or on PATH. Without it the test
// goes on and says so; in CI, which must have it, the test fails.
func findPromtool(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"../bin/promtool", "promtool"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Error("there is no promtool: `make deps-test` fetches it")
	}
	return ""
}

// promtoolSays runs promtool and fails the test with what it says if it is not content.
func promtoolSays(t *testing.T, promtool string, stdin io.Reader, args ...string) {
	t.Helper()
	cmd := exec.Command(promtool, args...)
	cmd.Stdin = stdin
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}
