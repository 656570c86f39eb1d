package firewall

import (
	"fmt"
	"strings"
	"testing"
)

// What would overflow the parser's stack, or take it all memory, ends at its limit and with a place.
func TestYAMLLimits(t *testing.T) {
	const head = "apiVersion: softdpu/v1\nkind: Policy\n"
	fill := func(s string) string { return strings.Repeat(s, 400_000/len(s)) }
	stairs := ""
	for i := range 100 {
		stairs += strings.Repeat(" ", i) + "a:\n"
	}
	const deep, keys, words, marks = "levels deep", "more than 20000 keys", "more than 4 million words", "are not supported"
	for _, tt := range []struct{ name, text, want string }{
		{"brackets", fill("["), deep},
		{"braces", fill("{a: "), deep},
		{"dashes", fill("- "), deep},
		{"brackets in lines", fill("a: [\n"), deep},
		{"stairs", stairs, deep},
		{"keys", fill("a: b\n"), keys},
		{"keys without values", fill("a:\n"), keys},
		{"words", "[" + strings.Repeat("a,", usualSize.tokens/2+1), words},
		{"anchors", fill("&a "), marks},
		{"aliases", "a: [" + fill("*a,"), marks},
		{"keys of several words", fill("? "), marks},
		{"tags", "a: [" + fill("!!x y,"), marks},
		{"brackets behind a good head", head + "rules: " + strings.Repeat("[", 200) + strings.Repeat("]", 200), deep},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, errs := ParseYAML("p.yaml", []byte(tt.text))
			if len(errs) == 0 || errs[0].Line == 0 || errs[0].Hint == "" || !strings.Contains(errs[0].Msg, tt.want) {
				t.Errorf("says %.300v", errs)
			}
		})
	}
}

// Within the limits nothing is refused: 20,000 names in a map, again in the next one, and lists of any length.
func TestYAMLWithinLimits(t *testing.T) {
	var b strings.Builder
	for _, section := range []string{"sets", "workloads"} {
		b.WriteString(section + ":\n")
		for i := range 5000 {
			fmt.Fprintf(&b, "  n%d:\n    type: prefix\n", i)
		}
	}
	b.WriteString("rules:\n" + strings.Repeat("- name: a\n  action: allow\n", 30_000))
	docs, errs := ParseYAML("p.yaml", []byte(b.String()))
	if len(errs) > 0 || len(docs) != 1 || len(docs[0].Fields[2].Value.Items) != 30_000 {
		t.Errorf("%d documents, %v", len(docs), errs)
	}
}

// A laugh that grows by nine with each line stays as small as it is written.
func TestYAMLAliasBomb(t *testing.T) {
	text := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'm'; c++ {
		text += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 9), ","))
	}
	_, errs := ParseYAML("p.yaml", []byte(text))
	if len(errs) == 0 || !strings.Contains(errs.Error(), "anchors and aliases are not supported") && !strings.Contains(errs.Error(), "anchors, aliases") {
		t.Errorf("says %v", errs)
	}
}

// Bytes that are no text are told apart, with their place.
func TestNotText(t *testing.T) {
	for _, tt := range []struct{ name, text, want, hint string }{
		{"UTF-16, little end first", "\xff\xfea\x00:\x00", "p.yaml: file is UTF-16 text", "UTF-8"},
		{"UTF-16, big end first", "\xfe\xff\x00a", "p.yaml: file is UTF-16 text", "UTF-8"},
		{"UTF-32", "\xff\xfe\x00\x00a\x00\x00\x00", "p.yaml: file is UTF-32 text", "UTF-8"},
		{"UTF-16 without a mark", "a\x00:\x00", "p.yaml:1:2: file holds a zero byte", "UTF-16"},
		{"Latin-1", "a: b\nM\xfcnchen: c", "p.yaml:2:2: file is not UTF-8", "UTF-8"},
		{"a program", "\x7fELF", "p.yaml:1:1: file holds a control character", "take it out"},
		{"an escape sequence", "a: b\nb: \x1b[2J", "p.yaml:2:4: file holds a control character", "take it out"},
	} {
		_, errs := ParseYAML("p.yaml", []byte(tt.text))
		if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), tt.want) || !strings.Contains(errs[0].Hint, tt.hint) {
			t.Errorf("%s: says %v", tt.name, errs)
		}
	}
	for _, text := range []string{"\ufeffa: b\r\nc: d\r\n", "a: b\rc: d\r", "a: München\nc: d\n"} {
		docs, errs := ParseYAML("p.yaml", []byte(text))
		if len(errs) > 0 || len(docs) != 1 || len(docs[0].Fields) != 2 {
			t.Errorf("%q: %v", text, errs)
		}
	}
}

// A thousand mistakes are told by their first hundred, and a value that nobody reads to its end in short.
func TestErrorsAreBounded(t *testing.T) {
	var many Errors
	for i := range 1000 {
		many = append(many, Pos{File: "p.yaml", Line: i + 1, Column: 1}.Errorf("wrong"))
	}
	many = many.Sorted()
	if len(many) != 101 || many[99].Line != 100 || many[100].Msg != "900 more are not shown" || many[100].File != "p.yaml" {
		t.Errorf("%d errors, the last %v", len(many), many[len(many)-1])
	}
	e := Pos{}.Errorf("%q is not a number", strings.Repeat("9", 100_000))
	if len(e.Msg) > 700 || !strings.HasPrefix(e.Msg, `"999`) || !strings.HasSuffix(e.Msg, `9" is not a number`) {
		t.Errorf("%d bytes: %s", len(e.Msg), e.Msg)
	}
}
