package sim

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/dataplane/packet"
)

func TestReadHeaders(t *testing.T) {
	v6 := build(t, "2001:db8::1", "2001:db8::2", layers.IPProtocolUDP, &layers.UDP{SrcPort: 7, DstPort: 9}, gopacket.Payload("x"))
	extended := append(bytes.Clone(v6[:54]), 44, 0, 1, 4, 0, 0, 0, 0) // destination options, then an atomic fragment
	extended[20] = 60
	extended = append(append(extended, 17, 0, 0, 0, 0, 0, 0, 5), v6[54:]...)
	later := bytes.Clone(extended)
	later[64+1] = 8
	h := ReadHeaders(extended)
	if h.Family != 6 || h.Proto != packet.ProtoUDP || !h.Ports || h.SrcPort != 7 || h.DstPort != 9 || h.Fragment || h.FragmentID != 5 {
		t.Errorf("extension headers: %+v", h)
	}
	if h := ReadHeaders(later); !h.Later || h.Ports || h.Proto != packet.ProtoUDP || h.Dst != netip.MustParseAddr("2001:db8::2") {
		t.Errorf("later fragment: %+v", h)
	}
	for n := range extended {
		ReadHeaders(extended[:n]) // must not reach behind the end
	}
	tagged := append(append(bytes.Clone(v6[:12]), 0x88, 0xa8, 0x60, 7, 0x81, 0, 0, 9), v6[12:]...)
	if h := ReadHeaders(tagged); h.VLAN != 7 || h.SrcPort != 7 || h.L3 != 22 {
		t.Errorf("two tags: %+v", h)
	}
}
