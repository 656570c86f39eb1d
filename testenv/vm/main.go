// Command vm runs this module's own tests on other kernels: it boots Debian's under QEMU, with two
// virtio_net ports on one wire, and runs the test programs inside. It needs no root and no network of the
// host's, but for the kernels, which it gets from the Debian mirror that the machine uses, once. It prints
// what `go test -json` prints, so that one summary reads both.
//
// In the guest it is /init.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() == 1 {
		guest()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		stop()
		os.Exit(1)
	}
}

// options are the command line's.
type options struct {
	kernel  string // of serieses, or "all"
	cache   string
	accel   string // of QEMU
	only    string // a job's name, or none for all
	verbose bool
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("vm", flag.ContinueOnError)
	f.StringVar(&o.kernel, "kernel", "all", "6.1, newest or all")
	f.StringVar(&o.cache, "cache", "", "folder to keep kernels in (default: softdpu-vm in the user's cache)")
	f.StringVar(&o.accel, "accel", "tcg,thread=multi", "QEMU's -accel: kvm where the machine has it")
	f.StringVar(&o.only, "job", "", "run this job alone")
	f.BoolVar(&o.verbose, "v", false, "show what the guest's kernel says")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if o.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return o, fmt.Errorf("find a folder for kernels: %w; name one with -cache", err)
		}
		o.cache = filepath.Join(dir, "softdpu-vm")
	}
	var err error
	o.cache, err = filepath.Abs(o.cache)
	return o, err
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	todo, err := chosen(o.kernel)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "softdpu-vm-")
	if err != nil {
		return fmt.Errorf("make a folder to work in: %w", err)
	}
	defer os.RemoveAll(work)
	bench := &workbench{options: o, work: work, built: map[string]string{}}
	var failed []error
	for _, s := range todo {
		k, err := (&shelf{dir: o.cache}).kernel(ctx, s)
		if err != nil {
			if ctx.Err() == nil && o.kernel == "all" && !s.always {
				loud("the tests on %s DID NOT RUN: %v", s.title, err)
				continue
			}
			failed = append(failed, fmt.Errorf("tests on %s did not run: %w", s.title, err))
			continue
		}
		say("%s is Linux %s, Debian's %s", s.title, k.release, k.version)
		start := time.Now()
		if err := bench.boot(ctx, s, k); err != nil {
			failed = append(failed, fmt.Errorf("on Linux %s: %w", k.release, err))
		}
		say("Linux %s took %s", k.release, time.Since(start).Round(time.Second))
	}
	return errors.Join(failed...)
}

// say tells on standard error what goes on: standard output is for events of tests.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "vm: "+format+"\n", args...) }

// loud says what must not be overlooked.
func loud(format string, args ...any) {
	const bar = "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!"
	fmt.Fprintf(os.Stderr, "%s\nvm: "+format+"\n%s\n", append(append([]any{bar}, args...), bar)...)
}
