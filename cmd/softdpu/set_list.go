package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/gateway"
)

func newSetListCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [NAME]",
		Short: "List the sets of the running gateway, or the entries of one",
		Long: `List the sets of the running gateway, with their types and how many entries they have: in force, of
those that the policy has, and added and removed at runtime; IDLE ones were given at runtime and are
not in force, because the policy no longer has the set.

With a name, list the entries of that set: what each comes from, and of what was changed at runtime by
whom, since when and for how long. An entry with the source removed is written in the policy or in the
file of the set, and out of it at runtime.`,
		Example: `  sudo softdpu set list
  sudo softdpu set list threats
  sudo softdpu set list threats --runtime -o json`,
		Args: takes(1),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	runtime := cmd.Flags().Bool("runtime", false, "show only what was changed at runtime")
	cmd.ValidArgsFunction = completeSets(socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client := gateway.NewClient(*socket)
		if len(args) == 1 {
			entries, err := client.SetEntries(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			shown := entries
			if *runtime {
				shown = []gateway.SetEntry{}
				for _, e := range entries {
					if e.At != nil {
						shown = append(shown, e)
					}
				}
			}
			return format.print(env, shown, setEntryTable(shown, time.Now()))
		}
		sets, err := client.Sets(cmd.Context())
		if err != nil {
			return err
		}
		shown := sets
		if *runtime {
			shown = []gateway.SetStatus{}
			for _, s := range sets {
				if s.Added+s.Removed+s.Idle > 0 {
					shown = append(shown, s)
				}
			}
		}
		return format.print(env, shown, setTable(shown))
	}
	return cmd
}

func setTable(sets []gateway.SetStatus) *table {
	t := newTable("SET", "TYPE", ">ENTRIES", ">WRITTEN", ">ADDED", ">REMOVED", ">IDLE", "USED", "WHERE")
	for i := range sets {
		s := &sets[i]
		used, where := "no", "not in the policy"
		if s.Used {
			used = "yes"
		}
		if s.File != "" {
			where = fmt.Sprintf("%s:%d", filepath.Base(s.File), s.Line)
		}
		t.add(s.Name, s.Type, s.Entries, s.Written, s.Added, s.Removed, s.Idle, used, where)
	}
	return t
}

func setEntryTable(entries []gateway.SetEntry, now time.Time) *table {
	t := newTable("ENTRY", "SOURCE", "WHERE", "BY", ">SINCE", ">EXPIRES", "COMMENT")
	for i := range entries {
		e := &entries[i]
		where, since, expires := "-", "-", "never"
		if e.File != "" {
			where = fmt.Sprintf("%s:%d", filepath.Base(e.File), e.Line)
		}
		if e.At != nil {
			since = interval(max(0, now.Sub(*e.At).Seconds()))
		}
		if e.ExpiresS != nil {
			expires = "in " + interval(*e.ExpiresS)
		}
		t.add(e.Entry, e.Source, where, cmp.Or(e.By, "-"), since, expires, e.Comment)
	}
	return t
}

// completeSets offers the names of the running gateway's sets to the shell.
func completeSets(socket *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		return complete(func() []string {
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
			defer cancel()
			sets, err := gateway.NewClient(*socket).Sets(ctx)
			if err != nil {
				return nil // there is nothing to offer
			}
			names := make([]string, len(sets))
			for i := range sets {
				names[i] = sets[i].Name
			}
			return names
		})(cmd, args, typed)
	}
}
