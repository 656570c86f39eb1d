package pipefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/mistake"
	"github.com/softdpu/softdpu/firewall/schema"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/random"
)

func all(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/all.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// forget takes the places out of a pipeline, and what may be said in two ways.
func forget(v reflect.Value) {
	if v.Type() == reflect.TypeFor[mistake.Pos]() {
		v.SetZero()
		return
	}
	if v.CanAddr() {
		switch m := v.Addr().Interface().(type) {
		case *pipe.Match:
			forgetFull(m.Field, &m.Mask)
		case *pipe.MatchField:
			forgetFull(m.Field, &m.Mask)
		case *pipe.Op:
			forgetFull(m.Field, &m.Mask)
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && v.Type() != reflect.TypeFor[*pipe.Field]() {
			forget(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			forget(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				forget(v.Field(i))
			}
		}
	}
}

// forgetFull takes a mask that is the whole field's for none.
func forgetFull(f *pipe.Field, mask *pipe.Value) {
	if f != nil && *mask != nil && slices.Equal(*mask, f.Full()) {
		*mask = nil
	}
}

func same(t *testing.T, what string, a, b *pipe.Pipeline) {
	t.Helper()
	forget(reflect.ValueOf(a))
	forget(reflect.ValueOf(b))
	if !reflect.DeepEqual(a, b) {
		for i := range a.Pipes {
			if !reflect.DeepEqual(a.Pipes[i], b.Pipes[i]) {
				t.Errorf("%s: pipe %s differs:\n%+v\n%+v", what, a.Pipes[i].Name, a.Pipes[i], b.Pipes[i])
				for j := range a.Pipes[i].Entries {
					if !reflect.DeepEqual(a.Pipes[i].Entries[j], b.Pipes[i].Entries[j]) {
						t.Errorf("entry %d:\n%+v\n%+v", j, a.Pipes[i].Entries[j], b.Pipes[i].Entries[j])
					}
				}
			}
		}
		t.Fatalf("%s reads otherwise", what)
	}
}

// TestRoundTrip: what is written reads to the same model, as YAML and as JSON.
func TestRoundTrip(t *testing.T) {
	read := func(name string, text []byte) *pipe.Pipeline {
		p, warnings, err := Parse(name, text)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%v\n%v\n%s", err, warnings, text)
		}
		return p
	}
	p := read("all.yaml", all(t))
	yaml, js := YAML(p), JSON(p)
	if !json.Valid(js) {
		t.Fatalf("no JSON: %s", js)
	}
	again := read("again.yaml", yaml)
	same(t, "the YAML", p, again)
	same(t, "the JSON", p, read("again.json", js))
	if !bytes.Equal(YAML(again), yaml) || !bytes.Equal(JSON(again), js) {
		t.Error("written again it is another text")
	}
}

// TestRoundTripOfRandomPipelines: the same for pipelines of all kinds; what is written is what the schema takes.
func TestRoundTripOfRandomPipelines(t *testing.T) {
	s := pipelineSchema(t)
	for seed := range uint64(150) {
		p := random.Pipeline(rand.New(rand.NewPCG(seed, 4)), random.Size{})
		for what, text := range map[string][]byte{"YAML": YAML(p), "JSON": JSON(p)} {
			again, _, err := Parse("p.yaml", text)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
			same(t, what, p, again)
			if err := validate(t, s, text); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
		}
	}
}

// TestRead looks at values whose written form is far from the model's.
func TestRead(t *testing.T) {
	p, _, err := Parse("all.yaml", all(t))
	if err != nil {
		t.Fatal(err)
	}
	if m := p.Meters[0]; m.Rate != [2]uint64{1250000, 2500000} || m.Size != [2]uint64{64000, 131072} || m.Packets || !m.Aware {
		t.Errorf("gold is %+v", m)
	}
	if m := p.Meters[1]; m.Rate[0] != 100 || m.Size != [2]uint64{20, 10} || !m.Packets {
		t.Errorf("slow is %+v", m)
	}
	voice := p.Pipes[0].Entries[0]
	if voice.Match[0].Port != "lan0" || voice.Match[1].Value[0] != 10 || voice.Match[2].Value[0] != 0x28 {
		t.Errorf("voice matches %+v", voice.Match)
	}
	if len(voice.Values) != 2 || voice.Values[0][0] != 7 || voice.Values[1][0] != 3<<12|20 {
		t.Errorf("voice has %v", voice.Values)
	}
	probe := p.Pipes[1].Entries[0]
	if m := probe.Match[0]; m.Value[0] != 2 || m.Mask[0] != 0x12 {
		t.Errorf("flags are %+v", m)
	}
	if m := probe.Match[1]; m.Value[0] != 80 || m.Last[0] != 90 || m.Mask != nil {
		t.Errorf("ports are %+v", m)
	}
	if m := probe.Match[2]; m.Value[0] != 10<<24 || m.Mask[0] != 0xff000000 {
		t.Errorf("addresses are %+v", m)
	}
	if c := probe.Conditions[1]; c.Field.Name != "ip.ttl" || c.Compare != pipe.LE || c.Value != 4 {
		t.Errorf("condition is %+v", c)
	}
	if age := p.Pipes[0].Monitor.Age; age.Hours() != 72 {
		t.Errorf("age is %v", age)
	}
	if e := p.Pipes[0].Entries[0]; e.Pos.Line != 39 || e.Pos.Column != 9 || e.Pos.File != "all.yaml" {
		t.Errorf("voice stands in %v", e.Pos)
	}
}

const head = "apiVersion: softdpu/v1\nkind: Pipeline\nname: p\nroot: a\n"

// wrong are mistakes in what is written; those of what is meant are the model's.
var wrong = map[string]string{
	"":                     `p.yaml: file is empty (begin with: apiVersion: softdpu/v1 and kind: Pipeline)`,
	head + "---\n" + head:  `p.yaml:6:1: a second document: a file is one pipeline (put it into a file of its own)`,
	"kind: Policy\n":       `p.yaml:1:7: file is of kind "Policy", not Pipeline`,
	head:                   `p.yaml:1:1: pipeline without pipes (add pipes: [{name: ..., kind: basic, ...}])`,
	head + "pipez: []\n":   `p.yaml:5:1: unknown key "pipez" in a Pipeline (did you mean "pipes"?)`,
	head + "meters: [a]\n": `p.yaml:5:9: meters must be a map from names to values, not a list (as in meters: {NAME: ...})`,
	head + "a: &x 1\n":     `anchors and aliases are not supported`,
	head + "meters: {m: {type: rfc2697, cir: 1pps, pir: 2pps, cbs: 1}}\n":                                                   `a meter after rfc2697 has no pir (rfc2697: cir, cbs, ebs; rfc2698: cir, pir, cbs, pbs; rfc4115: cir, eir, cbs, ebs)`,
	head + "meters: {m: {type: rfc2698, cir: 1pps, pir: 8bit, cbs: 1}}\n":                                                   `one rate counts packets and the other bytes (write both in pps, or both in bit)`,
	head + "meters: {m: {type: rfc2697, cir: 1pps, cbs: 1KB}}\n":                                                            `cbs is in bytes, and the meter counts packets (write a number of packets, as in cbs: 100)`,
	head + "meters: {m: {type: rfc2697, cir: 10, cbs: 1KB}}\n":                                                              `"10" is no rate (as in 10Mbit, 1000pps or 125000B/s)`,
	head + "meters: {m: {type: rfc2697, cir: 1bit, cbs: 1KB}}\n":                                                            `"1" is no number of bit (it comes to a whole number of bytes or packets)`,
	head + "meters: {m: {type: rfc2697, cir: 1pps, cbs: much}}\n":                                                           `"much" is no size (as in 64KB, 1MiB or 65536)`,
	head + "pipes: [{name: a, match: [ip.tll]}]\n":                                                                          `p.yaml:5:27: unknown field "ip.tll" (did you mean "ip.ttl"?)`,
	head + "pipes: [{name: a, match: [payload]}]\n":                                                                         "unknown field \"payload\" (docs/pipes.md lists them)",
	head + "pipes: [{name: a, match: [ip.ttl/x]}]\n":                                                                        `"x" is no mask (as in 0xf0)`,
	head + "pipes: [{name: a, match: [ip.version/1]}]\n":                                                                    `ip.version has no mask (it is one of: 4, 6, none)`,
	head + "pipes: [{name: a, match: [ipv4.src/33]}]\n":                                                                     `/33 is longer than the address (it is 0 to 32)`,
	head + "pipes: [{name: a, entries: [{match: {ip.ttl: many}}]}]\n":                                                       `"many" is no value of ip.ttl (a number, as in 80 or 0x50)`,
	head + "pipes: [{name: a, entries: [{match: {ip.dscp: eff}}]}]\n":                                                       `"eff" is no value of ip.dscp (did you mean "ef"?)`,
	head + "pipes: [{name: a, entries: [{match: {ip.ecn: heavy}}]}]\n":                                                      `"heavy" is no value of ip.ecn (a number, or one of: not-ect, ect1, ect0, ce)`,
	head + "pipes: [{name: a, entries: [{match: {ip.version: 5}}]}]\n":                                                      `"5" is no value of ip.version (`,
	head + "pipes: [{name: a, entries: [{match: {tcp.flags: established}}]}]\n":                                             `"established" is no value of tcp.flags (as in syn,!ack, or 0x02/0x12)`,
	head + "pipes: [{name: a, entries: [{match: {tcp.flags: \"syn,!syn\"}}]}]\n":                                            `syn is named twice in "syn,!syn" (a flag is there or absent)`,
	head + "pipes: [{name: a, entries: [{match: {eth.src: 02:00}}]}]\n":                                                     `"02:00" is no MAC address (as in 02:00:5e:10:00:01)`,
	head + "pipes: [{name: a, entries: [{match: {ipv4.src: 10.0.0}}]}]\n":                                                   `"10.0.0" is no address (as in 192.0.2.1, 192.0.2.0/24)`,
	head + "pipes: [{name: a, entries: [{match: {ipv6.src: 10.0.0.1}}]}]\n":                                                 `"10.0.0.1" is of the other family than ipv6.src (as in 2001:db8::1, 2001:db8::/32)`,
	head + "pipes: [{name: a, entries: [{prefix: 10/8}]}]\n":                                                                `"10/8" is no prefix (as in 10.0.0.0/8 or 2001:db8::/32)`,
	head + "pipes: [{name: a, entries: [{conditions: [ip.ttl<4]}]}]\n":                                                      "\"ip.ttl<4\" is no condition (as in `tcp.seq > meta.0` or `ip.ttl <= 4`, with blanks between)",
	head + "pipes: [{name: a, entries: [{action: x}]}]\n":                                                                   `unknown action "x" (declare it under actions of the pipe)`,
	head + "pipes: [{name: a, forward: port}]\n":                                                                            `forward to a port without its name (as in {port: NAME})`,
	head + "pipes: [{name: a, kind: ordered-list, forward: {pipe: a}}]\n":                                                   `pipe "a" is an ordered list, and this does not say which entry (as in {pipe: a, index: 3}, or index: meta.0 for what a field says)`,
	head + "pipes: [{name: a, actions: [{do: [tll]}]}]\n":                                                                   `unknown step "tll" (did you mean "ttl"?)`,
	head + "pipes: [{name: a, actions: [{do: [{encap: 1}]}]}]\n":                                                            `a step that is none (it is one of: set, add, copy, push_vlan, ttl, pop_vlan)`,
	head + "pipes: [{name: a, actions: [{do: [{ttl: 1}]}]}]\n":                                                              `ttl has no value (write the word alone: - ttl)`,
	head + "pipes: [{name: a, actions: [{do: [{push_vlan: 4095}]}]}]\n":                                                     `a VLAN must be a number between 0 and 4094, not "4095"`,
	head + "pipes: [{name: a, monitor: {age: soon}}]\n":                                                                     `"soon" is no time (as in 90s, 5m or 72h)`,
	head + "pipes: [{name: a, kind: basic, match: ip.ttl, miss: port}]\n":                                                   `forward to a port without its name`,
	head + "pipes: [{name: a, kind: basic, match: ip.ttl, miss: drpo}]\n":                                                   `p.yaml:5:53: pipe "a": miss: there is no forward to "drpo" (did you mean "drop"?)`,
	head + "pipes: [{name: a, kind: basic, match: ip.ttl, miss: drop, entries: [{match: {ip.ttl: 256}, forward: drop}]}]\n": `p.yaml:5:86: pipe "a": entry 0: field ip.ttl: its value 256 is wider than the field, which has 8 bits (the most is 255)`,
}

func TestMistakes(t *testing.T) {
	for text, want := range wrong {
		_, _, err := Parse("p.yaml", []byte(text))
		var errs mistake.Errors
		if !errors.As(err, &errs) {
			t.Errorf("%v for\n%s\n(%s)", err, text, want)
			continue
		}
		if !slices.ContainsFunc(errs, func(e mistake.Error) bool { return strings.Contains(e.Error(), want) }) {
			t.Errorf("no word of\n%s\nfor\n%s\nbut\n%v", want, text, err)
		}
	}
}

// TestEveryMistakeIsTested: no message of the reader may come up in front of a user first.
func TestEveryMistakeIsTested(t *testing.T) {
	files, err := filepath.Glob("read*.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range append(files, "../value.go", "../rate.go") {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			format, ok := message(node)
			if !ok {
				return true
			}
			n++
			pattern := regexp.MustCompile(regexp.MustCompile(`%[sdqvx]`).ReplaceAllString(regexp.QuoteMeta(format), `.*`))
			for _, text := range wrong {
				if pattern.MatchString(text) {
					return true
				}
			}
			t.Errorf("%s: no test has this message: %s", name, format)
			return true
		})
	}
	if n < 20 {
		t.Errorf("only %d messages are found", n)
	}
}

