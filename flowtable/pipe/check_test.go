package pipe_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall/mistake"
	. "github.com/softdpu/softdpu/flowtable/pipe"
)

func field(name string) *Field {
	f := LookupField(name)
	if f == nil {
		panic("no field " + name)
	}
	return f
}

func to(t Target) *Forward           { return &Forward{To: t} }
func toPipe(name string) *Forward    { return &Forward{To: ToPipe, Name: name} }
func toPort(name string) *Forward    { return &Forward{To: ToPort, Name: name} }
func is(name string, v uint32) Match { return Match{Field: field(name), Value: Value{v}} }
func within(name, prefix string) Match {
	m, err := field(name).Parse(prefix)
	if err != nil {
		panic(err)
	}
	return m
}

// everything is a pipeline without a mistake that has each kind of pipe: steer (0), rules (1), routes (2), acl (3),
// spread (4), lists (5), flows (6).
func everything() *Pipeline {
	return &Pipeline{
		Name: "all", Root: "steer", BypassesPolicy: true,
		Meters:   []*Meter{{Name: "gold", Type: "rfc2698", Rate: [2]uint64{1e6, 2e6}, Size: [2]uint64{64000, 64000}}},
		Counters: []string{"total"},
		Mirrors:  []*Mirror{{Name: "tap", Ports: []string{"mon0", "mon1"}}},
		Raws:     []*Raw{{Name: "teid", Base: "payload", Offset: 4}},
		Pipes: []*Pipe{
			{
				Name: "steer", Kind: Basic, Match: []MatchField{{Field: field("vlan.0.id")}, {Field: field("ip.dscp"), Mask: Value{0x38}}},
				Actions: []Action{{Name: "note", Ops: []Op{
					{Kind: Set, Field: field("meta.mark"), FromEntry: true},
					{Kind: Set, Field: field("ip.dscp"), Value: Value{0x20}, Mask: Value{0x38}},
					{Kind: Add, Field: field("meta.1"), From: field("meta.length")},
					{Kind: Copy, Field: field("meta.2"), From: field("ip.dscp"), Shift: 8, Bits: 6},
					{Kind: Copy, Field: field("eth.src"), From: field("eth.dst"), Bits: 48},
					{Kind: TTL}, {Kind: PopVLAN}, {Kind: PushVLAN, Value: Value{5<<12 | 100}},
				}}},
				Monitor: Monitor{Count: true, Counter: "total", Age: time.Minute},
				Entries: []*Entry{
					{Name: "voice", Match: []Match{is("vlan.0.id", 10), is("ip.dscp", 0x28)}, Values: []Value{{7}}, Forward: toPipe("rules")},
					{Match: []Match{is("vlan.0.id", 10), is("ip.dscp", 0)}, Values: []Value{{8}}, Forward: toPipe("routes")},
				},
				Miss: *toPipe("flows"),
			},
			{
				Name: "rules", Kind: Control,
				Entries: []*Entry{
					{Name: "probe", Priority: 1, Match: []Match{within("tcp.flags", "syn,!ack"), within("l4.dport", "80-90")},
						Conditions: []Condition{{Field: field("tcp.seq"), Compare: GT, With: field("meta.0")}, {Field: field("ip.ttl"), Compare: LE, Value: 4}},
						Monitor:    &Monitor{Meter: "gold", Mirror: "tap"}, Forward: to(ToDrop)},
					{Name: "rest", Priority: 7, Forward: toPipe("acl")},
				},
				Miss: *to(ToPolicy),
			},
			{
				Name: "routes", Kind: LPM, Match: []MatchField{{Field: field("ipv4.dst")}, {Field: field("vlan.0.id")}}, Forward: toPipe("spread"),
				Entries: []*Entry{{Name: "ten", Prefix: netip.MustParsePrefix("10.0.0.0/8"), Match: []Match{is("vlan.0.id", 1)}}},
				Miss:    *to(ToDrop),
			},
			{
				Name: "acl", Kind: ACL, Forward: &Forward{To: ToPipe, Name: "lists", IndexFrom: field("meta.0")},
				Entries: []*Entry{
					{Name: "web", Priority: 1024, Match: []Match{within("ipv4.src", "10.0.0.0/8"), is("ip.proto", 6), within("l4.dport", "80-90")}},
					{Name: "ping", Match: []Match{within("ipv6.src", "2001:db8::/32"), is("icmp.type", 128), is("icmp.code", 0)}},
				},
				Miss: *to(ToPolicy),
			},
			{
				Name: "spread", Kind: Hash, Algorithm: ByHash, Size: 2, Match: []MatchField{{Field: field("ipv4.src")}, {Field: field("ipv4.dst")}},
				Entries: []*Entry{{Index: 0, Forward: toPort("wan0")}, {Index: 1, Forward: toPort("wan1"), Monitor: &Monitor{Mirror: "tap"}}},
				Miss:    *to(ToDrop),
			},
			{
				Name: "lists", Kind: OrderedList, Forward: to(ToHost),
				Entries: []*Entry{{Index: 3, List: []Action{{Ops: []Op{{Kind: TTL}}}, {Ops: []Op{{Kind: Set, Field: field("meta.3"), Value: Value{1}}}}}}},
				Miss:    *to(ToPolicy),
			},
			{Name: "flows", Kind: CT, Monitor: Monitor{Count: true}, Forward: toPipe("known"), Miss: *to(ToPolicy)},
			{
				Name: "known", Kind: Basic, Match: []MatchField{{Field: field("ct.state")}, {Field: field("meta.color")}}, Forward: to(ToPolicy),
				Entries: []*Entry{{Match: []Match{is("ct.state", 2), is("meta.color", 0)}}}, Miss: *to(ToPolicy),
			},
			{
				Name: "copies", Kind: Hash, Algorithm: Flood, Miss: *to(ToDrop),
				Entries: []*Entry{{Index: 0, Forward: toPort("lan0")}, {Index: 1, Forward: toPort("lan1")}},
			},
		},
	}
}

// Numbers of pipes in everything.
const (
	steer = iota
	rules
	routes
	acl
	spread
	lists
	flows
	known
	copies
)

// reach makes all pipes of everything and raw.teid used.
func reach(p *Pipeline) *Pipeline {
	p.Pipes[known].Miss = *toPipe("copies")
	p.Pipes[rules].Entries[1].Match = []Match{{Field: p.Field("raw.teid"), Value: Value{7}}}
	return p
}

