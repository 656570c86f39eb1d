package pipefile

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/mistake"
)

// Bounds of JSON that is read by itself: a hundred thousand entries are one line, which takes a parser of YAML minutes.
const (
	jsonDepth  = 32
	jsonSource = 1000 // bytes of a line that mistakes show
)

// parse reads the documents of a text, as [firewall.ParseYAML] does.
func parse(name string, text []byte) ([]*firewall.Node, mistake.Errors) {
	if first := bytes.TrimLeft(text, " \t\r\n"); len(first) > 0 && (first[0] == '{' || first[0] == '[') && json.Valid(text) {
		j := &jsonText{name: name, text: text, decoder: json.NewDecoder(bytes.NewReader(text)), line: 1}
		j.decoder.UseNumber()
		if node, ok := j.value(0); ok {
			return []*firewall.Node{node}, nil
		}
	}
	return firewall.ParseYAML(name, text)
}

// jsonText is valid JSON that is being read.
type jsonText struct {
	name    string
	text    []byte
	decoder *json.Decoder
	at      int // byte up to which lines are counted
	line    int
	begin   int // byte at which the line begins
	source  string
	sourced int // line whose text that is
}

// pos is where the next token begins.
func (j *jsonText) pos() mistake.Pos {
	next := int(j.decoder.InputOffset())
	for next < len(j.text) && bytes.IndexByte([]byte(" \t\r\n,:"), j.text[next]) >= 0 {
		next++
	}
	for {
		end := bytes.IndexByte(j.text[j.at:next], '\n')
		if end < 0 {
			break
		}
		j.at += end + 1
		j.line, j.begin = j.line+1, j.at
	}
	j.at = next
	if j.sourced != j.line {
		line, _, ended := bytes.Cut(j.text[j.begin:min(len(j.text), j.begin+jsonSource+1)], []byte("\n"))
		if j.source, j.sourced = "", j.line; ended || len(line) <= jsonSource {
			j.source = string(line)
		}
	}
	return mistake.Pos{File: j.name, Line: j.line, Column: next - j.begin + 1, Source: j.source}
}

// value reads the next value; not ok: it is nested too deeply.
func (j *jsonText) value(depth int) (n *firewall.Node, ok bool) {
	n = &firewall.Node{Pos: j.pos()}
	token, err := j.decoder.Token()
	if err != nil || depth > jsonDepth {
		return nil, false
	}
	switch v := token.(type) {
	case nil:
		n.Kind = firewall.NullNode
	case bool:
		n.Kind, n.Text = firewall.ScalarNode, strconv.FormatBool(v)
	case json.Number:
		n.Kind, n.Text = firewall.ScalarNode, v.String()
	case string:
		n.Kind, n.Text, n.Quoted = firewall.ScalarNode, v, true
	case json.Delim:
		n.Kind = firewall.ListNode
		if v == '{' {
			n.Kind = firewall.MapNode
		}
		for j.decoder.More() {
			field := firewall.Field{}
			if v == '{' {
				field.Pos = j.pos()
				key, err := j.decoder.Token()
				if err != nil {
					return nil, false
				}
				field.Key, _ = key.(string)
			}
			value, ok := j.value(depth + 1)
			if !ok {
				return nil, false
			}
			if field.Value = value; v == '{' {
				n.Fields = append(n.Fields, field)
			} else {
				n.Items = append(n.Items, value)
			}
		}
		_, err = j.decoder.Token()
	}
	return n, err == nil
}
