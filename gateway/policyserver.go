package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/softdpu/softdpu/firewall"
)

// commentMost is how long a comment may be, in characters.
const commentMost = 500

var commentHint = fmt.Sprintf("a comment is one line of at most %d characters", commentMost)

// A policyDesk takes what is asked of the policy by HTTP.
type policyDesk struct {
	g      *running
	differ *differ
}

// register adds the verbs to those that a server answers.
func (d *policyDesk) register(mux *router) {
	mux.HandleFunc("POST /v1/reload", changes(d.reload))
	mux.HandleFunc("POST /v1/policy/rollback", changes(d.rollback))
	mux.HandleFunc("POST /v1/policy/confirm", changes(d.confirm))
	mux.HandleFunc("GET /v1/policy/history", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, func() ([]HistoryEntry, error) { return d.g.history.list(), nil })
	})
	mux.HandleFunc("GET /v1/policy/diff", d.diff)
}

// change reads who asks for what. It refuses what is not clear, and then returns nil.
func (d *policyDesk) change(w http.ResponseWriter, req *http.Request, by string) *change {
	q := &change{by: by, who: peerCaller(req.Context()), comment: req.Form.Get("comment")}
	if err := checkComment(q.comment); err != nil {
		refuse(w, http.StatusBadRequest, apiError{Error: err.Error(), Hint: commentHint})
		return nil
	}
	return q
}

// checkComment holds comments to one line that can be shown everywhere.
func checkComment(text string) error {
	if n := utf8.RuneCountInString(text); n > commentMost {
		return fmt.Errorf("the comment has %d characters, more than %d", n, commentMost)
	}
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return fmt.Errorf("the comment holds %q: write one line of text", r)
		}
	}
	return nil
}

// number reads a parameter that is the number of an entry; 0 if it is left out.
func number(w http.ResponseWriter, req *http.Request, name string) (n int, ok bool) {
	text := req.Form.Get(name)
	if text == "" {
		return 0, true
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		refuse(w, http.StatusBadRequest, apiError{Error: fmt.Sprintf("%s %q is not the number of an entry", name, shortened(text)), Hint: "GET /v1/policy/history has the entries"})
		return 0, false
	}
	return n, true
}

func (d *policyDesk) reload(w http.ResponseWriter, req *http.Request) {
	q := d.change(w, req, bySocket)
	if q == nil {
		return
	}
	if text := req.Form.Get("confirm"); text != "" {
		var err error
		if q.confirm, err = time.ParseDuration(text); err != nil || q.confirm < confirmLeast || q.confirm > confirmMost {
			refuse(w, http.StatusBadRequest, apiError{
				Error: fmt.Sprintf("confirm %q is not a duration between %s and %s", shortened(text), short(confirmLeast), short(confirmMost)), Hint: "write it as in 2m",
			})
			return
		}
	}
	d.carryOut(w, req.Context(), func() (*carriedOut, error) { return d.g.reload(q) })
}

func (d *policyDesk) rollback(w http.ResponseWriter, req *http.Request) {
	q := d.change(w, req, byRollback)
	if q == nil {
		return
	}
	if entry, ok := number(w, req, "entry"); ok {
		d.carryOut(w, req.Context(), func() (*carriedOut, error) { return d.g.rollback(q, entry) })
	}
}

// carryOut has the gateway do it and answers 409 or 422 if it cannot be put in force.
func (d *policyDesk) carryOut(w http.ResponseWriter, ctx context.Context, do func() (*carriedOut, error)) {
	done, err := d.g.ask(ctx, do)
	answerPolicy(w, done, err)
}

func (d *policyDesk) confirm(w http.ResponseWriter, req *http.Request) {
	q := d.change(w, req, bySocket)
	if q == nil {
		return
	}
	var out *Confirmed
	_, err := d.g.ask(req.Context(), func() (_ *carriedOut, err error) {
		out, err = d.g.confirm(q)
		return nil, err
	})
	answerPolicy(w, out, err)
}

func (d *policyDesk) diff(w http.ResponseWriter, req *http.Request) {
	from, ok := number(w, req, "from")
	if !ok {
		return
	}
	to, ok := number(w, req, "to")
	if !ok {
		return
	}
	out, err := d.differ.diff(req.Context(), from, to)
	if errs := (firewall.Errors)(nil); errors.As(err, &errs) {
		for i := range errs {
			errs[i].Source = "" // whoever may only read sees what is wrong, and not what stands there
		}
	}
	answerPolicy(w, out, err)
}

// answerPolicy answers with v, or with why there is none.
func answerPolicy[T any](w http.ResponseWriter, v T, err error) {
	var errs firewall.Errors
	var one firewall.Error
	var file *firewall.FileError
	var conflict *Conflict
	switch {
	case errors.As(err, &errs):
	case errors.As(err, &one):
		errs = firewall.Errors{one}
	case errors.As(err, &file):
		refuse(w, http.StatusUnprocessableEntity, apiError{Error: fmt.Sprintf("read %s: %v", file.Path, file.Err), Hint: file.Hint})
		return
	case errors.As(err, &conflict):
		refuse(w, http.StatusConflict, apiError{Error: conflict.Msg, Hint: conflict.Hint})
		return
	case errors.Is(err, errStopping):
		refuse(w, http.StatusServiceUnavailable, apiError{Error: err.Error(), Hint: "ask again when it runs"})
		return
	default:
		answer(w, func() (T, error) { return v, err })
		return
	}
	refuse(w, http.StatusUnprocessableEntity, apiError{Error: errs.Error(), Errors: Mistakes(errs)})
}
