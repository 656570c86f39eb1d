// Package doctor says what is wrong with a machine that is, or is to be, a gateway: kernel, rights,
// files, memory, devices, and the running daemon. It changes nothing.
//
// Run makes all the checks. Each is a function that returns findings: machine.go looks at the kernel and
// what the process may do, files.go at configuration, policy and what is written, device.go at the
// ports, netfilter.go at what packets meet that XDP hands to the kernel, daemon.go at what the gateway
// says of itself.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
)

// Severity says how bad a finding is.
type Severity string

const (
	Error   Severity = "error"   // the gateway will not start, or loses packets
	Warning Severity = "warning" // it works worse than it could, or will not at some time
	Info    Severity = "info"    // good to know
)

// A Finding is one thing that the doctor noticed.
type Finding struct {
	Severity Severity `json:"severity"`
	Check    string   `json:"check"`  // kebab-case
	Port     string   `json:"port"`   // "" if it is about no port
	Found    string   `json:"found"`  // what is so
	Remedy   string   `json:"remedy"` // "" where there is none, or Found names it
}

// Report is what Run returns.
type Report struct {
	Findings []Finding       `json:"findings"` // the worst first
	Status   *gateway.Status `json:"status"`   // of the daemon, null if none answers
}

// Worst returns the severity of the worst finding.
func (r *Report) Worst() Severity {
	if len(r.Findings) == 0 {
		return Info
	}
	return r.Findings[0].Severity
}

// Options of Run.
type Options struct {
	Config string // path of the configuration
	Socket string // of the daemon; "" is the configuration's
}

// Run looks at the machine, in the network namespace of the calling thread. What is wrong is a finding;
// an error is what kept the doctor from looking.
func Run(ctx context.Context, o Options) (*Report, error) {
	e := &examination{}
	e.kernel()
	e.rights()
	c, err := gateway.LoadConfig(o.Config)
	if err != nil {
		e.mistakes("configuration", err)
		c = nil
	}
	socket := o.Socket
	if c != nil && socket == "" {
		socket = c.Control.Socket
	}
	report := &Report{Status: e.daemon(ctx, socket)}
	if c != nil {
		if err := e.config(c, report.Status); err != nil {
			return nil, err
		}
	}
	report.Findings = e.findings
	slices.SortStableFunc(report.Findings, func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
	return report, nil
}

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Info}, s) }

// An examination collects findings.
type examination struct{ findings []Finding }

// find adds a finding about the machine. The remedy may be "".
func (e *examination) find(s Severity, check, remedy, format string, args ...any) {
	e.findings = append(e.findings, Finding{Severity: s, Check: check, Found: fmt.Sprintf(format, args...), Remedy: remedy})
}

// port adds a finding about a port.
func (e *examination) port(s Severity, check, port, remedy, format string, args ...any) {
	e.find(s, check, remedy, format, args...)
	e.findings[len(e.findings)-1].Port = port
}

// mistakes adds what is wrong with what people wrote, one finding each.
func (e *examination) mistakes(check string, err error) {
	var errs firewall.Errors
	if !errors.As(err, &errs) {
		e.find(Error, check, "", "%v", err)
		return
	}
	for i := range errs {
		e.find(Error, check, "", "%v", errs[i].Error())
	}
}

func (e *examination) warnings(check string, warnings firewall.Errors) {
	for i := range warnings {
		e.find(Warning, check, "", "%v", warnings[i].Error())
	}
}

// config looks at all that the configuration names.
func (e *examination) config(c *gateway.Config, status *gateway.Status) error {
	e.warnings("configuration", c.Warnings)
	rules, err := gateway.CheckPolicy(c, time.Now())
	if err != nil {
		e.mistakes("policy", err)
		rules = nil
	} else {
		e.warnings("policy", rules.Warnings)
	}
	e.files(c)
	huge, _ := readNumber(freeHugePages) // without the file there are none
	e.workersWanted(&c.Workers, readCPUs(onlineCPUs), huge)
	if status == nil {
		free, where := available()
		e.memory(c, rules, free, where)
	}
	i, err := dataplane.NewInspector()
	if err != nil {
		return nil // the kernel is too old, which has been found
	}
	e.devices(i, c, gateway.PortConfigs(c, rules), status)
	e.netfilter()
	if err := i.Close(); err != nil {
		return fmt.Errorf("look at devices: %w", err)
	}
	return nil
}
