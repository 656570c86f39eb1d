package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/gateway/pcapng"
	"github.com/softdpu/softdpu/testenv"
)

// A taken is a capture that is read while it runs.
type taken struct {
	client *Client
	stream *CaptureStream
	done   chan struct{}

	mu         sync.Mutex
	packets    []*pcapng.Packet
	ports      []string // of the packets
	raw        bytes.Buffer
	statistics map[int]pcapng.Statistics
	err        error // of its end; nil at the end of the stream
}

// take begins to capture, and ends it with the test.
func (g *testGateway) take(t *testing.T, q CaptureRequest) *taken {
	t.Helper()
	if q.Filter != "" {
		q.Program = compiled(t, q.Filter)
	}
	stream, err := g.Capture(t.Context(), &q)
	if err != nil {
		t.Fatal(err)
	}
	c := &taken{client: g.Client, stream: stream, done: make(chan struct{})}
	t.Cleanup(func() {
		stream.Close()
		<-c.done
		g.captureEnds(t)
	})
	go c.read()
	return c
}

// captureEnds waits until nobody captures.
func (g *testGateway) captureEnds(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, 5*time.Second, func() error {
		s, err := g.Status(context.Background()) // in a cleanup, the test's is done
		if err == nil && s.Capture != nil {
			err = fmt.Errorf("still capturing: %+v", s.Capture)
		}
		return err
	})
}

func compiled(t *testing.T, filter string) string {
	t.Helper()
	out, err := exec.Command("tcpdump", "-ddd", "-y", "EN10MB", "--", filter).Output()
	if err != nil {
		t.Fatalf("compile %q: %v", filter, err)
	}
	return string(out)
}

func (c *taken) read() {
	defer close(c.done)
	r := pcapng.NewReader(io.TeeReader(c.stream, &c.raw))
	for {
		p, err := r.Packet()
		c.mu.Lock()
		if err != nil {
			c.statistics = r.Statistics()
			if !errors.Is(err, io.EOF) {
				c.err = err
			}
			c.mu.Unlock()
			return
		}
		kept := *p
		kept.Data = slices.Clone(p.Data)
		c.packets, c.ports = append(c.packets, &kept), append(c.ports, r.Interfaces()[p.Interface].Name)
		c.mu.Unlock()
	}
}

// lines are the packets so far: direction, port, comment.
func (c *taken) lines() (lines []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.packets {
		lines = append(lines, fmt.Sprintf("%s %s %s", [...]string{"?", "in", "out"}[p.Direction], c.ports[i], p.Comment))
	}
	return lines
}

// finish has the capture end, and waits for its last packet.
func (c *taken) finish(t *testing.T) {
	t.Helper()
	if _, err := c.client.StopCapture(t.Context(), c.stream.ID); err != nil {
		t.Error(err)
	}
	select {
	case <-c.done:
	case <-time.After(10 * time.Second):
		t.Fatal("the capture does not end")
	}
	if c.err != nil {
		t.Errorf("the capture broke off: %v", c.err)
	}
}

// has waits for a packet of which a line says all these words.
func (c *taken) has(t *testing.T, words ...string) {
	t.Helper()
	testenv.Eventually(t, 5*time.Second, func() error {
		for _, line := range c.lines() {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line+" ", w+" ") }) {
				return nil
			}
		}
		return fmt.Errorf("no packet with %q among:\n%s", words, strings.Join(c.lines(), "\n"))
	})
}

const capturePolicy = labPolicy + `  - {name: no-mail, from: {zone: lan}, to: {zone: wan}, service: tcp/25, action: reject}
  - {name: no-telnet, from: {zone: lan}, to: {zone: wan}, service: tcp/23, action: deny}
  - {name: to-gateway, from: {zone: lan}, to: host, service: [icmp/echo-request, icmpv6/echo-request], action: allow}
`

