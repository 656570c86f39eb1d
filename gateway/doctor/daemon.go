package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/softdpu/softdpu/gateway"
)

// How long the daemon may take to answer, and how full its table may be.
const (
	answerWithin = 5 * time.Second
	tableShare   = 0.85
)

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
	for _, t := range []struct {
		what      string
		used, max int64
		remedy    string
	}{
		{"flows", s.Table.Flows, s.Table.FlowsMax, "raise flows.max: a full table refuses new flows"},
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
		e.find(Warning, "events", "make room where events.file lies", "%d events were lost since the start: the file did not take them", s.Events.Lost)
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
	for _, n := range s.Notes {
		e.find(Info, "note", "", "%s", n)
	}
	return s
}
