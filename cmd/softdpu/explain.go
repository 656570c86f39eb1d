package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// packetFlags describe the opening packet of a flow, as tests of a policy do.
type packetFlags struct {
	In      string `json:"in"`
	Out     string `json:"out,omitempty"`
	VLAN    uint16 `json:"vlan,omitempty"`
	OutVLAN uint16 `json:"out_vlan,omitempty"`
	Src     string `json:"src"`
	Dst     string `json:"dst"`
	MAC     string `json:"mac,omitempty"`
	Service string `json:"service,omitempty"`
	Proto   string `json:"proto,omitempty"`
	SrcPort string `json:"sport,omitempty"`
	DstPort string `json:"dport,omitempty"`
}

// explanation is what `softdpu explain -o json` prints.
type explanation struct {
	Verdict   string           `json:"verdict"` // allow, deny, reject; drop for a named reason
	Reason    string           `json:"reason,omitempty"`
	Rule      string           `json:"rule,omitempty"` // absent if no rule matched
	File      string           `json:"file,omitempty"`
	Line      int              `json:"line,omitempty"`
	Source    []string         `json:"source,omitempty"` // lines of the file, from Line
	Builtin   bool             `json:"builtin,omitempty"`
	Says      string           `json:"explanation"`
	Remedy    string           `json:"remedy,omitempty"` // a rule that would allow it
	Packet    explainedPacket  `json:"packet"`
	From      explainedEnd     `json:"from"`
	To        explainedEnd     `json:"to"`
	Audit     []explainedAudit `json:"audit,omitempty"` // rules in audit mode that matched on the way
	Tier      string           `json:"tier,omitempty"`  // that the flow of an allowed packet begins in
	Why       []string         `json:"needs_worker,omitempty"`
	OnFailure string           `json:"on_failure,omitempty"` // of a flow that needs a worker
	NAT       *explainedNAT    `json:"nat,omitempty"`        // of a policy with nat rules

	expires string
	refused string // rule that allowed a packet whose source cannot be translated; "" if that is not what became of it
}

type explainedPacket struct {
	Proto   string `json:"proto"`
	SrcIP   string `json:"src_ip"`
	SrcPort uint16 `json:"src_port,omitempty"`
	DestIP  string `json:"dest_ip"`
	DstPort uint16 `json:"dest_port,omitempty"`
	Type    *uint8 `json:"icmp_type,omitempty"`
	Code    *uint8 `json:"icmp_code,omitempty"`
}

type explainedEnd struct {
	Zone      string   `json:"zone"`
	Port      string   `json:"port,omitempty"`
	VLAN      uint16   `json:"vlan,omitempty"`
	Workloads []string `json:"workloads,omitempty"` // that hold this end
}