func TestCheckTakesEverything(t *testing.T) {
	warnings, err := reach(everything()).Check()
	if err != nil || len(warnings) != 0 {
		t.Fatalf("%v, warnings %v", err, warnings)
	}
}

// wrong are a mistake each: what is changed in everything, and the whole message.
var wrong = []struct {
	do   func(p *Pipeline)
	want string
}{
	// names and what pipes share
	{func(p *Pipeline) { p.Name = "" }, `pipeline: "" is no name: it is empty (as in: to-dmz, ecmp_2)`},
	{func(p *Pipeline) { p.Pipes[0].Name, p.Root = "a/b", "a/b" }, `pipe "a/b": "a/b" is no name: a name consists of letters, digits, - _ and dots, and begins with a letter or digit (as in: to-dmz, ecmp_2)`},
	{func(p *Pipeline) { p.Name = strings.Repeat("x", 65) }, `is no name: it is longer than 64 characters`},
	{func(p *Pipeline) { p.Counters = []string{"total", "total"} }, `counter "total": the name is given twice (give each one a name of its own)`},
	{func(p *Pipeline) { p.Pipes[2].Name = "steer" }, `pipe "steer": the name is given twice`},
	{func(p *Pipeline) {
		for i := range 1025 {
			p.Meters = append(p.Meters, &Meter{Name: fmt.Sprint("m", i), Type: "rfc2697", Rate: [2]uint64{1}, Size: [2]uint64{9999}})
		}
	}, `1026 meters: a pipeline has at most 1024 (let entries share meters)`},
	{func(p *Pipeline) {
		for i := range 1025 {
			p.Counters = append(p.Counters, fmt.Sprint("c", i))
		}
	}, "1026 shared counters: a pipeline has at most 1024 (entries have counters of their own: `count: true`)"},
	{func(p *Pipeline) {
		for i := range 40 {
			p.Mirrors = append(p.Mirrors, &Mirror{Name: fmt.Sprint("m", i), Ports: []string{"x"}})
		}
	}, `41 mirrors: a pipeline has at most 32 (let entries share mirrors)`},
	{func(p *Pipeline) { p.Mirrors[0].Ports = nil }, `mirror "tap": it copies to 0 ports: a mirror has 1 to 32 (name those that get a copy)`},
	{func(p *Pipeline) { p.Mirrors[0].Ports = []string{""} }, `mirror "tap": a port without a name (the gateway's configuration names its ports)`},
	{func(p *Pipeline) { p.Mirrors[0].Ports = []string{"a", "a"} }, `mirror "tap": port "a" is named twice (a port gets one copy)`},
	{func(p *Pipeline) {
		for i := range 4 {
			p.Raws = append(p.Raws, &Raw{Name: fmt.Sprint("r", i), Base: "l2"})
		}
	}, `5 raw fields: a pipeline has at most 4 (one field holds 32 bits, of which pipes match parts by masks)`},
	{func(p *Pipeline) { p.Raws[0].Base = "l5" }, `raw field "teid": it begins at "l5", which is no place in a packet (it is one of: l2, l3, l4, payload)`},
	{func(p *Pipeline) { p.Raws[0].Offset = 256 }, `raw field "teid": offset 256: a raw field lies 0 to 255 bytes behind its base (choose a base that is nearer)`},
	// meters
	{func(p *Pipeline) { p.Meters[0].Type = "rfc2689" }, `meter "gold": there is no type "rfc2689" (did you mean "rfc2698"?)`},
	{func(p *Pipeline) { p.Meters[0].Type = "bucket" }, `meter "gold": there is no type "bucket" (it is one of: rfc2697, rfc2698, rfc4115)`},
	{func(p *Pipeline) { p.Meters[0].Rate[1] = 1 << 41 }, `meter "gold": pir is 2199023255552 a second: at most 1099511627776 is possible (no link is as fast: leave the meter out)`},
	{func(p *Pipeline) { p.Meters[0].Size[0] = 1 << 41 }, `meter "gold": cbs is 2199023255552: at most 6000000000 is possible (a second of the rate is much already)`},
	{func(p *Pipeline) { p.Meters[0].Rate[0] = 0 }, `meter "gold": it has no rate (add cir: 10Mbit, or 1000pps)`},
	{func(p *Pipeline) { p.Meters[0].Type = "rfc2697" }, `meter "gold": a meter after RFC 2697 has one rate (take rfc2698 or rfc4115, which have two)`},
	{func(p *Pipeline) { *p.Meters[0] = Meter{Name: "gold", Type: "rfc2697", Rate: [2]uint64{1}} }, `meter "gold": cbs and ebs are 0, so that everything is red (add cbs: 64KB)`},
	{func(p *Pipeline) { p.Meters[0].Rate[1] = 1e5 }, `meter "gold": pir 100000 is less than cir 1000000 (the peak rate holds the committed one: RFC 4115 has an excess rate beside it)`},
	{func(p *Pipeline) { p.Meters[0].Size[1] = 0 }, `meter "gold": cbs or pbs is 0, so that nothing is green (add cbs: 64KB and pbs: 64KB)`},
	{func(p *Pipeline) { p.Meters[0].Type, p.Meters[0].Size[1] = "rfc4115", 0 }, `meter "gold": a rate without a burst lets nothing pass (add cbs: 64KB for cir, ebs: 64KB for eir)`},
	// the graph
	{func(p *Pipeline) { p.Root = "stear" }, `the root is pipe "stear", which there is not (did you mean "steer"?)`},
	{func(p *Pipeline) { p.Root = "" }, `the root is pipe "", which there is not (name the pipe that packets enter first)`},
	{func(p *Pipeline) { p.Root = "lists" }, `the root is pipe "lists", an ordered list, and no packet comes with an index (begin with a pipe that forwards to it with an index)`},
	{func(p *Pipeline) { p.Pipes[spread].Miss = *toPipe("steer") }, `pipe "spread": forward: packets would come back to pipe "steer": steer -> routes -> spread -> steer (pipelines have no loops: forward to a later pipe, or out)`},
	{func(p *Pipeline) { p.Pipes[copies].Miss = *toPipe("copies") }, `pipe "copies": forward: packets would come back to pipe "copies": copies -> copies`},
	{func(p *Pipeline) { p.Pipes = nil }, `0 pipes: a pipeline has 1 to 64 (one pipe takes what several of the same kind and fields hold)`},
	// kinds
	{func(p *Pipeline) { p.Pipes[0].Kind = "hsah" }, `pipe "steer": there is no kind "hsah" (did you mean "hash"?)`},
	{func(p *Pipeline) { p.Pipes[0].Kind = "tuples" }, `pipe "steer": there is no kind "tuples" (it is one of: basic, control, lpm, acl, hash, ordered-list, ct)`},
	{func(p *Pipeline) { p.Pipes[steer].Miss = Forward{} }, `pipe "steer": it does not say what becomes of a packet that no entry matches (add miss: drop, policy or another forward)`},
	{func(p *Pipeline) { p.Pipes[steer].Algorithm = Random }, `pipe "steer": a pipe of kind basic has no algorithm (kind hash has)`},
	{func(p *Pipeline) { p.Pipes[steer].Match = nil }, `pipe "steer": a basic pipe needs the fields that its entries match on (add match: [vlan.0.id], or take kind control, whose entries may match all)`},
	{func(p *Pipeline) { p.Pipes[routes].Match = p.Pipes[routes].Match[1:] }, `pipe "routes": the first field of an lpm pipe is the address whose longest prefix decides (begin match with ipv4.src, ipv4.dst, ipv6.src or ipv6.dst)`},
	{func(p *Pipeline) { p.Pipes[acl].Match = p.Pipes[steer].Match }, `pipe "acl": match: a pipe of kind acl has no fields of its own (each entry of it has its own match)`},
	{func(p *Pipeline) { p.Pipes[rules].Match = p.Pipes[steer].Match }, `pipe "rules": match: a pipe of kind control has no fields of its own (each entry of it has its own match)`},
	{func(p *Pipeline) { p.Pipes[lists].Match = p.Pipes[steer].Match }, `pipe "lists": match: a pipe of kind ordered-list has no fields of its own (its entries are chosen by the index that is forwarded with)`},
	{func(p *Pipeline) { p.Pipes[flows].Match = p.Pipes[steer].Match }, `pipe "flows": match: a pipe of kind ct has no fields of its own (it looks for the packet's flow)`},
	{func(p *Pipeline) { p.Pipes[spread].Match[1] = p.Pipes[spread].Match[0] }, `pipe "spread": field ipv4.src: it is named twice (a mask joins several parts of a field)`},
	{func(p *Pipeline) { p.Pipes[routes].Match[1].Mask = Value{0xff} }, `pipe "routes": field vlan.0.id: an lpm pipe has no masks (the prefix's length is the mask of the address, and other fields are compared whole: a basic or control pipe has masks)`},
	{func(p *Pipeline) { p.Pipes[routes].Match[1].Field = field("ipv4.src") }, `pipe "routes": field ipv4.src: an lpm pipe looks for one address (forward to a second lpm pipe, or take kind acl, whose entries have two prefixes)`},
	{func(p *Pipeline) {
		p.Pipes[spread].Match = []MatchField{{Field: field("ipv6.src")}, {Field: field("ipv6.dst")}, {Field: field("eth.src")}, {Field: field("eth.dst")}, {Field: field("ip.proto")}}
	}, `pipe "spread": its fields take 13 words of 32 bits: at most 12 are compared (split it in two pipes, of which one forwards to the other)`},
	{func(p *Pipeline) { p.Pipes[steer].Match[1].Mask = Value{0xff} }, `pipe "steer": field ip.dscp: its mask 255 is wider than the field, which has 6 bits (the most is 63)`},
	{func(p *Pipeline) { p.Pipes[steer].Match[1].Mask = Value{1, 2} }, `pipe "steer": field ip.dscp: its mask has 2 words: the field has 1 (a value has as many words of 32 bits as its field)`},
	// sizes
	{func(p *Pipeline) { p.Pipes[steer].Size = -1 }, `pipe "steer": size 2: a pipe of kind basic has room for 1 to 16777216 entries (split it over several pipes)`},
	{func(p *Pipeline) { p.Pipes[steer].Size = 1 }, `pipe "steer": 2 entries are more than its size, 1 (raise its size, or add resizable: true)`},
	{func(p *Pipeline) { p.Pipes[spread].Size = 1 << 17 }, `pipe "spread": size 131072: a pipe of kind hash has room for 1 to 65536 entries`},
	{func(p *Pipeline) { p.Pipes[spread].Resizable = true }, `pipe "spread": a pipe of kind hash cannot be resized (give it the size that it needs at most)`},
	{func(p *Pipeline) { p.Pipes[steer].Resizable, p.Pipes[steer].Fixed = true, true }, `pipe "steer": it is fixed and resizable (leave one of the two out: the entries of a fixed pipe do not change)`},
	{func(p *Pipeline) { p.Pipes[flows].Size = 8 }, `pipe "flows": a ct pipe has no size (the gateway's configuration says how many flows there may be)`},
	// hash
	{func(p *Pipeline) { p.Pipes[spread].Algorithm = "" }, `pipe "spread": there is no algorithm "" (it is one of: hash, consistent, random, identity, round-robin, flood)`},
	{func(p *Pipeline) { p.Pipes[spread].Algorithm = "roundrobin" }, `pipe "spread": there is no algorithm "roundrobin" (did you mean "round-robin"?)`},
	{func(p *Pipeline) { p.Pipes[spread].Match = nil }, `pipe "spread": algorithm hash needs fields (add match: [ipv4.src, ipv4.dst], or take random or round-robin)`},
	{func(p *Pipeline) { p.Pipes[spread].Algorithm = Random }, `pipe "spread": field ipv4.src: algorithm random looks at no field (leave match out, or take algorithm hash)`},
	{func(p *Pipeline) { p.Pipes[copies].Entries = nil }, `pipe "copies": it floods to 0 entries: 1 to 32 are possible (each entry is a port that gets a copy)`},
	{func(p *Pipeline) { p.Pipes[spread].Size = 3 }, `pipe "spread": size 3: that of a hash pipe is a power of two (add size: 2)`},
	{func(p *Pipeline) { p.Pipes[spread].Size = 4 }, `pipe "spread": no entry has index 2 of 0 to 3 (every index needs an entry: several may do the same, and consistent takes fewer)`},
	{func(p *Pipeline) { p.Pipes[spread].Algorithm, p.Pipes[spread].Entries = Consistent, nil }, `pipe "spread": it has no entry to choose (add at least one)`},
	// ct
	{func(p *Pipeline) { p.Pipes[flows].Entries = []*Entry{{}} }, `pipe "flows": a ct pipe has no entries (it finds the gateway's flows, and says their state in ct.state)`},
	{func(p *Pipeline) { p.Pipes[flows].Forward = nil }, `pipe "flows": it does not say where packets of known flows go (add forward, to a pipe that matches on ct.state for example)`},
	{func(p *Pipeline) { p.Pipes[flows].Monitor.Meter = "gold" }, `pipe "flows": a ct pipe counts, and monitors nothing else (forward to a basic pipe that matches on ct.state, and has the monitor)`},
	{func(p *Pipeline) { p.Pipes[flows].Fixed = true }, `pipe "flows": a ct pipe is not fixed: flows come and go (leave fixed out)`},
	// forwards
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Forward = toPort("") }, `pipe "steer": entry "voice": forward: a port without a name (the gateway's configuration names its ports)`},
	{func(p *Pipeline) { p.Pipes[routes].Miss.Name = "x" }, `pipe "routes": miss: drop has no name, and it says "x" (leave the name out)`},
	{func(p *Pipeline) { p.Pipes[routes].Miss.To = "hots" }, `pipe "routes": miss: there is no forward to "hots" (did you mean "host"?)`},
	{func(p *Pipeline) { p.Pipes[routes].Miss.To = "controller" }, `pipe "routes": miss: there is no forward to "controller" (it is one of: pipe, port, drop, host, policy, stage)`},
	{func(p *Pipeline) { p.Pipes[routes].Miss.Copy = "mon0" }, `pipe "routes": miss: stages are a worker's, and this goes to drop (forward to a stage, or leave stage, copy and on_failure out)`},
	{func(p *Pipeline) { p.Pipes[routes].Miss = Forward{To: ToStage, Stage: "miror", Name: "wan0"} }, `pipe "routes": miss: there is no stage "miror" (did you mean "mirror"?)`},
	{func(p *Pipeline) { p.Pipes[routes].Miss = Forward{To: ToStage, Stage: "ipsec", Name: "wan0"} }, `pipe "routes": miss: there is no stage "ipsec" (it is one of: forward, mirror)`},
	{func(p *Pipeline) { p.Pipes[routes].Miss = Forward{To: ToStage, Stage: StageForward} }, `pipe "routes": miss: stage forward does not say by which port packets leave (as in {stage: mirror, port: wan0, copy: mon0})`},
	{func(p *Pipeline) { p.Pipes[routes].Miss = Forward{To: ToStage, Stage: StageMirror, Name: "wan0"} }, `pipe "routes": miss: stage mirror does not say which port gets the copy (as in {stage: mirror, port: wan0, copy: mon0})`},
	{func(p *Pipeline) {
		p.Pipes[routes].Miss = Forward{To: ToStage, Stage: StageForward, Name: "wan0", Copy: "mon0"}
	}, `pipe "routes": miss: stage forward copies nothing, and it names port "mon0" for a copy (take stage mirror, or leave copy out)`},
	{func(p *Pipeline) {
		p.Pipes[routes].Miss = Forward{To: ToStage, Stage: StageMirror, Name: "wan0", Copy: "wan0"}
	}, `pipe "routes": miss: the copy would leave by port "wan0", as the packet does (copy to a port of its own)`},
	{func(p *Pipeline) {
		p.Pipes[routes].Miss, p.BypassesPolicy = Forward{To: ToStage, Stage: StageForward, Name: "wan0"}, false
	}, `pipe "routes": miss: what goes to a stage from here is judged by no rule of the policy (forward to policy, or say bypasses_policy: true for the whole pipeline)`},
	{func(p *Pipeline) { p.Pipes[routes].Miss.Index = 1 }, `pipe "routes": miss: an index chooses an entry of an ordered list, and this goes to drop (leave the index out)`},
	{func(p *Pipeline) { p.BypassesPolicy = false }, `pipe "spread": entry 0: forward: what goes to a port from here is judged by no rule of the policy (forward to policy, or say bypasses_policy: true for the whole pipeline)`},
	{func(p *Pipeline) { p.BypassesPolicy = false }, `pipe "lists": forward: what goes to a host from here is judged by no rule of the policy`},
	{func(p *Pipeline) { p.Pipes[routes].Forward = toPipe("sperad") }, `pipe "routes": forward: there is no pipe "sperad" (did you mean "spread"?)`},
	{func(p *Pipeline) { p.Pipes[routes].Forward = toPipe("elsewhere") }, `pipe "routes": forward: there is no pipe "elsewhere" (declare it under pipes)`},
	{func(p *Pipeline) { p.Pipes[routes].Forward.Index = 1 }, `pipe "routes": forward: pipe "spread" is of kind hash, which an index does not choose an entry of (leave the index out)`},
	{func(p *Pipeline) { p.Pipes[acl].Forward.IndexFrom = field("eth.src") }, `pipe "acl": forward: the index is in field eth.src, which is no number of 32 bits (take meta.0, which an action sets)`},
	{func(p *Pipeline) { p.Pipes[acl].Forward.Index = 1 }, `pipe "acl": forward: the index is a number and in field meta.0 (leave one of the two out)`},
	{func(p *Pipeline) { p.Pipes[acl].Forward = &Forward{To: ToPipe, Name: "lists", Index: -1} }, `pipe "acl": forward: index -1: an ordered list has 0 to 65535 (packets with an index that no entry has are its miss)`},
	// entries
	{func(p *Pipeline) { p.Pipes[steer].Entries[1].Name = "voice" }, `pipe "steer": entry "voice": the name is given twice in its pipe (give each entry a name of its own, or none)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[1].Match[1].Value = Value{0x28} }, `pipe "steer": entry 1: entry "voice" has the same key (packets can only go one way: change that entry instead)`},
	{func(p *Pipeline) {
		p.Pipes[routes].Entries = append(p.Pipes[routes].Entries, &Entry{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Match: []Match{is("vlan.0.id", 1)}})
	}, `pipe "routes": entry 1: entry "ten" has the same key`},
	{func(p *Pipeline) { p.Pipes[spread].Entries[1].Index = 0 }, `pipe "spread": entry 1: index 0 is given twice (indices count from 0)`},
	{func(p *Pipeline) { p.Pipes[spread].Entries[1].Index = 2 }, `pipe "spread": entry 1: index 2: the pipe has 0 to 1 (indices count from 0)`},
	{func(p *Pipeline) { p.Pipes[spread].Entries[1].Match = []Match{is("ip.ttl", 1)} }, `pipe "spread": entry 1: match: an entry of a pipe of kind hash matches nothing: it is chosen by its index (take kind basic or control)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Conditions = p.Pipes[rules].Entries[0].Conditions }, `pipe "steer": entry "voice": condition: a pipe of kind basic has no conditions (kind control has: forward to such a pipe)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Prefix = netip.MustParsePrefix("10.0.0.0/8") }, `pipe "steer": entry "voice": a pipe of kind basic has no prefix (match the address with a mask, as in 10.0.0.0/8, or take kind lpm)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Priority = 8 }, `pipe "rules": entry "probe": priority 8: entries of a pipe of kind control have 0 to 7 (lower numbers come first, and among equal ones the first entry)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Priority = 1025 }, `pipe "acl": entry "web": priority 1025: entries of a pipe of kind acl have 0 to 1024`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Priority = 1 }, `pipe "steer": entry "voice": priority 1: entries of a pipe of kind basic have 0 to 0 (kinds control and acl have)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Index = 1 }, `pipe "steer": entry "voice": entries of a pipe of kind basic have no index (kinds hash and ordered-list have)`},
	{func(p *Pipeline) { p.Pipes[spread].Entries[0].Weight = 2 }, `pipe "spread": entry 0: a weight, which only the algorithm consistent of hash pipes heeds (give an entry more than one index, or take consistent)`},
	{func(p *Pipeline) { p.Pipes[spread].Algorithm, p.Pipes[spread].Entries[0].Weight = Consistent, 101 }, `pipe "spread": entry 0: weight 101: it is 1 to 100 (shares are in proportion to weights)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Audit = true }, `pipe "acl": entry "web": only entries of the gateway's own pipes ask for sets, are in audit mode, or are logged (write an entry for each range, and forward to another pipe)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Match[0].Among = []Span{{}} }, `only entries of the gateway's own pipes ask for sets`},
	{func(p *Pipeline) { p.Own = true }, `it says what the gateway's own pipes do, and is not compiled (rules of a policy become these pipes)`},
	{func(p *Pipeline) { p.Pipes[acl].Miss = *to(ToRoute) }, `pipe "acl": miss: there is no forward to "route"`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].List = []Action{} }, `pipe "steer": entry "voice": a list of actions, which only entries of ordered lists have (name one of the pipe's actions, which has several steps)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Match[1] = is("ip.ttl", 1) }, `pipe "steer": entry "voice": field ip.ttl: its pipe does not match on it (add it to the pipe's match, or take kind control, whose entries choose their fields)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Match[1] = is("vlan.0.id", 1) }, `pipe "steer": entry "voice": field vlan.0.id: it is named twice (an entry is one value of each field)`},
	{func(p *Pipeline) { m := p.Pipes[steer].Entries[0].Match; m[0], m[1] = m[1], m[0] }, `pipe "steer": entry "voice": field vlan.0.id: it stands in another place than in the pipe's match (name the fields in the pipe's order)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Match[0].Last = Value{20} }, `pipe "steer": entry "voice": field vlan.0.id: only control and acl pipes match ranges (take one of these kinds)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Match[0].Mask = Value{1} }, `pipe "steer": entry "voice": field vlan.0.id: all entries of its pipe have the pipe's mask (leave the entry's out, or take kind control, whose entries have their own)`},
	{func(p *Pipeline) { e := p.Pipes[steer].Entries[0]; e.Match = e.Match[:1] }, `pipe "steer": entry "voice": it has no value for field ip.dscp (an entry is a value of each field of its pipe)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Match[0].Value = nil }, `pipe "steer": entry "voice": field vlan.0.id: it has no value (give it one, or leave the field out)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Match[0].Value = Value{4096} }, `pipe "steer": entry "voice": field vlan.0.id: its value 4096 is wider than the field, which has 12 bits (the most is 4095)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Match[1].Value = Value{0x29} }, `pipe "steer": entry "voice": field ip.dscp: its value 0x29 has bits outside of the mask 0x38, so that no packet matches (write 0x28)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Match[0].Port = "wan0" }, `pipe "steer": entry "voice": field vlan.0.id: "wan0" would be a port's name, and it has a value besides or is no port (only field port has names)`},
	{func(p *Pipeline) { e := p.Pipes[rules].Entries[0]; e.Match[1] = e.Match[0] }, `pipe "rules": entry "probe": field tcp.flags: it is named twice (a mask joins several parts of a field, and a range has two ends)`},
	{func(p *Pipeline) {
		p.Pipes[rules].Entries[0].Match[0] = Match{Field: field("eth.src"), Value: Value{0, 1}, Last: Value{0, 2}}
	}, `pipe "rules": entry "probe": field eth.src: it has no order, so that there is no range of it (match single values, or prefixes by a mask)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Match[1].Mask = Value{1} }, `pipe "rules": entry "probe": field l4.dport: a range under a mask (leave one of the two out)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Match[1].Last = Value{70} }, `pipe "rules": entry "probe": field l4.dport: the range 80-70 ends before it begins (write 70-80)`},
	{func(p *Pipeline) { p.Pipes[routes].Entries[0].Prefix = netip.Prefix{} }, `pipe "routes": entry "ten": field ipv4.dst: it has no prefix (add prefix: 10.0.0.0/8)`},
	{func(p *Pipeline) { p.Pipes[routes].Entries[0].Prefix = netip.MustParsePrefix("2001:db8::/32") }, `pipe "routes": entry "ten": field ipv4.dst: 2001:db8::/32 is of the other family (its pipe looks for one of ipv4)`},
	{func(p *Pipeline) { p.Pipes[routes].Entries[0].Prefix = netip.MustParsePrefix("10.1.0.0/8") }, `pipe "routes": entry "ten": field ipv4.dst: 10.1.0.0/8 has bits behind its length (write 10.0.0.0/8)`},
	// conditions
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Conditions[0].Field = nil }, `pipe "rules": entry "probe": condition: it has no field (as in: tcp.seq > meta.0)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Conditions[0].Compare = "=" }, `pipe "rules": entry "probe": condition, field tcp.seq: "=" is no comparison (it is one of: ==, !=, <, <=, >, >=)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Conditions[0].Field = field("eth.src") }, `pipe "rules": entry "probe": condition, field eth.src: it is no number of at most 32 bits, and conditions compare these (match on it instead)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Conditions[0].With = field("ip.version") }, `pipe "rules": entry "probe": condition, field tcp.seq: field ip.version, which it is compared with, is no number of at most 32 bits (take another, or a number)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Conditions[1].Value = 256 }, `pipe "rules": entry "probe": condition, field ip.ttl: its value 256 is wider than the field, which has 8 bits (the most is 255)`},
	// acl
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Match[0] = is("vlan.0.id", 1) }, `pipe "acl": entry "web": field vlan.0.id: an acl pipe does not match on it (it does on ipv4.src, ipv4.dst, ipv6.src, ipv6.dst, ip.proto, l4.sport, l4.dport, icmp.type, icmp.code: take kind control, or forward to another pipe)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Match[0] = within("ipv4.src", "10.0.0.1/255.0.0.255") }, `pipe "acl": entry "web": field ipv4.src: the mask 0xff0000ff is no prefix's (an acl pipe takes prefixes, as in 10.0.0.0/8, and kind control any mask)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Match[1].Mask = Value{6} }, `pipe "acl": entry "web": field ip.proto: an acl pipe takes no mask here (ports are ranges, and other values single: kind control takes masks)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Match[1].Last = Value{17} }, `pipe "acl": entry "web": field ip.proto: an acl pipe takes ranges of ports alone (write several entries, or take kind control)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Match[1] = within("ipv6.dst", "2001:db8::/32") }, `pipe "acl": entry "web": no packet has addresses of IPv4 and of IPv6 (make two entries of it)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Match[1] = is("icmp.type", 8) }, `pipe "acl": entry "web": no packet has ports and a type of ICMP (make two entries of it)`},
	{func(p *Pipeline) { e := p.Pipes[acl].Entries[1]; e.Match = e.Match[2:] }, `pipe "acl": entry "ping": a code of ICMP without a type (add icmp.type)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[0].Match[1].Value = Value{50} }, `pipe "acl": entry "web": field ip.proto: protocol 50 has no ports that are known here (tcp (6) and udp (17) have)`},
	{func(p *Pipeline) { p.Pipes[acl].Entries[1].Match[0] = is("ip.proto", 17) }, `pipe "acl": entry "ping": field ip.proto: protocol 17 has no types of ICMP (icmp (1) and icmpv6 (58) have)`},
	// actions
	{func(p *Pipeline) { p.Pipes[lists].Actions = []Action{{}} }, `pipe "lists": a pipe of kind ordered-list has no actions (each of its entries has a list of its own)`},
	{func(p *Pipeline) { p.Pipes[flows].Actions = []Action{{}} }, `pipe "flows": a pipe of kind ct has no actions (forward to a pipe that has)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions = append(p.Pipes[steer].Actions, make([]Action, 64)...) }, "pipe \"steer\": 65 actions: a pipe has at most 64 (operands that differ can be the entries' own: `value: entry`)"},
	{func(p *Pipeline) { p.Pipes[steer].Actions = append(p.Pipes[steer].Actions, p.Pipes[steer].Actions[0]) }, `pipe "steer": action 1, "note": the name is given twice`},
	{func(p *Pipeline) {
		ops := p.Pipes[steer].Actions[0].Ops
		ops[0].Field, ops[2], ops[3] = field("ipv6.src"), Op{Kind: Set, Field: field("ipv6.dst"), FromEntry: true}, Op{Kind: PushVLAN, FromEntry: true}
	}, `pipe "steer": action 0, "note": entries would give it 9 words of 32 bits: they have room for 8 (split it in two pipes, or write constants into several actions)`},
	{func(p *Pipeline) { a := &p.Pipes[steer].Actions[0]; a.Ops = append(a.Ops, make([]Op, 9)...) }, `pipe "steer": action 0, "note": 17 steps: an action has at most 16 (forward to a pipe that does the rest)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[5].Kind = "tll" }, `pipe "steer": action 0, "note", step 5: there is no step "tll" (did you mean "ttl"?)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[5].Kind = "encapsulate" }, `pipe "steer": action 0, "note", step 5: there is no step "encapsulate" (it is one of: set, add, copy, ttl, push-vlan, pop-vlan)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[0].Field = nil }, `pipe "steer": action 0, "note", step 0: set does not say which field it changes (as in {set: ip.dscp, value: ef})`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[5].Field = field("ip.ttl") }, `pipe "steer": action 0, "note", step 5, field ip.ttl: ttl has no field (leave it out)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[0].Field = field("ip.proto") }, `pipe "steer": action 0, "note", step 0, field ip.proto: it cannot be changed (actions change meta.mark, meta.0, meta.1, meta.2, meta.3, eth.src, eth.dst, vlan.0.id, vlan.0.pcp, ip.ttl, ip.dscp, ip.ecn, ipv4.src, ipv4.dst, ipv6.src, ipv6.dst, l4.sport, l4.dport)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[0].Bits = 3 }, `pipe "steer": action 0, "note", step 0, field meta.mark: set has no shift and no bits (copy has)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[2].Mask = Value{3} }, `pipe "steer": action 0, "note", step 2, field meta.1: add has no mask (set has, and copy has shift and bits)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[0].Value = Value{3} }, `pipe "steer": action 0, "note", step 0, field meta.mark: its operand is the entries' own and given here as well (leave one of the two out)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[5].Value = Value{3} }, `pipe "steer": action 0, "note", step 5: ttl has no value (leave it out)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[7].Value = nil }, `pipe "steer": action 0, "note", step 7: it does not say which tag (as in {push_vlan: {id: 100, pcp: 5}})`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[7].Value = Value{4095} }, `pipe "steer": action 0, "note", step 7: 0xfff is no tag: a VLAN is 0 to 4094, a priority 0 to 7 (as in {push_vlan: {id: 100, pcp: 5}})`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[1].From = field("ip.ttl") }, `pipe "steer": action 0, "note", step 1, field ip.dscp: set takes a value, not a field (copy takes one: {copy: ip.ttl, to: ip.dscp})`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[1].Value = nil }, `pipe "steer": action 0, "note", step 1, field ip.dscp: set does not say the value (as in {set: ip.dscp, value: ef}, or value: entry for the entries' own)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[2].From = nil }, `pipe "steer": action 0, "note", step 2, field meta.1: add does not say what (as in {add: meta.0, value: 1} or {add: meta.0, from: meta.length})`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[2].Value = Value{1} }, `pipe "steer": action 0, "note", step 2, field meta.1: add says a value and a field (leave one of the two out)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[2].From = field("l4.type") }, `pipe "steer": action 0, "note", step 2, field meta.1: field l4.type, which it adds, is no number (take another, or a value)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[2].From = field("eth.src") }, `pipe "steer": action 0, "note", step 2, field meta.1: field eth.src, which it adds, has 48 bits, and this one 32 (copy some of its bits to meta.0 first, and add that)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[3].From = nil }, `pipe "steer": action 0, "note", step 3, field meta.2: copy does not say which field it comes from (as in {copy: ip.dscp, to: meta.0, shift: 8})`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[3].Value = Value{1} }, `pipe "steer": action 0, "note", step 3, field meta.2: copy takes a field, not a value (set takes a value)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[4].From = field("ip.version") }, `pipe "steer": action 0, "note", step 4, field eth.src: field ip.version, which it copies, is no number (match on it, and set a value)`},
	{func(p *Pipeline) { p.Pipes[steer].Actions[0].Ops[3].Bits = 7 }, `pipe "steer": action 0, "note", step 3, field meta.2: 7 bits from bit 0 of ip.dscp, which has 6, to bit 8 of one that has 32 (copy fewer bits)`},
	// what entries do
	{func(p *Pipeline) { p.Pipes[rules].Entries[1].Forward = nil }, `pipe "rules": entry "rest": it does not say where its packets go, and neither does its pipe (add forward to the entry or the pipe)`},
	{func(p *Pipeline) { p.Pipes[copies].Entries[1].Forward = to(ToDrop) }, `pipe "copies": entry 1: its pipe floods, and it forwards to drop (each entry of such a pipe forwards to a port, which gets a copy)`},
	{func(p *Pipeline) { p.Pipes[copies].Monitor.Mirror = "tap" }, `pipe "copies": entry 0: its pipe floods, and it has a monitor of its own, or one that does more than count (the pipe before it can have the monitor, and a mirror's ports can be entries)`},
	{func(p *Pipeline) { p.Pipes[copies].Entries[1].Monitor = &Monitor{} }, `pipe "copies": entry 1: its pipe floods, and it has a monitor of its own`},
	{func(p *Pipeline) { p.Pipes[copies].Actions = []Action{{Ops: []Op{{Kind: TTL}}}} }, `pipe "copies": entry 0: its pipe floods, and has actions (all copies are alike: the pipe before it can have the actions)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Forward = toPipe("copies") }, `pipe "rules": entry "probe": it mirrors, and pipe "copies", to which its packets come, floods (make the mirror's ports entries of that pipe)`},
	{func(p *Pipeline) {
		p.Pipes[rules].Entries[0].Forward = toPipe("lists")
		p.Pipes[lists].Forward = to(ToDrop)
	}, `pipe "rules": entry "probe": it mirrors, and forwards to policy in pipe "lists" (frames are copied as they leave`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Forward = to(ToPolicy) }, `pipe "rules": entry "probe": it mirrors, and forwards to policy (frames are copied as they leave: forward to a port, or drop, or put the mirror into the policy's rule)`},
	{func(p *Pipeline) { p.Pipes[lists].Entries[0].Action = 1 }, "pipe \"lists\": entry 0: an entry of an ordered list has a list of actions, and it names one or has operands (write the list: `list: [...]`)"},
	{func(p *Pipeline) {
		p.Pipes[lists].Entries[0].List[1].Ops[0] = Op{Kind: Set, Field: field("meta.3"), FromEntry: true}
	}, `pipe "lists": entry 0: action 1 of the list: an operand of the entry's own in the entry's own list (write the value)`},
	{func(p *Pipeline) { p.Pipes[routes].Entries[0].Values = []Value{{1}} }, `pipe "routes": entry "ten": it names an action or has operands, and its pipe has no actions (add actions to the pipe)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Action = 1 }, `pipe "steer": entry "voice": action 1: its pipe has 0 to 0 (name one of the pipe's actions)`},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Values = nil }, "pipe \"steer\": entry \"voice\": it has 0 operands, and its action leaves 1 to entries (give one for each step that says `value: entry`)"},
	{func(p *Pipeline) { p.Pipes[steer].Entries[0].Values = []Value{{1, 2}} }, `pipe "steer": entry "voice": operand 0, field meta.mark: its value has 2 words: the field has 1`},
	{func(p *Pipeline) {
		p.Pipes[steer].Actions[0].Ops[0], p.Pipes[steer].Entries[0].Values[0] = Op{Kind: PushVLAN, FromEntry: true}, Value{1 << 15}
	}, `pipe "steer": entry "voice": operand 0: 0x8000 is no tag`},
	// monitors
	{func(p *Pipeline) { p.Pipes[steer].Monitor.Counter = "totals" }, `pipe "steer": monitor: there is no counter "totals" (did you mean "total"?)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Monitor.Meter = "silver" }, `pipe "rules": entry "probe": monitor: there is no meter "silver" (declare it under meters)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Monitor.Mirror = "taps" }, `pipe "rules": entry "probe": monitor: there is no mirror "taps" (did you mean "tap"?)`},
	{func(p *Pipeline) { p.Pipes[steer].Monitor.Age = 25 * 24 * time.Hour }, `pipe "steer": monitor: age 600h0m0s: it is 1s to 24 days (leave it out if entries do not age)`},
	{func(p *Pipeline) { p.Pipes[steer].Monitor = Monitor{Remove: true} }, `pipe "steer": monitor: entries are to be removed when they are old, and none says when that is (add age: 5m)`},
	{func(p *Pipeline) { p.Pipes[spread].Monitor = Monitor{Remove: true, Age: time.Hour} }, `pipe "spread": monitor: entries of a fixed and of a hash pipe cannot be removed by age (leave remove out: what ages is told of)`},
}

// doubtful are what is warned of.
var doubtful = []struct {
	do   func(p *Pipeline)
	want string
}{
	{func(p *Pipeline) { p.Pipes[known].Miss = *to(ToPolicy) }, `pipe "copies": no packet gets there (forward to it from a pipe that packets reach, or leave it out)`},
	{func(p *Pipeline) {
		p.Meters = append(p.Meters, &Meter{Name: "m", Type: "rfc2697", Rate: [2]uint64{1}, Size: [2]uint64{9999}})
	}, "meter \"m\" is not used (name it in a monitor: `meter: m`)"},
	{func(p *Pipeline) { p.Mirrors = append(p.Mirrors, &Mirror{Name: "m", Ports: []string{"x"}}) }, "mirror \"m\" is not used (name it in a monitor: `mirror: m`)"},
	{func(p *Pipeline) { p.Counters = append(p.Counters, "more") }, "counter \"more\" is not used (name it in a monitor: `counter: more`)"},
	{func(p *Pipeline) { p.Raws = append(p.Raws, &Raw{Name: "r", Base: "l2"}) }, `raw field "r" is not used (match on raw.r)`},
	{func(p *Pipeline) {
		p.Pipes[steer].Miss = *toPipe("known")
		p.Pipes = append(p.Pipes[:flows], p.Pipes[known:]...)
	}, `ct.state is always none: no pipe is of kind ct (have packets pass a ct pipe first)`},
	{func(p *Pipeline) { p.Pipes[rules].Entries[0].Monitor.Meter = "" }, `meta.color is always green: no entry has a meter (have packets pass an entry with a meter first)`},
	{func(p *Pipeline) { p.Meters[0].Size[0] = 1000 }, `meter "gold": cbs is 1000 bytes, so that a full frame is never green (raise it to 1514 at least)`},
	{func(p *Pipeline) { p.Pipes[acl].Forward = &Forward{To: ToPipe, Name: "lists", Index: 4} }, `pipe "acl": forward: pipe "lists" has no entry with index 4, so that the packets are its miss (it has 3)`},
}

func TestCheckTellsOfMistakes(t *testing.T) {
	for _, tt := range wrong {
		p := reach(everything())
		tt.do(p)
		_, err := p.Check()
		var errs mistake.Errors
		if !errors.As(err, &errs) {
			t.Errorf("it takes what is wrong: %s (%v)", tt.want, err)
			continue
		}
		told := false
		for _, e := range errs {
			told = told || strings.Contains(e.Error(), tt.want)
			if e.Hint == "" {
				t.Errorf("no remedy: %v", e)
			}
		}
		if !told {
			t.Errorf("no word of\n%s\nbut\n%v", tt.want, err)
		}
	}
}

func TestCheckWarns(t *testing.T) {
	for _, tt := range doubtful {
		p := reach(everything())
		tt.do(p)
		warnings, err := p.Check()
		if err != nil || !strings.Contains(warnings.Error(), strings.SplitN(tt.want, " (", 2)[0]) {
			t.Errorf("no warning\n%s\nbut\n%v\n%v", tt.want, warnings, err)
		}
	}
}

// TestEveryMistakeIsTested: no message of a check may come up in front of a user first.
func TestEveryMistakeIsTested(t *testing.T) {
	var told []string
	for _, tt := range wrong {
		told = append(told, tt.want)
	}
	for _, tt := range doubtful {
		told = append(told, tt.want)
	}
	files, err := filepath.Glob("check*.go")
	if err != nil || len(files) < 4 {
		t.Fatalf("sources are %v, %v", files, err)
	}
	verb := regexp.MustCompile(`%[sdqvx]`)
	n := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			literal, isLiteral := call.Args[0].(*ast.BasicLit)
			if !ok || selector.Sel.Name != "Errorf" || !isLiteral {
				return true
			}
			format, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			n++
			pattern := regexp.MustCompile(`(^|: )` + verb.ReplaceAllString(regexp.QuoteMeta(format), `.*`) + `( \(|$)`)
			for _, text := range told {
				if pattern.MatchString(text) {
					return true
				}
			}
			t.Errorf("%s: no test has this message: %s", name, format)
			return true
		})
	}
	if n < 100 {
		t.Errorf("only %d messages are found", n)
	}
}

