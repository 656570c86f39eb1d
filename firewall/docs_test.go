package firewall

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// codeWords returns the words that a page has in `code` outside of fenced blocks.
func codeWords(page string) map[string]bool {
	page = regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(page, "")
	words := make(map[string]bool)
	for _, span := range regexp.MustCompile("`[^`\n]+`").FindAllString(page, -1) {
		for _, word := range regexp.MustCompile(`[A-Za-z0-9][A-Za-z0-9_-]*`).FindAllString(span, -1) {
			words[word] = true
		}
	}
	return words
}

// The page about the language speaks of all that the reader accepts.
func TestPolicyPageIsComplete(t *testing.T) {
	text, err := os.ReadFile("../docs/POLICY.md")
	if err != nil {
		t.Fatal(err)
	}
	words := codeWords(string(text))
	named := map[string][]string{
		"key that this version refuses": laterKeys,
		"protocol":                      protoNames(),
		"type of ICMP":                  slices.Sorted(maps.Keys(icmpTypes)),
		"type of ICMPv6":                slices.Sorted(maps.Keys(icmpv6Types)),
		"built-in rule":                 builtinNames[:],
		"action":                        actionNames[Allow:],
		"type of set":                   {string(SetPrefix), string(SetPort), string(SetName), string(SetMAC)},
		"verdict":                       {string(VerdictAllow), string(VerdictDeny), string(VerdictReject), string(VerdictDrop)},
		"name":                          {NameHost, NameAny, NameNone},
	}
	known := make(map[string]bool)
	for kind, list := range keys {
		if kind != "policy" { // whose keys are the page's headings and examples
			named["key of "+kind] = list
		}
		for _, key := range list {
			known[key] = true
		}
	}
	for what, list := range named {
		for _, name := range list {
			if !words[name] {
				t.Errorf("docs/POLICY.md does not speak of the %s `%s`", what, name)
			}
		}
	}
	// And its tables of keys name none that is unknown.
	rows := 0
	for _, table := range regexp.MustCompile(`(?m)^\| key[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)`).FindAllStringSubmatch(string(text), -1) {
		for row := range strings.Lines(table[1]) {
			cell := strings.Split(row, "|")[1]
			for key := range codeWords(cell) {
				rows++
				if !known[key] {
					t.Errorf("docs/POLICY.md has the key `%s`, which the reader does not know", key)
				}
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d keys found in the tables of docs/POLICY.md: are they still tables?", rows)
	}
}
