package firewall

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/flowtable"
)

// Kinds of what a policy declares, in the order of its sections.
const (
	KindZone     = "zone"
	KindSet      = "set"
	KindWorkload = "workload"
	KindService  = "service"
	KindNAT      = "nat"
	KindRule     = "rule"
	KindTest     = "test"
)

// How something of a policy differs from the policy before.
const (
	DiffAdded   = "added"
	DiffRemoved = "removed"
	DiffChanged = "changed"
	DiffMoved   = "moved" // of rules: nothing but its place among those that both policies have
)

// A Difference is one thing that two policies do not have in common. Things are known by their names.
type Difference struct {
	Kind   string      `json:"kind"`
	Name   string      `json:"name"`
	How    string      `json:"how"`
	Fields []FieldDiff `json:"fields"` // of what was added all that it says, of what was changed what is new
	File   string      `json:"file"`   // where it stands, or stood
	Line   int         `json:"line"`
}

// FieldDiff is a key whose value is another.
type FieldDiff struct {
	Key string `json:"key"`
	Old string `json:"old"` // "" for none
	New string `json:"new"`
}

// Diff says what has to be done to the policy before to make it the one after, in the order of the
// sections, and in each of the names in the policy after. What a rule does by a service or a port set that
// has changed is a change of the rule too. Lists are compared whole, and written out as far as people read.
func Diff(before, after *Policy) []Difference {
	out := []Difference{}
	out = append(out, sectionOf(KindZone, before.Zones, after.Zones, func(z *Zone) string { return z.Name },
		func(z *Zone) Pos { return z.Pos }, zoneFields).changes()...)
	out = append(out, diffSets(before.Sets, after.Sets)...)
	out = append(out, sectionOf(KindWorkload, before.Workloads, after.Workloads, func(w *Workload) string { return w.Name },
		func(w *Workload) Pos { return w.Pos }, workloadFields).changes()...)
	out = append(out, sectionOf(KindService, before.Services, after.Services, func(s *Service) string { return s.Name },
		func(s *Service) Pos { return s.Pos }, serviceFields).changes()...)
	nat := sectionOf(KindNAT, before.NAT, after.NAT, func(r *NATRule) string { return r.Name }, func(r *NATRule) Pos { return r.Pos }, natFields)
	out = append(append(out, nat.changes()...), nat.moved()...)
	rules := section[Rule]{KindRule, before.Rules, after.Rules, func(r *Rule) string { return r.Name }, before.RulePos, after.RulePos, ruleFields, sameRule}
	out = append(append(out, rules.changes()...), rules.moved()...)
	return append(out, sectionOf(KindTest, before.Tests, after.Tests, func(t *Test) string { return cmp.Or(t.Name, t.packetText()) },
		func(t *Test) Pos { return t.Pos }, testFields).changes()...)
}

// Changes are how many things of each kind differ.
type Changes struct {
	Zones     Change `json:"zones"`
	Sets      Change `json:"sets"`
	Workloads Change `json:"workloads"`
	Services  Change `json:"services"`
	NAT       Change `json:"nat"`
	Rules     Change `json:"rules"`
	Tests     Change `json:"tests"`
}

// Change counts the things of one kind. What has changed and moved counts as both.
type Change struct {
	Added   int `json:"added"`
	Removed int `json:"removed"`
	Changed int `json:"changed"`
	Moved   int `json:"moved"`
}

// CountChanges counts what Diff has found.
func CountChanges(all []Difference) (c Changes) {
	kinds := map[string]*Change{
		KindZone: &c.Zones, KindSet: &c.Sets, KindWorkload: &c.Workloads, KindService: &c.Services,
		KindNAT: &c.NAT, KindRule: &c.Rules, KindTest: &c.Tests,
	}
	for i := range all {
		k := kinds[all[i].Kind]
		switch all[i].How {
		case DiffAdded:
			k.Added++
		case DiffRemoved:
			k.Removed++
		case DiffMoved:
			k.Moved++
		default:
			k.Changed++
		}
	}
	return c
}

