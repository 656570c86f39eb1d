package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/softdpu/softdpu/firewall/pipes"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// PolicyPipes are the gateway's own pipes: what the policy in force and its nat rules are, as pipes.
type PolicyPipes struct {
	Epoch uint32      `json:"epoch"` // of the policy
	Runs  pipe.Report `json:"pipeline"`
}

// policyPipes describes the policy in force as pipes, with so many entries of each.
func (r *reporter) policyPipes(most int) (*PolicyPipes, error) {
	rules := r.rules.Load()
	sums, last, err := r.ledger.totals(nil)
	if err != nil {
		return nil, err
	}
	translated, err := r.plane.NATCounters()
	if err != nil {
		return nil, err
	}
	clock, now := newEveClock(), time.Now()
	out := &PolicyPipes{}
	out.Epoch, _ = r.plane.Epoch()
	out.Runs = *rules.pipes(most).Report(&pipes.Counts{
		Rules: func(id uint32) (c pipes.Count) {
			if int(id) < len(sums) {
				c = pipes.Count{Packets: sums[id].packets, Bytes: sums[id].bytes, Flows: sums[id].flows, Judged: sums[id].judged}
			}
			if int(id) < len(last) && last[id] != 0 {
				idle := max(0, now.Sub(clock.at(last[id])).Seconds())
				c.IdleS = &idle
			}
			return c
		},
		NAT: func(id uint32) uint64 { return translated[rules.natRule(id).Name].Flows },
	})
	return out, nil
}

// pipes describes the policy as pipes, with so many entries of each.
func (r *Ruleset) pipes(most int) *pipes.Policy {
	return pipes.New(r.Compiled, r.ACL, r.NAT, pipes.Options{Inline: r.config.InlinePorts(), Most: most})
}

// InlinePorts are the names of the ports of inline pairs.
func (c *Config) InlinePorts() (names []string) {
	for _, pair := range c.Inline {
		names = append(names, pair[0], pair[1])
	}
	return names
}

// showPolicy answers GET /v1/pipeline/policy.
func (r *reporter) showPolicy(w http.ResponseWriter, req *http.Request) {
	most, err := entriesAsked(req)
	if err != nil {
		refuse(w, http.StatusBadRequest, apiError{Error: err.Error(), Hint: "write a number"})
		return
	}
	answer(w, func() (*PolicyPipes, error) { return r.policyPipes(most) })
}

// entriesAsked is how many entries of a pipe a caller wants to see.
func entriesAsked(req *http.Request) (int, error) {
	text := req.Form.Get("entries")
	if text == "" {
		return pipelineEntries, nil
	}
	most, err := strconv.Atoi(text)
	if err != nil || most < 0 {
		return 0, fmt.Errorf("entries %q is not how many entries of a pipe to list", shortened(text))
	}
	return most, nil
}

// PolicyPipes asks for the gateway's own pipes, with so many entries of each.
func (c *Client) PolicyPipes(ctx context.Context, entries int) (p *PolicyPipes, err error) {
	return p, c.get(ctx, "pipeline/policy", url.Values{"entries": {strconv.Itoa(entries)}}, &p)
}
