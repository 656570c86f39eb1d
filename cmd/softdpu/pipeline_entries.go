package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/gateway"
)

// pipelineFound is how many entries are listed unless more are asked for.
const pipelineFound = 1000

func newPipelineEntriesCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "entries PIPE",
		Short: "List entries of a pipe of the pipeline in force",
		Long: `List the entries of a pipe of the pipeline in front of the running gateway's policy: what they match, where
they forward to, what they have counted, how long no packet came to them, and of entries that age how long
they may be unused. --match asks for what an entry says exactly, and may be given several times; an entry
is found at once by all fields of a basic pipe.

-o json has each entry in the form of a pipeline's file beside that: what 'pipeline entry' takes.

Exit code 0: there are such entries. 1: there are none. 2: there is no such pipe, or no gateway.`,
		Example: `  sudo softdpu pipeline entries hosts
  sudo softdpu pipeline entries hosts --match ipv4.src=10.20.1.7
  sudo softdpu pipeline entries routes --match ipv4.dst=10.0.0.0/8 -o json`,
		Args: takes(0, "PIPE"),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	name := cmd.Flags().String("name", "", "of the entry")
	match := cmd.Flags().StringArray("match", nil, "`FIELD=VALUE` that it says, or index=N")
	limit := cmd.Flags().Int("limit", pipelineFound, "most entries; 0: all")
	after := cmd.Flags().Int("after", 0, "go on behind so many entries: `next` of the JSON before")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *limit < 0 || *after < 0 {
			return usagef(cmd, "--limit and --after are numbers of entries")
		}
		const page = 10_000
		client, at := gateway.NewClient(*socket), *after
		var all *gateway.PipelineEntries
		for all == nil || all.Next != nil && (*limit == 0 || len(all.Entries) < *limit) {
			n := page
			if *limit > 0 {
				n = *limit
				if all != nil {
					n -= len(all.Entries)
				}
			}
			found, err := client.PipelineEntries(cmd.Context(), args[0], *name, *match, at, min(n, page))
			if err != nil {
				return err
			}
			if all == nil {
				all = found
			} else {
				all.Entries, all.Next = append(all.Entries, found.Entries...), found.Next
			}
			if all.Next != nil {
				at = *all.Next
			}
		}
		if err := format.print(env, all, pipelineEntryTable(all)); err != nil {
			return err
		}
		if !format.json && all.Next != nil {
			env.note("note: there are more: --after %d goes on", *all.Next)
		}
		if len(all.Entries) == 0 {
			return answerNo(nil)
		}
		return nil
	}
	return cmd
}

func pipelineEntryTable(all *gateway.PipelineEntries) *table {
	t := newTable("ENTRY", "MATCH", "FORWARD", ">PACKETS", ">BYTES", ">IDLE", ">AGE")
	for i := range all.Entries {
		e := &all.Entries[i]
		packets, bytes, idle, age := "-", "-", "-", "-"
		if e.Packets != nil {
			packets, bytes = fmt.Sprint(*e.Packets), fmt.Sprint(*e.Bytes)
		}
		if e.IdleS != nil {
			idle = interval(*e.IdleS)
		}
		if e.AgeS != nil {
			age = interval(*e.AgeS)
			idle = interval(*e.UnusedS)
		}
		t.add(e.Name, strings.Join(e.Match, " "), e.Forward, packets, bytes, idle, age)
	}
	return t
}

func newPipelineEntryCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "entry",
		Short: "Add, update and remove entries of a pipe while packets pass",
		Long: `Change entries of a pipe of the pipeline in front of the running gateway's policy, while packets pass: each
of them meets an entry as it was or as it is afterwards. What is changed stays through reloads, restarts,
kill -9 and reboots, until the next 'pipeline apply' or 'pipeline remove'.`,
		Example: `  sudo softdpu pipeline entry add hosts --match ipv4.src=10.20.1.7 --forward policy
  sudo softdpu pipeline entry remove hosts old.yaml -m 'CHG-4711'`,
	}
	cmd.AddCommand(
		newPipelineEntryChange(env, "add", "Add entries to a pipe", "An entry that is there already, or for which there is no room, is not added."),
		newPipelineEntryChange(env, "update", "Change what entries of a pipe do", "Their counts go on. An entry that is not there is not added."),
		newPipelineEntryChange(env, "remove", "Remove entries of a pipe", "Of each what it is found by counts, or its name."),
	)
	return group(cmd)
}

