package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ApplyOptions of Client.Apply.
type ApplyOptions struct {
	Comment string        // one line, for the history
	Confirm time.Duration // after which the policy before comes back unless Confirm is called; 0: never
}

// Reload has the daemon read its configuration and policy again and put them in force. The error is a
// firewall.Errors if the daemon refused what is written, and a *Conflict while a change waits to be
// confirmed; then all is as it was.
func (c *Client) Reload(ctx context.Context) (*Reloaded, error) { return c.Apply(ctx, ApplyOptions{}) }

// Apply is Reload with options.
func (c *Client) Apply(ctx context.Context, o ApplyOptions) (done *Reloaded, err error) {
	query := url.Values{}
	if o.Comment != "" {
		query.Set("comment", o.Comment)
	}
	if o.Confirm > 0 {
		query.Set("confirm", o.Confirm.String())
	}
	return done, c.ask(ctx, http.MethodPost, "reload", query, &done)
}

// Rollback has the daemon put the policy of an entry of its history in force, 0 for the one before. The
// error is a *Conflict if there is none.
func (c *Client) Rollback(ctx context.Context, entry int, comment string) (done *Reloaded, err error) {
	query := url.Values{}
	if entry != 0 {
		query.Set("entry", strconv.Itoa(entry))
	}
	if comment != "" {
		query.Set("comment", comment)
	}
	return done, c.ask(ctx, http.MethodPost, "policy/rollback", query, &done)
}

// Confirm keeps the change that waits for it. The error is a *Conflict if none does.
func (c *Client) Confirm(ctx context.Context) (done *Confirmed, err error) {
	return done, c.ask(ctx, http.MethodPost, "policy/confirm", nil, &done)
}

// History asks for the policies that came into force or were refused, the newest first.
func (c *Client) History(ctx context.Context) (entries []HistoryEntry, err error) {
	return entries, c.get(ctx, "policy/history", nil, &entries)
}

// Diff compares the policy of an entry, 0 for that in force, with that of another, 0 for the files. The
// error is a firewall.Errors if the files are at fault, and a *Conflict if there is no such entry.
func (c *Client) Diff(ctx context.Context, from, to int) (d *PolicyDiff, err error) {
	query := url.Values{}
	for name, entry := range map[string]int{"from": from, "to": to} {
		if entry != 0 {
			query.Set(name, strconv.Itoa(entry))
		}
	}
	return d, c.get(ctx, "policy/diff", query, &d)
}
