package dataplane

import (
	"bytes"
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// What actions change is in the frame that leaves, with checksums as gopacket computes them; a UDP checksum that the
// sender left out stays out.
func TestPipelineRewrites(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	prog := compilePipeline(t, p, `root: all
pipes:
  - name: all
    kind: control
    miss: policy
    actions:
      - name: four
        do:
          - {set: ipv4.src, value: 192.0.2.9}
          - {set: ipv4.dst, value: 203.0.113.200}
          - {set: l4.sport, value: 7}
          - {set: l4.dport, value: 65000}
          - {set: ip.dscp, value: 46}
          - ttl
          - pop_vlan
          - push_vlan: {id: 100, pcp: 5}
          - {set: eth.dst, value: "02:00:00:00:00:77"}
      - name: six
        do:
          - {set: ipv6.dst, value: "2001:db8::77"}
          - {set: l4.dport, value: 65000}
          - {set: ip.ecn, value: 1}
          - ttl
          - pop_vlan
    entries:
      - {match: {ip.version: 4}, action: four, forward: policy}
      - {match: {ip.version: 6}, action: six, forward: policy}
`)
	if err := p.ApplyPipeline(prog); err != nil {
		t.Fatal(err)
	}
	const payload = "what is in it, long enough that no frame is padded"
	mac := func(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, last} }
	// frame is a packet as it comes, or as it should leave.
	frame := func(six, tcp, tagged, noSum, after bool) []byte {
		eth := &layers.Ethernet{SrcMAC: mac(1), DstMAC: mac(2), EthernetType: layers.EthernetTypeIPv4}
		tag := &layers.Dot1Q{VLANIdentifier: 20, Priority: 3, Type: layers.EthernetTypeIPv4}
		four := &layers.IPv4{Version: 4, TTL: 64, TOS: 1, Id: 7, SrcIP: net.IP{10, 1, 2, 3}, DstIP: net.IP{10, 4, 5, 6}}
		v6 := &layers.IPv6{Version: 6, HopLimit: 9, TrafficClass: 0x48, FlowLabel: 0x12345, SrcIP: net.ParseIP("2001:db8::1"), DstIP: net.ParseIP("2001:db8::2")}
		sport, dport := uint16(1234), uint16(80)
		if after {
			dport = 65000
			if six {
				v6.DstIP, v6.TrafficClass, v6.HopLimit = net.ParseIP("2001:db8::77"), 0x49, 8
				tagged = false
			} else {
				four.SrcIP, four.DstIP, four.TOS, four.TTL = net.IP{192, 0, 2, 9}, net.IP{203, 0, 113, 200}, 46<<2|1, 63
				sport = 7
				eth.DstMAC, tagged = mac(0x77), true
				tag.VLANIdentifier, tag.Priority = 100, 5
			}
		}
		list := []gopacket.SerializableLayer{eth}
		inner := layers.EthernetTypeIPv4
		if six {
			inner = layers.EthernetTypeIPv6
		}
		eth.EthernetType = inner
		if tagged {
			eth.EthernetType, tag.Type = layers.EthernetTypeDot1Q, inner
			list = append(list, tag)
		}
		var network gopacket.NetworkLayer = four
		proto := layers.IPProtocolUDP
		if tcp {
			proto = layers.IPProtocolTCP
		}
		four.Protocol, v6.NextHeader = proto, proto
		if six {
			network = v6
			list = append(list, v6)
		} else {
			list = append(list, four)
		}
		if tcp {
			l := &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: 9, Ack: 8, ACK: true, Window: 500}
			_ = l.SetNetworkLayerForChecksum(network)
			list = append(list, l)
		} else {
			l := &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}
			_ = l.SetNetworkLayerForChecksum(network)
			list = append(list, l)
		}
		list = append(list, gopacket.Payload(payload))
		b := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
			t.Fatal(err)
		}
		out := b.Bytes()
		if noSum {
			at := len(out) - len(payload) - 2
			out[at], out[at+1] = 0, 0
		}
		return out
	}
	for n := range 16 {
		six, tcp, tagged, noSum := n&1 != 0, n&2 != 0, n&4 != 0, n&8 != 0
		if noSum && (tcp || six) {
			continue
		}
		got := make([]byte, 256)
		options := &ebpf.RunOptions{Data: frame(six, tcp, tagged, noSum, false), DataOut: got}
		if _, err := p.front.program.Run(options); err != nil {
			t.Fatal(err)
		}
		if want := frame(six, tcp, tagged, noSum, true); !bytes.Equal(options.DataOut, want) {
			t.Errorf("IPv6 %v, TCP %v, tagged %v, without checksum %v:\n%x, want\n%x", six, tcp, tagged, noSum, options.DataOut, want)
		}
	}
}
