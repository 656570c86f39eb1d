package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRunRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("apiVersion: softdpu/v1\nkind: Gateway\nports: {lan: {device: eth1}}\npolcy: x\nmanagement: none\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, file string
		want       []string
	}{
		{"no file", filepath.Join(dir, "none.yaml"), []string{"read configuration", "no such file"}},
		{"mistakes", bad, []string{"configuration has 2 errors, nothing was changed:", "bad.yaml:4:1:", `did you mean "policy"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, "run", "-c", tt.file)
			if code != exitError || stdout != "" {
				t.Errorf("exit code %d, %q", code, stdout)
			}
			for _, want := range tt.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("does not say %q:\n%s", want, stderr)
				}
			}
		})
	}
}
