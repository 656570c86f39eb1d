package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

// Numbers of abi.h, which bpf2go does not carry over. TestABI compares them.
const (
	portMax   = 64
	portSlots = 256
	pairMax   = 15

	portInline      = 0x01
	portVLANs       = 0x02
	portFixChecksum = 0x04
	portUp          = 0x08

	zoneNone = 0
	zoneHost = 1

	nexthopHost    = 1
	nexthopPort    = 2
	nexthopFirst   = 128
	nexthopPending = 2
	nexthopReady   = 3
	nexthopKeep    = 4096

	nexthopFedShift = 10
)

// perfectHash returns a multiplier under which every interface index has a slot of its own, the slot
// being index * mul >> 24 in 32 bits. Sixty-four indices need 3,000 trials on average. The slots must
// suit those who are asked, too.
func perfectHash(indices []uint32, suits ...func(slot, index uint32) bool) (uint32, error) {
	mul := uint32(2654435769) // 2^32 over the golden ratio: spreads consecutive indices at once
	random := rand.New(rand.NewPCG(1, 2))
trial:
	for range 1 << 20 {
		var taken [portSlots]bool
		for _, index := range indices {
			slot := index * mul >> 24
			fits := !taken[slot]
			for _, suit := range suits {
				fits = fits && suit(slot, index)
			}
			if !fits {
				mul = random.Uint32() | 1
				continue trial
			}
			taken[slot] = true
		}
		return mul, nil
	}
	return 0, fmt.Errorf("hash %d interface indices: no multiplier keeps them apart", len(indices))
}

// fillTables writes ports, zones, next hops and devices for ports of which every fact is known. XDP
// reads them only once a dispatcher is attached; or it does already, where a run before is taken over.
func (p *Plane) fillTables(ports []*Port) error {
	host := bpf.XDPNexthop{State: nexthopReady, Zone: zoneHost}
	storeWords(&p.mem.nexthops[nexthopHost], &host)
	running := p.life != nil && p.life.taken
	if running {
		if err := p.clearStrangers(ports); err != nil {
			return err
		}
	} else {
		var indices []uint32
		for _, port := range ports {
			if port.present() {
				indices = append(indices, port.Index)
			}
		}
		mul, err := perfectHash(indices)
		if err != nil {
			return err
		}
		atomic.StoreUint32(&p.mem.gateway[0].PortMul, mul)
	}
	for _, port := range ports {
		hop := port.nexthop()
		storeWords(&p.mem.nexthops[nexthopPort+int(port.ID)], &hop)
		if port.present() {
			if err := p.seat(port, ports); err != nil {
				return port.errorf("%w", err)
			}
		}
		if err := p.fillZones(port); err != nil {
			return port.errorf("%w", err)
		}
	}
	return nil
}

// clearStrangers takes out of the tables of a run that is taken over what stands for devices that no port
// has any more: they went while nobody looked.
func (p *Plane) clearStrangers(ports []*Port) error {
	known := make(map[uint32]bool)
	for _, port := range ports {
		if !port.present() {
			continue
		}
		known[port.Index] = true
		for _, dev := range port.vlanDevices {
			known[dev.index] = true
		}
	}
	for i := range p.mem.ports {
		if index := p.mem.ports[i].Ifindex; index != 0 && !known[index] {
			clearPort(&p.mem.ports[i])
		}
	}
	var (
		index, key uint32
		egress     bpf.XDPEgress
		errs       []error
	)
	var gone []uint32
	it := p.maps[bpf.XDPMapEgresses].Iterate()
	for it.Next(&index, &egress) {
		if !known[index] {
			gone = append(gone, index)
		}
	}
	errs = append(errs, it.Err())
	for _, index := range gone {
		errs = append(errs, deleted(p.maps[bpf.XDPMapEgresses].Delete(index)))
	}
	gone = nil
	it = p.maps[bpf.XDPMapVlanDevices].Iterate()
	for it.Next(&key, &index) {
		if !known[index] {
			gone = append(gone, key)
		}
	}
	errs = append(errs, it.Err())
	for _, key := range gone {
		errs = append(errs, deleted(p.maps[bpf.XDPMapVlanDevices].Delete(key)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clear the tables of devices that have gone: %w", err)
	}
	return nil
}

// deleted takes what was not there for deleted.
func deleted(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// clearPort empties a place in the table of ports: its first word, by which XDP finds the port, first.
func clearPort(at *bpf.XDPPort) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(at)), 0)
	storeWords(at, &bpf.XDPPort{})
}

