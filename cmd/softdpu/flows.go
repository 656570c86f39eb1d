package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/gateway"
)

func newFlowsCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "List the connections of the running gateway",
		Long: `List the connections of the running gateway: who speaks to whom, in which state, by which rule, and
in which tier they live. Packets and bytes are the opener's direction / the other one. BECOMES shows what
source and destination of translated connections become; * stays as it is.

A filter chooses among them:
  src, dst, host ADDRESS[/BITS]     the opener's, the other end's, either address
  sport, dport, port PORT[-PORT]    ports likewise
  proto NAME|NUMBER, family 4|6
  from, to, zone ZONE               the opener's, the other end's, either zone
  state STATE, rule NAME, tier hardware|xdp|worker, revoked
  nat NAME                          translated by this nat rule
Addresses and ports are those before or after translation. Conditions are joined by and, or, not and parentheses.

--watch shows those that send most, and how much they do a second in both directions: by bits or packets
a second, by total of bytes, newest first, or longest idle first. What it shows fits the terminal; the
first line counts all. In a table of millions, give it a filter.`,
		Example: `  sudo softdpu flows
  sudo softdpu flows --filter 'src 10.0.0.0/8 and dport 443'
  sudo softdpu flows --watch --sort packets --filter 'from lan'
  sudo softdpu flows --filter 'not (rule web or proto icmp)' -o json`,
		Args: takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	filter := cmd.Flags().String("filter", "", "show only the flows that this expression chooses")
	limit := cmd.Flags().Int("limit", 0, "show at most so many; 0 shows all")
	live := addWatchFlags(cmd, flowSorts...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, err := gateway.ParseFilter(*filter); err != nil {
			return usagef(cmd, "%w", err)
		}
		switch {
		case *limit < 0:
			return usagef(cmd, "--limit must not be negative")
		case *limit > 0 && *live.on:
			return usagef(cmd, "--watch shows as many as fit: leave --limit out")
		}
		if err := live.check(cmd, format); err != nil {
			return err
		}
		client := gateway.NewClient(*socket)
		if *live.on {
			w := &flowWatch{client: client, filter: *filter, sort: *live.sort}
			return watch(cmd.Context(), env, w.next)
		}
		flows, err := client.Flows(cmd.Context(), *filter, *limit)
		if err != nil {
			return err
		}
		if err := format.print(env, flows, flowTable(flows, env.Width())); err != nil || format.json {
			return err
		}
		noteTiers(env, flows)
		return nil
	}
	cmd.AddCommand(newFlowsKillCommand(env))
	return cmd
}

// addSocketFlag gives the command the flag by which it finds the daemon.
func addSocketFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("socket", gateway.DefaultSocket, "control socket of the daemon to ask")
}

// wideFlows is the least width at which the table of flows has all its columns.
const wideFlows = 110

// flowTable fits the width of a terminal, 0 for none: a narrow one is not told zones and tier, so that
// addresses need not be cut.
func flowTable(flows []gateway.Flow, width int) *table {
	wide := width == 0 || width >= wideFlows
	names := []string{"PROTO", "SOURCE", "DESTINATION", "ZONES", "STATE", ">PACKETS", ">BYTES", ">IDLE", "TIER", "RULE"}
	if !wide {
		names = []string{"PROTO", "SOURCE", "DESTINATION", "STATE", ">PACKETS", ">BYTES", ">IDLE", "RULE"}
	}
	translated := slices.ContainsFunc(flows, func(f gateway.Flow) bool { return f.NAT != nil })
	if translated {
		names = slices.Insert(names, 3, "BECOMES")
	}
	t := newTable(names...)
	for i := range flows {
		f := &flows[i]
		src, dst := endpoint(f, f.SrcIP, f.SrcPort), endpoint(f, f.DestIP, f.DestPort)
		state := f.State
		if f.Revoked {
			state += " (revoked)"
		}
		packets, bytes := count(f.Packets[0])+"/"+count(f.Packets[1]), size(f.Bytes[0])+"/"+size(f.Bytes[1])
		cells := []any{f.Proto, src, dst, f.From + " > " + f.To, state, packets, bytes, interval(f.IdleS), f.Tier, f.Rule}
		if !wide {
			cells = []any{f.Proto, src, dst, state, packets, bytes, interval(f.IdleS), f.Rule}
		}
		if translated {
			cells = slices.Insert(cells, 3, any(becomes(f)))
		}
		t.add(cells...)
	}
	return t
}

// endpoint renders address and port; protocols without ports have only addresses.
func endpoint(f *gateway.Flow, a netip.Addr, port uint16) string {
	if f.SrcPort == 0 && f.DestPort == 0 || f.Proto == "icmp" || f.Proto == "icmpv6" {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// becomes renders what a translated flow's source and destination become, "*" for what stays.
func becomes(f *gateway.Flow) string {
	if f.NAT == nil {
		return ""
	}
	src, dst := "*", "*"
	if f.NAT.SrcIP != f.SrcIP || f.NAT.SrcPort != f.SrcPort {
		src = endpoint(f, f.NAT.SrcIP, f.NAT.SrcPort)
	}
	if f.NAT.DestIP != f.DestIP || f.NAT.DestPort != f.DestPort {
		dst = endpoint(f, f.NAT.DestIP, f.NAT.DestPort)
	}
	return src + " > " + dst
}

// noteTiers says how many flows there are, and why they live no higher than they do.
func noteTiers(env *Env, flows []gateway.Flow) {
	if len(flows) == 0 {
		env.note("no flow")
		return
	}
	why := make(map[string]int)
	for i := range flows {
		why[flows[i].Tier+": "+flows[i].WhyNotHigher]++
	}
	for _, reason := range slices.Sorted(maps.Keys(why)) {
		env.note("%s in %s", quantity(why[reason], "flow"), reason)
	}
}

// count renders a number in at most five characters: 999, 9999, 12.3k, 4.5M.
func count(n uint64) string {
	if n < 10_000 {
		return strconv.FormatUint(n, 10)
	}
	return scaled(float64(n), 1000, []string{"", "k", "M", "G", "T", "P", "E"})
}

// size renders bytes with a binary prefix: 60B, 1.5K, 1.0G.
func size(n uint64) string {
	if n < 1024 {
		return strconv.FormatUint(n, 10) + "B"
	}
	return scaled(float64(n), 1024, []string{"B", "K", "M", "G", "T", "P", "E"})
}

func scaled(v, base float64, units []string) string {
	i := 0
	for i < len(units)-1 && v >= base-base/2000 { // what would be rounded to a whole next unit
		v /= base
		i++
	}
	if v < 99.95 {
		return fmt.Sprintf("%.1f%s", v, units[i])
	}
	return fmt.Sprintf("%.0f%s", v, units[i])
}

// interval renders seconds in one or two units: 0.3s, 12s, 4m5s, 2h4m, 3d1h.
func interval(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Truncate(time.Second).Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
