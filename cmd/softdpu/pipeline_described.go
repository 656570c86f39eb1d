package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/pipes"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/gateway"
)

// describedPacket is a packet that is described by its fields, on its way through a pipeline and the policy's own pipes.
type describedPacket struct {
	frame *pipe.Frame // without bytes if only its fields are known
	ports map[string]uint32
	walk  gateway.PipelineWalk

	fault  error  // why it cannot leave as the pipeline would have it
	leaves []byte // the frame behind the pipeline
}

// traceDescribed follows a packet that is described by its fields: through the pipeline of a file, if the first word
// names one, and through the policy's own pipes, if source names a policy.
func traceDescribed(env *Env, cmd *cobra.Command, args []string, source *policySource, out string, format *outputFormat) error {
	var prog *pipe.Program
	parsed := &pipe.Pipeline{}
	d := &describedPacket{frame: &pipe.Frame{}, ports: make(map[string]uint32), walk: gateway.PipelineWalk{Steps: []gateway.PipelineWalkStep{}, Forward: string(pipe.ToPolicy)}}
	if !strings.Contains(args[0], "=") {
		var err error
		if prog, err = compilePipelineFile(env, args[0]); err != nil {
			return err
		}
		parsed, args = prog.Pipeline, args[1:]
		for name, id := range parsed.Ports {
			d.ports[name] = id
		}
	}
	own := source.config != "" || len(source.policies) > 0
	if !own && prog == nil {
		return usagef(cmd, "%s needs a file with a pipeline, or a policy: name it with --policy, or its configuration with -c", cmd.CommandPath())
	}
	var o *offline
	if own {
		var err error
		if o, err = source.load(env, firewall.CompileOptions{}); err != nil {
			return faults(err)
		}
		for _, p := range o.compiled.Ports {
			if _, known := d.ports[p.Port]; !known {
				d.ports[p.Port] = uint32(len(d.ports)) + 1
			}
		}
	}
	if err := d.describe(prog, parsed, args); err != nil {
		return err
	}
	if prog != nil {
		d.run(prog)
	}
	if !own || d.walk.Forward != string(pipe.ToPolicy) {
		if err := printWalk(env.Stdout, &d.walk, format.json); err != nil || format.json {
			return err
		}
		return d.printLeaving(env)
	}
	if err := d.judge(env, cmd, o, source, out); err != nil {
		return err
	}
	if format.json {
		return json.NewEncoder(env.Stdout).Encode(&d.walk)
	}
	return walkTable(&d.walk).write(env.Stdout, env.Width())
}

