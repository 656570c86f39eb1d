package dataplane

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

const (
	heldAgain    = 0x53444641 // HELD_AGAIN
	fragmentLife = 28610      // FRAGMENT_LIFE, ticks: 30 s

	liveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18
)

// knows reports whether the first fragment of a datagram has been judged, and the datagram is not over.
func (p *Plane) knows(k *datagramKey, now uint32) bool {
	var g bpf.XDPFragmentGroup
	if p.maps[bpf.XDPMapFragments].LookupWithFlags(k.group, &g, ebpf.LookupLock) != nil {
		return false
	}
	for i := range g.Slot {
		f := &g.Slot[i]
		if f.Src == k.src && f.Dst == k.dst && f.Id == k.id && f.Domain == k.domain && f.Proto == k.proto && f.Family == k.family &&
			now-f.Tick < fragmentLife {
			return true
		}
	}
	return false
}

// arriveAgain has the programs of the ports take a frame as if it had just come by its port: what they redirect
// leaves, and what they pass goes to the kernel. The calling thread is in the plane's namespace.
func (p *Plane) arriveAgain(f *heldFrame) error {
	packet := append(binary.NativeEndian.AppendUint32(nil, heldAgain), f.frame...)
	// struct xdp_md, with the mark as metadata
	context := struct{ Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32 }{
		Data: uint32(len(packet) - len(f.frame)), DataEnd: uint32(len(packet)), IngressIfindex: f.port,
	}
	_, err := p.dispatch.Run(&ebpf.RunOptions{Data: packet, Context: context, Repeat: 1, Flags: liveFrames, BatchSize: 1})
	if err != nil {
		return fmt.Errorf("give a frame back to XDP: %w", err)
	}
	return nil
}
