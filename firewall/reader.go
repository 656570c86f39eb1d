package firewall

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Reader takes values out of Nodes and collects every mistake on the way. The zero value is ready.
type Reader struct {
	Errs Errors
}

// Fail records an error.
func (r *Reader) Fail(e Error) { r.Errs = append(r.Errs, e) }

// Fields returns the values of a map by key. Unknown and repeated keys are errors; of a repeated key
// the first value stands. What names the map in messages ("a rule"). Keys without a value are left out.
func (r *Reader) Fields(n *Node, what string, known []string) map[string]*Node {
	out := make(map[string]*Node)
	if n.Kind != MapNode {
		r.Fail(n.Pos.Errorf("%s must be a map of keys, not %s", what, n.Kind).WithHint("its keys are: %s", strings.Join(known, ", ")))
		return out
	}
	first := make(map[string]Pos)
	for _, f := range n.Fields {
		if p, twice := first[f.Key]; twice {
			r.Fail(f.Pos.Errorf("key %q is given twice", f.Key).WithHint("the first stands in line %d", p.Line))
			continue
		}
		first[f.Key] = f.Pos
		if !slices.Contains(known, f.Key) {
			r.Fail(Unknown(f.Pos, "key", f.Key, known, fmt.Sprintf("%s has: %s", what, strings.Join(known, ", "))).In(what))
			continue
		}
		if f.Value.Kind != NullNode {
			out[f.Key] = f.Value
		}
	}
	return out
}

// Text returns a scalar's text. What names the value in messages.
func (r *Reader) Text(n *Node, what string) (string, bool) {
	if n.Kind != ScalarNode {
		r.Fail(n.Pos.Errorf("%s must be a single value, not %s", what, n.Kind).WithHint("write one word, number or text in its place"))
		return "", false
	}
	return n.Text, true
}

// Bool reads true or false.
func (r *Reader) Bool(n *Node, what string) bool {
	text, ok := r.Text(n, what)
	if !ok {
		return false
	}
	if n.Quoted || text != "true" && text != "false" {
		r.Fail(n.Pos.Errorf("%s must be true or false, not %q", what, text))
	}
	return text == "true"
}

// Int reads a decimal number between low and high.
func (r *Reader) Int(n *Node, what string, low, high int) (int, bool) {
	text, ok := r.Text(n, what)
	if !ok {
		return 0, false
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < low || v > high {
		r.Fail(n.Pos.Errorf("%s must be a number between %d and %d, not %q", what, low, high, text))
		return 0, false
	}
	return v, true
}

// Choice reads one of the given words.
func (r *Reader) Choice(n *Node, what string, words ...string) string {
	text, ok := r.Text(n, what)
	if !ok {
		return ""
	}
	if !slices.Contains(words, text) {
		r.Fail(Unknown(n.Pos, what, text, words, "it is one of: "+strings.Join(words, ", ")))
		return ""
	}
	return text
}

// List returns the items of a list, or the node itself where one value stands for a list of one.
func (r *Reader) List(n *Node) []*Node {
	switch n.Kind {
	case ListNode:
		return n.Items
	case NullNode:
		return nil
	}
	return []*Node{n}
}

// maxName bounds the length of names, in bytes.
const maxName = 64

// Identifier reports what is wrong with a name, "" if nothing: letters and digits, then also
// - _ and a dot.
func identifierFault(name string) string {
	if name == "" {
		return "a name must not be empty"
	}
	if len(name) > maxName {
		return fmt.Sprintf("a name is at most %d characters long", maxName)
	}
	for i, c := range name {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '-' || c == '_' || c == '.'):
		default:
			return "a name consists of letters, digits, - _ and dots, and begins with a letter or digit"
		}
	}
	if looksLikeAddress(name) {
		return "a name must not look like an address"
	}
	return ""
}

// Identifier checks a name of something that a file declares.
func (r *Reader) Identifier(p Pos, what, name string) bool {
	if fault := identifierFault(name); fault != "" {
		r.Fail(p.Errorf("%q cannot be the name of %s", name, what).WithHint("%s", fault))
		return false
	}
	return true
}

// In adds where an unknown key stands.
func (e Error) In(what string) Error {
	e.Msg += " in " + what
	return e
}

// Unknown makes the error for a word that is not among the known ones. The hint names the nearest
// known word, else it is otherwise.
func Unknown(p Pos, what, word string, known []string, otherwise string) Error {
	e := p.Errorf("unknown %s %q", what, word)
	if near := nearest(word, known); near != "" {
		return e.WithHint("did you mean %q?", near)
	}
	e.Hint = otherwise
	return e
}

// nearest returns the known word with the fewest edits to word, of several the one of most nearly the
// same length, then the first in the alphabet; "" if none is near.
func nearest(word string, known []string) string {
	if len(word) > 2*maxName {
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
