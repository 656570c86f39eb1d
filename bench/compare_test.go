package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// around returns n values that lie around one, each a little apart.
func around(middle float64, n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = middle * (1 + 0.001*float64(i-n/2))
	}
	return v
}

// shifted are values of which most are a little above others.
func shifted(v []float64, by float64) []float64 {
	w := slices.Clone(v)
	for i := range w {
		w[i] *= by
	}
	return w
}

func TestCompare(t *testing.T) {
	alone := func(r Result) Result { // as reports were before they had rounds
		r.Values, r.Ratios = nil, nil
		return r
	}
	base := around(100, 15)
	for _, test := range []struct {
		name    string
		a, b    Result
		differs []string // names of figures
		test    string   // of the first
		change  float64  // of the first, in per cent
	}{
		{"the same", summarize("x", "ns", base), summarize("x", "ns", base), nil, "u-test", 0},
		{"a shift of every round by half of the range", summarize("x", "ns", base), summarize("x", "ns", shifted(base, 1.0071)), []string{"x"}, "u-test", 0.71},
		{"a shift by less than noise", summarize("x", "ns", base), summarize("x", "ns", shifted(base, 1.0011)), nil, "u-test", 0.11},
		{"one round far off", summarize("x", "ns", base), summarize("x", "ns", append(slices.Clone(base[:14]), 900)), nil, "u-test", 0},
		{"four rounds apart", summarize("x", "ns", around(100, 4)), summarize("x", "ns", around(90, 4)), []string{"x"}, "ranges", -10},
		{"four rounds that touch", summarize("x", "ns", around(100, 4)), summarize("x", "ns", around(100.2, 4)), nil, "ranges", 0.2},
		{"no rounds in one", alone(summarize("x", "ns", base)), summarize("x", "ns", around(120, 15)), []string{"x"}, "ranges", 20},
		{"both faster, the ratio as before", summarize("x", "ns", base).versus("p", base, base),
			summarize("x", "ns", shifted(base, 0.5)).versus("p", shifted(base, 0.5), shifted(base, 0.5)), []string{"x"}, "u-test", -50},
		{"the peer faster alone", summarize("x", "ns", base).versus("p", base, base),
			summarize("x", "ns", base).versus("p", base, shifted(base, 0.5)), []string{"x ratio"}, "u-test", 0},
		{"from nothing", summarize("x", "ns", make([]float64, 15)), summarize("x", "ns", base), []string{"x"}, "u-test", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := Compare("a", "b", &Report{Bench: "xdp", Results: []Result{test.a}}, &Report{Bench: "xdp", Results: []Result{test.b}})
			if err != nil {
				t.Fatal(err)
			}
			var differs []string
			for _, f := range c.Figures {
				if f.Differs {
					differs = append(differs, f.Name)
				}
			}
			if !slices.Equal(differs, test.differs) || c.Differs != (len(differs) > 0) {
				t.Errorf("%v differ, in all %v; expected %v: %+v", differs, c.Differs, test.differs, c.Figures)
			}
			if f := c.Figures[0]; f.Test != test.test || f.Change < test.change-0.06 || f.Change > test.change+0.06 {
				t.Errorf("by %s %.2f%%, expected by %s %.2f%%", f.Test, f.Change, test.test, test.change)
			}
		})
	}
}