// TestCheckNamesPlaces: a mistake points at the nearest thing that has a place.
func TestCheckNamesPlaces(t *testing.T) {
	p := reach(everything())
	p.Pipes[steer].Pos = Pos{File: "p.yaml", Line: 3, Column: 5}
	p.Pipes[steer].Entries[0].Pos = Pos{File: "p.yaml", Line: 7, Column: 9}
	p.Pipes[steer].Entries[0].Match[0].Value = Value{4096}
	p.Pipes[steer].Entries[1].Match[0] = Match{Field: field("vlan.0.id"), Value: Value{5000}, Pos: Pos{File: "p.yaml", Line: 8, Column: 11}}
	_, err := p.Check()
	var errs mistake.Errors
	if !errors.As(err, &errs) || len(errs) != 2 {
		t.Fatalf("errors are %v", err)
	}
	for i, want := range []string{`p.yaml:7:9: pipe "steer": entry "voice": field vlan.0.id:`, `p.yaml:8:11: pipe "steer": entry 1: field vlan.0.id:`} {
		if !strings.HasPrefix(errs[i].Error(), want) {
			t.Errorf("%v does not begin with %s", errs[i], want)
		}
	}
}

// TestCheckManyMirrors: what entries lead to is looked up once for a pipe and not for each of them, or a file of some
// 10,000 entries would be checked for hours.
func TestCheckManyMirrors(t *testing.T) {
	const n = 30_000
	line := &Pipeline{Name: "x", Root: "a", BypassesPolicy: true, Mirrors: []*Mirror{{Name: "tap", Ports: []string{"mon0"}}}}
	for i, name := range []string{"a", "b"} {
		p := &Pipe{Name: name, Kind: Basic, Match: []MatchField{{Field: LookupField("ipv4.src")}}, Miss: Forward{To: ToDrop}, Monitor: Monitor{Mirror: "tap"}}
		for j := range uint32(n) {
			p.Entries = append(p.Entries, &Entry{Match: []Match{{Field: p.Match[0].Field, Value: Value{j}}}, Forward: []*Forward{toPipe("b"), toPort("wan0")}[i]})
		}
		line.Pipes = append(line.Pipes, p)
	}
	start := time.Now()
	if _, err := line.Check(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it takes %s", took)
	}
}
