package gateway

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
)

// Pipeline is the pipeline in front of the policy, as it runs.
type Pipeline struct {
	Runs      pipe.Report `json:"pipeline"`
	AppliedAt time.Time   `json:"applied_at"`
	AppliedBy string      `json:"applied_by"`
	Comment   string      `json:"comment"`
}

// PipelineApplied is what became of a pipeline that was applied.
type PipelineApplied struct {
	Name     string           `json:"name"`
	Pipes    int              `json:"pipes"`
	Entries  int              `json:"entries"`
	Replaced string           `json:"replaced"` // name of the pipeline whose place it took, "" if there was none
	Warnings []PipelineNotice `json:"warnings"`
}

// PipelineNotice is something about a pipeline that its author may not expect.
type PipelineNotice struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// pipelineEntries is how many entries of a pipe a report has at most, unless it is asked for more.
const pipelineEntries = 100

// A pipelineDesk keeps the pipeline in front of the policy: in the plane, and its text for the next start.
type pipelineDesk struct {
	plane  *dataplane.Plane
	log    *slog.Logger
	events *eventLog
	employ func(needs []string) error // starts workers, if they do not run
	needs  atomic.Pointer[[]string]   // what of the pipeline asks for workers, for people

	reporter *reporter // of the server, which tells what the policy does

	tracing sync.Mutex    // held by who follows packets
	puts    atomic.Uint64 // programs that were put in force
	mu      sync.Mutex
	traced  bool // it runs in the form that tells of packets
	kept    keptPipeline
	ageing  pipelineAgeing
	applied *appliedPipeline  // nil: none
	named   map[string]uint32 // the program's own: ids of the ports that it names, by name
	seeds   [2]uint64         // of its tables, and of what spreads packets: secret, of the process
}

// appliedPipeline is the pipeline that was applied last, with the entries that it has now.
type appliedPipeline struct {
	parsed  *pipe.Pipeline
	at      time.Time
	by      string
	comment string
}

func newPipelineDesk(c *Config, plane *dataplane.Plane, events *eventLog, employ func([]string) error, log *slog.Logger) (*pipelineDesk, error) {
	d := &pipelineDesk{plane: plane, events: events, log: log, employ: employ, kept: keptPipeline{dir: stateDir(c, "pipeline")}}
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, fmt.Errorf("draw the seeds of pipes: %w", err)
	}
	d.seeds = [2]uint64{binary.NativeEndian.Uint64(secret[:8]), binary.NativeEndian.Uint64(secret[8:])}
	return d, nil
}

// resume puts the pipeline that was applied before the start in force again, with the entries that it had in the end, or takes
// away what an earlier run has left of one that is not kept.
func (d *pipelineDesk) resume() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	applied, err := d.kept.load()
	if err != nil {
		return err
	}
	if applied == nil {
		return d.plane.RemovePipeline()
	}
	if err := d.put(applied.parsed, false); err != nil {
		return fmt.Errorf("put the pipeline that was applied in force again: %w: move %s away to start without", err, d.kept.path(pipelineFile))
	}
	d.applied = applied
	d.log.Info("pipeline in force again", "pipeline", applied.parsed.Name, "pipes", len(applied.parsed.Pipes))
	return nil
}

// apply puts a pipeline in front of the policy, keeps it, and tells what became of it. The error is a mistake.Errors if the text is
// at fault; then nothing has changed.
func (d *pipelineDesk) apply(name string, text []byte, by, comment string) (*PipelineApplied, error) {
	parsed, warnings, err := pipefile.Parse(name, text)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.put(parsed, d.traced); err != nil {
		return nil, err
	}
	done := &PipelineApplied{Name: parsed.Name, Pipes: len(parsed.Pipes), Warnings: []PipelineNotice{}}
	for _, p := range parsed.Pipes {
		done.Entries += len(p.Entries)
	}
	for _, w := range warnings {
		done.Warnings = append(done.Warnings, PipelineNotice{w.File, w.Line, w.Msg, w.Hint})
	}
	if d.applied != nil {
		done.Replaced = d.applied.parsed.Name
	}
	d.applied = &appliedPipeline{parsed, time.Now(), by, comment}
	if err := d.kept.replace(d.applied, text); err != nil {
		return nil, fmt.Errorf("the pipeline is in force, and will not come back after a restart: %w", err)
	}
	d.log.Info("pipeline applied", "pipeline", parsed.Name, "pipes", done.Pipes, "entries", done.Entries, "replaced", done.Replaced, "by", by, "comment", comment)
	return done, nil
}

