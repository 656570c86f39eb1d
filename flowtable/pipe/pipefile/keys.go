package pipefile

// keys are the keys that each kind of map may hold; firewall/schema/pipeline.schema.json says the same under "$defs",
// and a test holds them together.
var keys = map[string][]string{
	"pipeline":  {"apiVersion", "kind", "name", "root", "bypasses_policy", "meters", "counters", "mirrors", "raws", "pipes"},
	"meter":     {"type", "cir", "pir", "eir", "cbs", "pbs", "ebs", "aware"},
	"raw":       {"base", "offset"},
	"pipe":      {"name", "kind", "match", "algorithm", "size", "resizable", "fixed", "actions", "monitor", "forward", "miss", "entries"},
	"action":    {"name", "do"},
	"set":       {"set", "value", "mask"},
	"add":       {"add", "value", "from"},
	"copy":      {"copy", "to", "from_bit", "to_bit", "bits"},
	"push_vlan": {"push_vlan"},
	"tag":       {"id", "pcp"},
	"monitor":   {"count", "counter", "meter", "mirror", "age", "remove"},
	"to_pipe":   {"pipe", "index"},
	"to_port":   {"port"},
	"to_stage":  {"stage", "port", "copy", "on_failure"},
	"entry": {"name", "match", "conditions", "prefix", "priority", "index", "weight", "action", "values", "list",
		"monitor", "forward"},
	"batch": {"remove", "update", "add"},
}
