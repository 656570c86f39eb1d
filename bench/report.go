package bench

import (
	"slices"
)

// Result is one figure of a benchmark. Its name and unit are fixed: scripts compare them over years.
type Result struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Value  float64 `json:"value"` // the median
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
	Rounds int     `json:"rounds"`
	// Peer is what the figure is held against: another program, or "limit". Ratio is ours over the
	// peer's, the median over rounds that were taken in pairs.
	Peer      string  `json:"peer,omitempty"`
	PeerValue float64 `json:"peer_value,omitempty"`
	Ratio     float64 `json:"ratio,omitempty"`
	// XSK says how a figure of `bench xsk` came about.
	XSK *XSKDetail `json:"xsk,omitempty"`
}

// Report is what a benchmark prints with -o json.
type Report struct {
	Bench       string      `json:"bench"`
	Environment Environment `json:"environment"`
	Results     []Result    `json:"results"`
}

// summarize makes a result of one value per round.
func summarize(name, unit string, rounds []float64) Result {
	m := median(rounds)
	return Result{Name: name, Unit: unit, Value: m, Median: m, Min: slices.Min(rounds), Max: slices.Max(rounds), Rounds: len(rounds)}
}

// against holds r against a limit: a ratio below 1 is within it.
func (r Result) against(limit float64) Result {
	r.Peer, r.PeerValue, r.Ratio = "limit", limit, r.Value/limit
	return r
}

// versus holds rounds of ours against the peer's rounds that were taken beside them.
func (r Result) versus(peer string, ours, theirs []float64) Result {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / theirs[i]
	}
	r.Peer, r.PeerValue, r.Ratio = peer, median(theirs), median(ratios)
	return r
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	if n := len(s); n%2 == 1 {
		return s[n/2]
	} else {
		return (s[n/2-1] + s[n/2]) / 2
	}
}
