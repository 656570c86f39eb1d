package pipe_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
	"github.com/softdpu/softdpu/flowtable/pipe/random"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/pipes.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestPageNamesTheLanguage: the page about pipes speaks of all fields, as they are, and of all words.
func TestPageNamesTheLanguage(t *testing.T) {
	text := page(t)
	for _, f := range pipe.Fields {
		bits, changed := fmt.Sprint(f.Bits), ""
		if f.Only != 0 {
			bits = "-"
		}
		if f.Write {
			changed = "yes"
		}
		if row := fmt.Sprintf("| `%s` | %s | %s | %s |", f.Name, bits, changed, f.Help); !strings.Contains(text, row) {
			t.Errorf("docs/pipes.md has no row %s", row)
		}
	}
	words := []string{"rfc2697", "rfc2698", "rfc4115", "drop", "host", "policy", "ttl", "pop_vlan"}
	for _, k := range pipe.Kinds() {
		words = append(words, string(k))
	}
	for _, a := range []pipe.Algorithm{pipe.ByHash, pipe.Consistent, pipe.Random, pipe.Identity, pipe.RoundRobin, pipe.Flood} {
		words = append(words, string(a))
	}
	for _, word := range words {
		if !strings.Contains(text, "`"+word+"`") {
			t.Errorf("docs/pipes.md does not speak of `%s`", word)
		}
	}
}

// TestPageExamples: what the page shows is a pipeline without mistakes, which compiles.
func TestPageExamples(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(page(t), -1)
	if len(blocks) == 0 {
		t.Fatal("no example is found")
	}
	for _, b := range blocks {
		if line, warnings, err := pipefile.Parse("docs/pipes.md", []byte(b[1])); err != nil || len(warnings) > 0 {
			t.Errorf("%v\n%v", err, warnings)
		} else if line, err := line.Resolve(random.Ports); err != nil {
			t.Error(err)
		} else if p, err := pipe.Compile(line, pipe.Options{}); err != nil {
			t.Error(err)
		} else if _, _, err := p.Instructions(); err != nil {
			t.Error(err)
		}
	}
}

// TestPageRows: every row of what is offered elsewhere names tests that there are, at most five are absent, and each
// feature that is tested is claimed.
func TestPageRows(t *testing.T) {
	there := testNames(t)
	rows := regexp.MustCompile(`(?m)^\| (pipe|match|mode|action|monitor|forward|entries) \| ([^|]+) \| ([a-z]+) \| ([^|]*) \|$`).FindAllStringSubmatch(page(t), -1)
	if len(rows) < 60 {
		t.Fatalf("only %d rows are found", len(rows))
	}
	absent, claimed := 0, make(map[string]bool)
	for _, row := range rows {
		names := regexp.MustCompile("`(Test[A-Za-z0-9]+(?:/[a-z0-9-]+)?)`").FindAllStringSubmatch(row[4], -1)
		switch row[3] {
		case "absent":
			absent++
		case "supported", "different":
			if len(names) == 0 {
				t.Errorf("row %q names no test", row[2])
			}
		default:
			t.Errorf("row %q is %s", row[2], row[3])
		}
		for _, n := range names {
			if claimed[n[1]] = true; !there[n[1]] {
				t.Errorf("row %q names %s, which there is not", row[2], n[1])
			}
		}
	}
	if absent > 5 {
		t.Errorf("%d rows are absent", absent)
	}
	for _, f := range features {
		if !claimed["TestFeatures/"+f.name] {
			t.Errorf("no row names %s", f.name)
		}
	}
}

// testNames are those of all tests of the pipes' packages, and of features.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	for _, f := range features {
		names["TestFeatures/"+f.name] = true
	}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
