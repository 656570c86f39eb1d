package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
)

// Options of Run.
type Options struct {
	Log     *slog.Logger // nil: nothing is said
	Version string       // that status shows
	// Ready, if not nil, is called once: packets are judged, and the control socket answers.
	Ready func()
	// Reload, if not nil, asks with each value to read configuration and policy again.
	Reload <-chan os.Signal

	// Supervisor, if not nil, is told of start, life and end.
	Supervisor *Supervisor

	now        func() time.Time // nil: the wall clock
	workerHook func(worker int) // nil: none; called by each worker in each round
}

// retryInterval is how long a part that failed rests before it is started again.
const retryInterval = time.Second

// RunFile is Run with a configuration that is still to be read. Files are named by their whole paths,
// because whoever asks the daemon later stands elsewhere.
func RunFile(ctx context.Context, path string, o Options) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	c, err := LoadConfig(path)
	if err != nil {
		return refused("configuration", err)
	}
	err = Run(ctx, c, o)
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		err = fmt.Errorf("%w: run as root", err)
	}
	return err
}

// Run is the daemon: it puts the gateway into the network namespace of the calling thread and keeps it
// there until ctx is done; then it leaves what the configuration's on_stop says and returns nil. If the
// process ends otherwise, all goes on under the last policy, and the next Run takes over. Whatever is wrong
// with configuration, policy or the policy's tests is an error before anything is touched.
func Run(ctx context.Context, c *Config, o Options) (err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	// The thread stays in its namespace while that is asked; goroutines started below name no device.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	g, err := newRunning(c, o)
	if err != nil {
		return refused("policy", err)
	}
	defer func() { err = errors.Join(err, g.stop()) }()
	if err := g.start(); err != nil {
		return err
	}
	g.started = true
	warn(o.Log, g.idleSets())
	g.announce()
	if o.Ready != nil {
		o.Ready()
	}
	o.Supervisor.Ready(g.summary())
	defer o.Supervisor.Stopping() // before the stop, which was deferred first
	g.attend(ctx)
	o.Log.Info("stopping", "on_stop", g.config.OnStop)
	return nil
}

// newRunning makes a gateway ready to start, with what it begins with.
func newRunning(c *Config, o Options) (*running, error) {
	g := &running{config: c, options: o, history: openHistory(c, o.Log)}
	live, err := newLiveStore(stateDir(c, "sets")).load(g.now())
	if err != nil {
		return nil, err
	}
	first, err := begin(c, g.history, g.now(), o.Log)
	if err != nil {
		return nil, err
	}
	if first.rules, err = first.rules.withLive(live, first.rules.options, nil); err != nil {
		return nil, err
	}
	g.config, g.first, g.before, g.rules = first.config, first, first.before, newInForce(first.rules)
	warn(o.Log, g.config.Warnings)
	warn(o.Log, first.rules.Warnings)
	return g, nil
}

// refused says that nothing has happened, before errors of several lines.
func refused(what string, err error) error {
	var errs firewall.Errors
	if !errors.As(err, &errs) {
		return err
	}
	count := "an error"
	if len(errs) > 1 {
		count = fmt.Sprintf("%d errors", len(errs))
	}
	return fmt.Errorf("%s has %s, nothing was changed:\n%w", what, count, err)
}

func warn(log *slog.Logger, warnings firewall.Errors) {
	for _, w := range warnings {
		log.Warn(w.Error())
	}
}

