package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// What outlives the process stands below runDir:
//
//	bpf/v2-netns-4026531840/plane-3/   maps and programs that all generations share
//	bpf/v2-netns-4026531840/links/     the ports' bpf_links: xdp-2, guard-2, mark-2 for interface 2
//	netns-4026531840.json              see state
//	netns-4026531840.lock              held by the gateway of that network namespace
//
// A PROG_ARRAY is emptied with its last descriptor or pin: the pins of maps keep the policy in force.
const (
	runDir  = "/run/softdpu"
	pinRoot = runDir + "/bpf"
)

// layoutVersion is LAYOUT_VERSION of abi.h: maps of another one are not taken over. A variable for the
// linker, so that an upgrade to another one can be tried with real binaries.
var layoutVersion = "2"

// pins is where one network namespace's objects are pinned. It holds the lock on them.
type pins struct {
	inode uint64
	root  *os.File // the bpffs, reachable whatever mount namespace it is mounted in
	lock  *os.File
}

// openPins mounts the bpffs if it is not there yet, and takes the lock of the network namespace. It is
// an error if another gateway has it.
func openPins(inode uint64) (p *pins, err error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", runDir, err)
	}
	p = &pins{inode: inode}
	path := fmt.Sprintf("%s/netns-%d.lock", runDir, inode)
	if p.lock, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	if err := unix.Flock(int(p.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid, _ := os.ReadFile(path)
		p.lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another softdpu (pid %s) runs in this network namespace: stop it first", strings.TrimSpace(string(pid)))
		}
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	err = p.lock.Truncate(0)
	if err == nil {
		_, err = p.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err == nil {
		p.root, err = openPinRoot()
	}
	if err != nil {
		p.lock.Close()
		return nil, fmt.Errorf("open the pins of the network namespace: %w", err)
	}
	return p, nil
}

func (p *pins) close() {
	p.root.Close()
	p.lock.Close()
}

// openPinRoot returns the directory of the bpffs. One that is visible here is the one: nobody mounts it
// elsewhere than in the outermost mount namespace, and copies of that show the same files. Otherwise
// it is mounted there: `ip netns exec` gives a command a mount namespace that ends with it.
func openPinRoot() (*os.File, error) {
	if isBPF(pinRoot) {
		return os.OpenFile(pinRoot, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	type result struct {
		root *os.File
		err  error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread, which has left the process's mount namespace, ends with the
		// goroutine.
		runtime.LockOSThread()
		root, err := mountPinRoot()
		done <- result{root, err}
	}()
	r := <-done
	return r.root, r.err
}

// mountPinRoot enters the mount namespace of process 1, or, where that is not allowed, of the outermost
// ancestor that lets us in, and mounts there. In the own one there is nothing to enter.
func mountPinRoot() (*os.File, error) {
	// A thread that shares its root with others may not change the namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, fmt.Errorf("leave the process's mount namespace: %w", err)
	}
	for _, pid := range append([]int{1}, ancestors()...) {
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil {
			continue
		}
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)
		ns.Close()
		if err == nil {
			break
		}
	}
	// Gateways of several network namespaces may start at once, and a second mount would hide the first.
	dir, err := os.Open(runDir)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", runDir, err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", runDir, err)
	}
	if !isBPF(pinRoot) {
		err := os.MkdirAll(pinRoot, 0o700)
		if err == nil {
			err = unix.Mount("bpf", pinRoot, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700")
		}
		if err != nil {
			return nil, fmt.Errorf("mount a bpffs at %s: %w: it takes CAP_SYS_ADMIN; or mount it before: `mkdir -p %s && mount -t bpf bpf %s`", pinRoot, err, pinRoot, pinRoot)
		}
	}
	return os.OpenFile(pinRoot, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// ancestors lists the processes above this one, the outermost first, this one last.
func ancestors() (pids []int) {
	for pid := os.Getpid(); pid > 1 && len(pids) < 64; {
		pids = append(pids, pid)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			break
		}
		// pid (comm) state ppid ...; comm may hold anything
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 {
			break
		}
		if pid, err = strconv.Atoi(fields[1]); err != nil {
			break
		}
	}
	slices.Reverse(pids)
	return pids
}

func isBPF(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.BPF_FS_MAGIC
}

func (p *pins) path(elem ...string) string {
	return filepath.Join(append([]string{fmt.Sprintf("/proc/self/fd/%d", p.root.Fd())}, elem...)...)
}

// home is the directory of this layout.
func (p *pins) home(elem ...string) string {
	return p.path(append([]string{fmt.Sprintf("v%s-netns-%d", layoutVersion, p.inode)}, elem...)...)
}

func (p *pins) plane(n int) string { return p.home(planeName(n)) }

func planeName(n int) string { return "plane-" + strconv.Itoa(n) }

func (p *pins) stateFile() string { return stateFile(p.inode) }

func stateFile(inode uint64) string { return fmt.Sprintf("%s/netns-%d.json", runDir, inode) }

// planes lists the directories of planes, of all layouts.
func (p *pins) planes() []string { return p.glob("plane-*") }

// removePlanes takes away the pins of all planes but one.
func (p *pins) removePlanes(except int) error {
	var errs []error
	for _, dir := range p.planes() {
		if dir != p.plane(except) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// linkFiles lists the pinned links, of all layouts.
func (p *pins) linkFiles() []string { return p.glob("links", "*") }

func (p *pins) glob(elem ...string) []string {
	names, _ := filepath.Glob(p.path(append([]string{fmt.Sprintf("v*-netns-%d", p.inode)}, elem...)...))
	return names
}

// next returns a number that no plane has.
func (p *pins) next() int {
	n := 0
	for _, dir := range p.planes() {
		if i, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "plane-")); err == nil {
			n = max(n, i)
		}
	}
	return n + 1
}

// A heldLink is a bpf_link that an earlier run has left.
type heldLink struct {
	link.Link
	file    string // its pin
	program uint32 // id
}

// links opens the links that still hold on to a device, by name. Pins of those whose device has gone are
// removed.
func (p *pins) links() (map[string]*heldLink, error) {
	held := make(map[string]*heldLink)
	for _, file := range p.linkFiles() {
		l, err := link.LoadPinnedLink(file, nil)
		if err != nil {
			return held, fmt.Errorf("open pinned link %s: %w", filepath.Base(file), err)
		}
		info, err := l.Info()
		if err != nil {
			l.Close()
			return held, fmt.Errorf("look at pinned link %s: %w", filepath.Base(file), err)
		}
		name := filepath.Base(file)
		if linkDevice(info) == 0 || held[name] != nil {
			l.Close()
			if err := os.Remove(file); err != nil {
				return held, fmt.Errorf("remove pin of a link without device: %w", err)
			}
			continue
		}
		held[name] = &heldLink{l, file, uint32(info.Program)}
	}
	return held, nil
}

// linkDevice is the interface index of a link, 0 if its device has gone.
func linkDevice(info *link.Info) uint32 {
	if x := info.XDP(); x != nil {
		return x.Ifindex
	}
	if x := info.TCX(); x != nil {
		return x.Ifindex
	}
	return 0
}

// detachPinned takes a link off its device, whoever else has it open, and removes its pin.
func detachPinned(file string) error {
	l, err := link.LoadPinnedLink(file, nil)
	if err != nil {
		return fmt.Errorf("open pinned link %s: %w", filepath.Base(file), err)
	}
	defer l.Close()
	// One whose device has gone is detached already.
	if err := l.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) {
		if err = ignoreMissing(err); err != nil {
			return fmt.Errorf("detach link %s: %w", filepath.Base(file), err)
		}
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("remove pin of link %s: %w", filepath.Base(file), err)
	}
	return nil
}

func linkName(kind string, index uint32) string { return fmt.Sprintf("%s-%d", kind, index) }

// hold pins a new link.
func (p *pins) hold(name string, l link.Link) error {
	if err := os.MkdirAll(p.home("links"), 0o700); err != nil {
		return fmt.Errorf("make the directory of links: %w", err)
	}
	if err := l.Pin(p.home("links", name)); err != nil {
		return fmt.Errorf("pin link %s: %w", name, err)
	}
	return nil
}

// discard takes away the pins of a network namespace that has gone, and its state. No living one has that inode number.
// Most links went with their devices; a device that outlives its namespace, as NICs do, is let go.
func (p *pins) discard() error {
	var errs []error
	for _, file := range p.linkFiles() {
		errs = append(errs, detachPinned(file))
	}
	return errors.Join(append(errs, p.removeAll())...)
}

// removeAll takes away all pins of the network namespace, and then its state.
func (p *pins) removeAll() error {
	var errs []error
	dirs, _ := filepath.Glob(p.path(fmt.Sprintf("v*-netns-%d", p.inode)))
	for _, dir := range dirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	err := errors.Join(errs...)
	if err == nil {
		removeNumbers(p.stateFile())
		err = os.Remove(p.stateFile())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}
