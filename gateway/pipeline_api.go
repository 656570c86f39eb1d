package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
)

// register adds the verbs to those that a server answers.
func (d *pipelineDesk) register(mux *router) {
	mux.HandleFunc("GET /v1/pipeline", d.show)
	mux.HandleFunc("POST /v1/pipeline", changes(d.change))
	mux.HandleFunc("DELETE /v1/pipeline", changes(d.forget))
	mux.HandleFunc("GET /v1/pipeline/entries", d.showEntries)
	mux.HandleFunc("POST /v1/pipeline/entries", changes(d.changeEntries))
	mux.HandleFunc("GET /v1/pipeline/trace", forRoot("trace packets", d.follow))
}

// show answers GET /v1/pipeline: null without a pipeline.
func (d *pipelineDesk) show(w http.ResponseWriter, req *http.Request) {
	most, err := entriesAsked(req)
	if err != nil {
		refuse(w, http.StatusBadRequest, apiError{Error: err.Error(), Hint: "write a number"})
		return
	}
	answer(w, func() (*Pipeline, error) { return d.report(most) })
}

// change answers POST /v1/pipeline, once the pipeline is in force.
func (d *pipelineDesk) change(w http.ResponseWriter, req *http.Request) {
	who, comment := peerCaller(req.Context()), req.URL.Query().Get("comment")
	if err := checkComment(comment); err != nil {
		refuse(w, http.StatusBadRequest, apiError{Error: err.Error(), Hint: commentHint})
		return
	}
	text, err := io.ReadAll(req.Body)
	if err != nil {
		refuse(w, http.StatusBadRequest, apiError{Error: fmt.Sprintf("read the pipeline: %v", err), Hint: "send it as a file has it"})
		return
	}
	done, err := d.apply("pipeline", text, cmp.Or(who.Login, who.User), comment)
	var errs firewall.Errors
	switch {
	case errors.As(err, &errs):
		refuse(w, http.StatusUnprocessableEntity, apiError{Error: errs.Error(), Errors: Mistakes(errs)})
	case errors.Is(err, dataplane.ErrNoPolicy):
		refuse(w, http.StatusServiceUnavailable, apiError{Error: err.Error(), Hint: "ask again when it runs"})
	default:
		answer(w, func() (*PipelineApplied, error) { return done, err })
	}
}

// PipelineRemoved says which pipeline was taken away.
type PipelineRemoved struct {
	Name string `json:"name"` // "" if there was none
}

func (d *pipelineDesk) forget(w http.ResponseWriter, req *http.Request) {
	who := peerCaller(req.Context())
	answer(w, func() (*PipelineRemoved, error) {
		name, err := d.remove(cmp.Or(who.Login, who.User))
		return &PipelineRemoved{name}, err
	})
}

// follow answers GET /v1/pipeline/trace with a walk a line, as they come.
func (d *pipelineDesk) follow(w http.ResponseWriter, req *http.Request) {
	e := json.NewEncoder(w)
	began := false
	err := d.trace(req.Context(), func(walk *PipelineWalk) error {
		if !began {
			w.Header().Set("Content-Type", "application/x-ndjson")
			began = true
		}
		if err := e.Encode(walk); err != nil {
			return err
		}
		return http.NewResponseController(w).Flush()
	})
	if err != nil && !began {
		refuse(w, http.StatusConflict, apiError{Error: err.Error(), Hint: "`softdpu pipeline show` says what is in force"})
	}
}

// Pipeline asks for the pipeline in front of the policy, with so many entries of each pipe; nil if there is none.
func (c *Client) Pipeline(ctx context.Context, entries int) (p *Pipeline, err error) {
	return p, c.get(ctx, "pipeline", url.Values{"entries": {strconv.Itoa(entries)}}, &p)
}

// ApplyPipeline has a pipeline stand in front of the policy, in the place of another one, and returns when it is in force. The error is
// a firewall.Errors if the text is wrong. It is for root.
func (c *Client) ApplyPipeline(ctx context.Context, comment string, text io.Reader) (done *PipelineApplied, err error) {
	query := url.Values{}
	if comment != "" {
		query.Set("comment", comment)
	}
	return done, c.send(ctx, http.MethodPost, "pipeline", query, text, &done)
}

// RemovePipeline takes the pipeline away. It is for root.
func (c *Client) RemovePipeline(ctx context.Context) (done *PipelineRemoved, err error) {
	return done, c.send(ctx, http.MethodDelete, "pipeline", nil, nil, &done)
}

// TracePipeline calls fn for each packet that goes through the pipeline, until ctx is done or fn fails. It is for root.
func (c *Client) TracePipeline(ctx context.Context, fn func(*PipelineWalk) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://softdpu/v1/pipeline/trace", nil)
	if err != nil {
		return fmt.Errorf("ask for packets: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain("packets", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c.fault("packets", nil, resp)
	}
	for d := json.NewDecoder(resp.Body); ; {
		walk := new(PipelineWalk)
		if err := d.Decode(walk); err != nil {
			if errors.Is(err, io.EOF) || ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read packets: %w", err)
		}
		if err := fn(walk); err != nil {
			return err
		}
	}
}
