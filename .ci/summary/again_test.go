package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// failing is a run of package p in which these tests fail, and TestGood passes.
func failing(tests ...string) string {
	var b strings.Builder
	b.WriteString(`{"Action":"pass","Package":"p","Test":"TestGood"}` + "\n")
	for _, test := range tests {
		fmt.Fprintf(&b, `{"Action":"output","Package":"p","Test":"%s","Output":"    a_test.go:9: late\n"}`+"\n", test)
		fmt.Fprintf(&b, `{"Action":"fail","Package":"p","Test":"%s"}`+"\n", test)
	}
	if len(tests) == 0 {
		return b.String() + `{"Action":"exit","Output":"0"}` + "\n"
	}
	return b.String() + `{"Action":"fail","Package":"p"}` + "\n" + `{"Action":"exit","Output":"1"}` + "\n"
}

func passing(tests ...string) string {
	var b strings.Builder
	for _, test := range tests {
		fmt.Fprintf(&b, `{"Action":"pass","Package":"p","Test":"%s"}`+"\n", test)
	}
	return b.String()
}

func TestAgain(t *testing.T) {
	tags := func(tags string) string { return `{"Action":"tags","Output":"` + tags + `"}` + "\n" }
	says := func(test, what string) string {
		return fmt.Sprintf(`{"Action":"output","Package":"p","Test":"%s","Output":"%s\n"}`+"\n", test, what)
	}
	tests := []struct {
		name, in, then string
		again          []string // what was run again
		ok             bool
		want           string // the end of what is printed
	}{
		{"nothing failed", failing(), "", nil, true, "tests: 1 passed, 0 failed, 0 left out\n"},
		{"passes then, with its subtest", failing("TestA/sub", "TestA", "TestB"), passing("TestA/sub", "TestA", "TestB"), []string{"p TestA TestB"}, true, `
RUN AGAIN, ALONE: p TestA TestB
tests: 4 passed, 0 failed, 0 left out
FAILED AT FIRST: p TestA/sub
    a_test.go:9: late
FAILED AT FIRST: p TestA
    a_test.go:9: late
FAILED AT FIRST: p TestB
    a_test.go:9: late
passed when run again: p TestA
passed when run again: p TestB
`},
		{"fails again", failing("TestA"), failing("TestA"), []string{"p TestA"}, false, `
RUN AGAIN, ALONE: p TestA
    a_test.go:9: late
tests: 1 passed, 1 failed, 0 left out
failed packages: p
failed: p TestA
    a_test.go:9: late
failed when run again too: p
`},
		{"one of two fails again", failing("TestA", "TestB"), passing("TestA") + failing("TestB"), []string{"p TestA TestB"}, false, "failed when run again too: p\n"},
		{"left out when run again", failing("TestA"), says("TestA", "    a_test.go:1: no") + `{"Action":"skip","Package":"p","Test":"TestA"}`, []string{"p TestA"}, false, "failed when run again too: p\n"},
		{"nothing ran again", failing("TestA"), "", []string{"p TestA"}, false, "failed when run again too: p\n"},
		{"passes, but leaves files behind", failing("TestA"), passing("TestA") + `{"Action":"fail","Package":"p"}`, []string{"p TestA"}, false, "failed when run again too: p\n"},
		{"passes, but the go command fails", failing("TestA"), passing("TestA") + `{"Action":"exit","Output":"2"}`, []string{"p TestA"}, false, "failed when run again too: p\n"},
		{"each in its build", failing("TestA") + tags("xskdebug") + failing("TestA"), passing("TestA"), []string{"p TestA", "p (-tags xskdebug) TestA"}, true,
			"passed when run again: p TestA\npassed when run again: p (-tags xskdebug) TestA\n"},
		{"four", failing("TestA", "TestB", "TestC", "TestD"), passing("TestA", "TestB", "TestC", "TestD"), []string{"p TestA TestB TestC TestD"}, true,
			"passed when run again: p TestD\n"},
		{"five", failing("TestA", "TestB", "TestC", "TestD", "TestE"), "", nil, false, "nothing was run again: 5 tests failed, more than 4\n"},
		{"a panic in a test", failing("TestA") + says("TestB", "panic: boom") + `{"Action":"fail","Package":"p","Test":"TestB"}` + "\n", "", nil, false,
			"nothing was run again: p says panic: boom\n"},
		{"a data race", says("TestA", "WARNING: DATA RACE") + failing("TestA"), "", nil, false, "nothing was run again: p says WARNING: DATA RACE\n"},
		{"a package broke off", says("TestB", "so far") + failing("TestA"), "", nil, false, "nothing was run again: p broke off\n"},
		{"another does not build", failing("TestA") + `{"Action":"fail","Package":"q"}`, "", nil, false, "nothing was run again: q failed, and none of its tests\n"},
		{"the go command failed elsewhere", failing("TestA") + `{"Action":"exit","Output":"2"}`, passing("TestA"), []string{"p TestA"}, false, "passed when run again: p TestA\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var again []string
			run := func(b build, tests []string) ([]byte, error) {
				again = append(again, b.String()+" "+strings.Join(tests, " "))
				return []byte(tt.then), nil
			}
			var b strings.Builder
			ok, err := summarise(strings.NewReader(tt.in), &b, 0, run)
			if err != nil || ok != tt.ok || !slices.Equal(again, tt.again) {
				t.Errorf("ok %t, %v; run again: %q", ok, err, again)
			}
			if !strings.HasSuffix(b.String(), tt.want) {
				t.Errorf("got: %swant at the end: %s", b.String(), tt.want)
			}
		})
	}
}

// TestGoTestAgain runs real tests again: one passes then and one does not, another would break everything.
func TestGoTestAgain(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module again\n\ngo 1.25\n",
		"a_test.go": `package again

import "testing"

func TestA(t *testing.T) {}

func TestB(t *testing.T) { t.Error(built) }

func TestBoth(t *testing.T) { panic("was not asked for") }
`,
		"plain_test.go": "//go:build !special\n\npackage again\n\nconst built = \"plainly\"\n",
		"tags_test.go":  "//go:build special\n\npackage again\n\nconst built = \"specially\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "")
	for _, tt := range []struct {
		tags string
		run  []string
		ok   bool
		says string
	}{
		{"", []string{"TestA"}, true, ""},
		{"", []string{"TestA", "TestB"}, false, "plainly"},
		{"special", []string{"TestB"}, false, "specially"},
	} {
		written, err := goTest([]string{"-timeout", "1m", "-parallel", "3"})(build{"again", tt.tags}, tt.run)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		ok, err := summarise(strings.NewReader(string(written)), &b, 0, nil)
		if err != nil || ok != tt.ok || !strings.Contains(b.String(), tt.says) {
			t.Errorf("%v with tags %q: %t, %v: %s", tt.run, tt.tags, ok, err, b.String())
		}
	}
}
