package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
)

func newPolicyHistoryCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history",
		Short: "List the policies that came into force, and those that were refused",
		Long: `List the policies that came into force and those that were refused, the newest first: when, what brought
it about, who asked for it with which comment, the hash, and how many things it changed against the one
before: + added, - removed, ~ changed, > moved. The one in force has a '*'. 'softdpu policy diff N' and
'softdpu policy rollback N' take the number of an entry.

The last 50 policies are kept with their files, and the last 50 that were refused.`,
		Example: `  sudo softdpu policy history
  sudo softdpu policy history -o json`,
		Args: takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		entries, err := gateway.NewClient(*socket).History(cmd.Context())
		if err != nil {
			return err
		}
		t := newTable("", ">ENTRY", "TIME", "BY", "USER", "RESULT", "HASH", "CHANGES", "COMMENT")
		for i := range entries {
			e := &entries[i]
			mark := ""
			if e.Current {
				mark = "*"
			}
			t.add(mark, e.Entry, e.Time.Local().Format(time.DateTime), historyBy(e), historyUser(e), historyResult(e), fmt.Sprintf("%.12s", e.Hash), historyChanges(e), e.Comment)
		}
		return format.print(env, entries, t)
	}
	return cmd
}

func historyBy(e *gateway.HistoryEntry) string {
	if e.Restored == 0 {
		return e.By
	}
	return fmt.Sprintf("%s to %d", e.By, e.Restored)
}

func historyUser(e *gateway.HistoryEntry) string {
	if e.Login != "" {
		return e.Login + " as " + e.User
	}
	return e.User
}

func historyResult(e *gateway.HistoryEntry) string {
	if e.Confirm != "" {
		return e.Result + ", " + e.Confirm
	}
	return e.Result
}

// historyChanges is what differs, or why a policy was refused.
func historyChanges(e *gateway.HistoryEntry) string {
	if len(e.Errors) > 0 {
		first := e.Errors[0].FirewallError()
		first.Hint = ""
		text := first.Error()
		if more := e.Mistakes - 1; more > 0 {
			text += fmt.Sprintf(" (and %s)", quantity(more, "other"))
		}
		return text
	}
	if e.Changes == nil {
		return ""
	}
	return changesText(e.Changes)
}

// changesText counts what differs, in the order of a policy's sections.
func changesText(c *firewall.Changes) string {
	var parts []string
	for _, k := range []struct {
		name string
		of   firewall.Change
	}{{"zones", c.Zones}, {"sets", c.Sets}, {"workloads", c.Workloads}, {"services", c.Services}, {"nat", c.NAT}, {"rules", c.Rules}, {"tests", c.Tests}} {
		text := ""
		for _, n := range []struct {
			sign  string
			count int
		}{{"+", k.of.Added}, {"-", k.of.Removed}, {"~", k.of.Changed}, {">", k.of.Moved}} {
			if n.count > 0 {
				text += fmt.Sprintf(" %s%d", n.sign, n.count)
			}
		}
		if text != "" {
			parts = append(parts, k.name+text)
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func newPolicyRollbackCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback [ENTRY]",
		Short: "Have the running gateway put a policy of its history in force",
		Long: `Have the running gateway put in force the policy that was in force before, or that of an ENTRY of
'softdpu policy history': its files as they were read then, those of sets too, and what the configuration
said of the policy. Asked again it goes further back. A change that waits to be confirmed is taken back.
Established connections are judged again with their next packet, and those that the policy allows again
go on.

The files on disk stay as they are, and are then not what is in force: 'softdpu status' says so. SIGHUP
is refused and a restart starts with what was rolled back to until the files change, or 'softdpu policy
apply' puts them in force as they are.

Exit code 0: the policy is in force. 1: there is no such entry, or it needs a restart; nothing was
changed. 2: no gateway runs here, or no permission.`,
		Example: `  sudo softdpu policy rollback -m "the shop cannot pay"
  sudo softdpu policy rollback 41`,
		Args: takes(1),
	}
	format, socket, comment := addOutputFlag(cmd), addSocketFlag(cmd), addCommentFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		entry, err := entryArg(cmd, args, 0)
		if err != nil {
			return err
		}
		done, err := gateway.NewClient(*socket).Rollback(cmd.Context(), entry, *comment)
		return reportChange(env, format, done, err)
	}
	return cmd
}

func newPolicyConfirmCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "confirm",
		Short: "Keep the policy that was put in force with a time limit",
		Long: `Keep the policy that 'softdpu policy apply --confirm' has put in force: it no longer comes back by itself.

Exit code 0: it stays. 1: nothing waits to be confirmed. 2: no gateway runs here, or no permission.`,
		Example: `  sudo softdpu policy apply --confirm 2m
  sudo softdpu policy confirm`,
		Args: takes(0),
	}
	socket := addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		done, err := gateway.NewClient(*socket).Confirm(cmd.Context())
		if conflict := (*gateway.Conflict)(nil); errors.As(err, &conflict) {
			return answerNo(err)
		}
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(env.Stdout, "ok: epoch %d stays in force, entry %d of the history\n", done.Epoch, done.Entry); err != nil {
			return fmt.Errorf("print report: %w", err)
		}
		return nil
	}
	return cmd
}

// addCommentFlag gives the command the flag -m.
func addCommentFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("comment", "m", "", "why, in one `line` for the history and the events")
}

// entryArg reads the argument at a place as the number of an entry; 0 if there is none.
func entryArg(cmd *cobra.Command, args []string, at int) (int, error) {
	if len(args) <= at {
		return 0, nil
	}
	n, err := strconv.Atoi(args[at])
	if err != nil || n <= 0 {
		return 0, usagef(cmd, "%q is not the number of an entry: 'softdpu policy history' shows them", args[at])
	}
	return n, nil
}
