package random

import (
	"math/rand/v2"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Packet is a frame, and the words that a parser is to find in it.
type Packet struct {
	Frame []byte
	Words [bpf.PipesPipeWordPIPE_WORDS]uint32 // PIPE_PORT and PIPE_RANDOM are drawn, as no frame holds them
}

// Source draws packets for a pipeline: in three of four something of an entry is asked that it matches, or just misses.
type Source struct {
	*rand.Rand
	line *pipe.Pipeline
	all  []*pipe.Entry
	of   map[*pipe.Entry]*pipe.Pipe
}

// Packets makes a source for a resolved pipeline.
func Packets(r *rand.Rand, p *pipe.Pipeline) *Source {
	s := &Source{Rand: r, line: p, of: make(map[*pipe.Entry]*pipe.Pipe)}
	for _, q := range p.Pipes {
		for _, e := range q.Entries {
			s.all = append(s.all, e)
			s.of[e] = q
		}
	}
	return s
}

// Next draws a packet.
func (s *Source) Next() Packet {
	d := s.draft()
	if len(s.all) > 0 {
		for range s.IntN(4) {
			s.aim(d, s.all[s.IntN(len(s.all))])
		}
	}
	return d.packet(s.line)
}

// Damage changes a frame so that it may not be understood any more: it is cut, or bits of it flip.
func Damage(r *rand.Rand, frame []byte) []byte {
	out := slices.Clone(frame)
	if r.IntN(2) == 0 {
		return out[:14+r.IntN(len(out)-13)]
	}
	for range 1 + r.IntN(3) {
		out[12+r.IntN(min(len(out)-12, 60))] ^= 1 << r.IntN(8)
	}
	return out
}

// aim makes the draft match an entry, where that can be.
func (s *Source) aim(d *draft, e *pipe.Entry) {
	p := s.of[e]
	matches := slices.Clone(e.Match)
	for i, f := range p.Match {
		if p.Kind == pipe.Basic {
			matches[i].Mask = f.Mask
		}
	}
	if e.Prefix.IsValid() {
		m, err := p.Match[0].Field.Parse(e.Prefix.String())
		if err == nil {
			matches = append(matches, m)
		}
	}
	for _, m := range matches {
		d.set(s.line, m.Field, s.near(&m))
	}
	for _, c := range e.Conditions {
		d.set(s.line, c.Field, under(pipe.Value{c.Value + uint32(s.IntN(3)) - 1}, c.Field.Full()))
	}
}

// near is a value that a match takes, and sometimes one beside it.
func (s *Source) near(m *pipe.Match) pipe.Value {
	full := m.Field.Full()
	v := slices.Clone(m.Value)
	if m.Last != nil {
		v[0] = []uint32{m.Value[0], m.Last[0], m.Value[0] - 1, m.Last[0] + 1, m.Value[0] + (m.Last[0]-m.Value[0])/2}[s.IntN(5)] & full[0]
		return v
	}
	for i := range v {
		if m.Mask != nil {
			v[i] = v[i]&m.Mask[i] | s.Uint32()&full[i]&^m.Mask[i]
		}
	}
	if s.IntN(6) == 0 {
		i := s.IntN(len(v))
		v[i] ^= 1 << s.IntN(32) & full[i]
	}
	return v
}

// draft is a packet before it is written.
type draft struct {
	port, random     uint32
	src, dst         pipe.Value // MAC addresses
	tags             [][2]uint32
	etherType        uint32 // of frames that are not IP
	family           int    // 4, 6 or 0
	ttl, dscp, ecn   uint32
	id, df, label    uint32
	fragment         uint32 // enum pipe_fragment
	damaged          bool   // IPv4's checksum is wrong
	options          bool   // of IPv4, or an extension header of IPv6
	source, target   [4]uint32
	proto            uint32
	sport, dport     uint32
	flags, seq, ack  uint32
	kind, code, echo uint32 // of ICMP
	spi, number      uint32 // of ESP
	payload          []byte
	raws             map[string]uint32 // what is wanted there
}

func (s *Source) draft() *draft {
	g := &generator{Rand: s.Rand, line: s.line}
	pick := func(name string) uint32 { return g.likely(pipe.LookupField(name))[0] }
	d := &draft{
		port: uint32(1 + s.IntN(len(Ports))), random: s.Uint32() & 0xffff,
		src: g.likely(pipe.LookupField("eth.src")), dst: g.likely(pipe.LookupField("eth.dst")),
		etherType: 0x0806, family: []int{4, 4, 4, 6, 6, 6, 0}[s.IntN(7)],
		ttl: pick("ip.ttl"), dscp: pick("ip.dscp"), ecn: pick("ip.ecn"), id: pick("ip.id"), df: uint32(s.IntN(2)), label: pick("ipv6.label"),
		damaged: s.IntN(10) == 0, options: s.IntN(5) == 0,
		proto: []uint32{6, 6, 17, 17, 1, 50, 132}[s.IntN(7)],
		sport: pick("l4.sport"), dport: pick("l4.dport"), flags: pick("tcp.flags"), seq: pick("tcp.seq"), ack: pick("tcp.ack"),
		kind: pick("icmp.type"), code: pick("icmp.code"), echo: pick("icmp.ident"), spi: pick("esp.spi"), number: pick("esp.seq"),
		payload: make([]byte, s.IntN(64)), raws: make(map[string]uint32),
	}
	for range []int{0, 0, 1, 2}[s.IntN(4)] {
		d.tags = append(d.tags, [2]uint32{pick("vlan.0.id"), pick("vlan.0.pcp")})
	}
	if s.IntN(5) == 0 {
		d.fragment = uint32(1 + s.IntN(2))
	}
	for _, end := range []*[4]uint32{&d.source, &d.target} {
		name := "ipv4.src"
		if d.family == 6 {
			name = "ipv6.src"
		}
		copy(end[:], g.likely(pipe.LookupField(name)))
	}
	for i := range d.payload {
		d.payload[i] = byte(s.Uint32())
	}
	return d
}

// tag makes sure that there are n tags.
func (d *draft) tag(n int) {
	for len(d.tags) < n {
		d.tags = append(d.tags, [2]uint32{1, 0})
	}
}

// over makes the packet one of IP, of that family if it is not 0.
func (d *draft) over(family int) {
	if family == 0 {
		family = 4
		if d.family != 0 {
			return
		}
	}
	d.family = family
}

// transport makes it one of a protocol, whose header is there.
func (d *draft) transport(proto uint32) {
	d.over(0)
	d.proto, d.fragment = proto, 0
}

// set has the packet have a value in a field, as far as frames can.
func (d *draft) set(line *pipe.Pipeline, f *pipe.Field, v pipe.Value) {
	if f.Name != "vlan.count" && d.setLink(f, v) || d.setNet(f, v) || d.setTransport(f, v) {
		return
	}
	if f.Name == "vlan.count" {
		d.tag(min(int(v[0]), 2))
		d.tags = d.tags[:min(int(v[0]), 2)]
	} else if line.Field(f.Name) != pipe.LookupField(f.Name) {
		d.raws[f.Name] = v[0]
	}
}

// setLink sets fields of the link layer and of the packet itself.
func (d *draft) setLink(f *pipe.Field, v pipe.Value) bool {
	switch f.Name {
	case "port":
		d.port = v[0]
	case "meta.random":
		d.random = v[0]
	case "meta.length":
		if n := int(v[0]); n < 1500 && n > 100 {
			d.payload = make([]byte, n-100)
		}
	case "eth.src":
		d.src = v
	case "eth.dst":
		d.dst = v
	case "eth.type":
		switch v[0] {
		case 0x0800:
			d.family = 4
		case 0x86dd:
			d.family = 6
		case 0x8100, 0x88a8: // more tags than are looked at
		default:
			if v[0] >= 0x600 {
				d.family, d.etherType = 0, v[0]
			}
		}
	case "vlan.0.id":
		d.tag(1)
		d.tags[0][0] = v[0]
	case "vlan.0.pcp":
		d.tag(1)
		d.tags[0][1] = v[0]
	case "vlan.1.id":
		d.tag(2)
		d.tags[1][0] = v[0]
	case "vlan.1.pcp":
		d.tag(2)
		d.tags[1][1] = v[0]
	default:
		return false
	}
	return true
}

func (d *draft) setNet(f *pipe.Field, v pipe.Value) bool {
	switch f.Name {
	case "ip.version":
		d.family = map[uint32]int{hasIPv4: 4, hasIPv6: 6}[v[0]]
	case "ip.proto":
		d.over(0)
		d.proto = v[0]
	case "ip.ttl":
		d.over(0)
		d.ttl = v[0]
	case "ip.dscp":
		d.over(0)
		d.dscp = v[0]
	case "ip.ecn":
		d.over(0)
		d.ecn = v[0]
	case "ip.length":
		d.over(0)
		if n := int(v[0]); n < 1500 && n > 80 {
			d.payload = make([]byte, n-80)
		}
	case "ip.id":
		d.over(4)
		d.id = v[0]
	case "ip.fragment":
		d.over(0)
		d.fragment = min(v[0], 2)
	case "ip.df":
		d.over(4)
		d.df = v[0]
	case "ip.checksum":
		d.over(0)
		d.damaged = v[0] == 0
	case "ipv4.src":
		d.over(4)
		d.source[0] = v[0]
	case "ipv4.dst":
		d.over(4)
		d.target[0] = v[0]
	case "ipv6.src":
		d.over(6)
		copy(d.source[:], v)
	case "ipv6.dst":
		d.over(6)
		copy(d.target[:], v)
	case "ipv6.label":
		d.over(6)
		d.label = v[0]
	default:
		return false
	}
	return true
}

func (d *draft) setTransport(f *pipe.Field, v pipe.Value) bool {
	switch f.Name {
	case "l4.type":
		if proto, ok := map[uint32]uint32{hasTCP: 6, hasUDP: 17, hasICMP: 1, hasESP: 50, 0: 132}[v[0]]; ok {
			d.transport(proto)
		}
	case "l4.sport", "l4.dport":
		if d.transport(d.proto); d.proto != 17 {
			d.proto = 6
		}
		if f.Name == "l4.sport" {
			d.sport = v[0]
		} else {
			d.dport = v[0]
		}
	case "tcp.flags":
		d.transport(6)
		d.flags = v[0]
	case "tcp.seq":
		d.transport(6)
		d.seq = v[0]
	case "tcp.ack":
		d.transport(6)
		d.ack = v[0]
	case "icmp.type":
		d.transport(1)
		d.kind = v[0]
	case "icmp.code":
		d.transport(1)
		d.code = v[0]
	case "icmp.ident":
		d.transport(1)
		d.echo = v[0]
		if d.kind = 8; d.family == 6 {
			d.kind = 128
		}
	case "esp.spi":
		d.transport(50)
		d.spi = v[0]
	case "esp.seq":
		d.transport(50)
		d.number = v[0]
	case "vxlan.vni":
		d.transport(17)
		d.dport = vxlanPort
		d.payload = append([]byte{8, 0, 0, 0, byte(v[0] >> 16), byte(v[0] >> 8), byte(v[0]), 0}, d.payload...)
	default:
		return false
	}
	return true
}
