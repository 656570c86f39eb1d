package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Colours of a terminal.
const (
	green  = "\x1b[32m"
	red    = "\x1b[31m"
	bold   = "\x1b[1m"
	normal = "\x1b[0m"
)

// paint colours a text on a terminal, and leaves it as it is elsewhere.
func (e *Env) paint(colour, text string) string {
	if e.Width() == 0 || e.Getenv("NO_COLOR") != "" {
		return text
	}
	return colour + text + normal
}

// progress shows on a terminal what is being done, in place of what was there before.
func (e *Env) progress(text string) {
	if e.Width() > 0 {
		fmt.Fprint(e.Stderr, "\r\x1b[K"+text)
	}
}

// tell prints what came of the attempts, what the reading verbs say of it, and where to go on. Its
// error says which attempts ended otherwise than the policy says.
func (d *demo) tell(ctx context.Context, attempts []attempt) error {
	d.tellAttempts(attempts)
	d.env.heading("\nThe same, as the reading verbs see it:\n")
	for _, verb := range [][]string{
		{"flows", "--filter", "proto tcp or rule names"},
		{"rules", "--used"},
		{"drops"},
	} {
		if err := d.show(ctx, verb); err != nil {
			return err
		}
	}
	fmt.Fprintln(d.env.Stdout, "(ttl-expired: traceroute at work)")
	if err := d.showEvent(); err != nil {
		return err
	}
	d.env.heading("\nWhere to go on:\n")
	fmt.Fprintf(d.env.Stdout, `  deploy/examples/client-server   what ran here: softdpu.yaml and policy.d, with comments to run it by hand
  softdpu lab up client-server    the lab, to stay; 'softdpu help lab'
  softdpu run -c FILE             the gateway; it changes nothing until configuration and policy are right
`)
	var wrong []string
	for i := range attempts {
		if !attempts[i].right {
			wrong = append(wrong, attempts[i].what)
		}
	}
	if len(wrong) > 0 {
		return answerNo(fmt.Errorf("demo: not as the policy says: %s", strings.Join(wrong, "; ")))
	}
	return nil
}

func (e *Env) heading(text string) { fmt.Fprint(e.Stdout, e.paint(bold, text)) }

func (d *demo) tellAttempts(attempts []attempt) {
	d.env.heading(fmt.Sprintf("%-44s %-38s %s\n", "TRIED, by IPv4 and IPv6", "WHAT CAME OF IT", "WHAT DECIDED"))
	for i := range attempts {
		a := &attempts[i]
		came := string(a.got[0])
		for _, got := range a.got[1:] {
			if got != a.got[0] {
				came += " (IPv6: " + string(got) + ")"
			}
		}
		if a.said != "" {
			came += ", " + a.said
		}
		colour, mark := green, ""
		if a.want != demoPassed {
			colour = red
		}
		if !a.right {
			mark = d.env.paint(red, "  <- the policy says: "+string(a.want))
		}
		fmt.Fprintf(d.env.Stdout, "%-44s %s %s%s\n", a.what, d.env.paint(colour, fmt.Sprintf("%-38s", came)), a.decided, mark)
	}
}

// show prints a verb's command line and runs it against the demo's gateway.
func (d *demo) show(ctx context.Context, verb []string) error {
	line := verb[0]
	for _, word := range verb[1:] {
		if strings.Contains(word, " ") {
			word = "'" + word + "'"
		}
		line += " " + word
	}
	fmt.Fprintln(d.env.Stdout, d.env.paint(bold, "$ softdpu "+line))
	env := *d.env
	env.Stderr = d.env.Stdout // its notes belong here, in order
	root := newRootCommand(&env)
	root.SetArgs(append(verb, "--socket", d.config.Control.Socket))
	return root.ExecuteContext(ctx)
}

// showEvent prints the last event of a refusal.
func (d *demo) showEvent() error {
	name := d.config.Events.File
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read the demo's events: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.Contains(lines[i], `"event_type":"drop"`) {
			fmt.Fprintf(d.env.Stdout, "%s\n%s\n", d.env.paint(bold, "$ grep drop "+filepath.Base(name)+" | tail -n 1"), lines[i])
			return nil
		}
	}
	return nil
}
