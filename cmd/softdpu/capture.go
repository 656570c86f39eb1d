package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/dataplane/cbpf"
	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/gateway/pcapng"
)

const (
	captureLine     = 256             // bytes of a frame that a line on the terminal is made of
	captureFarewell = 5 * time.Second // that the gateway has to end a capture
)

func newCaptureCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "capture [--port PORT] [--point POINT] [--filter EXPRESSION] [-w FILE]",
		Short: "Show the packets of the running gateway, with verdict, rule and reason",
		Long: `Show packets of the running gateway, and what becomes of each and why. tcpdump cannot: it sees nothing of
what XDP forwards or drops. Three points can be chosen, --point twice or with a comma for more than one:

  in    packets as they arrive, whatever becomes of them (the default)
  out   packets as they leave: forwarded ones, the host's own, and answers to rejected ones
  drop  packets that are dropped: as they arrived, or the host's as they would have left

Without -w each packet is a line. With -w packets are written whole as pcapng, for Wireshark: verdict, rule
and reason are each packet's comment, ports are interfaces. '-w -' writes to the standard output.

The filter is a tcpdump expression (pcap-filter(7)); tcpdump compiles it, so it must be installed for that.
It runs inside the packet path, where it sees the packet as it is at that point. What the gateway cannot
hand over fast enough is counted as lost. There is one capture at a time; it ends with -c, --duration,
Ctrl-C, or its reader. It needs root: packets hold what people say.`,
		Example: `  sudo softdpu capture --point drop
  sudo softdpu capture --port lan0 --filter "tcp port 443" -c 100
  sudo softdpu capture --point in,out --duration 10s -w trace.pcapng
  sudo softdpu capture --filter "host 10.20.1.7" -w - | tshark -r - -T fields -e ip.dst -e frame.comment`,
		Args: takes(0),
	}
	var q gateway.CaptureRequest
	f := cmd.Flags()
	socket := addSocketFlag(cmd)
	f.StringSliceVar(&q.Ports, "port", nil, "capture at this port only (more: again, or with commas)")
	f.StringSliceVar(&q.Points, "point", gateway.CapturePoints[:1], "capture at this point: in, out or drop")
	f.StringVar(&q.Filter, "filter", "", "capture what this tcpdump expression takes")
	f.IntVarP(&q.Snaplen, "snaplen", "s", 65536, "bytes of each frame to write")
	f.Uint64VarP(&q.Count, "count", "c", 0, "end after this many packets (default: no limit)")
	duration := f.Duration("duration", 0, "end after this time (default: no limit)")
	file := f.StringP("write", "w", "", "write pcapng to this file, - for the standard output")
	_ = cmd.RegisterFlagCompletionFunc("point", cobra.FixedCompletions(gateway.CapturePoints, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkCapture(cmd, &q, *duration); err != nil {
			return err
		}
		q.Seconds = duration.Seconds()
		var err error
		if q.Program, err = compileFilter(cmd.Context(), q.Filter); err != nil {
			return err
		}
		if *file == "" {
			q.Snaplen = min(q.Snaplen, captureLine)
		}
		return capture(cmd.Context(), env, gateway.NewClient(*socket), &q, *file)
	}
	return cmd
}

func checkCapture(cmd *cobra.Command, q *gateway.CaptureRequest, duration time.Duration) error {
	for _, p := range q.Points {
		if !slices.Contains(gateway.CapturePoints, p) {
			return usagef(cmd, "--point %s: it must be in, out or drop%s", p, suggestion(p, gateway.CapturePoints))
		}
	}
	switch {
	case q.Snaplen < 1 || q.Snaplen > 65536:
		return usagef(cmd, "--snaplen %d: it must be from 1 to 65536 bytes", q.Snaplen)
	case duration < 0:
		return usagef(cmd, "--duration %s: it must not be negative", duration)
	}
	return nil
}

// compileFilter has tcpdump compile an expression, so that it means what it means everywhere else.
func compileFilter(ctx context.Context, expression string) (string, error) {
	if strings.TrimSpace(expression) == "" {
		return "", nil
	}
	var stderr bytes.Buffer
	tcpdump := exec.CommandContext(ctx, "tcpdump", "-ddd", "-y", "EN10MB", "--", expression)
	tcpdump.Stderr = &stderr
	out, err := tcpdump.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", errors.New("--filter needs tcpdump, which compiles it: `apt install tcpdump`, or capture without --filter")
	case err != nil && stderr.Len() > 0:
		return "", fmt.Errorf("--filter %q: %s", expression, strings.TrimPrefix(strings.TrimSpace(stderr.String()), "tcpdump: "))
	case err != nil:
		return "", fmt.Errorf("--filter %q: run tcpdump: %w", expression, err)
	}
	if _, err := cbpf.Parse(string(out)); err != nil {
		return "", fmt.Errorf("--filter %q: %w", expression, err)
	}
	return string(out), nil
}

// capture writes or shows packets until the capture ends, and has it end when ctx is done: what was
// captured before still comes, and the final count of what was lost.
func capture(ctx context.Context, env *Env, client *gateway.Client, q *gateway.CaptureRequest, file string) (err error) {
	var out io.WriteCloser
	if file != "" {
		if out, err = captureFile(env, file); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	streaming, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	stream, err := client.Capture(streaming, q)
	if err != nil {
		return err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() {
		asking, done := context.WithTimeout(streaming, captureFarewell)
		defer done()
		if _, err := client.StopCapture(asking, stream.ID); err != nil {
			cut()
		}
		time.AfterFunc(captureFarewell, cut)
	})()
	var in io.Reader = stream
	if out != nil {
		in = io.TeeReader(stream, out)
	}
	r := pcapng.NewReader(in)
	shown := 0
	for err == nil {
		var p *pcapng.Packet
		if p, err = r.Packet(); err != nil {
			break
		}
		shown++
		if out == nil {
			_, err = fmt.Fprintln(env.Stdout, captureText(p, r.Interfaces()[p.Interface].Name))
		}
	}
	captureSummary(env, shown, r.Statistics())
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("the capture broke off: %w", err)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// captureFile opens what packets are written to. A new file is for its owner alone.
func captureFile(env *Env, name string) (io.WriteCloser, error) {
	if name == "-" {
		return nopCloser{env.Stdout}, nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write capture: %w", err)
	}
	return f, nil
}

func captureSummary(env *Env, shown int, statistics map[int]pcapng.Statistics) {
	var seen, lost uint64
	for _, s := range statistics {
		seen, lost = seen+s.Received, lost+s.Dropped
	}
	env.note("%s captured of %d seen, %d lost", quantity(shown, "packet"), seen, lost)
}
