package pipe

import (
	"slices"
	"strings"

	"github.com/softdpu/softdpu/bpf"
)

// Field is something that pipes match on, and that actions may change. Two fields are the same if their names are:
// some share a word.
type Field struct {
	Name   string
	Word   int    // first of its words in struct pipe_fields (abi_pipe.h)
	Bits   int    // 1 to 128
	Has    uint32 // enum pipe_has: what the packet must have for the field to be there
	Write  bool   // actions may change it
	Only   uint32 // the field is these bits of its word, which are not numbers but facts (PIPE_HAS); 0: a number of Bits
	Format Format // how people write it
	Help   string // one line for people

	say func(uint32) string // how people call a value; nil: as Format says
}

// Format is how people write a field's values.
type Format string

// Formats. Every one but those of addresses and of facts also takes numbers, decimal and hexadecimal.
const (
	Number     Format = ""
	MACAddress Format = "mac"
	IPv4       Format = "ipv4"
	IPv6       Format = "ipv6"
	Port       Format = "port" // the name of a port of the gateway
	Words      Format = "word" // one of the words of [Field.Names]
	Flags      Format = "flags"
)

// Words are how many words of 32 bits the field takes.
func (f *Field) Words() int { return (f.Bits + 31) / 32 }

// Full is the mask that holds all of the field: what a nil mask stands for.
func (f *Field) Full() Value {
	if f.Only != 0 {
		return Value{f.Only}
	}
	v := make(Value, f.Words())
	for i := range v {
		v[i] = ^uint32(0)
	}
	if rest := f.Bits % 32; rest != 0 {
		v[0] = 1<<rest - 1
	}
	return v
}

// Numeric says that the field's values are numbers of at most 32 bits, which can be held against each other, added to, or
// choose the entry of a list.
func (f *Field) Numeric() bool { return f.Only == 0 && f.Bits <= 32 }

// Name is a word for a value of a field.
type Name struct {
	Word  string
	Value uint32
}

// Names are the words for values of the field, in the order of the documentation; nil for most.
func (f *Field) Names() []Name { return names[f.Name] }

// What packets have.
const (
	hasVLAN0    = uint32(bpf.PipesPipeHasPIPE_HAS_VLAN0)
	hasVLAN1    = uint32(bpf.PipesPipeHasPIPE_HAS_VLAN1)
	hasIPv4     = uint32(bpf.PipesPipeHasPIPE_HAS_IPV4)
	hasIPv6     = uint32(bpf.PipesPipeHasPIPE_HAS_IPV6)
	hasTCP      = uint32(bpf.PipesPipeHasPIPE_HAS_TCP)
	hasUDP      = uint32(bpf.PipesPipeHasPIPE_HAS_UDP)
	hasPorts    = uint32(bpf.PipesPipeHasPIPE_HAS_PORTS)
	hasICMP     = uint32(bpf.PipesPipeHasPIPE_HAS_ICMP)
	hasESP      = uint32(bpf.PipesPipeHasPIPE_HAS_ESP)
	hasVXLAN    = uint32(bpf.PipesPipeHasPIPE_HAS_VXLAN)
	hasIP       = uint32(bpf.PipesPipeHasPIPE_HAS_IP)
	hasChecksum = uint32(bpf.PipesPipeHasPIPE_HAS_CHECKSUM)
	hasRaw0     = uint32(bpf.PipesPipeHasPIPE_HAS_RAW0)
)

