package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// A CaptureStream is a capture that runs, as pcapng. Closing it ends the capture; StopCapture does too, and
// lets it be read to its end.
type CaptureStream struct {
	io.ReadCloser
	ID uint64
}

// Capture asks for packets. It is for root. The stream ends with ctx, too.
func (c *Client) Capture(ctx context.Context, q *CaptureRequest) (*CaptureStream, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("ask for capture: %w", err)
	}
	u := url.URL{Scheme: "http", Host: "softdpu", Path: "/v1/capture"}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask for capture: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain("capture", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, c.fault("capture", url.Values{"filter": {q.Filter}}, resp)
	}
	id, err := strconv.ParseUint(resp.Header.Get(captureID), 10, 64)
	if err != nil {
		resp.Body.Close()
		return nil, fmt.Errorf("ask for capture: the daemon at %s may be of another version: it does not number the capture", c.socket)
	}
	return &CaptureStream{resp.Body, id}, nil
}

// StopCapture has a capture end: its stream still gives what was captured before, and the final statistics.
func (c *Client) StopCapture(ctx context.Context, id uint64) (s *CaptureStatus, err error) {
	return s, c.ask(ctx, http.MethodDelete, "capture", url.Values{"id": {strconv.FormatUint(id, 10)}}, &s)
}