// message is the format of what is told, if the node tells of a mistake.
func message(node ast.Node) (format string, ok bool) {
	call, isCall := node.(*ast.CallExpr)
	if literal, isLiteral := node.(*ast.CompositeLit); isLiteral && len(literal.Elts) == 2 {
		if name, isName := literal.Type.(*ast.Ident); isName && name.Name == "ValueError" {
			call, isCall = literal.Elts[0].(*ast.CallExpr)
		}
	} else if isCall {
		selector, isSelector := call.Fun.(*ast.SelectorExpr)
		isCall = isSelector && selector.Sel.Name == "Errorf"
	}
	if !isCall || len(call.Args) == 0 {
		return "", false
	}
	text, isText := call.Args[0].(*ast.BasicLit)
	if !isText {
		return "", false
	}
	format, err := strconv.Unquote(text.Value)
	return format, err == nil && format != "%s" && !strings.Contains(format, "%w")
}

func pipelineSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema.Pipeline))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("pipeline.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("pipeline.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance turns a node into what a JSON document would hold.
func instance(n *firewall.Node) any {
	switch n.Kind {
	case firewall.ScalarNode:
		if _, err := strconv.ParseFloat(n.Text, 64); err == nil && !n.Quoted {
			return json.Number(n.Text)
		}
		if n.Text == "true" || n.Text == "false" {
			return n.Text == "true"
		}
		return n.Text
	case firewall.ListNode:
		list := []any{}
		for _, item := range n.Items {
			list = append(list, instance(item))
		}
		return list
	case firewall.MapNode:
		m := map[string]any{}
		for _, f := range n.Fields {
			m[f.Key] = instance(f.Value)
		}
		return m
	}
	return nil
}

func validate(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	docs, errs := firewall.ParseYAML("p.yaml", text)
	if errs != nil || len(docs) != 1 {
		t.Fatal(errs)
	}
	return s.Validate(instance(docs[0]))
}

func TestSchemaKeys(t *testing.T) {
	var doc struct {
		Defs map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(schema.Pipeline, &doc); err != nil {
		t.Fatal(err)
	}
	for name, def := range doc.Defs {
		if _, known := keys[name]; def.Properties != nil && !known {
			t.Errorf("the schema has a map %q that the reader does not", name)
		}
	}
	for name, list := range keys {
		want := slices.Sorted(slices.Values(list))
		if got := slices.Sorted(maps.Keys(doc.Defs[name].Properties)); !slices.Equal(got, want) {
			t.Errorf("%s: schema has %v, reader %v", name, got, want)
		}
	}
}

func TestSchema(t *testing.T) {
	s := pipelineSchema(t)
	p, _, err := Parse("all.yaml", all(t))
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string][]byte{"all": all(t), "as written": YAML(p), "as JSON": JSON(p)} {
		if err := validate(t, s, text); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, change := range map[string][2]string{
		"kind":        {"kind: control", "kind: controller"},
		"key":         {"miss: policy", "mis: policy"},
		"algorithm":   {"algorithm: flood", "algorithm: all"},
		"meter":       {"type: rfc4115", "type: rfc4114"},
		"forward":     {"forward: drop", "forward: dorp"},
		"port":        {"{port: wan0}", "{prot: wan0}"},
		"step":        {"- pop_vlan", "- popvlan"},
		"rate":        {"100pps", "100pp"},
		"base":        {"base: payload", "base: body"},
		"tag":         {"pcp: 5", "pcp: 8"},
		"weight":      {"weight: 3", "weight: 101"},
		"priority":    {"priority: 1024", "priority: 1025"},
		"index":       {"{index: 3, list", "{index: -3, list"},
		"set":         {"{set: meta.3, value: 1}", "{set: meta.3}"},
		"condition":   {`["tcp.seq > meta.0", "ip.ttl <= 4"]`, "{a: b}"},
		"match":       {"{ct.state: established, meta.color: green}", "[ct.state]"},
		"bypass":      {"bypasses_policy: true", "bypasses_policy: 1"},
		"api version": {"softdpu/v1", "softdpu/v2"},
	} {
		text := bytes.Replace(all(t), []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(text, all(t)) {
			t.Errorf("%s: nothing changes", what)
		}
		if err := validate(t, s, text); err == nil {
			t.Errorf("%s: the schema takes it", what)
		}
		if _, _, err := Parse("p.yaml", text); err == nil {
			t.Errorf("%s: the reader takes it", what)
		}
	}
}

// FuzzPipeline: no text crashes the reader or the check; what is accepted is written and read again to the same.
func FuzzPipeline(f *testing.F) {
	f.Add(string(all(f)))
	for text := range wrong {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, _, err := Parse("p.yaml", []byte(text))
		if err != nil {
			var errs mistake.Errors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("error is %T", err)
			}
			lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(text, "\ufeff")), "\n")
			for _, e := range errs {
				if e.Msg == "" || e.File != "p.yaml" || e.Line > len(lines) || e.Line > 0 && e.Column < 1 {
					t.Fatalf("mistake is %+v", e)
				}
			}
			return
		}
		again, _, err := Parse("p.yaml", YAML(p))
		if err != nil {
			t.Fatalf("%v\n%s", err, YAML(p))
		}
		same(t, "the YAML", p, again)
		again, _, err = Parse("p.json", JSON(p))
		if err != nil {
			t.Fatalf("%v\n%s", err, JSON(p))
		}
		same(t, "the JSON", p, again)
	})
}
