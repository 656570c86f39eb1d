package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/gateway"
)

func newStatusCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say what the running gateway does, and what keeps it from doing better",
		Long: `Say what runs and since when, which configuration and policy are loaded and whether the files on disk
still are what was loaded, how full the flow table is, how each port runs and why not better.

The exit code is 0 whatever the state is, and 2 if no daemon answers.`,
		Example: `  sudo softdpu status
  sudo softdpu status -o json`,
		Args: takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := gateway.NewClient(*socket).Status(cmd.Context())
		if err != nil {
			return err
		}
		if format.json {
			return printJSON(env.Stdout, s)
		}
		return writeStatus(env.Stdout, s, time.Now(), env.Width())
	}
	return cmd
}

const (
	statusLabel = 15 // columns before what is said
	statusWidth = 80 // of lines, where there is no terminal
	barWidth    = 20
)

// writeStatus prints a status for people, in lines of a terminal's width.
func writeStatus(w io.Writer, s *gateway.Status, now time.Time, width int) error {
	if width == 0 {
		width = statusWidth
	}
	p := &statusPrinter{width: width}
	ago := func(at time.Time) string { return interval(max(0, now.Sub(at).Seconds())) }

	p.say("softdpu", "%s, process %d, runs for %s on Linux %s", s.Version, s.PID, ago(s.Started), s.Kernel)
	for _, line := range startText(&s.Start, now) {
		p.say("", "%s", line)
	}
	p.say("Program", "tag %s", s.Program)
	p.say("Configuration", "%s", s.Config)
	p.say("Policy", "%s", s.Policy.Path)
	p.say("", "%s, %s passed, epoch %d, loaded %s ago", rulesAndNAT(s.Policy.Rules, s.Policy.NAT), quantity(s.Policy.Tests, "test"), s.Policy.Epoch, ago(s.Policy.Loaded))
	p.say("", "sha256 %.16s", s.Policy.Hash)
	if at := s.Policy.NextExpiry; at != nil {
		p.say("", "a rule expires in %s", interval(max(0, at.Sub(now).Seconds())))
	}
	if s.Policy.Entry != 0 {
		p.say("", "entry %d of 'softdpu policy history'", s.Policy.Entry)
	}
	if u := s.Policy.Unconfirmed; u != nil {
		p.say("", "NOT CONFIRMED: entry %d comes back in %s unless you say 'softdpu policy confirm'", u.Before, interval(u.LeftS))
	}
	if b := s.Policy.RolledBack; b != nil {
		p.say("", "ROLLED BACK to entry %d %s ago%s: a restart and SIGHUP keep it until the files change, or 'softdpu policy apply'", b.To, ago(b.Time), rolledBackBy(b))
	}
	if s.Policy.HistoryError != "" {
		p.say("", "HISTORY: %s", s.Policy.HistoryError)
	}
	if len(s.Differs) == 0 {
		p.say("Files", "as they were loaded")
	} else {
		p.say("Files", "DIFFER from what is loaded and goes on running:")
		for _, f := range s.Differs {
			p.say("", "%s: %s", f.File, f.How)
		}
	}

	if n := s.Policy.RuntimeEntries; n > 0 {
		p.say("Sets", "%s changed at runtime, beside the files: 'softdpu set list' shows them", quantityOf(n, "entry", "entries"))
	}

	t := &s.Table
	p.say("Flows", "%s of %d", bar(t.Flows, t.FlowsMax), t.FlowsMax)
	if t.Translated > 0 {
		p.say("", "%s translated, each in two places of the table", count(uint64(t.Translated)))
	}
	p.say("Half-open", "%s of %d", bar(t.HalfOpen, t.HalfOpenMax), t.HalfOpenMax)
	p.say("", "%s", counters("created", t.Created, "aged", t.Aged, "killed", t.Killed, "evicted", t.Evicted, "refused", t.Refused,
		"revived", t.Revived, "reopened", t.Reopened, "overflowed", t.Overflowed))
	if f := &s.Fragments; *f != (gateway.FragmentStatus{}) {
		p.say("Fragments", "before their first: %s", counters("held", f.Held, "released", f.Released, "expired", f.Expired))
	}
	p.say("Events", "%s", s.Events.File)
	p.say("", "%s", counters("written", s.Events.Written, "unlogged", s.Events.Unlogged, "lost", s.Events.Lost))

	if w := &s.Workers; w.Running {
		p.say("Workers", "%d in %s mode", w.Workers, w.Mode)
		for _, need := range w.NeededBy {
			p.say("", "for %s", need)
		}
		for _, line := range attemptTexts(w.Attempts) {
			p.say("", "%s", line)
		}
	}

	if c := s.Capture; c != nil {
		p.say("Capture", "by process %d of user %d for %s: %s captured, %d lost", c.PID, c.UID, ago(c.Since), quantity(int(c.Captured), "packet"), c.Lost)
	}

	p.b.WriteByte('\n')
	columns := []string{"PORT", "DEVICE", "DRIVER", "LINK", "MODE", "ZONES", ">MTU"}
	if slices.ContainsFunc(s.Ports, func(p gateway.PortStatus) bool { return p.MSSClamp != 0 }) {
		columns = append(columns, ">MSS")
	}
	ports := newTable(columns...)
	for i := range s.Ports {
		port := &s.Ports[i]
		link := "DOWN "
		switch {
		case port.Missing != "":
			link = "MISSING "
		case port.Up:
			link = "up "
		}
		mss := "-" // not shown if no port has one
		if port.MSSClamp != 0 {
			mss = fmt.Sprint(port.MSSClamp)
		}
		ports.add(port.Name, port.Device, driver(port), link+ago(port.Since), port.Mode, zones(port), port.MTU, mss)
	}
	if err := ports.write(&p.b, width); err != nil {
		return err
	}
	notes := statusNotes(s, now)
	if len(notes) > 0 {
		p.b.WriteByte('\n')
	}
	for _, n := range notes {
		p.wrap("! ", "  ", n)
	}
	if _, err := io.WriteString(w, p.b.String()); err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	return nil
}

