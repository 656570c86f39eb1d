package gateway

import (
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/bpf"
)

// comment says what became of a captured packet and why, as words of the form key=value: verdict, rule
// and its place, reason, what the kernel does with it, zones, the port by which it leaves, and the policy's
// epoch. What is not known is left out.
func (s *captureStream) comment(head *bpf.XDPTapped) string {
	reason, rules := bpf.XDPReason(head.Reason), s.rules.Names()
	b := append(s.line[:0], "verdict="...)
	b = append(b, captureVerdict(reason)...)
	word := func(key, value string) {
		b = append(append(append(b, ' '), key...), '=')
		if strings.ContainsAny(value, " \"=") {
			b = strconv.AppendQuote(b, value)
		} else {
			b = append(b, value...)
		}
	}
	if head.Rule != 0 {
		info := rules.rule(head.Rule)
		word("rule", info.Name)
		if info.File != "" {
			word("at", info.File+":"+strconv.Itoa(info.Line))
		}
	}
	if reason != bpf.XDPReasonREASON_NONE {
		word("reason", reason.String())
	}
	if head.Pass != 0 {
		word("kernel", bpf.XDPPassCause(head.Pass-1).String())
	}
	if head.From != 0 {
		word("from", rules.zoneName(head.From))
	}
	if head.To != 0 {
		word("to", rules.zoneName(head.To))
	}
	if name := s.names[head.Egress]; name != "" {
		word("out", name)
	}
	word("epoch", strconv.FormatUint(uint64(head.Epoch), 10))
	s.line = b
	return string(b)
}

// captureVerdict says what a packet is to the policy, in the words of `softdpu sim`.
func captureVerdict(reason bpf.XDPReason) string {
	switch reason {
	case bpf.XDPReasonREASON_NONE:
		return "allow"
	case bpf.XDPReasonREASON_DENY, bpf.XDPReasonREASON_NO_RULE_MATCHED:
		return "deny"
	case bpf.XDPReasonREASON_REJECT:
		return "reject"
	}
	return "drop"
}
