package bench

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// An nftRule is a rule of a ClassBench set as nftables has it.
type nftRule struct {
	src, dst netip.Prefix
	match    string // protocol and ports; "" is any
	handle   int    // by which nft changes it, in a table that holds only this set
}

// text is the rule with what it does, such as accept.
func (r *nftRule) text(verdict string) string {
	var b strings.Builder
	for _, p := range []struct {
		field  string
		prefix netip.Prefix
	}{{"saddr", r.src}, {"daddr", r.dst}} {
		if p.prefix.Bits() > 0 {
			fmt.Fprintf(&b, "ip %s %s ", p.field, p.prefix)
		}
	}
	if r.match != "" {
		b.WriteString(r.match + " ")
	}
	return b.String() + verdict
}

// nftRulesOf reads a ClassBench set as ImportClassBench does, which leaves the same rules out: those that have ports and
// are neither of TCP nor of UDP.
func nftRulesOf(set []byte) ([]nftRule, error) {
	var rules []nftRule
	handle := 1 // the chain's
	for line := range bytes.Lines(set) {
		words := strings.Fields(strings.ReplaceAll(string(line), ":", " : "))
		if len(words) == 0 {
			continue
		}
		if len(words) < 9 {
			return nil, fmt.Errorf("read %q: it is no rule of a ClassBench set", line)
		}
		var r nftRule
		var err error
		if r.src, err = netip.ParsePrefix(strings.TrimPrefix(words[0], "@")); err != nil {
			return nil, err
		}
		if r.dst, err = netip.ParsePrefix(words[1]); err != nil {
			return nil, err
		}
		r.src, r.dst = r.src.Masked(), r.dst.Masked()
		proto, mask, _ := strings.Cut(words[8], "/")
		number, err := strconv.ParseUint(proto, 0, 8)
		if err != nil {
			return nil, fmt.Errorf("read protocol: %w", err)
		}
		name := map[uint64]string{6: "tcp", 17: "udp"}[number]
		any, err := strconv.ParseUint(mask, 0, 8)
		if err != nil {
			return nil, fmt.Errorf("read mask of protocol: %w", err)
		}
		if any == 0 {
			name = "th"
		}
		ports := nftPorts(name+" sport", words[2], words[4]) + nftPorts(name+" dport", words[5], words[7])
		handle++
		switch {
		case ports == "" && any == 0:
		case ports == "":
			r.match = fmt.Sprintf("meta l4proto %d", number)
		case any == 0:
			r.match = "meta l4proto { tcp, udp } " + strings.TrimSpace(ports)
			handle++ // that of the two protocols' set, which comes before the rule's
		case name == "":
			handle--
			continue
		default:
			r.match = strings.TrimSpace(ports)
		}
		r.handle = handle
		rules = append(rules, r)
	}
	return rules, nil
}

// nftPorts names ports of a field, "" for all of them.
func nftPorts(field, low, high string) string {
	switch {
	case low == "0" && high == "65535":
		return ""
	case low == high:
		return fmt.Sprintf("%s %s ", field, low)
	}
	return fmt.Sprintf("%s %s-%s ", field, low, high)
}

// nftFile is a rule file that forwards what a rule matches and nothing else.
func nftFile(rules []nftRule) []byte {
	var b bytes.Buffer
	b.WriteString("table ip bench {\n  chain forward {\n    type filter hook forward priority filter; policy drop;\n")
	for i := range rules {
		fmt.Fprintf(&b, "    %s\n", rules[i].text("accept"))
	}
	b.WriteString("  }\n}\n")
	return b.Bytes()
}

// nftBare is a rule file without any rule, under which everything is forwarded.
const nftBare = "table ip bench {\n  chain forward {\n    type filter hook forward priority filter; policy accept;\n  }\n}\n"

const nftShown = 10 // rules of a larger set

// nftSummary is a rule file, or the beginning of one and how much there is of it.
func nftSummary(rules []nftRule) string {
	text := "nft -f FILE, with:\n"
	if len(rules) <= nftShown {
		return text + string(nftFile(rules))
	}
	head, _, _ := strings.Cut(string(nftFile(rules[:nftShown])), "  }\n")
	return fmt.Sprintf("%s%s    # and so on: %d rules in all\n  }\n}\n", text, head, len(rules))
}
