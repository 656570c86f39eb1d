package pipes

import (
	"fmt"
	"slices"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// fields are what the pipes of one policy match on and write, beside those that all pipelines have.
type fields struct {
	port, version, proto, sport, dport, icmpType, icmpCode *pipe.Field

	src, dst [2]*pipe.Field // IPv4, IPv6

	from, to, mac, local     *pipe.Field
	destination, server, nat *pipe.Field
}

// Numbers of the own fields, as [pipe.OwnField] has them.
const (
	FieldFrom        = iota // zone.from: id of a zone
	FieldTo                 // zone.to: likewise
	FieldMAC                // src.mac: the policy's number of a MAC address, 0: none that it names
	FieldLocal              // dst.local: 1 or 0
	FieldDestination        // nat.destination: id of a nat rule, 0: none
	FieldServer             // nat.server: place in [flowtable.NAT]'s Servers
	FieldSource             // nat.source: id of a nat rule, 0: none
)

func newFields(c *firewall.Compiled) *fields {
	zone := func(id uint32) string {
		if id < uint32(len(c.Zones)) && c.Zones[id] != "" {
			return c.Zones[id]
		}
		return fmt.Sprintf("zone-%d", id)
	}
	macs := make(map[uint32]string, len(c.MACs))
	for mac, id := range c.MACs {
		macs[uint32(id)] = mac.String()
	}
	rule := func(id uint32) string {
		if id < uint32(len(c.NATRules)) && c.NATRules[id].Name != "" {
			return c.NATRules[id].Name
		}
		return fmt.Sprint(id)
	}
	number := func(n uint32) string { return fmt.Sprint(n) }
	is := pipe.LookupField
	return &fields{
		port: is("port"), version: is("ip.version"), proto: is("ip.proto"), sport: is("l4.sport"), dport: is("l4.dport"),
		icmpType: is("icmp.type"), icmpCode: is("icmp.code"),
		src:  [2]*pipe.Field{is("ipv4.src"), is("ipv6.src")},
		dst:  [2]*pipe.Field{is("ipv4.dst"), is("ipv6.dst")},
		from: pipe.OwnField(FieldFrom, "zone.from", "zone of the port and VLAN that the packet came by", zone),
		to:   pipe.OwnField(FieldTo, "zone.to", "zone to which the route leads", zone),
		mac: pipe.OwnField(FieldMAC, "src.mac", "source MAC address, if the policy names it", func(id uint32) string {
			if mac, ok := macs[id]; ok {
				return mac
			}
			return number(id)
		}),
		local:       pipe.OwnField(FieldLocal, "dst.local", "1: the destination is an address of the gateway", number),
		destination: pipe.OwnField(FieldDestination, "nat.destination", "nat rule that translates the destination", rule),
		server:      pipe.OwnField(FieldServer, "nat.server", "number of the server that becomes the destination", number),
		nat:         pipe.OwnField(FieldSource, "nat.source", "nat rule that translates the source", rule),
	}
}

// word is the value of a named field as entries write it.
func word(f *pipe.Field, text string) pipe.Value {
	i := slices.IndexFunc(f.Names(), func(n pipe.Name) bool { return n.Word == text })
	return pipe.Value{f.Names()[i].Value}
}
