package gateway

import (
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/bpf"
)

// captureFate is what a comment is made of.
type captureFate struct {
	rule, epoch                    uint32
	reason, pass, from, to, egress uint8
}

const captureComments = 4096 // that are kept: packets of a flow share theirs

// comment says what became of a captured packet and why, as words of the form key=value: verdict, rule
// and its place, reason, what the kernel does with it, zones, the port by which it leaves, and the policy's
// epoch. What is not known is left out.
func (s *captureStream) comment(head *bpf.XDPTapped) string {
	if names := s.rules.Names(); names != s.named || len(s.comments) == captureComments {
		s.named = names
		clear(s.comments)
	}
	f := captureFate{head.Rule, head.Epoch, head.Reason, head.Pass, head.From, head.To, head.Egress}
	text, known := s.comments[f]
	if !known {
		text = f.text(s.named, s.ports[head.Egress].name)
		s.comments[f] = text
	}
	return text
}

func (f captureFate) text(rules *Ruleset, out string) string {
	reason := bpf.XDPReason(f.reason)
	b := append([]byte("verdict="), VerdictOf(reason)...)
	word := func(key, value string) {
		b = append(append(append(b, ' '), key...), '=')
		if strings.ContainsAny(value, " \"=") {
			b = strconv.AppendQuote(b, value)
		} else {
			b = append(b, value...)
		}
	}
	if f.rule != 0 {
		info := rules.rule(f.rule)
		word("rule", info.Name)
		if info.File != "" {
			word("at", info.File+":"+strconv.Itoa(info.Line))
		}
	}
	if reason != bpf.XDPReasonREASON_NONE {
		word("reason", reason.String())
	}
	if f.pass != 0 {
		word("kernel", bpf.XDPPassCause(f.pass-1).String())
	}
	if f.from != 0 {
		word("from", rules.zoneName(f.from))
	}
	if f.to != 0 {
		word("to", rules.zoneName(f.to))
	}
	if out != "" {
		word("out", out)
	}
	word("epoch", strconv.FormatUint(uint64(f.epoch), 10))
	return string(b)
}

// VerdictOf says in a word what a packet is to the policy: allow, deny, reject, or drop for a reason of the
// packet's own.
func VerdictOf(reason bpf.XDPReason) string {
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
