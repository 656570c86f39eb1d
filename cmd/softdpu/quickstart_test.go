package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// A walk runs the commands of docs/QUICKSTART.md: on the build machine, on the gateway, which is a lab's
// namespace with a root file system of its own, and on the client beside it.
type walk struct {
	lab  *testenv.Lab
	root string // of the gateway
	// Before a command line in the gateway: chroot, or nsenter where its own systemd runs.
	enter []string
}

// A step is one command of the page with what it prints there.
type step struct {
	where   string // "build", "client", "" is the gateway
	command string
	want    string
	line    int
}

var prompt = regexp.MustCompile(`^(\w*)\$ (.*)$`)

func quickStart(t *testing.T) (steps []step) {
	t.Helper()
	const page = "docs/QUICKSTART.md"
	for _, b := range blocks(page, pages(t)[page]) {
		if b.language != "console" {
			continue
		}
		for i, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
			if m := prompt.FindStringSubmatch(line); m != nil {
				steps = append(steps, step{where: m[1], command: m[2], line: b.line + 1 + i})
			} else if len(steps) > 0 {
				steps[len(steps)-1].want += line + "\n"
			}
		}
	}
	if len(steps) < 12 {
		t.Fatalf("the page shows %d commands: are they still blocks?", len(steps))
	}
	return steps
}

// On this machine's own system, in a copy of which only the differences are kept.
func TestQuickStart(t *testing.T) {
	testenv.RequireRoot(t)
	dir := t.TempDir()
	// Apart from the file system below, which may not hold what lies over it.
	mount(t, dir, "tmpfs", "tmpfs", "")
	for _, sub := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(dir, "root")
	mount(t, root, "overlay", "overlay", fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%[1]s/work", dir))
	// What this machine may have of its own.
	for _, path := range []string{"/etc/softdpu", "/var/log/softdpu", "/var/lib/softdpu"} {
		os.RemoveAll(root + path)
	}
	w := newWalk(t, root)
	mount(t, root+"/proc", "proc", "proc", "")
	mount(t, root+"/run", "tmpfs", "tmpfs", "")
	if err := w.lab.Must(t, testenv.Gateway).Do(func() error { mount(t, root+"/sys", "sysfs", "sysfs", ""); return nil }); err != nil {
		t.Fatal(err)
	}
	w.walk(t)
}

// In a new Debian system, booted by its systemd in a container, if that can be had.
func TestQuickStartInAFreshSystem(t *testing.T) {
	testenv.RequireRoot(t)
	if os.Getenv("SOFTDPU_LONG") == "" {
		t.Skip("SOFTDPU_LONG is not set")
	}
	for _, program := range []string{"debootstrap", "systemd-nspawn", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed (Debian packages debootstrap, systemd-container, util-linux)", program)
		}
	}
	root := filepath.Join(t.TempDir(), "fresh")
	if out, err := exec.CommandContext(t.Context(), "debootstrap", "--variant=minbase", "--include=iproute2,systemd-sysv,dbus,procps",
		"bookworm", root).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w := newWalk(t, root)
	shutDown := w.boot(t)
	w.walk(t)
	w.watch(t)

	// It goes down and comes up again, on a machine that is to forward by itself.
	gets := func(when string, want bool) {
		t.Helper()
		out, err := w.lab.Must(t, "client").Command(t.Context(), "curl", "-sS", "-m", "2", "-o", "/dev/null", "http://10.10.2.2/").CombinedOutput()
		if (err == nil) != want {
			t.Errorf("%s: %v: %s", when, err, out)
		}
	}
	gets("up", true)
	shutDown()
	for file, text := range map[string]string{
		"etc/sysctl.d/90-router.conf":                     "net.ipv4.ip_forward=1\nnet.ipv6.conf.all.forwarding=1\n",
		"etc/systemd/system/softdpu.service.d/later.conf": "[Unit]\nConditionPathExists=/run/go\n",
	} {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	shutDown = w.boot(t)
	gets("up again, without a gateway", false)
	if out, err := w.inGateway(t, "sysctl net.ipv4.ip_forward; touch /run/go; systemctl start softdpu").CombinedOutput(); err != nil || !strings.Contains(string(out), "forward = 1") {
		t.Errorf("%v: %s", err, out)
	}
	gets("up again", true)
	shutDown()
	gets("down", false)
}

// boot starts the system's own systemd in the gateway's network namespace, until it is shut down.
func (w *walk) boot(t *testing.T) (shutDown func()) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "console"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("systemd-nspawn", "--keep-unit", "--register=no", "-D", w.root, "--console=read-only", "-b",
		"--network-namespace-path="+w.lab.Must(t, testenv.Gateway).Path(), "--capability=all", "--system-call-filter=bpf")
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	shutDown = sync.OnceFunc(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("systemd-nspawn: %v\n%s", err, read(t, log.Name()))
		}
	})
	t.Cleanup(shutDown)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if leader := systemdBelow(cmd.Process.Pid); leader != 0 {
			w.enter = []string{"nsenter", "-a", "-t", fmt.Sprint(leader), "--"}
			if out, _ := w.inGateway(t, "systemctl is-system-running").CombinedOutput(); strings.HasPrefix(string(out), "running") {
				return shutDown
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the system does not come up:\n%s", read(t, log.Name()))
		}
	}
}

