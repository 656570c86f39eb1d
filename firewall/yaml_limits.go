package firewall

import (
	"errors"
	"io"

	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"
)

// Limits of what a file may hold, far above what a person writes. The parser recurses for each level and for
// each key of a map, and a stack that overflows ends the process: they are held before it is called.
const (
	maxDepth = 32
	maxKeys  = 20_000 // of one map
	maxMarks = 100    // anchors, aliases, tags and keys of several words, none of which is supported
)

// A parseSize says how much is parsed at once.
type parseSize struct {
	part   int // bytes, above which a text is parsed in parts
	tokens int // words and signs at most
}

// The parser takes a hundred times the text's size in memory, and one rule needs nothing of another.
var usualSize = parseSize{part: 256 << 10, tokens: 4_000_000}

const tooManyTokens = "file holds too much: more than 4 million words"

// scan cuts the text into the parser's tokens. The error is a mistake, and then there are no tokens.
func (t *tree) scan(text string) (token.Tokens, *Error) {
	var s scanner.Scanner
	s.Init(text)
	var tokens token.Tokens
	n := nesting{most: t.size.tokens}
	for {
		more, err := s.Scan()
		if errors.Is(err, io.EOF) {
			return tokens, nil
		}
		for _, tk := range more {
			if fault := n.add(tk); fault.Msg != "" {
				at := t.pos(tk.Position.Line, tk.Position.Column)
				e := at.Errorf("%s", fault.Msg).WithHint("%s", fault.Hint)
				return nil, &e
			}
		}
		tokens.Add(more...)
	}
}

// nesting is how deep, and behind how many others, a token stands.
type nesting struct {
	most          int // tokens that there may be
	tokens, marks int
	flow          int         // brackets and braces that are open
	blocks        []blockItem // the lists and maps by indentation that are open, from the outermost
	last          *token.Token
}

// blockItem is a list or map by indentation, or both, at a column.
type blockItem struct{ column, keys int }

// add takes the next token. Where a limit is exceeded the result says which.
func (n *nesting) add(tk *token.Token) (fault Error) {
	before := n.last
	n.last = tk
	if n.tokens++; n.tokens > n.most {
		return Error{Msg: tooManyTokens, Hint: "split it, and keep long lists in the files of sets"}
	}
	switch tk.Type {
	case token.DocumentHeaderType, token.DocumentEndType:
		n.flow, n.blocks = 0, nil
	case token.MappingStartType, token.SequenceStartType:
		n.flow++
	case token.MappingEndType, token.SequenceEndType:
		n.flow = max(n.flow-1, 0)
	case token.SequenceEntryType:
		n.block(tk)
	case token.MappingValueType:
		if before == nil {
			break
		}
		if keys := n.block(before); keys > maxKeys {
			return Error{Msg: "map has more than 20000 keys", Hint: "split it over several files of the policy, which are one"}
		}
	case token.AnchorType, token.AliasType, token.TagType, token.MappingKeyType:
		if n.marks++; n.marks > maxMarks {
			return Error{Msg: "anchors, aliases, tags and keys of several words are not supported", Hint: "write values out"}
		}
	}
	if n.flow+len(n.blocks) > 2*maxDepth { // the tree says it of less
		return Error{Msg: "more than 32 levels deep", Hint: "nothing here needs so many: look for a bracket too many"}
	}
	return Error{}
}

// block notes an entry of a list or the key of a map by indentation, and returns how many keys of the map
// there have been.
func (n *nesting) block(tk *token.Token) int {
	if n.flow > 0 {
		return 0
	}
	column := tk.Position.Column
	for len(n.blocks) > 0 && n.blocks[len(n.blocks)-1].column > column {
		n.blocks = n.blocks[:len(n.blocks)-1]
	}
	if len(n.blocks) == 0 || n.blocks[len(n.blocks)-1].column < column {
		n.blocks = append(n.blocks, blockItem{column: column})
	}
	top := &n.blocks[len(n.blocks)-1]
	if tk.Type != token.SequenceEntryType {
		top.keys++
	}
	return top.keys
}
