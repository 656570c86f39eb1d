package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// badRouted has a table as small as the stream allows: a reload walks it.
const badRouted = labRouted + "flows: {max: 60000}\n"

// A badFile is something wrong with the configuration or the policy of a running gateway.
type badFile struct {
	name  string
	file  string // softdpu.yaml or policy.yaml, or a set's
	text  string
	make  func(path string) (undo func(), err error) // in the place of text
	place string                                     // how the first mistake begins
	says  string                                     // what stands behind
	check int                                        // exit code of check and apply: 1 if not given
	large bool                                       // takes seconds: not in reduced size
}

func (b *badFile) put(dir string) (undo func(), err error) {
	path := filepath.Join(dir, b.file)
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	if b.make != nil {
		return b.make(path)
	}
	return func() {}, os.WriteFile(path, []byte(b.text), 0o644)
}

func badFiles() []badFile {
	random := make([]byte, 10<<20)
	for i, r := 0, rand.NewChaCha8([32]byte{7}); i < len(random); i += 8 {
		v := r.Uint64()
		for j := range 8 {
			random[i+j] = byte(v >> (8 * j))
		}
	}
	in := func(old, new string) string { return strings.Replace(lifePolicy, old, new, 1) }
	with := func(lines string) string { return lifePolicy + lines }
	set := func(file string) string {
		return in("rules:\n", "sets: {bad: {type: prefix, file: "+file+"}}\nrules:\n")
	}
	utf16 := func(text string) string {
		var b strings.Builder
		for _, c := range []byte(text) {
			b.WriteByte(c)
			b.WriteByte(0)
		}
		return b.String()
	}
	laughs := lifePolicy + "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'm'; c++ {
		laughs += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 9), ","))
	}
	nothing := func(make func(string) error) func(string) (func(), error) {
		return func(path string) (func(), error) { return func() {}, make(path) }
	}
	directory := nothing(func(path string) error { return os.Mkdir(path, 0o755) })
	loop := nothing(func(path string) error { return os.Symlink(filepath.Base(path), path) })
	fifo := nothing(func(path string) error { return unix.Mkfifo(path, 0o644) })
	absent := nothing(func(string) error { return nil })
	const policy, config = "policy.yaml", "softdpu.yaml"
	return []badFile{
		{name: "empty", file: policy, text: "", place: "policy.yaml: ", says: "file is empty"},
		{name: "only a comment", file: policy, text: "# nothing\n", place: "policy.yaml: ", says: "file is empty"},
		{name: "truncated", file: policy, text: lifePolicy[:len(lifePolicy)-30], place: "policy.yaml:8:", says: "not YAML"},
		{name: "no YAML", file: policy, text: with("}{\n"), place: "policy.yaml:9:1: ", says: "not YAML"},
		{name: "another language", file: policy, text: "<html><body>404</body></html>\n", place: "policy.yaml:1:1: ", says: "must be a map of keys"},
		{name: "a program", file: policy, text: "\x7fELF\x02\x01\x01\x00", place: "policy.yaml:1:1: ", says: "control character"},
		{name: "random bytes", file: policy, text: string(random[:64<<10]), place: "policy.yaml:1:", says: "file "},
		{name: "10 MB of random bytes", file: policy, text: string(random), place: "policy.yaml:1:", says: "file "},
		{name: "10 MB of zeros", file: policy, text: strings.Repeat("\x00", 10<<20), place: "policy.yaml:1:1: ", says: "zero byte"},
		{name: "10 MB on one line", file: policy, text: "apiVersion: " + strings.Repeat("x", 10<<20), place: "policy.yaml:1:1", says: "unknown apiVersion", large: true},
		{name: "10 MB of brackets", file: policy, text: strings.Repeat("[", 10<<20), place: "policy.yaml:1:", says: "levels deep", large: true},
		{name: "10 MB of keys", file: policy, text: strings.Repeat("a: b\n", 2<<20), place: "policy.yaml:20001:", says: "more than 20000 keys", large: true},
		{name: "10 MB of rules with one mistake", file: policy, text: with(strings.Repeat("  - {name: again, from: {zone: lam}, to: {zone: wan}, service: udp/9, action: allow}\n", 120_000)),
			place: "policy.yaml:9:", says: "unknown zone", large: true},
		{name: "10 MB of good rules", file: policy, text: lifePolicy + manyRules(120_000), place: "policy.yaml: ", says: "too large", large: true},
		{name: "200 levels", file: policy, text: with("tests: " + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "\n"), place: "policy.yaml:9:", says: "levels deep"},
		{name: "an alias bomb", file: policy, text: laughs, place: "policy.yaml:19:", says: "not supported"},
		{name: "UTF-16", file: policy, text: "\xff\xfe" + utf16(lifePolicy), place: "policy.yaml: ", says: "UTF-16"},
		{name: "UTF-16 without a mark", file: policy, text: utf16(lifePolicy), place: "policy.yaml:1:2: ", says: "zero byte"},
		{name: "Latin-1", file: policy, text: with("# M\xfcnchen\n"), place: "policy.yaml:9:4: ", says: "not UTF-8"},
		{name: "a zero byte", file: policy, text: in("refused", "ref\x00sed"), place: "policy.yaml:7:15: ", says: "zero byte"},
		{name: "an escape sequence", file: policy, text: with("# \x1b[2J\n"), place: "policy.yaml:9:3: ", says: "control character"},
		{name: "tabs", file: policy, text: in("  - {name: refused", "\t- {name: refused"), place: "policy.yaml:7:1: ", says: "not YAML"},
		{name: "unknown key", file: policy, text: in("action", "acton"), place: "policy.yaml:7:", says: "acton"},
		{name: "unknown section", file: policy, text: with("ruels: []\n"), place: "policy.yaml:9:1: ", says: "ruels"},
		{name: "key twice", file: policy, text: with("rules: []\n"), place: "policy.yaml:9:1: ", says: "twice"},
		{name: "zone twice", file: policy, text: in("  wan:", "  lan:"), place: "policy.yaml:5:3: ", says: "twice"},
		{name: "rule twice", file: policy, text: in("name: refused", "name: stream"), place: "policy.yaml:8:", says: "exists already"},
		{name: "contradiction", file: policy, text: in("  wan: {ports: [wan]}", "  wan: {ports: [wan]}\n  dmz: {ports: [wan]}"), place: "policy.yaml:6:", says: "belong to zone"},
		{name: "test that fails", file: policy, text: with("tests: [{name: no, packet: {in: lan, out: wan, src: 10.10.1.2, dst: 10.10.2.2, service: udp/7}, expect: {verdict: deny}}]\n"), place: "policy.yaml:9:", says: "expected deny"},
		{name: "list for a map", file: policy, text: in("zones:\n", "zones: []\nsets:\n"), place: "policy.yaml:3:8: ", says: "must be a map"},
		{name: "map for a word", file: policy, text: in("action: deny", "action: {deny: yes}"), place: "policy.yaml:7:", says: "must be a single value"},
		{name: "word for a list", file: policy, text: in("rules:\n", "rules: all\nservices:\n"), place: "policy.yaml:6:8: ", says: "must be a list"},
		{name: "number out of all bounds", file: policy, text: in("udp/6000", "udp/"+strings.Repeat("9", 5000)), place: "policy.yaml:7:", says: "is not a port"},
		{name: "number beyond floats", file: policy, text: in("ports: [wan]", "ports: [wan], vlans: [1e999]"), place: "policy.yaml:5:", says: "must be a number"},
		{name: "of another version", file: policy, text: in("softdpu/v1", "softdpu/v9"), place: "policy.yaml:1:", says: "unknown apiVersion"},
		{name: "of another kind", file: policy, text: in("kind: Policy", "kind: Gateway"), place: "policy.yaml:2:", says: "of kind"},
		{name: "set without its file", file: policy, text: set("nowhere.txt"), place: "policy.yaml:6:", says: "no such file"},
		{name: "set of a directory", file: policy, text: set("."), place: "policy.yaml:6:", says: "is a directory"},
		{name: "set of endless zeros", file: policy, text: set("/dev/zero"), place: "policy.yaml:6:", says: "not a regular file"},
		{name: "set of other things", file: policy, text: set("softdpu.yaml"), place: "softdpu.yaml:1:1: ", says: "is not an address"},
		{name: "policy is a directory without files", file: policy, make: directory, place: "softdpu.yaml:4:9: ", says: "no *.yaml"},
		{name: "policy is a FIFO", file: policy, make: fifo, place: "softdpu.yaml:4:9: ", says: "not a regular file"},
		{name: "policy is a link to itself", file: policy, make: loop, place: "softdpu.yaml:4:9: ", says: "too many levels of symbolic links"},
		{name: "policy is absent", file: policy, make: absent, place: "softdpu.yaml:4:9: ", says: "no such file"},
		// Between two writes it is a file of comments.
		{name: "policy is being written", file: policy, make: keepWriting, place: ".yaml:", says: " file "},
		{name: "configuration is empty", file: config, text: "", place: "softdpu.yaml: ", says: "file is empty"},
		{name: "configuration is cut", file: config, text: badRouted[:60], place: "softdpu.yaml:3:", says: "not YAML"},
		{name: "configuration is binary", file: config, text: string(random[:4096]), place: "softdpu.yaml:1:", says: "file "},
		{name: "configuration with unknown key", file: config, text: badRouted + "polcy: x\n", place: "softdpu.yaml:11:1: ", says: "polcy"},
		{name: "configuration with a device twice", file: config, text: strings.Replace(badRouted, "{device: wan}", "{device: lan}", 1), place: "softdpu.yaml:3:", says: "is port"},
		{name: "configuration of a policy", file: config, text: lifePolicy, place: "softdpu.yaml:2:", says: "of kind"},
		{name: "configuration with an enormous number", file: config, text: strings.Replace(badRouted, "max: 60000", "max: 99999999999999999999", 1), place: "softdpu.yaml:10:", says: "must be a number"},
		{name: "configuration is a directory", file: config, make: directory, place: "softdpu.yaml: ", says: "is a directory", check: 2},
		{name: "configuration is a FIFO", file: config, make: fifo, place: "softdpu.yaml: ", says: "not a regular file", check: 2},
		{name: "configuration is a link to itself", file: config, make: loop, place: "softdpu.yaml: ", says: "too many levels of symbolic links", check: 2},
		{name: "configuration is absent", file: config, make: absent, place: "softdpu.yaml: ", says: "no such file", check: 2},
	}
}

