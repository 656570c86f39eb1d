package firewall

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// sameInParts parses a text as a whole and in parts of a few bytes.
func sameInParts(t *testing.T, text string) (parts int) {
	t.Helper()
	whole, wholeErrs := parseYAML("p.yaml", []byte(text), parseSize{part: len(text), tokens: len(text)})
	inParts, errs := parseYAML("p.yaml", []byte(text), parseSize{part: 1, tokens: len(text)})
	if !reflect.DeepEqual(whole, inParts) || !reflect.DeepEqual(wholeErrs, errs) {
		t.Errorf("in parts it is another text:\n%s\nwhole: %v\nparts: %v", text, wholeErrs, errs)
	}
	return len(cut(strings.Split(text, "\n"), 1))
}

func TestYAMLParts(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		parts      int
	}{
		{"a policy", head + "rules:\n  - {name: a, action: allow}\n  - name: b\n    action: deny\n\n  # why\n  - {name: c}\ntests: [x]\n", 3},
		{"dashes at the edge", "rules:\n- a\n- b: 1\n  c:\n  - x\n  - y\n-\n  d: 1\nsets: {}\n", 3},
		{"two lists and two documents", "a:\n - 1\n - 2\nb:\n - 3\n - 4\n---\nc:\n - 5\n - 6\n...\n", 6},
		{"a block of text with dashes", "a:\n - |\n   - x\n   # y\n - >-\n   z\n", 2},
		{"quotes over lines", "a:\n - \"x\n    - y\"\n - 'z\n\n   w'\n", 2},
		{"brackets over lines", "a:\n - [x,\n    y]\n - {b: [\n     1, 2]}\n", 2},
		{"the same key twice", "a:\n - 1\n - 2\na:\n - 3\n - 4\n", 4},
		{"nothing behind the key", "a:\nb:\n  c: 1\n", 0},
		{"a comment behind the key", "a: # b\n - c\n - d # e\n", 2},
		{"no list by indentation", "a: [1,\n2,\n3]\nb:\n  - 1\n", 1},
		{"a list inside quotes", "a: \"\nb:\n- c\n- d\n\"\n", 0},
		{"quotes to the edge", "a:\n- \"b\n- c\"\n- d\n", 3},
		{"a mistake in a part", "a:\n - b\n - [c\n - d\n", 3},
		{"an anchor in a part", "a:\n - b\n - &c d\n", 2},
		{"an item that is not indented", "a:\n  - b\n c\n  - d\n", 0},
		{"a dash too few", "a:\n  - b\n  - c\n  d: e\n", 0},
		{"tabs", "a:\n\t- b\n\t- c\n", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if n := sameInParts(t, tt.text); n != tt.parts {
				t.Errorf("%d parts, wanted %d", n, tt.parts)
			}
		})
	}
	deep := "a:\n- b\n- " + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + "\n"
	sameInParts(t, deep)
	sameInParts(t, strings.Replace(deep, "[]", "[[]]", 1))
}

// A mistake in a long text is told with its place, and what is right before it does not hide it.
func TestYAMLPartsOfALongText(t *testing.T) {
	var b strings.Builder
	b.WriteString(head + "rules:\n")
	for i := range 20_000 {
		fmt.Fprintf(&b, "  - {name: r%d, from: {addresses: [192.0.2.1]}, to: any, action: allow}\n", i)
	}
	text := b.String()
	if n := len(cut(strings.Split(text, "\n"), usualSize.part)); n < 3 {
		t.Fatalf("cut into %d parts", n)
	}
	p, err := Parse([]Source{{Name: "p.yaml", Text: []byte(text)}}, nil)
	if err != nil || len(p.Rules) != 20_000 || p.Rules[19_999].Name != "r19999" || p.RulePos(19_999).Line != 20_003 {
		t.Fatalf("read %v, %v", p, err)
	}
	for old, want := range map[string]string{
		"name: r15000, from": "p.yaml:15004:",
		"name: r19999, from": "p.yaml:20003:",
	} {
		_, err := Parse([]Source{{Name: "p.yaml", Text: []byte(strings.Replace(text, old, old[:len(old)-4]+"form", 1))}}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"form"`) {
			t.Errorf("says %.300v", err)
		}
	}
}

// A text may be too long to be parsed at once: what is wrong in it is told all the same.
func TestYAMLPartsOfAHugeText(t *testing.T) {
	size := parseSize{part: 2000, tokens: 2000}
	text := "x:\n" + strings.Repeat("- {a: b}\n", 1000)
	docs, errs := parseYAML("p.yaml", []byte(text), size)
	if len(errs) > 0 || len(docs) != 1 || len(docs[0].Fields[0].Value.Items) != 1000 {
		t.Fatalf("%d documents, %.300v", len(docs), errs)
	}
	_, errs = parseYAML("p.yaml", []byte(text+"- [b\n- c\n"), size)
	if len(errs) != 1 || errs[0].Line < 1000 || !strings.Contains(errs[0].Msg, "not YAML") {
		t.Errorf("says %.300v", errs)
	}
}
