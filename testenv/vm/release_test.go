package main

import (
	"slices"
	"strings"
	"testing"
)

// shownMeta is as apt-cache shows the package of one name in several lists.
const shownMeta = `Package: linux-image-cloud-amd64
Source: linux-signed-amd64 (6.1.176+1)
Version: 6.1.176-1
Depends: linux-image-6.1.0-50-cloud-amd64 (= 6.1.176-1)
Description: Linux for x86-64 cloud (meta-package)
 This package depends on the latest Linux kernel: 9.9.9 and
 modules for use on cloud platforms.

Package: linux-image-cloud-amd64
Version: 7.2.13-1
Depends: linux-base-cloud-amd64 (= 7.2.13-1), linux-image-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)

Package: linux-image-cloud-amd64
Version: 6.12.95-1~bpo12+1
Depends: linux-image-6.12.95+deb12-cloud-amd64 (= 6.12.95-1~bpo12+1)

Package: linux-image-cloud-amd64
Version: 6.1.192-3
Depends: linux-image-6.1.0-57-cloud-amd64 (= 6.1.192-3)

Package: linux-image-cloud-amd64-dbg
Version: 8.0.1-1
Depends: linux-image-8.0.1-cloud-amd64-dbg (= 8.0.1-1)
`

func TestNewestRelease(t *testing.T) {
	tests := []struct {
		name, shown, series, release, version string
	}{
		{"the newest of all", shownMeta, "", "7.2.13+deb14-cloud-amd64", "7.2.13-1"},
		{"of a series, by number and not by letter", shownMeta, "6.1", "6.1.0-57-cloud-amd64", "6.1.192-3"},
		{"of another", shownMeta, "6.12", "6.12.95+deb12-cloud-amd64", "6.12.95-1~bpo12+1"},
		{"none of a series", shownMeta, "6.13", "", ""},
		{"none at all", "", "", "", ""},
		{"none that is named", "Package: linux-image-cloud-amd64\nVersion: 7.3.1-1\nDepends: linux-image-7.3.1-cloud-amd64 (>= 7.3)\n", "", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := newestRelease(tt.shown, tt.series)
			if r.name != tt.release || r.version != tt.version || (err == nil) != (tt.release != "") {
				t.Errorf("%+v, %v", r, err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.series) {
				t.Errorf("%v does not say for what", err)
			}
		})
	}
}

func TestNeededPackages(t *testing.T) {
	tests := []struct {
		name, depends string
		want          []string
	}{
		{"in one", "kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool",
			[]string{"linux-image-R=7-1"}},
		{"split", "dracut | initramfs-tools, linux-base-R (= 7-1), linux-binary-R (= 7-1), linux-modules-R (= 7-1)",
			[]string{"linux-image-R=7-1", "linux-base-R=7-1", "linux-binary-R=7-1", "linux-modules-R=7-1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			shown := "Package: linux-image-R\nVersion: 6-1\nDepends: linux-old-R (= 6-1)\n\n" +
				"Package: linux-image-R\nVersion: 7-1\nDepends: " + tt.depends + "\n"
			if got := (release{name: "R", version: "7-1"}).needed(shown); !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestCompareVersions(t *testing.T) {
	rising := []string{"6.1.176-1", "6.1.192-3", "6.1.192-12", "6.12.9-1", "6.12.95-1~bpo12+1", "7.0.1-1", "10.1-1"}
	for i, a := range rising {
		for j, b := range rising {
			if got := compareVersions(a, b); got != max(-1, min(1, i-j)) {
				t.Errorf("%s with %s: %d", a, b, got)
			}
		}
	}
}
