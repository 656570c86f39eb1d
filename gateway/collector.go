package gateway

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable"
)

// A reading is what the gateway says of itself at one moment, for all metrics.
type reading struct {
	version, kernel string
	started         time.Time
	problems        []error
	took            time.Duration

	epoch           uint32
	hash            string
	policyRules     int
	filesDiffer     bool
	nextExpiry      time.Time
	loadsApplied    uint64
	loadsRefused    uint64
	lastLoadRefused bool
	loadedAt        int64 // Unix time in ns

	rules     []RuleStatus
	sets      []SetStatus
	drops     []Drop
	passes    []Pass
	states    [bpf.XDPFlowStateFLOW_STATE_LEN]uint64
	carried   [bpf.XDPFlowStateFLOW_STATE_LEN]uint64 // of states, those of flows that workers carry
	revoked   uint64
	workers   *WorkersStatus
	nat       []NATRuleStatus
	table     TableStatus
	fragments FragmentStatus
	ports     []PortStatus
	devices   []dataplane.DeviceCounters
	events    EventStatus
}

// goodFor is for how many times the time that a reading took it is given out again: scrapes never cost
// more than about a tenth of a CPU, however large the table and however often somebody asks.
const goodFor = 10

// A collector gives Prometheus what a reporter says. It reads when it is asked.
type collector struct {
	reporter   *reporter
	loads      *policyLoads
	metrics    []metric
	descs      []*prometheus.Desc // of metrics, then of histograms
	histograms []histogram

	mu      sync.Mutex
	last    *reading
	at      time.Time
	highest map[string]ruleFloor // of rules, under the policy with this hash
	hash    string
}

// ruleFloor is what a rule was last said to have counted. XDP credits a flow to its rule while the table
// is read, so that a sum may miss it once; a counter that falls is taken for a restart from 0.
type ruleFloor struct{ packets, bytes uint64 }

func newCollector(r *reporter, loads *policyLoads) *collector {
	c := &collector{reporter: r, loads: loads, metrics: metrics(), histograms: histograms(), highest: make(map[string]ruleFloor)}
	for _, m := range c.metrics {
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, m.labels, nil))
	}
	for _, h := range c.histograms {
		c.descs = append(c.descs, prometheus.NewDesc(h.name, h.help, h.labels, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		descs <- d
	}
}

// Collect implements prometheus.Collector. What cannot be read fails the scrape.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	r, err := c.read()
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.descs[0], err)
		return
	}
	for i, m := range c.metrics {
		m.each(r, func(value float64, labels ...string) {
			v, err := prometheus.NewConstMetric(c.descs[i], m.kind, value, labels...)
			if err != nil {
				v = prometheus.NewInvalidMetric(c.descs[i], err)
			}
			out <- v
		})
	}
	for i, h := range c.histograms {
		desc := c.descs[len(c.metrics)+i]
		h.each(r, func(count uint64, sum float64, buckets map[float64]uint64, labels ...string) {
			v, err := prometheus.NewConstHistogram(desc, count, sum, buckets, labels...)
			if err != nil {
				v = prometheus.NewInvalidMetric(desc, err)
			}
			out <- v
		})
	}
}

// read returns a reading that nobody changes any more: a new one, or the last while it is good.
func (c *collector) read() (*reading, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := time.Now()
	if c.last != nil && start.Sub(c.at) < goodFor*c.last.took {
		return c.last, nil
	}
	r, err := c.readNow()
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	c.neverLess(r)
	c.at = time.Now()
	r.took = c.at.Sub(start)
	c.last = r
	return r, nil
}

func (c *collector) readNow() (*reading, error) {
	g := c.reporter
	rules := g.rules.Load()
	r := &reading{
		version: g.version, kernel: kernelRelease(), started: g.started, problems: g.plane.Problems(), fragments: g.fragments(),
		hash: rules.hash(), policyRules: len(rules.Compiled.Order), nextExpiry: rules.Compiled.NextExpiry,
		filesDiffer:  len(changedFiles(rules)) > 0,
		loadsApplied: c.loads.applied.Load(), loadsRefused: c.loads.refused.Load(),
		lastLoadRefused: c.loads.lastRefused.Load(), loadedAt: c.loads.appliedAt.Load(),
	}
	r.epoch, _ = g.plane.Epoch()
	r.sets = rules.setStatuses()
	var err error
	r.rules, err = g.survey(func(f *flowtable.Sum) {
		if int(f.State) < len(r.states) {
			r.states[f.State]++
			if f.Stages != 0 {
				r.carried[f.State]++
			}
		}
		if f.Revoked {
			r.revoked++
		}
	})
	if err != nil {
		return nil, err
	}
	if r.drops, err = g.drops(true); err != nil {
		return nil, err
	}
	if r.passes, err = g.passes(); err != nil {
		return nil, err
	}
	if r.table, err = g.tableStatus(); err != nil {
		return nil, err
	}
	for _, p := range g.plane.Ports() {
		r.ports = append(r.ports, g.port(&p))
	}
	if r.devices, err = g.plane.DeviceCounters(); err != nil {
		return nil, err
	}
	if r.workers, err = g.workers(); err != nil {
		return nil, err
	}
	nat, err := g.nat()
	if err != nil {
		return nil, err
	}
	r.nat = nat.Rules
	g.events.status(&r.events)
	for i := range r.drops {
		r.events.Unlogged += r.drops[i].Unlogged
	}
	for i := range r.rules {
		r.events.Unlogged += r.rules[i].Unlogged
	}
	return r, nil
}

// neverLess lifts rules' counters to what was said of them before, and remembers them.
func (c *collector) neverLess(r *reading) {
	if c.hash != r.hash {
		c.hash = r.hash
		clear(c.highest) // another policy's rules of the same name may count anew
	}
	for i := range r.rules {
		rule := &r.rules[i]
		floor := c.highest[rule.Name]
		rule.Packets, rule.Bytes = max(rule.Packets, floor.packets), max(rule.Bytes, floor.bytes)
		c.highest[rule.Name] = ruleFloor{rule.Packets, rule.Bytes}
	}
}
