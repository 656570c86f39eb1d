package bench

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Edits of one set, one of each kind at least.
const leastEdits, mostEdits = 5, 100

// changeOne makes single edits of a policy at random places, as many as pass in d, each of which is put in force, and
// returns the seconds that each took from the whole text in memory to the policy in force.
func (r *policyRig) changeOne(policy string, d time.Duration, rnd *rand.Rand) (seconds []float64, err error) {
	lines := strings.Split(strings.TrimSuffix(policy, "\n"), "\n")
	first := slices.Index(lines, "rules:") + 1
	runtime.GC() // what compiling all of it has left would be collected under the first edits
	begin := time.Now()
	for n := 0; n < leastEdits || n < mostEdits && time.Since(begin) < d; n++ {
		lines = edit(lines, first, n, rnd)
		text := joinLines(lines, len(policy)+4096)
		start := time.Now()
		next, err := compileAfter(text, r.rules)
		if err != nil {
			return nil, err
		}
		if err := r.publish(next); err != nil {
			return nil, err
		}
		seconds = append(seconds, time.Since(start).Seconds())
	}
	return seconds, nil
}

// joinLines makes a text of lines, of room bytes or so, in memory of its own.
func joinLines(lines []string, room int) []byte {
	text := make([]byte, 0, room)
	for _, line := range lines {
		text = append(append(text, line...), '\n')
	}
	return text
}

var sourcePrefix = regexp.MustCompile(`from: \{addresses: \[([0-9./]+)\]`)

// edit makes edit n of a policy whose rules, one a line, begin at line first: in turn a rule is added, deleted, moved,
// given another action, or its source is widened.
func edit(lines []string, first, n int, rnd *rand.Rand) []string {
	at := func() int { return first + rnd.IntN(len(lines)-first) }
	i := at()
	switch n % 5 {
	case 0:
		rule := strings.Replace(lines[at()], "{name: ", fmt.Sprintf("{name: added-%d-", n), 1)
		return slices.Insert(lines, i, rule)
	case 1:
		return slices.Delete(lines, i, i+1)
	case 2:
		rule := lines[i]
		lines = slices.Delete(lines, i, i+1)
		return slices.Insert(lines, at(), rule)
	case 3:
		if strings.Contains(lines[i], "action: deny") {
			lines[i] = strings.Replace(lines[i], "action: deny", "action: reject", 1)
		} else {
			lines[i] = strings.Replace(lines[i], "action: reject", "action: deny", 1)
		}
		return lines
	}
	lines[i] = sourcePrefix.ReplaceAllStringFunc(lines[i], func(text string) string {
		p := netip.MustParsePrefix(sourcePrefix.FindStringSubmatch(text)[1])
		wider, _ := p.Addr().Prefix(max(p.Bits()-1, 0))
		return fmt.Sprintf("from: {addresses: [%s]", wider)
	})
	return lines
}
