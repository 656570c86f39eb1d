package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/softdpu/softdpu/testenv"
)

const labMetrics = labRouted + "metrics: {listen: \"127.0.0.1:9470\"}\n"

// ask gets a path of the metrics address, from inside the gateway's namespace.
func (r *rig) ask(t *testing.T, path string) (code int, body string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return r.gw.Dial(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("http://" + r.config.Metrics.Listen + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// scrape returns all values by their names with labels, as they stand in the text, of now: a reading is
// given out again for a while.
func (r *rig) scrape(t *testing.T) (values map[string]float64, text string) {
	t.Helper()
	values, _ = r.scrapeOnce(t)
	time.Sleep(time.Duration(goodFor*values["softdpu_reading_duration_seconds"]*float64(time.Second)) + time.Millisecond)
	return r.scrapeOnce(t)
}

func (r *rig) scrapeOnce(t *testing.T) (values map[string]float64, text string) {
	t.Helper()
	code, text := r.ask(t, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("/metrics answers %d: %s", code, text)
	}
	values = make(map[string]float64)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndex(line, " ")
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		values[line[:i]] = v
	}
	return values, text
}

// waitHealth asks /healthz until it answers with code, and returns what it says.
func (r *rig) waitHealth(t *testing.T, code int) Health {
	t.Helper()
	for end := time.Now().Add(testenv.Patience(5 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		got, body := r.ask(t, "/healthz")
		var h Health
		if err := json.Unmarshal([]byte(body), &h); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if got == code {
			return h
		}
		if time.Now().After(end) {
			t.Fatalf("/healthz answers %d, not %d: %s", got, code, body)
		}
	}
}

// Every number of a known exchange is in /metrics, as it was.
func TestMetricsOfKnownExchange(t *testing.T) {
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-gw-metrics"}, labMetrics,
		labPolicy+"sets: {threats: {type: prefix, entries: [192.0.2.1, 192.0.2.2]}}\n")
	if h := r.waitHealth(t, http.StatusOK); h.Status != "ok" || len(h.Problems) != 0 {
		t.Errorf("health: %+v", h)
	}
	echo, err := r.server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	earlier := r.deviceStats(t)
	before, _ := r.scrape(t)
	devices := r.deviceStats(t)

	const exchanges, refused, payload = 10, 3, 100
	for range exchanges {
		if _, err := r.client.Exchange(t.Context(), echo.Addr(), make([]byte, payload)); err != nil {
			t.Fatal(err)
		}
	}
	for range refused {
		if _, err := r.client.Exchange(briefly(t, 50*time.Millisecond), netip.AddrPortFrom(server4, 9), make([]byte, payload)); err == nil {
			t.Error("what no rule allows was answered")
		}
	}

	least := since(r.deviceStats(t), devices)
	after, text := r.scrape(t)
	most := since(r.deviceStats(t), earlier)
	const packet, frame = 20 + 8 + payload, 14 + 20 + 8 + payload
	for series, want := range map[string]float64{
		`softdpu_rule_packets_total{mode="enforce",rule="echo",verdict="allow"}`:   2 * exchanges,
		`softdpu_rule_bytes_total{mode="enforce",rule="echo",verdict="allow"}`:     2 * exchanges * packet,
		`softdpu_rule_decisions_total{mode="enforce",rule="echo",verdict="allow"}`: exchanges,
		`softdpu_rule_flows{mode="enforce",rule="echo",verdict="allow"}`:           exchanges,
		`softdpu_rule_packets_total{mode="enforce",rule="none",verdict="deny"}`:    refused,
		`softdpu_rule_bytes_total{mode="enforce",rule="none",verdict="deny"}`:      refused * packet,
		`softdpu_rule_packets_total{mode="enforce",rule="web",verdict="allow"}`:    0,
		`softdpu_drop_packets_total{reason="no-rule-matched"}`:                     refused,
		`softdpu_drop_bytes_total{reason="no-rule-matched"}`:                       refused * frame,
		`softdpu_drop_packets_total{reason="deny"}`:                                0,
		`softdpu_pass_packets_total{cause="host"}`:                                 0,
		`softdpu_flows{state="replied",tier="xdp"}`:                                exchanges,
		`softdpu_flows{state="established",tier="xdp"}`:                            0,
		`softdpu_table_flows`:                          exchanges,
		`softdpu_table_half_open_flows`:                0,
		`softdpu_flows_created_total`:                  exchanges,
		`softdpu_flows_refused_total`:                  0,
		`softdpu_policy_loads_total{result="applied"}`: 0,
	} {
		if _, there := after[series]; !there {
			t.Errorf("%s is not served", series)
		} else if got := after[series] - before[series]; got != want {
			t.Errorf("%s: %v more, not %v", series, got, want)
		}
	}
	// What the far ends' devices count, who may have said something of their own between two readings.
	for series, count := range map[string]func(map[string]testenv.DeviceStats) uint64{
		`softdpu_port_receive_packets_total{port="lan"}`:  func(d map[string]testenv.DeviceStats) uint64 { return d["c0"].TxPackets },
		`softdpu_port_receive_bytes_total{port="lan"}`:    func(d map[string]testenv.DeviceStats) uint64 { return d["c0"].TxBytes },
		`softdpu_port_transmit_packets_total{port="wan"}`: func(d map[string]testenv.DeviceStats) uint64 { return d["s0"].RxPackets },
		`softdpu_port_transmit_bytes_total{port="wan"}`:   func(d map[string]testenv.DeviceStats) uint64 { return d["s0"].RxBytes },
	} {
		if got := uint64(after[series] - before[series]); got < count(least) || got > count(most) || got < exchanges {
			t.Errorf("%s: %d more, not %d to %d", series, got, count(least), count(most))
		}
	}
	for series, want := range map[string]float64{
		`softdpu_healthy`: 1, `softdpu_policy_epoch`: 1, `softdpu_policy_rules`: 5, `softdpu_policy_files_differ`: 0,
		`softdpu_set_entries{set="threats",source="policy",type="prefix"}`: 2, `softdpu_set_entries{set="threats",source="runtime",type="prefix"}`: 0,
		`softdpu_policy_loads_total{result="applied"}`: 1, `softdpu_policy_loads_total{result="refused"}`: 0,
		`softdpu_policy_last_load_successful`: 1, `softdpu_table_flows_limit`: 262144, `softdpu_table_half_open_flows_limit`: 131072,
		`softdpu_port_up{port="lan"}`: 1,
		`softdpu_port_info{device="lan",driver="veth",mode="native",peer="",port="lan",zone="lan"}`: 1,
	} {
		if got, there := after[series]; !there || got != want {
			t.Errorf("%s is %v (%t), not %v", series, got, there, want)
		}
	}
	last := after[`softdpu_rule_last_decision_timestamp_seconds{mode="enforce",rule="echo",verdict="allow"}`]
	if age := time.Since(time.UnixMicro(int64(last * 1e6))); age < 0 || age > time.Minute {
		t.Errorf("the last decision was %s ago", age)
	}
	if !regexp.MustCompile(`(?m)^softdpu_policy_info\{hash="[0-9a-f]{64}"\} 1$`).MatchString(text) ||
		!strings.Contains(text, `version="test"`) || !strings.Contains(text, "process_resident_memory_bytes") {
		t.Errorf("the policy's hash, the version or the process are missing:\n%s", text)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	for _, p := range problems {
		t.Errorf("lint: %s: %s", p.Metric, p.Text)
	}
	if err != nil {
		t.Error(err)
	}
	if promtool := findPromtool(t); promtool != "" {
		promtoolSays(t, promtool, strings.NewReader(text), "check", "metrics")
	}
	for _, m := range metrics() {
		if m.name != "softdpu_policy_next_expiry_timestamp_seconds" && !ofWorkers(m.name) && !strings.HasPrefix(m.name, "softdpu_nat_") && !strings.Contains(text, "\n# TYPE "+m.name+" ") {
			t.Errorf("%s is not served", m.name)
		}
	}
	if code, body := r.ask(t, "/v1/status"); code != http.StatusNotFound || !strings.Contains(body, "/healthz") {
		t.Errorf("the control API on the metrics address: %d %s", code, body)
	}
}

// Counters never fall while flows come, are evicted and age, and scrapes stand in nobody's way.
func TestMetricsUnderChurn(t *testing.T) {
	config := labMetrics + "flows: {max: 64, timeouts: {udp: 1s, udp_new: 1s}}\n"
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-gw-churn"}, config, labPolicy)
	echo, err := r.server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	var answered atomic.Uint64
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				if _, err := r.client.Exchange(short, echo.Addr(), []byte("who?")); err == nil {
					answered.Add(1)
				}
				cancel()
			}
		})
	}
	last, scrapes := map[string]float64{}, 0
	for begun := time.Now(); ctx.Err() == nil; {
		values, _ := r.scrapeOnce(t)
		for series, value := range values {
			name, _, _ := strings.Cut(series, "{")
			if strings.HasPrefix(name, "softdpu_") && strings.HasSuffix(name, "_total") && value < last[series] {
				t.Errorf("%s fell from %v to %v", series, last[series], value)
			}
		}
		last = values
		// A busy machine needs longer.
		if scrapes++; time.Since(begun) > sized(3*time.Second, 30*time.Second) && scrapes >= 10 && answered.Load() >= 100 {
			cancel()
		}
	}
	wg.Wait()
	values, _ := r.scrape(t)
	counted := values[`softdpu_rule_packets_total{mode="enforce",rule="echo",verdict="allow"}`]
	if n := answered.Load(); n < 100 || counted < 2*float64(n) {
		t.Errorf("%d exchanges were answered, and their rule counted %v packets", n, counted)
	}
	if scrapes < 10 || values["softdpu_flows_refused_total"]+values["softdpu_flows_evicted_total"] == 0 {
		t.Errorf("%d scrapes, %v flows refused, %v evicted", scrapes, values["softdpu_flows_refused_total"], values["softdpu_flows_evicted_total"])
	}
	held := func() float64 {
		return values["softdpu_flows_created_total"] - values["softdpu_flows_evicted_total"] - values["softdpu_flows_aged_total"]
	}
	for range 3 { // one may have aged between two of the numbers
		if held() != values["softdpu_table_flows"] {
			values, _ = r.scrape(t)
		}
	}
	if held() != values["softdpu_table_flows"] {
		t.Errorf("created less evicted and aged is %v, and the table holds %v", held(), values["softdpu_table_flows"])
	}
}