// describe reads FIELD=VALUE, and frame=HEX. Without a program (nil) a frame's fields are those that all programs find.
func (d *describedPacket) describe(prog *pipe.Program, p *pipe.Pipeline, fields []string) error {
	for _, text := range fields {
		if value, is := strings.CutPrefix(text, "frame="); is {
			b, err := hex.DecodeString(strings.ReplaceAll(value, ":", ""))
			if err != nil {
				return fmt.Errorf("frame: %w: write its bytes in hexadecimal", err)
			}
			if prog == nil {
				prog = &pipe.Program{Pipeline: p}
			}
			d.frame = prog.ParseFrame(b)
		}
	}
	for _, text := range fields {
		name, value, ok := strings.Cut(text, "=")
		switch {
		case !ok:
			return fmt.Errorf("%q is not FIELD=VALUE, as in ipv4.dst=192.0.2.7", text)
		case name == "frame":
			continue
		case d.frame.Bytes != nil && name != "port" && !strings.HasPrefix(name, "meta."):
			return fmt.Errorf("%s: the frame says that itself: beside a frame, give port and meta fields alone", name)
		}
		if err := p.Describe(&d.frame.Fields, d.ports, name, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// printLeaving tells of a frame that is another one behind the pipeline.
func (d *describedPacket) printLeaving(env *Env) (err error) {
	switch {
	case d.frame.Bytes == nil:
	case d.fault != nil:
		_, err = fmt.Fprintf(env.Stdout, "dropped: %v\n", d.fault)
	case d.leaves != nil && !bytes.Equal(d.leaves, d.frame.Bytes):
		_, err = fmt.Fprintf(env.Stdout, "leaves as %x\n", d.leaves)
	}
	return err
}

// run takes the packet through a pipeline, whose actions may change it.
func (d *describedPacket) run(prog *pipe.Program) {
	forward, walk, leaves, fault := prog.RunFrame(d.frame)
	d.leaves, d.fault = leaves, fault
	d.walk.Forward = prog.ForwardName(forward)
	for _, s := range walk {
		step := gateway.PipelineWalkStep{Pipe: prog.PipeName(uint32(s.Pipe))}
		switch {
		case s.Found && s.Place == 0:
			step.Entry = "(found)"
		case s.Found:
			step.Entry = prog.EntryName(s.Pipe, s.Place)
		}
		d.walk.Steps = append(d.walk.Steps, step)
	}
}

// judge takes the packet through the policy's own pipes: as the one that opens a flow.
func (d *describedPacket) judge(env *Env, cmd *cobra.Command, o *offline, source *policySource, out string) error {
	flags, err := d.flags()
	if err != nil {
		return err
	}
	flags.Out = out
	x, err := explain(env, cmd, source, flags)
	if err != nil {
		return err
	}
	own, err := o.policyPipes(0)
	if err != nil {
		return err
	}
	if !x.sorted() {
		d.walk.Forward = fmt.Sprintf("drop (%s)", x.Reason)
		return nil
	}
	steps, forward := own.Walk(x.decided(flags))
	for _, s := range steps {
		d.walk.Steps = append(d.walk.Steps, gateway.PipelineWalkStep{
			Policy: true, Pipe: s.Pipe, Entry: s.Entry, Audited: s.Audited, Does: s.Does, File: s.File, Line: s.Line, Forward: s.Forward,
		})
	}
	d.walk.Forward = forward
	return nil
}

// decided is what the compiled classifiers have said of the packet.
func (x *explanation) decided(p packetFlags) *pipes.Decided {
	dst, _ := netip.ParseAddr(p.Dst)
	d := &pipes.Decided{
		Port: p.In, From: x.From.Zone, To: x.To.Zone, Destined: dst, Reason: x.Reason, Rule: x.Rule,
		Asked: x.Verdict != string(firewall.VerdictDrop) || x.Reason == bpf.XDPReasonREASON_SPOOFED.String(),
	}
	switch {
	case x.refused != "":
		d.Rule, d.Asked, d.Late = x.refused, true, true
	case x.Rule == "":
		d.Rule = firewall.NameNone
	}
	for _, a := range x.Audit {
		d.Audited = append(d.Audited, a.Rule)
	}
	if x.NAT != nil {
		d.Destination, d.Exempt, d.Source = x.NAT.Destination.Rule, x.NAT.Destination.exempt, x.NAT.Source.Rule
		if of := x.NAT.Destination.OneOf; len(of) > 0 {
			d.Server = "one of " + strings.Join(of, ", ")
		}
	}
	return d
}

// sorted says that the packet was taken for one that may open a flow: only then are pipes asked.
func (x *explanation) sorted() bool {
	switch x.Reason {
	case "", bpf.XDPReasonREASON_NO_RULE_MATCHED.String(), bpf.XDPReasonREASON_DENY.String(), bpf.XDPReasonREASON_REJECT.String(), bpf.XDPReasonREASON_SPOOFED.String(),
		bpf.XDPReasonREASON_NAT_TO_HOST.String(), bpf.XDPReasonREASON_NAT_CONFLICT.String():
		return true
	}
	return false
}

// flags are the words by which `explain` knows the packet.
func (d *describedPacket) flags() (p packetFlags, err error) {
	w := &d.frame.Fields.Word
	has := func(bit bpf.PipesPipeHas) bool { return w[bpf.PipesPipeWordPIPE_HAS]&uint32(bit) != 0 }
	for name, id := range d.ports {
		if id == w[bpf.PipesPipeWordPIPE_PORT] {
			p.In = name
		}
	}
	src, dst := int(bpf.PipesPipeWordPIPE_IP_SRC), int(bpf.PipesPipeWordPIPE_IP_DST)
	switch {
	case p.In == "":
		return p, errors.New("the policy asks where a packet comes from: add port=NAME")
	case has(bpf.PipesPipeHasPIPE_HAS_IPV4):
		p.Src, p.Dst = pipe.LookupField("ipv4.src").Text(w[src:src+1]), pipe.LookupField("ipv4.dst").Text(w[dst:dst+1])
	case has(bpf.PipesPipeHasPIPE_HAS_IPV6):
		p.Src, p.Dst = pipe.LookupField("ipv6.src").Text(w[src:src+4]), pipe.LookupField("ipv6.dst").Text(w[dst:dst+4])
	default:
		return p, errors.New("the policy is asked about IP: add ipv4.src and ipv4.dst, or those of ipv6")
	}
	if has(bpf.PipesPipeHasPIPE_HAS_VLAN0) {
		p.VLAN = uint16(w[bpf.PipesPipeWordPIPE_VLAN0ID])
	}
	mac := int(bpf.PipesPipeWordPIPE_ETH_SRC)
	if hw := pipe.LookupField("eth.src").Text(w[mac : mac+2]); w[mac]|w[mac+1] != 0 {
		if _, err := net.ParseMAC(hw); err == nil {
			p.MAC = hw
		}
	}
	switch proto := uint8(w[bpf.PipesPipeWordPIPE_IP_PROTO]); proto {
	case packet.ProtoICMP, packet.ProtoICMPv6:
		p.Service = fmt.Sprintf("%s/%d/%d", protocol(proto), w[bpf.PipesPipeWordPIPE_ICMP_TYPE], w[bpf.PipesPipeWordPIPE_ICMP_CODE])
	case packet.ProtoTCP, packet.ProtoUDP:
		p.Service = fmt.Sprintf("%s/%d", protocol(proto), w[bpf.PipesPipeWordPIPE_L4DPORT])
		p.SrcPort = fmt.Sprint(w[bpf.PipesPipeWordPIPE_L4SPORT])
	default:
		p.Proto = fmt.Sprint(proto)
	}
	return p, nil
}

// walkTable lists a packet's way with what each entry of the policy's own pipes does.
func walkTable(w *gateway.PipelineWalk) *table {
	t := newTable("PIPE", "ENTRY", "THEN", "PLACE")
	for i, s := range w.Steps {
		then, place := s.Forward, "-"
		switch {
		case s.Policy:
		case i+1 < len(w.Steps) && !w.Steps[i+1].Policy:
			then = "pipe " + w.Steps[i+1].Pipe
		default:
			then = string(pipe.ToPolicy)
		}
		if s.Does != "" {
			then = s.Does + ", " + then
		}
		if s.File != "" {
			place = fmt.Sprintf("%s:%d", s.File, s.Line)
		}
		for _, name := range s.Audited {
			t.add(s.Pipe, name, "audit: the next entry", "-")
		}
		t.add(s.Pipe, entryOrMiss(s.Entry), then, place)
	}
	if len(w.Steps) == 0 || !slices.ContainsFunc(w.Steps, func(s gateway.PipelineWalkStep) bool { return s.Forward == w.Forward }) {
		t.add("-", "-", w.Forward, "-")
	}
	return t
}

func entryOrMiss(name string) string {
	if name == "" {
		return "(miss)"
	}
	return name
}
