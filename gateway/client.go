package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/firewall"
)

// DefaultSocket is where a daemon listens unless its configuration says otherwise.
const DefaultSocket = "/run/softdpu/softdpu.sock"

// maxFault bounds what is read of an answer that is none: a hundred mistakes with their lines, in bytes.
const maxFault = 16 << 20

// dialPause is how long a client rests before it tries again at a socket whose queue is full.
const dialPause = 10 * time.Millisecond

// ErrNoDaemon says that nobody answers on the control socket.
var ErrNoDaemon = errors.New("no softdpu answers")

// A Client asks a running gateway. It is safe for concurrent use and needs no Close.
type Client struct {
	socket string
	http   http.Client
}

// NewClient makes a client of the daemon at a control socket ("" is DefaultSocket). Nothing is opened
// yet.
func NewClient(socket string) *Client {
	if socket == "" {
		socket = DefaultSocket
	}
	c := &Client{socket: socket}
	c.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			for {
				conn, err := d.DialContext(ctx, "unix", socket)
				if !errors.Is(err, unix.EAGAIN) {
					return conn, err
				}
				// So many connect at once that they are not taken off the socket as fast.
				select {
				case <-ctx.Done():
					return nil, err
				case <-time.After(dialPause):
				}
			}
		},
	}
	return c
}

// Status asks for the gateway's state.
func (c *Client) Status(ctx context.Context) (s *Status, err error) {
	return s, c.get(ctx, "status", nil, &s)
}

// Flows asks for the flows that a filter expression matches ("" for all), at most limit (0 for all).
func (c *Client) Flows(ctx context.Context, filter string, limit int) (flows []Flow, err error) {
	query := url.Values{}
	if filter != "" {
		query.Set("filter", filter)
	}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return flows, c.get(ctx, "flows", query, &flows)
}

// Drops asks what was dropped, by reason; with all, also the reasons for which nothing was.
func (c *Client) Drops(ctx context.Context, all bool) (drops []Drop, err error) {
	query := url.Values{}
	if all {
		query.Set("all", "1")
	}
	return drops, c.get(ctx, "drops", query, &drops)
}

// Passes asks what went to the kernel, by cause.
func (c *Client) Passes(ctx context.Context) (passes []Pass, err error) {
	return passes, c.get(ctx, "passes", nil, &passes)
}

// Rules asks for the rules and what they counted: "none" and the built-in ones, then the policy's in order.
func (c *Client) Rules(ctx context.Context) (rules []RuleStatus, err error) {
	return rules, c.get(ctx, "rules", nil, &rules)
}

// NAT asks what is translated: the policy's nat rules in its order, and the addresses of masquerading.
func (c *Client) NAT(ctx context.Context) (s *NATStatus, err error) {
	return s, c.get(ctx, "nat", nil, &s)
}

// Workers asks how the workers run.
func (c *Client) Workers(ctx context.Context) (s *WorkersStatus, err error) {
	return s, c.get(ctx, "workers", nil, &s)
}

// KillFlows ends the flows that a filter expression matches, or with "" all, and returns their number.
// It is for root.
func (c *Client) KillFlows(ctx context.Context, filter string) (int, error) {
	query := url.Values{"filter": {filter}}
	if filter == "" {
		query = url.Values{"all": {"1"}}
	}
	var killed Killed
	err := c.ask(ctx, http.MethodPost, "flows/kill", query, &killed)
	return killed.Killed, err
}

func (c *Client) get(ctx context.Context, what string, query url.Values, into any) error {
	return c.ask(ctx, http.MethodGet, what, query, into)
}

func (c *Client) ask(ctx context.Context, method, what string, query url.Values, into any) error {
	return c.send(ctx, method, what, query, nil, into)
}

// send is ask with a body.
func (c *Client) send(ctx context.Context, method, what string, query url.Values, body io.Reader, into any) error {
	u := "http://softdpu/v1/" + what
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", what, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain(what, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c.fault(what, query, resp)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read %s: %w: the daemon at %s may be of another version, or has just stopped", what, err, c.socket)
	}
	return nil
}

// fault is the error in an answer that is none.
func (c *Client) fault(what string, query url.Values, resp *http.Response) error {
	var fault apiError
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxFault)).Decode(&fault); err != nil {
		return fmt.Errorf("ask for %s: the daemon at %s answers %s", what, c.socket, resp.Status)
	}
	if len(fault.Errors) > 0 {
		errs := make(firewall.Errors, len(fault.Errors))
		for i := range fault.Errors {
			errs[i] = fault.Errors[i].FirewallError()
		}
		return errs
	}
	if resp.StatusCode == http.StatusConflict {
		return &Conflict{fault.Error, fault.Hint}
	}
	if fault.Column > 0 {
		return &FilterError{Text: query.Get("filter"), Column: fault.Column, Msg: fault.Error, Hint: fault.Hint}
	}
	err := fmt.Errorf("ask for %s: the daemon at %s says: %s", what, c.socket, fault.Error)
	if fault.Hint != "" {
		err = fmt.Errorf("%w: %s", err, fault.Hint)
	}
	return err
}

func (c *Client) explain(what string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("ask for %s: %w at %s: start it with 'softdpu run -c FILE', or name its socket with --socket", what, ErrNoDaemon, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("ask for %s: no permission for %s: run as root, or join the group that control.group names", what, c.socket)
	}
	return fmt.Errorf("ask for %s: %w", what, err)
}