// seat gives a port a place in the table that XDP may be reading. If another one has it, all get places by
// another multiplier: first the new ones, in such that nobody has, then the multiplier, and once no packet
// can go by the old one the old ones are emptied, so that no packet of any port finds none. Only where
// dozens of ports leave no such multiplier (they are more than 40, as a rule) may the packets of some find
// none, for the microseconds that the table takes to be written, and are dropped (internal).
func (p *Plane) seat(port *Port, ports []*Port) error {
	p.storeMSS(port)
	mul := atomic.LoadUint32(&p.mem.gateway[0].PortMul)
	if at := p.mem.ports[port.Index*mul>>24].Ifindex; at == 0 || at == port.Index {
		p.storePort(port)
		return nil
	}
	var indices []uint32
	seated := make(map[uint32]*Port)
	for _, other := range ports {
		if other.present() && seated[other.Index] == nil && (other == port || p.mem.ports[other.Index*mul>>24].Ifindex == other.Index) {
			indices = append(indices, other.Index)
			seated[other.Index] = other
		}
	}
	next, err := perfectHash(indices, func(slot, index uint32) bool {
		at := p.mem.ports[slot].Ifindex
		return at == 0 || at == index
	})
	if err != nil {
		if next, err = perfectHash(indices); err != nil {
			return err
		}
	}
	taken := make(map[uint32]bool)
	for index, other := range seated {
		e := other.entry()
		storeWords(&p.mem.ports[index*next>>24], &e)
		taken[index*next>>24] = true
	}
	atomic.StoreUint32(&p.mem.gateway[0].PortMul, next)
	if Grace() != nil {
		time.Sleep(graceByTime)
	}
	for i := range p.mem.ports {
		if !taken[uint32(i)] && p.mem.ports[i].Ifindex != 0 {
			clearPort(&p.mem.ports[i])
		}
	}
	return nil
}

// graceByTime is far longer than a program may run for one packet: it stands in where the kernel grants no
// grace period.
const graceByTime = 100 * time.Millisecond

// fillZones writes where the VLANs of a port belong, and by which interfaces routes may leave there.
func (p *Plane) fillZones(port *Port) error {
	for vid, zone := range port.VLANs {
		if err := p.maps[bpf.XDPMapVlanZones].Put(vlanKey(port, vid), zone); err != nil {
			return fmt.Errorf("set zone of VLAN %d: %w", vid, err)
		}
	}
	if port.Inline() || !port.present() {
		return nil // routes do not leave by inline ports
	}
	if port.Zone != zoneNone { // else no rule could speak of what leaves untagged
		e := bpf.XDPEgress{Port: port.ID, Zone: port.Zone}
		if err := p.maps[bpf.XDPMapEgresses].Put(port.Index, &e); err != nil {
			return fmt.Errorf("set egress: %w", err)
		}
	}
	for vid, dev := range port.vlanDevices {
		if err := p.addVLANDevice(port, vid, dev); err != nil {
			return err
		}
	}
	return nil
}

// addVLANDevice lets routes leave by a VLAN device of the kernel that stands on a port, and asks it
// for the routes of frames that arrive with its tag.
func (p *Plane) addVLANDevice(port *Port, vid uint16, dev device) error {
	e := bpf.XDPEgress{Port: port.ID, Zone: port.VLANs[vid], Vlan: networkOrder16(vid)}
	err := p.maps[bpf.XDPMapEgresses].Put(dev.index, &e)
	if err == nil {
		err = p.maps[bpf.XDPMapVlanDevices].Put(vlanKey(port, vid), dev.index)
	}
	if err != nil {
		return fmt.Errorf("set egress %s: %w", dev.name, err)
	}
	return nil
}

