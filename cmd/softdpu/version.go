package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Set by the linker in `make build`.
var (
	buildVersion string
	buildCommit  string
)

// versionInfo is what `softdpu version -o json` prints.
type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Kernel   string `json:"kernel"` // running one
}

func newVersionCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of softdpu, of Go and of the running kernel",
		Args:  takes(0),
		Example: `  softdpu version
  softdpu version -o json`,
	}
	format := addOutputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		v := version()
		t := newTable("VERSION", "COMMIT", "GO", "PLATFORM", "KERNEL")
		t.add(v.Version, v.Commit, v.Go, v.Platform, v.Kernel)
		return format.print(env, v, t)
	}
	return cmd
}

func version() versionInfo {
	v := versionInfo{
		Version:  buildVersion,
		Commit:   buildCommit,
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Kernel:   "unknown",
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && v.Commit == "" {
				v.Commit = s.Value
			}
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	if v.Commit == "" {
		v.Commit = "unknown"
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		v.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return v
}
