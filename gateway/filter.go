package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A Filter chooses flows. The expression is made of
//
//	src ADDRESS[/BITS]   dst ...   host ...        opener's, other end's, either address
//	sport PORT[-PORT]    dport ...   port ...      ports likewise
//	proto NAME|NUMBER    family 4|6
//	from ZONE   to ZONE   zone ZONE                opener's, other end's, either zone
//	state STATE   rule NAME   tier TIER   revoked
//	nat NAME                                       translated by this nat rule
//
// joined by `and`, `or`, `not` and parentheses; `not` binds closest, `or` least. Addresses and ports are those
// before or after translation. The zero value and nil
// match everything.
type Filter struct{ match func(*Flow) bool }

// Match reports whether the filter chooses the flow.
func (f *Filter) Match(flow *Flow) bool { return f == nil || f.match == nil || f.match(flow) }

// A FilterError is an expression that was not understood.
type FilterError struct {
	Text   string // the whole expression
	Column int    // of the word in question, in characters from 1
	Msg    string
	Hint   string // "" if there is none
}

// Error renders the error with the expression and a caret below the place.
func (e *FilterError) Error() string {
	s := fmt.Sprintf("filter, column %d: %s\n  %s\n  %s^", e.Column, e.Msg, e.Text, strings.Repeat(" ", e.Column-1))
	if e.Hint != "" {
		s += "\n  = " + e.Hint
	}
	return s
}

// filterKeys are the words that begin a condition, with what follows them.
var filterKeys = []struct{ key, value string }{
	{"src", "an address or prefix"}, {"dst", "an address or prefix"}, {"host", "an address or prefix"},
	{"sport", "a port or range"}, {"dport", "a port or range"}, {"port", "a port or range"},
	{"proto", "a protocol"}, {"family", "4 or 6"},
	{"from", "a zone"}, {"to", "a zone"}, {"zone", "a zone"},
	{"state", "a state"}, {"rule", "the name of a rule"}, {"nat", "the name of a nat rule"}, {"tier", "a tier"}, {"revoked", ""},
}

// Tiers that hold flows.
var tiers = []string{"hardware", "xdp", "worker"}

// filterExample is an expression that has a bit of everything.
const filterExample = "src 10.0.0.0/8 and (dport 443 or not state new)"

// maxFilterDepth bounds parentheses and negations inside each other.
const maxFilterDepth = 100

// ParseFilter reads an expression; an empty one matches everything. The error is a *FilterError.
func ParseFilter(text string) (*Filter, error) {
	p := &filterParser{text: text}
	p.split()
	if len(p.words) == 0 {
		return &Filter{}, nil
	}
	match, err := p.or(0)
	if err == nil && p.at < len(p.words) {
		w := p.words[p.at]
		err = p.fail(w, "expected `and` or `or`, not %q", w.text)
	}
	var fault *FilterError
	if errors.As(err, &fault) && fault.Hint == "" {
		fault.Hint = "as in " + filterExample
	}
	if err != nil {
		return nil, err
	}
	return &Filter{match}, nil
}

type filterWord struct {
	text   string
	column int
}

type filterParser struct {
	text  string
	words []filterWord
	at    int
}

// split cuts the text into words; parentheses are words of their own.
func (p *filterParser) split() {
	column, start := 0, 0
	var word strings.Builder
	end := func() {
		if word.Len() > 0 {
			p.words = append(p.words, filterWord{word.String(), start})
			word.Reset()
		}
	}
	for _, r := range p.text {
		column++
		switch {
		case unicode.IsSpace(r):
			end()
		case r == '(' || r == ')':
			end()
			p.words = append(p.words, filterWord{string(r), column})
		default:
			if word.Len() == 0 {
				start = column
			}
			word.WriteRune(r)
		}
	}
	end()
}

func (p *filterParser) fail(w filterWord, format string, args ...any) *FilterError {
	for i := range args {
		if word, ok := args[i].(string); ok {
			args[i] = shortened(word)
		}
	}
	return &FilterError{Text: p.text, Column: w.column, Msg: fmt.Sprintf(format, args...)}
}

// peek returns the next word; at the end an empty one whose column is behind the text.
func (p *filterParser) peek() filterWord {
	if p.at < len(p.words) {
		return p.words[p.at]
	}
	return filterWord{column: len([]rune(p.text)) + 1}
}

func (p *filterParser) take(word string) bool {
	if p.at < len(p.words) && p.words[p.at].text == word {
		p.at++
		return true
	}
	return false
}

func (p *filterParser) or(depth int) (func(*Flow) bool, error) {
	left, err := p.and(depth)
	for err == nil && p.take("or") {
		l, right := left, (func(*Flow) bool)(nil)
		right, err = p.and(depth)
		left = func(f *Flow) bool { return l(f) || right(f) }
	}
	return left, err
}

func (p *filterParser) and(depth int) (func(*Flow) bool, error) {
	left, err := p.not(depth)
	for err == nil && p.take("and") {
		l, right := left, (func(*Flow) bool)(nil)
		right, err = p.not(depth)
		left = func(f *Flow) bool { return l(f) && right(f) }
	}
	return left, err
}

