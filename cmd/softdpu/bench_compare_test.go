package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bench"
)

func TestBenchCompare(t *testing.T) {
	dir := t.TempDir()
	write := func(name, kernel string, values ...float64) string {
		t.Helper()
		r := bench.Report{Bench: "xdp", Environment: bench.Environment{Kernel: kernel}, Results: []bench.Result{
			{Name: "ipv4-hit", Unit: "ns", Min: values[0], Median: values[2], Max: values[len(values)-1], Rounds: len(values), Values: values},
		}}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a := write("a.json", "6.1", 40, 41, 42, 43, 44)
	same := write("same.json", "6.1", 40.5, 41.5, 42.5, 43.5, 44.5)
	slower := write("slower.json", "6.12", 50, 51, 52, 53, 54)
	text := filepath.Join(dir, "text.json")
	if err := os.WriteFile(text, []byte("NAME MEDIAN\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name             string
		args             []string
		code             int
		stdout, stderr   []string
		notOut, silently bool
	}{
		{"nothing differs", []string{a, same}, exitYes, []string{"ipv4-hit", "+1.2%", "u-test"}, nil, false, true},
		{"something differs", []string{a, slower}, exitNo, []string{"+23.8%", "p=0.008", "yes"}, []string{`kernel: "6.1", then "6.12"`}, false, false},
		{"as JSON", []string{a, slower, "-o", "json"}, exitNo, []string{`"differs": true`, `"change_percent": 23.8`, `"warnings"`}, nil, false, true},
		{"one file", []string{a}, exitError, nil, []string{"needs B.json"}, true, false},
		{"three files", []string{a, a, a}, exitError, nil, []string{"takes no argument"}, true, false},
		{"no result", []string{a, text}, exitError, nil, []string{"text.json", "line 1", "no JSON"}, true, false},
		{"no file", []string{filepath.Join(dir, "absent"), a}, exitError, nil, []string{"absent"}, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, append([]string{"bench", "compare"}, test.args...)...)
			if code != test.code {
				t.Errorf("exit code %d, expected %d", code, test.code)
			}
			for _, want := range test.stdout {
				if !strings.Contains(stdout, want) {
					t.Errorf("no %q in:\n%s", want, stdout)
				}
			}
			for _, want := range test.stderr {
				if !strings.Contains(stderr, want) {
					t.Errorf("no %q in:\n%s", want, stderr)
				}
			}
			if test.notOut && stdout != "" || test.silently && stderr != "" {
				t.Errorf("printed:\n%s%s", stdout, stderr)
			}
		})
	}
}

// The tables of bench latency show each contender's frames, all of them.
func TestLatencyTables(t *testing.T) {
	list := []bench.Histogram{
		{Name: "kernel", Unit: "us", Sent: 1000, Received: 1000, Percentiles: []bench.Percentile{{Percent: 50, Value: 1.5, SinceDue: 1.6, Late: 0.1}, {Percent: 100, Value: 90, SinceDue: 95, Late: 7}},
			Buckets: []bench.Bucket{{From: 1.472, Below: 1.5, Packets: 750}, {From: 88, Below: 96, Packets: 250}}},
		{Name: "xdp", Unit: "us", Sent: 1000, Received: 990, Lost: 10, Percentiles: []bench.Percentile{{Percent: 50, Value: 0.7}, {Percent: 100, Value: 200000}},
			Buckets: []bench.Bucket{{From: 0.704, Below: 0.72, Packets: 990}}},
	}
	var out strings.Builder
	for _, table := range []*table{percentileTable(list), histogramTable(list)} {
		if err := table.write(&out, 0); err != nil {
			t.Fatal(err)
		}
	}
	want := `ALL ROUNDS   SENT  LOST  TWICE  P50     MAX  UNIT
kernel       1000     0      0  1.5      90  us
  since due                     1.6      95  us
  sent late                     0.1       7  us
xdp          1000    10      0  0.7  200000  us
  since due                       0       0  us
  sent late                       0       0  us
FROM US  BELOW  KERNEL                       XDP
  0.512   1.02    0.000%                      99.000% ########################
   1.02   2.05   75.000% ##################    0.000%
   2.05    4.1    0.000%                       0.000%
    4.1   8.19    0.000%                       0.000%
   8.19   16.4    0.000%                       0.000%
   16.4   32.8    0.000%                       0.000%
   32.8   65.5    0.000%                       0.000%
   65.5    131   25.000% ######                0.000%
   lost           0.000%                       1.000%
`
	if out.String() != want {
		t.Errorf("printed:\n%s\nexpected:\n%s", out.String(), want)
	}
}
