package firewall

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// An Import tells what became of a rule set in another program's language.
type Import struct {
	Lines    int     // that held a rule
	Rules    int     // written
	Warnings []Error // rules that were left out, and why
}

// ImportClassBench reads the ClassBench filter set r, whose name stands in errors, and writes a policy to w: the rule
// of line N is named line-N, allows, and stands in the order of the file; what none matches is denied. The set's last
// column, of flags, is not read. A range of ports there speaks of TCP and UDP only: a rule that has one and another
// protocol matches nothing and is left out with a warning. An error of type Error names the line that could
// not be read; then what was written is of no use.
//
// The format is that of the ClassBench generator (Taylor and Turner, "ClassBench: A Packet Classification Benchmark",
// 2007), one rule a line, first match first:
//
//	@10.0.0.0/8	192.0.2.1/32	0 : 65535	80 : 80	0x06/0xFF	0x0000/0x0000
func ImportClassBench(w io.Writer, r io.Reader, name string) (Import, error) {
	out := bufio.NewWriter(w)
	fmt.Fprint(out, "apiVersion: softdpu/v1\nkind: Policy\nrules:\n")
	var done Import
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		if strings.TrimSpace(text) == "" {
			continue
		}
		at := Pos{File: name, Line: n, Column: 1, Source: text}
		f, err := parseFilter(text)
		if err != nil {
			return done, at.Errorf("%v", err).
				WithHint("a rule is: @source/length destination/length low : high low : high protocol/mask flags/mask")
		}
		done.Lines++
		service, ok := f.service()
		if !ok {
			done.Warnings = append(done.Warnings, at.Errorf("ports of protocol %d: the rule matches nothing", f.proto).
				WithHint("left out: only TCP and UDP have ports"))
			continue
		}
		done.Rules++
		fmt.Fprintf(out, "  - {name: line-%d, from: {addresses: [%s]}, to: {addresses: [%s]}, %saction: allow}\n", n, f.src, f.dst, service)
	}
	if err := lines.Err(); err != nil {
		return done, fmt.Errorf("read %s: %w", name, err)
	}
	if done.Rules == 0 {
		return done, Error{File: name, Msg: "there is no rule in it", Hint: "a rule is a line that begins with @"}
	}
	if err := out.Flush(); err != nil {
		return done, fmt.Errorf("write the policy: %w", err)
	}
	return done, nil
}

// A filter is a rule of a ClassBench set.
type filter struct {
	src, dst         netip.Prefix
	srcPort, dstPort string // as the policy writes them; "" is any
	proto            uint8
	anyProto         bool
}

func parseFilter(text string) (f filter, err error) {
	words := strings.Fields(strings.ReplaceAll(text, ":", " : "))
	if len(words) < 9 || !strings.HasPrefix(words[0], "@") || words[3] != ":" || words[6] != ":" {
		return f, fmt.Errorf("this is not a rule of a ClassBench set")
	}
	if f.src, err = filterPrefix(strings.TrimPrefix(words[0], "@")); err != nil {
		return f, err
	}
	if f.dst, err = filterPrefix(words[1]); err != nil {
		return f, err
	}
	if f.srcPort, err = filterPorts(words[2], words[4]); err != nil {
		return f, err
	}
	if f.dstPort, err = filterPorts(words[5], words[7]); err != nil {
		return f, err
	}
	proto, mask, _ := strings.Cut(words[8], "/")
	p, err := strconv.ParseUint(proto, 0, 8)
	if err != nil {
		return f, fmt.Errorf("%q is not a protocol", words[8])
	}
	f.proto = uint8(p)
	switch m, err := strconv.ParseUint(mask, 0, 8); {
	case err != nil || m != 0 && m != 0xff:
		return f, fmt.Errorf("%q is not a mask of the protocol: it is 0xFF, or 0x00 for any", mask)
	default:
		f.anyProto = m == 0
	}
	return f, nil
}

// filterPrefix reads an IPv4 prefix. Bits behind its length are dropped, as the generator leaves some.
func filterPrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() {
		return p, fmt.Errorf("%q is not an IPv4 prefix", text)
	}
	return p.Masked(), nil
}

func filterPorts(low, high string) (string, error) {
	r, _, err := parsePorts(low + "-" + high)
	switch {
	case err != nil:
		return "", err
	case r == anyPort[0]:
		return "", nil
	case r.First == r.Last:
		return fmt.Sprint(r.First), nil
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last), nil
}

// service is the rule's `service:` with what follows it, "" for any. It is not ok if nothing can match.
func (f *filter) service() (text string, ok bool) {
	if f.srcPort == "" && f.dstPort == "" {
		if f.anyProto {
			return "", true
		}
		return fmt.Sprintf("service: %s, ", protoText(f.proto)), true
	}
	ports := ""
	if f.srcPort != "" {
		ports += ", source_port: " + f.srcPort
	}
	if f.dstPort != "" {
		ports += ", port: " + f.dstPort
	}
	switch {
	case f.anyProto:
		return fmt.Sprintf("service: [{proto: tcp%s}, {proto: udp%s}], ", ports, ports), true
	case f.proto == protoTCP || f.proto == protoUDP:
		return fmt.Sprintf("service: {proto: %s%s}, ", protoText(f.proto), ports), true
	}
	return "", false
}
