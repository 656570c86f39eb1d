package gateway

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable"
)

// Killed is what POST /v1/flows/kill answers.
type Killed struct {
	Killed int `json:"killed"` // flows
}

// kill ends the flows that the filter matches. Their next
// packets are judged as if they were the first of all.
func (r *reporter) kill(filter *Filter) (int, error) {
	now, why := dataplane.NowTick(), r.whyNotHigher()
	return r.ageing.kill(func(f *flowtable.Flow) bool {
		out := r.flow(f, now, why)
		return filter.Match(&out)
	}, endKilled)
}

// kill ends the flows that choose picks, and writes the ends of those whose rules log.
func (a *ageing) kill(choose func(*flowtable.Flow) bool, reason string) (int, error) {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.useNATPorts()()
	now := dataplane.NowTick()
	freed := func(f *flowtable.Flow) {
		l.credit(f)
		l.ended[ofNoRule].Killed++
		a.end(f, now, reason)
	}
	n := l.table.Kill(choose, func() {
		if dataplane.Grace() != nil {
			time.Sleep(graceByTime)
		}
	}, freed)
	beside, err := l.plane.KillOverflow(func(f *flowtable.Flow) bool {
		l.table.Complete(f)
		return choose(f)
	}, func(f *flowtable.Flow) {
		l.table.Complete(f)
		l.table.DropAlias(f)
		freed(f)
	})
	return n + beside, err
}

// kill answers POST /v1/flows/kill, for root alone.
func (s *server) kill(w http.ResponseWriter, req *http.Request) {
	uid, _ := peerUID(req.Context())
	text, all := strings.TrimSpace(req.Form.Get("filter")), isSet(req.Form.Get("all"))
	if (text == "") != all {
		refuse(w, http.StatusBadRequest, apiError{
			Error: "which flows to end is not clear", Hint: "give filter=EXPRESSION, or all=1 without a filter",
		})
		return
	}
	filter, err := ParseFilter(text)
	if err != nil {
		refuseFilter(w, err)
		return
	}
	n, err := s.reporter.kill(filter)
	s.log.Info("flows killed", "flows", n, "filter", text, "uid", uid)
	answer(w, func() (Killed, error) { return Killed{n}, err })
}

// refuseFilter says what is wrong with a filter, and where.
func refuseFilter(w http.ResponseWriter, err error) {
	out := apiError{Error: err.Error()}
	var fault *FilterError
	if errors.As(err, &fault) {
		out = apiError{Error: fault.Msg, Column: fault.Column, Hint: fault.Hint}
	}
	refuse(w, http.StatusBadRequest, out)
}