// Each kind of packet is captured at its points with the right verdict, rule and reason, as it came or as
// it goes, and Wireshark reads the file.
func TestLabCapture(t *testing.T) {
	t.Parallel()
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-cap"}, labRouted, capturePolicy)
	traffic := func(t *testing.T) {
		t.Helper()
		for _, a := range []netip.Addr{server4, server6, netip.MustParseAddr("10.10.1.1")} {
			if p, err := r.client.Ping(t.Context(), a, testenv.PingOptions{Timeout: 5 * time.Second}); err != nil || p.Received != 1 {
				t.Errorf("ping %s: %+v, %v", a, p, err)
			}
		}
		if _, err := r.client.Dial(limited(t, 5*time.Second), "tcp", "10.10.2.2:25"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("mail: %v", err)
		}
		_, _ = r.client.Dial(limited(t, 200*time.Millisecond), "tcp", "10.10.2.2:23")
		_, _ = r.client.Dial(limited(t, 200*time.Millisecond), "tcp", "10.10.2.2:24")
		_, _ = r.gw.Ping(t.Context(), server4, testenv.PingOptions{Timeout: 200 * time.Millisecond})
	}
	traffic(t) // neighbours are known afterwards
	policy := r.config.Policy + ":"

	t.Run("in", func(t *testing.T) {
		c := r.take(t, CaptureRequest{})
		traffic(t)
		for _, words := range [][]string{
			{"in lan", "verdict=allow", "rule=ping", "from=lan", "to=wan", "out=wan"},
			{"in wan", "verdict=allow", "rule=ping", "from=wan", "to=lan", "out=lan"}, // the answer
			{"in lan", "verdict=allow", "rule=to-gateway", "kernel=host", "to=host"},
			{"in lan", "verdict=reject", "rule=no-mail", "reason=reject"},
			{"in lan", "verdict=deny", "rule=no-telnet", "at=" + policy + "13", "reason=deny"},
			{"in lan", "verdict=deny", "reason=no-rule-matched", "from=lan", "to=wan"},
		} {
			c.has(t, words...)
		}
		c.finish(t)
		for i, p := range c.packets {
			if p.Direction != pcapng.Inbound || time.Since(p.Time) > time.Minute || p.Length < 42 || len(p.Data) != p.Length {
				t.Errorf("%s: %+v", c.ports[i], p)
			}
			if ip := p.Data[14]; c.ports[i] == "lan" && p.Data[12] == 8 && p.Data[13] == 0 && ip == 0x45 && p.Data[22] != 64 {
				t.Errorf("the TTL at arrival is %d: %s", p.Data[22], p.Comment)
			}
		}
		checkTshark(t, c)
	})
	t.Run("out", func(t *testing.T) {
		c := r.take(t, CaptureRequest{Points: []string{"out"}})
		traffic(t)
		c.has(t, "out wan", "verdict=allow", "rule=ping", "from=lan", "to=wan")
		c.has(t, "out lan", "verdict=allow", "rule=ping", "from=wan", "to=lan")
		c.has(t, "out lan", "verdict=reject", "rule=no-mail", "reason=reject")         // the RST
		c.has(t, "out lan", "verdict=allow", "rule=to-gateway", "from=host", "to=lan") // the kernel's answer
		c.finish(t)
		mac := must(r.server.MAC("s0"))
		for i, p := range c.packets {
			if p.Direction != pcapng.Outbound {
				t.Errorf("%s: %s goes in", c.ports[i], p.Comment)
			}
			if strings.Contains(p.Comment, "rule=ping from=lan") && (!bytes.Equal(p.Data[:6], mac) || p.Data[12] == 8 && p.Data[22] != 63) {
				t.Errorf("it is not as it leaves: %x %s", p.Data[:23], p.Comment)
			}
		}
	})
	t.Run("drop", func(t *testing.T) {
		c := r.take(t, CaptureRequest{Points: []string{"drop"}})
		traffic(t)
		c.has(t, "in lan", "verdict=reject", "rule=no-mail")
		c.has(t, "in lan", "verdict=deny", "rule=no-telnet")
		c.has(t, "out wan", "verdict=deny", "reason=no-rule-matched", "from=host", "to=wan") // the gateway's own ping
		c.finish(t)
		for _, line := range c.lines() {
			if strings.Contains(line, "verdict=allow") || !strings.Contains(line, "reason=") {
				t.Errorf("not dropped: %s", line)
			}
		}
	})
	t.Run("filter, port, snaplen", func(t *testing.T) {
		c := r.take(t, CaptureRequest{Ports: []string{"wan"}, Points: []string{"in", "out"}, Filter: "icmp and host 10.10.2.2 and greater 60", Snaplen: 40})
		traffic(t)
		c.has(t, "out wan", "verdict=allow", "rule=ping")
		c.has(t, "in wan", "verdict=allow", "rule=ping")
		c.finish(t)
		for i, p := range c.packets {
			if c.ports[i] != "wan" || len(p.Data) != 40 || p.Length != 98 || p.Data[23] != unix.IPPROTO_ICMP {
				t.Errorf("%s: %d of %d bytes: %x", c.ports[i], len(p.Data), p.Length, p.Data)
			}
		}
		if s := c.statistics[0]; len(c.statistics) != 1 || s.Received <= s.Accepted || s.Accepted != s.Delivered || s.Delivered != uint64(len(c.packets)) || s.Dropped != 0 {
			t.Errorf("statistics of %d packets: %+v", len(c.packets), c.statistics)
		}
	})
	t.Run("limits", func(t *testing.T) {
		c := r.take(t, CaptureRequest{Count: 2})
		traffic(t)
		<-c.done
		if c.err != nil || len(c.packets) != 2 {
			t.Errorf("%d packets instead of 2: %v", len(c.packets), c.err)
		}
		c = r.take(t, CaptureRequest{Seconds: 0.1})
		<-c.done
		if c.err != nil {
			t.Error(c.err)
		}
	})
	t.Run("one at a time", func(t *testing.T) {
		c := r.take(t, CaptureRequest{Filter: "port 7"})
		_, err := r.Capture(t.Context(), &CaptureRequest{})
		if want := fmt.Sprintf("process %d (", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "of user 0 has been capturing since") {
			t.Errorf("a second capture: %v", err)
		}
		if s := must(r.Status(t.Context())).Capture; s == nil || s.Filter != "port 7" || s.PID != int32(os.Getpid()) || s.ID != c.stream.ID {
			t.Errorf("status: %+v", s)
		}
		if _, err := r.StopCapture(t.Context(), c.stream.ID+1); err == nil {
			t.Error("a capture that there is not was stopped")
		}
		c.finish(t)
		r.captureEnds(t)
	})
	t.Run("refused", func(t *testing.T) {
		for _, c := range []struct {
			q    CaptureRequest
			want string
		}{
			{CaptureRequest{Points: []string{"inn"}}, `no point "inn"`},
			{CaptureRequest{Ports: []string{"lann"}}, `no port "lann": the ports are ["lan" "wan"]`},
			{CaptureRequest{Snaplen: 70000}, "snaplen can be from 1 to 65536"},
			{CaptureRequest{Seconds: -1}, "no -1 seconds to capture"},
			{CaptureRequest{Filter: "tcp"}, "tcpdump -ddd"},
			{CaptureRequest{Program: "1\n6 0 0"}, "line 2 is not four numbers"},
		} {
			if _, err := r.Capture(t.Context(), &c.q); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v, and not %q", c.q, err, c.want)
			}
		}
		// The group of the socket may read, and not this.
		if err := errors.Join(os.Chmod(r.config.Control.Socket, 0o666), os.Chmod(filepath.Dir(r.config.Control.Socket), 0o755)); err != nil {
			t.Fatal(err)
		}
		for request, want := range map[string]string{
			"GET /v1/drops": "200 OK", "POST /v1/capture": "only root may capture packets", "DELETE /v1/capture?id=1": "only root may end a capture",
		} {
			got := make(chan string, 1)
			go func() {
				runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, and its user with it
				got <- askAs(65534, r.config.Control.Socket, request)
			}()
			if answer := <-got; !strings.Contains(answer, want) {
				t.Errorf("%s of another user is answered %q", request, answer)
			}
		}
		if s := must(r.Status(t.Context())).Capture; s != nil {
			t.Errorf("a refused capture runs: %+v", s)
		}
	})
}

