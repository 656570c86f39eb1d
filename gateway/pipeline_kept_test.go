package gateway

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
)

const keptText = `apiVersion: softdpu/v1
kind: Pipeline
name: kept
root: hosts
pipes:
  - name: hosts
    kind: basic
    match: [ipv4.src]
    size: 2
    miss: {pipe: rules}
    forward: policy
    entries: [{match: {ipv4.src: 10.0.0.1}}]
  - name: rules
    kind: control
    miss: policy
    entries: [{name: web, match: {l4.dport: 80-90}, forward: drop}]
`

// A keeper is what a gateway keeps, without the gateway.
type keeper struct {
	*testing.T
	kept    keptPipeline
	applied *appliedPipeline
}

func newKeeper(t *testing.T) *keeper {
	k := &keeper{T: t, kept: keptPipeline{dir: filepath.Join(t.TempDir(), "pipeline", "one")}}
	k.apply(keptText)
	return k
}

func (k *keeper) apply(text string) {
	k.Helper()
	parsed, _, err := pipefile.Parse("kept.yaml", []byte(text))
	if err != nil {
		k.Fatal(err)
	}
	k.applied = &appliedPipeline{parsed, time.Now().Add(-time.Hour).Truncate(time.Microsecond), "ann", "CHG-1: now"}
	if err := k.kept.replace(k.applied, []byte(text)); err != nil {
		k.Fatal(err)
	}
}

// edit changes what is in force and keeps it; entries that cannot be changed are left out of both.
func (k *keeper) edit(name, batch string) {
	k.Helper()
	number := k.applied.parsed.Number(name)
	edits, err := pipefile.ParseEdits("entries", []byte(batch), k.applied.parsed, number, "")
	if err != nil {
		k.Fatal(err)
	}
	next, done := k.applied.parsed.Edit(number, edits)
	k.applied.parsed = next
	d := &pipelineDesk{kept: k.kept, applied: k.applied}
	err = d.keepEdits(&pipelineCall{pipe: name, by: "ann", comment: "why"}, number, edits, done)
	k.kept = d.kept
	if err != nil {
		k.Fatal(err)
	}
}

// restarted holds what a start would have against what is in force.
func (k *keeper) restarted() {
	k.Helper()
	k.kept.close()
	again := keptPipeline{dir: k.kept.dir, least: k.kept.least}
	a, err := again.load()
	if err != nil || a == nil {
		k.Fatalf("a start has %v, %v", a, err)
	}
	if got, want := string(pipefile.YAML(a.parsed)), string(pipefile.YAML(k.applied.parsed)); got != want {
		k.Fatalf("a start has\n%s\nin force was\n%s", got, want)
	}
	if a.by != "ann" || a.comment != "CHG-1: now" || !a.at.Equal(k.applied.at) {
		k.Errorf("a start has it by %q at %s: %q", a.by, a.at, a.comment)
	}
	k.kept, k.applied = again, a
}

func (k *keeper) files() (names []string) {
	list, err := os.ReadDir(k.kept.dir)
	if err != nil {
		k.Fatal(err)
	}
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}

// What was changed is there after a start, whenever that is, and another pipeline knows nothing of it.
func TestKeptPipeline(t *testing.T) {
	k := newKeeper(t)
	k.restarted()
	k.edit("hosts", `{remove: [{match: {ipv4.src: 10.0.0.1}}, {match: {ipv4.src: 10.0.0.9}}], add: [{name: a, match: {ipv4.src: 10.0.0.2}, forward: drop}, {match: {ipv4.src: 10.0.0.3}}, {match: {ipv4.src: 10.0.0.4}}]}`)
	k.edit("rules", `{"add": [{"match": {"tcp.flags": "syn,!ack", "ipv4.dst": "10.0.0.0/9"}, "conditions": ["meta.length > 100"], "forward": "drop"}]}`)
	k.restarted()
	if n := len(k.applied.parsed.Pipes[0].Entries); n != 2 {
		t.Errorf("there are %d entries", n)
	}
	k.edit("hosts", `{update: [{name: b, match: {ipv4.src: 10.0.0.2}, forward: policy}]}`)
	k.edit("rules", `{remove: [{name: web}, {match: {tcp.flags: "syn,!ack", ipv4.dst: 10.0.0.0/9}, conditions: [meta.length > 100]}]}`)
	k.restarted()
	// A line that was not written to its end was never answered, and the next one begins where it began.
	path := k.kept.path(pipelineChanges)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(slices.Clone(whole), `{"pipe":"hosts","batch":{"rem`...), 0o600); err != nil {
		t.Fatal(err)
	}
	k.restarted()
	k.edit("hosts", `{remove: [{match: {ipv4.src: 10.0.0.3}}]}`)
	k.restarted()
	// The same text again is another pipeline, with its own changes: none.
	k.apply(keptText)
	k.restarted()
	if err := os.WriteFile(path, whole, 0o600); err != nil { // as if the process had ended in between
		t.Fatal(err)
	}
	k.restarted()
	if names := k.files(); !slices.Equal(names, []string{pipelineFile}) {
		t.Errorf("left are %v", names)
	}
	k.edit("hosts", `{remove: [{match: {ipv4.src: 10.0.0.1}}]}`)
	if err := k.kept.remove(); err != nil {
		t.Fatal(err)
	}
	if names := k.files(); len(names) != 0 {
		t.Errorf("left are %v", names)
	}
	if a, err := (&keptPipeline{dir: k.kept.dir}).load(); a != nil || err != nil {
		t.Errorf("nothing is %v, %v", a, err)
	}
}

