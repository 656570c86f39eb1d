package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/firewall"
)

// gatewayPage reads the page about the gateway.
func gatewayPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/GATEWAY.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section returns what stands below a heading, up to the next one of the same or a higher level.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		t.Fatalf("docs/GATEWAY.md has no heading %q", heading)
	}
	level := strings.Count(strings.Fields(heading)[0], "#")
	// One # begins comments in blocks, and of the headings only the title.
	if end := regexp.MustCompile(fmt.Sprintf(`(?m)^#{2,%d} `, level)).FindStringIndex(rest); end != nil {
		rest = rest[:end[0]]
	}
	return rest
}

// fence returns the fenced block whose first line is given.
func fence(t *testing.T, page, first string) string {
	t.Helper()
	m := regexp.MustCompile("(?ms)^```\\w+\n(" + regexp.QuoteMeta(first) + ".*?)^```$").FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("docs/GATEWAY.md has no block that begins with %q", first)
	}
	return m[1]
}

// tableRows returns the cells of the rows of all tables whose first column has this title.
func tableRows(text, title string) (rows [][]string) {
	for _, table := range regexp.MustCompile(`(?m)^\| `+title+` \|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)`).FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(table[1]) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

// code returns what stands in `code` in a text.
func code(text string) (spans []string) {
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
		spans = append(spans, m[1])
	}
	return spans
}

// firstCells returns the names in the first cells of rows.
func firstCells(rows [][]string) (names []string) {
	for _, row := range rows {
		names = append(names, code(row[0])...)
	}
	return names
}

// sameNames compares what the page names with what there is, in any order.
func sameNames(t *testing.T, what string, page, want []string) {
	t.Helper()
	for _, name := range want {
		if !slices.Contains(page, name) {
			t.Errorf("docs/GATEWAY.md does not speak of the %s %q", what, name)
		}
	}
	for i, name := range page {
		if !slices.Contains(want, name) {
			t.Errorf("docs/GATEWAY.md speaks of the %s %q, which there is not", what, name)
		}
		if slices.Contains(page[:i], name) {
			t.Errorf("docs/GATEWAY.md speaks of the %s %q twice", what, name)
		}
	}
}

// Every reason and cause stands in the page's table, in the order of its enum, with a meaning.
func TestGatewayPageNamesReasons(t *testing.T) {
	page := gatewayPage(t)
	var reasons, causes []string
	for r := bpf.XDPReasonREASON_NONE + 1; r < bpf.XDPReasonREASON_LEN; r++ {
		reasons = append(reasons, r.String())
	}
	for c := bpf.XDPPassCause(0); c < bpf.XDPPassCausePASS_LEN; c++ {
		causes = append(causes, c.String())
	}
	for _, table := range []struct {
		what, heading, title string
		want                 []string
	}{{"drop reason", "## Drop reasons", "reason", reasons}, {"pass cause", "## Pass causes", "cause", causes}} {
		rows := tableRows(section(t, page, table.heading), table.title)
		names := firstCells(rows)
		sameNames(t, table.what, names, table.want)
		if !slices.Equal(names, table.want) {
			t.Errorf("the table of %ss is in another order than its enum:\n%v\n%v", table.what, names, table.want)
		}
		for _, row := range rows {
			if len(row) != 3 || row[1] == "" {
				t.Errorf("row %q does not say what it means", row)
			}
		}
	}
	var states []string
	for _, s := range flowStates {
		states = append(states, s.String())
	}
	_, text, _ := strings.Cut(section(t, page, "### Flow"), "States: ")
	sameNames(t, "state", code(text), states)
}

