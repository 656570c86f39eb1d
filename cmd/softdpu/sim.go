package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/gateway/sim"
)

// simFlags are the flags of `softdpu sim`.
type simFlags struct {
	policySource
	read, write, engine, in string
}

func newSimCommand(env *Env) *cobra.Command {
	var s simFlags
	cmd := &cobra.Command{
		Use:   "sim -r CAPTURE",
		Short: "Drive a capture through the packet path, without ports",
		Long: `Drive a capture through the very packet path that 'softdpu run' puts on the wire, and say for each packet
what becomes of it, by which rule, and why. Captures are pcap or pcapng, of Ethernet, raw IP,
NULL/loopback, PPP or Linux cooked.

With -c the gateway is that of the configuration; routed ports need --routes. Without it there are two
ports, lan and wan, joined inline, under the policy that --policy names; a zone whose ports are absent
takes the port of its own name. Without a policy either everything is allowed, also loopback addresses,
connections without a SYN and wrong checksums, which are reported: that tells what is in a capture.

A capture does not say where a packet arrived: the first packet of each conversation comes in by the
port --in and its replies by the other one. Of connections that the policy translates it knows what their
openers know: replies are given the addresses that the other end knows before they arrive. Masquerading
writes the addresses that --routes or --address tell. Time is the capture's, but for rules that expire: those are
asked for today.

Exit code 0 once the capture was read to its end, whatever became of its packets.`,
		Example: `  softdpu sim -r in.pcap
  softdpu sim -r in.pcap --policy policy.d -o json
  softdpu sim -c softdpu.yaml --routes routes.json -r in.pcap -w out.pcap
  sudo softdpu sim -r in.pcap --policy policy.d --engine xdp`,
	}
	s.addConfigFlag(cmd)
	s.addPolicyFlag(cmd)
	s.addRoutesFlag(cmd)
	s.addAddressFlag(cmd)
	f := cmd.Flags()
	f.StringVarP(&s.read, "read", "r", "", "`capture` to read, - for the standard input")
	f.StringVarP(&s.write, "write", "w", "", "`capture` to write: the packets that are forwarded, as they leave")
	f.StringVar(&s.engine, "engine", string(sim.EngineGo), "go, or xdp for the program in the kernel (root)")
	f.StringVar(&s.in, "in", "", "`port` by which conversations come in (default lan, else where the route to the sender leads, else the first port)")
	// The flag exists, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc("engine", cobra.FixedCompletions([]string{"go", "xdp"}, cobra.ShellCompDirectiveNoFileComp))
	format := addOutputFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && len(s.policies) == 0 {
			return usagef(cmd, "%s takes no argument %q; read a capture with -r", cmd.CommandPath(), args[0])
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.policies = append(s.policies, args...) // --policy a.yaml b.yaml
		if s.read == "" {
			return usagef(cmd, "%s needs a capture: -r FILE", cmd.CommandPath())
		}
		if engines := []string{"go", "xdp"}; !slices.Contains(engines, s.engine) {
			return usagef(cmd, "the engine must be go or xdp%s", suggestion(s.engine, engines))
		}
		return s.run(cmd.Context(), env, cmd, format)
	}
	return cmd
}

// run makes the gateway and sends the capture through it.
func (s *simFlags) run(ctx context.Context, env *Env, cmd *cobra.Command, format *outputFormat) (err error) {
	config, err := s.gateway(env, cmd)
	if err != nil {
		return err
	}
	in := io.Reader(env.Stdin)
	if s.read != "-" {
		f, err := os.Open(s.read)
		if err != nil {
			return fmt.Errorf("read capture: %w", err)
		}
		defer f.Close()
		in = f
	}
	capture, err := sim.NewCapture(in)
	if err != nil {
		return fmt.Errorf("%s: %w", s.read, err)
	}
	twin, err := sim.New(config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, twin.Close()) }()
	replay, err := s.replay(cmd, twin)
	if err != nil {
		return err
	}
	var out *sim.CaptureWriter
	if s.write != "" {
		f, createErr := os.Create(s.write)
		if createErr != nil {
			return fmt.Errorf("write capture: %w", createErr)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if out, err = sim.NewCaptureWriter(f); err != nil {
			return err
		}
	}
	buffered := bufio.NewWriterSize(env.Stdout, 1<<16)
	report := newSimReport(buffered, env.Width(), format.json, s.engine)
	report.translates = translates(config.Policy)
	err = s.each(ctx, capture, replay, report, out)
	if out != nil {
		err = errors.Join(err, out.Flush())
	}
	// What was read up to an error is said all the same.
	if reportErr := errors.Join(report.finish(replay.Conversations()), buffered.Flush()); err == nil && reportErr != nil {
		err = fmt.Errorf("print simulation: %w", reportErr)
	}
	return err
}