type explainedAudit struct {
	Rule   string `json:"rule"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Action string `json:"action"` // that it would have taken
}

func newExplainCommand(env *Env) *cobra.Command {
	var source policySource
	var p packetFlags
	cmd := &cobra.Command{
		Use:   "explain --in PORT --src ADDRESS --dst ADDRESS --service SERVICE",
		Short: "Say what the policy does with a packet, and which rule decides",
		Long: `Say what becomes of the first packet of a connection: the verdict, the rule that decides with its place
in the files, the zones and workloads that the two ends belong to, what rules in audit mode would have
done, and what nat rules make of source and destination.

The packet leaves by the inline peer of --in, else where the routes lead: say --out, or give --routes.
Without -c every port that the policy names exists, and what comes in from zone lan leaves to zone wan.

Exit code 0: the packet is allowed. 1: it is not.`,
		Example: `  softdpu explain -c softdpu.yaml --in lan0 --out wan0 --src 10.20.1.7 --dst 203.0.113.5 --service tcp/443
  softdpu explain --policy policy.d --in lan --src 10.20.1.7 --dst 203.0.113.5 --service icmp/echo-request
  ip -j route show table all | softdpu explain -c softdpu.yaml --routes - --in lan0 --src 10.20.1.7 --dst 203.0.113.5 --service udp/53`,
		Args: takes(0),
	}
	source.addConfigFlag(cmd)
	source.addPolicyFlag(cmd)
	source.addRoutesFlag(cmd)
	source.addAddressFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&p.In, "in", "", "`port` or zone that the packet comes from, or host")
	f.StringVar(&p.Out, "out", "", "`port` or zone that it goes to, or host")
	f.Uint16Var(&p.VLAN, "vlan", 0, "outer VLAN `id` of its frame")
	f.Uint16Var(&p.OutVLAN, "out-vlan", 0, "outer VLAN `id` of the zone that it goes to")
	f.StringVar(&p.Src, "src", "", "source `address`")
	f.StringVar(&p.Dst, "dst", "", "destination `address`")
	f.StringVar(&p.MAC, "mac", "", "source MAC `address`")
	f.StringVar(&p.Service, "service", "", "`service`: a literal such as tcp/443, icmp/echo-request or esp, or a name of the policy")
	f.StringVar(&p.Proto, "proto", "", "`protocol` by name or number, in the place of --service")
	f.StringVar(&p.SrcPort, "sport", "", "source `port`; one of the dynamic ports otherwise")
	f.StringVar(&p.DstPort, "dport", "", "destination `port`, where the service does not say it")
	format := addOutputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		for _, flag := range []struct{ name, value string }{{"--in", p.In}, {"--src", p.Src}, {"--dst", p.Dst}, {"--service", p.Service + p.Proto}} {
			if flag.value == "" {
				return usagef(cmd, "%s needs %s", cmd.CommandPath(), flag.name)
			}
		}
		x, err := explain(env, cmd, &source, p)
		if err != nil {
			return err
		}
		if format.json {
			err = printJSON(env.Stdout, x)
		} else {
			_, err = env.Stdout.Write([]byte(x.text()))
		}
		if err == nil && x.Verdict != string(firewall.VerdictAllow) {
			err = answerNo(nil)
		}
		return err
	}
	return cmd
}

// packetName is the name of the test that the packet becomes, packetFile that of its file.
const (
	packetName = "packet of the command line"
	packetFile = "command line"
)

// explain asks the compiled classifier.
func explain(env *Env, cmd *cobra.Command, source *policySource, p packetFlags) (*explanation, error) {
	if source.config == "" && len(source.policies) == 0 {
		source.config = defaultConfig
		if _, err := os.Stat(defaultConfig); err != nil {
			return nil, usagef(cmd, "%s needs a policy: name the configuration with -c, or policy files with --policy", cmd.CommandPath())
		}
	}
	o, err := source.load(env, firewall.CompileOptions{})
	if err != nil {
		return nil, err
	}
	test, err := o.test(cmd, p)
	if err != nil {
		return nil, err
	}
	acl, err := flowtable.CompileACL(o.compiled.Entries)
	if err != nil {
		return nil, fmt.Errorf("compile policy: %w", err)
	}
	only := *o.compiled
	only.Tests = []firewall.Test{test}
	var to string
	route := o.router()
	if test.Packet.Out == "" && route == nil {
		return nil, usagef(cmd, "where %s lies is not known: add --out PORT (or --out host), or --routes FILE", o.headedFor(&test.Packet))
	}
	result := firewall.RunTests(&only, acl, func(in string, dst netip.Addr) (zone string, ok bool) {
		to, ok = route(in, dst)
		return to, ok
	})[0]
	if result.Verdict == "" {
		return nil, usagef(cmd, "%s", strings.TrimPrefix(said(*result.Err), fmt.Sprintf("test %q: ", packetName)))
	}
	x := o.explanation(&test.Packet, &result)
	if to != "" {
		x.To.Zone = to
	}
	x.To.Workloads = o.workloads(x.To.Zone, test.Packet.Dst, firewall.MAC{}, false)
	x.judge(o, &test.Packet, &result)
	x.translate(o, &test.Packet)
	return x, nil
}

// test makes a test of the policy of the packet, so that its words mean what they mean there.
func (o *offline) test(cmd *cobra.Command, p packetFlags) (firewall.Test, error) {
	if p.Out == "" {
		p.Out = o.peerOf(p.In)
		if p.OutVLAN == 0 && p.Out != "" {
			p.OutVLAN = p.VLAN
		}
	}
	if p.Out == "" && o.config == nil && o.routes == nil {
		p.Out = o.acrossFrom(p.In, p.VLAN)
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": firewall.APIVersion, "kind": "Policy",
		"tests": []any{map[string]any{"name": packetName, "packet": p, "expect": map[string]string{"verdict": "allow"}}},
	})
	if err != nil {
		return firewall.Test{}, fmt.Errorf("describe packet: %w", err)
	}
	var sources []firewall.Source
	for _, name := range o.policy.Files {
		b, err := firewall.ReadFile(name)
		if err != nil {
			return firewall.Test{}, fmt.Errorf("read policy: %w", err)
		}
		sources = append(sources, firewall.Source{Name: name, Text: b})
	}
	policy, err := firewall.Parse(append(sources, firewall.Source{Name: packetFile, Text: text}), firewall.ReadFile)
	if err != nil {
		for _, e := range mistakes(err) {
			if e.File == packetFile {
				return firewall.Test{}, usagef(cmd, "%s", said(e))
			}
		}
		return firewall.Test{}, err
	}
	return policy.Tests[len(policy.Tests)-1], nil
}

// said is a mistake on the command line, without its place there.
func said(e firewall.Error) string {
	return firewall.Error{Msg: e.Msg, Hint: e.Hint}.Error()
}

// acrossFrom returns the zone on the other side of the two ports lan and wan that there are without a
// configuration; "" if in is of neither.
func (o *offline) acrossFrom(in string, vlan uint16) string {
	zone, _ := o.zoneName(in, vlan)
	across := map[string]string{"lan": "wan", "wan": "lan"}[zone]
	if slices.Contains(o.compiled.Zones, across) {
		return across
	}
	return ""
}

func (o *offline) explanation(p *firewall.TestPacket, r *firewall.TestResult) *explanation {
	x := &explanation{
		Packet: explainedPacket{Proto: protocol(p.Proto), SrcIP: p.Src.String(), DestIP: p.Dst.String(), SrcPort: p.SrcPort, DstPort: p.DstPort},
		From:   o.end(p.In, p.VLAN), To: o.end(p.Out, p.OutVLAN),
	}
	if p.Proto == packet.ProtoICMP || p.Proto == packet.ProtoICMPv6 {
		kind, code := uint8(p.DstPort>>8), uint8(p.DstPort)
		x.Packet.DstPort, x.Packet.Type, x.Packet.Code = 0, &kind, &code
	}
	x.From.Workloads = o.workloads(x.From.Zone, p.Src, p.MAC, true)
	for _, name := range r.Audited {
		i := slices.IndexFunc(o.compiled.Rules, func(r firewall.RuleInfo) bool { return r.Name == name })
		info := &o.compiled.Rules[i]
		x.Audit = append(x.Audit, explainedAudit{info.Name, info.File, info.Line, info.Action.String()})
	}
	return x
}

func (o *offline) end(name string, vlan uint16) (e explainedEnd) {
	id, _ := zoneOf(o.compiled, name, vlan)
	e.Zone = o.compiled.Zones[id]
	if e.Zone != name {
		e.Port, e.VLAN = name, vlan
	}
	return e
}

// workloads names those that an end belongs to. MACs can only be asked of a source.
func (o *offline) workloads(zone string, a netip.Addr, mac firewall.MAC, source bool) (names []string) {
	for i := range o.policy.Workloads {
		w := &o.policy.Workloads[i]
		inside := func(r flowtable.AddrRange) bool {
			return r.First.Is4() == a.Is4() && !a.Less(r.First) && !r.Last.Less(a)
		}
		if (len(w.Zones) == 0 || slices.Contains(w.Zones, zone)) &&
			(len(w.Addresses) == 0 || slices.ContainsFunc(w.Addresses, inside)) &&
			(len(w.MACs) == 0 || source && slices.Contains(w.MACs, mac)) {
			names = append(names, w.Name)
		}
	}
	return names
}

// judge fills in what decided.
func (x *explanation) judge(o *offline, p *firewall.TestPacket, r *firewall.TestResult) {
	x.Verdict = string(r.Verdict)
	i := slices.IndexFunc(o.compiled.Rules, func(info firewall.RuleInfo) bool { return info.Name == r.Rule })
	info := &o.compiled.Rules[i]
	switch {
	case martian(p):
		x.Verdict, x.Reason = string(firewall.VerdictDrop), bpf.XDPReasonREASON_MARTIAN.String()
		x.Says = "martian: such addresses may not appear in a packet between networks, so no rule is asked"
		x.Audit = nil
		return
	case x.Packet.Type != nil && x.unasked(o, p):
		x.Audit = nil
		return
	case r.Verdict == firewall.VerdictDrop:
		x.Reason = bpf.XDPReasonREASON_SPOOFED.String()
		x.Says = fmt.Sprintf("spoofed: %s is outside the addresses of zone %q, so no rule is asked", p.Src, x.From.Zone)
		return
	case i == int(firewall.RuleNone):
		x.Reason = bpf.XDPReasonREASON_NO_RULE_MATCHED.String()
		x.Says = "no rule matched, and what no rule allows is denied"
		x.Remedy = fmt.Sprintf("- {name: NAME, from: %s, to: %s, service: %s, action: allow}", x.From.Zone, x.To.Zone, x.service(p))
		return
	case r.Verdict == firewall.VerdictDeny:
		x.Reason = bpf.XDPReasonREASON_DENY.String()
	case r.Verdict == firewall.VerdictReject:
		x.Reason = bpf.XDPReasonREASON_REJECT.String()
	}
	x.Rule, x.File, x.Line, x.Builtin = info.Name, info.File, info.Line, info.Builtin
	if info.Builtin {
		x.Says = fmt.Sprintf("built-in rule %q: %s", info.Name, info.Description)
		return
	}
	x.Says = fmt.Sprintf("rule %q, %s:%d", info.Name, info.File, info.Line)
	x.Source = ruleLines(info.File, info.Line)
	if r.Verdict == firewall.VerdictAllow {
		x.employ(o, info)
		rule := o.policy.Rules[slices.Index(o.compiled.Order, uint32(i))]
		if !rule.Expires.IsZero() {
			x.expires = rule.Expires.AddDate(0, 0, -1).Format("2006-01-02")
		}
	}
}

// unasked fills in what decides about an ICMP message that opens no flow, of which no rule is asked.
func (x *explanation) unasked(o *offline, p *firewall.TestPacket) bool {
	reason, why := bpf.XDPReasonREASON_ICMP_TYPE, "only queries, and what belongs to a connection, pass"
	if (p.Proto == packet.ProtoICMP) == p.Src.Is4() {
		family := uint8(4)
		if p.Src.Is6() {
			family = 6
		}
		switch packet.KindOf(family, *x.Packet.Type) {
		case packet.Query:
			return false
		case packet.Reply:
			reason, why = bpf.XDPReasonREASON_ICMP_NO_REQUEST, "a reply passes with the request that it answers"
		case packet.Error:
			reason, why = bpf.XDPReasonREASON_ICMP_NO_FLOW, "an error passes with the connection of the packet that it quotes"
		case packet.Neighbour, packet.Listener:
			if p.In == firewall.NameHost || p.Out == firewall.NameHost || o.peerOf(p.In) != "" {
				info := &o.compiled.Rules[firewall.RuleND]
				x.Verdict, x.Rule, x.Builtin = string(firewall.VerdictAllow), info.Name, true
				x.Says = fmt.Sprintf("built-in rule %q: %s, if it comes from this link", info.Name, info.Description)
				return true
			}
			why = "discovery passes by builtin-nd on its own link, and goes no further"
		}
	}
	x.Verdict, x.Reason = string(firewall.VerdictDrop), reason.String()
	x.Says = fmt.Sprintf("%s: %s, so no rule is asked", reason, why)
	return true
}

// service writes the packet's protocol as a rule would.
func (x *explanation) service(p *firewall.TestPacket) string {
	switch {
	case x.Packet.Type != nil:
		return fmt.Sprintf("%s/%d", x.Packet.Proto, *x.Packet.Type)
	case p.Proto == packet.ProtoTCP || p.Proto == packet.ProtoUDP:
		return fmt.Sprintf("%s/%d", x.Packet.Proto, p.DstPort)
	case x.Packet.Proto == strconv.Itoa(int(p.Proto)):
		return "proto/" + x.Packet.Proto
	}
	return x.Packet.Proto
}

// martian reports whether the packet's addresses are refused before any rule. It asks the packet path's
// own parser, with an IP header in front of nothing.
func martian(p *firewall.TestPacket) bool {
	frame := make([]byte, packet.EthernetLen, packet.EthernetLen+packet.IPv6Len)
	frame[12], frame[13] = packet.EtherTypeIPv6>>8, packet.EtherTypeIPv6&0xff
	if p.Src.Is4() {
		frame[12], frame[13] = packet.EtherTypeIPv4>>8, packet.EtherTypeIPv4&0xff
		ip := []byte{4<<4 | 5, 0, 0, packet.IPv4Len, 0, 0, 0, 0, 64, p.Proto, 0, 0}
		ip = append(append(ip, p.Src.AsSlice()...), p.Dst.AsSlice()...)
		sum := packet.Checksum(ip, 0)
		ip[10], ip[11] = byte(sum>>8), byte(sum)
		frame = append(frame, ip...)
	} else {
		frame = append(frame, 6<<4, 0, 0, 0, 0, 0, p.Proto, 64)
		frame = append(append(frame, p.Src.AsSlice()...), p.Dst.AsSlice()...)
	}
	var parsed packet.Parsed
	return parsed.Decode(frame) == packet.Martian
}
