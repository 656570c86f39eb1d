package gateway

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
)

const (
	alertsFile    = "../deploy/prometheus/alerts.yaml"
	dashboardFile = "../deploy/grafana/softdpu.json"
)

// labelsOf returns the labels of every metric, those that Prometheus adds among them.
func labelsOf() map[string][]string {
	labels := make(map[string][]string)
	for _, m := range metrics() {
		labels[m.name] = append([]string{"job", "instance"}, m.labels...)
	}
	for _, h := range histograms() {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			labels[h.name+suffix] = append([]string{"job", "instance", "le"}, h.labels...)
		}
	}
	return labels
}

var (
	metricName  = regexp.MustCompile(`\bsoftdpu_\w+`)
	byLabels    = regexp.MustCompile(`\bby \(([^)]*)\)`)
	labelMatch  = regexp.MustCompile(`\b(\w+)(=~|!~|=|!=)"([^"]*)"`)
	legendLabel = regexp.MustCompile(`\{\{ *(?:\$labels\.)?(\w+) *\}\}`)
)

// checkExpression fails the test if an expression asks for a metric, a label or a value that there is not.
func checkExpression(t *testing.T, where, expr, legend string) {
	t.Helper()
	all, known := labelsOf(), []string{"job", "instance"}
	for _, name := range metricName.FindAllString(expr, -1) {
		labels, there := all[name]
		if !there {
			t.Errorf("%s asks for the metric %q, which there is not", where, name)
		}
		known = append(known, labels...)
	}
	var used []string
	for _, m := range byLabels.FindAllStringSubmatch(expr, -1) {
		used = append(used, strings.Split(strings.ReplaceAll(m[1], " ", ""), ",")...)
	}
	for _, m := range legendLabel.FindAllStringSubmatch(legend, -1) {
		if m[1] != "value" {
			used = append(used, m[1])
		}
	}
	for _, m := range labelMatch.FindAllStringSubmatch(expr, -1) {
		used = append(used, m[1])
		for value := range strings.SplitSeq(m[3], "|") {
			if !labelValueExists(m[1], value) {
				t.Errorf("%s asks for %s %q, which there is not", where, m[1], value)
			}
		}
	}
	for _, label := range used {
		if !slices.Contains(known, label) {
			t.Errorf("%s uses the label %q, which its metrics do not have", where, label)
		}
	}
}

// labelValueExists reports whether a label that has fixed values has this one.
func labelValueExists(label, value string) bool {
	switch label {
	case "reason":
		for r := bpf.XDPReasonREASON_NONE + 1; r < bpf.XDPReasonREASON_LEN; r++ {
			if r.String() == value {
				return true
			}
		}
		return false
	case "rule":
		return value == "none" || value == "builtin-.*" || slices.Contains(builtinRules(), value)
	}
	return true
}

// builtinRules names the rules that every policy has.
func builtinRules() (names []string) {
	p, err := firewall.Parse([]firewall.Source{{Name: "p.yaml", Text: []byte("apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan]}}\n")}}, nil)
	if err != nil {
		return nil
	}
	c, err := firewall.Compile(p, firewall.CompileOptions{Ports: []string{"lan"}})
	if err != nil {
		return nil
	}
	for _, r := range c.Rules[:firewall.RuleFirst] {
		names = append(names, r.Name)
	}
	return names
}

// The dashboard asks only for what is served, and every panel says what it is.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Title, UID string
		Templating struct {
			List []struct {
				Name, Definition string
			}
		}
		Panels []struct {
			ID          int
			Type, Title string
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.Title == "" || dashboard.UID == "" || len(dashboard.Panels) < 10 {
		t.Errorf("%q %q has %d panels", dashboard.Title, dashboard.UID, len(dashboard.Panels))
	}
	for _, v := range dashboard.Templating.List {
		checkExpression(t, "variable "+v.Name, v.Definition, "")
	}
	var rules strings.Builder // of the expressions, for promtool to read
	rules.WriteString("groups:\n  - name: dashboard\n    rules:\n")
	ids := make(map[int]bool)
	taken := make(map[[2]int]string)
	for _, p := range dashboard.Panels {
		if p.Title == "" || ids[p.ID] {
			t.Errorf("panel %d %q has no title, or another one's number", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or beyond the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			checkExpression(t, "panel "+p.Title, target.Expr, target.LegendFormat)
			expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*").Replace(target.Expr)
			fmt.Fprintf(&rules, "      - {record: 'panel:%d', expr: '%s'}\n", p.ID, expr)
		}
	}
	if promtool := findPromtool(t); promtool != "" {
		file := filepath.Join(t.TempDir(), "dashboard.yaml")
		if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		promtoolSays(t, promtool, nil, "check", "rules", "--lint=none", file)
	}
}

// Every alert asks only for what is served, and says what it means and what to do.
func TestAlertRules(t *testing.T) {
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	docs, errs := firewall.ParseYAML(alertsFile, text)
	if len(errs) > 0 || len(docs) != 1 {
		t.Fatalf("%d documents: %v", len(docs), errs)
	}
	field := func(n *firewall.Node, key string) *firewall.Node {
		for _, f := range n.Fields {
			if f.Key == key {
				return f.Value
			}
		}
		return &firewall.Node{}
	}
	rules := field(field(docs[0], "groups").Items[0], "rules").Items
	if len(rules) < 10 {
		t.Errorf("%d rules", len(rules))
	}
	tested, err := os.ReadFile(strings.Replace(alertsFile, ".yaml", "_test.yaml", 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		name, notes := field(r, "alert").Text, field(r, "annotations")
		checkExpression(t, "alert "+name, field(r, "expr").Text, field(notes, "summary").Text)
		for _, key := range []string{"summary", "description", "runbook"} {
			if len(field(notes, key).Text) < 20 {
				t.Errorf("alert %s has no %s", name, key)
			}
		}
		if s := field(field(r, "labels"), "severity").Text; !slices.Contains([]string{"critical", "warning", "info"}, s) {
			t.Errorf("alert %s is of severity %q", name, s)
		}
		if !strings.Contains(string(tested), name) {
			t.Errorf("alert %s has no test", name)
		}
	}
}

// The alerts fire when they should, and only then.
func TestAlertsFire(t *testing.T) {
	promtool := findPromtool(t)
	if promtool == "" {
		t.Skip("there is no promtool: `make deps-test` fetches it")
	}
	promtoolSays(t, promtool, nil, "check", "rules", alertsFile)
	promtoolSays(t, promtool, nil, "test", "rules", strings.Replace(alertsFile, ".yaml", "_test.yaml", 1))
}
