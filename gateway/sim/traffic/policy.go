package traffic

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// Policy is a policy as text and as read.
type Policy struct {
	Text   string
	Parsed *firewall.Policy
	Worked bool // the configuration beside it leads every flow through a worker
}

// MonitorPort is the port that rules mirror to. It is beside those of the world: no packet comes by it.
const MonitorPort = "monitor"

// author writes policies about one layout.
type author struct {
	*layout
	r     *rand.Rand
	named int    // rules so far
	head  string // sets, workloads and services

	translates bool // policies have nat rules
	maps       bool // those that choose ports have mappings
	translated int  // nat rules so far
	nat        []string
}

func newAuthor(l *layout, r *rand.Rand) *author {
	w := &author{layout: l, r: r}
	w.head = w.declarations()
	return w
}

func (w *author) one(of ...string) string { return of[w.r.IntN(len(of))] }

func (w *author) list(n int, make func() string) string {
	var out []string
	for range n {
		out = append(out, make())
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func (w *author) segment() *segment { return &w.segments[w.r.IntN(len(w.segments))] }

// address writes a prefix, range or address of some segment.
func (w *author) address() string {
	s := w.segment()
	n, net := s.number(), 1+w.r.IntN(4)
	text := ""
	switch w.r.IntN(7) {
	case 0, 1:
		text = fmt.Sprintf("10.%d.%d.0/24", n, net)
	case 2:
		text = fmt.Sprintf("10.%d.%d.%d-10.%d.%d.%d", n, net, 2+w.r.IntN(40), n, net+w.r.IntN(2), 50+w.r.IntN(60))
	case 3:
		text = fmt.Sprintf("10.%d.%d.%d", n, net, 2+w.r.IntN(120))
	case 4:
		text = s.nets[w.r.IntN(len(s.nets))].String()
	case 5:
		text = fmt.Sprintf("fd00:%x:%x00::/40", n, net)
	default:
		text = fmt.Sprintf("fd00:%x:%x00::%x", n, net, 2+w.r.IntN(120))
	}
	return `"` + text + `"`
}

// manyAddresses is the size of a set whose search does not stand in the program any more, in either family.
const manyAddresses = 600

// host writes an address of some segment.
func (w *author) host() string {
	n, net := w.segment().number(), 1+w.r.IntN(4)
	if w.r.IntN(2) == 0 {
		return fmt.Sprintf(`"10.%d.%d.%d"`, n, net, 2+w.r.IntN(250))
	}
	return fmt.Sprintf(`"fd00:%x:%x00::%x"`, n, net, 2+w.r.IntN(250))
}

func (w *author) mac() string {
	s := w.segment()
	return `"` + s.macs[w.r.IntN(3)].String() + `"`
}

func (w *author) port() string {
	return w.one("22", "25", "80", "443", "3306", "8080", "8443", "8000-8099", "1024-5000", "60000-65535")
}

const (
	setCount      = 2
	workloadCount = 4
	serviceCount  = 4
)

func (w *author) declarations() string {
	var b strings.Builder
	b.WriteString("sets:\n")
	for i := range setCount {
		nets := w.list(1+w.r.IntN(4), w.address)
		if w.r.IntN(3) == 0 {
			nets = w.list(manyAddresses, w.host)
		}
		fmt.Fprintf(&b, "  nets%d: {type: prefix, entries: %s}\n", i, nets)
		fmt.Fprintf(&b, "  ports%d: {type: port, entries: %s}\n", i, w.list(1+w.r.IntN(3), w.port))
	}
	fmt.Fprintf(&b, "  macs: {type: mac, entries: %s}\n  nobody: {type: prefix, entries: []}\n", w.list(2, w.mac))
	b.WriteString("workloads:\n")
	for i := range workloadCount {
		fmt.Fprintf(&b, "  work%d: {addresses: %s, labels: {role: %s, tier: t%d}}\n",
			i, w.list(1+w.r.IntN(2), w.address), []string{"db", "app"}[i/2], i%2)
	}
	s := w.segment()
	fmt.Fprintf(&b, "  placed: {zone: %s, labels: {role: app, tier: t0}}\n", s.zone)
	fmt.Fprintf(&b, "  fixed: {macs: %s, labels: {hw: \"yes\"}}\n", w.list(2, w.mac))
	fmt.Fprintf(&b, "  both: {zone: %s, addresses: %s, macs: %s, labels: {hw: \"yes\"}}\n", s.zone, w.list(2, w.address), w.list(2, w.mac))
	b.WriteString("services:\n  manage: [tcp/22, icmp/echo-request]\n")
	for i := range serviceCount {
		fmt.Fprintf(&b, "  service%d: %s\n", i, w.list(1+w.r.IntN(3), w.literal))
	}
	return b.String()
}

// literal writes a service that needs no name.
func (w *author) literal() string {
	switch w.r.IntN(10) {
	case 0, 1, 2:
		return "tcp/" + w.port()
	case 3, 4:
		return "udp/" + w.one("53", "123", "161", "500", "5000-5100", "33434-33534")
	case 5:
		return w.one("icmp/echo-request", "icmpv6/echo-request", "icmp", "icmpv6", "icmp/timestamp-request", "icmp/echo-request/0", "icmp/echo-request/1", "icmpv6/echo-request/2")
	case 6:
		return w.one("tcp", "udp")
	case 7:
		return w.one("gre", "esp", "ah", "sctp", "proto/99")
	}
	source := ""
	if w.r.IntN(2) == 0 {
		source = ", source_port: " + w.one("[1-1023]", "1024-65535", "[53, 40000-50000]")
	}
	return fmt.Sprintf("{proto: %s, port: %s%s}", w.one("tcp", "udp"), w.list(1+w.r.IntN(2), w.port), source)
}

func (w *author) service() string {
	switch w.r.IntN(10) {
	case 0:
		return "any"
	case 1, 2, 3:
		return fmt.Sprintf("service%d", w.r.IntN(serviceCount))
	case 4:
		return fmt.Sprintf("{proto: %s, port: {set: ports%d}}", w.one("tcp", "udp"), w.r.IntN(setCount))
	case 5:
		return w.list(2, w.literal)
	}
	return w.literal()
}

// selector writes `from` (source) or `to`.
func (w *author) selector(source bool) string {
	zone := func() string { return w.segment().zone }
	switch w.r.IntN(20) {
	case 0, 1:
		return "any"
	case 2, 3, 4, 5, 6:
		if !source && w.r.IntN(4) == 0 {
			return "host"
		}
		return zone()
	case 7, 8:
		return w.list(2, zone)
	case 9, 10, 11:
		return fmt.Sprintf("{zone: %s, addresses: %s}", zone(), w.list(1+w.r.IntN(3), w.address))
	case 12, 13:
		return w.list(1+w.r.IntN(3), w.address)
	case 14:
		return w.list(2, func() string { return fmt.Sprintf("work%d", w.r.IntN(workloadCount)) })
	case 15:
		return fmt.Sprintf("{labels: {role: %s}}", w.one("db", "app"))
	case 16:
		return "{labels: {tier: t0, role: app}}"
	case 17:
		if source {
			return w.one("fixed", "both", `{labels: {hw: "yes"}}`, fmt.Sprintf("{zone: %s, workload: [placed, fixed]}", zone()))
		}
		return "placed"
	case 18:
		if source {
			return w.one("{set: macs}", "{set: [macs, nets0]}")
		}
	}
	return fmt.Sprintf("{set: [nets%d, nobody]}", w.r.IntN(setCount))
}

func (w *author) rule() string {
	w.named++
	service := w.service()
	text := fmt.Sprintf("{name: r%03d, from: %s, to: %s, service: %s", w.named, w.selector(true), w.selector(false), service)
	action := w.one("allow", "allow", "allow", "allow", "allow", "allow", "deny", "deny", "reject")
	text += ", action: " + action
	if w.r.IntN(10) == 0 {
		text += ", mode: audit"
	}
	if w.r.IntN(8) == 0 {
		text += ", log: true"
	}
	if w.r.IntN(20) == 0 {
		text += ", expires: " + w.one("2020-02-29", "2026-05-31", "2026-06-01", "2030-01-01")
	}
	if action == "allow" && (service == "any" || strings.HasPrefix(service, "tcp")) && w.r.IntN(3) == 0 {
		text += ", midstream: true"
	}
	if action == "allow" && !strings.Contains(text, "mode: audit") && w.r.IntN(4) == 0 {
		text += ", mirror: " + w.one(MonitorPort, "{port: "+MonitorPort+", packets: 4}")
		text += ", on_failure: " + w.one("drop", "bypass")
	}
	if action == "allow" && !strings.Contains(text, "mode: audit") && (service == "any" || strings.HasPrefix(service, "tcp")) && w.r.IntN(3) == 0 {
		text += ", mss_clamp: " + w.one("88", "536", "1299", "1400", "65495")
	}
	return text + "}"
}

// policy puts rules together with what every policy of the stream declares.
func (w *author) policy(rules []string) (Policy, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: softdpu/v1\nkind: Policy\nzones:\n%s\n%s", strings.Join(w.zoneText, "\n"), w.head)
	if len(w.nat) > 0 {
		b.WriteString("nat:\n")
	}
	for _, rule := range w.nat {
		b.WriteString("  - " + rule + "\n")
	}
	b.WriteString("rules:\n")
	for _, rule := range rules {
		b.WriteString("  - " + rule + "\n")
	}
	p := Policy{Text: b.String()}
	var err error
	p.Parsed, err = firewall.Parse([]firewall.Source{{Name: "random.yaml", Text: []byte(p.Text)}}, nil)
	if err != nil {
		return p, fmt.Errorf("parse random policy: %w\n%s", err, p.Text)
	}
	return p, nil
}

// write makes a policy out of old rules, if there are any, and new ones. Rules that no drawn packet
// reaches are left out: nobody could tell whether they work.
func (w *author) write(old []string) (Policy, []string, []witness, error) {
	rules := w.revise(old)
	if w.translates {
		w.nat = w.natRules(w.nat)
	}
	p, err := w.policy(rules)
	if err != nil {
		return p, nil, nil, err
	}
	judge, err := oracle.New(p.Parsed, w.world)
	if err != nil {
		return p, nil, nil, fmt.Errorf("judge random policy: %w", err)
	}
	var kept []string
	var found []witness
	for i := range p.Parsed.Rules {
		found = append(found, w.witnesses(judge, p.Parsed, p.Parsed.Rules[i])...)
	}
	for i := range p.Parsed.Rules {
		rule := p.Parsed.Rules[i]
		// A rule in audit mode is asked once a flow, so it needs packets that differ in more than
		// their addresses.
		reached := slices.ContainsFunc(found, func(f witness) bool {
			return slices.Contains(f.rules, rule.Name) && (!rule.Audit || f.hasPorts())
		})
		if reached || rule.Expired(w.world.Now) {
			kept = append(kept, rules[i])
		}
	}
	if len(kept) == 0 {
		return w.write(nil)
	}
	// Rules that were left out are not among what a witness reaches.
	for i := range found {
		found[i].rules = slices.DeleteFunc(found[i].rules, func(name string) bool {
			return !strings.HasPrefix(name, "builtin-") && !slices.ContainsFunc(kept, func(text string) bool { return strings.HasPrefix(text, "{name: "+name+",") })
		})
	}
	found = slices.DeleteFunc(found, func(f witness) bool { return len(f.rules) == 0 })
	p, err = w.policy(kept)
	return p, kept, found, err
}

// revise drops and moves some rules and adds others.
func (w *author) revise(old []string) []string {
	var rules []string
	for _, rule := range old {
		if w.r.IntN(4) > 0 {
			rules = append(rules, rule)
		}
	}
	if len(rules) > 1 {
		w.r.Shuffle(len(rules)/2, func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	}
	for want := 12 + w.r.IntN(80); len(rules) < want; {
		at := w.r.IntN(len(rules) + 1)
		rules = append(rules[:at], append([]string{w.rule()}, rules[at:]...)...)
	}
	return rules
}
