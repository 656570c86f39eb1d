package firewall

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// NodeKind is the shape of a Node.
type NodeKind uint8

const (
	NullNode NodeKind = iota
	ScalarNode
	ListNode
	MapNode
)

// String names the kind as messages do.
func (k NodeKind) String() string {
	return [...]string{"nothing", "a single value", "a list", "a map of keys"}[k]
}

// Node is a YAML value with the place where it stands.
type Node struct {
	Pos    Pos
	Kind   NodeKind
	Text   string  // ScalarNode: the value; numbers and booleans as they were written
	Quoted bool    // ScalarNode: the value stood in quotes or in a block
	Items  []*Node // ListNode
	Fields []Field // MapNode, in the order of the file, repeated keys included
}

// Field is a key of a map with its value.
type Field struct {
	Key   string
	Pos   Pos // of the key
	Value *Node
}

// ParseYAML reads the documents of one YAML file; name is what errors call it. Empty documents are
// left out. Anchors, aliases, merge keys and tags are errors: what a file says must stand where it is
// read. A syntax error ends the reading, so the result then holds no documents.
func ParseYAML(name string, text []byte) ([]*Node, Errors) {
	return parseYAML(name, text, usualSize)
}

func parseYAML(name string, text []byte, size parseSize) (docs []*Node, errs Errors) {
	t := &tree{name: name, size: size}
	body := strings.TrimPrefix(string(text), "\ufeff")
	t.lines = strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(body), "\n")
	if e := fileError(name, errTooLarge); len(text) > maxFile {
		return nil, Errors{{File: name, Msg: e.Err.Error(), Hint: e.Hint}}
	}
	if e, bad := notText(name, string(text), t.lines); bad {
		return nil, Errors{e}
	}
	return t.read(len(text))
}

// read reads all lines, which are so many bytes.
func (t *tree) read(bytes int) (docs []*Node, errs Errors) {
	var inParts Errors
	if bytes > t.size.part {
		var ok bool
		if docs, inParts, ok = t.parseParts(); ok {
			return docs, nil
		}
	}
	docs = t.parse(t.lines, 0)
	if len(t.errs) == 1 && t.errs[0].Msg == tooManyTokens && len(inParts) > 0 {
		return nil, inParts // the whole is too long to say better
	}
	return docs, t.errs
}

// parse reads lines, which stand in t.lines behind t.above others, at that depth of the tree. What is wrong goes into
// t.errs; of a syntax error there are no documents.
func (t *tree) parse(lines []string, depth int) (docs []*Node) {
	// The parser is not ours: what it cannot digest must end as a message, not as a crash.
	defer func() {
		if r := recover(); r != nil {
			docs, t.errs = nil, Errors{t.pos(1, 1).Errorf("read YAML: unsupported construct")}
		}
	}()
	tokens, fault := t.scan(markColons(strings.Join(lines, "\n")))
	if fault != nil {
		t.errs = Errors{*fault}
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		t.errs = Errors{t.syntax(err)}
		return nil
	}
	for _, d := range file.Docs {
		if d.Body != nil {
			docs = append(docs, t.node(d.Body, depth))
		}
	}
	return docs
}

// colonMark, a code point that no text may hold, stands for a colon that belongs to a plain value.
// The parser would end the value there when it is in a list inside braces, as in
// {addresses: [2001:db8::/32]}.
const colonMark = '\ufdd0'

// markColons puts colonMark in the place of colons that YAML 1.2 (section 7.3.3) counts to the value
// around them: those before which no quoted or bracketed value ends and behind which something other
// than white space or an end of a list follows. It is kinder than YAML to the second of two colons,
// so that fe80:: needs no quotes anywhere. A mark inside quotes or a comment does no harm, since all
// marks are taken back.
func markColons(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	marked := false
	for i := 0; i < len(text); i++ {
		if text[i] != ':' {
			b.WriteByte(text[i])
			marked = false
			continue
		}
		after := i+1 < len(text) && !strings.ContainsRune(" \t\n,[]{}", rune(text[i+1]))
		before := i == 0 || !strings.ContainsRune("\"']}", rune(text[i-1]))
		if marked = marked || before && after; marked {
			b.WriteRune(colonMark)
		} else {
			b.WriteByte(':')
		}
	}
	return b.String()
}

func unmark(text string) string { return strings.ReplaceAll(text, string(colonMark), ":") }

