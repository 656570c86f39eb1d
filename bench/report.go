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
	// The rounds by themselves, in the order in which they were taken, and each round's ratio.
	Values []float64 `json:"values,omitempty"`
	Ratios []float64 `json:"ratios,omitempty"`
}

// Histogram is what one contender did to all frames of all rounds. Sent is Received and Lost.
type Histogram struct {
	Name        string       `json:"name"` // of the contender
	Unit        string       `json:"unit"`
	Sent        uint64       `json:"sent"`
	Received    uint64       `json:"received"`
	Lost        uint64       `json:"lost"`
	Doubled     uint64       `json:"doubled"` // arrived more than once; only the first time counts
	Percentiles []Percentile `json:"percentiles"`
	Buckets     []Bucket     `json:"buckets"` // of what was received; empty ones are left out
}

// Percentile is what a share of all frames, lost ones being the latest, did not exceed.
type Percentile struct {
	Percent float64 `json:"percent"`
	Value   float64 `json:"value"`
	// The same of the time since a frame was due by the schedule, and of how late it left by then.
	SinceDue float64 `json:"since_due"`
	Late     float64 `json:"late"`
}

// Bucket counts values of at least From and less than Below.
type Bucket struct {
	From    float64 `json:"from"`
	Below   float64 `json:"below"`
	Packets uint64  `json:"packets"`
}

// Report is what a benchmark prints with -o json.
type Report struct {
	Bench       string      `json:"bench"`
	Environment Environment `json:"environment"`
	Results     []Result    `json:"results"`
	Histograms  []Histogram `json:"histograms,omitempty"` // of `latency`
}

// summarize makes a result of one value per round.
func summarize(name, unit string, rounds []float64) Result {
	m := median(rounds)
	return Result{Name: name, Unit: unit, Value: m, Median: m, Min: slices.Min(rounds), Max: slices.Max(rounds), Rounds: len(rounds), Values: rounds}
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
	r.Peer, r.PeerValue, r.Ratio, r.Ratios = peer, median(theirs), median(ratios), ratios
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
