package main

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// pages returns what is written for people, by path from the root of the project.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	root := os.DirFS("../..")
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/*.md", "deploy/examples/*/*.yaml", "deploy/examples/*/*/*.yaml"} {
		names, err := fs.Glob(root, pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("no page %s: %v", pattern, err)
		}
		for _, name := range names {
			text, err := fs.ReadFile(root, name)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = string(text)
		}
	}
	return out
}

// A block is what stands between two fences.
type block struct {
	page, language, text string
	line                 int // of the fence
}

func blocks(page, text string) (out []block) {
	for _, m := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatchIndex(text, -1) {
		out = append(out, block{page, text[m[2]:m[3]], text[m[4]:m[5]], 1 + strings.Count(text[:m[0]], "\n")})
	}
	return out
}

// The files that the pages about policy and gateway show belong together, and the commands that they show
// with their output print it.
func TestPagesShowWhatHappens(t *testing.T) {
	all := pages(t)
	var shown []block
	for _, page := range []string{"docs/POLICY.md", "docs/GATEWAY.md"} {
		shown = append(shown, blocks(page, all[page])...)
	}
	t.Chdir(t.TempDir())
	for _, b := range blocks("README.md", all["README.md"]) {
		if err := os.WriteFile("readme.yaml", []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, stdout, stderr := execute(t, "policy", "check", "readme.yaml"); code != exitYes || !strings.Contains(stdout, "; 0 warnings\n") {
			t.Errorf("%s:%d: exit code %d:\n%s%s", b.page, b.line, code, stdout, stderr)
		}
	}
	files := 0
	for _, b := range shown {
		first, _, _ := strings.Cut(b.text, "\n")
		name, isFile := strings.CutPrefix(first, "# ")
		if b.language != "yaml" && b.language != "text" {
			continue
		}
		if !isFile || !filepath.IsLocal(name) || filepath.Ext(name) == "" {
			t.Errorf("%s:%d: the block does not begin with the name of its file", b.page, b.line)
			continue
		}
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s:%d: there are two files %s", b.page, b.line, name)
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		files++
		// What is not a part of the policy is a gateway, or wrong and shown to be.
		if b.language == "yaml" && filepath.Dir(name) == "." {
			code, stdout, stderr := execute(t, "policy", "check", "-c", name)
			if !strings.Contains(b.text, "kind: Gateway") {
				code, stdout, stderr = execute(t, "policy", "check", name)
				if code != exitNo {
					t.Errorf("%s is right:\n%s%s", name, stdout, stderr)
				}
			} else if code != exitYes || !strings.Contains(stdout, "; 0 warnings\n") {
				t.Errorf("%s: exit code %d:\n%s%s", name, code, stdout, stderr)
			}
		}
	}
	commands := 0
	for _, b := range shown {
		if b.language != "console" {
			continue
		}
		command, want, _ := strings.Cut(b.text, "\n")
		args, isCommand := strings.CutPrefix(command, "$ softdpu ")
		if !isCommand {
			t.Errorf("%s:%d: %q is no command", b.page, b.line, command)
			continue
		}
		commands++
		_, stdout, stderr := execute(t, strings.Fields(args)...)
		if before, open := strings.CutSuffix(want, "...\n"); open && strings.HasPrefix(stdout, before) {
			continue // the rest is not shown
		}
		if stdout != want {
			t.Errorf("%s:%d: %s prints\n%s%s", b.page, b.line, command, stdout, stderr)
		}
	}
	if files < 7 || commands < 3 {
		t.Errorf("%d files and %d commands found: are they still blocks?", files, commands)
	}
}

// commandLine finds a call of softdpu in a line, behind what people write before it.
var commandLine = regexp.MustCompile(`(?m)^(?:[ #$]*|.*\| )(?:sudo )?(?:bin/)?softdpu ([a-z](?:\\\n|[^\n])*)`)

// commandWords splits a command line as a shell does, up to its comment.
func commandWords(line string) (words []string) {
	line = strings.ReplaceAll(line, "\\\n", " ")
	word, quoted := "", rune(0)
	end := func() {
		if word != "" {
			words, word = append(words, word), ""
		}
	}
	for _, r := range line {
		switch {
		case quoted != 0 && r == quoted:
			quoted = 0
		case quoted == 0 && (r == '\'' || r == '"'):
			quoted = r
		case quoted == 0 && (unicode.IsSpace(r) || r == ';'):
			end()
			if r == ';' {
				return words
			}
		case quoted == 0 && (r == '#' && word == "" || r == '('): // a comment, or words beside the command
			return words
		case quoted == 0 && (r == '[' || r == ']'): // what may be left out
		default:
			word += string(r)
		}
	}
	end()
	return words
}

// Every call that a page shows is one that the command line understands.
func TestPagesShowCommands(t *testing.T) {
	found := 0
	check := func(page string, words []string) {
		var ignored bytes.Buffer
		root := newRootCommand(&Env{Stdin: strings.NewReader(""), Stdout: &ignored, Stderr: &ignored, Width: func() int { return 0 }})
		cmd, args, err := root.Find(words)
		// A verb with others below it prints something itself; a group only explains them.
		if err == nil && cmd.HasSubCommands() && cmd.Flags().Lookup("output") == nil {
			t.Errorf("%s: there is no `softdpu %s`", page, strings.Join(words, " "))
			return
		}
		if err == nil {
			err = cmd.ParseFlags(args)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: softdpu %s: %v", page, strings.Join(words, " "), err)
		}
		found++
	}
	all := pages(t)
	for _, page := range slices.Sorted(maps.Keys(all)) {
		for _, m := range commandLine.FindAllStringSubmatch(all[page], -1) {
			words := commandWords(m[1])
			check(page, words)
			if i := slices.IndexFunc(words, func(w string) bool { return filepath.Base(w) == "softdpu" }); i >= 0 {
				check(page, words[i+1:]) // inside a lab
			}
		}
	}
	if found < 25 {
		t.Errorf("%d commands found: are they still shown?", found)
	}
}

// anchors returns what can stand behind # in a link to a page.
func anchors(text string) map[string]bool {
	out := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^##+ (.*)$`).FindAllStringSubmatch(text, -1) {
		out[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])] = true
	}
	return out
}

func TestLinksOfPagesLead(t *testing.T) {
	all := pages(t)
	for _, page := range slices.Sorted(maps.Keys(all)) {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(all[page], -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := filepath.Join(filepath.Dir(page), path)
			if path == "" {
				target = page
			}
			if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
				t.Errorf("%s: a link leads to %s: %v", page, m[1], err)
			} else if anchor != "" && !anchors(all[target])[anchor] {
				t.Errorf("%s: a link leads to %s, which has no such heading", page, m[1])
			}
		}
	}
}
