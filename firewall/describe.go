package firewall

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/softdpu/softdpu/flowtable"
)

// describeMost is how many members of a list are written out.
const describeMost = 16

// list joins what texts gives for the members, and counts those that are too many to be written out.
func list[T any](members []T, text func(T) string) string {
	var parts []string
	for _, m := range members[:min(len(members), describeMost)] {
		parts = append(parts, text(m))
	}
	if more := len(members) - describeMost; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

func same(s string) string { return s }

func portText(r flowtable.U16Range) string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// protoText writes a protocol as a literal does.
func protoText(proto uint8) string {
	for name, number := range protoNumbers {
		if number == proto {
			return name
		}
	}
	return "proto/" + strconv.Itoa(int(proto))
}

// serviceText writes a match as a literal does, with the ports that a set of them came to.
func serviceText(m ServiceMatch) string {
	name := protoText(m.Proto.First)
	if m.Proto == (flowtable.U8Range{Last: 255}) {
		name = NameAny
	}
	ports := func(ranges []flowtable.U16Range) string {
		switch {
		case slices.Equal(ranges, anyPort):
			return ""
		case len(ranges) == 0:
			return "/none"
		case name == "icmp" || name == "icmpv6":
			return "/" + list(ranges, icmpText)
		}
		return "/" + list(ranges, portText)
	}
	out := name + ports(m.DstPorts)
	if source := ports(m.SrcPorts); source != "" {
		out += " from port " + source[1:]
	}
	return out
}

// icmpText writes type and code as numbers.
func icmpText(r flowtable.U16Range) string {
	if r.First&0xff == 0 && r.Last == r.First|0xff {
		return strconv.Itoa(int(r.First >> 8))
	}
	return fmt.Sprintf("%d/%d", r.First>>8, r.First&0xff)
}

func labelsText(labels map[string]string) string {
	return list(slices.Sorted(maps.Keys(labels)), func(k string) string { return k + "=" + labels[k] })
}

// text writes a selector in one line, short forms first.
func (s *Selector) text() string {
	if s.Any {
		return NameAny
	}
	var parts []string
	add := func(key, text string) {
		if text != "" {
			parts = append(parts, key+" "+text)
		}
	}
	add("zone", list(s.Zones, same))
	add("workload", list(s.Workloads, same))
	add("set", list(s.Sets, same))
	add("addresses", list(s.Addresses, addressText))
	add("labels", labelsText(s.Labels))
	return strings.Join(parts, " and ")
}

func (r *Rule) expiresText() string {
	if r.Expires.IsZero() {
		return ""
	}
	return r.Expires.AddDate(0, 0, -1).Format(time.DateOnly) // the last day, as it is written
}

func servicesText(services []ServiceMatch) string {
	if len(services) == 0 {
		return NameAny
	}
	return list(services, serviceText)
}
