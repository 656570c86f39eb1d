package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// What `bench xsk` measures.
const (
	RxDrop = "rx-drop" // receive and throw away
	TxPush = "tx-push" // send
	L2Fwd  = "l2fwd"   // receive, change the MACs over, and send back
)

// XSKBenches are the names of XSKOptions.Bench.
var XSKBenches = []string{RxDrop, TxPush, L2Fwd}

// XSKOptions of one measurement of `bench xsk`. NewXSKOptions has the defaults.
type XSKOptions struct {
	Bench       string
	Label       string // of a sweep: what the name of the result has behind a slash
	Interface   string // "": a veth pair that the bench makes, with a generator at its far end
	Force       bool   // even the default route's device
	Mode        xsk.Mode
	Batch       int           // descriptors a round handles at most
	BusyPoll    time.Duration // SO_BUSY_POLL; 0 = no busy polling
	FrameSize   int           // bytes
	RingSize    int           // rx, tx and completion rings; the fill ring has twice as many
	UMEMFrames  int           // of each queue
	HugePages   bool
	CPUs        []int // of the workers, one a queue; nil = chosen
	Queues      int   // one worker each
	QueuesAsked bool  // set the interface to so many, instead of taking its first ones
	Rate        float64
	Flows       int
	Pcap        string        // replayed in place of flows
	Duration    time.Duration // of ours, and of the peer's, over all parts
	Repeat      int           // parts, ours and the peer's in turn
	StateDir    string        // where settings of devices are noted; "" = /run/softdpu, or the directory for temporary files

	Progress func(string) // what a person should know
	Live     func(string) // one line that stands for the one before; "" clears it

	prefix  string          // of the namespaces, in tests
	context context.Context // of the run
}

// NewXSKOptions returns the defaults: those of xdpsock, where it has the option.
func NewXSKOptions(bench string) XSKOptions {
	return XSKOptions{Bench: bench, Batch: 64, FrameSize: 4096, RingSize: 2048, UMEMFrames: 4096, Queues: 1, Flows: 1,
		Duration: 10 * time.Second, Repeat: 5}
}

func (o *XSKOptions) stateDir() string {
	if o.StateDir != "" {
		return o.StateDir
	}
	const dir = "/run/softdpu"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return os.TempDir()
	}
	return dir
}

// generates reports whether what is measured is fed, or feeds, by the bench's own traffic.
func (o *XSKOptions) generates() bool { return o.Interface == "" || o.Bench == TxPush }

func (o *XSKOptions) check() error {
	switch {
	case o.Batch < 1 || o.Batch > o.RingSize:
		return fmt.Errorf("use batches of %d: there must be 1 to %d, the size of the rings", o.Batch, o.RingSize)
	case o.RingSize < 1 || o.RingSize > 16384 || o.RingSize&(o.RingSize-1) != 0:
		return fmt.Errorf("use rings of %d: it must be a power of two up to 16384, since the fill ring has twice as many", o.RingSize)
	case o.UMEMFrames < 2*o.Batch:
		return fmt.Errorf("use %d frames: batches of %d need at least %d", o.UMEMFrames, o.Batch, 2*o.Batch)
	case o.Queues < 1 || o.Queues > 64:
		return fmt.Errorf("use %d queues: there must be 1 to 64", o.Queues)
	case o.Flows < 1 || o.Flows > xskMaxFlows:
		return fmt.Errorf("send %d flows: there must be 1 to %d", o.Flows, xskMaxFlows)
	case o.Rate < 0:
		return fmt.Errorf("send %g packets a second: it must be above 0", o.Rate)
	case o.Pcap != "" && o.Flows != 1:
		return errors.New("send flows and a capture: the capture has flows of its own; leave one out")
	case !o.generates() && (o.Pcap != "" || o.Rate > 0 || o.Flows != 1):
		return fmt.Errorf("send to %s: %s takes there what others send; a rate, flows and a capture are for the veth pair that is made without an interface, or for tx-push", o.Interface, o.Bench)
	case o.Duration <= 0 || o.Repeat < 1:
		return errors.New("measure nothing: duration and repeat must be above 0")
	case o.Duration/time.Duration(o.Repeat) < 10*time.Millisecond:
		return fmt.Errorf("measure %d parts in %v: a part must have 10 ms at least", o.Repeat, o.Duration)
	}
	return nil
}