// Every key stands in a table, and the block with every key holds the defaults.
func TestGatewayPageNamesKeys(t *testing.T) {
	page := section(t, gatewayPage(t), "## The configuration file")
	var want []string
	for kind, list := range configKeys {
		switch kind {
		case "management", "metrics", "timeouts": // of one row each, or a table of their own
		default:
			want = append(want, list...)
		}
	}
	want = slices.DeleteFunc(want, func(key string) bool { return key == "apiVersion" || key == "kind" })
	rows := tableRows(page, "key")
	sameNames(t, "key", firstCells(rows), want)

	full, err := ParseConfig("softdpu.yaml", []byte(fence(t, page, "# softdpu.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	least, err := ParseConfig("softdpu.yaml", []byte(fence(t, page, "# least.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	if len(full.Warnings)+len(least.Warnings) > 0 {
		t.Errorf("warnings %v %v", full.Warnings, least.Warnings)
	}
	for _, c := range []*Config{full, least} {
		c.PolicyPos = firewall.Pos{}
		w := &c.Workers // these have no default
		c.ForceStage, w.Written, w.Count, w.CPUs, w.Frames, w.FrameSize = "", false, 0, nil, 0, 0
		for i := range c.Ports {
			c.Ports[i].Pos, c.Ports[i].DevicePos, c.Ports[i].MTU = firewall.Pos{}, firewall.Pos{}, 0 // no default
			c.Ports[i].MSSClamp = 0
		}
		for _, refs := range [][]firewall.Ref{c.Management.From, c.Management.Services} {
			for i := range refs {
				refs[i].Pos = firewall.Pos{}
			}
		}
	}
	if !reflect.DeepEqual(full, least) {
		t.Errorf("the block with every key does not hold the defaults:\n%+v\n%+v", full, least)
	}
	docs, errs := firewall.ParseYAML("softdpu.yaml", []byte(fence(t, page, "# softdpu.yaml")))
	if errs != nil {
		t.Fatal(errs)
	}
	written := make(map[string]bool)
	var walk func(*firewall.Node)
	walk = func(n *firewall.Node) {
		for _, f := range n.Fields {
			written[f.Key] = true
			walk(f.Value)
		}
	}
	walk(docs[0])
	for _, list := range configKeys {
		for _, key := range list {
			if !written[key] {
				t.Errorf("the block with every key lacks %q", key)
			}
		}
	}

	defaults := map[string]string{
		"max": fmt.Sprint(least.Flows.Max), "half_open_share": fmt.Sprint(least.Flows.HalfOpenShare),
		"state": least.State, "socket": least.Control.Socket, "group": least.Control.Group,
		"file": least.Events.File, "rate": fmt.Sprint(least.Events.Rate),
		"max_size": fmt.Sprintf("%dMiB", least.Events.MaxSize>>20), "keep": fmt.Sprint(least.Events.Keep), "drops": fmt.Sprint(least.Events.Drops != 0),
		"on_stop": string(least.OnStop), "override_management": fmt.Sprint(least.Management.Override),
		"fix_offloads": fmt.Sprint(least.Ports[0].FixOffloads), "fix_checksums": string(least.Ports[0].FixChecksums),
		"xdp_mode": string(least.Ports[0].XDPMode), "mode": string(least.Workers.Mode),
		"ring_size": fmt.Sprint(least.Workers.RingSize), "huge_pages": fmt.Sprint(least.Workers.HugePages),
		"busy_poll": fmt.Sprint(least.Workers.BusyPoll), "poll": string(least.Workers.Poll),
	}
	for _, row := range rows {
		key := code(row[0])[0]
		if value, ok := defaults[key]; ok && row[2] != "`"+value+"`" {
			t.Errorf("the default of %s is %s, and its row says %s", key, value, row[2])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ethertypeNames)) {
		if !slices.Contains(code(page), name) {
			t.Errorf("docs/GATEWAY.md does not speak of the ethertype %q", name)
		}
	}
}

func TestGatewayPageNamesTimeouts(t *testing.T) {
	rows := tableRows(gatewayPage(t), "time-out")
	sameNames(t, "time-out", firstCells(rows), configKeys["timeouts"])
	d := DefaultTimeouts()
	for _, row := range rows {
		value, least, rfc := d.field(code(row[0])[0])
		if row[1] != "`"+short(*value)+"`" {
			t.Errorf("%s: the default is %s", row, short(*value))
		}
		want := ""
		if least > time.Duration(0) {
			want = short(least) + ", " + rfc
		}
		if row[3] != want {
			t.Errorf("%s: the least is %q", row, want)
		}
	}
}

// jsonFields returns the names of a struct's fields in JSON; those of structs in it behind a dot, if
// flat.
func jsonFields(v reflect.Type, flat bool) (names []string) {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Field(i).Tag.Get("json"), ",")
		inner := v.Field(i).Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if flat && inner.Kind() == reflect.Struct && inner.PkgPath() == v.PkgPath() {
			for _, field := range jsonFields(inner, true) {
				names = append(names, name+"."+field)
			}
			continue
		}
		names = append(names, name)
	}
	return names
}

