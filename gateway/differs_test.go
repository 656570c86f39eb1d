package gateway

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Each file that is not as it was read is named, sets and new files of the directory too.
func TestDifferingFiles(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	config := strings.Replace(testConfig, "policy.yaml", "policy.d", 1)
	head, rules, _ := strings.Cut(testPolicy, "rules:")
	policy := head + "sets:\n  bad: {type: prefix, file: bad.txt}\nrules:\n  - {name: no-bad, from: any, to: {set: bad}, action: deny}" +
		rules[:strings.Index(rules, "tests:")]
	put("softdpu.yaml", config)
	put("policy.d/10.yaml", policy)
	put("policy.d/bad.txt", "192.0.2.0/24\n")
	c, err := LoadConfig(filepath.Join(dir, "softdpu.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := PrepareRuleset(c, time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	same := r.hash()
	for _, tt := range []struct {
		name   string
		change func()
		want   []FileStatus
	}{
		{"nothing", func() {}, []FileStatus{}},
		{"written again as it was", func() { put("policy.d/10.yaml", policy) }, []FileStatus{}},
		{"the configuration", func() { put("softdpu.yaml", config+"# x\n") }, []FileStatus{{"softdpu.yaml", "changed"}}},
		{"a set and a new file", func() { put("policy.d/bad.txt", "192.0.2.1\n"); put("policy.d/20.yaml", "") },
			[]FileStatus{{"policy.d/bad.txt", "changed"}, {"policy.d/20.yaml", "new"}}},
		{"a file that is gone", func() { os.Remove(filepath.Join(dir, "policy.d/10.yaml")) }, []FileStatus{{"policy.d/10.yaml", "missing"}}},
	} {
		put("softdpu.yaml", config)
		put("policy.d/10.yaml", policy)
		put("policy.d/bad.txt", "192.0.2.0/24\n")
		os.Remove(filepath.Join(dir, "policy.d/20.yaml"))
		tt.change()
		got := changedFiles(r)
		for i := range got {
			got[i].File = strings.TrimPrefix(got[i].File, dir+"/")
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	put("policy.d/bad.txt", "192.0.2.1\n")
	put("policy.d/10.yaml", policy)
	if again, err := PrepareRuleset(c, time.Now(), nil); err != nil || again.hash() == same || len(again.hash()) != 64 {
		t.Errorf("another set has the hash %s too (%v)", same, err)
	}
}
