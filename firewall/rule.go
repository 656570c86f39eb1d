package firewall

import (
	"maps"
	"slices"
	"strings"
	"time"
)

var actionNames = [...]string{Allow: "allow", Deny: "deny", Reject: "reject"}

// String returns the action as it is written.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return ""
}

// builtinPrefix begins the names of built-in rules.
const builtinPrefix = "builtin-"

func (l *loader) readRules(n *Node) {
	if n.Kind != ListNode {
		l.Fail(n.Pos.Errorf("rules must be a list, not %s", n.Kind).WithHint("begin each rule with: - name: NAME"))
		return
	}
	for _, item := range n.Items {
		l.rule(item)
	}
}

func (l *loader) rule(n *Node) {
	f := l.Fields(n, "a rule", ruleKeys)
	if n.Kind != MapNode {
		return
	}
	for _, later := range laterKeys {
		for _, field := range n.Fields {
			if field.Key == later {
				l.Fail(field.Pos.Errorf("%s is not available in this version yet", later).
					WithHint("take it out; a rule that promises it is not loaded without it"))
			}
		}
	}
	r, pos := new(Rule), n.Pos
	if l.ruleName(&r.Name, &pos, "rule", "counters and tests follow it", f["name"]) {
		l.named = append(l.named, len(l.rules))
	}
	r.Description = l.optionalText(f["description"], "description")
	r.Owner = l.optionalText(f["owner"], "owner")
	l.ruleEnd(&r.From, "rule", r.Name, pos, "from", f["from"], "any, a zone, a workload")
	l.ruleEnd(&r.To, "rule", r.Name, pos, "to", f["to"], "any, a zone, a workload")
	if v := f["service"]; v != nil {
		r.Services = l.services(v, false)
	}
	if v := f["action"]; v != nil {
		r.Action = Action(slices.Index(actionNames[:], l.Choice(v, "action", actionNames[Allow:]...)))
	} else {
		l.Fail(pos.Errorf("rule %q does not say its action", r.Name).WithHint("add action: allow, deny or reject"))
	}
	if v := f["log"]; v != nil {
		r.Log = l.Bool(v, "log")
	}
	if v := f["mode"]; v != nil {
		r.Audit = l.Choice(v, "mode", "enforce", "audit") == "audit"
	}
	if v := f["expires"]; v != nil {
		l.expires(r, v)
	}
	if v := f["midstream"]; v != nil {
		l.midstream(r, v)
	}
	if v := f["on_failure"]; v != nil {
		l.onFailure(r, v)
	}
	if v := f["mirror"]; v != nil {
		l.mirror(r, v, pos)
	}
	if v := f["mss_clamp"]; v != nil {
		l.mssClamp(r, v)
	}
	l.rules = append(l.rules, r)
	l.places = append(l.places, rulePlace{file: int32(l.file), line: int32(pos.Line), column: int32(pos.Column)})
}

// specialRules returns which rules are special.
func specialRules(rules []*Rule) (special []int32) {
	for i, r := range rules {
		if r.special() {
			special = append(special, int32(i))
		}
	}
	return special
}

// ruleName reads the name of a rule of some kind. pos, where the rule begins, becomes that of its name.
func (l *loader) ruleName(to *string, pos *Pos, kind, follows string, name *Node) bool {
	if name == nil {
		l.Fail(pos.Errorf("%s without a name", kind).WithHint("add name: NAME; %s", follows))
		return false
	}
	*pos = name.Pos
	text, ok := l.Text(name, "name")
	if !ok {
		return false
	}
	*to = strings.Clone(text)
	if !l.Identifier(name.Pos, "a "+kind, text) {
		return false
	}
	if text == NameNone || strings.HasPrefix(text, builtinPrefix) {
		l.Fail(name.Pos.Errorf("rule name %q is reserved", text).WithHint("choose another name"))
		return false
	}
	return true
}

// nameTaken is the mistake of a rule of some kind whose name, which stands at pos, another has.
func nameTaken(pos Pos, kind, name string, first Pos) Error {
	return pos.Errorf("%s %q exists already", kind, name).WithHint("first in %s", first)
}

