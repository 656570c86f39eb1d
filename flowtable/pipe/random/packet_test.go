package random

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/oracle"
)

// found is what gopacket finds in a frame, by field.
func found(t *testing.T, frame []byte) map[string]uint32 {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	out := make(map[string]uint32)
	mac := func(name string, b []byte) {
		out[name+" 0"], out[name+" 1"] = uint32(binary.BigEndian.Uint16(b)), binary.BigEndian.Uint32(b[2:])
	}
	fragment := false
	tags := 0
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			mac("eth.src", l.SrcMAC)
			mac("eth.dst", l.DstMAC)
			out["eth.type"] = uint32(l.EthernetType)
		case *layers.Dot1Q:
			out["eth.type"] = uint32(l.Type)
			out[[]string{"vlan.0.id", "vlan.1.id"}[tags]], out[[]string{"vlan.0.pcp", "vlan.1.pcp"}[tags]] = uint32(l.VLANIdentifier), uint32(l.Priority)
			tags++
		case *layers.IPv4:
			out["ip.proto"], out["ip.ttl"], out["ip.dscp"], out["ip.ecn"] = uint32(l.Protocol), uint32(l.TTL), uint32(l.TOS>>2), uint32(l.TOS&3)
			out["ip.length"], out["ip.id"] = uint32(l.Length), uint32(l.Id)
			out["ipv4.src"], out["ipv4.dst"] = binary.BigEndian.Uint32(l.SrcIP.To4()), binary.BigEndian.Uint32(l.DstIP.To4())
			if l.Flags&layers.IPv4DontFragment != 0 {
				out["ip.df"] = 1
			}
			fragment = l.Flags&layers.IPv4MoreFragments != 0 || l.FragOffset != 0
		case *layers.IPv6:
			out["ip.ttl"], out["ip.dscp"], out["ip.ecn"] = uint32(l.HopLimit), uint32(l.TrafficClass>>2), uint32(l.TrafficClass&3)
			out["ip.length"], out["ipv6.label"] = uint32(l.Length)+40, l.FlowLabel
			for i := range uint32(4) {
				out["ipv6.src "+string('0'+rune(i))] = binary.BigEndian.Uint32(l.SrcIP[4*i:])
				out["ipv6.dst "+string('0'+rune(i))] = binary.BigEndian.Uint32(l.DstIP[4*i:])
			}
			out["ip.proto"] = uint32(l.NextHeader)
		case *layers.IPv6Destination:
			out["ip.proto"] = uint32(l.NextHeader)
		case *layers.IPv6Fragment:
			out["ip.proto"] = uint32(l.NextHeader)
			fragment = true
		case *layers.TCP:
			out["l4.sport"], out["l4.dport"], out["tcp.seq"], out["tcp.ack"] = uint32(l.SrcPort), uint32(l.DstPort), l.Seq, l.Ack
			out["tcp.flags"] = uint32(l.Contents[13])
		case *layers.UDP:
			out["l4.sport"], out["l4.dport"] = uint32(l.SrcPort), uint32(l.DstPort)
		case *layers.ICMPv4:
			out["icmp.type"], out["icmp.code"] = uint32(l.TypeCode.Type()), uint32(l.TypeCode.Code())
		case *layers.ICMPv6:
			out["icmp.type"], out["icmp.code"] = uint32(l.TypeCode.Type()), uint32(l.TypeCode.Code())
		case *layers.IPSecESP:
			out["esp.spi"], out["esp.seq"] = l.SPI, l.Seq
		case *layers.VXLAN:
			if l.ValidIDFlag && out["l4.dport"] == vxlanPort { // gopacket takes it from the source port as well
				out["vxlan.vni"] = l.VNI
			}
			return out // what is in the tunnel is another packet
		}
	}
	if fragment {
		out["fragment"] = 1
	}
	out["vlan.count"] = uint32(tags)
	return out
}