// running is a gateway that has started, as far as it came.
type running struct {
	config  *Config
	options Options
	rules   *inForce
	before  dataplane.NumbersText // numbers of the run before that the first policy goes on from

	numbers  numbering
	plane    *dataplane.Plane
	ledger   *ledger
	events   *eventLog
	ageing   *ageing
	server   *server
	listener net.Listener // until the server has it
	loads    policyLoads
	sets     *liveSetter

	pipelines *pipelineDesk
	employing sync.Mutex // held while workers start

	telemetry       *server // nil without metrics
	metricsListener net.Listener

	started bool // as a whole
	grace   bool // TCP is picked up without its SYN

	inheritance atomic.Pointer[Inheritance]

	requests chan request  // to attend
	ending   chan struct{} // closed: attend has returned

	history  *history
	first    *beginning  // until it is in the history
	fallback *candidate  // what an unconfirmed change comes back to, if that is in memory
	alarm    *time.Timer // for when it does; nil: nothing waits
	stuck    bool        // it could not, which has been told

	cancel context.CancelFunc // of the goroutines
	wg     sync.WaitGroup
}

// start goes up in the order of what needs what: files and socket, which may be refused without harm;
// programs and policy; ports; then what follows the kernel and people.
func (g *running) start() error {
	c, log := g.config, g.options.Log
	rules := g.rules.Load()
	g.requests, g.ending = make(chan request), make(chan struct{})
	listener, err := listenControl(&c.Control, log)
	if err != nil {
		return err
	}
	g.listener = listener
	g.sets = newLiveSetter(stateDir(c, "sets"))
	if err := g.sets.open(rules.live); err != nil {
		return err
	}
	if g.metricsListener, err = listenMetrics(&c.Metrics); err != nil {
		return err
	}
	if g.events, err = openEvents(&c.Events, g.rules, log); err != nil {
		return err
	}
	if err := g.openPlane(); err != nil {
		return err
	}
	if err := g.attach(); err != nil {
		return err
	}
	g.unblock()
	g.loads.count(nil)
	ledger, err := newLedger(g.plane, len(rules.Compiled.Rules))
	if err != nil {
		return err
	}
	g.ledger, g.events.table = ledger, ledger.table
	g.ageing = &ageing{ledger: ledger, events: g.events, timeouts: c.Flows.Timeouts.Ticks(), log: log, checks: tallyChecks}
	if g.pipelines, err = newPipelineDesk(c, g.plane, g.events, g.employPipeline, log); err != nil {
		return err
	}
	if err := g.pipelines.resume(); err != nil {
		return err
	}
	routes, err := g.plane.WatchRoutes()
	if err != nil {
		return err
	}

	g.events.gateway("gateway-start", g.options.Version)
	epoch, _ := g.plane.Epoch()
	q := &change{by: byStart}
	if taken, _ := g.plane.TakenOver(); taken {
		q.by = byTakeOver
	}
	q.by = cmp.Or(g.first.by, q.by)
	g.noteStart(epoch, q)
	g.events.policyChange(rules, epoch, q)
	g.tell()

	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	g.wg.Go(func() { g.followRoutes(ctx, routes) })
	g.wg.Go(func() {
		g.again(ctx, "read events", func() error { return g.plane.Events(ctx, g.events.packet) })
	})
	g.wg.Go(func() {
		g.again(ctx, "hold fragments", func() error { return g.plane.HoldFragments(ctx) })
	})
	g.wg.Go(func() { g.ageing.run(ctx) })
	g.wg.Go(func() { g.pipelines.age(ctx) })
	g.wg.Go(func() { g.watchCrew(ctx) })
	r := &reporter{
		config: c, rules: g.rules, plane: g.plane, ledger: ledger, ageing: g.ageing, events: g.events, history: g.history,
		version: g.options.Version, started: time.Now(), inheritance: &g.inheritance, crew: g.plane.Workers, pipelines: g.pipelines,
	}
	if g.server, err = newServer(r, &policyDesk{g, newDiffer(c, g.rules, g.history)}, g.pipelines, g.askSet, log); err != nil {
		return err
	}
	g.wg.Go(func() {
		if err := g.server.serve(listener); err != nil {
			log.Error("the control socket no longer answers", "error", err)
		}
	})
	g.wg.Go(func() { g.options.Supervisor.feed(ctx, g.alive) })
	return g.startTelemetry(r)
}