// Changes that are as much as the text become a text.
func TestKeptPipelineFolds(t *testing.T) {
	k := newKeeper(t)
	k.kept.least = 32 << 10
	k.apply(strings.Replace(keptText, "size: 2", "size: 200000", 1))
	batch := func(change string, of int) string {
		var b strings.Builder
		fmt.Fprintf(&b, `{%q: [`, change)
		for i := range 500 {
			fmt.Fprintf(&b, `%c{"match": {"ipv4.src": "10.%d.%d.%d"}}`, " ,"[min(i, 1)], of, i>>8, i&255)
		}
		return b.String() + "]}"
	}
	most := int64(0)
	for i := range 5 {
		k.edit("hosts", batch("add", 1+i))
		if info, err := os.Stat(k.kept.path(pipelineChanges)); err == nil {
			most = max(most, info.Size())
		}
	}
	if most == 0 || most > 2*k.kept.least {
		t.Errorf("changes have come to %d bytes", most)
	}
	text, err := os.ReadFile(k.kept.path(pipelineFile))
	if err != nil || len(text) < int(k.kept.least) {
		t.Errorf("the text has %d bytes, %v", len(text), err)
	}
	k.restarted()
	k.edit("hosts", batch("remove", 1))
	k.restarted()
	if n := len(k.applied.parsed.Pipes[0].Entries); n != 4*500+1 {
		t.Errorf("there are %d entries", n)
	}
}

// What is kept and cannot be read is named, with the remedy.
func TestKeptPipelineUnreadable(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"nonsense\n", "changes.json:2: "},
		{`{"pipe":"nobody","batch":{}}` + "\n", `there is no pipe "nobody"`},
		{`{"pipe":"hosts","batch":{"remove":[{"match":{"ipv4.src":"10.0.0.77"}}]}}` + "\n", "change 1: " + pipe.ErrNotFound.Error()},
		{`{"pipe":"hosts","batch":{"add":[{"match":{"ipv4.src":"10.0.0.777"}}]}}` + "\n", "10.0.0.777"},
		{`{"pipe":"hosts","what":1}` + "\n", "unknown field"},
	} {
		k := newKeeper(t)
		if err := k.kept.open(); err != nil {
			t.Fatal(err)
		}
		if _, err := k.kept.changes.WriteString(tt.line); err != nil {
			t.Fatal(err)
		}
		k.kept.close()
		_, err := (&keptPipeline{dir: k.kept.dir}).load()
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "move "+k.kept.path(pipelineChanges)+" away") {
			t.Errorf("%s: %v, want %q", tt.line, err, tt.want)
		}
	}
}

// What could not be kept when it was applied is kept with the next change, and no change is taken for one of the pipeline before.
func TestKeptPipelineAfterTrouble(t *testing.T) {
	k := newKeeper(t)
	k.edit("hosts", `{remove: [{match: {ipv4.src: 10.0.0.1}}]}`)
	other, _, err := pipefile.Parse("kept.yaml", []byte(strings.ReplaceAll(keptText, "hosts", "clients")))
	if err != nil {
		t.Fatal(err)
	}
	next := k.kept.path(pipelineFile) + ".new"
	if err := os.Mkdir(next, 0o700); err != nil {
		t.Fatal(err)
	}
	k.applied = &appliedPipeline{other, k.applied.at, "ann", "CHG-1: now"}
	if err := k.kept.replace(k.applied, pipefile.YAML(other)); err == nil {
		t.Fatal("a pipeline was kept in the place of a directory")
	}
	if err := os.RemoveAll(next); err != nil { // the trouble is over
		t.Fatal(err)
	}
	k.edit("clients", `{add: [{match: {ipv4.src: 10.0.0.7}}]}`)
	k.restarted()
}
