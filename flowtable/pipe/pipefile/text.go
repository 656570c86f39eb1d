package pipefile

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// YAML writes a pipeline that [pipe.Pipeline.Check] takes as a file that [Parse] reads to the same: entries and actions a
// line each.
func YAML(p *pipe.Pipeline) []byte {
	var b bytes.Buffer
	block(&b, tree(p), 0)
	return b.Bytes()
}

// JSON writes the same as a JSON object, an entry a line. Entries are written one by one: a tree of all of them takes far
// more memory than their text.
func JSON(p *pipe.Pipeline) []byte {
	bare := *p
	bare.Pipes = nil
	for _, of := range p.Pipes {
		one := *of
		one.Entries = nil
		bare.Pipes = append(bare.Pipes, &one)
	}
	var b bytes.Buffer
	root := tree(&bare)
	last := len(root.Fields) - 1 // the pipes
	pipes := root.Fields[last].Value.Items
	root.Fields = root.Fields[:last]
	open := func(n *firewall.Node) { // an object to which more comes
		object(&b, n)
		b.Truncate(b.Len() - 1)
	}
	open(root)
	b.WriteString(`,"pipes":[`)
	for i, n := range pipes {
		if i > 0 {
			b.WriteByte(',')
		}
		open(n)
		write := EntryJSON(p, i)
		for k, e := range p.Pipes[i].Entries {
			if k == 0 {
				b.WriteString(",\"entries\":[\n")
			} else {
				b.WriteString(",\n")
			}
			write(&b, e)
		}
		if len(p.Pipes[i].Entries) > 0 {
			b.WriteByte(']')
		}
		b.WriteByte('}')
	}
	b.WriteString("]}")
	return b.Bytes()
}

// block writes the fields of a map a line each, and lists of maps an item each.
func block(b *bytes.Buffer, n *firewall.Node, indent int) {
	for i, f := range n.Fields {
		if i > 0 || indent == 0 {
			b.WriteString(strings.Repeat(" ", indent))
		}
		b.WriteString(key(f.Key) + ":")
		switch {
		case f.Key == "pipes":
			b.WriteByte('\n')
			for _, item := range f.Value.Items {
				b.WriteString(strings.Repeat(" ", indent+2) + "- ")
				block(b, item, indent+4)
			}
		case f.Key == "entries" || f.Key == "actions":
			b.WriteByte('\n')
			for _, item := range f.Value.Items {
				b.WriteString(strings.Repeat(" ", indent+2) + "- ")
				flow(b, item)
				b.WriteByte('\n')
			}
		case f.Value.Kind == firewall.MapNode && indent == 0:
			b.WriteByte('\n')
			for _, named := range f.Value.Fields {
				b.WriteString(strings.Repeat(" ", indent+2) + key(named.Key) + ": ")
				flow(b, named.Value)
				b.WriteByte('\n')
			}
		default:
			b.WriteByte(' ')
			flow(b, f.Value)
			b.WriteByte('\n')
		}
	}
}

// flow writes a value on the line.
func flow(b *bytes.Buffer, n *firewall.Node) {
	switch n.Kind {
	case firewall.MapNode:
		b.WriteByte('{')
		for i, f := range n.Fields {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(key(f.Key) + ": ")
			flow(b, f.Value)
		}
		b.WriteByte('}')
	case firewall.ListNode:
		b.WriteByte('[')
		for i, item := range n.Items {
			if i > 0 {
				b.WriteString(", ")
			}
			flow(b, item)
		}
		b.WriteByte(']')
	default:
		if n.Quoted {
			b.WriteString(key(n.Text))
		} else {
			b.WriteString(n.Text)
		}
	}
}

// key writes a word, in quotes if it could be read as something else.
func key(word string) string {
	letter := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	plain := word != "" && letter(word[0])
	for i := range len(word) {
		c := word[i]
		plain = plain && (letter(c) || c >= '0' && c <= '9' || strings.IndexByte("-_./", c) >= 0)
	}
	switch strings.ToLower(word) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		plain = false
	}
	if plain {
		return word
	}
	return quoted(word)
}

// quoted writes a text as JSON does, which YAML reads alike.
func quoted(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a text and a buffer never fail
	return strings.TrimSuffix(b.String(), "\n")
}

func object(b *bytes.Buffer, n *firewall.Node) {
	switch n.Kind {
	case firewall.MapNode:
		b.WriteByte('{')
		for i, f := range n.Fields {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(quoted(f.Key) + ":")
			object(b, f.Value)
		}
		b.WriteByte('}')
	case firewall.ListNode:
		b.WriteByte('[')
		for i, item := range n.Items {
			if i > 0 {
				b.WriteByte(',')
			}
			object(b, item)
		}
		b.WriteByte(']')
	default:
		if n.Quoted {
			b.WriteString(quoted(n.Text))
		} else {
			b.WriteString(n.Text)
		}
	}
}