// manyRules are rules that no two packets share.
func manyRules(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  - {name: r%d, from: {zone: lan}, to: {zone: wan}, service: tcp/%d, action: allow}\n", i, i%65535+1)
	}
	return b.String()
}

// keepWriting appends to a file until it is undone.
func keepWriting(path string) (undo func(), err error) {
	if err := os.WriteFile(path, bytes.Repeat([]byte("# a comment\n"), 400_000), 0o644); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				done <- err
				return
			}
			_, _ = f.WriteString("# one more\n")
			f.Close()
		}
		done <- nil
	}()
	return func() { cancel(); <-done }, nil
}

// said is what a process of softdpu answered.
type said struct {
	code           int
	stdout, stderr string
}

func (s said) all() string { return s.stdout + s.stderr }

// remedy matches a mistake's line with a remedy, on a line of its own or behind it.
var remedy = regexp.MustCompile(`(?m)^  = .+|must be .+|softdpu: .+: .+: .+: .+`)

// Whatever stands in the files of a running gateway, or in their place: check, apply, SIGHUP and a second start
// say where it is wrong and what to do, with the right exit code, and no packet is lost of either family.
func TestLabBadFiles(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-bad"})
	gw := l.Must(t, testenv.Gateway)
	c := write(t, badRouted, lifePolicy)
	dir := filepath.Dir(c.File)
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	stream := startStream(t, l)
	stream.more(t, 50)
	first := stream.sent.Load()

	ask := func(t *testing.T, cmd *exec.Cmd) said {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return said{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
	for i, b := range badFiles() {
		if b.large && !long() {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			undo, err := b.put(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				undo()
				for name, text := range map[string]string{"softdpu.yaml": badRouted, "policy.yaml": lifePolicy} {
					if err := errors.Join(os.RemoveAll(filepath.Join(dir, name)), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
						t.Fatal(err)
					}
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			code := max(b.check, 1)
			clear := func(verb string, s said, code int) {
				t.Helper()
				text := strings.ReplaceAll(s.all(), dir+"/", "")
				if s.code != code || !strings.Contains(text, b.place) || !strings.Contains(text, b.says) || !remedy.MatchString(text) {
					t.Errorf("%s ends with %d, want %d, place %q and %q:\n%.2000s", verb, s.code, code, b.place, b.says, text)
				}
				if len(text) > 100<<10 || strings.Contains(text, "goroutine ") || strings.ContainsAny(text, "\x00\x1b") {
					t.Errorf("%s prints %d bytes, or a crash, or what a terminal would obey", verb, len(text))
				}
			}
			clear("check", ask(t, exec.CommandContext(ctx, binary, "policy", "check", "-c", c.File)), code)
			// The log may come later than the answer; by whom a line is tells the two refusals apart.
			const refused = `msg="reload refused" by=signal `
			refusals := strings.Count(p.log.String(), refused)
			clear("apply", ask(t, exec.CommandContext(ctx, binary, "policy", "apply", "--socket", c.Control.Socket)), code)
			if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, 30*time.Second, func() error {
				if strings.Count(p.log.String(), refused) == refusals {
					return errors.New("SIGHUP is not answered")
				}
				return nil
			})
			if i%8 == 0 || long() && !b.large {
				s := ask(t, gw.Command(ctx, binary, "run", "-c", c.File))
				clear("run", s, 2)
				if s.stdout != "" {
					t.Errorf("run prints %q", s.stdout)
				}
			}
			if status := must(p.Status(ctx)); status.Policy.Epoch != 1 || status.Policy.Rules != 2 {
				t.Errorf("in force is %+v", status.Policy)
			}
		})
	}
	t.Run("nobody may read it", func(t *testing.T) { unreadable(t, binary) })

	last := stream.sent.Load()
	if missing := stream.missing(first, last); len(missing) > 0 {
		t.Errorf("of %d..%d these are missing: %v", first, last, missing)
	}
	stream.stop() // and say whether anything arrived that is denied
	if done, err := p.Reload(t.Context()); err != nil || done.Epoch != 2 {
		t.Errorf("the good files afterwards: %+v, %v", done, err)
	}
	p.stop(t)
}

// unreadable has somebody else check files that only root may read.
func unreadable(t *testing.T, binary string) {
	open := t.TempDir() // readable for all, unlike the directory that holds it
	if err := os.Chmod(filepath.Dir(open), 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"softdpu": 0o755, "softdpu.yaml": 0o600} {
		if err := os.WriteFile(filepath.Join(open, name), text, mode); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(open, "softdpu"), "policy", "check", "-c", filepath.Join(open, "softdpu.yaml"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !bytes.Contains(out, []byte("permission denied: run as root")) {
		t.Errorf("%v: %s", err, out)
	}
}
