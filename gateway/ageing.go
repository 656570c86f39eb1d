package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable"
)

const (
	scanInterval = time.Second
	// Far longer than a program may run for one packet: stands in where the kernel grants no grace
	// period.
	graceByTime = 100 * time.Millisecond
)

// Why a flow ended, in events. XDP's own ends are evictions and reopenings.
const (
	endAged     = "aged"     // idle for its time-out
	endClosed   = "closed"   // idle after both sides' FIN
	endReset    = "reset"    // idle after a RST
	endRevoked  = "revoked"  // the policy no longer allowed it
	endEvicted  = "evicted"  // its place was needed
	endReopened = "reopened" // the same connection was opened anew after its end
	endStopped  = "stopped"  // the gateway stopped
	endKilled   = "killed"   // somebody asked for it

	endPortRemoved    = "port-removed"     // a port where it had an end is no more
	endNATAddressGone = "nat-address-gone" // the address that masquerading gave it is no more
)

// ageing frees flows that were idle for their time-out, off the packet path.
type ageing struct {
	ledger   *ledger
	events   *eventLog
	timeouts flowtable.Timeouts
	log      *slog.Logger
	failing  bool                      // said already
	scanned  atomic.Pointer[time.Time] // when the last scan ended, or the first one was waited for

	// l.mu is held.
	scans   int
	checks  int // to come, of what sources count
	tallies flowtable.TallyCheck
}

// What sources count is checked in this many scans behind a start and a change of policy, and every so many scans.
const (
	tallyChecks    = 4
	tallyCheckEach = 3600
)

// lastScan returns when run last came round. It may be called beside run, also before it.
func (a *ageing) lastScan() time.Time {
	now := time.Now()
	a.scanned.CompareAndSwap(nil, &now)
	return *a.scanned.Load()
}

// run scans every second until ctx is done.
func (a *ageing) run(ctx context.Context) {
	ticker := time.NewTicker(scanInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := errors.Join(a.scan(dataplane.NowTick()), a.addressesGone())
		if err != nil && !a.failing {
			a.log.Error("flows are not aged as they should be", "error", err)
		}
		a.failing = err != nil
		now := time.Now()
		a.scanned.Store(&now)
	}
}

// scan frees what has expired by now, in the groups and in the overflow.
func (a *ageing) scan(now uint32) error {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.useNATPorts()()
	freed := func(f *flowtable.Flow) {
		l.credit(f)
		l.ended[ofNoRule].Aged++
		a.end(f, now, endReason(f))
	}
	var graceErr error
	l.table.Scan(now, &a.timeouts, func() {
		if graceErr = dataplane.Grace(); graceErr != nil {
			time.Sleep(graceByTime)
		}
	}, freed)
	if graceErr != nil {
		return graceErr
	}
	var flows4 []bpf.XDPFlow4
	var flows6 []bpf.XDPFlow6
	_, err := l.plane.AgeOverflow(now, &a.timeouts,
		func(f *bpf.XDPFlow4) { flows4 = append(flows4, *f) },
		func(f *bpf.XDPFlow6) { flows6 = append(flows6, *f) })
	flows, convertErr := overflowFlows(flows4, flows6)
	for i := range flows {
		l.table.Complete(&flows[i])
		l.table.DropAlias(&flows[i])
		freed(&flows[i])
	}
	if err == nil {
		err = convertErr
	}
	if err == nil {
		err = l.plane.SweepOverflow(l.table, now)
	}
	if err == nil {
		err = a.checkTallies()
	}
	return err
}

// checkTallies compares what sources count with the flows that there are, if that is due. l.mu is held.
func (a *ageing) checkTallies() error {
	if a.scans++; a.scans%tallyCheckEach == 0 {
		a.checks = tallyChecks
	}
	if a.checks == 0 {
		return nil
	}
	a.checks--
	beside, err := a.ledger.beside()
	if err != nil {
		return err
	}
	if n := a.tallies.Run(a.ledger.table, beside); n > 0 {
		a.log.Info("counts of sources were corrected", "sources", n)
	}
	return nil
}

// addressesGone ends the flows that masquerade to addresses which have gone.
func (a *ageing) addressesGone() error {
	gone := a.ledger.plane.NATAddressesGone()
	if gone == nil {
		return nil
	}
	rules := a.events.rules.Load()
	n, err := a.kill(func(f *flowtable.Flow) bool { return rules.masqueradesTo(f, gone) }, endNATAddressGone)
	a.log.Info("addresses of masquerading have gone", "addresses", slices.SortedFunc(maps.Keys(gone), netip.Addr.Compare), "flows", n)
	return err
}

// end writes the event of a flow that has ended, if its rule logs.
func (a *ageing) end(f *flowtable.Flow, now uint32, reason string) {
	if f.Log && !a.events.flowEnd(f, now, reason) {
		a.ledger.left(f.Rule)
	}
}

// stop writes the ends of all flows that still live, with what they counted by now.
func (a *ageing) stop() error {
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	now := dataplane.NowTick()
	err := a.ledger.each(func(f *flowtable.Flow) bool {
		a.end(f, now, endStopped)
		return true
	})
	if err != nil {
		return fmt.Errorf("write the ends of flows: %w", err)
	}
	return nil
}

func endReason(f *flowtable.Flow) string {
	switch {
	case f.Revoked:
		return endRevoked
	case f.State == flowTimeWait:
		return endClosed
	case f.State == flowClosed:
		return endReset
	}
	return endAged
}