var names = map[string][]Name{
	"meta.color":  {{"green", 0}, {"yellow", 1}, {"red", 2}},
	"eth.type":    {{"ipv4", 0x0800}, {"arp", 0x0806}, {"ipv6", 0x86dd}, {"mpls", 0x8847}, {"lldp", 0x88cc}, {"roce", 0x8915}},
	"ip.version":  {{"4", hasIPv4}, {"6", hasIPv6}, {"none", 0}},
	"ip.proto":    {{"icmp", 1}, {"igmp", 2}, {"ipip", 4}, {"tcp", 6}, {"udp", 17}, {"ipv6", 41}, {"gre", 47}, {"esp", 50}, {"ah", 51}, {"icmpv6", 58}, {"ospf", 89}, {"vrrp", 112}, {"sctp", 132}},
	"ip.dscp":     dscpNames(),
	"ip.ecn":      {{"not-ect", 0}, {"ect1", 1}, {"ect0", 2}, {"ce", 3}},
	"ip.fragment": {{"none", 0}, {"first", 1}, {"later", 2}},
	"ip.checksum": {{"ok", hasChecksum}, {"bad", 0}},
	"l4.type":     {{"tcp", hasTCP}, {"udp", hasUDP}, {"icmp", hasICMP}, {"esp", hasESP}, {"none", 0}},
	"tcp.flags":   {{"fin", 1}, {"syn", 2}, {"rst", 4}, {"psh", 8}, {"ack", 16}, {"urg", 32}, {"ece", 64}, {"cwr", 128}},
	"icmp.type":   {{"echo-reply", 0}, {"echo-request", 8}, {"echo-request-v6", 128}, {"echo-reply-v6", 129}},
	"ct.state":    {{"none", 0}, {"opening", 1}, {"established", 2}, {"closing", 3}},
}

// dscpNames are those of RFC 2474, 2597, 3246 and 5865.
func dscpNames() []Name {
	list := []Name{{"ef", 46}, {"va", 44}}
	for c := range uint32(8) {
		list = append(list, Name{"cs" + string(rune('0'+c)), c << 3})
	}
	for c := uint32(1); c <= 4; c++ {
		for d := uint32(1); d <= 3; d++ {
			list = append(list, Name{"af" + string(rune('0'+c)) + string(rune('0'+d)), c<<3 | d<<1})
		}
	}
	return list
}

const wordHas = int(bpf.PipesPipeWordPIPE_HAS)