// XSK measures AF_XDP sockets, and xdpsock in turn if it is there: one result for each of the points, which
// differ in one option. If the context ends, it reports what has been measured until then. The method is in
// docs/BENCHMARKS.md.
func XSK(ctx context.Context, points []XSKOptions) (*Report, error) {
	env := newEnvironment(0)
	env.Engine, env.Peers, env.PeerConfig = "xsk", map[string]string{}, map[string]string{}
	report := &Report{Bench: "xsk"}
	for i := range points {
		if err := points[i].check(); err != nil {
			return nil, err
		}
	}
	if len(points) > 0 {
		if err := recoverDevices(points[0].stateDir(), points[0].Progress); err != nil {
			return nil, err
		}
	}
	for i := range points {
		o := &points[i]
		result, err := measureXSK(ctx, o, &env)
		if result != nil {
			report.Results = append(report.Results, *result)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", resultName(o), err)
		}
		if ctx.Err() != nil {
			env.Interrupted = true
			break
		}
	}
	if len(report.Results) == 0 {
		return nil, errors.New("interrupted before anything was measured")
	}
	report.Environment = env
	return report, nil
}

func resultName(o *XSKOptions) string {
	if o.Label == "" {
		return o.Bench
	}
	return o.Bench + "/" + o.Label
}

// measureXSK measures one point. After the context's end it returns what there is, nil if there is nothing.
func measureXSK(ctx context.Context, o *XSKOptions, env *Environment) (result *Result, err error) {
	// The peer ends with the thread that starts it, if this process is killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o.context = ctx
	defer o.Live("")
	r, err := newXSKRig(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	total := &xskTotal{}
	var peer *xdpsock
	var ours, paired, theirs []float64
	part := o.Duration / time.Duration(o.Repeat)
	for round := range o.Repeat {
		if ctx.Err() != nil {
			break
		}
		o.Live(fmt.Sprintf("%s: part %d of %d", resultName(o), round+1, o.Repeat))
		rate, err := r.measure(ctx, part, total, func(now string) {
			o.Live(fmt.Sprintf("%s: part %d of %d: %s", resultName(o), round+1, o.Repeat, now))
		})
		if err != nil {
			return nil, err
		}
		if rate > 0 {
			ours = append(ours, rate)
		}
		if peer == nil {
			peer = findXDPSock(r, total.mode)
		}
		if peer.why != nil || ctx.Err() != nil || rate == 0 {
			continue
		}
		o.Live(fmt.Sprintf("%s: part %d of %d: xdpsock", resultName(o), round+1, o.Repeat))
		rate, err = peer.measure(ctx, part)
		if err != nil {
			return nil, fmt.Errorf("xdpsock: %w", err)
		}
		if rate > 0 {
			paired, theirs = append(paired, ours[len(ours)-1]), append(theirs, rate)
		}
	}
	if len(ours) == 0 {
		if ctx.Err() != nil {
			return nil, nil
		}
		if o.generates() {
			return nil, fmt.Errorf("no packet came through in %v", o.Duration)
		}
		return nil, fmt.Errorf("no packet arrived on %s in %v: others must send to it", r.device, o.Duration)
	}
	s := summarize(resultName(o), "packets/s", ours)
	if len(theirs) > 0 {
		s = s.versus("xdpsock", paired, theirs)
	}
	s.XSK = total.detail(r, s.Median)
	peer.tell(env, o, s.XSK)
	r.tell(env, total, part)
	return &s, nil
}

// tell adds to the environment what this point has of its own.
func (r *xskRig) tell(env *Environment, total *xskTotal, part time.Duration) {
	o := r.options
	env.XDPMode, env.Driver, env.Pinning = total.mode.String(), total.driver, r.pinning()
	env.Attempts = total.attempts
	load := "what others send"
	if o.generates() {
		switch {
		case o.Pcap != "":
			load = fmt.Sprintf("the %d packets of %s over and over", len(r.traffic.pcap), o.Pcap)
		default:
			load = fmt.Sprintf("%d-byte UDP frames of flows that differ in their source address", xskFrame)
		}
		if o.Rate > 0 {
			load += fmt.Sprintf(", %g a second", o.Rate)
		} else {
			load += ", as fast as can be"
		}
	}
	where := "packets counted by the workers"
	if o.Interface == "" && o.Bench != RxDrop {
		where = "packets counted at the veth pair's far end"
	}
	env.Method = strings.Join([]string{load, where, fmt.Sprintf("ours and the peer in turn, %d parts of %v each", o.Repeat, part)}, "; ")
}