// put compiles a pipeline for the ports as they are and has the plane run it. d.mu is held.
func (d *pipelineDesk) put(parsed *pipe.Pipeline, trace bool) error {
	prog, err := d.compile(parsed, trace)
	if err != nil {
		return err
	}
	needs := workersFor(parsed)
	if len(needs) > 0 { // they are there before packets are
		if err := d.employ(needs); err != nil {
			return err
		}
	}
	if err := d.plane.ApplyPipeline(prog); err != nil {
		return err
	}
	d.puts.Add(1)
	d.named, d.traced = prog.Pipeline.Ports, trace
	d.needs.Store(&needs)
	return nil
}

// workersFor says what of a pipeline asks for workers, for people; nothing if nothing does.
func workersFor(p *pipe.Pipeline) (needs []string) {
	for _, stage := range p.Stages() {
		needs = append(needs, fmt.Sprintf("pipeline %s forwards to stage %s", p.Name, stage))
	}
	return needs
}

// neededBy is what of the pipeline in force asks for workers.
func (d *pipelineDesk) neededBy() []string {
	if d == nil || d.needs.Load() == nil {
		return nil
	}
	return *d.needs.Load()
}

// ports are the ids of the gateway's ports, by name.
func (d *pipelineDesk) ports() map[string]uint32 {
	ids := make(map[string]uint32)
	for _, port := range d.plane.Ports() {
		ids[port.Name] = uint32(port.ID)
	}
	return ids
}

func (d *pipelineDesk) compile(parsed *pipe.Pipeline, trace bool) (*pipe.Program, error) {
	resolved, err := parsed.Resolve(d.ports())
	if err != nil {
		return nil, err
	}
	return pipe.Compile(resolved, pipe.Options{Trace: trace, Seed: d.seeds[0], SpreadSeed: d.seeds[1]})
}

// remove takes the pipeline away, for good. It reports the name of the one that was there, "" if there was none.
func (d *pipelineDesk) remove(by string) (name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.plane.RemovePipeline(); err != nil {
		return "", err
	}
	d.needs.Store(nil)
	if d.applied != nil {
		name = d.applied.parsed.Name
		d.log.Info("pipeline removed", "pipeline", name, "by", by)
	}
	d.applied = nil
	if err := d.kept.remove(); err != nil {
		return name, fmt.Errorf("the pipeline is out of force, and would come back after a restart: %w", err)
	}
	return name, nil
}

// allows finds out whether the pipeline could go on with the ports of a configuration. The error is a firewall.Errors.
func (d *pipelineDesk) allows(c *Config) error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		return nil
	}
	var errs firewall.Errors
	for _, name := range d.applied.parsed.PortNames() {
		if !slices.ContainsFunc(c.Ports, func(p Port) bool { return p.Name == name }) {
			errs = append(errs, firewall.Pos{File: c.File}.Errorf("there is no port %s any more, and pipeline %s names it", name, d.applied.parsed.Name).
				WithHint("apply a pipeline without it first, or remove it: `softdpu pipeline remove`"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// renumber has the pipeline go by the ports as they are now, if names have come to other ones.
func (d *pipelineDesk) renumber() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		return nil
	}
	now := make(map[string]uint32)
	for _, port := range d.plane.Ports() {
		if _, named := d.named[port.Name]; named {
			now[port.Name] = uint32(port.ID)
		}
	}
	if maps.Equal(now, d.named) {
		return nil
	}
	return d.put(d.applied.parsed, d.traced)
}

// leave takes the pipeline out of force before the gateway stops, so that nothing passes beside what it leaves.
func (d *pipelineDesk) leave() error {
	if d == nil {
		return nil
	}
	return d.plane.RemovePipeline()
}

// report describes what is in force; nil: nothing.
func (d *pipelineDesk) report(most int) (*Pipeline, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		return nil, nil
	}
	out := &Pipeline{AppliedAt: d.applied.at.UTC(), AppliedBy: d.applied.by, Comment: d.applied.comment}
	err := d.plane.Pipeline(func(prog *pipe.Program) error {
		if prog == nil {
			return errors.New("the pipeline is not in force")
		}
		out.Runs = *prog.Report(most, dataplane.NowTick())
		return nil
	})
	return out, err
}
