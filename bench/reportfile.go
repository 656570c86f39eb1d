package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// reportMost is the size in bytes over which a file is taken for none of ours.
const reportMost = 64 << 20

// ReadReportFile reads a report that `bench NAME -o json` printed.
func ReadReportFile(name string) (*Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err) // which names the file
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, reportMost+1))
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	if len(text) > reportMost {
		return nil, fmt.Errorf("read result %s: it has more than %d bytes, which no result of a benchmark has", name, reportMost)
	}
	r, err := readReport(text)
	if err != nil {
		return nil, fmt.Errorf("read result %s: %w", name, err)
	}
	return r, nil
}

// readReport reads one report and checks what Compare relies on.
func readReport(text []byte) (*Report, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("it is empty")
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			line := 1 + bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n"))
			return nil, fmt.Errorf("line %d: it is no JSON, as `bench NAME -o json` prints: %w", line, err)
		case errors.As(err, &kind):
			line := 1 + bytes.Count(text[:min(int(kind.Offset), len(text))], []byte("\n"))
			return nil, fmt.Errorf("line %d: it is no result of a benchmark: %w", line, err)
		}
		return nil, fmt.Errorf("it is no result of a benchmark: %w", err)
	}
	switch {
	case r.Bench == "":
		return nil, errors.New("it is no result of a benchmark: `bench` is missing")
	case len(r.Results) == 0:
		return nil, errors.New("it has no `results`")
	}
	seen := map[string]bool{}
	for i, v := range r.Results {
		switch {
		case v.Name == "":
			return nil, fmt.Errorf("results[%d] has no `name`", i)
		case seen[v.Name]:
			return nil, fmt.Errorf("result %q stands there twice", v.Name)
		case v.Min > v.Median || v.Median > v.Max:
			return nil, fmt.Errorf("result %q: `median` %v is not between `min` %v and `max` %v", v.Name, v.Median, v.Min, v.Max)
		case len(v.Values) > 0 && len(v.Values) != v.Rounds:
			return nil, fmt.Errorf("result %q has %d `values` of %d `rounds`", v.Name, len(v.Values), v.Rounds)
		}
		seen[v.Name] = true
	}
	return &r, nil
}
