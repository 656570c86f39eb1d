package firewall

import (
	"slices"
	"strconv"

	"github.com/softdpu/softdpu/flowtable"
)

// mssClamp reads the most that SYNs of the rule's flows may ask for.
func (l *loader) mssClamp(r *Rule, n *Node) {
	mss, ok := l.Int(n, "mss_clamp", flowtable.MSSMin, flowtable.MSSMax)
	if !ok {
		return
	}
	r.MSSClamp = uint16(mss)
	switch {
	case r.Action != Allow && r.Action != 0:
		l.Fail(n.Pos.Errorf("mss_clamp on a rule that does not allow").WithHint("take mss_clamp out; it changes the SYNs of connections"))
	case r.Audit:
		l.Fail(n.Pos.Errorf("mss_clamp on a rule in audit mode").WithHint("take mss_clamp out; no flow is of this rule, since evaluation goes on"))
	case r.Services != nil && !slices.ContainsFunc(r.Services, ServiceMatch.hasTCP):
		l.Fail(n.Pos.Errorf("mss_clamp on a rule without TCP").WithHint("only SYNs of TCP have an MSS; take mss_clamp out"))
	}
}

func (s ServiceMatch) hasTCP() bool { return s.Proto.First <= protoTCP && protoTCP <= s.Proto.Last }

// mssText writes a limit of the MSS; "" for none.
func mssText(mss uint16) string {
	if mss == 0 {
		return ""
	}
	return strconv.Itoa(int(mss))
}

// MSS is the most that SYNs of the flows of each rule may ask for that says so.
func (c *Compiled) MSS() map[uint32]uint16 {
	out := make(map[uint32]uint16)
	for _, id := range c.Special {
		if r := &c.Rules[id]; r.MSSClamp != 0 && !r.Expired {
			out[id] = r.MSSClamp
		}
	}
	return out
}
