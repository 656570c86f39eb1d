package gateway

import (
	"sync"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// Short names of flow states (abi.h: enum flow_state).
type flowState = bpf.XDPFlowState

const (
	flowSynSent     = bpf.XDPFlowStateFLOW_SYN_SENT
	flowSynReceived = bpf.XDPFlowStateFLOW_SYN_RECEIVED
	flowNew         = bpf.XDPFlowStateFLOW_NEW
	flowEstablished = bpf.XDPFlowStateFLOW_ESTABLISHED
	flowFinWait     = bpf.XDPFlowStateFLOW_FIN_WAIT
	flowTimeWait    = bpf.XDPFlowStateFLOW_TIME_WAIT
	flowClosed      = bpf.XDPFlowStateFLOW_CLOSED
	flowReplied     = bpf.XDPFlowStateFLOW_REPLIED
	flowMapping     = bpf.XDPFlowStateFLOW_MAPPING // no connection: docs/PACKET-PATH.md, section 15.12
)

// flowStates are those of what the table holds as flows, in the order of their numbers.
var flowStates = []flowState{
	flowSynSent, flowSynReceived, flowNew, flowEstablished, flowFinWait, flowTimeWait, flowClosed, flowReplied, flowMapping,
}

// A ledger knows what every rule counted. The count of a rule is spread over three places: what XDP
// credited to it when a flow's slot or rule changed, what the daemon credits when ageing frees a flow,
// and the flows that live. XDP's credits may be debits, so all sums are modulo 2^64 until they are
// added up. The lock keeps a flow from being freed between two of the places.
type ledger struct {
	plane *dataplane.Plane
	table *flowtable.Table

	mu    sync.Mutex
	ended []dataplane.Credit // by rule id, of flows that the daemon freed; they outlive the process, as flows do
	rules int                // ids that policies have had
}

// ofNoRule is where flows are counted whatever their rule: it may be forgotten before they are.
const ofNoRule = firewall.RuleNone

type ruleCount struct{ packets, bytes, flows, judged, unlogged uint64 }

// add takes what a flow counted, opener's direction first.
func (c *ruleCount) add(packets, bytes [2]uint64) {
	c.packets += packets[0] + packets[1]
	c.bytes += bytes[0] + bytes[1]
}

// addReplies adds what the other end sent, which counts twice: on the flow's rule and on the built-in one.
func (c *ruleCount) addReplies(packets, bytes [2]uint64) {
	c.packets += packets[1]
	c.bytes += bytes[1]
}

func newLedger(plane *dataplane.Plane, rules int) (*ledger, error) {
	table, err := plane.Table()
	if err != nil {
		return nil, err
	}
	return &ledger{plane: plane, table: table, ended: plane.Credits(), rules: rules}, nil
}

// useNATPorts has the ports of translated flows that end given back to the generation in force, until done is
// called. l.mu is held.
func (l *ledger) useNATPorts() (done func()) {
	ports, unlock := l.plane.NATPorts()
	l.table.SetNATPorts(ports.Layout, ports.Bitmaps)
	return func() {
		l.table.SetNATPorts(0, nil)
		unlock()
	}
}

// credit takes the counts of a flow that was freed. l.mu is held.
func (l *ledger) credit(f *flowtable.Flow) {
	if int(f.Rule) < l.rules {
		c := &l.ended[f.Rule]
		c.Packets += f.Packets[0] + f.Packets[1]
		c.Bytes += f.Bytes[0] + f.Bytes[1]
	}
	c := &l.ended[firewall.RuleReplies]
	c.Packets += f.Packets[1]
	c.Bytes += f.Bytes[1]
}

// freed returns how many flows ageing has freed, and how many somebody's asking.
func (l *ledger) freed() (aged, killed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended[ofNoRule].Aged, l.ended[ofNoRule].Killed
}

// left counts a flow end that the event limit left out. l.mu is held.
func (l *ledger) left(rule uint32) {
	if int(rule) < l.rules {
		l.ended[rule].Unlogged++
	}
}

// totals returns what every rule counted so far, and the tick at which each decided last (0: never).
// On the way it shows visit, if that is not nil, every flow.
func (l *ledger) totals(visit func(*flowtable.Sum)) (sums []ruleCount, last []uint32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kernel := make([]bpf.XDPRuleCounter, l.rules)
	if err := l.plane.Rules(kernel); err != nil {
		return nil, nil, err
	}
	sums, last = make([]ruleCount, len(kernel)), make([]uint32, len(kernel))
	for i, k := range kernel {
		e := l.ended[i]
		sums[i] = ruleCount{
			packets: k.Packets + e.Packets, bytes: k.Bytes + e.Bytes,
			judged: k.Judged, unlogged: uint64(k.Unlogged) + e.Unlogged,
		}
		last[i] = k.Last
	}
	err = l.sums(func(f *flowtable.Sum) {
		if int(f.Rule) < len(sums) {
			s := &sums[f.Rule]
			s.add(f.Packets, f.Bytes)
			if f.State != flowMapping {
				s.flows++
			}
		}
		sums[firewall.RuleReplies].addReplies(f.Packets, f.Bytes)
		if visit != nil {
			visit(f)
		}
	})
	// A flow that XDP moves to another rule meanwhile may have been debited and not yet counted.
	for i := range sums {
		if int64(sums[i].packets) < 0 || int64(sums[i].bytes) < 0 {
			sums[i].packets, sums[i].bytes = 0, 0
		}
	}
	return sums, last, err
}

// each calls fn for every flow, those of the overflow last, until it returns false. Flows that come
// and go meanwhile may or may not be among them.
func (l *ledger) each(fn func(*flowtable.Flow) bool) error {
	for f := range l.table.All() {
		if !fn(&f) {
			return nil
		}
	}
	flows4, flows6, err := l.plane.Overflow()
	if err != nil {
		return err
	}
	overflowed, err := overflowFlows(flows4, flows6)
	if err != nil {
		return err
	}
	for i := range overflowed {
		l.table.Complete(&overflowed[i])
		if !fn(&overflowed[i]) {
			return nil
		}
	}
	return nil
}

// sums calls fn with what is added up of every flow, as each does, for less.
func (l *ledger) sums(fn func(*flowtable.Sum)) error {
	l.table.Sums(fn)
	flows4, flows6, err := l.plane.Overflow()
	if err != nil {
		return err
	}
	overflowed, err := overflowFlows(flows4, flows6)
	for i := range overflowed {
		f := &overflowed[i]
		fn(&flowtable.Sum{
			State: f.State, Revoked: f.Revoked, Rule: f.Rule, From: f.From, To: f.To, Context: f.Context, Packets: f.Packets, Bytes: f.Bytes,
		})
	}
	return err
}

// overflowFlows reads flows that stand beside the groups as the table reads those in them: they are
// put into groups of their own.
func overflowFlows(flows4 []bpf.XDPFlow4, flows6 []bpf.XDPFlow6) ([]flowtable.Flow, error) {
	table, err := overflowTable(flows4, flows6)
	if err != nil || table == nil {
		return nil, err
	}
	var flows []flowtable.Flow
	for f := range table.All() {
		f.ID = flowtable.FlowID{Family: f.ID.Family, Overflow: true, Generation: f.ID.Generation}
		flows = append(flows, f)
	}
	return flows, nil
}

// overflowTable is a table to list of what stands beside the groups; nil if that is nothing.
func overflowTable(flows4 []bpf.XDPFlow4, flows6 []bpf.XDPFlow6) (*flowtable.Table, error) {
	if len(flows4)+len(flows6) == 0 {
		return nil, nil
	}
	groups4 := make([]bpf.XDPFlow4Group, groupsFor(len(flows4)))
	for i := range flows4 {
		groups4[i/flowtable.GroupSlots].Slot[i%flowtable.GroupSlots] = flows4[i]
	}
	groups6 := make([]bpf.XDPFlow6Group, groupsFor(len(flows6)))
	for i := range flows6 {
		groups6[i/flowtable.GroupSlots].Slot[i%flowtable.GroupSlots] = flows6[i]
	}
	return flowtable.MapTable(flowtable.TableConfig{}, groups4, groups6, new(bpf.XDPGatewayState))
}

// groupsFor returns the least power of two of groups that hold n flows.
func groupsFor(n int) int {
	groups := 1
	for groups*flowtable.GroupSlots < n {
		groups *= 2
	}
	return groups
}