// The fields that the page names are those of the answers and events.
func TestGatewayPageNamesFields(t *testing.T) {
	page := gatewayPage(t)
	for _, row := range []struct {
		heading string
		of      []any
	}{
		{"### Flow", []any{Flow{}}},
		{"### Drop and pass", []any{Drop{}, Pass{}}},
		{"### Rule", []any{RuleStatus{}}},
		{"### Translation", []any{NATRuleStatus{}}},
		{"### Status", []any{Status{}}},
		{"### Set", []any{SetStatus{}}},
		{"### Entry", []any{SetEntry{}}},
		{"### Set change", []any{SetChanged{}}},
		{"### Reload", []any{Reloaded{}}},
		{"### History", []any{HistoryEntry{}}},
		{"### Comparison", []any{PolicyDiff{}}},
		{"### Workers and queues", []any{WorkersStatus{}}},
		{"### Capture", []any{CaptureRequest{}}},
		{"## Events", []any{eveEvent{}}},
	} {
		var want []string
		for _, v := range row.of {
			for _, name := range jsonFields(reflect.TypeOf(v), row.heading == "## Events") {
				if !slices.Contains(want, name) {
					want = append(want, name)
				}
			}
		}
		sameNames(t, "field below "+row.heading, firstCells(tableRows(section(t, page, row.heading), "field")), want)
	}
	status := code(section(t, page, "### Status"))
	for _, v := range []any{PolicyStatus{}, UnconfirmedStatus{}, RolledBackStatus{}, FileStatus{}, PortStatus{}, TableStatus{}, EventStatus{}, WorkersSummary{}} {
		for _, name := range jsonFields(reflect.TypeOf(v), false) {
			if !slices.Contains(status, name) {
				t.Errorf("docs/GATEWAY.md does not speak of the field %q of %T", name, v)
			}
		}
	}
	for heading, of := range map[string][]any{
		"### History":            {firewall.Changes{}, firewall.Change{}},
		"### Comparison":         {DiffSide{}, firewall.Difference{}, firewall.FieldDiff{}},
		"## Control API":         {Confirmed{}, RuleMirror{}},
		"### Flow":               {FlowNAT{}},
		"### Translation":        {NATStatus{}, NATAddressStatus{}, NATSourceStatus{}},
		"### Workers and queues": {worker.Attempt{}, worker.MemoryStatus{}, worker.WorkerStatus{}, worker.QueueStatus{}, worker.RingStatus{}, worker.Stall{}},
	} {
		named := code(section(t, page, heading))
		for _, v := range of {
			for _, name := range jsonFields(reflect.TypeOf(v), false) {
				if !slices.Contains(named, name) {
					t.Errorf("docs/GATEWAY.md does not speak of the field %q of %T", name, v)
				}
			}
		}
	}
	capture := code(section(t, page, "### Capture"))
	for _, name := range jsonFields(reflect.TypeOf(CaptureStatus{}), false) {
		if !slices.Contains(capture, name) {
			t.Errorf("docs/GATEWAY.md does not speak of the field %q of captures", name)
		}
	}
	capturing := section(t, page, "### Capturing packets")
	sameNames(t, "point", firstCells(tableRows(capturing, "`--point`")), CapturePoints)
	fate := captureFate{rule: firewall.RuleManagement, epoch: 1, reason: 1, pass: 1, from: 1, to: 1}
	rules := &Ruleset{Compiled: &firewall.Compiled{Zones: []string{"none", "host"}, Rules: []firewall.RuleInfo{{Rule: new(firewall.Rule)}, {Rule: &firewall.Rule{Name: "r"}, File: "f", Line: 1}}}}
	var words []string
	for _, word := range strings.Fields(fate.text(rules, "wan0")) {
		key, _, _ := strings.Cut(word, "=")
		words = append(words, key)
	}
	sameNames(t, "word of a comment", firstCells(tableRows(capturing, "word")), words)
	reload := code(section(t, page, "### Reload"))
	for _, name := range jsonFields(reflect.TypeOf(Mistake{}), false) {
		if !slices.Contains(reload, name) {
			t.Errorf("docs/GATEWAY.md does not speak of the field %q of mistakes", name)
		}
	}
	for heading, names := range map[string][]string{
		"### Set change": jsonFields(reflect.TypeOf(SetChange{}), false), "### Entry": {setPolicy, setRuntime, setRemoved, setIdle},
	} {
		text := section(t, page, heading)
		for _, name := range names {
			if !slices.Contains(code(text), name) && !strings.Contains(text, `"`+name+`":`) {
				t.Errorf("docs/GATEWAY.md does not speak of %q below %s", name, heading)
			}
		}
	}
	api := code(section(t, page, "## Control API"))
	for _, name := range jsonFields(reflect.TypeOf(apiError{}), false) {
		if !slices.Contains(api, name) {
			t.Errorf("docs/GATEWAY.md does not speak of the field %q of errors", name)
		}
	}
	events := section(t, page, "## Events")
	for _, reason := range []string{
		endAged, endClosed, endReset, endRevoked, endEvicted, endReopened, endStopped, endKilled, endPortRemoved, endNATAddressGone,
		eveFlowType, eveDropType, eveAuditType, evePolicyType, eveGatewayType,
		byStart, byTakeOver, bySignal, bySocket, byExpiry, byRollback, byNotConfirmed,
	} {
		if !slices.Contains(code(events), reason) {
			t.Errorf("docs/GATEWAY.md does not speak of %q in events", reason)
		}
	}
	examples := strings.TrimSpace(fence(t, events, `{"timestamp"`))
	for line := range strings.Lines(examples) {
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		var e eveEvent
		if err := d.Decode(&e); err != nil {
			t.Errorf("example of an event: %v: %s", err, line)
		}
		if e.SrcPort != nil && e.CommunityID != communityID(protoTCP, e.SrcIP, e.DestIP, *e.SrcPort, *e.DestPort) {
			t.Errorf("example of an event: wrong community_id: %s", line)
		}
	}
}

