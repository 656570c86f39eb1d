package firewall

import (
	"maps"
	"slices"

	"github.com/softdpu/softdpu/flowtable"
)

// compiledFrom is what another compilation can go by.
type compiledFrom struct {
	policy  *Policy
	first   int     // entries before those of the policy's rules
	ends    []int32 // of the entries of each rule, from there
	odd     []int32 // rules that were warned of
	sets    map[string][]box
	lastMAC uint16
}

// ruleRun are rules that two policies have as the same, one behind the other.
type ruleRun struct{ old, new, n int }

// mostKeptSets is how many lists of sets more than there are sets are taken over: with each edit that makes another list those grow,
// whether rules still have them or not. Beyond it they are made anew as rules ask for them.
const mostKeptSets = 64

// sameWindow is how many rules behind a change are looked at before all are.
const sameWindow = 512

// sameRules finds the rules that the policy shares with the one before.
func (c *compiler) sameRules() (runs []ruleRun) {
	if c.opts.After == nil {
		return nil
	}
	return sameRuns(c.opts.After.source.policy.Rules, c.policy.Rules)
}

// sameRuns finds what two lists hold in the same place in memory and in the same order, not always all of it.
func sameRuns[T any](before, after []*T) (runs []ruleRun) {
	for i, j := 0, 0; i < len(before) && j < len(after); {
		n := 0
		for i+n < len(before) && j+n < len(after) && before[i+n] == after[j+n] {
			n++
		}
		if n > 0 {
			runs = append(runs, ruleRun{i, j, n})
		}
		i, j = i+n, j+n
		skipped := false
		for _, window := range []int{sameWindow, max(len(before), len(after))} {
			if a, b, ok := nextSame(before[i:min(i+window, len(before))], after[j:min(j+window, len(after))]); ok {
				i, j, skipped = i+a, j+b, true
				break
			}
		}
		if !skipped {
			break
		}
	}
	return runs
}

// nextSame returns where the first of after stands that before has too.
func nextSame[T any](before, after []*T) (i, j int, ok bool) {
	places := make(map[*T]int, len(before))
	for i, r := range before {
		places[r] = i
	}
	for j, r := range after {
		if i, ok := places[r]; ok {
			return i, j, true
		}
	}
	return 0, 0, false
}

// rules makes the entries of all rules, which stand behind others. Those of a rule that the compilation before has are
// taken over if nothing else can have changed them.
func (c *compiler) rules(before []flowtable.ACLEntry) {
	out, from := c.out, &c.out.source
	from.policy, from.first, from.lastMAC = c.policy, len(before), c.lastMAC
	from.ends = make([]int32, 0, len(c.policy.Rules))
	var runs []ruleRun
	room := len(c.policy.Rules)
	if last := c.opts.After; last != nil && c.sameSurroundings(last) {
		runs = c.runs
		if len(last.source.sets) <= mostKeptSets+len(c.policy.Sets) {
			maps.Copy(c.sets, last.source.sets)
		}
		room = len(last.Entries) - len(before)
	}
	out.Entries = slices.Grow(before, room+room/64+len(c.builtin.management))
	i := 0
	compile := func(end int) {
		for ; i < end; i++ {
			c.rule(out.Order[i], i)
			from.ends = append(from.ends, int32(len(out.Entries)-from.first))
		}
	}
	for _, run := range c.unchanged(runs) {
		compile(run.new)
		c.takeOver(run)
		i += run.n
	}
	compile(len(c.policy.Rules))
	from.sets = c.sets
	c.entries = out.Entries[len(before):]
}

// sameSurroundings reports whether all that the entries of a rule are made of beside the rule is as it was.
func (c *compiler) sameSurroundings(last *Compiled) bool {
	old := last.source.policy
	return sameSlice(old.Zones, c.policy.Zones) && slices.EqualFunc(old.Sets, c.policy.Sets, sameMembers) && sameSlice(old.Workloads, c.policy.Workloads) &&
		slices.Equal(last.Zones, c.out.Zones) && last.source.lastMAC == c.lastMAC && maps.Equal(last.MACs, c.out.MACs)
}

// unchanged returns what is left of runs of rules without those that have got another id, are warned of or have expired.
func (c *compiler) unchanged(runs []ruleRun) (out []ruleRun) {
	if len(runs) == 0 {
		return nil
	}
	last := c.opts.After
	var expired []int
	for k, id := range c.out.Special {
		if c.out.Rules[id].Expired {
			expired = append(expired, int(c.policy.special[k]))
		}
	}
	odd := last.source.odd
	for _, run := range runs {
		for k := 0; k < run.n; k++ {
			for len(odd) > 0 && int(odd[0]) < run.old+k {
				odd = odd[1:]
			}
			for len(expired) > 0 && expired[0] < run.new+k {
				expired = expired[1:]
			}
			if c.out.Order[run.new+k] == last.Order[run.old+k] && (len(odd) == 0 || int(odd[0]) != run.old+k) && (len(expired) == 0 || expired[0] != run.new+k) {
				continue
			}
			if k > 0 {
				out = append(out, ruleRun{run.old, run.new, k})
			}
			run = ruleRun{run.old + k + 1, run.new + k + 1, run.n - k - 1}
			k = -1
		}
		if run.n > 0 {
			out = append(out, run)
		}
	}
	return out
}

// takeOver appends the entries that rules had before.
func (c *compiler) takeOver(run ruleRun) {
	last, out, from := c.opts.After, c.out, &c.out.source
	first := int32(0)
	if run.old > 0 {
		first = last.source.ends[run.old-1]
	}
	shift := int32(len(out.Entries)-from.first) - first
	ends := last.source.ends[run.old : run.old+run.n]
	out.Entries = append(out.Entries, last.Entries[last.source.first:][first:ends[len(ends)-1]]...)
	for _, end := range ends {
		from.ends = append(from.ends, end+shift)
	}
}

// sameMembers reports whether two sets are the same to rules. What sets are given at runtime is put into them anew with
// each policy.
func sameMembers(a, b Set) bool {
	return a.Name == b.Name && a.Type == b.Type && (sameSlice(a.Prefixes, b.Prefixes) || slices.Equal(a.Prefixes, b.Prefixes)) && slices.Equal(a.MACs, b.MACs)
}

// sameSlice reports whether two slices are the same memory.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