// A field is what a key says: in words, where a long list is cut short, and whole, to be compared.
type field struct {
	key, text string
	whole     any
}

// equal compares two values of one key. Whether a list was left out or is empty is the same.
func equal(a, b any) bool {
	switch x := a.(type) {
	case []string:
		return slices.Equal(x, b.([]string))
	case []uint16:
		return slices.Equal(x, b.([]uint16))
	case []MAC:
		return slices.Equal(x, b.([]MAC))
	case []flowtable.AddrRange:
		return slices.Equal(x, b.([]flowtable.AddrRange))
	case []ServiceMatch:
		return slices.EqualFunc(x, b.([]ServiceMatch), func(m, n ServiceMatch) bool {
			return m.Proto == n.Proto && m.Family == n.Family && slices.Equal(m.SrcPorts, n.SrcPorts) && slices.Equal(m.DstPorts, n.DstPorts)
		})
	case *Selector:
		y := b.(*Selector)
		return x.Any == y.Any && slices.Equal(x.Zones, y.Zones) && slices.Equal(x.Addresses, y.Addresses) &&
			slices.Equal(x.Sets, y.Sets) && slices.Equal(x.Workloads, y.Workloads) && maps.Equal(x.Labels, y.Labels)
	}
	return a == b
}

// word is a field whose text is all of it.
func word(key, text string) field { return field{key, text, text} }

func yes(key string, is bool) field {
	if is {
		return word(key, "true")
	}
	return word(key, "")
}

func zoneFields(z *Zone) []field {
	return []field{
		{"ports", list(z.Ports, same), z.Ports},
		{"vlans", list(z.VLANs, func(id uint16) string { return strconv.Itoa(int(id)) }), z.VLANs},
		{"addresses", list(z.Addresses, addressText), z.Addresses},
		yes("untrusted", z.Untrusted), word("description", z.Description),
	}
}

func workloadFields(w *Workload) []field {
	return []field{
		{"zone", list(w.Zones, same), w.Zones},
		{"addresses", list(w.Addresses, addressText), w.Addresses},
		{"macs", list(w.MACs, MAC.String), w.MACs},
		word("labels", labelsText(w.Labels)), word("description", w.Description),
	}
}

func serviceFields(s *Service) []field {
	return []field{{"service", list(s.Matches, serviceText), s.Matches}}
}

func ruleFields(r *Rule) []field {
	mode, onFailure := "", ""
	if r.Audit {
		mode = "audit"
	}
	if r.Bypass {
		onFailure = OnFailureBypass
	}
	return []field{
		{"from", r.From.text(), &r.From}, {"to", r.To.text(), &r.To}, {"service", servicesText(r.Services), r.Services},
		word("action", r.Action.String()), yes("log", r.Log), word("mode", mode), word("expires", r.expiresText()),
		yes("midstream", r.Midstream), word("on_failure", onFailure), word("mirror", r.Mirror.Text()), word("mss_clamp", mssText(r.MSSClamp)),
		word("description", r.Description), word("owner", r.Owner),
	}
}

// sameRule reports whether two rules say the same, without writing it out: of many rules most do.
func sameRule(a, b *Rule) bool {
	return a == b || a.Action == b.Action && a.Log == b.Log && a.Audit == b.Audit && a.Expires.Equal(b.Expires) && a.Midstream == b.Midstream &&
		a.Bypass == b.Bypass && a.Mirror.Port == b.Mirror.Port && a.Mirror.Packets == b.Mirror.Packets && a.MSSClamp == b.MSSClamp &&
		a.Description == b.Description && a.Owner == b.Owner &&
		equal(&a.From, &b.From) && equal(&a.To, &b.To) && equal(a.Services, b.Services)
}