// TestFrames: gopacket finds in frames what the words say, whose checksums are right.
func TestFrames(t *testing.T) {
	hits := make(map[string]int)
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 2))
		p, err := Pipeline(r, Size{}).Resolve(Ports)
		if err != nil {
			t.Fatal(err)
		}
		s := Packets(r, p)
		for range 100 {
			packet := s.Next()
			for name, v := range found(t, packet.Frame) {
				i := 0
				if at := len(name) - 2; name[at] == ' ' {
					name, i = name[:at], int(name[at+1]-'0')
				}
				hits[name]++
				if name == "fragment" {
					if packet.Words[bpf.PipesPipeWordPIPE_IP_FRAGMENT] == 0 {
						t.Fatalf("seed %d: a fragment that is none: %x", seed, packet.Frame)
					}
					continue
				}
				if got := packet.Words[pipe.LookupField(name).Word+i]; got != v {
					t.Fatalf("seed %d: %s is %#x, gopacket finds %#x in %x", seed, name, got, v, packet.Frame)
				}
			}
			checksums(t, packet)
		}
	}
	for _, f := range []string{"vlan.1.id", "ipv4.src", "ipv6.dst", "tcp.flags", "icmp.type", "esp.spi", "vxlan.vni", "fragment"} {
		if hits[f] < 10 {
			t.Errorf("%s is found %d times", f, hits[f])
		}
	}
}

func checksums(t *testing.T, packet Packet) {
	t.Helper()
	words := &packet.Words
	if words[bpf.PipesPipeWordPIPE_IP_FRAGMENT] != 0 {
		return
	}
	p := gopacket.NewPacket(packet.Frame, layers.LayerTypeEthernet, gopacket.Default)
	network := p.NetworkLayer()
	if network == nil {
		return
	}
	if ip, ok := network.(*layers.IPv4); ok {
		if right := fold(add(0, ip.Contents)) == 0xffff; right != (words[bpf.PipesPipeWordPIPE_HAS]&hasChecksum != 0) {
			t.Fatalf("the checksum is right: %t: %x", right, packet.Frame)
		}
	}
	src, _ := netip.AddrFromSlice(network.NetworkFlow().Src().Raw())
	dst, _ := netip.AddrFromSlice(network.NetworkFlow().Dst().Raw())
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	for _, l := range p.Layers() {
		switch l.(type) {
		case *layers.TCP, *layers.UDP, *layers.ICMPv6:
			segment := append(l.LayerContents(), l.LayerPayload()...)
			if _, icmp := l.(*layers.ICMPv6); icmp {
				segment = packet.Frame[len(packet.Frame)-len(l.LayerContents())-len(l.LayerPayload()):]
			}
			sum := add(0, pseudo)
			sum = add(sum+uint32(len(segment))+words[bpf.PipesPipeWordPIPE_IP_PROTO], segment)
			if fold(sum) != 0xffff {
				t.Fatalf("%v has the checksum %x: %x", l.LayerType(), fold(sum), packet.Frame)
			}
			return
		case *layers.ICMPv4:
			if fold(add(0, append(l.LayerContents(), l.LayerPayload()...))) != 0xffff {
				t.Fatalf("ICMP's checksum is wrong: %x", packet.Frame)
			}
			return
		}
	}
}

// TestPacketsComeNear: packets come to all kinds of pipes, and both match and miss.
func TestPacketsComeNear(t *testing.T) {
	hit, missed, ends := make(map[pipe.Kind]int), make(map[pipe.Kind]int), make(map[pipe.Target]int)
	copies, died := 0, 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 3))
		p, err := Pipeline(r, Size{}).Resolve(Ports)
		if err != nil {
			t.Fatal(err)
		}
		w := oracle.New(p)
		w.Hash = func(key []uint32) uint32 { return key[0]*2654435761 + key[len(key)-1] }
		w.Slots = func(p *pipe.Pipe) []int {
			slots := make([]int, p.Size)
			for i := range slots {
				slots[i] = i % len(p.Entries)
			}
			return slots
		}
		w.CT = func(p *oracle.Packet) (uint32, bool) { return p[0] % 4, p[0]%2 == 0 }
		s := Packets(r, p)
		for i := range uint64(100) {
			result := w.Walk(s.Next().Words, i*1e6)
			for _, step := range result.Walk {
				if step.Found {
					hit[step.Pipe.Kind]++
				} else {
					missed[step.Pipe.Kind]++
				}
			}
			ends[result.To]++
			if len(result.Ports) > 1 {
				copies++
			}
			if result.TTL {
				died++
			}
		}
	}
	for _, kind := range pipe.Kinds() {
		if hit[kind] < 100 || missed[kind] < 100 && kind != pipe.Hash {
			t.Errorf("kind %s: %d packets match, %d miss", kind, hit[kind], missed[kind])
		}
	}
	for _, to := range []pipe.Target{pipe.ToPort, pipe.ToDrop, pipe.ToHost, pipe.ToPolicy, pipe.ToStage} {
		if ends[to] < 100 {
			t.Errorf("%d packets go to %s", ends[to], to)
		}
	}
	if copies < 100 || died < 5 {
		t.Errorf("%d packets leave by several ports, %d die of their TTL", copies, died)
	}
}
