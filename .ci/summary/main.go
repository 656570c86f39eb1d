// Command summary reads the output of `go test -json` and prints what a person wants of it: the
// closing line of every package, the whole output of tests that failed, and at the end how many tests
// passed, failed and were left out, and why. It exits with 1 if a test or a build failed, if a package
// with coverage has less than -min-coverage, or if no test ran.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	minimum := flag.Float64("min-coverage", 0, "per cent of statements that a package with coverage must have")
	flag.Parse()
	ok, err := summarise(os.Stdin, os.Stdout, *minimum)
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// event is what cmd/test2json documents.
type event struct {
	Action, Package, ImportPath, Test, Output string
}

type summary struct {
	out                     io.Writer
	minimum                 float64
	output                  map[string][]string // of running tests, by package and test
	passed, failed, skipped int
	reasons                 map[string]int // of skipped tests
	broken                  []string       // packages that failed
	uncovered               []string
	failures                []string // what each failed test said first
}

// dataVariable stands in the reason of every test that lacks the independent data.
const dataVariable = "SOFTDPU_TESTDATA"

var (
	coverage = regexp.MustCompile(`coverage: ([0-9.]+)% of statements`)
	// closing lines are what go test prints when a package is done.
	closing = regexp.MustCompile(`^(ok  |FAIL|\?   |panic|exit status)`)
	// place is the file and line before what a test says.
	place = regexp.MustCompile(`^\s*\S+_?\w*\.go:\d+: `)
)

func summarise(in io.Reader, out io.Writer, minimum float64) (bool, error) {
	s := &summary{out: out, minimum: minimum, output: map[string][]string{}, reasons: map[string]int{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(out, lines.Text()) // not from a test: the go command complains
			continue
		}
		s.take(e)
	}
	s.print()
	ok := s.failed == 0 && len(s.broken) == 0 && len(s.uncovered) == 0 && s.passed > 0
	return ok, lines.Err()
}

func (s *summary) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "output":
		if e.Test != "" {
			s.output[key] = append(s.output[key], e.Output)
			return
		}
		s.closing(e)
	case "pass", "fail", "skip":
		if e.Test == "" {
			if e.Action == "fail" {
				s.broken = append(s.broken, e.Package)
				s.unfinished(e.Package)
			}
			return
		}
		s.end(e, s.output[key])
		delete(s.output, key)
	}
}

func (s *summary) closing(e event) {
	if closing.MatchString(e.Output) && strings.TrimSpace(e.Output) != "FAIL" {
		fmt.Fprint(s.out, e.Output)
	}
	if m := coverage.FindStringSubmatch(e.Output); m != nil && strings.HasPrefix(e.Output, "ok") {
		if v, err := strconv.ParseFloat(m[1], 64); err == nil && v < s.minimum {
			s.uncovered = append(s.uncovered, fmt.Sprintf("%s (%s%%)", e.Package, m[1]))
		}
	}
}

func (s *summary) end(e event, output []string) {
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		fmt.Fprint(s.out, strings.Join(output, ""))
		s.failures = append(append(s.failures, "failed: "+e.Package+" "+e.Test), first(output)...)
	case "skip":
		s.skipped++
		s.reasons[reason(output)]++
	}
}

// first is the beginning of what a test said: a log is often kept only by its end, and there a lab's
// picture of its namespaces hides the reason.
func first(output []string) (said []string) {
	const most, width = 5, 300
	for _, line := range output {
		if line = strings.TrimRight(line, "\n"); place.MatchString(line) && len(said) < most {
			said = append(said, line[:min(len(line), width)])
		}
	}
	return said
}

// unfinished prints what the tests had said that ran when the package broke off, as after a panic.
func (s *summary) unfinished(pkg string) {
	var keys []string
	for key := range s.output {
		if strings.HasPrefix(key, pkg+" ") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		fmt.Fprint(s.out, strings.Join(s.output[key], ""))
		s.failures = append(append(s.failures, "unfinished: "+key), first(s.output[key])...)
		delete(s.output, key)
	}
}

// reason is the last thing that a skipped test said.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		if m := place.FindString(line); m != "" {
			return strings.TrimSpace(line[len(m):])
		}
	}
	return "no reason given"
}

func (s *summary) print() {
	var reasons []string
	for r := range s.reasons {
		reasons = append(reasons, r)
	}
	slices.Sort(reasons)
	fmt.Fprintf(s.out, "tests: %d passed, %d failed, %d left out\n", s.passed, s.failed, s.skipped)
	data := 0
	for _, r := range reasons {
		fmt.Fprintf(s.out, "  left out %d: %s\n", s.reasons[r], r)
		if strings.Contains(r, dataVariable) {
			data += s.reasons[r]
		}
	}
	if data > 0 {
		fmt.Fprintf(s.out, "  data tests left out: %d\n", data)
	}
	if len(s.broken) > 0 {
		fmt.Fprintf(s.out, "failed packages: %s\n", strings.Join(s.broken, ", "))
	}
	if len(s.uncovered) > 0 {
		fmt.Fprintf(s.out, "coverage below %g%%: %s\n", s.minimum, strings.Join(s.uncovered, ", "))
	}
	for _, f := range s.failures {
		fmt.Fprintln(s.out, f)
	}
	if s.passed == 0 {
		fmt.Fprintln(s.out, "no test ran")
	}
}