// The page's table of metrics is what is served, in its order; health's fields stand beside it.
func TestGatewayPageNamesMetrics(t *testing.T) {
	page := section(t, gatewayPage(t), "## Telemetry")
	rows := tableRows(page, "metric")
	var names []string
	for _, m := range metrics() {
		names = append(names, m.name)
	}
	plain := len(names)
	for _, h := range histograms() {
		names = append(names, h.name)
	}
	sameNames(t, "metric", firstCells(rows), names)
	if len(rows) != len(names) {
		t.Fatalf("%d rows for %d metrics", len(rows), len(names))
	}
	for i, h := range histograms() {
		if row := rows[plain+i]; len(row) != 4 || code(row[0])[0] != h.name || row[1] != "histogram" || !slices.Equal(code(row[2]), h.labels) || row[3] == "" {
			t.Errorf("row %q is not the histogram %s with labels %v", row, h.name, h.labels)
		}
	}
	for i, m := range metrics() {
		kind := map[prometheus.ValueType]string{prometheus.CounterValue: "counter", prometheus.GaugeValue: "gauge"}[m.kind]
		if row := rows[i]; len(row) != 4 || code(row[0])[0] != m.name || row[1] != kind || !slices.Equal(code(row[2]), m.labels) || row[3] == "" {
			t.Errorf("row %q is not the %s %s with labels %v", row, kind, m.name, m.labels)
		}
	}
	for _, name := range jsonFields(reflect.TypeOf(Health{}), false) {
		if !slices.Contains(code(page), name) {
			t.Errorf("docs/GATEWAY.md does not speak of the field %q of health", name)
		}
	}
	for _, name := range metricName.FindAllString(page, -1) {
		if _, served := labelsOf()[name]; !served && !slices.Contains(names, name) && name != "softdpu_port_" {
			t.Errorf("docs/GATEWAY.md speaks of the metric %q, which there is not", name)
		}
	}
}

// Filters that the pages show are understood.
func TestPagesShowFilters(t *testing.T) {
	policy, err := os.ReadFile("../docs/POLICY.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, m := range regexp.MustCompile(`(?:--filter '|'filter=)([^']+)'`).FindAllStringSubmatch(gatewayPage(t)+string(policy), -1) {
		if _, err := ParseFilter(m[1]); err != nil {
			t.Error(err)
		}
		found++
	}
	if found < 3 {
		t.Errorf("%d filters found: are they still shown?", found)
	}
}
