package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/bench"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// xskFlags are the flags of `bench xsk` that take more than a number.
type xskFlags struct {
	o        bench.XSKOptions
	mode     choice
	busyPoll time.Duration
	rate     packetRate
	sweep    string
	showPeer bool
}

// sweepable are the flags that --sweep may vary.
var sweepable = []string{"batch", "busy-poll", "cpu", "flows", "frame-size", "hugepages", "mode", "queues", "rate", "ring-size", "umem-frames"}

func newBenchXSKCommand(env *Env) *cobra.Command {
	f := &xskFlags{o: bench.NewXSKOptions(""), mode: choice{value: "any", of: []string{"any", "zero-copy", "copy", "generic"}}}
	cmd := &cobra.Command{
		Use:   "xsk rx-drop|tx-push|l2fwd [INTERFACE]",
		Short: "Receive, send or forward through AF_XDP sockets, beside xdpsock",
		Long: `Receive and throw away (rx-drop), send (tx-push), or receive, change the MACs over and send back (l2fwd) through
AF_XDP sockets, one worker for each queue.

Without an interface it makes a veth pair in namespaces of its own, with a generator at its far end. With one, others
must send to it; it takes all packets of the queues that it uses. Settings of the interface that it changes are those
that are asked for: its channels by --queues, its NAPI by --busy-poll. They are put back at the end, and by the next
'bench xsk' if this one is killed.

If xdpsock, of the bpf-examples project, is on PATH, it runs in turn with ours, with the same settings.`,
		Example: `  sudo softdpu bench xsk rx-drop
  sudo softdpu bench xsk l2fwd --sweep batch=1,16,64 -o json
  sudo softdpu bench xsk l2fwd eth1 --mode zero-copy --busy-poll --cpu 3
  sudo softdpu bench xsk rx-drop --pcap office.pcap --rate 500k
  softdpu bench xsk tx-push --show-peer`,
		Args:              takes(1, "rx-drop|tx-push|l2fwd"),
		ValidArgsFunction: complete(func() []string { return bench.XSKBenches }),
	}
	format := addOutputFlag(cmd)
	flags := cmd.Flags()
	f.mode.addTo(cmd, "mode", "of the sockets: any takes the best that the driver has, another is had or is an error")
	flags.IntVar(&f.o.Batch, "batch", f.o.Batch, "packets that a worker handles in one go, at most")
	flags.DurationVar(&f.busyPoll, "busy-poll", 0, "let the worker drive the device for so long instead of interrupts, and make it defer those")
	flags.Lookup("busy-poll").NoOptDefVal = "20us"
	flags.IntVar(&f.o.FrameSize, "frame-size", f.o.FrameSize, "bytes of each frame of the UMEM: 2048, or 4096")
	flags.IntVar(&f.o.RingSize, "ring-size", f.o.RingSize, "descriptors of the rx, tx and completion rings; the fill ring has twice as many")
	flags.IntVar(&f.o.UMEMFrames, "umem-frames", f.o.UMEMFrames, "frames of each queue's UMEM")
	flags.BoolVar(&f.o.HugePages, "hugepages", false, "put the UMEM into pages of 2 MiB")
	flags.IntSliceVar(&f.o.CPUs, "cpu", nil, "CPU of each queue's worker; chosen near the device if it is not given")
	flags.IntVar(&f.o.Queues, "queues", f.o.Queues, "queues, with a worker each; an interface is set to so many channels if it is given")
	flags.Var(&f.rate, "rate", "packets a second that are sent, such as 250000 or 1.5M; as fast as can be if it is not given")
	flags.IntVar(&f.o.Flows, "flows", f.o.Flows, "distinct flows that are sent")
	flags.StringVar(&f.o.Pcap, "pcap", "", "capture whose packets are sent over and over, in place of flows")
	flags.DurationVar(&f.o.Duration, "duration", f.o.Duration, "of all parts together, ours; the peer takes as long again")
	flags.IntVar(&f.o.Repeat, "repeat", f.o.Repeat, "parts, ours and the peer's in turn")
	flags.StringVar(&f.sweep, "sweep", "", "NAME=V1,V2,...: measure with each of these values of the flag NAME")
	flags.BoolVar(&f.o.Force, "force", false, "measure on the interface of the default route too")
	flags.BoolVar(&f.showPeer, "show-peer", false, "print the command lines of the peer, and measure nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(bench.XSKBenches, args[0]) {
			return usagef(cmd, "there is no bench xsk %s%s", args[0], suggestion(args[0], bench.XSKBenches))
		}
		f.o.Bench = args[0]
		if len(args) > 1 {
			f.o.Interface = args[1]
		}
		f.o.Progress = func(step string) { env.note("%s", step) }
		f.o.Live = liveLine(env.Stderr)
		points, err := f.points(cmd)
		if err != nil {
			return err
		}
		if f.showPeer {
			return showXSKPeer(env, points)
		}
		report, err := bench.XSK(cmd.Context(), points)
		if err != nil {
			return err
		}
		if format.json {
			return printJSON(env.Stdout, report)
		}
		return printXSK(env, report)
	}
	return cmd
}