// startTelemetry serves metrics and health, if the configuration says where.
func (g *running) startTelemetry(r *reporter) (err error) {
	if g.metricsListener == nil {
		return nil
	}
	if g.telemetry, err = newTelemetry(r, &g.loads, g.options.Log); err != nil {
		return err
	}
	g.wg.Go(func() {
		if err := g.telemetry.serve(g.metricsListener); err != nil {
			g.options.Log.Error("metrics are no longer served", "error", err)
		}
	})
	return nil
}

// followRoutes keeps a watcher running; packets go on without one, on routes that are up to 1 s old.
func (g *running) followRoutes(ctx context.Context, routes *dataplane.Routes) {
	g.again(ctx, "follow routes", func() (err error) {
		if routes == nil {
			if routes, err = g.plane.WatchRoutes(); err != nil {
				return err
			}
		}
		err = routes.Run(ctx)
		routes = nil
		return err
	})
}

// again calls fn until ctx is done, resting after each error.
func (g *running) again(ctx context.Context, what string, fn func() error) {
	for ctx.Err() == nil {
		err := fn()
		if err == nil {
			continue
		}
		g.options.Log.Error("cannot "+what+", trying again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// stop goes down in the reverse order, as far as start came up, and goes on after an error.
func (g *running) stop() error {
	var errs []error
	g.history.work.wait()
	if g.server != nil {
		errs = append(errs, g.server.stop())
	} else if g.listener != nil {
		errs = append(errs, g.listener.Close())
	}
	if g.telemetry != nil {
		errs = append(errs, g.telemetry.stop())
	} else if g.metricsListener != nil {
		errs = append(errs, g.metricsListener.Close())
	}
	if g.cancel != nil {
		g.cancel()
		g.wg.Wait()
		if g.config.OnStop == OnStopOpen { // else flows may go on
			errs = append(errs, g.ageing.stop())
		}
		g.events.gateway("gateway-stop", g.options.Version)
	}
	if g.events != nil { // before the plane: its account lies there
		errs = append(errs, g.events.close())
	}
	if g.plane != nil {
		errs = append(errs, g.leave())
	}
	if g.sets != nil {
		errs = append(errs, g.sets.store.close())
	}
	return errors.Join(errs...)
}

// announce says once how the gateway runs and what keeps it from running better.
func (g *running) announce() {
	log := g.options.Log
	for _, p := range g.plane.Ports() {
		if p.Missing != "" {
			log.Warn("port is missing", "name", p.Name, "device", p.Device, "why", p.Missing)
			continue
		}
		args := []any{"name", p.Name, "device", p.Device, "mode", p.Running.String()}
		if p.WhyNotNative != "" {
			args = append(args, "why_not_native", p.WhyNotNative)
		}
		if p.Peer != "" {
			args = append(args, "peer", p.Peer)
		}
		args = append(args, "zones", g.portZones(&p), "mtu", p.MTU, "guard", p.Guard)
		if len(p.Notes) > 0 {
			args = append(args, "notes", strings.Join(p.Notes, "; "))
		}
		log.Info("port", args...)
	}
	for _, note := range g.plane.Notes() {
		log.Warn(note)
	}
	c := g.rules.Load().Compiled
	log.Info("softdpu runs", "version", g.options.Version, "policy", g.config.Policy,
		"rules", len(c.Order), "nat", len(c.NATOrder), "tests_passed", g.rules.Load().passed(),
		"flows_max", g.plane.Sizes().FlowsMax, "events", g.config.Events.File, "control", g.config.Control.Socket)
}

// portZones lists a port's zones, those of VLANs with their ids.
func (g *running) portZones(p *dataplane.Port) string {
	var zones []string
	if p.Zone != 0 {
		zones = append(zones, g.rules.zoneName(p.Zone))
	}
	for _, z := range g.rules.Load().Compiled.Ports {
		if z.Port == p.Name && z.VLAN != 0 {
			zones = append(zones, fmt.Sprintf("%s (VLAN %d)", g.rules.zoneName(z.Zone), z.VLAN))
		}
	}
	return strings.Join(zones, ", ")
}
