package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// manager is the other end of sd_notify. It returns the next message, "" if none comes in time.
func manager(t *testing.T, watchdog time.Duration) (next func(within time.Duration) string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", fmt.Sprint(watchdog.Microseconds()))
	t.Setenv("WATCHDOG_PID", fmt.Sprint(unix.Getpid()))
	return func(within time.Duration) string {
		b := make([]byte, 4096)
		l.SetReadDeadline(time.Now().Add(within))
		n, err := l.Read(b)
		if err != nil {
			return ""
		}
		return string(b[:n])
	}
}

func TestSupervisorMessages(t *testing.T) {
	next := manager(t, time.Minute)
	s := NewSupervisor(slog.New(slog.DiscardHandler))
	tests := []struct {
		name string
		say  func()
		want string // a pattern
	}{
		{"ready", func() { s.Ready("judging") }, `^READY=1\nSTATUS=judging$`},
		{"status", func() { s.Status("lan0 is down") }, `^STATUS=lan0 is down$`},
		{"reloading", s.Reloading, `^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]+\nSTATUS=reloading$`},
		{"stopping", s.Stopping, `^STOPPING=1\nSTATUS=stopping$`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.say()
			if got := next(10 * time.Second); !regexp.MustCompile(tt.want).MatchString(got) {
				t.Errorf("told %q", got)
			}
		})
	}
}

func TestNoServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	s := NewSupervisor(slog.New(slog.DiscardHandler))
	if s != nil {
		t.Fatal("there is a supervisor that nobody hears")
	}
	s.Ready("")
	s.Stopping()
	s.feed(t.Context(), func(context.Context) error {
		t.Error("looked without a watchdog")
		return nil
	})
}

func TestServiceManagerGone(t *testing.T) {
	manager(t, time.Minute)
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	log := &lockedBuffer{}
	s := NewSupervisor(slog.New(slog.NewTextHandler(log, nil)))
	s.Ready("")
	s.Status("")
	if n := strings.Count(log.String(), "cannot be told"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log)
	}
}

// The watchdog hears nothing while the gateway does not do its work, and hears again afterwards.
func TestWatchdogIsFedByTheLivingOnly(t *testing.T) {
	const watchdog = 200 * time.Millisecond
	next := manager(t, watchdog)
	var dead atomic.Bool
	log := &lockedBuffer{}
	s := NewSupervisor(slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.feed(ctx, func(context.Context) error {
			if dead.Load() {
				return errors.New("flows were last scanned 12s ago")
			}
			return nil
		})
	}()
	for range 3 {
		if got := next(10 * time.Second); got != "WATCHDOG=1" {
			t.Fatalf("fed with %q", got)
		}
	}
	dead.Store(true)
	testenv.Eventually(t, 10*time.Second, func() error {
		if !strings.Contains(log.String(), "last scanned 12s ago") {
			return fmt.Errorf("does not say why:\n%s", log)
		}
		return nil
	})
	for range 100 { // what was sent before
		if next(10*time.Millisecond) == "" {
			break
		}
	}
	if got := next(2 * watchdog); got != "" {
		t.Errorf("the dead are fed with %q", got)
	}
	dead.Store(false)
	if got := next(10 * time.Second); got != "WATCHDOG=1" {
		t.Errorf("after it came back, fed with %q", got)
	}
	cancel()
	<-done
}

func TestAliveSeesWhatStandsStill(t *testing.T) {
	c := write(t, testConfig, testPolicy)
	long := time.Now().Add(-time.Minute)
	g := &running{config: c, ageing: &ageing{}}
	g.ageing.scanned.Store(&long)
	err := g.alive(t.Context())
	if !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "last scanned 1m0s ago") {
		t.Errorf("%v", err)
	}
}

// A gateway in a lab says that it is ready when it is, feeds the watchdog, and says when it stops.
func TestGatewayUnderAServiceManager(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{})
	next := manager(t, 2*time.Second)
	c := write(t, testConfig, testPolicy)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &lockedBuffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	done := make(chan error, 1)
	go func() {
		done <- l.Must(t, testenv.Gateway).Do(func() error {
			return Run(ctx, c, Options{Log: logger, Supervisor: NewSupervisor(logger)})
		})
	}()
	fed, ready := 0, false
	for fed < 3 || !ready {
		switch got := next(20 * time.Second); {
		case got == "WATCHDOG=1":
			fed++
		case got == "READY=1\nSTATUS=judging packets of 2 ports by "+c.Policy:
			ready = true
			if _, err := NewClient(c.Control.Socket).Status(ctx); err != nil {
				t.Errorf("ready, and yet: %v", err)
			}
		default:
			t.Fatalf("told %q\n%s", got, log)
		}
	}
	cancel()
	for got := ""; !strings.HasPrefix(got, "STOPPING=1"); {
		if got = next(20 * time.Second); got == "" {
			t.Fatal("does not say that it stops")
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
