package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// A Supervisor tells the service manager that started the process (systemd, by the protocol of
// sd_notify) how it fares. A nil Supervisor tells nobody. It is safe for concurrent use.
type Supervisor struct {
	log      *slog.Logger
	watchdog time.Duration // after which a silent process is killed; 0: never
	deaf     atomic.Bool   // the last message did not arrive, which has been said
}

// NewSupervisor returns nil if no service manager asked to be told.
func NewSupervisor(log *slog.Logger) *Supervisor {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	s := &Supervisor{log: log}
	var err error
	if s.watchdog, err = daemon.SdWatchdogEnabled(false); err != nil {
		log.Warn("the watchdog is not fed, and will kill this process", "error", err)
	}
	return s
}

// Ready says that packets are judged, after the start and after each reload, refused ones included.
// The status is one line for people.
func (s *Supervisor) Ready(status string) {
	s.tell(daemon.SdNotifyReady + "\nSTATUS=" + status)
}

// Status changes the line for people.
func (s *Supervisor) Status(status string) { s.tell("STATUS=" + status) }

// Reloading says that a reload has begun. Ready must follow, whatever comes of it.
func (s *Supervisor) Reloading() {
	var now unix.Timespec
	// The clock exists, so this cannot fail.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	s.tell(fmt.Sprintf("%s\nMONOTONIC_USEC=%d\nSTATUS=reloading", daemon.SdNotifyReloading, now.Nano()/1000))
}

// Stopping says that the end has begun.
func (s *Supervisor) Stopping() { s.tell(daemon.SdNotifyStopping + "\nSTATUS=stopping") }

func (s *Supervisor) tell(state string) {
	if s == nil {
		return
	}
	_, err := daemon.SdNotify(false, state)
	if err != nil && !s.deaf.Swap(true) {
		s.log.Warn("the service manager cannot be told how the gateway fares", "error", err)
	}
	if err == nil {
		s.deaf.Store(false)
	}
}

// Between two looks at a gateway that did not seem to live.
const watchdogRetry = time.Second

// feed tells the watchdog every half of its time that the gateway lives, as long as alive returns nil,
// until ctx is done. alive has a quarter of that time.
func (s *Supervisor) feed(ctx context.Context, alive func(context.Context) error) {
	if s == nil || s.watchdog <= 0 {
		return
	}
	for {
		wait := s.watchdog / 2
		looking, cancel := context.WithTimeout(ctx, s.watchdog/4)
		err := alive(looking)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			s.tell(daemon.SdNotifyWatchdog)
		default:
			s.log.Error("the gateway does not do its work, the watchdog is not fed", "error", err)
			wait = min(wait, watchdogRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// How long flows may stay without a scan. A scan of the largest table takes well below a second.
const scanOverdue = 10 * scanInterval

// alive looks whether the loops that must turn do: flows are scanned, and the control socket answers.
func (g *running) alive(ctx context.Context) error {
	var errs []error
	if age := time.Since(g.ageing.lastScan()); age > scanOverdue {
		errs = append(errs, fmt.Errorf("flows were last scanned %s ago", age.Round(time.Second)))
	}
	if _, err := NewClient(g.config.Control.Socket).Passes(ctx); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// summary is the service manager's line.
func (g *running) summary() string {
	ports := "1 port"
	if n := len(g.rules.Load().config.Ports); n != 1 {
		ports = fmt.Sprintf("%d ports", n)
	}
	return fmt.Sprintf("judging packets of %s by %s", ports, g.config.Policy)
}