// newPipelineEntryChange is one of the commands that change entries.
func newPipelineEntryChange(env *Env, change, short, what string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   change + " PIPE [FILE]",
		Short: short,
		Long: short + ` of the pipeline in force: those of a file, or of the standard input (-), or one
that is given by flags. A file is a list of entries as under 'entries' of a pipeline's file, in YAML or JSON,
up to 100,000; JSON is read faster. Entries of basic and lpm pipes are found by what they match on, those of
hash pipes and ordered lists by their index, and those of control and acl pipes by their name, or without
one by all that they ask. ` + what + `

Each entry is done by itself, and those that are not are told of with the reason. When the command returns,
what is done is in force and kept. It needs root.

Exit code 0: all is done. 1: some entries are not. 2: the list has a mistake or there is no such pipe; nothing
was changed.`,
		Example: fmt.Sprintf(`  sudo softdpu pipeline entry %[1]s hosts entries.yaml -m 'CHG-4711'
  sudo softdpu pipeline entry %[1]s hosts --match ipv4.src=10.20.1.7`, change) + map[bool]string{true: "", false: " --forward policy"}[change == "remove"],
		Args: takes(1, "PIPE"),
	}
	format, socket, comment := addOutputFlag(cmd), addSocketFlag(cmd), addCommentFlag(cmd)
	var e entryFlags
	e.addTo(cmd, change != "remove")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		given, err := e.json()
		if err != nil {
			return usagef(cmd, "%w", err)
		}
		if (given == "") == (len(args) == 1) {
			return usagef(cmd, "%s needs a FILE, or an entry by flags as in --match ipv4.src=10.0.0.1", cmd.CommandPath())
		}
		text := &input{Reader: strings.NewReader(given), name: "the entry"}
		if given == "" {
			if text, err = openInput(env, args[1], "the entries"); err != nil {
				return err
			}
			defer text.close()
		}
		done, err := gateway.NewClient(*socket).ChangePipelineEntries(cmd.Context(), args[0], change, *comment, text)
		if err != nil {
			return unchanged(err, "entries", text.name)
		}
		if format.json {
			err = printJSON(env.Stdout, done)
		} else {
			err = reportEntries(env, done, text.name)
		}
		if err == nil && done.Failed > 0 {
			err = answerNo(nil)
		}
		return err
	}
	return cmd
}

// entryFlags are what a person says of one entry.
type entryFlags struct {
	name, prefix, forward string
	match                 []string
	index                 int
	cmd                   *cobra.Command
}

func (e *entryFlags) addTo(cmd *cobra.Command, does bool) {
	e.cmd = cmd
	cmd.Flags().StringVar(&e.name, "name", "", "of the entry")
	cmd.Flags().StringArrayVar(&e.match, "match", nil, "`FIELD=VALUE` that it matches on; again for more")
	cmd.Flags().StringVar(&e.prefix, "prefix", "", "of an lpm pipe")
	cmd.Flags().IntVar(&e.index, "index", 0, "of a hash pipe or an ordered list")
	if does {
		cmd.Flags().StringVar(&e.forward, "forward", "", "drop, policy, host, port:NAME or pipe:NAME; without it as the pipe says")
	}
}

// json is the entry as a list of one; "" if nothing is said.
func (e *entryFlags) json() (string, error) {
	entry := map[string]any{}
	for key, text := range map[string]string{"name": e.name, "prefix": e.prefix} {
		if text != "" {
			entry[key] = text
		}
	}
	if e.cmd.Flags().Changed("index") {
		entry["index"] = e.index
	}
	match := map[string]string{}
	for _, text := range e.match {
		field, value, ok := strings.Cut(text, "=")
		if !ok {
			return "", fmt.Errorf("--match %s: it is FIELD=VALUE, as in ipv4.src=10.0.0.1", text)
		}
		if _, twice := match[field]; twice {
			return "", fmt.Errorf("--match %s: field %s is given twice", text, field)
		}
		match[field] = value
	}
	if len(match) > 0 {
		entry["match"] = match
	}
	if to, name, named := strings.Cut(e.forward, ":"); named {
		entry["forward"] = map[string]string{to: name}
	} else if to != "" {
		entry["forward"] = to
	}
	if len(entry) == 0 {
		return "", nil
	}
	var b strings.Builder
	err := printJSON(&b, []any{entry})
	return b.String(), err
}

// maxEntriesTold is how many entries that were not changed are told of.
const maxEntriesTold = 20

// reportEntries tells what became of changes of entries.
func reportEntries(env *Env, done *gateway.PipelineEdited, name string) error {
	told := 0
	for i := range done.Results {
		r := &done.Results[i]
		if r.Error == "" {
			continue
		}
		if told++; told > maxEntriesTold {
			continue
		}
		env.note("%s:%d: %s (%s)", name, r.Line, visible(r.Error), visible(r.Hint))
	}
	if told > maxEntriesTold {
		env.note("and %d more", told-maxEntriesTold)
	}
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{done.Added, "added"}, {done.Updated, "updated"}, {done.Removed, "removed"}, {done.Failed, "not changed"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		parts = []string{"nothing to change"}
	}
	size := ""
	if done.Size > 0 {
		size = fmt.Sprintf(", room for %d", done.Size)
	}
	_, err := fmt.Fprintf(env.Stdout, "%s: %s; %s in force%s\n", visible(done.Pipe), strings.Join(parts, ", "), quantityOf(done.Entries, "entry", "entries"), size)
	return err
}
