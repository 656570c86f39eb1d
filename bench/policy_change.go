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
// returns the seconds that each took from the whole text in memory to the policy in force: of edits that follow one another at once, and
// of edits that come apart, when the memory that the one before has left is collected, as a gateway does a second behind each.
func (r *policyRig) changeOne(policy string, d time.Duration, rnd *rand.Rand) (atOnce, apart []float64, err error) {
	e := &policyEditor{policyRig: r, lines: strings.Split(strings.TrimSuffix(policy, "\n"), "\n"), room: len(policy) + 4096, rnd: rnd}
	e.first = slices.Index(e.lines, "rules:") + 1
	runtime.GC() // what compiling all of it has left is not of edits
	if atOnce, err = e.edits(d, func() {}); err == nil {
		apart, err = e.edits(d, runtime.GC)
	}
	return atOnce, apart, err
}

// policyEditor is who edits a policy, whose rules, one a line, begin at line first.
type policyEditor struct {
	*policyRig
	lines       []string
	first, room int // bytes that its text takes, or so
	made        int // edits
	rnd         *rand.Rand
}

// edits makes as many as pass in d, and does something before each.
func (e *policyEditor) edits(d time.Duration, before func()) (seconds []float64, err error) {
	for begin := time.Now(); len(seconds) < leastEdits || len(seconds) < mostEdits && time.Since(begin) < d; e.made++ {
		e.lines = edit(e.lines, e.first, e.made, e.rnd)
		text := joinLines(e.lines, e.room)
		before()
		start := time.Now()
		next, err := compileAfter(text, e.rules)
		if err != nil {
			return nil, err
		}
		if err := e.publish(next); err != nil {
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
