package doctor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/softdpu/softdpu/gateway"
)

// How long the daemon may take to answer, and how full its table may be.
const (
	answerWithin = 5 * time.Second
	tableShare   = 0.85
)

// history looks at what of the policy waits for somebody.
func (e *examination) history(p *gateway.PolicyStatus) {
	if u := p.Unconfirmed; u != nil {
		e.find(Warning, "policy-unconfirmed", "`softdpu policy confirm` keeps it, `softdpu policy rollback` takes it back at once",
			"the policy in force comes back to entry %d of the history in %.0f s", u.Before, u.LeftS)
	}
	if b := p.RolledBack; b != nil {
		e.find(Warning, "policy-rolled-back", "correct the files and `softdpu policy apply` them; until then a restart goes on with what is in force",
			"the policy in force is that of entry %d of the history, not that of the files, since %s", b.To, b.Time.Format(time.RFC3339))
	}
	if p.HistoryError != "" {
		e.find(Warning, "history", "see that the directory of `state` can be written by the gateway alone", "the history of the policy cannot be relied on: %s", p.HistoryError)
	}
}

// daemon asks the running gateway how it is. It returns nil if none answers.
func (e *examination) daemon(ctx context.Context, socket string) *gateway.Status {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	s, err := gateway.NewClient(socket).Status(ctx)
	switch {
	case errors.Is(err, gateway.ErrNoDaemon):
		e.find(Info, "daemon", "", "no gateway runs: what only a running one knows is not looked at")
		return nil
	case err != nil:
		e.find(Warning, "daemon", "", "%v", err)
		return nil
	}
	for _, f := range s.Differs {
		e.find(Warning, "files-differ", "load the files, or put back what is loaded", "%s is not what the running gateway has loaded: %s", f.File, f.How)
	}
	e.history(&s.Policy)
	for _, t := range []struct {
		what      string
		used, max int64
		remedy    string
	}{
		{"places for flows", s.Table.Flows + s.Table.Translated, s.Table.FlowsMax, "raise flows.max: a full table refuses new flows"},
		{"half-open flows", s.Table.HalfOpen, s.Table.HalfOpenMax, "`softdpu flows --watch --sort newest` shows who opens them"},
	} {
		if t.max > 0 && float64(t.used) > tableShare*float64(t.max) {
			e.find(Warning, "table-use", t.remedy, "%d of %d %s are in use", t.used, t.max, t.what)
		}
	}
	if s.Table.Refused > 0 {
		e.find(Warning, "table-use", "raise flows.max, or find the flood", "%d new flows were refused since the start: the table was full", s.Table.Refused)
	}
	if s.Events.Lost > 0 {
		e.find(Warning, "events", "make room where events.file lies, if it is full", "%d events were lost since the start: the file did not take them, or the run before was killed with them", s.Events.Lost)
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		switch {
		case p.Missing != "":
			e.port(Error, "port-missing", p.Name, "`ip link` lists devices; the gateway takes it back by itself", "%s, since %s", p.Missing, p.Since.Format(time.RFC3339))
		case !p.Up:
			e.port(Error, "port-down", p.Name, "`ip link` shows why", "device %s is down since %s", p.Device, p.Since.Format(time.RFC3339))
		}
		if p.WhyNotNative != "" {
			e.port(Warning, "native-xdp", p.Name, "", "it runs in generic mode, several times slower: %s", p.WhyNotNative)
		}
		for _, n := range p.Notes {
			e.port(Info, "note", p.Name, "", "%s", n)
		}
	}
	if s.Workers.Running {
		crew, err := gateway.NewClient(socket).Workers(ctx)
		if err != nil {
			e.find(Warning, "daemon", "", "%v", err)
			return s
		}
		e.crew(crew)
	}
	nat := e.translation(ctx, socket, s)
	for _, n := range s.Notes {
		if !slices.Contains(nat, n) {
			e.find(Info, "note", "", "%s", n)
		}
	}
	return s
}

// translation looks for addresses that will have no port left soon, ports without address and hosts that may have no
// more flows. It returns what it found.
func (e *examination) translation(ctx context.Context, socket string, of *gateway.Status) []string {
	if of.Table.Translated == 0 && of.Policy.NAT == 0 {
		return nil
	}
	s, err := gateway.NewClient(socket).NAT(ctx)
	if err != nil {
		e.find(Warning, "daemon", "", "%v", err)
		return nil
	}
	notes := gateway.NATNotes(s.Rules)
	for _, n := range notes {
		e.find(Warning, "nat-ports", "give it more addresses or ports; `softdpu flows --filter 'nat NAME'` shows who has them", "%s", n)
	}
	without := gateway.NATAddressNotes(s.Rules)
	for _, n := range without {
		e.find(Warning, "nat-address", "give the port's device one (`ip addr add`, DHCP) that is global, primary and not deprecated: `softdpu nat` lists what counts", "%s", n)
	}
	near := gateway.NATSourceNotes(s.Rules)
	for _, n := range near {
		e.find(Warning, "nat-sources", "look what the host does: `softdpu flows --filter 'src ADDRESS'`; if it needs more, raise the rule's source_limit", "%s", n)
	}
	return slices.Concat(notes, without, near)
}
