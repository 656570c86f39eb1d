package gateway

import (
	"slices"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
)

// Events is where flow starts and ends of rules with `log`, drops and changes are written.
type Events struct {
	File    string
	Rate    int    // events a second, rule or drop reason; those above are counted
	MaxSize int64  // bytes at which the file is rotated; 0: never
	Keep    int    // rotated files
	Drops   uint64 // reasons (bits by bpf.XDPReason) whose drops are events, though no rule gave them
}

const (
	maxEventRate   = 1_000_000
	minEventSize   = 64 << 10
	maxEventSize   = 1 << 40
	maxEventsKept  = 1000
	eventSizeDescr = "write it as in 64KiB, 100MiB or 1GiB, or 0 to have others rotate the file"
)

func defaultEvents() Events {
	return Events{File: "/var/log/softdpu/eve.json", Rate: 1000, MaxSize: 100 << 20, Keep: 5}
}

func (r *configReader) events(e *Events, n *firewall.Node) {
	m := r.Fields(n, "events", configKeys["events"])
	if v := m["file"]; v != nil {
		e.File = r.path(v, "file")
	}
	if v := m["rate"]; v != nil {
		e.Rate, _ = r.Int(v, "rate", 1, maxEventRate)
	}
	if v := m["max_size"]; v != nil {
		e.MaxSize = r.size(v, "max_size")
	}
	if v := m["keep"]; v != nil {
		e.Keep, _ = r.Int(v, "keep", 0, maxEventsKept)
	}
	if v := m["drops"]; v != nil {
		e.Drops = r.drops(v)
	}
}

// size reads a number of bytes in binary units.
func (r *configReader) size(n *firewall.Node, what string) int64 {
	text, ok := r.Text(n, what)
	if !ok {
		return 0
	}
	digits, unit := text, int64(1)
	for suffix, factor := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if d, found := strings.CutSuffix(text, suffix); found {
			digits, unit = d, factor
		}
	}
	v, err := strconv.ParseUint(digits, 10, 40)
	switch {
	case err != nil:
		r.Fail(n.Pos.Errorf("%s must be a number of bytes, not %q", what, text).WithHint(eventSizeDescr))
		return 0
	case v != 0 && (v > maxEventSize/uint64(unit) || int64(v)*unit < minEventSize):
		r.Fail(n.Pos.Errorf("%s must be between 64KiB and 1024GiB, not %s", what, text).WithHint(eventSizeDescr))
		return 0
	}
	return int64(v) * unit
}

// drops reads true, false, or a list of reasons.
func (r *configReader) drops(n *firewall.Node) (mask uint64) {
	if n.Kind == firewall.ScalarNode && !n.Quoted && (n.Text == "true" || n.Text == "false") {
		if n.Text == "true" {
			return allDrops()
		}
		return 0
	}
	var names []string
	for reason := bpf.XDPReasonREASON_NONE + 1; reason < bpf.XDPReasonREASON_LEN; reason++ {
		names = append(names, reason.String())
	}
	for _, item := range r.List(n) {
		name, ok := r.Text(item, "a drop reason")
		if !ok {
			continue
		}
		i := slices.Index(names, name)
		if i < 0 {
			r.Fail(firewall.Unknown(item.Pos, "drop reason", name, names, "write true for all, or a list of reasons: `softdpu drops --all` shows them"))
			continue
		}
		reason := bpf.XDPReason(i + 1)
		if why := untold[reason]; why != "" {
			r.Fail(item.Pos.Errorf("drops for %q are no events of their own", name).WithHint("%s", why))
			continue
		}
		mask |= 1 << reason
	}
	return mask
}
