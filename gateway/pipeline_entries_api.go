package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
)

// pipelineFound is how many entries an answer has unless more are asked for.
const pipelineFound = 1000

// showEntries answers GET /v1/pipeline/entries.
func (d *pipelineDesk) showEntries(w http.ResponseWriter, req *http.Request) {
	q := &pipelineQuestion{pipe: req.Form.Get("pipe"), name: req.Form.Get("name"), match: strings.Fields(req.Form.Get("match")), limit: pipelineFound}
	for _, p := range []struct {
		name        string
		into        *int
		least, most int
	}{{"limit", &q.limit, 1, maxPipelineFound}, {"after", &q.after, 0, 1 << 30}} {
		text := req.Form.Get(p.name)
		if text == "" {
			continue
		}
		var err error
		if *p.into, err = strconv.Atoi(text); err != nil || *p.into < p.least || *p.into > p.most {
			refuse(w, http.StatusBadRequest, apiError{Error: fmt.Sprintf("%s %q is no number from %d to %d", p.name, shortened(text), p.least, p.most), Hint: "leave it out, or go on with next of the answer before"})
			return
		}
	}
	found, err := d.query(q)
	answerPipeline(w, found, err)
}

// changeEntries answers POST /v1/pipeline/entries, once the changes are in force.
func (d *pipelineDesk) changeEntries(w http.ResponseWriter, req *http.Request) {
	who, query := peerCaller(req.Context()), req.URL.Query()
	c := &pipelineCall{pipe: query.Get("pipe"), change: query.Get("change"), comment: query.Get("comment"), by: cmp.Or(who.Login, who.User)}
	if err := checkComment(c.comment); err != nil {
		refuse(w, http.StatusBadRequest, apiError{Error: err.Error(), Hint: commentHint})
		return
	}
	names := []string{""}
	for _, change := range pipefile.Changes {
		names = append(names, change.Name)
	}
	if !slices.Contains(names, c.change) {
		refuse(w, http.StatusBadRequest, apiError{Error: fmt.Sprintf("change %q is none", shortened(c.change)), Hint: "it is add, update or remove, or left out of a map of lists"})
		return
	}
	var err error
	if c.text, err = io.ReadAll(req.Body); err != nil {
		refuse(w, http.StatusBadRequest, apiError{Error: fmt.Sprintf("read the entries: %v", err), Hint: "send them as a file has them"})
		return
	}
	done, err := d.edit(c)
	answerPipeline(w, done, err)
}

// answerPipeline answers with what was asked for, or says why not.
func answerPipeline[T any](w http.ResponseWriter, v T, err error) {
	var unknown *unknownPipe
	var errs firewall.Errors
	switch {
	case errors.As(err, &unknown):
		refuse(w, http.StatusNotFound, apiError{Error: unknown.why.Msg, Hint: unknown.why.Hint})
	case errors.As(err, &errs) && len(errs) == 1 && errs[0].Line == 0:
		refuse(w, http.StatusUnprocessableEntity, apiError{Error: errs[0].Msg, Hint: errs[0].Hint})
	case errors.As(err, &errs):
		refuse(w, http.StatusUnprocessableEntity, apiError{Error: errs.Error(), Errors: Mistakes(errs)})
	case errors.Is(err, dataplane.ErrNoPolicy), errors.Is(err, dataplane.ErrNoPipeline):
		refuse(w, http.StatusServiceUnavailable, apiError{Error: err.Error(), Hint: "ask again when it runs"})
	default:
		answer(w, func() (T, error) { return v, err })
	}
}

// PipelineEntries asks for entries of a pipe of the pipeline in force, of a name and with matches as in "ipv4.src=10.0.0.1" if these are
// given: at most `limit`, behind `after` others, which is 0 or the answer's Next.
func (c *Client) PipelineEntries(ctx context.Context, pipe, name string, match []string, after, limit int) (found *PipelineEntries, err error) {
	query := url.Values{"pipe": {pipe}, "after": {strconv.Itoa(after)}, "limit": {strconv.Itoa(limit)}}
	if name != "" {
		query.Set("name", name)
	}
	if len(match) > 0 {
		query.Set("match", strings.Join(match, " "))
	}
	return found, c.get(ctx, "pipeline/entries", query, &found)
}

// ChangePipelineEntries changes entries of a pipe of the pipeline in force and returns what became of each: all of the list in text in one way
// ("add", "update" or "remove"), or "" for a map of such lists. The error is a firewall.Errors if the text is wrong; then
// nothing was changed. It is for root.
func (c *Client) ChangePipelineEntries(ctx context.Context, pipe, change, comment string, text io.Reader) (done *PipelineEdited, err error) {
	query := url.Values{"pipe": {pipe}}
	if change != "" {
		query.Set("change", change)
	}
	if comment != "" {
		query.Set("comment", comment)
	}
	return done, c.send(ctx, http.MethodPost, "pipeline/entries", query, text, &done)
}
