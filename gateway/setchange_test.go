package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

func TestSetTrial(t *testing.T) {
	p, err := firewall.Parse([]firewall.Source{{Name: "p.yaml", Text: []byte(`apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan]}}
sets: {threats: {type: prefix, entries: [192.0.2.0/24, 198.51.100.7]}}
rules: [{name: no, from: {set: threats}, to: any, action: deny}]
`)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := newSetIndex(p)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	sets := liveSets{}
	call := func(c setCall) (*SetChanged, error) {
		t.Helper()
		c.set, c.by = "threats", "root"
		if err := c.check(); err != nil {
			return nil, err
		}
		next, done, err := x.try(sets, &c, now)
		if err == nil {
			sets = next
		}
		return done, err
	}
	for _, tt := range []struct {
		name                      string
		call                      setCall
		added, removed, unchanged int
		entries                   int
		note                      string
	}{
		{"add", setCall{SetChange: SetChange{Entries: []string{"203.0.113.1", " 203.0.113.2 ", "203.0.113.1/32"}}}, 2, 0, 1, 4, "203.0.113.1 is given twice"},
		{"again", setCall{SetChange: SetChange{Entries: []string{"203.0.113.1"}, For: "1h"}}, 0, 0, 1, 4, "is in the set already, for good, by root"},
		{"what is written", setCall{SetChange: SetChange{Entries: []string{"198.51.100.7"}}}, 0, 0, 1, 4, "by p.yaml:4"},
		{"take it out", setCall{SetChange: SetChange{Entries: []string{"198.51.100.7"}, For: "2d"}, remove: true}, 0, 1, 0, 3, "it comes back by itself"},
		{"and more of it", setCall{SetChange: SetChange{Entries: []string{"192.0.2.0/25"}}}, 1, 0, 0, 4, ""},
		{"inside another", setCall{SetChange: SetChange{Entries: []string{"192.0.2.0/25"}}, remove: true}, 0, 1, 0, 3, "192.0.2.0/25 still matches, by 192.0.2.0/24 (p.yaml:4)"},
		{"bring it back", setCall{SetChange: SetChange{Entries: []string{"198.51.100.7"}}}, 1, 0, 0, 4, ""},
		{"nothing", setCall{SetChange: SetChange{Entries: []string{"10.0.0.1"}}, remove: true}, 0, 0, 1, 4, "10.0.0.1 is not in the set"},
		{"all", setCall{SetChange: SetChange{All: true}, remove: true}, 0, 2, 0, 2, ""},
	} {
		done, err := call(tt.call)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if done.Added != tt.added || done.Removed != tt.removed || done.Unchanged != tt.unchanged || done.Entries != tt.entries || !strings.Contains(strings.Join(done.Notes, "\n"), tt.note) {
			t.Errorf("%s: %+v", tt.name, done)
		}
	}
	if len(sets) != 0 {
		t.Errorf("left are %+v", sets)
	}
	for name, tt := range map[string]struct {
		c    setCall
		want string
	}{
		"a long entry":    {setCall{SetChange: SetChange{Entries: []string{"192.0.2.1", strings.Repeat("1", 1<<20)}}}, "entries:2:1: \"1111"},
		"many mistakes":   {setCall{SetChange: SetChange{Entries: make([]string, 1000)}}, "more than 20 wrong entries"},
		"a part of one":   {setCall{SetChange: SetChange{Entries: []string{"192.0.2.9"}}, remove: true}, "it lies in 192.0.2.0/24 (p.yaml:4)"},
		"one good, a bad": {setCall{SetChange: SetChange{Entries: []string{"10.0.0.1", "x"}}}, "is not an address"},
	} {
		_, err := call(tt.c)
		var errs firewall.Errors
		if !errors.As(err, &errs) || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 10_000 || len(sets) != 0 {
			t.Errorf("%s: says %.500v, left are %+v", name, err, sets)
		}
	}
}

// What is no change never reaches the gateway.
func TestSetBodies(t *testing.T) {
	s := &server{log: slog.New(slog.DiscardHandler), change: func(context.Context, *setCall) (*SetChanged, error) {
		t.Error("it was tried")
		return nil, errStopping
	}}
	for body, want := range map[string]int{
		"": 400, "{": 400, "[]": 400, "null x": 400, `{"entries":["192.0.2.1"]} {}`: 400, `{"entries":["192.0.2.1"],"fro":1}`: 400, "\x00\xff": 400,
		`{"entries":[]}`: 422, `null`: 422, `{"entries":["192.0.2.1"],"for":"-1h"}`: 422, `{"entries":["192.0.2.1"],"comment":"a\u0000"}`: 422,
		`{"entries":["` + strings.Repeat("1", maxSetBody) + `"]}`: 413,
	} {
		w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/sets/threats/add", strings.NewReader(body))
		if readBody(w, req, askPatience) {
			s.changeSet(false)(w, req)
		}
		if w.Code != want || !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("%.40q: %d %.200s, want %d", body, w.Code, w.Body, want)
		}
	}
}
