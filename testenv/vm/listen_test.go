package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Lines of a test program, as `-test.v=test2json` writes them.
const (
	goodTest = "\x16=== RUN   TestA\n    a_test.go:1: hello\n\x16--- PASS: TestA (0.10s)\n"
	leftTest = "\x16=== RUN   TestB\n    b_test.go:2: things: since Linux 6.6\n\x16--- SKIP: TestB (0.00s)\n"
	badTest  = "\x16=== RUN   TestC\n    c_test.go:3: wrong\n\x16--- FAIL: TestC (0.00s)\n"
	half     = "\x16=== RUN   TestD\n"
)

func said(words string) string { return mark + words + "\n" }

func TestListen(t *testing.T) {
	left := []skip{{"since Linux 6.6", []string{"TestB"}}}
	run := func(body, code string) string {
		return said("begin one") + body + "\n" + said("end one "+code) + said("done")
	}
	tests := []struct {
		name, line string
		job        job
		problems   []string // none for a good run
	}{
		{"good", run(goodTest+"\x16PASS\n", "0"), job{}, nil},
		{"left out as it must", run(goodTest+leftTest+"\x16PASS\n", "0"), job{skips: left}, nil},
		{"left out and must not", run(goodTest+leftTest+"\x16PASS\n", "0"), job{}, []string{"TestB was left out, and must not be: things: since Linux 6.6"}},
		{"left out for another reason", run(goodTest+leftTest+"\x16PASS\n", "0"), job{skips: []skip{{"no root", []string{"TestB"}}}},
			[]string{`TestB was left out for "things: since Linux 6.6" and not for "no root"`}},
		{"not left out any more", run(goodTest+"\x16PASS\n", "0"), job{skips: []skip{{"since Linux 6.6", []string{"TestA"}}}},
			[]string{"TestA runs here: strike it"}},
		{"not there to be left out", run(goodTest+"\x16PASS\n", "0"), job{skips: left}, []string{`TestB must be left out ("since Linux 6.6"), and is not there`}},
		{"a test of a list is gone", run(goodTest+"\x16PASS\n", "0"), job{tests: []string{"TestA", "TestZ"}}, []string{"there is no TestZ"}},
		{"no test", run("testing: warning: no tests to run\n\x16PASS\n", "0"), job{}, []string{"no test ran"}},
		{"only left out", run(leftTest+"\x16PASS\n", "0"), job{skips: left}, []string{"no test ran"}},
		{"a test fails", run(goodTest+badTest+"\x16FAIL\n", "1"), job{}, []string{"it ended with status 1"}},
		{"it says PASS, and ends badly", run(goodTest+"\x16PASS\nleaked\n", "1"), job{}, []string{"it ended with status 1"}},
		{"it panics", run(goodTest+half+"panic: boom\n", "2"), job{}, []string{"it ended with status 2", "TestD did not end"}},
		{"it does not end its last test, and well", run(goodTest+half+"\x16PASS\n", "0"), job{}, []string{"TestD did not end"}},
		{"the machine stops", said("begin one") + goodTest + half, job{}, []string{"the machine ended before it", "TestD did not end", "the guest did not come to its end"}},
		{"the machine stops between", said("begin one") + goodTest + "\x16PASS\n" + said("end one 0"), job{}, []string{"the guest did not come to its end"}},
		{"nothing is said", "", job{}, []string{"one did not run", "the guest did not come to its end"}},
		{"the job is left out", said("done"), job{}, []string{"one did not run"}},
		{"another's end", said("begin one") + goodTest + "\x16PASS\n" + said("end two 0") + said("end one 0") + said("done"), job{}, []string{`"end two 0", which is not its turn`}},
		{"a test says it is done", said("begin one") + goodTest + said("done") + said("end one 0"), job{}, []string{`"done", which is not its turn`, "did not come to its end"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.job.name = "one"
			var out bytes.Buffer
			err := newListener(&out, kernel{release: "9.9"}, []job{tt.job}).listen(t.Context(), strings.NewReader(tt.line))
			for _, want := range tt.problems {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("it does not complain %q, but says %v", want, err)
				}
			}
			if len(tt.problems) == 0 && err != nil {
				t.Error(err)
			}
			// The summary hears the same.
			var last event
			said := ""
			for d := json.NewDecoder(&out); d.More(); {
				last = event{}
				if err := d.Decode(&last); err != nil {
					t.Fatal(err)
				}
				if last.Package != "one@9.9" {
					t.Errorf("an event of %q", last.Package)
				}
				said += last.Output
			}
			if len(tt.problems) == 0 && (last.Action != "pass" || last.Test != "" || !strings.Contains(said, "ok  \tone@9.9\t")) {
				t.Errorf("the last event is %+v", last)
			}
			if err != nil && strings.Contains(err.Error(), "one: ") && (last.Action != "fail" || last.Test != "" || !strings.Contains(said, "FAIL\tone@9.9\t")) {
				t.Errorf("the last event is %+v", last)
			}
		})
	}
}

func TestStepNamesTests(t *testing.T) {
	s := job{name: "x", folder: "a/b", tests: []string{"TestA", "TestB"}, limit: 3e9}.step("/tests/x")
	if got := strings.Join(s.Args, " "); got != "-test.v=test2json -test.count=1 -test.timeout=3s -test.run=^(TestA|TestB)$" || s.Dir != "/src/a/b" {
		t.Errorf("%s in %s", got, s.Dir)
	}
}

func TestPattern(t *testing.T) {
	for want, tests := range map[string][]string{
		"^(TestA)$":             {"TestA"},
		"^(TestA|TestB)$":       {"TestA", "TestB"},
		"^(TestA)$/^(x-1|y-2)$": {"TestA/x-1", "TestA/y-2"},
	} {
		if got := pattern(tests); got != want {
			t.Errorf("%v: %s, want %s", tests, got, want)
		}
	}
}

func TestWantedJobs(t *testing.T) {
	s := series{jobs: []job{{name: "a"}, {name: "b", beside: "SOFTDPU_TEST_BESIDE"}}}
	for _, tt := range []struct{ beside, name, want string }{
		{"", "", "a"}, {"/bin/true", "", "a b"}, {"/bin/true", "b", "b"}, {"", "a", "a"}, {"", "b", ""}, {"", "c", ""},
	} {
		t.Setenv("SOFTDPU_TEST_BESIDE", tt.beside)
		jobs, err := s.wanted(tt.name)
		var names []string
		for _, j := range jobs {
			names = append(names, j.name)
		}
		if got := strings.Join(names, " "); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

func TestSeries(t *testing.T) {
	for name, want := range map[string]int{"6.1": 1, "newest": 1, "all": 2} {
		if got, err := chosen(name); err != nil || len(got) != want {
			t.Errorf("%s: %d, %v", name, len(got), err)
		}
	}
	if _, err := chosen("5.4"); err == nil {
		t.Error("5.4 is none")
	}
	for _, s := range known {
		names := map[string]bool{}
		for _, j := range s.jobs {
			if names[j.name] || strings.ContainsAny(j.name, " /") || j.limit == 0 || j.folder == "" {
				t.Errorf("%s: job %+v", s.name, j)
			}
			names[j.name] = true
		}
	}
}
