package mistake

import (
	"cmp"
	"strings"
	"unicode/utf8"
)

// LongestName bounds the length of names that people give, in bytes.
const LongestName = 64

// In adds where an unknown key stands.
func (e Error) In(what string) Error {
	e.Msg += " in " + what
	return e
}

// Unknown makes the error for a word that is not among the known ones. The hint names the nearest
// known word, else it is otherwise.
func Unknown(p Pos, what, word string, known []string, otherwise string) Error {
	e := p.Errorf("unknown %s %q", what, word)
	if near := Nearest(word, known); near != "" {
		return e.WithHint("did you mean %q?", near)
	}
	e.Hint = otherwise
	return e
}

// Nearest returns the known word with the fewest edits to word, of several the one of most nearly the
// same length, then the first in the alphabet; "" if none is near.
func Nearest(word string, known []string) string {
	if len(word) > 2*LongestName {
		return ""
	}
	best, distance := "", max(1, min(3, utf8.RuneCountInString(word)/2))+1
	longer := func(k string) int { return max(len(k)-len(word), len(word)-len(k)) }
	for _, k := range known {
		d := edits(strings.ToLower(word), strings.ToLower(k))
		if d > distance || d == distance && best == "" {
			continue
		}
		if d < distance || cmp.Or(cmp.Compare(longer(k), longer(best)), cmp.Compare(k, best)) < 0 {
			best, distance = k, d
		}
	}
	return best
}

// edits counts insertions, deletions, substitutions and swaps of neighbours between two words.
func edits(a, b string) int {
	x, y := []rune(a), []rune(b)
	before, last, row := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(y)]
}
