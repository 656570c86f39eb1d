package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Comparison says what differs between two reports beyond noise.
type Comparison struct {
	A        string   `json:"a"` // names of the files
	B        string   `json:"b"`
	Bench    string   `json:"bench"`
	Warnings []string `json:"warnings,omitempty"` // circumstances that differ
	Figures  []Figure `json:"figures"`
	OnlyA    []string `json:"only_a,omitempty"`
	OnlyB    []string `json:"only_b,omitempty"`
	Differs  bool     `json:"differs"` // any figure
}

// Figure is a result, or its ratio to a peer, that both reports have.
type Figure struct {
	Name    string  `json:"name"` // "NAME ratio" of a ratio
	Unit    string  `json:"unit"`
	A       float64 `json:"a"` // medians
	B       float64 `json:"b"`
	Change  float64 `json:"change_percent"` // from A to B; 0 where none can be told, as from 0
	Test    string  `json:"test"`           // u-test or ranges
	P       float64 `json:"p,omitempty"`    // of the u-test
	Differs bool    `json:"differs"`
}

// compareLevel is the probability by which a u-test may find a difference where there is none. It is not
// the usual 0.05, because a report has some ten figures.
const compareLevel = 0.01

// Compare compares two reports of one benchmark, a and b being what their files are called. A figure
// differs beyond noise when the rounds of both reports are told apart by a Mann-Whitney U test at a level
// of 0.01 or, where there are too few rounds for that, or a report does not have them, when the ranges of
// both do not touch.
func Compare(a, b string, before, after *Report) (*Comparison, error) {
	if before.Bench != after.Bench {
		return nil, fmt.Errorf("compare %s with %s: one is of bench %s, the other of bench %s", a, b, before.Bench, after.Bench)
	}
	c := &Comparison{A: a, B: b, Bench: before.Bench, Figures: []Figure{}, Warnings: environmentsDiffer(before.Environment, after.Environment)}
	for _, x := range before.Results {
		i := slices.IndexFunc(after.Results, func(y Result) bool { return y.Name == x.Name })
		if i < 0 {
			c.OnlyA = append(c.OnlyA, x.Name)
			continue
		}
		y := after.Results[i]
		if x.Unit != y.Unit {
			return nil, fmt.Errorf("compare %s with %s: %s is in %s in one, in %s in the other", a, b, x.Name, x.Unit, y.Unit)
		}
		c.Figures = append(c.Figures, compareFigure(x.Name, x.Unit, x.Median, y.Median, x.Values, y.Values, [2]float64{x.Min, x.Max}, [2]float64{y.Min, y.Max}))
		switch {
		case x.Peer != y.Peer:
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s stands beside %q in one, beside %q in the other: its ratios are not compared", x.Name, x.Peer, y.Peer))
		case len(x.Ratios) > 0 && len(y.Ratios) > 0:
			c.Figures = append(c.Figures, compareFigure(x.Name+" ratio", "", x.Ratio, y.Ratio, x.Ratios, y.Ratios, span(x.Ratios), span(y.Ratios)))
		}
	}
	for _, y := range after.Results {
		if !slices.ContainsFunc(before.Results, func(x Result) bool { return x.Name == y.Name }) {
			c.OnlyB = append(c.OnlyB, y.Name)
		}
	}
	c.Differs = slices.ContainsFunc(c.Figures, func(f Figure) bool { return f.Differs })
	return c, nil
}

func span(v []float64) [2]float64 { return [2]float64{slices.Min(v), slices.Max(v)} }

func compareFigure(name, unit string, a, b float64, roundsA, roundsB []float64, rangeA, rangeB [2]float64) Figure {
	f := Figure{Name: name, Unit: unit, A: a, B: b}
	if change := 100 * (b - a) / math.Abs(a); !math.IsNaN(change) && !math.IsInf(change, 0) {
		f.Change = change
	}
	if enoughRounds(len(roundsA), len(roundsB)) {
		f.Test, f.P = "u-test", uTest(roundsA, roundsB)
		f.Differs = f.P < compareLevel
	} else {
		f.Test = "ranges"
		f.Differs = rangeA[1] < rangeB[0] || rangeB[1] < rangeA[0]
	}
	return f
}

// enoughRounds tells whether a U test of so many rounds can find any difference at all.
func enoughRounds(n, m int) bool {
	return n > 0 && m > 0 && (n > 50 || m > 50 || 2*uBelow(n, m, 0) < compareLevel)
}

// environmentsDiffer lists circumstances under which figures are not comparable, or may differ by them.
func environmentsDiffer(a, b Environment) []string {
	var list []string
	for _, f := range []struct{ name, a, b string }{
		{"kernel", a.Kernel, b.Kernel}, {"CPU", a.CPU, b.CPU}, {"number of CPUs", strconv.Itoa(a.CPUs), strconv.Itoa(b.CPUs)},
		{"commit", a.Commit, b.Commit}, {"program tag", a.ProgramTag, b.ProgramTag}, {"driver", a.Driver, b.Driver},
		{"XDP mode", a.XDPMode, b.XDPMode}, {"pinning", a.Pinning, b.Pinning}, {"engine", a.Engine, b.Engine},
		{"seed", strconv.FormatUint(a.Seed, 10), strconv.FormatUint(b.Seed, 10)}, {"method", a.Method, b.Method},
	} {
		if f.a != f.b {
			list = append(list, fmt.Sprintf("%s: %q, then %q", f.name, f.a, f.b))
		}
	}
	return list
}