// tree turns the parser's syntax tree into Nodes.
type tree struct {
	name  string
	lines []string // of the file
	above int      // so many lines stand above those that are read
	gapAt int      // behind so many lines, if gap is not 0,
	gap   int      // so many lines of the file have been left out
	size  parseSize
	errs  Errors
}

// pos makes a place, moved into the file if the parser's idea of it lies outside.
func (t *tree) pos(line, column int) Pos {
	line = min(max(line+t.above, 1), len(t.lines))
	source := t.lines[line-1]
	column = min(max(column, 1), utf8.RuneCountInString(source)+1)
	if line > t.gapAt {
		line += t.gap
	}
	return Pos{File: t.name, Line: line, Column: column, Source: source}
}

func (t *tree) at(n ast.Node) Pos {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		return t.at(m.Values[0].Key)
	}
	tk := n.GetToken()
	if tk == nil || tk.Position == nil {
		return t.pos(1, 1)
	}
	return t.pos(tk.Position.Line, tk.Position.Column)
}

func (t *tree) syntax(err error) Error {
	var syntax *yaml.SyntaxError
	if !errors.As(err, &syntax) || syntax.Token == nil || syntax.Token.Position == nil {
		message, _, _ := strings.Cut(unmark(err.Error()), "\n")
		return t.pos(1, 1).Errorf("not YAML: %s", message)
	}
	p := syntax.Token.Position
	e := t.pos(p.Line, p.Column).Errorf("not YAML: %s", unmark(syntax.Message))
	switch {
	case strings.Contains(e.Source, "\t"):
		e.Hint = "indent with spaces, not tabs"
	case strings.TrimSpace(strings.Join(t.lines[min(p.Line+t.above, len(t.lines)):], "")) == "":
		e.Hint = "the file may end too early: look for what is not closed"
	default:
		e.Hint = "look for what is not closed before, and put values that hold signs into quotes"
	}
	return e
}

func (t *tree) node(n ast.Node, depth int) *Node {
	out := &Node{Pos: t.at(n)}
	if depth > maxDepth {
		t.errs = append(t.errs, out.Pos.Errorf("more than %d levels deep", maxDepth))
		return out
	}
	switch n := n.(type) {
	case *ast.NullNode:
	case *ast.StringNode:
		out.Kind, out.Text = ScalarNode, unmark(n.Value)
		out.Quoted = n.Token.Type != token.StringType
	case *ast.LiteralNode:
		out.Kind, out.Text, out.Quoted = ScalarNode, unmark(n.Value.Value), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		out.Kind, out.Text = ScalarNode, n.GetToken().Value
	case *ast.SequenceNode:
		out.Kind = ListNode
		for _, v := range n.Values {
			out.Items = append(out.Items, t.node(v, depth+1))
		}
	case *ast.MappingNode:
		out.Kind = MapNode
		for _, v := range n.Values {
			t.field(out, v, depth)
		}
	case *ast.MappingValueNode:
		out.Kind = MapNode
		t.field(out, n, depth)
	case *ast.AnchorNode, *ast.AliasNode:
		t.errs = append(t.errs, out.Pos.Errorf("anchors and aliases are not supported").
			WithHint("write the value out, or give it a name among sets, workloads or services"))
	case *ast.TagNode:
		t.errs = append(t.errs, out.Pos.Errorf("tags are not supported").WithHint("leave %s out", unmark(n.GetToken().Value)))
	default:
		t.errs = append(t.errs, out.Pos.Errorf("unsupported YAML construct"))
	}
	return out
}

func (t *tree) field(out *Node, v *ast.MappingValueNode, depth int) {
	if v.Key == nil || v.Value == nil {
		t.errs = append(t.errs, out.Pos.Errorf("key without a name or value"))
		return
	}
	f := Field{Pos: t.at(v.Key)}
	switch k := v.Key.(type) {
	case *ast.StringNode:
		f.Key = unmark(k.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		f.Key = k.GetToken().Value
	case *ast.MergeKeyNode:
		t.errs = append(t.errs, f.Pos.Errorf("merge keys are not supported").WithHint("write the keys out"))
		return
	default:
		t.errs = append(t.errs, f.Pos.Errorf("a key must be plain text"))
		return
	}
	f.Value = t.node(v.Value, depth+1)
	out.Fields = append(out.Fields, f)
}