// removeVLANDevice takes back what addVLANDevice wrote.
func (p *Plane) removeVLANDevice(port *Port, vid uint16, dev device) error {
	err := errors.Join(
		deleted(p.maps[bpf.XDPMapEgresses].Delete(dev.index)),
		deleted(p.maps[bpf.XDPMapVlanDevices].Delete(vlanKey(port, vid))))
	if err != nil {
		return fmt.Errorf("remove egress %s: %w", dev.name, err)
	}
	return nil
}

func vlanKey(port *Port, vid uint16) uint32 { return uint32(port.ID)<<12 | uint32(vid) }

// storePort writes the port's entry, word by word: MAC and MTU change together, and so do flags, zone
// and identity. A port without a device has none.
func (p *Plane) storePort(port *Port) {
	if !port.present() {
		return
	}
	p.storeMSS(port)
	e := port.entry()
	mul := atomic.LoadUint32(&p.mem.gateway[0].PortMul)
	storeWords(&p.mem.ports[port.Index*mul>>24], &e)
}

// clearTables makes fillTables undone, so that a second Attach starts from nothing.
func (p *Plane) clearTables(ports []*Port) error {
	var errs []error
	for _, port := range ports {
		errs = append(errs, p.clearDevice(port), p.clearZones(port))
		storeWords(&p.mem.nexthops[nexthopPort+int(port.ID)], &bpf.XDPNexthop{})
	}
	// Next hops name ports by their ids, which the next ports get anew.
	for i := nexthopFirst; i < len(p.mem.nexthops); i++ {
		if atomic.LoadUint32(&p.mem.nexthops[i].State) != 0 {
			storeWords(&p.mem.nexthops[i], &bpf.XDPNexthop{})
		}
	}
	return errors.Join(errs...)
}

// clearZones forgets where the VLANs of a port belong.
func (p *Plane) clearZones(port *Port) error {
	var errs []error
	for vid := range port.VLANs {
		errs = append(errs, p.maps[bpf.XDPMapVlanZones].Put(vlanKey(port, vid), uint8(zoneNone)))
	}
	return errors.Join(errs...)
}

// clearDevice takes a port's device out of the tables: frames that come from it are refused, and no route
// leaves by it.
func (p *Plane) clearDevice(port *Port) error {
	if port.Index == 0 {
		return nil
	}
	p.clearSeat(port)
	return p.clearEgress(port)
}

// clearSeat empties the port's place in the table.
func (p *Plane) clearSeat(port *Port) {
	mul := atomic.LoadUint32(&p.mem.gateway[0].PortMul)
	if at := &p.mem.ports[port.Index*mul>>24]; at.Ifindex == port.Index {
		clearPort(at)
	}
}

// clearEgress keeps routes from leaving by a port, and by VLAN devices on it.
func (p *Plane) clearEgress(port *Port) error {
	if port.Inline() {
		return nil
	}
	errs := []error{deleted(p.maps[bpf.XDPMapEgresses].Delete(port.Index))}
	for vid, dev := range port.vlanDevices {
		errs = append(errs, p.removeVLANDevice(port, vid, dev))
	}
	return errors.Join(errs...)
}

// unready makes XDP ask the kernel again for next hops that lead out of a port.
func (p *Plane) unready(port *Port) {
	for i := nexthopFirst; i < len(p.mem.nexthops); i++ {
		if hop := &p.mem.nexthops[i]; hop.Port == port.ID {
			atomic.CompareAndSwapUint32(&hop.State, nexthopReady, nexthopPending)
		}
	}
}

// macWord is a MAC address as it stands in a frame, in the low 48 bits of a word.
func macWord(mac []byte) uint64 {
	var b [8]byte
	copy(b[:6], mac)
	return binary.LittleEndian.Uint64(b[:])
}

// words is an address as it stands in a packet; an IPv4 address fills the first.
func words(a netip.Addr) (w [4]uint32) {
	if a.Is4() {
		b := a.As4()
		w[0] = binary.NativeEndian.Uint32(b[:])
		return w
	}
	b := a.As16()
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return w
}

// gatewayBytes is the inverse of words.
func gatewayBytes(w *[4]uint32) (b [16]byte) {
	for i, v := range w {
		binary.NativeEndian.PutUint32(b[4*i:], v)
	}
	return b
}
