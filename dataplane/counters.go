package dataplane

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

// Reasons returns how many packets and bytes were dropped, by reason, over all CPUs since Open.
func (p *Plane) Reasons() (sums [bpf.XDPReasonREASON_LEN]bpf.XDPCounter, err error) {
	err = p.sumCounters(bpf.XDPMapReasons, sums[:])
	// Their bytes nobody knows.
	sums[bpf.XDPReasonREASON_FRAGMENT_NO_FIRST].Packets += uint64(atomic.LoadUint32(&p.mem.gateway[0].HeldLost))
	return sums, err
}

// Passes returns how many packets and bytes went to the kernel's stack, by cause, over all CPUs.
func (p *Plane) Passes() (sums [bpf.XDPPassCausePASS_LEN]bpf.XDPCounter, err error) {
	err = p.sumCounters(bpf.XDPMapPasses, sums[:])
	return sums, err
}

// DropsUnlogged returns how many drops wanted an event and got none, because of the rate limit or a full
// ring, by reason, over all CPUs.
func (p *Plane) DropsUnlogged() (sums [bpf.XDPReasonREASON_LEN]uint64, err error) {
	if p.options.DropEvents == 0 {
		return sums, nil
	}
	var cpus []bpf.XDPDropLog
	for i := range sums {
		if err := p.maps[bpf.XDPMapDropLogs].Lookup(uint32(i), &cpus); err != nil {
			return sums, fmt.Errorf("read %s: %w", bpf.XDPMapDropLogs, err)
		}
		for _, c := range cpus {
			sums[i] += c.Unlogged
		}
	}
	return sums, nil
}

func (p *Plane) sumCounters(name string, sums []bpf.XDPCounter) error {
	var cpus []bpf.XDPCounter
	for i := range sums {
		if err := p.maps[name].Lookup(uint32(i), &cpus); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		for _, c := range cpus {
			sums[i].Packets += c.Packets
			sums[i].Bytes += c.Bytes
		}
	}
	return nil
}

// TableCounters returns what became of new flows, over all CPUs since Open.
func (p *Plane) TableCounters() (sum bpf.XDPTableCounter, err error) {
	var cpus []bpf.XDPTableCounter
	if err := p.maps[bpf.XDPMapTableCounters].Lookup(uint32(0), &cpus); err != nil {
		return sum, fmt.Errorf("read %s: %w", bpf.XDPMapTableCounters, err)
	}
	for _, c := range cpus {
		sum.Created += c.Created
		sum.Refused += c.Refused
		sum.Evicted += c.Evicted
		sum.Revived += c.Revived
		sum.Overflowed += c.Overflowed
		sum.Reopened += c.Reopened
	}
	return sum, nil
}

// ruleBatch bounds the memory of one batch look-up: 256 rules of 48 bytes and 64 CPUs are 768 KiB.
const ruleBatch = 256

// Rules fills into[i] with the counters of rule i, over all CPUs since Open: Packets and Bytes are
// those credited so far, to which the flows that still live are to be added; Last is the latest of all
// CPUs, and 0 means never; LogWindow and Logged are of one CPU each and left 0.
func (p *Plane) Rules(into []bpf.XDPRuleCounter) error {
	m := p.maps[bpf.XDPMapRules]
	if len(into) > int(m.MaxEntries()) {
		return fmt.Errorf("read %s: %d rules asked for, %d have counters", bpf.XDPMapRules, len(into), m.MaxEntries())
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("read %s: %w", bpf.XDPMapRules, err)
	}
	keys := make([]uint32, ruleBatch)
	values := make([]bpf.XDPRuleCounter, ruleBatch*cpus)
	var cursor ebpf.MapBatchCursor
	for done := 0; done < len(into); {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read %s: %w", bpf.XDPMapRules, err)
		}
		for i, id := range keys[:n] {
			if int(id) < len(into) {
				into[id] = sumRule(values[i*cpus : (i+1)*cpus])
			}
		}
		done += n
		if err != nil || n == 0 {
			break
		}
	}
	return nil
}

// ForgetRule sets the counters of a rule back to nothing. No packet may count on it meanwhile.
func (p *Plane) ForgetRule(id uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err == nil {
		err = p.maps[bpf.XDPMapRules].Put(id, make([]bpf.XDPRuleCounter, cpus))
	}
	if err != nil {
		return fmt.Errorf("clear counters of rule %d: %w", id, err)
	}
	return nil
}

func sumRule(cpus []bpf.XDPRuleCounter) (sum bpf.XDPRuleCounter) {
	for _, c := range cpus {
		sum.Packets += c.Packets
		sum.Bytes += c.Bytes
		sum.Judged += c.Judged
		sum.Unlogged += c.Unlogged
		if c.Last != 0 && (sum.Last == 0 || int32(c.Last-sum.Last) > 0) {
			sum.Last = c.Last
		}
	}
	return sum
}