// systemdBelow returns the pid of a container's first process, 0 until there is one.
func systemdBelow(nspawn int) int {
	children, _ := exec.Command("pgrep", "-P", fmt.Sprint(nspawn)).Output()
	for _, text := range strings.Fields(string(children)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		if comm, _ := os.ReadFile("/proc/" + text + "/comm"); string(comm) == "systemd\n" {
			return pid
		}
		if deeper := systemdBelow(pid); deeper != 0 {
			return deeper
		}
	}
	return 0
}

// watch looks at what only a real systemd shows: fields in the journal, the group of the socket, what the
// verbs of systemctl do, what the unit may write, and that a daemon that stands still is started again.
func (w *walk) watch(t *testing.T) {
	t.Helper()
	for _, tt := range []struct{ command, want string }{
		{"journalctl -o cat --no-pager SOFTDPU_NAME=lan0", "port name=lan0 device=lan mode=native"},
		{"stat -c %U:%G:%a /run/softdpu/softdpu.sock", "root:softdpu:660\n"},
		{"systemctl show -P StatusText softdpu", "judging packets of 2 ports by /etc/softdpu/policy.d\n"},
		{"softdpu block 2>&1; echo code $?", "a gateway has been started in this network namespace: what it left holds; `softdpu detach` takes it off\ncode 1\n"},
		{"systemctl is-active softdpu-early || true", "inactive\n"}, // only when the machine comes up
		{"systemctl is-enabled softdpu-early", "enabled"},
		{"systemctl reload softdpu; for i in $(seq 50); do journalctl -o cat --no-pager -u softdpu | grep reloaded && break; sleep 0.2; done", "policy reloaded by=signal epoch=2"},
		{"softdpu policy apply", "epoch 3 is in force"},
		{"softdpu doctor", "0 errors"},
		{"systemctl restart softdpu && softdpu status", "took over flows and counters of the run before"},
		{"systemctl stop softdpu; systemctl is-active softdpu; ls /run/softdpu/bpf", "inactive\n"},
		{"ls /run/softdpu/bpf", "-netns-"},
		{"systemctl start softdpu && softdpu status", "took over"},
		{"kill -9 $(systemctl show -P MainPID softdpu); for i in $(seq 50); do sleep 0.2; softdpu status && break; done", "took over"},
		// What the unit may write, and what not.
		{"inside() { nsenter -m -t $(systemctl show -P MainPID softdpu) \"$@\"; }; inside touch /var/lib/softdpu/x /var/log/softdpu/x && inside rm /var/lib/softdpu/x /var/log/softdpu/x && inside touch /etc/softdpu/x 2>&1 || true", "Read-only file system"},
	} {
		if out, err := w.inGateway(t, tt.command).CombinedOutput(); err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: %v\n%s", tt.command, err, out)
		}
	}
	if out, err := w.inGateway(t, "kill -STOP $(systemctl show -P MainPID softdpu)").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		out, _ := w.inGateway(t, "systemctl show -P NRestarts softdpu; systemctl is-active softdpu").CombinedOutput()
		if string(out) == "2\nactive\n" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the watchdog does not bite: %s", out)
		}
	}
}

// newWalk lays the ground: a lab, a route to the outside, and a web server there.
func newWalk(t *testing.T, root string) *walk {
	t.Helper()
	w := &walk{lab: testenv.New(t, "client-server", testenv.Options{}), root: root, enter: []string{"chroot", root}}
	if out, err := w.lab.Must(t, testenv.Gateway).Command(t.Context(), "ip", "route", "add", "default", "via", "10.10.2.2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	web, err := w.lab.Must(t, "server").ServeHTTP(t.Context(), netip.MustParseAddrPort("10.10.2.2:80"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { web.Close() })
	return w
}

// walk goes through the page up to the first command that does not work.
func (w *walk) walk(t *testing.T) {
	t.Helper()
	for _, s := range quickStart(t) {
		got := w.run(t, s)
		if t.Failed() {
			t.FailNow()
		}
		if !printed(s.want, got) {
			t.Errorf("docs/QUICKSTART.md:%d: %s prints\n%s", s.line, s.command, got)
		}
	}
}

// inGateway returns a command of the shell in the gateway's system.
func (w *walk) inGateway(t *testing.T, command string) *exec.Cmd {
	args := append(slices.Clone(w.enter), "bash", "-c", "cd /root && "+command)
	if w.enter[0] == "nsenter" {
		return exec.CommandContext(t.Context(), args[0], args[1:]...)
	}
	return w.lab.Must(t, testenv.Gateway).Command(t.Context(), args[0], args[1:]...)
}

func mount(t *testing.T, target, source, fstype, options string) {
	t.Helper()
	if err := unix.Mount(source, target, fstype, 0, options); err != nil {
		t.Fatalf("mount %s on %s: %v", fstype, target, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", target, err)
		}
	})
}

