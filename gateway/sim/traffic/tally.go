package traffic

import (
	"slices"

	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// Tally counts what packets reached. The zero value is not usable; a Stream makes it, and Add joins
// those of several streams.
type Tally struct {
	Packets int
	Allowed int            // forwarded or passed
	Clamped int            // of them SYNs whose MSS is lowered
	Reasons map[string]int // packets by reason
	Recipes map[string]int // packets by recipe
	// Translated are packets of translated flows that were forwarded or passed, by what they are: "tcp", "udp",
	// "query", "other", and besides "reply", "error", "later-fragment", "ipv6", "to-kernel", "worker", "admitted".
	Translated map[string]int
	// Rules that can be reached, by policy and name, with the packets that they decided about or, in
	// audit mode, matched.
	Rules map[string]int
}

// NewTally returns a tally without counts.
func NewTally() *Tally {
	return &Tally{Reasons: make(map[string]int), Recipes: make(map[string]int), Translated: make(map[string]int), Rules: make(map[string]int)}
}

// Add adds other's counts to t. Rules of other are told apart by prefix.
func (t *Tally) Add(prefix string, other *Tally) {
	t.Packets += other.Packets
	t.Allowed += other.Allowed
	t.Clamped += other.Clamped
	for reason, n := range other.Reasons {
		t.Reasons[reason] += n
	}
	for recipe, n := range other.Recipes {
		t.Recipes[recipe] += n
	}
	for what, n := range other.Translated {
		t.Translated[what] += n
	}
	for rule, n := range other.Rules {
		t.Rules[prefix+rule] += n
	}
}

// Want returns how many packets of a reason are missing to n.
func (t *Tally) Want(reason string, n int) int { return max(0, n-t.Reasons[reason]) }

// Missing returns the rules that fewer than n packets reached, in name order.
func (t *Tally) Missing(n int) []string {
	var out []string
	for rule, count := range t.Rules {
		if count < n {
			out = append(out, rule)
		}
	}
	slices.Sort(out)
	return out
}

func (t *Tally) count(recipe, policy string, v *oracle.Verdict) {
	if v.Translated && v.Reason == "" {
		t.translated(v)
	}
	t.Packets++
	t.Recipes[recipe]++
	if v.Reason == "" {
		t.Allowed++
		if v.Clamped {
			t.Clamped++
		}
	} else {
		t.Reasons[v.Reason]++
	}
	for _, rule := range append(slices.Clone(v.Audit), v.Rule) {
		if _, known := t.Rules[policy+rule]; known {
			t.Rules[policy+rule]++
		}
	}
}

func (t *Tally) translated(v *oracle.Verdict) {
	switch v.Proto {
	case protoTCP:
		t.Translated["tcp"]++
	case protoUDP:
		t.Translated["udp"]++
	case protoICMP, protoICMPv6:
		t.Translated["query"]++
	default:
		t.Translated["other"]++
	}
	for what, is := range map[string]bool{
		"reply": slices.Contains(v.Beside, "builtin-replies"), "error": slices.Contains(v.Beside, "builtin-icmp-errors"),
		"later-fragment": v.Later, "ipv6": v.Src.Addr().Is6(), "to-kernel": v.Pass != "", "worker": v.Worker,
		"admitted": v.Admitted,
	} {
		if is {
			t.Translated[what]++
		}
	}
}