func (p *filterParser) not(depth int) (func(*Flow) bool, error) {
	w := p.peek()
	if depth > maxFilterDepth {
		return nil, p.fail(w, "more than %d parentheses and negations inside each other", maxFilterDepth)
	}
	switch {
	case p.take("not"):
		match, err := p.not(depth + 1)
		return func(f *Flow) bool { return !match(f) }, err
	case p.take("("):
		match, err := p.or(depth + 1)
		if err == nil && !p.take(")") {
			end := p.peek()
			err = p.fail(end, "the parenthesis of column %d is not closed", w.column)
		}
		return match, err
	}
	return p.condition()
}

func (p *filterParser) condition() (func(*Flow) bool, error) {
	key := p.peek()
	i := slices.IndexFunc(filterKeys, func(k struct{ key, value string }) bool { return k.key == key.text })
	if i < 0 {
		err := p.fail(key, "expected a condition, not %q", key.text)
		if key.text == "" {
			err.Msg = "expected a condition, and the expression ends here"
		}
		var keys []string
		for _, k := range filterKeys {
			keys = append(keys, k.key)
		}
		err.Hint = "conditions begin with " + strings.Join(keys, ", ")
		return nil, err
	}
	p.at++
	if key.text == "revoked" {
		return func(f *Flow) bool { return f.Revoked }, nil
	}
	value := p.peek()
	if value.text == "" || value.text == "(" || value.text == ")" {
		return nil, p.fail(value, "%s needs %s", key.text, filterKeys[i].value)
	}
	p.at++
	switch key.text {
	case "src", "dst", "host":
		return p.address(key.text, value)
	case "sport", "dport", "port":
		return p.port(key.text, value)
	}
	return p.name(key.text, value)
}

func (p *filterParser) address(key string, w filterWord) (func(*Flow) bool, error) {
	prefix, err := netip.ParsePrefix(w.text)
	if err != nil {
		a, addrErr := netip.ParseAddr(w.text)
		if addrErr != nil || a.Zone() != "" {
			fault := p.fail(w, "%q is not an address or prefix", w.text)
			fault.Hint = "as in 10.0.0.0/8, 10.20.1.7 or fd10:1::/64"
			return nil, fault
		}
		prefix = netip.PrefixFrom(a, a.BitLen())
	}
	prefix = prefix.Masked()
	src := func(f *Flow) bool {
		return prefix.Contains(f.SrcIP) || f.NAT != nil && prefix.Contains(f.NAT.SrcIP)
	}
	dst := func(f *Flow) bool {
		return prefix.Contains(f.DestIP) || f.NAT != nil && prefix.Contains(f.NAT.DestIP)
	}
	return end(key, "src", src, "dst", dst), nil
}

func (p *filterParser) port(key string, w filterWord) (func(*Flow) bool, error) {
	low, high, isRange := strings.Cut(w.text, "-")
	if !isRange {
		high = low
	}
	first, err1 := strconv.ParseUint(low, 10, 16)
	last, err2 := strconv.ParseUint(high, 10, 16)
	if err1 != nil || err2 != nil || last < first {
		fault := p.fail(w, "%q is not a port or range", w.text)
		fault.Hint = "as in 443 or 8000-8099"
		return nil, fault
	}
	has := func(port uint16) bool { return uint64(port) >= first && uint64(port) <= last }
	src := func(f *Flow) bool { return has(f.SrcPort) || f.NAT != nil && has(f.NAT.SrcPort) }
	dst := func(f *Flow) bool { return has(f.DestPort) || f.NAT != nil && has(f.NAT.DestPort) }
	return end(key, "sport", src, "dport", dst), nil
}

// end is the condition on the end of a flow that a key names, or on either.
func end(key, srcKey string, src func(*Flow) bool, dstKey string, dst func(*Flow) bool) func(*Flow) bool {
	switch key {
	case srcKey:
		return src
	case dstKey:
		return dst
	}
	return func(f *Flow) bool { return src(f) || dst(f) }
}

// name reads a condition on a field that holds a word.
func (p *filterParser) name(key string, w filterWord) (func(*Flow) bool, error) {
	oneOf := func(known []string) error {
		if slices.Contains(known, w.text) {
			return nil
		}
		fault := p.fail(w, "there is no %s %q", key, w.text)
		fault.Hint = "there are " + strings.Join(known, ", ")
		return fault
	}
	switch key {
	case "proto":
		number, ok := protoNumber(w.text)
		if !ok {
			return nil, oneOf(append(protoNames(), "numbers up to 255"))
		}
		name := protoName(number)
		return func(f *Flow) bool { return f.Proto == name }, nil
	case "family":
		if err := oneOf([]string{"4", "6"}); err != nil {
			return nil, err
		}
		return func(f *Flow) bool { return strconv.Itoa(int(f.Family)) == w.text }, nil
	case "state":
		var states []string
		for _, s := range flowStates {
			states = append(states, s.String())
		}
		if err := oneOf(states); err != nil {
			return nil, err
		}
		return func(f *Flow) bool { return f.State == w.text }, nil
	case "tier":
		if err := oneOf(tiers); err != nil {
			return nil, err
		}
		return func(f *Flow) bool { return f.Tier == w.text }, nil
	case "from":
		return func(f *Flow) bool { return f.From == w.text }, nil
	case "to":
		return func(f *Flow) bool { return f.To == w.text }, nil
	case "zone":
		return func(f *Flow) bool { return f.From == w.text || f.To == w.text }, nil
	}
	if key == "nat" {
		return func(f *Flow) bool {
			return f.NAT != nil && (f.NAT.SourceRule == w.text || f.NAT.DestinationRule == w.text)
		}, nil
	}
	return func(f *Flow) bool { return f.Rule == w.text }, nil
}
