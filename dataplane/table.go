package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

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
)

// perfectHash returns a multiplier under which every interface index has a slot of its own, the slot
// being index * mul >> 24 in 32 bits. Sixty-four indices need 3,000 trials on average.
func perfectHash(indices []uint32) (uint32, error) {
	mul := uint32(2654435769) // 2^32 over the golden ratio: spreads consecutive indices at once
	random := rand.New(rand.NewPCG(1, 2))
trial:
	for range 1 << 20 {
		var taken [portSlots]bool
		for _, index := range indices {
			slot := index * mul >> 24
			if taken[slot] {
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
// reads them only once a dispatcher is attached.
func (p *Plane) fillTables(ports []*Port) error {
	indices := make([]uint32, len(ports))
	for i, port := range ports {
		indices[i] = port.Index
	}
	mul, err := perfectHash(indices)
	if err != nil {
		return err
	}
	atomic.StoreUint32(&p.mem.gateway[0].PortMul, mul)
	host := bpf.XDPNexthop{State: nexthopReady, Zone: zoneHost}
	storeWords(&p.mem.nexthops[nexthopHost], &host)
	for _, port := range ports {
		if err := p.fillZones(port); err != nil {
			return port.errorf("%w", err)
		}
		hop := port.nexthop()
		storeWords(&p.mem.nexthops[nexthopPort+int(port.ID)], &hop)
		p.storePort(port)
	}
	return nil
}

// fillZones writes where the VLANs of a port belong, and by which interfaces routes may leave there.
func (p *Plane) fillZones(port *Port) error {
	for vid, zone := range port.VLANs {
		if err := p.maps[bpf.XDPMapVlanZones].Put(vlanKey(port, vid), zone); err != nil {
			return fmt.Errorf("set zone of VLAN %d: %w", vid, err)
		}
	}
	if port.Inline() {
		return nil // routes do not leave by inline ports
	}
	e := bpf.XDPEgress{Port: port.ID, Zone: port.Zone}
	if err := p.maps[bpf.XDPMapEgresses].Put(port.Index, &e); err != nil {
		return fmt.Errorf("set egress: %w", err)
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
		p.maps[bpf.XDPMapEgresses].Delete(dev.index),
		p.maps[bpf.XDPMapVlanDevices].Delete(vlanKey(port, vid)))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove egress %s: %w", dev.name, err)
	}
	return nil
}

func vlanKey(port *Port, vid uint16) uint32 { return uint32(port.ID)<<12 | uint32(vid) }

// storePort writes the port's entry, word by word: MAC and MTU change together, and so do flags, zone
// and identity.
func (p *Plane) storePort(port *Port) {
	e := port.entry()
	mul := atomic.LoadUint32(&p.mem.gateway[0].PortMul)
	storeWords(&p.mem.ports[port.Index*mul>>24], &e)
}

// clearTables makes fillTables undone, so that a second Attach starts from nothing.
func (p *Plane) clearTables(ports []*Port) error {
	var errs []error
	mul := atomic.LoadUint32(&p.mem.gateway[0].PortMul)
	for _, port := range ports {
		storeWords(&p.mem.ports[port.Index*mul>>24], &bpf.XDPPort{})
		storeWords(&p.mem.nexthops[nexthopPort+int(port.ID)], &bpf.XDPNexthop{})
		for vid := range port.VLANs {
			errs = append(errs, p.maps[bpf.XDPMapVlanZones].Put(vlanKey(port, vid), uint8(zoneNone)))
		}
		if port.Inline() {
			continue
		}
		if err := p.maps[bpf.XDPMapEgresses].Delete(port.Index); !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
		for vid, dev := range port.vlanDevices {
			errs = append(errs, p.removeVLANDevice(port, vid, dev))
		}
	}
	// Next hops name ports by their ids, which the next ports get anew.
	for i := nexthopFirst; i < len(p.mem.nexthops); i++ {
		if atomic.LoadUint32(&p.mem.nexthops[i].State) != 0 {
			storeWords(&p.mem.nexthops[i], &bpf.XDPNexthop{})
		}
	}
	return errors.Join(errs...)
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