// ruleEnd reads what a rule says of one end, which it must.
func (l *loader) ruleEnd(to *Selector, kind, name string, pos Pos, key string, v *Node, may string) {
	if v == nil {
		l.Fail(pos.Errorf("%s %q does not say %s", kind, name, key).WithHint("add %s: %s, or {zone: ..., addresses: ...}", key, may))
		return
	}
	*to = l.selector(v, key, key == "from")
}

// expires reads the last day, in UTC, on which the rule matches.
func (l *loader) expires(r *Rule, n *Node) {
	text, ok := l.Text(n, "expires")
	if !ok {
		return
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		l.Fail(n.Pos.Errorf("%q is not a date", text).WithHint("write the rule's last day as in 2027-06-30"))
		return
	}
	r.Expires = day.AddDate(0, 0, 1)
}

func (l *loader) midstream(r *Rule, n *Node) {
	if r.Midstream = l.Bool(n, "midstream"); !r.Midstream {
		return
	}
	if r.Action != Allow && r.Action != 0 {
		l.Fail(n.Pos.Errorf("midstream on a rule that does not allow").WithHint("take midstream out; it admits connections that are already under way"))
	}
	if r.Services != nil && !slices.ContainsFunc(r.Services, ServiceMatch.hasTCP) {
		l.Fail(n.Pos.Errorf("midstream on a rule without TCP").WithHint("only TCP connections are picked up; take midstream out"))
	}
}

// selector reads `from` (source) or `to`.
func (l *loader) selector(n *Node, what string, source bool) Selector {
	var s Selector
	switch n.Kind {
	case MapNode:
		l.selectorMap(&s, n, what, source)
	case ListNode:
		for _, item := range n.Items {
			l.selectorWord(&s, item, what, len(n.Items) > 1)
		}
		kinds := 0
		for _, some := range []bool{len(s.Zones) > 0, len(s.Workloads) > 0, len(s.Addresses) > 0} {
			if some {
				kinds++
			}
		}
		if kinds > 1 {
			l.Fail(n.Pos.Errorf("%s mixes zones, workloads and addresses in one list", what).
				WithHint("write a rule for each, or {zone: ..., addresses: ...} where all must hold"))
		}
		if len(n.Items) == 0 {
			l.Fail(n.Pos.Errorf("an empty list in %s matches nothing", what).WithHint("write any"))
		}
	default:
		l.selectorWord(&s, n, what, false)
	}
	if !source {
		l.refuseMACs(&s, n.Pos)
	}
	return s
}

// selectorWord reads any, a zone, a workload or an address.
func (l *loader) selectorWord(s *Selector, n *Node, what string, inList bool) {
	text, ok := l.Text(n, what)
	if !ok {
		return
	}
	z, zone := l.zoneIndex[text]
	w, workload := l.workloadIndex[text]
	switch {
	case text == NameAny && !inList:
		s.Any = true
	case text == NameAny:
		l.Fail(n.Pos.Errorf("any beside others in %s", what).WithHint("any alone already holds the others"))
	case zone:
		s.Zones = append(s.Zones, l.policy.Zones[z].Name)
	case text == NameHost:
		s.Zones = append(s.Zones, NameHost)
	case workload:
		l.used["workload "+text] = true
		s.Workloads = append(s.Workloads, l.policy.Workloads[w].Name)
	case looksLikeAddress(text):
		a, hint, err := parseAddresses(text)
		if err != nil {
			l.Fail(n.Pos.Errorf("%v", err).WithHint("%s", hint))
			return
		}
		s.Addresses = append(s.Addresses, a)
	default:
		known := append(l.zoneList(), NameAny)
		known = append(known, slices.Sorted(maps.Keys(l.workloadIndex))...)
		e := Unknown(n.Pos, "zone or workload", text, known, "declare it under `zones` or `workloads`")
		if _, set := l.setIndex[text]; set {
			e.Hint = "it is a set: write {set: " + text + "}"
		}
		l.Fail(e)
	}
}

