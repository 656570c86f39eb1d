package pipefile

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/firewall/mistake"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// JSON is read as YAML is: the same model, and mistakes at the same lines.
func TestJSONAsYAML(t *testing.T) {
	p, _, err := Parse("all.yaml", all(t))
	if err != nil {
		t.Fatal(err)
	}
	text := JSON(p)
	again, _, err := Parse("all.json", text)
	if err != nil || !bytes.Equal(YAML(again), YAML(p)) {
		t.Fatalf("%v:\n%s\nwant\n%s", err, YAML(again), YAML(p))
	}
	one := "{\"apiVersion\": \"softdpu/v1\", \"kind\": \"Pipeline\", \"name\": \"x\",\n\"root\": \"a\",\n  \"pipes\": [{\"name\": \"a\", \"kind\": \"control\",\n \"miss\": \"drop\", \"entries\": [{\"match\": {\"ip.dscp\": \"nine\"},\n\"forward\": null, \"forwards\": true}]}]}"
	_, _, err = Parse("x.json", []byte(one))
	var errs mistake.Errors
	if !errors.As(err, &errs) || len(errs) != 2 {
		t.Fatal(err)
	}
	for i, want := range []struct {
		line, column int
		text         string
	}{{4, 1 + strings.Index(strings.Split(one, "\n")[3], `"nine"`), "nine"}, {5, 18, `unknown key "forwards"`}} {
		if e := errs[i]; e.File != "x.json" || e.Line != want.line || e.Column != want.column || !strings.Contains(e.Msg, want.text) || !strings.Contains(one, e.Source) || e.Source == "" {
			t.Errorf("mistake %d is %+v, want %+v", i, e, want)
		}
	}
	// What is too deep is for the parser that says so; a line that is very long is not shown.
	if _, _, err := Parse("deep.json", []byte(strings.Repeat("[", 50)+strings.Repeat("]", 50))); err == nil || !strings.Contains(err.Error(), "deep") {
		t.Errorf("50 lists in each other: %v", err)
	}
	_, _, err = Parse("long.json", []byte(`{"`+strings.Repeat("x", 2000)+`": 1}`))
	if !errors.As(err, &errs) || errs[0].Source != "" {
		t.Errorf("a long line: %v", err)
	}
}

const editedText = `apiVersion: softdpu/v1
kind: Pipeline
name: x
root: a
pipes:
  - {name: a, kind: basic, match: [ip.proto, l4.dport], miss: drop, forward: drop, actions: [{name: one, do: [{set: meta.0, value: entry}]}]}
  - {name: list, kind: ordered-list, miss: drop, forward: drop}
`

func TestParseEdits(t *testing.T) {
	line, _, err := Parse("x.yaml", []byte(editedText))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		change, text string
		want         string // numbers of changes and entries as JSON, or what is wrong
	}{
		{"add", "- {match: {l4.dport: 80, ip.proto: tcp}, values: [7], forward: policy}\n", `0 {"match":{"ip.proto":"tcp","l4.dport":80},"values":[7],"forward":"policy"}`},
		{"remove", `[{"name": "b"}]`, `2 {"name":"b"}`},
		{"", "add: [{name: x}]\nremove: [{name: y}]\nupdate: [{name: z}]\n", `2 {"name":"y"} 1 {"name":"z"} 0 {"name":"x"}`},
		{"", "{}", ""},
		{"add", "[]", ""},
		{"add", "{add: []}", "x:1:1: a map where a list of entries is expected"},
		{"", "[{name: x}]", "x:1:1: a batch must be a map of keys, not a list"},
		{"", "{adds: []}", `unknown key "adds"`},
		{"add", "", "0 documents where one is expected"},
		{"add", "--- []\n--- []\n", "2 documents where one is expected"},
		{"add", "- {match: {l4.dport: 80}}\n- {match: {l4.dpor: 80}}\n", `x:2:12: unknown field "l4.dpor"`},
		{"add", "- {forward: {pipe: list}}\n", `is an ordered list, and this does not say which entry`},
		{"add", "- {", "x:1:"},
	} {
		batch, err := ParseEdits("x", []byte(tt.text), line, 0, tt.change)
		if err != nil {
			if !strings.Contains(err.Error(), tt.want) || tt.want == "" {
				t.Errorf("%q: %v, want %q", tt.text, err, tt.want)
			}
			continue
		}
		var got []string
		write := EntryJSON(line, 0)
		for _, e := range batch {
			var b bytes.Buffer
			write(&b, e.Entry)
			got = append(got, fmt.Sprintf("%d %s", e.Change, &b))
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%q: %s, want %s", tt.text, text, tt.want)
		}
	}
	if pipe.InsertEntry != 0 || pipe.RemoveEntry != 2 {
		t.Error("changes have other numbers")
	}
}
