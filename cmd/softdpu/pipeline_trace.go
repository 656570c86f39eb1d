package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
	"github.com/softdpu/softdpu/gateway"
)

func newPipelineTraceCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace [FILE FIELD=VALUE...]",
		Short: "Follow packets through the pipeline, pipe by pipe",
		Long: `Follow live packets through the pipeline in force: which pipes each came to, which entry matched there, and
where it went in the end. The pipeline's program is replaced by one that tells while somebody traces; what
cannot be told in time is left out. It needs root.

With a file and the fields of a packet, follow that one through the pipeline of the file, without a gateway.
Fields are those of docs/pipes.md, with values as in entries; the others are 0, and a field of a header says
that the packet has it. frame=HEX is a whole frame, and what it leaves as is printed if that is another one.`,
		Example: `  sudo softdpu pipeline trace --count 10
  softdpu pipeline trace edge.yaml port=lan0 ipv4.src=10.0.0.1 ipv4.dst=192.0.2.7 ip.proto=tcp l4.dport=443 tcp.flags=syn`,
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	count := cmd.Flags().Int("count", 0, "end after so many packets; 0: with Ctrl-C")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return traceDescribed(env, args[0], args[1:], format)
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		n := 0
		enough := errors.New("enough")
		err := gateway.NewClient(*socket).TracePipeline(ctx, func(w *gateway.PipelineWalk) error {
			if err := printWalk(env.Stdout, w, format.json); err != nil {
				return err
			}
			if n++; n == *count {
				return enough
			}
			return nil
		})
		if errors.Is(err, enough) || cmd.Context().Err() != nil {
			return nil
		}
		return err
	}
	return cmd
}

// printWalk writes a packet's way in a line, or as an object in one.
func printWalk(to io.Writer, w *gateway.PipelineWalk, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(to).Encode(w)
	}
	steps := make([]string, len(w.Steps))
	for i, s := range w.Steps {
		entry := s.Entry
		if entry == "" {
			entry = "(miss)"
		}
		steps[i] = fmt.Sprintf("%s: %s", s.Pipe, entry)
	}
	what := ""
	if head, err := hex.DecodeString(w.Head); err == nil && len(head) > 0 {
		what = fmt.Sprintf("%s %s  %s, %d bytes  ", w.Time.Local().Format("15:04:05.000000"), w.Port, packetText(head), w.Length)
	}
	_, err := fmt.Fprintln(to, visible(what+strings.Join(append(steps, w.Forward), " -> ")))
	return err
}

// traceDescribed follows a packet that is described by its fields.
func traceDescribed(env *Env, path string, fields []string, format *outputFormat) error {
	parsed, _, err := pipefile.Load(path)
	if err != nil {
		return faults(err)
	}
	prog, err := compilePipelineFile(env, path)
	if err != nil {
		return err
	}
	frame := &pipe.Frame{}
	for _, text := range fields {
		if value, is := strings.CutPrefix(text, "frame="); is {
			b, err := hex.DecodeString(strings.ReplaceAll(value, ":", ""))
			if err != nil {
				return fmt.Errorf("frame: %w: write its bytes in hexadecimal", err)
			}
			frame = prog.ParseFrame(b)
		}
	}
	for _, text := range fields {
		name, value, ok := strings.Cut(text, "=")
		switch {
		case !ok:
			return fmt.Errorf("%q is not FIELD=VALUE, as in ipv4.dst=192.0.2.7", text)
		case name == "frame":
			continue
		case frame.Bytes != nil && name != "port" && !strings.HasPrefix(name, "meta."):
			return fmt.Errorf("%s: the frame says that itself: beside a frame, give port and meta fields alone", name)
		}
		if err := parsed.Describe(&frame.Fields, prog.Pipeline.Ports, name, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	forward, walk, after, fault := prog.RunFrame(frame)
	w := &gateway.PipelineWalk{Steps: []gateway.PipelineWalkStep{}, Forward: prog.ForwardName(forward)}
	for _, s := range walk {
		step := gateway.PipelineWalkStep{Pipe: prog.PipeName(uint32(s.Pipe))}
		switch {
		case s.Found && s.Place == 0:
			step.Entry = "(found)"
		case s.Found:
			step.Entry = prog.EntryName(s.Pipe, s.Place)
		}
		w.Steps = append(w.Steps, step)
	}
	if err := printWalk(env.Stdout, w, format.json); err != nil || frame.Bytes == nil || format.json {
		return err
	}
	switch {
	case fault != nil:
		_, err = fmt.Fprintf(env.Stdout, "dropped: %v\n", fault)
	case after != nil && !bytes.Equal(after, frame.Bytes):
		_, err = fmt.Fprintf(env.Stdout, "leaves as %x\n", after)
	}
	return err
}
