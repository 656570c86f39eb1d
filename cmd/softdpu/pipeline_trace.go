package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/gateway"
)

func newPipelineTraceCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace [[FILE] FIELD=VALUE...]",
		Short: "Follow packets through the pipes, pipe by pipe",
		Long: `Follow live packets through the pipes in force, those of the pipeline in front of the policy and the policy's own:
which pipes each came to, which entry matched there, and where it went in the end. The programs are replaced
by ones that tell while somebody traces; what cannot be told in time is left out. What a pipeline has changed in a
packet keeps the two halves of its way from being put together: they are told of apart. It needs root.

With the fields of a packet, follow that one through the pipeline of a file, without a gateway. With --policy
or -c, what that leaves to the policy goes on through the policy's own pipes, as the packet that opens a flow;
without a file it begins there. The packet leaves as with 'softdpu explain': say --out, or give --routes. Fields are
those of docs/pipes.md, with values as in entries; the others are 0, and a field of a header says that the packet
has it. frame=HEX is a whole frame, and what leaves the pipeline is printed if that is another one.`,
		Example: `  sudo softdpu pipeline trace --count 10
  softdpu pipeline trace edge.yaml port=lan0 ipv4.src=10.0.0.1 ipv4.dst=192.0.2.7 ip.proto=tcp l4.dport=443 tcp.flags=syn
  softdpu pipeline trace --policy policy.d port=lan0 --out wan0 ipv4.src=10.20.1.7 ipv4.dst=203.0.113.5 ip.proto=tcp l4.dport=443`,
	}
	var source policySource
	source.addConfigFlag(cmd)
	source.addPolicyFlag(cmd)
	source.addRoutesFlag(cmd)
	out := cmd.Flags().String("out", "", "`port` or zone that a described packet goes to, or host")
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	count := cmd.Flags().Int("count", 0, "end after so many packets; 0: with Ctrl-C")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return traceDescribed(env, cmd, args, &source, *out, format)
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
	var steps []string
	for i, s := range w.Steps {
		text := fmt.Sprintf("%s: %s", s.Pipe, entryOrMiss(s.Entry))
		if s.Does != "" {
			text += fmt.Sprintf(" (%s)", s.Does)
		}
		for _, name := range s.Audited {
			steps = append(steps, fmt.Sprintf("%s: %s (audit)", s.Pipe, name))
		}
		if s.Policy && i > 0 && !w.Steps[i-1].Policy {
			steps = append(steps, string(pipe.ToPolicy))
		}
		steps = append(steps, text)
	}
	what := ""
	if head, err := hex.DecodeString(w.Head); err == nil && len(head) > 0 {
		what = fmt.Sprintf("%s %s  %s, %d bytes  ", w.Time.Local().Format("15:04:05.000000"), w.Port, packetText(head), w.Length)
	}
	_, err := fmt.Fprintln(to, visible(what+strings.Join(append(steps, w.Forward), " -> ")))
	return err
}