func (l *loader) selectorMap(s *Selector, n *Node, what string, source bool) {
	before := len(l.Errs)
	f := l.Fields(n, what, keys["selector"])
	if len(f) == 0 && len(l.Errs) == before {
		l.Fail(n.Pos.Errorf("%s says nothing", what).WithHint("write %s: any", what))
	}
	if v := f["zone"]; v != nil {
		s.Zones = l.zoneNames(v)
	}
	if v := f["addresses"]; v != nil {
		if s.Addresses = l.addresses(v, "an address"); len(l.List(v)) == 0 {
			l.Fail(v.Pos.Errorf("an empty list of addresses matches nothing").WithHint("leave `addresses` out for any"))
		}
	}
	if v := f["set"]; v != nil {
		types := []SetType{SetPrefix, SetMAC}
		if !source {
			types = types[:1]
		}
		items := l.List(v)
		for _, item := range items {
			if set := l.setByName(item, types...); set != nil {
				s.Sets = append(s.Sets, set.Name)
			}
		}
		if len(items) == 0 {
			l.Fail(v.Pos.Errorf("an empty list of sets matches nothing").WithHint("leave `set` out"))
		}
	}
	if v := f["workload"]; v != nil {
		items := l.List(v)
		for _, item := range items {
			name, ok := l.Text(item, "a workload")
			if !ok {
				continue
			}
			w, known := l.workloadIndex[name]
			if !known {
				l.Fail(Unknown(item.Pos, "workload", name, slices.Sorted(maps.Keys(l.workloadIndex)), "declare it under `workloads`"))
				continue
			}
			l.used["workload "+name] = true
			s.Workloads = append(s.Workloads, l.policy.Workloads[w].Name)
		}
		if len(items) == 0 {
			l.Fail(v.Pos.Errorf("an empty list of workloads matches nothing").WithHint("leave `workload` out"))
		}
	}
	if v := f["labels"]; v != nil {
		l.selectorLabels(s, v)
	}
}

func (l *loader) selectorLabels(s *Selector, n *Node) {
	before := len(l.Errs)
	s.Labels = l.labels(n)
	if len(l.Errs) > before {
		return
	}
	if len(s.Labels) == 0 {
		l.Fail(n.Pos.Errorf("labels says nothing").WithHint("leave it out, or name a label"))
		return
	}
	// A label that nobody has is a slip of the pen, and in a deny rule a dangerous one.
	for _, f := range n.Fields {
		values := make(map[string]bool)
		labels := make(map[string]bool)
		for _, w := range l.policy.Workloads {
			for k, v := range w.Labels {
				labels[k] = true
				if k == f.Key {
					values[v] = true
				}
			}
		}
		if !labels[f.Key] {
			l.Fail(Unknown(f.Pos, "label", f.Key, slices.Sorted(maps.Keys(labels)), "no workload has it"))
		} else if !values[f.Value.Text] {
			l.Fail(Unknown(f.Value.Pos, "value of label "+f.Key, f.Value.Text, slices.Sorted(maps.Keys(values)), "no workload has it"))
		}
	}
	if len(l.Errs) > before {
		return
	}
	members := l.policy.labelled(s.Labels)
	for _, w := range members {
		l.used["workload "+w.Name] = true
	}
	if len(members) == 0 {
		l.Fail(n.Pos.Errorf("no workload has all of these labels").WithHint("labels of one selector must all hold"))
	}
}

// labelled returns the workloads that have all of the labels.
func (p *Policy) labelled(labels map[string]string) []*Workload {
	var out []*Workload
	for i := range p.Workloads {
		w := &p.Workloads[i]
		all := true
		for k, v := range labels {
			if have, ok := w.Labels[k]; !ok || have != v {
				all = false
			}
		}
		if all {
			out = append(out, w)
		}
	}
	return out
}

// refuseMACs makes sure that `to` asks nothing that a packet does not tell: it carries the MAC of its
// source, and that of its destination is not known before it was routed.
func (l *loader) refuseMACs(s *Selector, at Pos) {
	var members []*Workload
	for _, name := range s.Workloads {
		members = append(members, &l.policy.Workloads[l.workloadIndex[name]])
	}
	if len(s.Labels) > 0 {
		members = append(members, l.policy.labelled(s.Labels)...)
	}
	for _, w := range members {
		if len(w.MACs) > 0 {
			l.Fail(at.Errorf("workload %q has macs and cannot be a destination", w.Name).
				WithHint("MAC addresses are known of the source only; name the destination by its addresses"))
		}
	}
}
