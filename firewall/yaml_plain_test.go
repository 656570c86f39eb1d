package firewall

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// samePlain reads a list both ways, and reports whether the short one could.
func samePlain(t *testing.T, text string) bool {
	t.Helper()
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		if strings.Contains(line, "\r") {
			return false
		}
	}
	if _, bad := notText("", "", lines); bad {
		return false
	}
	got, ok := (&tree{name: "p.yaml", lines: lines, size: usualSize}).plainItems()
	if !ok {
		return false
	}
	whole := &tree{name: "p.yaml", lines: lines, size: usualSize}
	want := whole.parse(lines, 1)
	if len(whole.errs) > 0 || len(want) != 1 || !reflect.DeepEqual(got, want[0]) {
		t.Errorf("reads\n%s\nas %+v\nand not %+v, %v", text, got, want, whole.errs)
	}
	return true
}

func TestYAMLPlain(t *testing.T) {
	for _, tt := range []struct {
		text string
		ok   bool
	}{
		{"  - {name: a, from: {addresses: [192.0.2.0/24, 2001:db8:1:2:3:4:5:6]}, to: any, action: allow}\n", true},
		{"- {a: b}\n\n# why\n   # c\n- {c: [d, {e: f}]}", true},
		{"- {a: 1, b: 1.5, c: 0x1f, d: 1e3, e: true, f: 2026-01-02, g: 0b1, h: 1_000, i: 010, j: 0o7, k: 1h, l: y, m: 1:30, n: tcp/80, o: 00:11:22:33:44:55}\n", true},
		{"- {true: no, a: b, a: c}\n", true},
		{"- {a: null}\n", false},
		{"- {a: Null, b: c}\n", false},
		{"- {null: a}\n", false},
		{"- {a: b }\n", false},
		{"- { a: b}\n", false},
		{"- {a: b} # c\n", false},
		{"- {a: b}  \n", false},
		{"- {a: b, }\n", false},
		{"- {a: }\n", false},
		{"- {a: b c}\n", false},
		{"- {a: \"b\"}\n", false},
		{"- {a: {}}\n", false},
		{"- {a: fe80::1}\n", false},
		{"- {a: b: c}\n", false},
		{"- {a: b:}\n", false},
		{"- {a: &b c}\n", false},
		{"- {a: -b}\n", false},
		{"- {a: .inf}\n", false},
		{"- {a:\tb}\n", false},
		{"- a: b\n", false},
		{"- [a]\n", false},
		{"- {a: b\n", false},
		{"- {a: b,\n   c: d}\n", false},
		{"- {a: b}\n - {c: d}\n", false},
		{"- {a: b}\nx\n", false},
		{"- {a: " + strings.Repeat("[", 9) + "b" + strings.Repeat("]", 9) + "}\n", false},
		{"# nothing\n", false},
		{"", false},
	} {
		if ok := samePlain(t, tt.text); ok != tt.ok {
			t.Errorf("%q is read: %v", tt.text, ok)
		}
	}
}

// Words that look like numbers, dates and the like are what they are written as.
func TestYAMLPlainWords(t *testing.T) {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	const letters = "0123456789012345aAbBefFoOxXnNuUlLtTrRyYsS___---...:::///"
	word := func() string {
		var b strings.Builder
		for range 1 + random.IntN(7) {
			b.WriteByte(letters[random.IntN(len(letters))])
		}
		return b.String()
	}
	plain := 0
	for range 20_000 {
		if samePlain(t, fmt.Sprintf("- {k: %s, l: [%s, %s]}\n", word(), word(), word())) {
			plain++
		}
	}
	if plain < 1000 {
		t.Errorf("%d of 20000 were plain", plain)
	}
}

// FuzzYAMLPlain: what is read the short way is what the parser reads.
func FuzzYAMLPlain(f *testing.F) {
	f.Add("  - {name: a, from: {addresses: [192.0.2.0/24, 2001:db8:1:2:3:4:5:6]}, to: any, action: allow}\n")
	f.Add("- {a: b}\n\n# why\n   # c\n- {c: [d, {e: f}], n: 1_0, o: 0x1, p: 1e5}")
	f.Fuzz(func(t *testing.T, text string) { samePlain(t, text) })
}
