package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/gateway/pcapng"
	"github.com/softdpu/softdpu/testenv"
)

// inForceProgram names the XDP program that packets in a namespace meet, by its pins.
func inForceProgram(t *testing.T, ns *testenv.Namespace) string { return programInForce(t, ns).Name }

// programInForce describes that program.
func programInForce(t *testing.T, ns *testenv.Namespace) *ebpf.ProgramInfo {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(ns.Path(), &st); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(fmt.Sprintf("/run/softdpu/bpf/v*-netns-%d/plane-*/generations", st.Ino))
	if err != nil || len(files) != 1 {
		t.Fatalf("pinned are %q (%v)", files, err)
	}
	m, err := ebpf.LoadPinnedMap(files[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var prog *ebpf.Program
	if err := m.Lookup(uint32(0), &prog); err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// A capture goes on over reloads, which name their rules at once; a client that is killed and a gateway that
// is killed leave nothing of it; and meanwhile everything is forwarded.
func TestLabCaptureLife(t *testing.T) {
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-caplife"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1), policyOf("lan", "wan", "talk", streamRule))
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 7)))
	defer echo.Close()
	conn := must(client.Dial(limited(t, 5*time.Second), "udp", echo.Addr().String()))
	defer conn.Close()
	exchange := func(what string) {
		t.Helper()
		b := make([]byte, 64)
		testenv.Eventually(t, 5*time.Second, func() error { // the first may be lost while the neighbour is unknown
			if _, err := conn.Write([]byte(what)); err != nil {
				return err
			}
			if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				return err
			}
			_, err := conn.Read(b)
			return err
		})
	}
	exchange("first")

	file := filepath.Join(t.TempDir(), "x.pcapng")
	capture := func(args ...string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command(binary, append([]string{"capture", "--socket", c.Control.Socket, "-w", file}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		})
		testenv.Eventually(t, 10*time.Second, func() error {
			if s := must(p.Status(t.Context())).Capture; s == nil || s.PID != int32(cmd.Process.Pid) {
				return fmt.Errorf("it does not capture: %+v: %s", s, &stderr)
			}
			return nil
		})
		return cmd
	}
	captured := func(words ...string) {
		t.Helper()
		testenv.Eventually(t, 5*time.Second, func() error {
			var comments []string
			r := pcapng.NewReader(bytes.NewReader(must(os.ReadFile(file))))
			for {
				packet, err := r.Packet()
				if err != nil {
					return fmt.Errorf("no packet with %q: %v: %q", words, err, comments)
				}
				comments = append(comments, packet.Comment)
				missing := false
				for _, w := range words {
					missing = missing || !strings.Contains(packet.Comment+" ", w+" ")
				}
				if !missing {
					return nil
				}
			}
		})
	}
	first := capture("--port", "lan")
	if info := must(os.Stat(file)); info.Mode().Perm() != 0o600 {
		t.Errorf("others may read what was captured: %s", info.Mode())
	}
	exchange("under the first policy")
	captured("verdict=allow", "rule=stream", "epoch=1", "from=lan")
	if name := inForceProgram(t, gw); name != "softdpu_tapped" {
		t.Errorf("%s is in force", name)
	}

	// Another policy, with another name for the rule.
	text := strings.Replace(policyOf("lan", "wan", "talk", streamRule), "name: stream", "name: renamed", 1)
	if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), "policy.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	done := must(p.Reload(t.Context()))
	exchange("under the second policy")
	captured("verdict=allow", "rule=renamed", fmt.Sprintf("epoch=%d", done.Epoch))
	if name := inForceProgram(t, gw); name != "softdpu_tapped" {
		t.Errorf("%s is in force after a reload", name)
	}

	// The client dies.
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	(&testGateway{Client: p.Client}).captureEnds(t)
	if name := inForceProgram(t, gw); name != "softdpu" {
		t.Errorf("%s is in force after the client's death", name)
	}
	exchange("without a capture")

	// Ctrl-C ends it orderly.
	second := capture()
	if err := second.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil || !strings.Contains(second.Stderr.(*bytes.Buffer).String(), "captured of") {
		t.Errorf("after Ctrl-C: %v: %s", err, second.Stderr)
	}

	// The gateway dies under a capture: everything goes on; the next run takes over, without it.
	third := capture("--point", "in,out")
	p.kill()
	var exit *exec.ExitError
	if err := third.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(third.Stderr.(*bytes.Buffer).String(), "broke off") {
		t.Errorf("the client of a gateway that died: %v: %s", err, third.Stderr)
	}
	exchange("without a gateway")
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	if !strings.Contains(p.log.String(), "is taken over") {
		t.Errorf("not taken over:\n%s", p.log)
	}
	if name := inForceProgram(t, gw); name != "softdpu" {
		t.Errorf("%s is in force after the gateway's death", name)
	}
	exchange("after the restart")

	// An orderly stop does not wait for whoever captures.
	fourth := capture()
	start := time.Now()
	p.stop(t)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the stop took %s", took)
	}
	if err := fourth.Wait(); err != nil {
		t.Errorf("the client of a gateway that stopped: %v: %s", err, fourth.Stderr)
	}
	if name := inForceProgram(t, gw); name != "softdpu" {
		t.Errorf("%s is in force after the stop", name)
	}
}
