package firewall

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/softdpu/softdpu/firewall/schema"
)

func policySchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema.Policy))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("policy.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("policy.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance turns a node into what a JSON document would hold.
func instance(n *Node) any {
	switch n.Kind {
	case ScalarNode:
		if _, err := strconv.ParseFloat(n.Text, 64); err == nil && !n.Quoted {
			return json.Number(n.Text)
		}
		if b, err := strconv.ParseBool(n.Text); err == nil && !n.Quoted && len(n.Text) > 1 {
			return b
		}
		return n.Text
	case ListNode:
		list := []any{}
		for _, item := range n.Items {
			list = append(list, instance(item))
		}
		return list
	case MapNode:
		m := map[string]any{}
		for _, f := range n.Fields {
			m[f.Key] = instance(f.Value)
		}
		return m
	}
	return nil
}

func validate(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	docs, errs := ParseYAML("p.yaml", []byte(text))
	if errs != nil {
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
	if err := json.Unmarshal(schema.Policy, &doc); err != nil {
		t.Fatal(err)
	}
	for name, def := range doc.Defs {
		if _, known := keys[name]; def.Properties != nil && !known {
			t.Errorf("the schema has a map %q that the parser does not", name)
		}
	}
	for name, list := range keys {
		want := slices.Sorted(slices.Values(list))
		if got := slices.Sorted(maps.Keys(doc.Defs[name].Properties)); !slices.Equal(got, want) {
			t.Errorf("%s: schema has %v, parser %v", name, got, want)
		}
	}
}

func TestSchemaTakesWhatTheParserTakes(t *testing.T) {
	s := policySchema(t)
	example, err := os.ReadFile("testdata/branch.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"good": good, "example": string(example), "mirrors": mirrorPolicy, "mss": mssPolicy, "nat": natPolicy} {
		if err := validate(t, s, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := rand.New(rand.NewPCG(7, 7))
	for range 50 {
		text := randomPolicy(r)
		if err := validate(t, s, text); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	s := policySchema(t)
	for name, text := range map[string]string{
		"unknown section": head + "zonez: {}\n",
		"kind":            "apiVersion: softdpu/v1\nkind: Gateway\n",
		"inspect":         head + "rules: [{name: r, from: any, to: any, action: allow, inspect: {}}]\n",
		"no action":       head + "rules: [{name: r, from: any, to: any}]\n",
		"action":          head + "rules: [{name: r, from: any, to: any, action: drop}]\n",
		"reserved name":   head + "rules: [{name: none, from: any, to: any, action: deny}]\n",
		"reserved zone":   head + "zones: {host: {}}\n",
		"vlan":            head + "zones: {a: {ports: [p], vlans: [4095]}}\n",
		"set of two":      head + "sets: {s: {type: port, entries: [], file: x}}\n",
		"service":         head + "services: {s: [tpc/22]}\n",
		"empty selector":  head + "rules: [{name: r, from: {}, to: any, action: deny}]\n",
		"workload":        head + "workloads: {w: {labels: {a: b}}}\n",
		"mirror":          head + "rules: [{name: r, from: any, to: any, action: allow, mirror: {packets: 4}}]\n",
		"mirrored":        head + "rules: [{name: r, from: any, to: any, action: allow, mirror: {port: m, packets: 0}}]\n",
		"on_failure":      head + "rules: [{name: r, from: any, to: any, action: allow, on_failure: true}]\n",
		"mss_clamp":       head + "rules: [{name: r, from: any, to: any, action: allow, mss_clamp: 87}]\n",
		"mss_clamp auto":  head + "rules: [{name: r, from: any, to: any, action: allow, mss_clamp: auto}]\n",
		"nat of nothing":  head + "nat: [{name: r, from: any, to: any}]\n",
		"nat of two":      head + "nat: [{name: r, from: any, to: any, keep: true, masquerade: {}}]\n",
		"keep":            head + "nat: [{name: r, from: any, to: any, keep: false}]\n",
		"dnat to nobody":  head + "nat: [{name: r, from: any, to: any, dnat: {port: 80}}]\n",
		"ports beside":    head + "nat: [{name: r, from: any, to: any, service: tcp/80, dnat: {port: 80, servers: [{address: 10.0.0.1}]}}]\n",
		"weight":          head + "nat: [{name: r, from: any, to: any, dnat: {servers: [{address: 10.0.0.1, weight: 101}]}}]\n",
		"source ports":    head + "nat: [{name: r, from: any, to: any, masquerade: {ports: any}}]\n",
		"test":            head + "tests: [{name: t, packet: {in: a, src: 1.1.1.1}, expect: {verdict: allow}}]\n",
	} {
		if err := validate(t, s, text); err == nil {
			t.Errorf("%s: the schema takes it", name)
		}
		if _, err := Parse([]Source{{Name: "p.yaml", Text: []byte(text)}}, nil); err == nil {
			t.Errorf("%s: the parser takes it", name)
		}
	}
}
