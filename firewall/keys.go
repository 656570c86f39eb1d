package firewall

import "slices"

// APIVersion is the version of the file formats that this package reads.
const APIVersion = "softdpu/v1"

// keys are the keys that each kind of map may hold; schema/policy.schema.json says the same under
// "$defs", and a test holds them together.
var keys = map[string][]string{
	"policy":   {"apiVersion", "kind", "zones", "sets", "workloads", "services", "nat", "rules", "tests"},
	"zone":     {"ports", "vlans", "addresses", "untrusted", "description"},
	"set":      {"type", "entries", "file", "description"},
	"workload": {"zone", "addresses", "macs", "labels", "description"},
	"service":  {"proto", "port", "source_port"},
	"port":     {"set"},
	"rule": {"name", "description", "owner", "from", "to", "service", "action", "log", "mode",
		"expires", "midstream", "on_failure", "mirror", "mss_clamp"},
	"mirror": {"port", "packets"},
	"nat": {"name", "description", "owner", "from", "to", "service", "keep", "masquerade", "snat",
		"dnat", "prefix"},
	"masquerade": {"ports", "mapping", "filtering", "source_limit"},
	"snat":       {"addresses", "ports", "mapping", "filtering", "source_limit"},
	"dnat":       {"to", "port", "servers", "spread", "hairpin"},
	"server":     {"address", "port", "weight", "drain"},
	"prefix":     {"inside", "outside"},
	"selector":   {"zone", "addresses", "set", "workload", "labels"},
	"test":       {"name", "packet", "expect"},
	"packet": {"in", "out", "vlan", "out_vlan", "src", "dst", "mac", "service", "proto",
		"sport", "dport"},
	"expect":     {"verdict", "rule", "nat"},
	"translated": {"src", "dst"},
}

// laterKeys are those of a rule that the format has and this version cannot keep: a rule with one of
// them is refused, because leaving it out would allow what the rule's author did not.
var laterKeys = []string{"rate", "schedule", "inspect", "encrypt"}

// ruleKeys are all keys of a rule that are known.
var ruleKeys = append(slices.Clone(keys["rule"]), laterKeys...)

// Document checks the head of a document and returns its values by key.
func (r *Reader) Document(n *Node, kind string, known []string) map[string]*Node {
	if n.Kind == MapNode {
		// A file of another kind would otherwise answer with each of its keys.
		for _, f := range n.Fields {
			if f.Key == "kind" && f.Value.Kind == ScalarNode && f.Value.Text != kind {
				r.Fail(f.Value.Pos.Errorf("file is of kind %q, not %s", f.Value.Text, kind).
					WithHint("a file of this place says: kind: %s", kind))
				return nil
			}
		}
	}
	f := r.Fields(n, "a "+kind, known)
	if n.Kind != MapNode {
		return nil
	}
	if f["apiVersion"] == nil {
		r.Fail(n.Pos.Errorf("file does not say its apiVersion").WithHint("begin with: apiVersion: %s", APIVersion))
	} else if text, ok := r.Text(f["apiVersion"], "apiVersion"); ok && text != APIVersion {
		r.Fail(f["apiVersion"].Pos.Errorf("unknown apiVersion %q", text).WithHint("this version reads %s", APIVersion))
	}
	if f["kind"] == nil {
		r.Fail(n.Pos.Errorf("file does not say its kind").WithHint("add: kind: %s", kind))
	} else {
		r.Text(f["kind"], "kind")
	}
	return f
}