// checkTshark reads a capture with Wireshark's reader: every packet has its comment, interface, direction
// and length.
func checkTshark(t *testing.T, c *taken) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Log("no tshark: its reading of the file left out")
		return
	}
	file := filepath.Join(t.TempDir(), "x.pcapng")
	if err := os.WriteFile(file, c.raw.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(limited(t, time.Minute), "tshark", "-r", file, "-T", "fields", "-E", "separator=|",
		"-e", "frame.comment", "-e", "frame.interface_name", "-e", "frame.packet_flags_direction", "-e", "frame.len", "-e", "frame.time_epoch")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, &stderr)
	}
	got := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(got) != len(c.packets) {
		t.Fatalf("tshark reads %d packets of %d: %s", len(got), len(c.packets), &stderr)
	}
	for i, p := range c.packets {
		fields := strings.Split(got[i], "|")
		want := []string{p.Comment, c.ports[i], fmt.Sprintf("0x%08x", p.Direction), fmt.Sprint(p.Length), fmt.Sprintf("%d.%09d", p.Time.Unix(), p.Time.Nanosecond())}
		for j, w := range want {
			if len(fields) != len(want) || fields[j] != w && !(j == 2 && strings.TrimLeft(fields[j], "0x") == strings.TrimLeft(w, "0x")) {
				t.Fatalf("tshark reads packet %d as %q, and it is %q", i, fields, want)
			}
		}
	}
}
