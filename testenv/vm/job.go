package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A job is a package's tests, or some of them, with the reasons for which some must be left out.
type job struct {
	name   string // one word
	folder string
	tags   string
	env    []string
	limit  time.Duration
	tests  []string // functions; none for all
	skips  []skip
}

// A skip is tests that the kernel at hand cannot run, by their full names, and words that their reason has.
type skip struct {
	reason string
	tests  []string
}

// step returns what the guest runs for the job.
func (j job) step(program string) step {
	args := []string{"-test.v=test2json", "-test.count=1", limitOf(j.limit)}
	if len(j.tests) > 0 {
		args = append(args, "-test.run=^("+strings.Join(j.tests, "|")+")$")
	}
	return step{
		Name: j.name, Program: program, Dir: sourceDir + "/" + j.folder, Args: args,
		Env: append([]string{"SOFTDPU_BUILT=" + builtDir}, j.env...),
	}
}

// results are tests by their full names.
type results map[string]*result

type result struct {
	action string // pass, fail or skip; none while it runs
	output []string
}

// take notes an event. It returns whether it is one of a test, and no verdict on the whole, which is judge's.
func (r results) take(e event) bool {
	if e.Test == "" {
		return e.Action == "output" && strings.TrimSpace(e.Output) != ""
	}
	if r[e.Test] == nil {
		r[e.Test] = &result{}
	}
	switch e.Action {
	case "output":
		r[e.Test].output = append(r[e.Test].output, e.Output)
	case "pass", "fail", "skip":
		r[e.Test].action = e.Action
		if e.Action == "pass" {
			r[e.Test].output = nil
		}
	}
	return true
}

// place is the file and line before what a test says.
var place = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

// reason is the last that the test said.
func (r *result) reason() string {
	for _, line := range slices.Backward(r.output) {
		if m := place.FindString(line); m != "" {
			return strings.TrimSpace(line[len(m):])
		}
	}
	return "no reason given"
}

// judge returns what is wrong with a job that ended with this status, -1 for one that did not end, and had these
// results.
func (j job) judge(code int, got results) []string {
	var problems []string
	switch {
	case code < 0:
		problems = append(problems, "the machine ended before it")
	case code > 0:
		problems = append(problems, fmt.Sprintf("it ended with status %d", code))
	}
	expected := map[string]string{}
	for _, s := range j.skips {
		for _, name := range s.tests {
			expected[name] = s.reason
		}
	}
	passed := 0
	for _, name := range slices.Sorted(maps.Keys(got)) {
		r, want, skips := got[name], "", false
		want, skips = expected[name]
		delete(expected, name)
		switch {
		case r.action == "pass" && skips:
			problems = append(problems, fmt.Sprintf("%s runs here: strike it from the list of those that must be left out (%q)", name, want))
		case r.action == "pass":
			passed++
		case r.action == "skip" && !skips:
			problems = append(problems, fmt.Sprintf("%s was left out, and must not be: %s", name, r.reason()))
		case r.action == "skip" && !strings.Contains(r.reason(), want):
			problems = append(problems, fmt.Sprintf("%s was left out for %q and not for %q", name, r.reason(), want))
		case r.action == "":
			problems = append(problems, name+" did not end")
		}
	}
	if code == 0 {
		for _, name := range slices.Sorted(maps.Keys(expected)) {
			problems = append(problems, fmt.Sprintf("%s must be left out (%q), and is not there", name, expected[name]))
		}
		for _, name := range j.tests {
			if got[name] == nil {
				problems = append(problems, "there is no "+name)
			}
		}
		if passed == 0 {
			problems = append(problems, "no test ran")
		}
	}
	return problems
}
