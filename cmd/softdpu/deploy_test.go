package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/testenv"
)

// directive returns the words of a unit's lines KEY=WORDS.
func directive(unit, key string) (words []string) {
	for _, m := range regexp.MustCompile(`(?m)^`+key+`=(.*)$`).FindAllStringSubmatch(unit, -1) {
		words = append(words, strings.Fields(m[1])...)
	}
	return words
}

// The unit gives what the page says that the daemon needs, and no more.
func TestUnitHasTheCapabilitiesOfThePage(t *testing.T) {
	unit := read(t, "../../deploy/systemd/softdpu.service")
	page := pages(t)["docs/GATEWAY.md"]
	needs, _, _ := strings.Cut(page[strings.Index(page, "It needs Linux 5.18"):], "\n### ")
	want := regexp.MustCompile("`(CAP_[A-Z_]+)`").FindAllStringSubmatch(needs, -1)
	var named []string
	for _, m := range want {
		named = append(named, m[1])
	}
	got := directive(unit, "CapabilityBoundingSet")
	slices.Sort(named)
	slices.Sort(got)
	if len(named) < 5 || !slices.Equal(got, named) {
		t.Errorf("the unit has %v, the page %v", got, named)
	}
}

// The unit lets workers have sockets and packet memory.
func TestUnitLetsWorkersRun(t *testing.T) {
	unit := read(t, "../../deploy/systemd/softdpu.service")
	if got := directive(unit, "RestrictAddressFamilies"); !slices.Contains(got, "AF_XDP") {
		t.Errorf("address families %v", got)
	}
	if got := directive(unit, "LimitMEMLOCK"); !slices.Equal(got, []string{"infinity"}) {
		t.Errorf("locked memory is limited to %v", got)
	}
}

func TestUnitStartsWhatThereIs(t *testing.T) {
	unit := read(t, "../../deploy/systemd/softdpu.service")
	start := directive(unit, "ExecStart")
	if len(start) == 0 || start[0] != "/usr/bin/softdpu" {
		t.Fatalf("the unit starts %v", start)
	}
	cmd, args, err := newRootCommand(&Env{}).Find(start[1:])
	if err != nil || cmd.Name() != "run" || cmd.ParseFlags(args) != nil || cmd.Flag("config").Value.String() != defaultConfig {
		t.Errorf("%v is understood as %s %v: %v", start, cmd.Name(), args, err)
	}
}

// systemd reads every line of the units, and finds what they start.
func TestUnitsAreValid(t *testing.T) {
	analyze := testenv.RequireProgram(t, "systemd-analyze")
	for _, name := range []string{"softdpu.service", "softdpu-early.service", "run-softdpu-bpf.mount"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			unit := strings.ReplaceAll(read(t, filepath.Join("../../deploy/systemd", name)), "/usr/bin/softdpu", "/bin/true")
			if err := os.WriteFile(path, []byte(unit), 0o644); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
			if err != nil || strings.Contains(string(out), name) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// The early unit runs before any network does, and not before what would undo its work.
func TestEarlyUnitComesEarly(t *testing.T) {
	unit := read(t, "../../deploy/systemd/softdpu-early.service")
	for _, want := range []string{"DefaultDependencies=no", "WantedBy=multi-user.target", "Wants=network-pre.target"} {
		if !slices.Contains(strings.Split(unit, "\n"), want) {
			t.Errorf("it lacks %s", want)
		}
	}
	after := directive(unit, "After")
	if !slices.Contains(directive(unit, "Before"), "network-pre.target") || !slices.Contains(after, "systemd-sysctl.service") || !slices.Contains(after, "nftables.service") {
		t.Error("it does not stand between sysctl, nftables and the network")
	}
	cmd, args, err := newRootCommand(&Env{}).Find(directive(unit, "ExecStart")[1:])
	if err != nil || cmd.Name() != "block" || cmd.ParseFlags(args) != nil || cmd.Flag("config").Value.String() != defaultConfig {
		t.Errorf("it runs %s %v: %v", cmd.Name(), args, err)
	}
}

func TestMaintainerScriptsAreShell(t *testing.T) {
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", "../../deploy/debian/"+name).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestManualPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1796036400")
	dir := t.TempDir()
	if code, _, stderr := execute(t, "man", dir); code != exitYes {
		t.Fatal(stderr)
	}
	page := read(t, filepath.Join(dir, "softdpu-policy-init.1"))
	for _, want := range []string{"Nov 2026", `--inline`, "Files that are there are not written over"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in:\n%s", want, page)
		}
	}
	if exists(filepath.Join(dir, "softdpu-man.1")) {
		t.Error("a page of the verb that makes them")
	}
}
