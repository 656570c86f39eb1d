package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
)

func newNATCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nat",
		Short: "List what the running gateway translates, and how full its addresses are",
		Long: `List the nat rules of the running gateway in order of evaluation. FLOWS counts the connections that a rule
translates now, OPENED those since this process of the gateway started, EXHAUSTED and CONFLICTS those that were
refused since then because no port was free, or because the translation was another connection's, and LIMITED, if a
rule limits its sources, those whose source had as many as it may. MAPPINGS, where a rule has mapping:
endpoint-independent, counts the addresses and ports inside that have one outside. PORTS counts the source
ports in use; FULLEST is the share of them that is in use where it is largest: of one address, protocol
and quarter of the remote ends, where the next connection would find none. EXHAUSTED, CONFLICTS and
LIMITED count each attempt: a client that sends its SYN again is counted again. Last stand rules that the policy has no
more (WHERE is gone), as long as they have connections: those keep their translation.

Below stand the addresses that masquerading writes, by port and VLAN, and of each rule that limits its sources
the five that have the most connections: IPv4 addresses, and the /64s of IPv6 addresses. Who translates which connection is
shown by 'softdpu flows'.`,
		Example: `  sudo softdpu nat
  sudo softdpu nat -o json
  sudo softdpu flows --filter 'nat branch'`,
		Args: takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := gateway.NewClient(*socket).NAT(cmd.Context())
		if err != nil {
			return err
		}
		if format.json {
			return printJSON(env.Stdout, s)
		}
		if err := natTable(s.Rules).write(env.Stdout, env.Width()); err != nil {
			return err
		}
		if len(s.Rules) == 0 {
			env.note("no nat rule: nothing is translated")
			return nil
		}
		if err := natAddressTable(s.Addresses).write(env.Stdout, env.Width()); err != nil {
			return err
		}
		if t := natSourceTable(s.Rules); t != nil {
			if err := t.write(env.Stdout, env.Width()); err != nil {
				return err
			}
		}
		for _, n := range slices.Concat(gateway.NATNotes(s.Rules), gateway.NATAddressNotes(s.Rules)) {
			env.note("warning: %s", n)
		}
		return nil
	}
	return cmd
}

func natTable(rules []gateway.NATRuleStatus) *table {
	limits := limitsSources(rules)
	maps := slices.ContainsFunc(rules, func(r gateway.NATRuleStatus) bool {
		return r.Mapping == firewall.MapEndpoint || r.Mappings > 0
	})
	head := []string{"RULE", "WHAT", ">FLOWS", ">OPENED", ">EXHAUSTED", ">CONFLICTS"}
	if limits {
		head = append(head, ">LIMITED")
	}
	if maps {
		head = slices.Insert(head, 3, ">MAPPINGS")
	}
	t := newTable(append(head, ">PORTS", "FULLEST", "WHERE")...)
	for i := range rules {
		r := &rules[i]
		fullest := "-"
		if r.FullestPercent > 0 {
			fullest = fmt.Sprintf("%.0f %% %s", r.FullestPercent, r.FullestOf)
		}
		what, where := r.Text, fmt.Sprintf("%s:%d", filepath.Base(r.File), r.Line)
		if r.Gone {
			what, where = r.Kind, "gone"
		}
		cells := []any{r.Name, what, count(r.Flows), count(r.Opened), count(r.Exhausted), count(r.Conflicts)}
		if limits {
			cells = append(cells, count(r.Limited))
		}
		if maps {
			cells = slices.Insert(cells, 3, any(count(r.Mappings)))
		}
		t.add(append(cells, count(r.PortsUsed), fullest, where)...)
	}
	return t
}

// limitsSources reports whether some rule lets a source have so many flows and no more.
func limitsSources(rules []gateway.NATRuleStatus) bool {
	return slices.ContainsFunc(rules, func(r gateway.NATRuleStatus) bool { return r.SourceLimit > 0 })
}

// natSourceTable shows who has the most flows by rules with limits; nil: nobody has any.
func natSourceTable(rules []gateway.NATRuleStatus) *table {
	t, some := newTable("SOURCE", "RULE", ">FLOWS", ">LIMIT"), false
	for i := range rules {
		r := &rules[i]
		for k := range r.Sources {
			s := &r.Sources[k]
			t.add(s.Source, r.Name, count(s.Flows), count(uint64(r.SourceLimit)))
			some = true
		}
	}
	if !some {
		return nil
	}
	return t
}

func natAddressTable(addresses []gateway.NATAddressStatus) *table {
	t := newTable("MASQUERADE AT", ">VLAN", "IPV4", "IPV6")
	text := func(a netip.Addr) string {
		if !a.IsValid() {
			return "none"
		}
		return a.String()
	}
	for i := range addresses {
		a := &addresses[i]
		vlan := ""
		if a.VLAN != 0 {
			vlan = fmt.Sprint(a.VLAN)
		}
		t.add(a.Port, cmp.Or(vlan, "-"), text(a.IP4), text(a.IP6))
	}
	return t
}
