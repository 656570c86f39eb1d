package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// mostAgain is how many tests, without subtests, may be run again: where more fail, it was not a busy machine.
const mostAgain = 4

// hopeless is said where it does not matter whether a test passes when it is run again.
var hopeless = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE)`)

// runner runs these tests of a package, and returns what `go test -json` wrote.
type runner func(b build, tests []string) ([]byte, error)

// goTest runs tests one after the other, with these flags of go test beside.
func goTest(flags []string) runner {
	return func(b build, tests []string) ([]byte, error) {
		args := slices.Concat([]string{"test", "-json"}, flags, // the last of a flag counts
			[]string{"-count=1", "-parallel=1", "-tags", b.tags, "-run", "^(" + strings.Join(tests, "|") + ")$", b.pkg})
		cmd := exec.Command("go", args...)
		cmd.Stderr = os.Stderr
		written, err := cmd.Output()
		if status := (*exec.ExitError)(nil); errors.As(err, &status) {
			return fmt.Appendf(written, "{\"Action\":\"exit\",\"Output\":\"%d\"}\n", status.ExitCode()), nil
		}
		return written, err
	}
}

// again runs the tests that failed once more, package by package. What passes then counts as passed. It runs
// nothing where the run fails whatever comes of it.
func (s *summary) again(run runner) error {
	tests := map[build][]string{}
	var builds []build
	count := 0
	for _, f := range s.failures {
		top, _, _ := strings.Cut(f.test, "/")
		if slices.Contains(tests[f.build], top) {
			continue
		}
		if !slices.Contains(builds, f.build) {
			builds = append(builds, f.build)
		}
		tests[f.build] = append(tests[f.build], top)
		count++
	}
	if count > mostAgain {
		s.hopeless = append(s.hopeless, fmt.Sprintf("%d tests failed, more than %d", count, mostAgain))
	}
	if len(s.hopeless) > 0 {
		s.notAgain = s.hopeless
		return nil
	}
	for _, b := range builds {
		fmt.Fprintf(s.out, "\nRUN AGAIN, ALONE: %s %s\n", b, strings.Join(tests[b], " "))
		written, err := run(b, tests[b])
		if err != nil {
			return fmt.Errorf("run tests of %s again: %w", b, err)
		}
		second := newSummary(s.out, 0)
		second.tags = b.tags
		if err := second.read(bytes.NewReader(written)); err != nil {
			return err
		}
		if second.ok() && second.top == len(tests[b]) { // none was left out
			s.forgive(b)
		} else {
			s.failedThen = append(s.failedThen, b)
		}
	}
	return nil
}

// forgive counts what failed in the package as passed.
func (s *summary) forgive(b build) {
	s.failures = slices.DeleteFunc(s.failures, func(f failure) bool {
		if f.build == b {
			s.passedThen = append(s.passedThen, f)
			s.passed++
		}
		return f.build == b
	})
	s.broken = slices.DeleteFunc(s.broken, func(broken build) bool { return broken == b })
}

func (s *summary) printAgain() {
	for _, f := range s.passedThen {
		f.print(s.out, "FAILED AT FIRST")
	}
	for _, f := range s.passedThen {
		if !strings.Contains(f.test, "/") {
			fmt.Fprintf(s.out, "passed when run again: %s %s\n", f.build, f.test)
		}
	}
	for _, why := range s.notAgain {
		fmt.Fprintf(s.out, "nothing was run again: %s\n", why)
	}
	if len(s.failedThen) > 0 {
		fmt.Fprintf(s.out, "failed when run again too: %s\n", list(s.failedThen))
	}
}
