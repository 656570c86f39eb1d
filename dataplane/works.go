package dataplane

import (
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

// RuleWork is what a rule asks of workers, and of SYNs.
type RuleWork struct {
	Stages uint8 // bits bpf.StageForward and so on, of every flow that the rule allows
	// Bypass lets packets go on without the stages while no worker can take them, instead of dropping them.
	Bypass bool
	// Mirror is the name of the monitor port that gets copies, and MirrorPackets how many packets of a flow
	// are copied, 0 = all. The plane keeps them for the workers.
	Mirror        string
	MirrorPackets uint32
	// MSS is the most that SYNs over IPv4 may ask for, 20 less over IPv6; 0 = whatever they do. It needs no workers.
	MSS uint16
}

// WorkerTables is what XDP and the workers tell each other by: memory that XDP writes too, so fields are
// to be accessed atomically, and the map that sockets are put into. Valid until Close.
type WorkerTables struct {
	Cells   []bpf.XDPCells       // of both families, IPv4's groups first
	Queues  []bpf.XDPWorkerQueue // by bpf.QueueIndex
	Sockets *ebpf.Map            // XSKMAP, by bpf.QueueIndex
	Groups  uint32               // of each family
	Flows4  []bpf.XDPFlow4Group
	Flows6  []bpf.XDPFlow6Group
}

// WorkerTables returns the tables of the workers.
func (p *Plane) WorkerTables() WorkerTables {
	return WorkerTables{
		Cells: p.mem.cells, Queues: p.mem.queues, Sockets: p.maps[bpf.XDPMapSockets], Groups: p.sizes.Groups,
		Flows4: p.mem.flows4, Flows6: p.mem.flows6,
	}
}

// HaveWorkers reports whether flows can have stages. It is so from the first generation on that asked for it.
func (p *Plane) HaveWorkers() bool {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	return p.workers
}

// setWorks prepares a spec for a generation's stages.
func (p *Plane) setWorks(spec *ebpf.CollectionSpec, g *Generation) error {
	for name, value := range map[string]uint8{
		bpf.XDPVarHaveWorkers: boolByte(p.workers || g.Workers), bpf.XDPVarForceStages: g.ForceStages,
		bpf.XDPVarHaveMss: boolByte(g.ClampMSS),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set constant %s: %w", name, err)
		}
	}
	works := spec.Maps[bpf.XDPMapRuleWorks]
	works.MaxEntries, works.Contents = uint32(g.Rules+1), nil
	for rule, work := range g.Works {
		if int64(rule) > int64(g.Rules) {
			return fmt.Errorf("rule id %d asks for something of workers or SYNs, and ids go up to %d", rule, g.Rules)
		}
		works.Contents = append(works.Contents, ebpf.MapKV{
			Key: rule, Value: bpf.XDPRuleWork{Stages: work.Stages, Bypass: boolByte(work.Bypass), Mss: work.MSS},
		})
	}
	return nil
}

// forgetWorkers takes the workers of the run before off their queues: they ended with it, and so did what
// they had taken. If it had some, its flows may have stages, and XDP has to take these off.
func (p *Plane) forgetWorkers() {
	for i := range p.mem.queues {
		q := &p.mem.queues[i]
		atomic.StoreUint32(&q.Size, 0)
		p.workers = p.workers || q.Worker != 0
	}
}
