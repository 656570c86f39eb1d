package firewall

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/firewall/mistake"
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
	out := make(map[string]*Node, len(n.Fields))
	if n.Kind != MapNode {
		r.Fail(n.Pos.Errorf("%s must be a map of keys, not %s", what, n.Kind).WithHint("its keys are: %s", strings.Join(known, ", ")))
		return out
	}
	first := firstOf(n.Fields)
	for i := range n.Fields {
		f := &n.Fields[i]
		if k := first(i); k < i {
			r.Fail(f.Pos.Errorf("key %q is given twice", f.Key).WithHint("the first stands in line %d", n.Fields[k].Pos.Line))
			continue
		}
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

// firstOf returns a function that tells which of the fields has the key of field i first. It is to be asked in order.
func firstOf(fields []Field) func(i int) int {
	if len(fields) <= 16 { // so few are compared sooner than put into a map
		return func(i int) int {
			return slices.IndexFunc(fields[:i+1], func(f Field) bool { return f.Key == fields[i].Key })
		}
	}
	first := make(map[string]int, len(fields))
	return func(i int) int {
		k, twice := first[fields[i].Key]
		if !twice {
			first[fields[i].Key], k = i, i
		}
		return k
	}
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
	i := slices.Index(words, text)
	if i < 0 {
		r.Fail(Unknown(n.Pos, what, text, words, "it is one of: "+strings.Join(words, ", ")))
		return ""
	}
	return words[i]
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

// Identifier reports what is wrong with a name, "" if nothing: letters and digits, then also
// - _ and a dot.
func identifierFault(name string) string {
	if name == "" {
		return "a name must not be empty"
	}
	if len(name) > mistake.LongestName {
		return fmt.Sprintf("a name is at most %d characters long", mistake.LongestName)
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