// points returns what is to be measured: one set of options, or one for each value of --sweep.
func (f *xskFlags) points(cmd *cobra.Command) ([]bench.XSKOptions, error) {
	if f.sweep == "" {
		return []bench.XSKOptions{f.options(cmd)}, nil
	}
	name, list, ok := strings.Cut(f.sweep, "=")
	if !ok || list == "" {
		return nil, usagef(cmd, "--sweep %s: it must be NAME=V1,V2,...", f.sweep)
	}
	if !slices.Contains(sweepable, name) {
		return nil, usagef(cmd, "--sweep %s: it can vary %s%s", f.sweep, strings.Join(sweepable, ", "), suggestion(name, sweepable))
	}
	if cmd.Flags().Changed(name) {
		return nil, usagef(cmd, "--sweep %s: --%s is given as well", f.sweep, name)
	}
	var points []bench.XSKOptions
	for _, value := range strings.Split(list, ",") {
		if name == "cpu" {
			f.o.CPUs = nil // it is a list, which would grow
		}
		if err := cmd.Flags().Set(name, value); err != nil {
			return nil, usagef(cmd, "--sweep %s: %v", f.sweep, err)
		}
		o := f.options(cmd)
		o.Label = name + "=" + value
		points = append(points, o)
	}
	return points, nil
}

// options returns what the flags say now.
func (f *xskFlags) options(cmd *cobra.Command) bench.XSKOptions {
	o := f.o
	o.CPUs = slices.Clone(f.o.CPUs)
	o.Mode = map[string]xsk.Mode{"any": xsk.Any, "zero-copy": xsk.ZeroCopy, "copy": xsk.Copy, "generic": xsk.Generic}[f.mode.value]
	o.BusyPoll, o.Rate = f.busyPoll, float64(f.rate)
	o.QueuesAsked = cmd.Flags().Changed("queues")
	return o
}

func showXSKPeer(env *Env, points []bench.XSKOptions) error {
	for _, o := range points {
		line, err := bench.XSKPeerCommand(o)
		if err != nil {
			line = "left out: " + err.Error()
		}
		if o.Label != "" {
			line = o.Label + ": " + line
		}
		fmt.Fprintln(env.Stdout, line)
	}
	return nil
}

// packetRate is a number of packets a second, the value of a flag: with k, M or G behind it for thousands,
// millions or thousands of millions.
type packetRate float64

// String implements pflag.Value.
func (r *packetRate) String() string {
	if *r == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*r), 'g', -1, 64)
}

