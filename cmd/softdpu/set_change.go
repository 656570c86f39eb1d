package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
)

func newSetAddCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME ENTRY...",
		Short: "Add entries to a set of the running gateway",
		Long: `Add entries to a set of the running gateway's policy, all or none. They are in force when the command
returns: established connections that are no longer allowed are cut with their next packet, all others
do not notice. They lie over the entries that the policy has, and stay through reloads, restarts and
reboots until they are deleted, or until their time is over.

With the entry - they are read from the standard input, one a line, with # before comments; up to
100,000 in one call. An entry that is in the set already is no mistake: it stays, and of two times the
longer one counts. It needs root; the group of the socket may only list.

Exit code 0: all entries are in the set. 2: an entry is wrong, or the policy has no such set; nothing
was changed.`,
		Example: `  sudo softdpu set add threats 203.0.113.66
  sudo softdpu set add threats 203.0.113.0/24 2001:db8:bad::/48 --for 1h --comment 'CHG-4711'
  sudo softdpu set add threats - < list.txt`,
		Args: setArgs,
	}
	return setChangeCommand(env, cmd, (*gateway.Client).AddToSet)
}

func newSetDelCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "del NAME ENTRY...",
		Short: "Delete entries from a set of the running gateway",
		Long: `Delete entries from a set of the running gateway's policy, all or none; they are out when the command
returns. An entry that the policy or the file of the set has is taken out too: it stays out through
reloads and restarts until 'set add' brings it back, or until the time of --for is over, and the place
where it is written is named, for you to delete it there as well.

Entries are deleted as they were added: an address that a larger entry holds is refused, with the
entry and its place. What is not in the set at all is no mistake. --all takes back everything that the
set was given at runtime, so that it is what the policy says.

Exit code 0: none of the entries is in the set. 2: an entry is wrong, or there is no such set; nothing
was changed.`,
		Example: `  sudo softdpu set del threats 203.0.113.66
  sudo softdpu set del threats 198.51.100.0/24 --for 2h --comment 'false alarm?'
  sudo softdpu set del threats --all`,
	}
	all := cmd.Flags().Bool("all", false, "take back all that the set was given at runtime")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if *all {
			return takes(0, "NAME")(cmd, args)
		}
		return setArgs(cmd, args)
	}
	return setChangeCommand(env, cmd, func(c *gateway.Client, ctx context.Context, name string, change gateway.SetChange) (*gateway.SetChanged, error) {
		change.All = *all
		return c.DeleteFromSet(ctx, name, change)
	})
}

// setArgs takes a name and at least one entry.
func setArgs(cmd *cobra.Command, args []string) error {
	if len(args) < 2 {
		return usagef(cmd, "%s needs %s", cmd.CommandPath(), []string{"NAME", "ENTRY"}[len(args)])
	}
	return nil
}

// setChangeCommand gives a command what add and del have in common.
func setChangeCommand(env *Env, cmd *cobra.Command, do func(*gateway.Client, context.Context, string, gateway.SetChange) (*gateway.SetChanged, error)) *cobra.Command {
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	length := cmd.Flags().String("for", "", "undo it after this time, as in 90s, 1h or 7d")
	comment := cmd.Flags().String("comment", "", "why, for those who list the set")
	cmd.ValidArgsFunction = completeSets(socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *length != "" {
			if _, err := gateway.ParseSetFor(*length); err != nil {
				return usagef(cmd, "--for: %w", err)
			}
		}
		list, err := readSetEntries(env, args[1:])
		if err != nil {
			return err
		}
		change := gateway.SetChange{Entries: list.entries, For: *length, Comment: *comment}
		done, err := do(gateway.NewClient(*socket), cmd.Context(), args[0], change)
		var errs firewall.Errors
		if errors.As(err, &errs) {
			return fmt.Errorf("%s, nothing was changed:\n%s", quantity(len(errs), "error"), list.explain(errs))
		}
		if err != nil {
			return err
		}
		if format.json {
			return printJSON(env.Stdout, done)
		}
		return reportSetChanged(env, done)
	}
	return cmd
}

// reportSetChanged tells what became of a change, and first what its caller may not expect.
func reportSetChanged(env *Env, done *gateway.SetChanged) error {
	for _, n := range done.Notes {
		env.note("note: %s", visible(n))
	}
	return writeSetChanged(env.Stdout, done)
}

// writeSetChanged says in one line what became of a change.
func writeSetChanged(w io.Writer, c *gateway.SetChanged) error {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{c.Added, "added"}, {c.Removed, "deleted"}, {c.Prolonged, "prolonged"}, {c.Unchanged, "unchanged"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		parts = []string{"nothing to change"}
	}
	until := ""
	if c.Until != nil && c.Added+c.Removed+c.Prolonged > 0 {
		until = ", until " + c.Until.Local().Format("2006-01-02 15:04:05")
	}
	_, err := fmt.Fprintf(w, "%s: %s%s; %s in force\n", c.Set, strings.Join(parts, ", "), until, quantityOf(c.Entries, "entry", "entries"))
	if err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}

// quantityOf writes a number with a noun whose plural has another form.
func quantityOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// A setEntryList is what a person gave, and where.
type setEntryList struct {
	entries []string
	places  []firewall.Pos
}

// maxSetInput bounds a line of the standard input, in bytes.
const maxSetInput = 64 << 10

// readSetEntries takes entries from the command line, and for - those of the standard input.
func readSetEntries(env *Env, args []string) (*setEntryList, error) {
	list := &setEntryList{}
	for i, arg := range args {
		if arg != "-" {
			list.entries = append(list.entries, arg)
			list.places = append(list.places, firewall.Pos{File: fmt.Sprintf("entry %d", i+1)})
			continue
		}
		lines := bufio.NewScanner(env.Stdin)
		lines.Buffer(nil, maxSetInput)
		for number := 1; lines.Scan(); number++ {
			text, _, _ := strings.Cut(lines.Text(), "#")
			if text = strings.TrimSpace(text); text == "" {
				continue
			}
			column := utf8.RuneCountInString(lines.Text()[:strings.Index(lines.Text(), text)]) + 1
			list.entries = append(list.entries, text)
			list.places = append(list.places, firewall.Pos{File: "standard input", Line: number, Column: column, Source: lines.Text()})
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("read entries from the standard input: %w: it has one entry a line", err)
		}
		if len(list.entries) == 0 {
			return nil, errors.New("the standard input has no entries: nothing was changed")
		}
	}
	return list, nil
}

// explain gives mistakes the places where the entries were given.
func (l *setEntryList) explain(errs firewall.Errors) string {
	out := make(firewall.Errors, len(errs))
	for i, e := range errs {
		out[i] = e
		if n := e.Line - 1; n >= 0 && n < len(l.places) {
			p := l.places[n]
			out[i].File, out[i].Line, out[i].Column, out[i].Source = p.File, p.Line, p.Column, p.Source
		}
	}
	return out.Error()
}
