package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// failingPolicy has a rule whose packets are dropped while no worker takes them, and one whose packets go on.
const failingPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.10.1.0/24, "fd10:1::/64"]}
  wan: {ports: [wan]}
rules:
  - {name: closed, from: {zone: lan}, to: {zone: wan}, service: udp/7, action: allow}
  - {name: open, from: {zone: lan}, to: {zone: wan}, service: udp/8, action: allow, on_failure: bypass}
`

// failsWithin is how soon after a worker's end its flows are as their rules say, and how soon after it is
// back they go through it again.
const failsWithin = 100 * time.Millisecond

// A pulse sends numbered packets by two flows, a millisecond apart, and notes when each was sent and that
// it arrived.
type pulse struct {
	mu      sync.Mutex
	sent    []time.Time
	arrived [2]map[uint32]bool
	end     func()
}

var pulsePorts = [2]uint16{7, 8} // closed, open

func startPulse(t *testing.T, client, server, gw *testenv.Namespace, cpu int) *pulse {
	t.Helper()
	p := &pulse{arrived: [2]map[uint32]bool{{}, {}}}
	c := must(server.StartCapture("s0", testenv.CaptureOptions{Keep: 1, Match: p.look}))
	sender := must(client.OpenSender("c0"))
	w := way{srcMAC: must(client.MAC("c0")), dstMAC: must(gw.MAC("lan")), src: client4, dst: server4}
	var frames [2][]byte
	for i, port := range pulsePorts {
		frames[i] = w.udp(t, 4000, port, append([]byte("pulse "), 0, 0, 0, 0))
		frames[i][14+20+6], frames[i][14+20+7] = 0, 0 // no checksum, since the number changes
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // and never give it back: its CPU is set
		pin(t, cpu)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := uint32(0); ctx.Err() == nil; n++ {
			p.mu.Lock()
			p.sent = append(p.sent, time.Now())
			p.mu.Unlock()
			for _, f := range frames {
				binary.BigEndian.PutUint32(f[14+20+8+6:], n)
				if err := sender.Send(f); err != nil {
					t.Error(err)
					return
				}
			}
			<-tick.C
		}
	})
	p.end = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if _, err := c.Stop(); err != nil {
			t.Error(err)
		}
		sender.Close()
	})
	t.Cleanup(p.end)
	return p
}

func (p *pulse) look(frame []byte) bool {
	const at = 14 + 20 + 8
	if len(frame) < at+10 || string(frame[at:at+6]) != "pulse " {
		return false
	}
	port := binary.BigEndian.Uint16(frame[14+20+2:])
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range pulsePorts {
		if port == pulsePorts[i] {
			p.arrived[i][binary.BigEndian.Uint32(frame[at+6:])] = true
		}
	}
	return true
}

// between counts what was sent between two points in time, and how much of it arrived, by flow.
func (p *pulse) between(from, to time.Time) (sent int, arrived [2]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, at := range p.sent {
		if at.Before(from) || at.After(to) {
			continue
		}
		sent++
		for i := range arrived {
			if p.arrived[i][uint32(n)] {
				arrived[i]++
			}
		}
	}
	return sent, arrived
}

// flows waits until both flows arrive, all of the last 20 that were sent.
func (p *pulse) flows(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() error {
		to := time.Now().Add(-20 * time.Millisecond)
		if sent, arrived := p.between(to.Add(-30*time.Millisecond), to); sent < 10 || arrived != [2]int{sent, sent} {
			return fmt.Errorf("of the last %d packets arrived %v", sent, arrived)
		}
		return nil
	})
}

// pin runs the calling thread on one CPU.
func pin(t *testing.T, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Errorf("run on CPU %d: %v", cpu, err)
	}
}

// hog takes a CPU from everything that is not more urgent, for a time. It returns since when it had the CPU.
func hog(t *testing.T, cpu int, d time.Duration) (start time.Time) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		pin(t, cpu)
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}, 0); err != nil {
			t.Errorf("become urgent: %v", err)
			return
		}
		start = time.Now()
		for time.Since(start) < d {
		}
	}()
	<-done
	return start
}

// A fault is what keeps a worker from its work for faultLasts.
type fault struct {
	name  string
	cause func(t *testing.T) time.Time // returns when it is over, and since when it was there
	rests int                          // packets that come while the worker has its CPU all the same
}

const faultLasts = 400 * time.Millisecond

// failsClosed sees what passes the gateway while its only worker has each of the faults: from 100 ms after their
// beginning nothing that needs the worker, which is dropped under its reason, and all that may go on without.
// Once the fault is over all passes, and nobody has to start anything.
func failsClosed(t *testing.T, l *testenv.Lab, g *Client, faults []fault) {
	t.Helper()
	p := startPulse(t, l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway), 0)
	drops := func() (n uint64) {
		for _, d := range must(g.Drops(t.Context(), false)) {
			if d.Reason == "worker-full" || d.Reason == "worker-absent" {
				n += d.Packets
			}
		}
		return n
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			p.flows(t)
			before := drops()
			start := f.cause(t)
			end := time.Now()
			p.flows(t)
			back := time.Since(end)
			sent, arrived := p.between(start.Add(failsWithin), end.Add(-10*time.Millisecond))
			dropped := drops() - before
			t.Logf("%d sent while it lasted, %d of the closed flow arrived, %d of the open one; %d dropped; back after %s", sent, arrived[0], arrived[1], dropped, back)
			if sent < 100 {
				t.Fatalf("only %d packets were sent", sent)
			}
			if arrived[0] > f.rests {
				t.Errorf("%d of %d packets passed without a worker", arrived[0], sent)
			}
			if arrived[1] != sent {
				t.Errorf("%d of %d packets that may go on without a worker arrived", arrived[1], sent)
			}
			if dropped < uint64(sent-arrived[0]) {
				t.Errorf("%d packets were dropped for want of a worker, want at least %d", dropped, sent-arrived[0])
			}
		})
	}
}

// failingConfig has one worker, on a CPU that the sender does not use.
func failingConfig(t *testing.T) string {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.RequireCPUs(t, 2)
	return forced(labRouted) + "workers: {cpus: [1]}\n"
}

// A worker that gets no CPU, and a daemon that is stopped.
func TestLabWorkerStarves(t *testing.T) {
	config := failingConfig(t)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-ws"})
	g := startProcess(t, l.Must(t, testenv.Gateway), buildSoftdpu(t, thisVersion), write(t, config, failingPolicy))
	g.ready(t)
	failsClosed(t, l, g.Client, []fault{
		{"something urgent takes its CPU", func(t *testing.T) time.Time { return hog(t, 1, faultLasts) },
			// the kernel gives ordinary threads 50 ms of each second (the fair server of Linux 6.12), and XDP notices
			// 50 ms after it that the worker is silent again; two of its seconds may meet here
			200},
		{"the daemon is stopped", func(t *testing.T) time.Time {
			start := time.Now()
			for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
				if err := g.cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
				if s == syscall.SIGSTOP {
					time.Sleep(faultLasts)
				}
			}
			return start
		}, 0},
	})
}

// A worker that hangs, and one that dies again and again.
func TestLabWorkerFails(t *testing.T) {
	config := failingConfig(t)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-wf"})
	var hangs, dies atomic.Int64 // until when, in ns since start; 0: not
	start := time.Now()
	g := runWith(t, l, write(t, config, failingPolicy), Options{workerHook: func(int) {
		for time.Since(start) < time.Duration(hangs.Load()) {
			time.Sleep(time.Millisecond)
		}
		if time.Since(start) < time.Duration(dies.Load()) {
			panic("it was told to die")
		}
	}})
	during := func(until *atomic.Int64) func(*testing.T) time.Time {
		return func(*testing.T) time.Time {
			began := time.Now()
			until.Store(int64(time.Since(start) + faultLasts))
			time.Sleep(faultLasts)
			return began
		}
	}
	failsClosed(t, l, g.Client, []fault{{"it hangs", during(&hangs), 0}, {"it dies", during(&dies), 0}})
	if s := must(g.Workers(t.Context())); len(s.Workers) != 1 || s.Workers[0].Restarts == 0 || s.Workers[0].State == "restarting" {
		t.Errorf("workers say %+v", s.Workers)
	}
	if log := g.log.String(); !strings.Contains(log, "worker-restarted") || !strings.Contains(log, "it was told to die") {
		t.Errorf("the log does not say that a worker died, and of what:\n%s", log)
	}
}
