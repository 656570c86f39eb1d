package gateway

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

const killPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  wan: {ports: [wan]}
rules:
  - {name: echo, from: {zone: lan}, to: {zone: wan}, service: tcp/7, action: allow, log: true}
`

// A talker sends by one connection and reads the echo, without pause.
type talker struct {
	conn   net.Conn
	done   atomic.Uint64 // exchanges
	late   atomic.Uint64 // of them begun after its end was said
	killed atomic.Bool
	err    error
}

func (c *talker) run(stop *atomic.Bool) {
	var b [8]byte
	for !stop.Load() {
		late := c.killed.Load()
		_ = c.conn.SetDeadline(time.Now().Add(3 * time.Second))
		if late {
			_ = c.conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
		}
		binary.BigEndian.PutUint64(b[:], c.done.Load())
		if _, c.err = c.conn.Write(b[:]); c.err != nil {
			return
		}
		if _, c.err = io.ReadFull(c.conn, b[:]); c.err != nil {
			return
		}
		if got := binary.BigEndian.Uint64(b[:]); got != c.done.Load() {
			c.err = fmt.Errorf("%d came back as %d", c.done.Load(), got)
			return
		}
		c.done.Add(1)
		if late {
			c.late.Add(1)
		}
	}
}

// Of connections that all send without pause exactly the chosen ones are cut, and every packet of theirs
// stays counted.
func TestLabKill(t *testing.T) {
	t.Parallel()
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-kill"}, labRouted, killPolicy)
	var talkers []*talker
	for _, a := range r.addresses() {
		echo := must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		for range sized(16, 200) {
			c, err := r.client.Dial(limited(t, 10*time.Second), "tcp", echo.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			talkers = append(talkers, &talker{conn: c})
		}
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for _, c := range talkers {
		wg.Go(func() { c.run(&stop) })
	}
	time.Sleep(200 * time.Millisecond)

	// In two parts, so that the second finds slots free that are taken and given back.
	for part := range 2 {
		var filter []string
		var chosen []*talker
		for i, c := range talkers {
			if i%4 == part {
				filter = append(filter, fmt.Sprintf("sport %d", c.conn.LocalAddr().(*net.TCPAddr).Port))
				chosen = append(chosen, c)
			}
		}
		n, err := r.KillFlows(t.Context(), "dport 7 and ("+strings.Join(filter, " or ")+")")
		if err != nil || n != len(chosen) {
			t.Fatalf("%d of %d killed, %v", n, len(chosen), err)
		}
		for _, c := range chosen {
			c.killed.Store(true)
		}
		time.Sleep(300 * time.Millisecond)
	}
	before := make([]uint64, len(talkers))
	for i, c := range talkers {
		before[i] = c.done.Load()
	}
	time.Sleep(300 * time.Millisecond)
	testenv.Eventually(t, 5*time.Second, func() error {
		for i, c := range talkers {
			if !c.killed.Load() && c.done.Load() == before[i] {
				return fmt.Errorf("connection %d stands still", i)
			}
		}
		return nil
	})
	for i, c := range talkers {
		if c.killed.Load() && c.late.Load() > 0 {
			t.Errorf("connection %d got %d exchanges through after its end", i, c.late.Load())
		}
	}
	stop.Store(true)
	wg.Wait()
	for i, c := range talkers {
		if (c.err != nil) != c.killed.Load() {
			t.Errorf("connection %d: killed %v, %v", i, c.killed.Load(), c.err)
		}
	}
	if r.dropped(t, "not-syn").Packets == 0 {
		t.Error("no packet of a killed connection was refused")
	}

	for _, c := range talkers {
		c.conn.Close()
	}
	var flows []Flow
	var rule RuleStatus
	testenv.Eventually(t, 10*time.Second, func() error { // nothing is sent between the two readings
		before := r.rule(t, "echo")
		flows = must(r.Flows(t.Context(), "dport 7", 0))
		if rule = r.rule(t, "echo"); rule.Packets != before.Packets || rule.Judged != before.Judged {
			return fmt.Errorf("from %+v to %+v", before, rule)
		}
		return nil
	})
	killed := len(talkers) / 2
	if s := must(r.Status(t.Context())).Table; len(flows) != len(talkers)-killed || s.Killed != uint64(killed) || s.Aged != 0 || s.Refused+s.Evicted != 0 {
		t.Errorf("%d flows left, %+v", len(flows), s)
	}
	var packets uint64
	for _, f := range flows {
		packets += f.Packets[0] + f.Packets[1]
		if f.Revoked {
			t.Errorf("revoked: %+v", f)
		}
	}
	refused := rule.Judged - uint64(len(talkers)) // not-syn, counted by the rule that would have allowed them
	r.stop()
	ends := 0
	for _, e := range lines(t, r.config.Events.File) {
		if flow, _ := e["flow"].(map[string]any); flow["reason"] == endKilled {
			ends++
			packets += uint64(flow["pkts_toserver"].(float64) + flow["pkts_toclient"].(float64))
		}
	}
	if ends != killed || packets+refused != rule.Packets || rule.Flows != uint64(len(flows)) {
		t.Errorf("%d ends of %d are written; flows and ends count %d packets, their rule %+v", ends, killed, packets, rule)
	}
}

// Who is not root may not end flows; a filter is required, and must be right.
func TestLabKillIsForRoot(t *testing.T) {
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-killr"}, labRouted, killPolicy)
	echo := must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 7)))
	defer echo.Close()
	conn := must(r.client.Dial(limited(t, 10*time.Second), "tcp", echo.Addr().String()))
	defer conn.Close()

	// A socket in a directory that others may enter, as one that the group may read.
	dir := must(os.MkdirTemp("", "kill"))
	defer os.RemoveAll(dir)
	for _, err := range []error{os.Chmod(r.config.Control.Socket, 0o666), os.Chmod(dir, 0o755), os.Symlink(r.config.Control.Socket, dir+"/s"), os.Chmod(strings.TrimSuffix(r.config.Control.Socket, "/softdpu.sock"), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		uid    int
		query  string
		status int
		want   string
	}{
		{"another user", 65534, "all=1", 403, "only root may change"},
		{"nothing chosen", 0, "", 400, "filter=EXPRESSION"},
		{"an empty filter", 0, "filter=%20", 400, "filter=EXPRESSION"},
		{"a filter and all", 0, "filter=dport+7&all=1", 400, "filter=EXPRESSION"},
		{"a wrong filter", 0, "filter=dport+x", 400, `"column":7`},
		{"no flow of that kind", 0, "filter=dport+8", 200, `{"killed":0}`},
		{"all", 0, "all=1", 200, `{"killed":1}`},
	} {
		status, body := postAs(t, tt.uid, dir+"/s", "/v1/flows/kill?"+tt.query)
		if status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d %s", tt.name, status, body)
		}
	}
}

// postAs asks from a thread of that user.
func postAs(t *testing.T, uid int, socket, path string) (status int, body string) {
	t.Helper()
	err := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its user
		err <- func() error {
			if uid != 0 {
				if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
					return errno
				}
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			f := os.NewFile(uintptr(fd), "control")
			defer f.Close()
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
				return fmt.Errorf("connect: %w", err)
			}
			req, err := http.NewRequest(http.MethodPost, "http://softdpu"+path, nil)
			if err != nil {
				return err
			}
			req.Close = true
			if err := req.Write(f); err != nil {
				return err
			}
			resp, err := http.ReadResponse(bufio.NewReader(f), req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			status, body = resp.StatusCode, string(b)
			return err
		}()
	}()
	if err := <-err; err != nil {
		t.Fatal(err)
	}
	return status, body
}
