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
	sent    []span // of each packet: a busy machine may keep the sender from its CPU in between
	arrived [2]map[uint32]bool
	end     func()
}

// A span of time.
type span struct{ from, to time.Time }

// lasted is the span from some time until now.
func lasted(from time.Time) span { return span{from, time.Now()} }

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
		_ = urgent(60) // than hog, which sends all others to this CPU
		pause := unix.NsecToTimespec(int64(time.Millisecond))
		for n := uint32(0); ctx.Err() == nil; n++ {
			begun := time.Now()
			for _, f := range frames {
				binary.BigEndian.PutUint32(f[14+20+8+6:], n)
				if err := sender.Send(f); err != nil {
					t.Error(err)
					return
				}
			}
			p.mu.Lock()
			p.sent = append(p.sent, lasted(begun))
			p.mu.Unlock()
			_ = unix.Nanosleep(&pause, nil) // and not by the runtime's timers, which another thread looks after
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

// between counts what was sent in a span, and how much of it arrived, by flow.
func (p *pulse) between(s span) (sent int, arrived [2]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, at := range p.sent {
		if at.from.Before(s.from) || at.to.After(s.to) {
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
		if sent, arrived := p.between(span{to.Add(-30 * time.Millisecond), to}); sent < 10 || arrived != [2]int{sent, sent} {
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

// urgent puts the calling thread before all ordinary ones, and before those that are less urgent.
func urgent(priority uint32) error {
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: priority}, 0)
}

// hog takes a CPU from everything that is not more urgent, for a time. It returns when it had the CPU.
func hog(t *testing.T, cpu int, d time.Duration) (had span) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		pin(t, cpu)
		if err := urgent(50); err != nil {
			t.Errorf("become urgent: %v", err)
			return
		}
		start := time.Now()
		for had = lasted(start); had.to.Sub(start) < d; had = lasted(start) {
		}
	}()
	<-done
	return had
}

// A fault is what keeps a worker from its work for faultLasts.
type fault struct {
	name  string
	cause func(t *testing.T) span // returns when it is over, and when it was there
	rests int                     // packets that come while the worker has its CPU all the same
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
			var sent int
			var arrived [2]int
			var dropped uint64
			testenv.Eventually(t, 20*time.Second, func() error { // once, but where the machine lets nobody send
				p.flows(t)
				before := drops()
				was := f.cause(t)
				p.flows(t)
				back := time.Since(was.to)
				window := span{was.from.Add(failsWithin), was.to.Add(-10 * time.Millisecond)}
				for end := time.Now().Add(testenv.Patience(time.Second)); ; time.Sleep(5 * time.Millisecond) {
					if sent, arrived = p.between(window); arrived[1] == sent || time.Now().After(end) {
						break // what an idle CPU would have brought before
					}
				}
				dropped = drops() - before
				t.Logf("%d sent while it lasted, %d of the closed flow arrived, %d of the open one; %d dropped; back after %s", sent, arrived[0], arrived[1], dropped, back)
				if sent < 100 && !t.Failed() {
					return fmt.Errorf("only %d packets were sent", sent)
				}
				if f.rests > 0 && arrived[0] > f.rests { // on a busy machine the kernel may owe others more of the CPU
					return fmt.Errorf("the worker had its CPU: %d of %d packets passed", arrived[0], sent)
				}
				return nil
			})
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
		{"something urgent takes its CPU", func(t *testing.T) span { return hog(t, 1, faultLasts) },
			// the kernel gives ordinary threads 50 ms of each second (the fair server of Linux 6.12), and XDP notices
			// 50 ms after it that the worker is silent again; two of its seconds may meet here
			200},
		{"the daemon is stopped", func(t *testing.T) span {
			signal := func(s syscall.Signal) {
				if err := g.cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			signal(syscall.SIGSTOP)
			start := time.Now()
			time.Sleep(faultLasts)
			was := lasted(start)
			signal(syscall.SIGCONT)
			return was
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
	during := func(until *atomic.Int64) func(*testing.T) span {
		return func(*testing.T) span {
			began := time.Now()
			end := began.Add(faultLasts)
			until.Store(int64(end.Sub(start)))
			time.Sleep(faultLasts)
			return span{began, end}
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
