package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// flavour is the one of Debian's kernels that is taken: the same source and packet path as the general one,
// at a third of the size, for it has only the drivers of virtual machines.
const flavour = "cloud-amd64"

// metapackage names, in its dependencies, the package of the newest kernel of each list.
const metapackage = "linux-image-" + flavour

// A release is a kernel that a list of packages offers.
type release struct {
	name    string // as `uname -r` says: 6.1.0-50-cloud-amd64
	version string // of its packages: 6.1.176-1
}

// newestRelease returns the newest kernel that what `apt-cache show` says of the metapackage offers. A series,
// as "6.1", leaves out all others.
func newestRelease(shown, series string) (release, error) {
	var best release
	for _, p := range stanzas(shown) {
		if p["Package"] != metapackage {
			continue
		}
		if v := p["Version"]; series != "" && !inSeries(v, series) || best.name != "" && compareVersions(v, best.version) <= 0 {
			continue
		}
		for _, d := range dependencies(p["Depends"]) {
			if name, ok := strings.CutPrefix(d.name, "linux-image-"); ok && d.version != "" {
				best = release{name: name, version: d.version}
			}
		}
	}
	if best.name == "" {
		return best, fmt.Errorf("find a kernel %s: no list of packages that could be had offers one", strings.TrimSpace(series+" of flavour "+flavour))
	}
	return best, nil
}

// needed returns the packages that a kernel consists of: its own, and those of its name that it depends on.
// Debian has split the kernel from its modules since Linux 7. shown is what `apt-cache show` says of the kernel's
// package.
func (r release) needed(shown string) []string {
	image := "linux-image-" + r.name
	all := []string{image + "=" + r.version}
	for _, p := range stanzas(shown) {
		if p["Package"] != image || p["Version"] != r.version {
			continue
		}
		for _, d := range dependencies(p["Depends"]) {
			if one := d.name + "=" + d.version; strings.HasSuffix(d.name, "-"+r.name) && !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return all
}

// stanzas reads paragraphs of "Key: value" lines. Lines that go on with the one before are left out: no
// field of interest has them.
func stanzas(text string) []map[string]string {
	var all []map[string]string
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		fields := map[string]string{}
		for line := range strings.Lines(paragraph) {
			if key, value, ok := strings.Cut(strings.TrimRight(line, "\n"), ":"); ok && !strings.HasPrefix(line, " ") {
				fields[key] = strings.TrimSpace(value)
			}
		}
		if len(fields) > 0 {
			all = append(all, fields)
		}
	}
	return all
}

// A dependency is on exactly one version of a package, or on any if there is none.
type dependency struct{ name, version string }

// dependencies reads a field Depends. Of alternatives it takes the first.
func dependencies(field string) []dependency {
	var all []dependency
	for one := range strings.SplitSeq(field, ",") {
		one, _, _ = strings.Cut(one, "|")
		name, rest, _ := strings.Cut(strings.TrimSpace(one), " ")
		version, _ := strings.CutPrefix(strings.Trim(rest, "()"), "= ")
		if strings.HasPrefix(version, "(") || strings.ContainsAny(version, "<> ") {
			version = ""
		}
		if name != "" {
			all = append(all, dependency{name, version})
		}
	}
	return all
}

// inSeries reports whether a version is "series" itself or goes on with a dot.
func inSeries(version, series string) bool {
	return version == series || strings.HasPrefix(version, series+".") || strings.HasPrefix(version, series+"-")
}

// compareVersions compares kernels' versions by their numbers, in order: 6.1.192-3 is after 6.1.176-1.
func compareVersions(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }

func numbers(version string) (all []int) {
	version, _, _ = strings.Cut(version, "~") // of a candidate or a backport: as the version itself
	for _, part := range strings.FieldsFunc(version, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.Atoi(part); err == nil {
			all = append(all, n)
		}
	}
	return all
}