// Fields are all fields but those that a pipeline names itself, in the order of the documentation.
var Fields = []*Field{
	{Name: "port", Word: int(bpf.PipesPipeWordPIPE_PORT), Bits: 16, Format: Port, Help: "port that the packet came by"},
	{Name: "meta.mark", Word: int(bpf.PipesPipeWordPIPE_MARK), Bits: 32, Write: true, Help: "0 at first: the operator's own note about the packet"},
	{Name: "meta.0", Word: int(bpf.PipesPipeWordPIPE_META0), Bits: 32, Write: true, Help: "0 at first: scratch"},
	{Name: "meta.1", Word: int(bpf.PipesPipeWordPIPE_META1), Bits: 32, Write: true, Help: "0 at first: scratch"},
	{Name: "meta.2", Word: int(bpf.PipesPipeWordPIPE_META2), Bits: 32, Write: true, Help: "0 at first: scratch"},
	{Name: "meta.3", Word: int(bpf.PipesPipeWordPIPE_META3), Bits: 32, Write: true, Help: "0 at first: scratch"},
	{Name: "meta.random", Word: int(bpf.PipesPipeWordPIPE_RANDOM), Bits: 16, Help: "drawn once for each packet"},
	{Name: "meta.color", Word: int(bpf.PipesPipeWordPIPE_COLOR), Bits: 2, Format: Words, Help: "what the last meter said: green, yellow or red; green at first"},
	{Name: "meta.length", Word: int(bpf.PipesPipeWordPIPE_LENGTH), Bits: 17, Help: "bytes of the frame as it came"},
	{Name: "eth.src", Word: int(bpf.PipesPipeWordPIPE_ETH_SRC), Bits: 48, Write: true, Format: MACAddress, Help: "source MAC address"},
	{Name: "eth.dst", Word: int(bpf.PipesPipeWordPIPE_ETH_DST), Bits: 48, Write: true, Format: MACAddress, Help: "destination MAC address"},
	{Name: "eth.type", Word: int(bpf.PipesPipeWordPIPE_ETH_TYPE), Bits: 16, Format: Words, Help: "EtherType behind the VLAN tags"},
	{Name: "vlan.count", Word: int(bpf.PipesPipeWordPIPE_VLANS), Bits: 2, Help: "number of VLAN tags: 0, 1 or 2"},
	{Name: "vlan.0.id", Word: int(bpf.PipesPipeWordPIPE_VLAN0ID), Bits: 12, Has: hasVLAN0, Write: true, Help: "VLAN of the outer tag"},
	{Name: "vlan.0.pcp", Word: int(bpf.PipesPipeWordPIPE_VLAN0PCP), Bits: 3, Has: hasVLAN0, Write: true, Help: "priority of the outer tag"},
	{Name: "vlan.1.id", Word: int(bpf.PipesPipeWordPIPE_VLAN1ID), Bits: 12, Has: hasVLAN1, Help: "VLAN of the inner tag"},
	{Name: "vlan.1.pcp", Word: int(bpf.PipesPipeWordPIPE_VLAN1PCP), Bits: 3, Has: hasVLAN1, Help: "priority of the inner tag"},
	{Name: "ip.version", Word: wordHas, Bits: 32, Only: hasIPv4 | hasIPv6, Format: Words, Help: "4, 6 or none"},
	{Name: "ip.proto", Word: int(bpf.PipesPipeWordPIPE_IP_PROTO), Bits: 8, Has: hasIP, Format: Words, Help: "protocol, behind IPv6's extension headers"},
	{Name: "ip.ttl", Word: int(bpf.PipesPipeWordPIPE_IP_TTL), Bits: 8, Has: hasIP, Write: true, Help: "time to live, or hop limit"},
	{Name: "ip.dscp", Word: int(bpf.PipesPipeWordPIPE_IP_DSCP), Bits: 6, Has: hasIP, Write: true, Format: Words, Help: "class of service"},
	{Name: "ip.ecn", Word: int(bpf.PipesPipeWordPIPE_IP_ECN), Bits: 2, Has: hasIP, Write: true, Format: Words, Help: "congestion notification"},
	{Name: "ip.length", Word: int(bpf.PipesPipeWordPIPE_IP_LENGTH), Bits: 17, Has: hasIP, Help: "bytes of the packet with its IP header, as the header says"},
	{Name: "ip.id", Word: int(bpf.PipesPipeWordPIPE_IP_ID), Bits: 16, Has: hasIPv4, Help: "identification of IPv4"},
	{Name: "ip.fragment", Word: int(bpf.PipesPipeWordPIPE_IP_FRAGMENT), Bits: 2, Has: hasIP, Format: Words, Help: "none, first or later"},
	{Name: "ip.df", Word: int(bpf.PipesPipeWordPIPE_IP_DF), Bits: 1, Has: hasIPv4, Help: "1 if IPv4 may not be fragmented"},
	{Name: "ip.checksum", Word: wordHas, Bits: 32, Has: hasIP, Only: hasChecksum, Format: Words, Help: "whether the checksum of the IPv4 header is ok or bad; IPv6, which has none, is ok"},
	{Name: "ipv4.src", Word: int(bpf.PipesPipeWordPIPE_IP_SRC), Bits: 32, Has: hasIPv4, Write: true, Format: IPv4, Help: "source address of IPv4"},
	{Name: "ipv4.dst", Word: int(bpf.PipesPipeWordPIPE_IP_DST), Bits: 32, Has: hasIPv4, Write: true, Format: IPv4, Help: "destination address of IPv4"},
	{Name: "ipv6.src", Word: int(bpf.PipesPipeWordPIPE_IP_SRC), Bits: 128, Has: hasIPv6, Write: true, Format: IPv6, Help: "source address of IPv6"},
	{Name: "ipv6.dst", Word: int(bpf.PipesPipeWordPIPE_IP_DST), Bits: 128, Has: hasIPv6, Write: true, Format: IPv6, Help: "destination address of IPv6"},
	{Name: "ipv6.label", Word: int(bpf.PipesPipeWordPIPE_IP_LABEL), Bits: 20, Has: hasIPv6, Help: "flow label"},
	{Name: "l4.type", Word: wordHas, Bits: 32, Only: hasTCP | hasUDP | hasICMP | hasESP, Format: Words, Help: "tcp, udp, icmp (of IPv4 or IPv6), esp, or none: another protocol or a later fragment"},
	{Name: "l4.sport", Word: int(bpf.PipesPipeWordPIPE_L4SPORT), Bits: 16, Has: hasPorts, Write: true, Help: "source port of TCP or UDP"},
	{Name: "l4.dport", Word: int(bpf.PipesPipeWordPIPE_L4DPORT), Bits: 16, Has: hasPorts, Write: true, Help: "destination port of TCP or UDP"},
	{Name: "tcp.flags", Word: int(bpf.PipesPipeWordPIPE_TCP_FLAGS), Bits: 8, Has: hasTCP, Format: Flags, Help: "flags of TCP, as in syn,!ack"},
	{Name: "tcp.seq", Word: int(bpf.PipesPipeWordPIPE_TCP_SEQ), Bits: 32, Has: hasTCP, Help: "sequence number"},
	{Name: "tcp.ack", Word: int(bpf.PipesPipeWordPIPE_TCP_ACK), Bits: 32, Has: hasTCP, Help: "acknowledgement number"},
	{Name: "icmp.type", Word: int(bpf.PipesPipeWordPIPE_ICMP_TYPE), Bits: 8, Has: hasICMP, Format: Words, Help: "type of ICMP or ICMPv6"},
	{Name: "icmp.code", Word: int(bpf.PipesPipeWordPIPE_ICMP_CODE), Bits: 8, Has: hasICMP, Help: "code of ICMP or ICMPv6"},
	{Name: "icmp.ident", Word: int(bpf.PipesPipeWordPIPE_ICMP_IDENT), Bits: 16, Has: hasICMP, Help: "identifier of echo requests and replies"},
	{Name: "esp.spi", Word: int(bpf.PipesPipeWordPIPE_ESP_SPI), Bits: 32, Has: hasESP, Help: "security parameters index"},
	{Name: "esp.seq", Word: int(bpf.PipesPipeWordPIPE_ESP_SEQ), Bits: 32, Has: hasESP, Help: "sequence number"},
	{Name: "vxlan.vni", Word: int(bpf.PipesPipeWordPIPE_VXLAN_VNI), Bits: 24, Has: hasVXLAN, Help: "network of VXLAN on UDP port 4789"},
	{Name: "ct.state", Word: int(bpf.PipesPipeWordPIPE_CT_STATE), Bits: 2, Format: Words, Help: "what the last ct pipe found: none, opening, established or closing"},
}