func natFields(r *NATRule) []field {
	fields := []field{
		{"from", r.From.text(), &r.From}, {"to", r.To.text(), &r.To}, {"service", servicesText(r.Services), r.Services},
	}
	for _, kind := range natKinds {
		f := word(kind, "")
		if kind == string(r.Kind) {
			var servers []string
			for _, s := range r.Servers {
				servers = append(servers, s.text())
			}
			f.text, f.whole = r.detail(list(r.Servers, NATServer.text)), r.detail(strings.Join(servers, ", "))
		}
		fields = append(fields, f)
	}
	return append(fields, word("description", r.Description), word("owner", r.Owner))
}

// packetText writes a test's packet in one line.
func (t *Test) packetText() string {
	p := &t.Packet
	text := "in " + p.In
	if p.VLAN != 0 {
		text += fmt.Sprintf(" vlan %d", p.VLAN)
	}
	if p.Out != "" {
		text += " out " + p.Out
	}
	if p.OutVLAN != 0 {
		text += fmt.Sprintf(" out_vlan %d", p.OutVLAN)
	}
	if p.MAC != (MAC{}) {
		text += " mac " + p.MAC.String()
	}
	text += fmt.Sprintf(" src %s dst %s proto %d", p.Src, p.Dst, p.Proto)
	if p.SrcPort != 0 || p.DstPort != 0 {
		text += fmt.Sprintf(" ports %d to %d", p.SrcPort, p.DstPort)
	}
	return text
}

func testFields(t *Test) []field {
	return []field{word("packet", t.packetText()), word("verdict", string(t.Expect.Verdict)), word("rule", t.Expect.Rule), word("nat", t.Expect.NAT.text())}
}

// diffSets compares sets by their entries, of which there may be millions: told are how many came and
// went, and a few.
func diffSets(before, after []Set) []Difference {
	out := sectionOf(KindSet, before, after, func(s *Set) string { return s.Name }, func(s *Set) Pos { return s.Pos }, func(s *Set) []field {
		return []field{word("type", string(s.Type)), word("file", s.File), word("description", s.Description)}
	}).changes()
	for i := range after {
		s := &after[i]
		k := slices.IndexFunc(before, func(b Set) bool { return b.Name == s.Name })
		if k < 0 || before[k].Type != s.Type {
			continue
		}
		came, went := s.entriesSince(&before[k])
		if came == "" && went == "" {
			continue
		}
		at := slices.IndexFunc(out, func(d Difference) bool { return d.Name == s.Name })
		if at < 0 {
			at = len(out)
			out = append(out, Difference{KindSet, s.Name, DiffChanged, []FieldDiff{}, s.Pos.File, s.Pos.Line})
		}
		out[at].Fields = append(out[at].Fields, FieldDiff{"entries", went, came})
	}
	return out
}

// entriesSince tells which entries s has that before has not, and the other way round; "" for none.
func (s *Set) entriesSince(before *Set) (came, went string) {
	switch s.Type {
	case SetPrefix:
		return members(before.Prefixes, s.Prefixes, func(a, b flowtable.AddrRange) int {
			return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last))
		}, addressText)
	case SetPort:
		return members(before.Ports, s.Ports, func(a, b flowtable.U16Range) int {
			return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
		}, portText)
	case SetMAC:
		return members(before.MACs, s.MACs, func(a, b MAC) int { return slices.Compare(a[:], b[:]) }, MAC.String)
	}
	return members(before.Names, s.Names, cmp.Compare[string], same)
}

// members compares two lists as sets.
func members[T any](before, after []T, order func(a, b T) int, text func(T) string) (came, went string) {
	sorted := func(in []T) []T {
		out := slices.Clone(in)
		slices.SortFunc(out, order)
		return slices.CompactFunc(out, func(a, b T) bool { return order(a, b) == 0 })
	}
	a, b := sorted(before), sorted(after)
	var gone, added []T
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && order(a[0], b[0]) < 0:
			gone, a = append(gone, a[0]), a[1:]
		case len(a) == 0 || order(a[0], b[0]) > 0:
			added, b = append(added, b[0]), b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	tell := func(some []T) string {
		if len(some) == 0 {
			return ""
		}
		return fmt.Sprintf("%d: %s", len(some), list(some, text))
	}
	return tell(added), tell(gone)
}