// deviceStats returns the counters of the far ends' devices.
func (r *rig) deviceStats(t *testing.T) map[string]testenv.DeviceStats {
	t.Helper()
	return map[string]testenv.DeviceStats{"c0": must(r.client.DeviceStats("c0")), "s0": must(r.server.DeviceStats("s0"))}
}

func since(now, before map[string]testenv.DeviceStats) map[string]testenv.DeviceStats {
	out := make(map[string]testenv.DeviceStats)
	for name, n := range now {
		b := before[name]
		out[name] = testenv.DeviceStats{
			RxPackets: n.RxPackets - b.RxPackets, TxPackets: n.TxPackets - b.TxPackets,
			RxBytes: n.RxBytes - b.RxBytes, TxBytes: n.TxBytes - b.TxBytes,
		}
	}
	return out
}

// Health follows what happens to the ports, and metrics say the same.
func TestHealth(t *testing.T) {
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-gw-health"}, labMetrics, labPolicy)
	r.waitHealth(t, http.StatusOK)
	if err := r.gw.SetUp("wan", false); err != nil {
		t.Fatal(err)
	}
	h := r.waitHealth(t, http.StatusServiceUnavailable)
	if h.Status != "failing" || len(h.Problems) != 1 || h.Problems[0] != "port wan: device wan is down" {
		t.Errorf("a port that is down: %+v", h)
	}
	values, _ := r.scrape(t)
	if values["softdpu_healthy"] != 0 || values[`softdpu_port_up{port="wan"}`] != 0 || values[`softdpu_port_up{port="lan"}`] != 1 {
		t.Errorf("a port that is down: healthy %v, ports up %v %v", values["softdpu_healthy"],
			values[`softdpu_port_up{port="wan"}`], values[`softdpu_port_up{port="lan"}`])
	}
	if err := r.gw.SetUp("wan", true); err != nil {
		t.Fatal(err)
	}
	r.waitHealth(t, http.StatusOK)
	sysctl(t, r.gw, "ipv4/conf/lan/forwarding", "0")
	if h := r.waitHealth(t, http.StatusServiceUnavailable); !strings.Contains(h.Problems[0], "ipv4/conf/lan/forwarding is 0") {
		t.Errorf("without forwarding: %+v", h)
	}
	sysctl(t, r.gw, "ipv4/conf/lan/forwarding", "1")
	r.waitHealth(t, http.StatusOK)

	// The policy's file changes, becomes unreadable, and is as it was.
	policy := r.config.Policy
	for _, step := range []struct {
		text string
		want float64
	}{{labPolicy + "  - {name: more, from: {zone: lan}, to: {zone: wan}, service: udp/99, action: allow}\n", 1}, {labPolicy, 0}, {"broken: [", 1}, {labPolicy, 0}} {
		if err := os.WriteFile(policy, []byte(step.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if values, _ := r.scrape(t); values["softdpu_policy_files_differ"] != step.want {
			t.Errorf("files differ: %v, not %v with\n%s", values["softdpu_policy_files_differ"], step.want, step.text)
		}
	}

	// What becomes of reloads.
	for _, step := range []struct {
		text                             string
		applied, refused, success, epoch float64
	}{{"broken: [", 1, 1, 0, 1}, {labPolicy, 2, 1, 1, 2}} {
		if err := os.WriteFile(policy, []byte(step.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reload(t.Context()); (err == nil) != (step.success == 1) {
			t.Errorf("reload: %v", err)
		}
		values, _ := r.scrape(t)
		for series, want := range map[string]float64{
			`softdpu_policy_loads_total{result="applied"}`: step.applied, `softdpu_policy_loads_total{result="refused"}`: step.refused,
			"softdpu_policy_last_load_successful": step.success, "softdpu_policy_epoch": step.epoch,
		} {
			if values[series] != want {
				t.Errorf("%s is %v, not %v", series, values[series], want)
			}
		}
	}
}

func TestMetricsAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = listenMetrics(&Metrics{Listen: l.Addr().String()})
	if err == nil || !strings.Contains(err.Error(), "metrics: none") {
		t.Errorf("an address in use: %v", err)
	}
	if l, err := listenMetrics(&Metrics{}); l != nil || err != nil {
		t.Errorf("no address: %v, %v", l, err)
	}
}

// Counters of rules never fall under one policy, and begin anew with another.
func TestRuleCountersNeverFall(t *testing.T) {
	c := &collector{highest: make(map[string]ruleFloor)}
	for i, step := range []struct {
		hash          string
		packets, want uint64
	}{{"a", 10, 10}, {"a", 7, 10}, {"a", 12, 12}, {"b", 3, 3}, {"b", 4, 4}} {
		r := &reading{hash: step.hash, rules: []RuleStatus{{Name: "web", Packets: step.packets, Bytes: 100 * step.packets}}}
		c.neverLess(r)
		if r.rules[0].Packets != step.want || r.rules[0].Bytes != 100*step.want {
			t.Errorf("step %d: %d packets, %d bytes, not %d", i, r.rules[0].Packets, r.rules[0].Bytes, step.want)
		}
	}
}

// Of a large policy only rules that did something are shown.
func TestQuietRulesOfLargePolicies(t *testing.T) {
	shown := func(n int) (count int) {
		now := time.Now()
		r := &reading{rules: make([]RuleStatus, n)}
		for i := range r.rules {
			r.rules[i].Name = fmt.Sprint(i)
		}
		r.rules[3].LastHit = &now
		eachRule(func(*RuleStatus) float64 { return 0 })(r, func(float64, ...string) { count++ })
		return count
	}
	if n := shown(quietRules); n != quietRules {
		t.Errorf("%d rules are shown of %d", n, quietRules)
	}
	if n := shown(quietRules + 1); n != 1 {
		t.Errorf("%d rules are shown of a large policy, of which one decided", n)
	}
}