func (s *simFlags) each(ctx context.Context, capture *sim.Capture, replay *sim.Replay, report *simReport, out *sim.CaptureWriter) error {
	for {
		var c sim.Captured
		err := capture.Next(&c)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.read, err)
		}
		if c.N%1024 == 0 && ctx.Err() != nil {
			return fmt.Errorf("stopped at packet %d: %w", c.N, ctx.Err())
		}
		o, err := replay.Packet(&c)
		if err != nil {
			return fmt.Errorf("%s: %w", s.read, err)
		}
		if err := report.packet(&c, &o); err != nil {
			return fmt.Errorf("print simulation: %w", err)
		}
		if out != nil && o.Verdict == sim.Forward {
			if err := out.Write(c.Time, o.Frame, len(o.Frame)+c.Original-len(c.Data)); err != nil {
				return err
			}
		}
	}
}

// gateway makes the configuration of the simulated gateway.
func (s *simFlags) gateway(env *Env, cmd *cobra.Command) (sim.Config, error) {
	timeouts := gateway.DefaultTimeouts()
	c := sim.Config{Engine: sim.Engine(s.engine), Timeouts: timeouts.Ticks()}
	o, err := s.load(env, firewall.CompileOptions{Ports: []string{"lan", "wan"}, OwnNamePorts: true})
	if err != nil {
		return c, err
	}
	if o.policy == nil {
		if len(s.routes) > 0 {
			return c, usagef(cmd, "--routes without -c: the ports lan and wan are inline and need no routes")
		}
		c.Tolerant = true
		c.Policy, err = sim.Everything()
		return c, err
	}
	c.Policy, c.Devices = o.compiled, o.natDevices()
	if translates(o.compiled) && !o.routed() {
		env.note("inline ports translate nothing: name a configuration with routed ports with -c, and its routes with --routes")
	}
	if o.config == nil {
		return c, nil
	}
	c.FlowsMax, c.HalfOpenShare = o.config.Flows.Max, o.config.Flows.HalfOpenShare
	c.Timeouts, c.Ethertypes = o.config.Flows.Timeouts.Ticks(), o.config.Ethertypes
	c.Inline, c.ForceStages = o.config.Inline, o.config.ForceStages()
	for _, p := range o.config.Ports {
		if !slices.ContainsFunc(o.compiled.Ports, func(z firewall.PortZone) bool { return z.Port == p.Name }) {
			continue // a monitor port: no packet arrives there
		}
		port := sim.Port{Name: p.Name, MTU: p.MTU, FixChecksums: p.FixChecksums == gateway.FixChecksumsOn, MSSClamp: uint16(p.MSSClamp)}
		if o.routes != nil {
			port.IP4, port.IP6 = ownAddresses(o.routes.Addresses[p.Name])
		} else if o.peerOf(p.Name) == "" {
			return c, usagef(cmd, "port %s is routed: give the gateway's routes with --routes, as 'ip -j route show table all' prints them", p.Name)
		}
		c.Ports = append(c.Ports, port)
	}
	if o.routes != nil {
		c.Routes = s.routesByRoutedPorts(o)
	}
	return c, nil
}

// routesByRoutedPorts takes those that lead to an inline port for routes to a foreign device.
func (s *simFlags) routesByRoutedPorts(o *offline) []sim.Route {
	routes := slices.Clone(o.routes.Routes)
	for i := range routes {
		if r := &routes[i]; r.Kind == sim.RoutePort && o.peerOf(r.Port) != "" {
			r.Kind = sim.RouteElsewhere
		}
	}
	return routes
}

// ownAddresses returns the first address of each family that is not link-local.
func ownAddresses(list []netip.Addr) (ip4, ip6 netip.Addr) {
	for _, a := range list {
		switch {
		case a.IsLinkLocalUnicast():
		case a.Is4() && !ip4.IsValid():
			ip4 = a
		case a.Is6() && !ip6.IsValid():
			ip6 = a
		}
	}
	return ip4, ip6
}

func (s *simFlags) replay(cmd *cobra.Command, twin *sim.Sim) (*sim.Replay, error) {
	names := twin.PortNames()
	in := s.in
	switch {
	case in == "" && len(s.routes) == 0 && slices.Contains(names, "lan"):
		in = "lan"
	case in != "" && !slices.Contains(names, in):
		return nil, usagef(cmd, "there is no port %q; there are %s%s", in, strings.Join(names, ", "), suggestion(in, names))
	}
	return sim.NewReplay(twin, in)
}