// startText says what a gateway has of the run before it.
func startText(i *gateway.Inheritance, now time.Time) (lines []string) {
	switch i.How {
	case "take-over":
		lines = append(lines, "took over flows and counters of the run before")
	case "conversion":
		lines = append(lines, fmt.Sprintf("took over the run before; %s moved into tables of another size, %d left behind", quantity(i.Carried, "flow"), i.Left))
	case "afresh":
		lines = append(lines, "began afresh over the run before: "+i.Why)
	}
	if until := i.PickUpUntil; until != nil {
		lines = append(lines, "picks up TCP that is under way for another "+interval(max(0, until.Sub(now).Seconds())))
	}
	return lines
}

// rolledBackBy says who has rolled back, or that nobody has.
func rolledBackBy(b *gateway.RolledBackStatus) string {
	switch {
	case b.User != "":
		return " by " + b.User
	case b.By == "not-confirmed":
		return ", because nobody confirmed the change"
	}
	return ""
}

// statusNotes collects what runs below its best, that of ports with their names.
func statusNotes(s *gateway.Status, now time.Time) (notes []string) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Missing != "" {
			notes = append(notes, fmt.Sprintf("port %s: %s; it is taken back by itself", p.Name, p.Missing))
		}
		if p.WhyNotNative != "" {
			notes = append(notes, fmt.Sprintf("port %s runs in generic mode: %s", p.Name, p.WhyNotNative))
		}
		if p.Guard == "clsact" {
			notes = append(notes, fmt.Sprintf("port %s has its egress guard in a clsact qdisc: tcx needs Linux 6.6", p.Name))
		}
		for _, n := range p.Notes {
			notes = append(notes, fmt.Sprintf("port %s: %s", p.Name, n))
		}
	}
	for _, id := range s.Workers.Silent {
		notes = append(notes, fmt.Sprintf("worker %d gives no sign of life: its flows are dropped (worker-full) or go on in XDP, as their rules say", id))
	}
	notes = append(notes, stallTexts(s.Workers.Stalls, now)...)
	return append(notes, s.Notes...)
}

func driver(p *gateway.PortStatus) string {
	if p.Driver != "" {
		return p.Driver
	}
	return p.Kind
}

// zones names a port's zones, those of VLANs with their ids, and its inline peer.
func zones(p *gateway.PortStatus) string {
	var all []string
	if p.Zone != "" {
		all = append(all, p.Zone)
	}
	for _, id := range slices.Sorted(maps.Keys(p.VLANs)) {
		all = append(all, fmt.Sprintf("%s(%d)", p.VLANs[id], id))
	}
	text := strings.Join(all, " ")
	if p.Peer != "" {
		text += " <> " + p.Peer
	}
	return text
}

// bar draws how much of something is used, with percentage and number.
func bar(used, most int64) string {
	share := 0.0
	if most > 0 {
		share = min(1, max(0, float64(used)/float64(most)))
	}
	full := int(share*barWidth + 0.5)
	if used > 0 && full == 0 {
		full = 1
	}
	return fmt.Sprintf("[%s%s] %3.0f %%  %d", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), 100*share, used)
}

// counters lists names with their numbers; what is 0 is left out, but for the first.
func counters(pairs ...any) string {
	var out []string
	for i := 0; i < len(pairs); i += 2 {
		if n := pairs[i+1].(uint64); n > 0 || i == 0 {
			out = append(out, fmt.Sprintf("%s %s", count(n), pairs[i]))
		}
	}
	return strings.Join(out, ", ")
}

// A statusPrinter writes labelled lines that are broken at spaces.
type statusPrinter struct {
	b     strings.Builder
	width int
}

func (p *statusPrinter) say(label, format string, args ...any) {
	p.wrap(fmt.Sprintf("%-*s", statusLabel, label), strings.Repeat(" ", statusLabel), fmt.Sprintf(format, args...))
}

// wrap writes text behind first, and what does not fit behind next in further lines.
func (p *statusPrinter) wrap(first, next, text string) {
	line := first
	empty := true
	for _, word := range strings.Split(visible(text), " ") {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > p.width {
			p.b.WriteString(strings.TrimRight(line, " ") + "\n")
			line, empty = next, true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	p.b.WriteString(strings.TrimRight(line, " ") + "\n")
}
