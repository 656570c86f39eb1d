package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// boot runs the jobs of the series on a kernel of it, and prints their events.
func (b *workbench) boot(ctx context.Context, s series, k kernel) error {
	jobs, err := s.wanted(b.only)
	if err != nil {
		return err
	}
	dep, err := os.ReadFile(filepath.Join(k.modules, "modules.dep"))
	if err != nil {
		return err
	}
	builtin, err := os.ReadFile(filepath.Join(k.modules, "modules.builtin"))
	if err != nil {
		return err
	}
	modules, err := moduleFiles(string(dep), string(builtin), s.modules)
	if err != nil {
		return err
	}
	root, err := b.image(ctx, k, modules, jobs)
	if err != nil {
		return err
	}
	qemu, err := program("qemu-system-x86_64")
	if err != nil {
		return err
	}
	console := filepath.Join(b.work, k.release+".console")
	limited, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	cmd := exec.CommandContext(limited, qemu, b.arguments(k, root, console)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no machine outlives this program
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	say("booting Linux %s", k.release)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	heard := newListener(os.Stdout, k, jobs).listen(limited, out)
	cmd.Wait() // no status of QEMU's is what Wait calls success
	switch status := cmd.ProcessState.ExitCode(); {
	case ctx.Err() != nil:
		err = ctx.Err()
	case limited.Err() != nil:
		err = fmt.Errorf("the machine did not end within %s", s.limit)
	case status != statusGood:
		err = fmt.Errorf("the machine ended with status %d and not with %d, as it does when all went its way", status, statusGood)
	default:
		err = nil // that status is no error
	}
	if err != nil && complaints.Len() > 0 {
		err = fmt.Errorf("%w; QEMU says: %s", err, strings.TrimSpace(complaints.String()))
	}
	text, _ := os.ReadFile(console)
	if err = errors.Join(err, heard); err != nil || b.verbose {
		fmt.Fprintf(os.Stderr, "%s\n", tail(string(text), 60))
	}
	return err
}

// arguments are QEMU's. The two ports are on one hub, which is no network of the host's. With iommu_platform the
// guest maps memory for the device, without which virtio_net refuses zero-copy.
func (b *workbench) arguments(k kernel, root, console string) []string {
	args := []string{
		"-accel", b.accel, "-cpu", "max", "-smp", "2", "-m", "2048",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:" + console, "-serial", "stdio",
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=0x04", exitPort),
		"-kernel", k.image, "-initrd", root, "-append", "console=ttyS0 panic=-1 quiet",
	}
	for i := range ports {
		args = append(args, "-netdev", fmt.Sprintf("hubport,hubid=0,id=n%d", i), "-device",
			fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=52:54:00:00:00:%02x,iommu_platform=on,disable-legacy=on,romfile=", i, i+1))
	}
	return args
}

// tail returns the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(strings.ReplaceAll(text, "\r", ""), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// limitOf is how long a test program may run, in a machine that may run for so long.
func limitOf(s time.Duration) string { return "-test.timeout=" + s.String() }
