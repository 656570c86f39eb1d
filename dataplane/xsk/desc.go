package xsk

import "golang.org/x/sys/unix"

// A Desc describes the bytes of a packet in one frame, as struct xdp_desc of the kernel does. It is a
// plain value: who may use its frame is a matter of the rules in the package's document.
type Desc struct {
	Addr    uint64 // of the first byte, from the UMEM's start
	Len     uint32 // bytes
	Options uint32 // Continues, and what Checksum sets
}

// Continues, in Options, says that the packet goes on in the next descriptor (Linux 6.6).
const Continues = unix.XDP_PKT_CONTD

// More reports whether the packet goes on in the next descriptor.
func (d Desc) More() bool { return d.Options&Continues != 0 }
