package bench

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Environment says under which circumstances the figures came about.
type Environment struct {
	CommandLine []string          `json:"command_line"`
	Seed        uint64            `json:"seed"`
	Commit      string            `json:"commit"`
	ProgramTag  string            `json:"program_tag"` // of the measured XDP program, as `status` shows it
	Kernel      string            `json:"kernel"`
	CPU         string            `json:"cpu"`
	CPUs        int               `json:"cpus"`
	Driver      string            `json:"driver"`
	XDPMode     string            `json:"xdp_mode"`
	Attempts    []string          `json:"attempts,omitempty"` // XDP modes that were tried, and what the kernel said
	Pinning     string            `json:"pinning"`
	Engine      string            `json:"engine"`
	Method      string            `json:"method"`
	RuleSets    []string          `json:"rule_sets,omitempty"`    // of `policy`: each kind's origin
	Peers       map[string]string `json:"peers,omitempty"`        // version of each
	PeerConfig  map[string]string `json:"peer_configs,omitempty"` // command lines and rule files in full
	LeftOut     []string          `json:"left_out,omitempty"`     // of `policy`: what could not be measured, and why
	Interrupted bool              `json:"interrupted,omitempty"`  // by Ctrl-C: what was measured until then
}

func newEnvironment(seed uint64) Environment {
	e := Environment{CommandLine: os.Args, Seed: seed, CPUs: runtime.NumCPU(), Commit: "unknown", CPU: "unknown"}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		e.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				e.Commit = s.Value
			}
		}
	}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
				e.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	return e
}
