// Command summary reads the output of `go test -json` and prints what a person wants of it: the
// closing line of every package, the whole output of tests that failed, and at the end how many tests
// passed, failed and were left out, and why. It exits with 1 if a test or a build failed, if a package
// with coverage has less than -min-coverage, or if no test ran. With -again, a few tests that failed are run
// once more, and count as passed if they pass then.
//
// Beside what the go command writes it knows two more lines, which the Makefile writes around each run of it:
//
//	{"Action":"tags","Output":"xskdebug"}  before: the build tags of what follows
//	{"Action":"exit","Output":"1"}         after: the go command's status
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
	again := flag.String("again", "", "run tests that failed once more, with these flags of go test")
	flag.Parse()
	var run runner
	if *again != "" {
		run = goTest(strings.Fields(*again))
	}
	ok, err := summarise(os.Stdin, os.Stdout, *minimum, run)
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

// build is a package, with the build tags that it is tested with.
type build struct{ pkg, tags string }

func (b build) String() string {
	if b.tags == "" {
		return b.pkg
	}
	return b.pkg + " (-tags " + b.tags + ")"
}

// failure is of one test or subtest.
type failure struct {
	build
	test string
	said []string // at first
}

func (f failure) print(out io.Writer, what string) {
	fmt.Fprintf(out, "%s: %s %s\n", what, f.build, f.test)
	for _, line := range f.said {
		fmt.Fprintln(out, line)
	}
}

type summary struct {
	out        io.Writer
	minimum    float64
	tags       string              // of what is read
	output     map[string][]string // of running tests, by package and test
	passed     int
	top        int // of passed, without subtests
	skipped    int
	reasons    map[string]int // of skipped tests
	failures   []failure
	unfinished []failure
	broken     []build   // packages that failed
	explained  int       // of broken, by the runs that ended
	hopeless   []string  // why nothing need be run again
	notAgain   []string  // hopeless, where it would have been
	passedThen []failure // that passed when run again
	failedThen []build
	uncovered  []string
	statuses   []string // of the go command that no package explains
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

// summarise prints what in says, and whether all is well. With a runner, a few tests that failed are run again.
func summarise(in io.Reader, out io.Writer, minimum float64, run runner) (bool, error) {
	s := newSummary(out, minimum)
	if err := s.read(in); err != nil {
		return false, err
	}
	if run != nil && len(s.failures) > 0 {
		if err := s.again(run); err != nil {
			return false, err
		}
	}
	s.print()
	return s.ok(), nil
}

func newSummary(out io.Writer, minimum float64) *summary {
	return &summary{out: out, minimum: minimum, output: map[string][]string{}, reasons: map[string]int{}}
}

func (s *summary) ok() bool {
	return len(s.failures)+len(s.unfinished)+len(s.broken)+len(s.uncovered)+len(s.statuses) == 0 && s.passed > 0
}

func (s *summary) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(s.out, lines.Text()) // not from a test: the go command complains
			continue
		}
		s.take(e)
	}
	return lines.Err()
}

func (s *summary) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "tags":
		s.tags = e.Output
	case "exit":
		if e.Output != "0" && len(s.broken) == s.explained {
			s.statuses = append(s.statuses, e.Output)
		}
		s.explained = len(s.broken)
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "output":
		if hopeless.MatchString(e.Output) {
			s.hopeless = append(s.hopeless, s.build(e).String()+" says "+strings.TrimSpace(e.Output))
		}
		if e.Test != "" {
			s.output[key] = append(s.output[key], e.Output)
			return
		}
		s.closing(e)
	case "pass", "fail", "skip":
		if e.Test == "" {
			if e.Action == "fail" {
				s.breaks(s.build(e))
			}
			return
		}
		s.end(e, s.output[key])
		delete(s.output, key)
	}
}

func (s *summary) build(e event) build { return build{e.Package, s.tags} }

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
		if !strings.Contains(e.Test, "/") {
			s.top++
		}
	case "fail":
		fmt.Fprint(s.out, strings.Join(output, ""))
		s.failures = append(s.failures, failure{s.build(e), e.Test, first(output)})
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

// breaks takes note of a package that failed, and prints what the tests had said that ran when it broke off, as
// after a panic.
func (s *summary) breaks(b build) {
	s.broken = append(s.broken, b)
	var keys []string
	for key := range s.output {
		if strings.HasPrefix(key, b.pkg+" ") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		fmt.Fprint(s.out, strings.Join(s.output[key], ""))
		s.unfinished = append(s.unfinished, failure{b, strings.TrimPrefix(key, b.pkg+" "), first(s.output[key])})
		delete(s.output, key)
	}
	if !slices.ContainsFunc(s.failures, func(f failure) bool { return f.build == b }) {
		s.hopeless = append(s.hopeless, b.String()+" failed, and none of its tests")
	} else if len(keys) > 0 {
		s.hopeless = append(s.hopeless, b.String()+" broke off")
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
	fmt.Fprintf(s.out, "tests: %d passed, %d failed, %d left out\n", s.passed, len(s.failures), s.skipped)
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
		fmt.Fprintf(s.out, "failed packages: %s\n", list(s.broken))
	}
	if len(s.uncovered) > 0 {
		fmt.Fprintf(s.out, "coverage below %g%%: %s\n", s.minimum, strings.Join(s.uncovered, ", "))
	}
	for _, status := range s.statuses {
		fmt.Fprintf(s.out, "the go command failed: status %s\n", status)
	}
	for _, f := range s.failures {
		f.print(s.out, "failed")
	}
	for _, f := range s.unfinished {
		f.print(s.out, "unfinished")
	}
	s.printAgain()
	if s.passed == 0 {
		fmt.Fprintln(s.out, "no test ran")
	}
}

func list[T fmt.Stringer](of []T) string {
	var names []string
	for _, one := range of {
		names = append(names, one.String())
	}
	return strings.Join(names, ", ")
}