// Set implements pflag.Value.
func (r *packetRate) Set(s string) error {
	number, factor := s, 1.0
	for suffix, f := range map[string]float64{"k": 1e3, "M": 1e6, "G": 1e9} {
		if n, ok := strings.CutSuffix(s, suffix); ok {
			number, factor = n, f
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0) || v*factor > 1e9 {
		return fmt.Errorf("it must be packets a second up to 1G, such as 250000, 250k or 1.5M")
	}
	*r = packetRate(v * factor)
	return nil
}

// Type implements pflag.Value.
func (r *packetRate) Type() string { return "packets/s" }

// liveLine returns what shows one line in place of the one before, if w is a terminal.
func liveLine(w io.Writer) func(string) {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return func(string) {}
	}
	return func(line string) { fmt.Fprint(f, "\r\x1b[K"+line) }
}

// printXSK prints the results, and under each how it came about.
func printXSK(env *Env, r *bench.Report) error {
	e := &r.Environment
	fmt.Fprintf(env.Stdout, "kernel %s, %s, driver %s, mode %s; %s\n", e.Kernel, e.CPU, e.Driver, e.XDPMode, e.Pinning)
	fmt.Fprintf(env.Stdout, "%s\n", e.Method)
	for _, a := range e.Attempts {
		fmt.Fprintf(env.Stdout, "  %s\n", a)
	}
	if e.Interrupted {
		fmt.Fprintln(env.Stdout, "interrupted: this was measured until then")
	}
	fmt.Fprintln(env.Stdout)
	if err := benchTable(r).write(env.Stdout, env.Width()); err != nil {
		return err
	}
	fmt.Fprintln(env.Stdout)
	costs := newTable("NAME", ">Gbit/s", ">ns/PACKET", ">WORKER: USER", ">SYSTEM", ">SOFTIRQ", ">HERE", ">SYSCALLS", "HARDWARE A PACKET")
	lost := newTable("NAME", ">SENT", ">HANDLED", ">RETURNED", "LOST, AND WHERE")
	var peers []string
	for _, v := range r.Results {
		x := v.XSK
		costs.add(v.Name, figure(x.BytesPerSecond*8/1e9), figure(x.NsPerPacket), figure(x.WorkerUserNs), figure(x.WorkerSystemNs),
			figure(x.SoftirqNs), figure(x.SoftirqWorkerNs), figure(x.SystemCalls), hardwareText(x))
		lost.add(v.Name, countText(x.Sent), x.Handled, countText(x.Returned), lostText(x.Drops))
		peers = append(peers, peerText(v.Name, x))
	}
	if err := costs.write(env.Stdout, env.Width()); err != nil {
		return err
	}
	fmt.Fprintln(env.Stdout)
	if err := lost.write(env.Stdout, env.Width()); err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "\nours:    %s\n%s", strings.Join(e.CommandLine, " "), strings.Join(peers, ""))
	return nil
}

func countText(n *uint64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(*n, 10)
}

func hardwareText(x *bench.XSKDetail) string {
	if x.HardwareWhy != "" {
		return "none: " + x.HardwareWhy
	}
	return fmt.Sprintf("%s cycles, %s instructions, %s cache misses",
		figure(x.Hardware["cycles"]), figure(x.Hardware["instructions"]), figure(x.Hardware["cache_misses"]))
}

// lostText names every counter of drops that is not 0.
func lostText(d bench.XSKDrops) string {
	var s []string
	for _, c := range d.Counters() {
		if c.Value > 0 {
			s = append(s, fmt.Sprintf("%s %d", c.Name, c.Value))
		}
	}
	if len(s) == 0 {
		return "nothing"
	}
	return strings.Join(s, ", ")
}

func peerText(name string, x *bench.XSKDetail) string {
	switch {
	case x.PeerWhy != "":
		return fmt.Sprintf("xdpsock: left out of %s: %s\n", name, x.PeerWhy)
	case x.PeerCommand != "":
		return fmt.Sprintf("xdpsock: %s\n", x.PeerCommand)
	}
	return ""
}
