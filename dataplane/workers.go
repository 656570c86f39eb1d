package dataplane

import (
	"errors"
	"fmt"
	"sync"

	"github.com/softdpu/softdpu/dataplane/worker"
)

// WorkerOptions of StartWorkers. Tables and In are the plane's and not looked at.
type WorkerOptions = worker.Options

// crew is the plane's workers, and what keeps their ports in step with its own.
type crew struct {
	*worker.Crew
	options WorkerOptions

	mu      sync.Mutex    // of closing changed
	changed chan struct{} // holds one that ports differ from what the workers have
	stopped chan struct{}
}

// StartWorkers starts workers on all ports, which must be attached. From then on they follow the ports,
// through Change and as devices come and go, and have the stages of the generation in force. They end with
// StopWorkers, Close and Leave. That a port cannot have sockets is no error unless it refuses the mode that the
// options ask for by name: it is told by the options' Log, and tried again.
func (p *Plane) StartWorkers(o WorkerOptions) error {
	t := p.WorkerTables()
	o.Tables = worker.Tables{Queues: t.Queues, Cells: t.Cells, Groups: int(t.Groups),
		Flows4: t.Flows4, Flows6: t.Flows6, Sockets: t.Sockets}
	o.In = p.ns.do
	p.mu.Lock()
	ports, placed := p.workerPorts(), p.placed && !p.options.Simulate
	p.mu.Unlock()
	if !placed {
		return errors.New("start workers: no port is attached")
	}
	if p.crew.Load() != nil {
		return errors.New("start workers: they run already")
	}
	made, err := worker.Start(o, ports)
	if err != nil {
		return err
	}
	c := &crew{Crew: made, options: o, changed: make(chan struct{}, 1), stopped: make(chan struct{})}
	go c.follow()
	p.publishing.Lock()
	defer p.publishing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crew.Store(c)
	p.portsChanged() // meanwhile, perhaps
	p.setStages(p.generation())
	return nil
}

// StopWorkers ends the workers, if there are some: what they have is sent first, and packets that need one are
// dropped from then on, or go on without if their rule says so.
func (p *Plane) StopWorkers() error {
	c := p.crew.Swap(nil)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	close(c.changed)
	c.mu.Unlock()
	err := c.Close()
	<-c.stopped
	return err
}

// Workers returns how the workers run; false if there are none.
func (p *Plane) Workers() (worker.Status, bool) {
	c := p.crew.Load()
	if c == nil {
		return worker.Status{}, false
	}
	return c.Status(), true
}

// workerPorts are the ports that workers have sockets on. p.mu is held.
func (p *Plane) workerPorts() (ports []worker.Port) {
	for _, port := range p.ports {
		if port.present() {
			ports = append(ports, worker.Port{Name: port.Name, ID: port.ID, Device: port.Device, Index: int(port.Index)})
		}
	}
	return ports
}

// portsChanged has the workers follow the ports. Nothing is sent by a port that is no more when it returns;
// sockets are closed and opened later, since that may take a while. p.mu is held.
func (p *Plane) portsChanged() {
	c := p.crew.Load()
	if c == nil {
		return
	}
	c.Hold(p.workerPorts())
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.crew.Load() != c {
		return // it is being stopped
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// follow gives the workers the ports as they change.
func (c *crew) follow() {
	defer close(c.stopped)
	for range c.changed {
		if err := c.Follow(); err != nil && c.options.Log != nil {
			c.options.Log(fmt.Sprintf("workers do not follow all ports: %v", err))
		}
	}
}

// giveWorks gives the workers the stages of a generation.
func (p *Plane) giveWorks(g *Generation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setStages(g)
}

// setStages is giveWorks where p.mu is held.
func (p *Plane) setStages(g *Generation) {
	c := p.crew.Load()
	if c == nil || g == nil {
		return
	}
	works := make(map[uint32]worker.Work)
	for rule, work := range g.Works {
		w := worker.Work{MirrorPackets: work.MirrorPackets, Bypass: work.Bypass}
		for _, port := range p.ports {
			if work.Mirror != "" && port.Name == work.Mirror {
				w.MirrorPort = port.ID
			}
		}
		works[rule] = w
	}
	c.SetWorks(works)
}

// generation returns what this run has published; nil if it has not.
func (p *Plane) generation() *Generation {
	if g := p.running.Load(); g != nil {
		return g.generation
	}
	return nil
}
