package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/testenv"
)

func watchedFlow(port uint16, packets, bytes uint64, age float64) gateway.Flow {
	return gateway.Flow{
		Family: 4, Proto: "udp", SrcIP: netip.MustParseAddr("10.10.1.2"), SrcPort: port, DestIP: netip.MustParseAddr("10.10.2.2"), DestPort: 53,
		From: "lan", To: "wan", State: "replied", Rule: "names", Packets: [2]uint64{packets, packets / 2}, Bytes: [2]uint64{bytes, 0}, AgeS: age,
	}
}

// The rates are those between two looks, the busiest flow comes first, and no more is shown than fits.
func TestFlowWatch(t *testing.T) {
	w := &flowWatch{sort: "bits"}
	now := time.Now()
	first := w.frame([]gateway.Flow{watchedFlow(1, 100, 9000, 60), watchedFlow(2, 10, 1000, 60)}, 20, 0, now)
	if got := first.table.rows; len(got) != 2 || !strings.HasSuffix(got[0][1], ":1") || got[0][5] != "-" {
		t.Errorf("first look: %v", got)
	}
	second := w.frame([]gateway.Flow{
		watchedFlow(1, 102, 9100, 62),     // 1 packet/s
		watchedFlow(2, 210, 26000, 2),     // began anew: what it counts now is more, and its own
		watchedFlow(3, 40, 4000, 1),       // is new
		watchedFlow(4, 7000, 700000, 999), // was not there, and is old: how fast nobody knows
	}, 3, 2*time.Second, now)
	got := second.table.rows
	if len(got) != 3 || second.below != "... and 1 more" {
		t.Fatalf("%v, %q", got, second.below)
	}
	for i, want := range [][2]string{{":2", "100k/0"}, {":3", "16.0k/0"}, {":1", "400/0"}} {
		if !strings.HasSuffix(got[i][1], want[0]) || got[i][5] != want[1] {
			t.Errorf("row %d: %v, want %s with %s bits/s", i, got[i], want[0], want[1])
		}
	}
	if got[1][4] != "20/10" || !strings.Contains(second.title, "4 flows") {
		t.Errorf("%v, %q", got[1], second.title)
	}
	for sort, want := range map[string]string{"packets": ":2", "total": ":4", "newest": ":3", "idle": ":1"} {
		w := &flowWatch{sort: sort}
		flows := []gateway.Flow{watchedFlow(1, 100, 9000, 60), watchedFlow(2, 10, 1000, 60), watchedFlow(3, 1, 1, 0.5), watchedFlow(4, 90, 90000, 60)}
		flows[0].IdleS = 7
		w.frame(flows, 20, 0, now)
		again := append([]gateway.Flow(nil), flows...)
		again[1].Packets[0] += 50
		if got := w.frame(again, 20, time.Second, now).table.rows; !strings.HasSuffix(got[0][1], want) {
			t.Errorf("by %s: %v", sort, got)
		}
	}
}

func TestCounterWatch(t *testing.T) {
	w := &counterWatch{kind: "WHAT", noun: "x", sort: "rate"}
	now := time.Now()
	w.frame([]counted{{kind: "dropped", name: "deny", packets: 1000, bytes: 60000}}, 20, 0, now)
	f := w.frame([]counted{{kind: "dropped", name: "deny", packets: 1004, bytes: 60400}, {kind: "dropped", name: "martian", packets: 20, bytes: 1200}}, 20, 2*time.Second, now)
	if got := fmt.Sprint(f.table.rows); got != "[[dropped martian 10 4800 20 1.2K] [dropped deny 2.0 1600 1004 59.0K]]" {
		t.Error(got)
	}
	// A gateway that has started anew counts from 0.
	f = w.frame([]counted{{kind: "dropped", name: "deny", packets: 3, bytes: 180}}, 20, time.Second, now)
	if f.table.rows[0][2] != "0" {
		t.Errorf("%v", f.table.rows)
	}
}

func TestWatchFlags(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"flows --watch --sort bit", "did you mean bits?"},
		{"flows --sort packets", "--sort goes with --watch"},
		{"drops --watch -o json", "--watch prints tables"},
		{"flows --watch --limit 3", "leave --limit out"},
		{"rules --watch --socket /nowhere/sock", "no softdpu answers"},
	} {
		if code, _, stderr := execute(t, strings.Fields(tt.args)...); code != exitError || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: exit code %d: %s", tt.args, code, stderr)
		}
	}
}

func numberedFrames(n *int) func(context.Context, int, time.Duration) (frame, error) {
	return func(_ context.Context, rows int, _ time.Duration) (frame, error) {
		*n++
		t := newTable("NAME")
		for i := range rows {
			t.add(fmt.Sprintf("row %d of frame %d", i, *n))
		}
		return frame{title: "title", table: t, below: "below"}, nil
	}
}

// Where there is no terminal, blocks follow each other, without control sequences.
func TestWatchWithoutTerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	env := &Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out}
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	n := 0
	if err := watch(ctx, env, numberedFrames(&n)); err != nil {
		t.Fatal(err)
	}
	if n != 2 || strings.Contains(out.String(), "\x1b") || strings.Count(out.String(), "title\n") != 2 || !strings.Contains(out.String(), "below\n\ntitle\n") {
		t.Errorf("%d frames:\n%q", n, out.String())
	}
	stopped := errors.New("no daemon any more")
	if err := watch(t.Context(), env, func(context.Context, int, time.Duration) (frame, error) { return frame{}, stopped }); err != stopped {
		t.Errorf("%v", err)
	}
}

// On a terminal a frame takes no more rows than there are, q ends, and the terminal is as it was.
func TestWatchOnTerminal(t *testing.T) {
	terminal, inside := openPTY(t)
	if err := unix.IoctlSetWinsize(int(inside.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 14}); err != nil {
		t.Fatal(err)
	}
	before, err := unix.IoctlGetTermios(int(inside.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var seen bytes.Buffer
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := terminal.Read(b)
			mu.Lock()
			seen.Write(b[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	env := &Env{Stdin: inside, Stdout: inside, Stderr: inside}
	n := 0
	draw := numberedFrames(&n)
	err = watch(t.Context(), env, func(ctx context.Context, rows int, since time.Duration) (frame, error) {
		if n == 0 {
			_, _ = terminal.Write([]byte("xq"))
		}
		return draw(ctx, rows, since)
	})
	if err != nil || n != 1 {
		t.Fatalf("%d frames (%v): q did not end it", n, err)
	}
	var text string
	testenv.Eventually(t, 10*time.Second, func() error {
		mu.Lock()
		text = seen.String()
		mu.Unlock()
		if !strings.HasPrefix(text, enterAlternate) || !strings.HasSuffix(text, leaveAlternate) {
			return fmt.Errorf("the screen was not changed and given back: %q", text)
		}
		return nil
	})
	if rows := strings.Count(text, "\r\n") + 1; rows > 12 || rows < 11 {
		t.Errorf("%d rows on a terminal of 12: %q", rows, text)
	}
	if !strings.Contains(text, "row 0 of fram…") {
		t.Errorf("lines are not cut to 14 columns: %q", text)
	}
	after, err := unix.IoctlGetTermios(int(inside.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal's mode is another: %+v, %+v, %v", before, after, err)
	}
}

// openPTY returns both ends of a pseudo-terminal.
func openPTY(t *testing.T) (outside, inside *os.File) {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal here: %v", err)
	}
	t.Cleanup(func() { outside.Close() })
	if err := unix.IoctlSetPointerInt(int(outside.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(outside.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	inside, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	return outside, inside
}
