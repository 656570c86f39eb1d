package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/gateway"
)

func newRulesCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rules",
		Short: "List the rules of the running gateway and what they counted",
		Long: `List the rules of the running gateway: what no rule matched ("none") and the built-in rules, then those
of the policy in order of evaluation. JUDGED counts the times that a rule decided, FLOWS the
connections that it allows now, PACKETS and BYTES what it allowed or refused, LAST the time since it
decided last, UNLOGGED the events that the limit left out.

Connection tracking and not a rule lets replies and ICMP errors through: builtin-replies and
builtin-icmp-errors count them, and the rule that allowed their connection counts them too.

--watch shows how much each rule counts a second.`,
		Example: `  sudo softdpu rules
  sudo softdpu rules --used
  sudo softdpu rules --used --watch
  sudo softdpu rules -o json`,
		Args: takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	used := cmd.Flags().Bool("used", false, "show only rules that have counted something")
	live := addWatchFlags(cmd, counterSorts...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := live.check(cmd, format); err != nil {
			return err
		}
		client := gateway.NewClient(*socket)
		if *live.on {
			w := &counterWatch{kind: "ACTION", noun: "counted by rules", sort: *live.sort, read: readRules(client, *used)}
			return watch(cmd.Context(), env, w.next)
		}
		rules, err := client.Rules(cmd.Context())
		if err != nil {
			return err
		}
		if *used {
			rules = slices.DeleteFunc(rules, func(r gateway.RuleStatus) bool { return r.Judged == 0 && r.Packets == 0 })
		}
		return format.print(env, rules, ruleTable(rules, time.Now()))
	}
	return cmd
}

func ruleTable(rules []gateway.RuleStatus, now time.Time) *table {
	// Seldom is an event left out: then the column is too.
	unlogged := slices.ContainsFunc(rules, func(r gateway.RuleStatus) bool { return r.Unlogged > 0 })
	names := []string{"RULE", "ACTION", ">JUDGED", ">FLOWS", ">PACKETS", ">BYTES", ">LAST", "WHERE"}
	if unlogged {
		names = append(names, ">UNLOGGED")
	}
	t := newTable(names...)
	for i := range rules {
		r := &rules[i]
		action := r.Action
		switch {
		case r.Expired:
			action += " (expired)"
		case r.Mode != "enforce":
			action += " (" + r.Mode + ")"
		case r.Mirror != nil:
			action += " (mirror " + r.Mirror.Port + ")"
		case r.MSSClamp != 0:
			action += fmt.Sprintf(" (mss %d)", r.MSSClamp)
		}
		last := "never"
		if r.LastHit != nil {
			last = interval(max(0, now.Sub(*r.LastHit).Seconds()))
		}
		t.add(r.Name, action, count(r.Judged), count(r.Flows), count(r.Packets), size(r.Bytes), last, place(r), count(r.Unlogged))
	}
	return t
}

// place says where a rule is written, by the name of its file alone.
func place(r *gateway.RuleStatus) string {
	switch {
	case r.Builtin:
		return "built in"
	case r.File == "":
		return "default"
	}
	return fmt.Sprintf("%s:%d", filepath.Base(r.File), r.Line)
}