func TestCompareReports(t *testing.T) {
	one := func(name string) Result { return summarize(name, "ns", around(100, 15)) }
	peer := one("peered").versus("kernel", around(1, 15), around(2, 15))
	a := &Report{Bench: "xdp", Environment: Environment{Kernel: "6.1", CPU: "x", CPUs: 2, XDPMode: "native"}, Results: []Result{one("old"), one("both"), peer}}
	peer.Peer = "xdpsock"
	b := &Report{Bench: "xdp", Environment: Environment{Kernel: "6.12", CPU: "x", CPUs: 2, XDPMode: "generic"}, Results: []Result{one("both"), peer, one("new")}}
	c, err := Compare("a.json", "b.json", a, b)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.OnlyA, []string{"old"}) || !slices.Equal(c.OnlyB, []string{"new"}) || len(c.Figures) != 2 || c.Differs {
		t.Errorf("%+v", c)
	}
	warnings := strings.Join(c.Warnings, "\n")
	for _, want := range []string{`kernel: "6.1", then "6.12"`, `XDP mode: "native", then "generic"`, "peered stands beside"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("no warning %q in:\n%s", want, warnings)
		}
	}
	if len(c.Warnings) != 3 {
		t.Errorf("warnings:\n%s", warnings)
	}
	if _, err := Compare("a", "b", a, &Report{Bench: "gateway"}); err == nil {
		t.Error("two different benchmarks were compared")
	}
	if _, err := Compare("a", "b", a, &Report{Bench: "xdp", Results: []Result{summarize("both", "us", around(1, 3))}}); err == nil {
		t.Error("ns were compared with us")
	}
}

func TestReadReport(t *testing.T) {
	good, err := json.Marshal(Report{Bench: "xdp", Results: []Result{summarize("x", "ns", []float64{1, 2, 3})}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, text, want string }{
		{"a result", string(good), ""},
		{"nothing", " \n", "empty"},
		{"a table", "NAME  MEDIAN\nx  1\n", "line 1: it is no JSON"},
		{"cut off", string(good[:len(good)/2]), "no JSON"},
		{"two results", string(good) + "\n" + string(good), "line 2: it is no JSON"},
		{"other JSON", `{"packets": 1}`, "`bench` is missing"},
		{"a list", `[1]`, "no result of a benchmark"},
		{"no results", `{"bench": "xdp", "results": []}`, "no `results`"},
		{"a string for a number", "{\"bench\": \"xdp\",\n\"results\": [{\"name\": \"x\", \"median\": \"1\"}]}", "line 2"},
		{"a result without a name", `{"bench": "xdp", "results": [{"median": 1}]}`, "results[0] has no `name`"},
		{"the same twice", `{"bench": "xdp", "results": [{"name": "x"}, {"name": "x"}]}`, `"x" stands there twice`},
		{"a median out of range", `{"bench": "xdp", "results": [{"name": "x", "min": 2, "median": 1, "max": 3}]}`, "not between"},
		{"fewer rounds than it says", `{"bench": "xdp", "results": [{"name": "x", "rounds": 2, "values": [0]}]}`, "1 `values` of 2 `rounds`"},
	} {
		t.Run(test.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "r.json")
			if err := os.WriteFile(name, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := ReadReportFile(name)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), name)):
				t.Errorf("error %v, expected the file and %q", err, test.want)
			}
		})
	}
	if _, err := ReadReportFile(filepath.Join(t.TempDir(), "absent.json")); err == nil || !strings.Contains(err.Error(), "absent.json") {
		t.Errorf("of a file that is not there: %v", err)
	}
}

// Whatever is read compares with itself, and not as different.
func FuzzReadReport(f *testing.F) {
	good, err := json.Marshal(Report{Bench: "xdp", Results: []Result{summarize("x", "ns", []float64{1, 2, 3}).versus("p", []float64{1, 2, 3}, []float64{3, 4, 5})}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"bench":"xdp","results":[{"name":"x","rounds":1,"values":[-1e308],"ratios":[0],"min":-1e308,"median":-1e308,"max":1e308}]}`))
	f.Add([]byte(`{"bench":"latency","histograms":[{"buckets":null}],"results":[{"name":"\u001b[2J","ratios":[1,1,1,1,1,1]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := readReport(text)
		if err != nil {
			return
		}
		c, err := Compare("a", "b", r, r)
		if err != nil {
			t.Fatal(err)
		}
		if c.Differs || len(c.Warnings) > 0 || len(c.OnlyA)+len(c.OnlyB) > 0 {
			t.Errorf("a report differs from itself: %+v", c)
		}
		if _, err := json.Marshal(c); err != nil {
			t.Error(err)
		}
	})
}
