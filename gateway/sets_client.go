package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Sets asks for the sets of the policy in force, and for those that only runtime has entries for.
func (c *Client) Sets(ctx context.Context) (sets []SetStatus, err error) {
	return sets, c.get(ctx, "sets", nil, &sets)
}

// SetEntries asks for the entries of a set.
func (c *Client) SetEntries(ctx context.Context, name string) (entries []SetEntry, err error) {
	return entries, c.get(ctx, "sets/"+url.PathEscape(name), nil, &entries)
}

// AddToSet adds entries to a set, all or none, and returns when they are in force. The error is a
// firewall.Errors if entries are wrong; the line of each counts the entries from 1. It is for root.
func (c *Client) AddToSet(ctx context.Context, name string, change SetChange) (*SetChanged, error) {
	return c.changeSet(ctx, name, "add", change)
}

// DeleteFromSet takes entries out of a set, as AddToSet adds them. What the policy itself has stays out
// until it is added again, or until the change is over.
func (c *Client) DeleteFromSet(ctx context.Context, name string, change SetChange) (*SetChanged, error) {
	return c.changeSet(ctx, name, "del", change)
}

// ReplaceSet has a set hold what a text says, one entry a line with # before comments, in the place of all that
// it holds, and returns when that is in force. The error is a firewall.Errors if the text is wrong. It is for root.
func (c *Client) ReplaceSet(ctx context.Context, name, comment string, text io.Reader) (done *SetChanged, err error) {
	query := url.Values{}
	if comment != "" {
		query.Set("comment", comment)
	}
	return done, c.send(ctx, http.MethodPost, "sets/"+url.PathEscape(name)+"/replace", query, text, &done)
}

func (c *Client) changeSet(ctx context.Context, name, verb string, change SetChange) (done *SetChanged, err error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("write the change: %w", err)
	}
	return done, c.send(ctx, http.MethodPost, "sets/"+url.PathEscape(name)+"/"+verb, nil, bytes.NewReader(body), &done)
}
