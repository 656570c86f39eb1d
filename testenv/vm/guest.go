package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ports are the devices of the machine's wire.
var ports = []string{"eth0", "eth1"}

// guest is process 1 of the machine. It does not return.
func guest() {
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	code := byte(exitWanted)
	if err := follow(); err != nil {
		fmt.Println("init:", err)
		code = exitBroken
	}
	unix.Sync()
	fmt.Println("init:", leave(code))
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // status 0, which is taken for none
}

// follow makes the machine ready and runs the steps of its plan.
func follow() error {
	for _, m := range []struct{ kind, dir string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
		{"bpf", "/sys/fs/bpf"}, {"tracefs", "/sys/kernel/tracing"}, {"cgroup2", "/sys/fs/cgroup"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	text, err := os.ReadFile(planFile)
	if err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	for _, name := range p.Modules {
		if err := load(filepath.Join(moduleDir, name)); err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	results, err := openResults()
	if err != nil {
		return err
	}
	for _, port := range ports {
		// No address, and nothing said unasked: what is on the wire is the tests'.
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+port+"/disable_ipv6", []byte("1"), 0); err != nil {
			return fmt.Errorf("quieten %s: %w", port, err)
		}
		// The emulated port takes only its own address's frames unless it is told to take all.
		if out, err := exec.Command("ip", "link", "set", port, "up", "promisc", "on").CombinedOutput(); err != nil {
			return fmt.Errorf("set %s up: %w: %s", port, err, out)
		}
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("set lo up: %w: %s", err, out)
	}
	for _, s := range p.Steps {
		if err := s.run(results); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(results, "%s%s\n", mark, markDone)
	return errors.Join(err, drain(results))
}

// load loads a module, compressed or not.
func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(file, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// openResults opens the line that results go out by, and makes it carry bytes as they are.
func openResults() (*os.File, error) {
	f, err := os.OpenFile(resultLine, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	settings, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		settings.Iflag, settings.Oflag, settings.Lflag = 0, 0, 0
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, settings)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", resultLine, err)
	}
	return f, nil
}

// drain waits until the line has sent all that was written to it.
func drain(f *os.File) error {
	return unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1)
}

// run runs the step, and says on the line how it ended. The error is the line's.
func (s step) run(results io.Writer) error {
	if _, err := fmt.Fprintf(results, "%s%s %s\n", mark, markBegin, s.Name); err != nil {
		return err
	}
	cmd := exec.Command(s.Program, s.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, results, results
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/tmp", "TMPDIR=/tmp"}, s.Env...)
	cmd.WaitDelay = 5 * time.Second // for what it left running with its output open
	err := cmd.Run()
	code := -1
	if cmd.ProcessState != nil {
		code = cmd.ProcessState.ExitCode()
	}
	if err != nil && code <= 0 {
		if _, err := fmt.Fprintf(results, "\n%s: %v\n", s.Program, err); err != nil {
			return err
		}
		code = max(code, 125)
	}
	_, err = fmt.Fprintf(results, "\n%s%s %s %d\n", mark, markEnd, s.Name, code)
	return err
}
