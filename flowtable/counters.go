package flowtable

import "github.com/softdpu/softdpu/bpf"

// Built-in rules that the executor counts for by itself (abi.h: enum builtin_rule).
const (
	ruleARP        = uint32(bpf.XDPBuiltinRuleRULE_ARP)
	ruleND         = uint32(bpf.XDPBuiltinRuleRULE_ND)
	ruleICMPErrors = uint32(bpf.XDPBuiltinRuleRULE_ICMP_ERRORS)
	ruleReplies    = uint32(bpf.XDPBuiltinRuleRULE_REPLIES)
)

// Counters are what an Executor counts beside the flows themselves, like the maps of bpf/maps.h.
// Every packet that is not forwarded counts in exactly one of Reasons and Passes.
type Counters struct {
	Reasons [bpf.XDPReasonREASON_LEN]bpf.XDPCounter  // bytes of frames as they arrived
	Passes  [bpf.XDPPassCausePASS_LEN]bpf.XDPCounter // bytes of frames as they arrived
	Rules   []bpf.XDPRuleCounter                     // by rule id, 0 = no rule matched; bytes of IP packets
	NAT     []bpf.XDPNatCounter                      // by nat rule id
}

// Dropped returns how many packets were not forwarded, for any reason.
func (c *Counters) Dropped() (packets uint64) {
	for i := range c.Reasons {
		packets += c.Reasons[i].Packets
	}
	return packets
}

func (c *Counters) reason(r bpf.XDPReason, bytes int) {
	c.Reasons[r].Packets++
	c.Reasons[r].Bytes += uint64(bytes)
}

// nat returns the counter of a nat rule, nil if the policy has none such.
func (c *Counters) nat(id uint32) *bpf.XDPNatCounter {
	if id == 0 || int(id) >= len(c.NAT) {
		return nil
	}
	return &c.NAT[id]
}

func (c *Counters) pass(cause bpf.XDPPassCause, bytes int) {
	c.Passes[cause].Packets++
	c.Passes[cause].Bytes += uint64(bytes)
}

// rule adds to what a rule counted. Rules beyond the policy's do not count: their flows outlived it.
func (c *Counters) rule(id uint32, packets, bytes uint64) {
	if int(id) < len(c.Rules) {
		c.Rules[id].Packets += packets
		c.Rules[id].Bytes += bytes
	}
}

// move takes what a flow counted so far to the account of the rule that judged it till now. The flow
// keeps its counts and credits them all to its last rule, which is therefore charged with them here:
// the sum is right once the flow ends, and in between modulo 2^64.
func (c *Counters) move(from, to uint32, packets, bytes uint64) {
	c.rule(from, packets, bytes)
	c.rule(to, -packets, -bytes)
}

func (c *Counters) judged(id uint32, now uint32) {
	if int(id) < len(c.Rules) {
		c.Rules[id].Judged++
		c.Rules[id].Last = now
	}
}

// admitted counts one packet that a built-in rule admits by itself.
func (c *Counters) admitted(id uint32, bytes uint64, now uint32) {
	c.judged(id, now)
	c.rule(id, 1, bytes)
}

// credit adds the counts of a flow that gave its slot away to its rule, and its replies to their
// built-in rule as well.
func (c *Counters) credit(left *ended) {
	c.rule(left.rule, left.packets, left.bytes)
	c.rule(ruleReplies, left.replies.Packets, left.replies.Bytes)
}

// Credit adds the counts of a flow that ended, as Table.Scan reports it, to its rule, and its replies to
// their built-in rule as well.
func (c *Counters) Credit(f *Flow) {
	c.rule(f.Rule, f.Packets[0]+f.Packets[1], f.Bytes[0]+f.Bytes[1])
	c.rule(ruleReplies, f.Packets[1], f.Bytes[1])
}
