package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestSourcesList(t *testing.T) {
	suites := []string{"bookworm", "bookworm-security"}
	tests := []struct {
		name, targets string
		want          []string
	}{
		{"with lists", "http://m.test/debian/ Debian\nhttp://m.test/debian-security/ Debian\nhttp://o.test/apt/ Other\n",
			[]string{"http://m.test/debian bookworm main", "http://m.test/debian-security bookworm-security main"}},
		{"another's first", "http://o.test/debian/ Other\nhttp://m.test/mirror/ Debian\n", []string{"http://m.test/mirror bookworm main"}},
		{"without lists", "http://o.test/apt/ $(ORIGIN)\nhttps://m.test/debian $(ORIGIN)\nhttps://m.test/debian-security/ \n",
			[]string{"https://m.test/debian bookworm main", "https://m.test/debian-security bookworm-security main"}},
		{"none", "http://o.test/ubuntu/ Ubuntu\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list, err := sourcesList(tt.targets, suites)
			if (err == nil) != (tt.want != nil) {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(list) {
				m := regexp.MustCompile(`^deb \[(?:signed-by=\S+ )?arch=amd64\] (.*)\n$`).FindStringSubmatch(line)
				if m == nil {
					t.Fatalf("a line %q", line)
				}
				got = append(got, m[1])
			}
			if strings.Join(got, ",") != strings.Join(tt.want, ",") {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