// run does one step and returns what it printed, errors included.
func (w *walk) run(t *testing.T, s step) string {
	t.Helper()
	var cmd *exec.Cmd
	command := strings.ReplaceAll(s.command, "sudo ", "")
	booted := w.enter[0] == "nsenter"
	switch {
	case s.where == "build":
		cmd = exec.CommandContext(t.Context(), "bash", "-c", s.command)
		cmd.Dir = "../.."
		// a make that runs this test would have its own one tell the folders that it enters
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
	case s.where == "client":
		cmd = w.lab.Must(t, "client").Command(t.Context(), "bash", "-c", s.command)
	case strings.HasPrefix(command, "systemctl start") && !booted:
		w.start(t)
		return ""
	case strings.HasPrefix(command, "systemctl "):
		if !booted {
			return ""
		}
		command += " --quiet"
		fallthrough
	default:
		cmd = w.inGateway(t, command)
	}
	out, err := cmd.CombinedOutput()
	answersNo := strings.Contains(s.command, "explain") || strings.Contains(s.command, ":8080")
	if (err != nil) != answersNo {
		t.Errorf("docs/QUICKSTART.md:%d: %s: %v\n%s", s.line, s.command, err, out)
	}
	if s.where == "build" {
		w.deliver(t, strings.TrimSpace(string(out)))
	}
	return string(out)
}

// deliver puts the package where the page says that it is copied to.
func (w *walk) deliver(t *testing.T, path string) {
	t.Helper()
	file, err := os.ReadFile(filepath.Join("../..", path))
	if err == nil {
		err = os.WriteFile(filepath.Join(w.root, "root", filepath.Base(path)), file, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// start stands in for systemd: it runs what the unit says, and waits until the daemon says that it is
// ready.
func (w *walk) start(t *testing.T) {
	t.Helper()
	unit := read(t, filepath.Join(w.root, "usr/lib/systemd/system/softdpu.service"))
	m := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unit)
	if m == nil {
		t.Fatalf("the unit starts nothing:\n%s", unit)
	}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: w.root + "/run/notify", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { notify.Close() })
	log := &strings.Builder{} // read only when the daemon has ended
	cmd := w.lab.Must(t, testenv.Gateway).Command(context.Background(), "chroot", append([]string{w.root}, strings.Fields(m[1])...)...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET=/run/notify")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("run: %v\n%s", err, log)
		}
	})
	b := make([]byte, 4096)
	notify.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := notify.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "READY=1") {
		t.Errorf("the daemon is not ready: %q, %v", b[:n], err)
	}
}

// printed compares what the page shows with what was printed: numbers and versions of packages differ,
// widths of columns with them, and a line of three dots stands for any lines.
func printed(want, got string) bool {
	var pattern strings.Builder
	for line := range strings.Lines(usual(want)) {
		if line == "...\n" {
			pattern.WriteString(`(?:.*\n)*`)
			continue
		}
		pattern.WriteString(regexp.QuoteMeta(line))
	}
	return regexp.MustCompile(`^` + pattern.String() + `$`).MatchString(usual(got))
}

var (
	packageVersion = regexp.MustCompile(`softdpu([ _]\(?)[0-9][-0-9A-Za-z.+~]*(_a[a-z]+64)?`)
	number         = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
	blanks         = regexp.MustCompile(`[ \t]+`)
	lineEnd        = regexp.MustCompile(` *\n`)
)

func usual(text string) string {
	text = packageVersion.ReplaceAllString(text, "softdpu${1}V")
	text = number.ReplaceAllString(text, "N")
	text = blanks.ReplaceAllString(text, " ")
	return lineEnd.ReplaceAllString(text, "\n")
}

func TestPrinted(t *testing.T) {
	tests := []struct {
		want, got string
		same      bool
	}{
		{"a 1  b\n", "a 22 b\n", true},
		{"a 1\n", "b 1\n", false},
		{"a\n...\nz\n", "a\nb\nc\nz\n", true},
		{"a\n...\n", "b\n", false},
		{"", "error\n", false},
		{"dist/softdpu_1.2_amd64.deb\n", "dist/softdpu_0~git20261130.ab12+dirty_amd64.deb\n", true},
		{"Unpacking softdpu (1.2) ...\n", "Unpacking softdpu (0~git1.ab) ...\n", true},
	}
	for _, tt := range tests {
		if printed(tt.want, tt.got) != tt.same {
			t.Errorf("%q and %q: %t", tt.want, tt.got, !tt.same)
		}
	}
}
