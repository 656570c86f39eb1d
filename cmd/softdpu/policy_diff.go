package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
)

func newPolicyDiffCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [ENTRY [ENTRY]]",
		Short: "Compare the policy in force, or of the history, with the files",
		Long: `Say what 'softdpu policy apply' would change: compare the files on disk with the policy in force. With an
ENTRY of 'softdpu policy history' they are compared with that, and with two entries the first with the
second. Compared is what acts: rules, nat rules, zones, sets, workloads, services and tests by their
names, and what the configuration says of the policy; comments and layout are not.

  + added   - removed   ~ changed, with each key before and after   > moved among the rules

Exit code 0: nothing differs. 1: something does, or the files are wrong. 2: no gateway runs here.`,
		Example: `  sudo softdpu policy diff
  sudo softdpu policy diff 41
  sudo softdpu policy diff 41 42 -o json`,
		Args: takes(2),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var entries [2]int
		for i := range entries {
			var err error
			if entries[i], err = entryArg(cmd, args, i); err != nil {
				return err
			}
		}
		d, err := gateway.NewClient(*socket).Diff(cmd.Context(), entries[0], entries[1])
		var errs firewall.Errors
		switch {
		case errors.As(err, &errs) && format.json:
			if err := printJSON(env.Stdout, struct {
				Errors []gateway.Mistake `json:"errors"`
			}{gateway.Mistakes(errs)}); err != nil {
				return err
			}
			return answerNo(nil)
		case errors.As(err, &errs):
			if _, err := fmt.Fprintf(env.Stdout, "%s\n%s in the files\n", errs.Error(), quantity(len(errs), "error")); err != nil {
				return fmt.Errorf("print errors: %w", err)
			}
			return answerNo(nil)
		case err != nil:
			return err
		}
		if format.json {
			err = printJSON(env.Stdout, d)
		} else {
			err = writeDiff(env.Stdout, d)
		}
		if err == nil && !d.Same {
			err = answerNo(nil)
		}
		return err
	}
	return cmd
}

var diffSigns = map[string]string{
	firewall.DiffAdded: "+", firewall.DiffRemoved: "-", firewall.DiffChanged: "~", firewall.DiffMoved: ">",
}

// diffHeading is the line above the differences of a section, named as policies name it.
func diffHeading(kind string) string {
	if kind == firewall.KindNAT {
		return kind + "\n"
	}
	return kind + "s\n"
}

// writeDiff prints a comparison for people.
func writeDiff(w io.Writer, d *gateway.PolicyDiff) error {
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", sideText(&d.From), sideText(&d.To))
	for i := range d.Differences {
		x := &d.Differences[i]
		if i == 0 || d.Differences[i-1].Kind != x.Kind {
			b.WriteString(diffHeading(x.Kind))
		}
		fmt.Fprintf(&b, "  %s %s  (%s:%d)\n", diffSigns[x.How], visible(x.Name), visible(x.File), x.Line)
		writeFields(&b, x.Fields)
	}
	if len(d.Configuration) > 0 {
		b.WriteString("configuration\n")
		writeFields(&b, d.Configuration)
	}
	for i := range d.Restart {
		fmt.Fprintf(&b, "! %s\n", visible(d.Restart[i].FirewallError().Error()))
	}
	switch {
	case !d.Same:
		fmt.Fprintf(&b, "changes: %s\n", changesText(&d.Changes))
	case d.From.Hash == d.To.Hash:
		b.WriteString("no difference\n")
	default:
		b.WriteString("no difference but comments and layout\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print difference: %w", err)
	}
	return nil
}

// writeFields prints what keys said and say.
func writeFields(b *strings.Builder, fields []firewall.FieldDiff) {
	for _, f := range fields {
		switch {
		case f.Old == "":
			fmt.Fprintf(b, "      %s: + %s\n", f.Key, visible(f.New))
		case f.New == "":
			fmt.Fprintf(b, "      %s: - %s\n", f.Key, visible(f.Old))
		default:
			fmt.Fprintf(b, "      %s: - %s\n      %s  + %s\n", f.Key, visible(f.Old), strings.Repeat(" ", len(f.Key)), visible(f.New))
		}
	}
}

func sideText(s *gateway.DiffSide) string {
	text := "the files"
	switch {
	case s.What == "in-force" && s.Entry == 0:
		text = "in force"
	case s.What == "in-force":
		text = fmt.Sprintf("in force, entry %d", s.Entry)
	case s.Entry != 0:
		text = fmt.Sprintf("entry %d", s.Entry)
	}
	return fmt.Sprintf("%s, sha256 %.12s", text, s.Hash)
}
