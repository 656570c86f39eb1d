package pipefile

import (
	"bytes"
	"fmt"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/mistake"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Changes are the changes of entries as files and people name them, in the order in which a batch does them.
var Changes = []struct {
	Name   string
	Change pipe.Change
}{{"remove", pipe.RemoveEntry}, {"update", pipe.UpdateEntry}, {"add", pipe.InsertEntry}}

// ParseEdits reads changes of entries of a pipe of a checked pipeline: a list of entries, as under `entries` of a pipe, that
// are all to be changed in one way, or without a way a map with lists under remove, update and add, which are done in this
// order. Name is what mistakes call the text; the error is a [mistake.Errors] with every mistake found. Whether the pipe can
// hold what they say is checked by [pipe.Pipeline.CheckEdits].
func ParseEdits(name string, text []byte, line *pipe.Pipeline, number int, change string) ([]pipe.Edit, error) {
	docs, errs := parse(name, text)
	r := &reader{Reader: firewall.Reader{Errs: errs}, pipeline: line}
	var batch []pipe.Edit
	list := func(n *firewall.Node, how pipe.Change) {
		for _, item := range r.items(n) {
			batch = append(batch, pipe.Edit{Change: how, Entry: r.entry(line.Pipes[number], item)})
		}
	}
	switch {
	case len(errs) > 0:
	case len(docs) != 1:
		r.Fail(mistake.Error{File: name, Msg: fmt.Sprintf("%d documents where one is expected", len(docs)), Hint: "write a list of entries"})
	case change == "":
		f := r.Fields(docs[0], "a batch", keys["batch"])
		for _, c := range Changes {
			list(f[c.Name], c.Change)
		}
	default:
		if docs[0].Kind == firewall.MapNode {
			r.Fail(docs[0].Pos.Errorf("a map where a list of entries is expected").WithHint("as in - {match: {...}, forward: drop}"))
			break
		}
		for _, c := range Changes {
			if c.Name == change {
				list(docs[0], c.Change)
			}
		}
	}
	r.indexed()
	if len(r.Errs) > 0 {
		return nil, r.Errs.Sorted(name)
	}
	return batch, nil
}

// EntryJSON returns what writes an entry of a pipe as a JSON object that [ParseEdits] reads.
func EntryJSON(line *pipe.Pipeline, number int) func(*bytes.Buffer, *pipe.Entry) {
	l := make(lists)
	for _, p := range line.Pipes {
		l[p.Name] = p.Kind == pipe.OrderedList
	}
	of := line.Pipes[number]
	return func(b *bytes.Buffer, e *pipe.Entry) { object(b, l.entry(of, e)) }
}
