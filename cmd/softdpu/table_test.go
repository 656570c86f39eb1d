package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	fill := func() *table {
		tab := newTable("RULE", ">PACKETS", "FILE")
		tab.add("no-threats", 12, "policy.d/50-branch.yaml:17")
		tab.add("zoë\x1b[2J", 1234567890, "")
		return tab
	}
	tests := []struct {
		name  string
		width int
		want  string
	}{
		{"no terminal", 0, `
RULE           PACKETS  FILE
no-threats          12  policy.d/50-branch.yaml:17
zoë?[2J     1234567890
`},
		{"wide enough", 50, `
RULE           PACKETS  FILE
no-threats          12  policy.d/50-branch.yaml:17
zoë?[2J     1234567890
`},
		{"the widest is cut first", 40, `
RULE           PACKETS  FILE
no-threats          12  policy.d/50-bra…
zoë?[2J     1234567890
`},
		{"numbers are never cut", 10, `
RULE         PACKETS  FILE
no-thre…          12  policy.…
zoë?[2J   1234567890
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			if err := fill().write(&b, tt.width); err != nil {
				t.Fatal(err)
			}
			if got := "\n" + b.String(); got != tt.want {
				t.Errorf("got:%swant:%s", got, tt.want)
			}
		})
	}
}

func TestSuggestion(t *testing.T) {
	known := []string{"client-server", "inline", "three-zone", "up", "down", "drops"}
	tests := []struct{ typed, want string }{
		{"inlien", "inline"},
		{"Inline", "inline"},
		{"three", "three-zone"},
		{"cleint-server", "client-server"},
		{"donw", "down"},
		{"dorps", "drops"},
		{"pu", "up"},
		{"xy", ""},
		{"wormhole", ""},
		{"", ""},
	}
	for _, tt := range tests {
		t.Run(tt.typed, func(t *testing.T) {
			want := ""
			if tt.want != "" {
				want = "; did you mean " + tt.want + "?"
			}
			if got := suggestion(tt.typed, known); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