var fieldByName = func() map[string]*Field {
	m := make(map[string]*Field, len(Fields))
	for _, f := range Fields {
		m[f.Name] = f
	}
	return m
}()

// rawPrefix is what the names of a pipeline's own fields begin with.
const rawPrefix = "raw."

// MaxRaws is how many fields of its own a pipeline may have.
const MaxRaws = 4

// LookupField finds a field that every pipeline has; nil if there is none of that name.
func LookupField(name string) *Field { return fieldByName[name] }

// Field finds a field by name, those of p.Raws included ("raw.NAME"); nil if there is none. What p.Raws says may not
// change afterwards.
func (p *Pipeline) Field(name string) *Field {
	if raw, ok := strings.CutPrefix(name, rawPrefix); ok {
		if i := slices.IndexFunc(p.Raws, func(r *Raw) bool { return r.Name == raw }); i >= 0 && i < MaxRaws {
			return p.Raws[i].field(i)
		}
		return nil
	}
	return LookupField(name)
}

// FieldNames are the names that [Pipeline.Field] knows.
func (p *Pipeline) FieldNames() []string {
	list := make([]string, 0, len(Fields)+len(p.Raws))
	for _, f := range Fields {
		list = append(list, f.Name)
	}
	for _, r := range p.Raws {
		list = append(list, rawPrefix+r.Name)
	}
	return list
}

// field is the raw as a field, the pipeline's number i.
func (r *Raw) field(i int) *Field {
	return &Field{
		Name: rawPrefix + r.Name, Word: int(bpf.PipesPipeWordPIPE_RAW0) + i, Bits: 32, Has: hasRaw0 << i,
		Help: "the pipeline's own",
	}
}
