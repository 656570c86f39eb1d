package pipe_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/oracle"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
)

// feature is one thing that pipes do: a pipeline as a file says it, and what becomes of packets in it. Each line of packets
// is what one has, and behind => where it goes, and behind ; what it has then.
type feature struct {
	name    string
	line    string // what stands behind the head; pipe a is the root
	packets string
}

// one is a control pipe of one entry, which forwards to port wan0; a miss is dropped.
func one(match string) string {
	return "pipes: [{name: a, kind: control, forward: {port: wan0}, miss: drop, entries: [{match: {" + match + "}}]}]"
}

// does is a pipe that does something with all packets, and forwards to port wan0.
func does(steps string) string {
	return "pipes: [{name: a, kind: control, actions: [{do: [" + steps + "]}], forward: {port: wan0}, miss: drop, entries: [{}]}]"
}

// raw is a field of the pipeline's own, which one entry matches on.
func raw(base string, offset int, match string) string {
	return fmt.Sprintf("raws: {r: {base: %s, offset: %d}}\n", base, offset) + one(match)
}

// metered is a meter whose colours go to different ports.
func metered(meter string) string {
	return "meters: {m: {" + meter + "}}\n" + `pipes:
  - {name: a, kind: control, monitor: {meter: m}, forward: {pipe: b}, miss: drop, entries: [{}]}
  - {name: b, kind: basic, match: meta.color, miss: drop, entries: [{match: {meta.color: green}, forward: {port: wan0}}, {match: {meta.color: yellow}, forward: {port: wan1}}]}`
}

var features = []feature{
	{"kind-basic", "pipes: [{name: a, kind: basic, match: [vlan.0.id, ip.dscp/0x38], forward: {port: wan0}, miss: drop, entries: [{match: {vlan.0.id: 7, ip.dscp: 0x28}}]}]",
		"vlan.0.id=7 ip.dscp=ef => port wan0\nvlan.0.id=7 ip.dscp=0 => drop\nvlan.0.id=7 => drop"},
	{"kind-control", "pipes: [{name: a, kind: control, miss: drop, entries: [{priority: 2, forward: {port: lan0}}, {priority: 1, match: {ip.ttl: 0x40/0xc0}, forward: {port: wan0}}, {priority: 1, match: {ip.proto: tcp}, forward: {port: wan1}}]}]",
		"ip.ttl=65 ip.proto=tcp => port wan0\nip.ttl=1 ip.proto=tcp => port wan1\nip.ttl=1 => port lan0"},
	{"kind-lpm", "pipes: [{name: a, kind: lpm, match: ipv6.dst, miss: drop, entries: [{prefix: 2001:db8::/32, forward: {port: wan0}}, {prefix: 2001:db8:1::/48, forward: {port: wan1}}]}]",
		"ipv6.dst=2001:db8:1::9 => port wan1\nipv6.dst=2001:db8:2::9 => port wan0\nipv6.dst=2001:db9::1 => drop\nipv4.dst=10.0.0.1 => drop"},
	{"kind-lpm-exact", "pipes: [{name: a, kind: lpm, match: [ipv4.dst, vlan.0.id], miss: drop, entries: [{prefix: 10.0.0.0/8, match: {vlan.0.id: 1}, forward: {port: wan0}}, {prefix: 10.0.0.0/16, match: {vlan.0.id: 2}, forward: {port: wan1}}]}]",
		"ipv4.dst=10.0.0.1 vlan.0.id=1 => port wan0\nipv4.dst=10.0.0.1 vlan.0.id=2 => port wan1\nipv4.dst=10.1.0.1 vlan.0.id=2 => drop"},
	{"kind-acl", "pipes: [{name: a, kind: acl, miss: drop, entries: [{priority: 9, match: {ipv4.src: 10.0.0.0/8}, forward: {port: wan1}}, {priority: 3, match: {ipv4.src: 10.0.0.0/8, ip.proto: tcp, l4.dport: 80-90}, forward: {port: wan0}}, {match: {icmp.type: 8}, forward: {port: lan0}}]}]",
		"ipv4.src=10.1.1.1 ip.proto=tcp l4.type=tcp l4.dport=85 => port wan0\nipv4.src=10.1.1.1 ip.proto=tcp l4.type=tcp l4.dport=91 => port wan1\nipv4.src=11.1.1.1 ip.proto=tcp l4.type=tcp l4.dport=85 => drop\nipv4.src=11.1.1.1 ip.proto=icmp icmp.type=8 => port lan0"},
	{"kind-hash", "pipes: [{name: a, kind: hash, algorithm: hash, size: 1, match: [ipv4.src, ipv4.dst], miss: drop, entries: [{index: 0, forward: {port: wan0}}]}]",
		"ipv4.src=10.0.0.1 => port wan0\neth.type=arp => port wan0"},
	{"kind-consistent", "pipes: [{name: a, kind: hash, algorithm: consistent, size: 64, match: ipv4.src, miss: drop, entries: [{index: 0, weight: 3, forward: {port: wan0}}]}]",
		"ipv4.src=10.0.0.1 => port wan0"},
	{"kind-random", "pipes: [{name: a, kind: hash, algorithm: random, size: 2, miss: drop, entries: [{index: 0, forward: {port: wan0}}, {index: 1, forward: {port: wan1}}]}]",
		"meta.random=4 => port wan0\nmeta.random=5 => port wan1"},
	{"kind-identity", "pipes: [{name: a, kind: hash, algorithm: identity, size: 2, match: vlan.0.id, miss: drop, entries: [{index: 0, forward: {port: wan0}}, {index: 1, forward: {port: wan1}}]}]",
		"vlan.0.id=6 => port wan0\nvlan.0.id=7 => port wan1"},
	{"kind-round-robin", "pipes: [{name: a, kind: hash, algorithm: round-robin, size: 2, miss: drop, entries: [{index: 0, forward: {port: wan0}}, {index: 1, forward: {port: wan1}}]}]",
		"ip.ttl=1 => port wan0\nip.ttl=1 => port wan1\nip.ttl=1 => port wan0"},
	{"kind-flood", "pipes: [{name: a, kind: hash, algorithm: flood, miss: drop, entries: [{index: 0, forward: {port: lan0}}, {index: 1, forward: {port: lan1}}]}]", "ip.ttl=1 => port lan0 lan1"},
	{"kind-ordered-list", "pipes: [{name: a, kind: control, miss: drop, entries: [{match: {ip.ttl: 1}, forward: {pipe: b, index: 5}}, {forward: {pipe: b, index: meta.0}}]}, {name: b, kind: ordered-list, miss: policy, forward: {port: wan0}, entries: [{index: 5, list: [[{set: meta.0, value: 1}], [{add: meta.0, value: 2}]]}]}]",
		"ip.ttl=1 => port wan0; meta.0=3\nmeta.0=5 => port wan0; meta.0=3\nmeta.0=6 => policy"},
	{"kind-ct", "pipes: [{name: a, kind: ct, forward: {pipe: b}, miss: drop}, {name: b, kind: basic, match: ct.state, miss: drop, entries: [{match: {ct.state: established}, forward: {port: wan0}}, {match: {ct.state: opening}, forward: {port: wan1}}]}]", // the flow table of this test has flows by their source port
		"l4.type=udp l4.sport=2 => port wan0\nl4.type=udp l4.sport=1 => port wan1\nl4.type=udp l4.sport=3 => drop\nl4.type=udp l4.sport=4 => drop"},

	{"match-meta", one("meta.mark: 0, meta.3: 0/0xff"), "meta.3=0x100 => port wan0\nmeta.3=1 => drop\nmeta.mark=1 => drop"},
	{"match-port", one("port: lan1"), "port=2 => port wan0\nport=1 => drop"},
	{"match-random", one("meta.random: 0/0xff"), "meta.random=0x100 => port wan0\nmeta.random=1 => drop"},
	{"match-color", metered("type: rfc2697, cir: 8bit, cbs: 2000"), "meta.length=1500 => port wan0\nmeta.length=1500 => drop"},
	{"match-l2-type", one("vlan.count: 2"), "vlan.count=2 => port wan0\nvlan.count=1 => drop"},
	{"match-l3-type", one("ip.version: 6"), "ip.version=6 => port wan0\nip.version=4 => drop\neth.type=arp => drop"},
	{"match-l4-type", one("l4.type: esp"), "l4.type=esp => port wan0\nl4.type=udp => drop\nip.proto=esp => drop"},
	{"match-fragment", one("ip.fragment: later"), "ip.fragment=later => port wan0\nip.fragment=none => drop"},
	{"match-checksum", one("ip.checksum: bad"), "ip.version=4 ip.checksum=bad => port wan0\nip.version=4 ip.checksum=ok => drop\neth.type=arp => drop"},
	{"match-length", one("meta.length: 1400-1514, ip.length: 1400"), "meta.length=1414 ip.length=1400 => port wan0\nmeta.length=1399 ip.length=1400 => drop"},
	{"match-ethernet", one("eth.src: 02:00:00:00:00:01, eth.dst: 01:00:5e:00:00:00/25, eth.type: ipv4"), "eth.src=02:00:00:00:00:01 eth.dst=01:00:5e:01:02:03 eth.type=ipv4 => port wan0\neth.src=02:00:00:00:00:01 eth.dst=01:00:5e:81:02:03 eth.type=ipv4 => drop"},
	{"match-vlan", one("vlan.0.id: 7, vlan.0.pcp: 5, vlan.1.id: 8, vlan.1.pcp: 1"), "vlan.0.id=7 vlan.0.pcp=5 vlan.1.id=8 vlan.1.pcp=1 => port wan0\nvlan.0.id=7 vlan.0.pcp=5 => drop"},
	{"match-ipv4", one("ipv4.src: 10.0.0.0/8, ipv4.dst: 192.0.2.1, ip.dscp: af41, ip.ecn: ce, ip.id: 9, ip.df: 1, ip.proto: tcp, ip.ttl: 64"),
		"ipv4.src=10.1.1.1 ipv4.dst=192.0.2.1 ip.dscp=af41 ip.ecn=ce ip.id=9 ip.df=1 ip.proto=tcp ip.ttl=64 => port wan0\nipv4.src=10.1.1.1 ipv4.dst=192.0.2.1 ip.dscp=af41 ip.ecn=ce ip.id=9 ip.df=0 ip.proto=tcp ip.ttl=64 => drop"},
	{"match-ipv6", one("ipv6.src: 2001:db8::/33, ipv6.dst: 2001:db8::1, ipv6.label: 0x12345, ip.dscp: ef, ip.ttl: 1-64, ip.proto: udp"),
		"ipv6.src=2001:db8:1:: ipv6.dst=2001:db8::1 ipv6.label=0x12345 ip.dscp=ef ip.ttl=64 ip.proto=udp => port wan0\nipv6.src=2001:db8:8000:: ipv6.dst=2001:db8::1 ipv6.label=0x12345 ip.dscp=ef ip.ttl=64 ip.proto=udp => drop"},
	{"match-tcp", one(`tcp.flags: "syn,!ack", tcp.seq: 7, tcp.ack: 0, l4.sport: 1024-65535, l4.dport: 443`), "tcp.flags=0x42 tcp.seq=7 l4.sport=2000 l4.dport=443 => port wan0\ntcp.flags=0x12 tcp.seq=7 l4.sport=2000 l4.dport=443 => drop"},
	{"match-udp", one("l4.type: udp, l4.dport: 53"), "l4.type=udp l4.dport=53 => port wan0\nl4.type=tcp l4.dport=53 => drop"},
	{"match-transport", one("l4.dport: 53"), "l4.type=udp l4.dport=53 => port wan0\nl4.type=tcp l4.dport=53 => port wan0\nl4.type=icmp => drop"},
	{"match-icmp", one("icmp.type: echo-request, icmp.code: 0, icmp.ident: 77"), "icmp.type=8 icmp.ident=77 => port wan0\nicmp.type=0 icmp.ident=77 => drop"},
	{"match-esp", one("esp.spi: 0x1001, esp.seq: 1-5"), "esp.spi=0x1001 esp.seq=5 => port wan0\nesp.spi=0x1001 esp.seq=6 => drop"},
	{"match-vxlan", one("vxlan.vni: 5000"), "vxlan.vni=5000 => port wan0\nvxlan.vni=5001 => drop\nl4.dport=4789 => drop"},
	{"match-ct", one("ct.state: any"), "ip.ttl=1 => port wan0"},
	{"match-raw-gtpu", raw("payload", 4, "l4.dport: 2152, raw.r: 0xbeef"), "l4.dport=2152 payload=30ff00100000beef00000000 => port wan0\nl4.dport=2152 payload=30ff00100000bee000000000 => drop\nl4.dport=2152 payload=30ff0010 => drop"},
	{"match-raw-gre", raw("l4", 4, "ip.proto: gre, raw.r: 77"), "ip.proto=gre l4=200008000000004d => port wan0\nip.proto=gre l4=200008000000004e => drop"},
	{"match-raw-nvgre", raw("l4", 4, "ip.proto: gre, raw.r: 0x00138800/0xffffff00"), "ip.proto=gre l4=2000655800138805 => port wan0\nip.proto=gre l4=2000655800138905 => drop"},
	{"match-raw-geneve", raw("payload", 4, "l4.dport: 6081, raw.r: 0x00138800/0xffffff00"), "l4.dport=6081 payload=0000655800138800 => port wan0\nl4.dport=6081 payload=0000655800138900 => drop"},
	{"match-raw-mpls", raw("payload", 0, "l4.dport: 6635, raw.r: 0x00064000/0xfffff000"), "l4.dport=6635 payload=00064140 => port wan0\nl4.dport=6635 payload=00065140 => drop"},
	{"match-raw-psp", raw("payload", 4, "l4.dport: 1000, raw.r: 0x1001"), "l4.dport=1000 payload=0402000100001001 => port wan0\nl4.dport=1000 payload=0402000100001002 => drop"},
	{"match-raw-roce", raw("payload", 4, "l4.dport: 4791, raw.r: 0x12/0xffffff"), "l4.dport=4791 payload=0440ffff0000001280000001 => port wan0\nl4.dport=4791 payload=0440ffff0000001380000001 => drop"},
	{"match-raw-gbp", raw("payload", 0, "vxlan.vni: 5, raw.r: 0x7/0xffff"), "vxlan.vni=5 payload=8800000700000500 => port wan0\nvxlan.vni=5 payload=8800000800000500 => drop"},
	{"match-raw-ipip", raw("l4", 12, "ip.proto: ipip, raw.r: 0x0a000000/0xff000000"), "ip.proto=ipip l4=4500001400000000400600000a010203c0000201 => port wan0\nip.proto=ipip l4=4500001400000000400600000b010203c0000201 => drop"},
	{"match-raw-inner", raw("payload", 34, "vxlan.vni: 5, raw.r: 0x0a000000/0xff000000"), "vxlan.vni=5 payload=08000000000005000200000000010200000000020800450000140000000040060000" + "0a010203c0000201 => port wan0\nvxlan.vni=5 payload=0800000000000500 => drop"},
	{"match-raw-header", raw("l3", 0, "raw.r: 0x06000000/0x0f000000"), "ip.version=4 l3=46000018 => port wan0\nip.version=4 l3=45000018 => drop"},

	{"mode-ignore", one("vlan.0.id: any"), "vlan.0.id=9 => port wan0\nip.ttl=1 => drop"},
	{"mode-mask", one("meta.0: 0x10/0xf0"), "meta.0=0x1f => port wan0\nmeta.0=0x2f => drop"},
	{"mode-range", one("ip.ttl: 2-5"), "ip.ttl=2 => port wan0\nip.ttl=5 => port wan0\nip.ttl=1 => drop\nip.ttl=6 => drop"},
	{"mode-compare", `pipes: [{name: a, kind: control, forward: {port: wan0}, miss: drop, entries: [{conditions: ["tcp.seq > tcp.ack", "ip.ttl != 64", "meta.length <= 100"]}]}]`,
		"tcp.seq=2 tcp.ack=1 ip.ttl=3 meta.length=100 => port wan0\ntcp.seq=1 tcp.ack=1 ip.ttl=3 => drop\ntcp.seq=2 tcp.ack=1 ip.ttl=64 => drop\ntcp.seq=2 ip.ttl=3 meta.length=101 => drop\nip.ttl=3 => drop"},
	{"mode-after-action", "pipes: [{name: a, kind: control, actions: [{do: [{set: ip.dscp, value: ef}]}], forward: {pipe: b}, miss: drop, entries: [{}]}, {name: b, kind: basic, match: ip.dscp, forward: {port: wan0}, miss: drop, entries: [{match: {ip.dscp: ef}}]}]", "ip.dscp=0 => port wan0\neth.type=arp => drop"},

	{"action-set", does("{set: ipv4.src, value: 192.0.2.1}, {set: l4.dport, value: 8080}, {set: eth.dst, value: 02:00:00:00:00:09}"),
		"ipv4.src=10.0.0.1 l4.dport=80 => port wan0; ipv4.src=192.0.2.1 l4.dport=8080 eth.dst=02:00:00:00:00:09\nipv6.src=2001:db8::1 => port wan0; ipv6.src=2001:db8::1"},
	{"action-set-mask", does("{set: ip.dscp, value: 0x28, mask: 0x38}"), "ip.dscp=0x17 => port wan0; ip.dscp=0x2f"},
	{"action-mark", does("{set: meta.mark, value: 7}"), "ip.ttl=1 => port wan0; meta.mark=7"},
	{"action-add", does("{add: ip.ttl, value: 250}, {add: meta.0, from: meta.length}"), "ip.ttl=10 meta.length=60 => port wan0; ip.ttl=4 meta.0=60"},
	{"action-copy", does("{copy: ip.dscp, to: meta.0, from_bit: 3, to_bit: 8, bits: 3}, {copy: eth.src, to: eth.dst}"), "ip.dscp=0x2f eth.src=02:00:00:00:00:01 => port wan0; meta.0=0x500 eth.dst=02:00:00:00:00:01"},
	{"action-ttl", does("ttl"), "ip.ttl=2 => port wan0; ip.ttl=1\nip.ttl=1 => drop\neth.type=arp => port wan0"},
	{"action-push-vlan", does("{push_vlan: {id: 100, pcp: 5}}"), "vlan.count=0 => port wan0; vlan.count=1 vlan.0.id=100 vlan.0.pcp=5\nvlan.count=1 vlan.0.id=7 => port wan0; vlan.count=2 vlan.0.id=100 vlan.1.id=7"},
	{"action-pop-vlan", does("pop_vlan"), "vlan.count=2 vlan.0.id=7 vlan.1.id=8 => port wan0; vlan.count=1 vlan.0.id=8\nvlan.count=0 => port wan0; vlan.count=0"},
	{"action-templates", "pipes: [{name: a, kind: basic, match: vlan.0.id, actions: [{name: x, do: [{set: meta.0, value: entry}]}, {name: y, do: [{set: meta.0, value: 9}]}], forward: {port: wan0}, miss: drop, entries: [{match: {vlan.0.id: 1}, values: [4]}, {match: {vlan.0.id: 2}, values: [5]}, {match: {vlan.0.id: 3}, action: y}]}]",
		"vlan.0.id=1 => port wan0; meta.0=4\nvlan.0.id=2 => port wan0; meta.0=5\nvlan.0.id=3 => port wan0; meta.0=9"},

	{"monitor-count", "counters: [all]\npipes: [{name: a, kind: basic, match: ip.ttl, monitor: {count: true, counter: all}, forward: {port: wan0}, miss: drop, entries: [{match: {ip.ttl: 1}}]}]", "ip.ttl=1 meta.length=60 => port wan0\nip.ttl=2 meta.length=70 => drop"},
	{"monitor-rfc2697", metered("type: rfc2697, cir: 8bit, cbs: 2000, ebs: 1000"), "meta.length=1500 => port wan0\nmeta.length=800 => port wan1\nmeta.length=800 => drop"},
	{"monitor-rfc2698", metered("type: rfc2698, cir: 8bit, pir: 16bit, cbs: 2000, pbs: 3000"), "meta.length=1500 => port wan0\nmeta.length=800 => port wan1\nmeta.length=800 => drop"},
	{"monitor-rfc4115", metered("type: rfc4115, cir: 8bit, eir: 8bit, cbs: 2000, ebs: 1000"), "meta.length=1500 => port wan0\nmeta.length=800 => port wan1\nmeta.length=800 => drop"},
	{"monitor-packets", metered("type: rfc2697, cir: 1pps, cbs: 1, ebs: 1"), "meta.length=1500 => port wan0\nmeta.length=60 => port wan1\nmeta.length=60 => drop"},
	{"monitor-aware", metered("type: rfc2697, cir: 1pps, cbs: 9, ebs: 9, aware: true"), "meta.color=yellow => port wan1\nmeta.color=red => drop\nmeta.color=green => port wan0"},
	{"monitor-mirror", "mirrors: {tap: [mon0]}\npipes: [{name: a, kind: control, monitor: {mirror: tap}, miss: drop, entries: [{match: {ip.ttl: 1}, forward: {port: wan0}}, {match: {ip.ttl: 2}, forward: drop}]}]", "ip.ttl=1 => port wan0 mon0\nip.ttl=2 => drop mon0\nip.ttl=3 => drop"},
	{"monitor-sample", "mirrors: {tap: [mon0]}\npipes: [{name: a, kind: control, forward: {port: wan0}, miss: drop, entries: [{match: {meta.random: 0/0xff}, monitor: {mirror: tap}}, {priority: 7}]}]", "meta.random=0x300 => port wan0 mon0\nmeta.random=1 => port wan0"},

	{"forward-each", "pipes: [{name: a, kind: basic, match: ip.ttl, forward: {pipe: b}, miss: host, entries: [{match: {ip.ttl: 1}, forward: {port: wan0}}, {match: {ip.ttl: 2}, forward: drop}, {match: {ip.ttl: 3}, forward: host}, {match: {ip.ttl: 4}, forward: policy}, {match: {ip.ttl: 5}}]}, {name: b, kind: control, miss: {port: wan1}}]",
		"ip.ttl=1 => port wan0\nip.ttl=2 => drop\nip.ttl=3 => host\nip.ttl=4 => policy\nip.ttl=5 => port wan1\nip.ttl=6 => host"},
	{"forward-stage", "pipes: [{name: a, kind: basic, match: ip.ttl, forward: {stage: forward, port: wan0}, miss: {stage: mirror, port: wan1, copy: mon0, on_failure: bypass}, entries: [{match: {ip.ttl: 1}}, {match: {ip.ttl: 2}, forward: {stage: mirror, port: wan0, copy: mon0}}]}]",
		"ip.ttl=1 => stage wan0\nip.ttl=2 => stage wan0 mon0\nip.ttl=3 => stage wan1 mon0"},
}

// described is a packet that has what the text says, and what that needs.
func described(t *testing.T, line *pipe.Pipeline, text string) (words oracle.Packet) {
	t.Helper()
	has := uint32(0)
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		if b, err := hex.DecodeString(value); err == nil && (name == "payload" || name == "l4" || name == "l3") {
			for i, r := range line.Raws {
				if r.Base == name && r.Offset+4 <= len(b) {
					words[int(bpf.PipesPipeWordPIPE_RAW0)+i] = binary.BigEndian.Uint32(b[r.Offset:])
					has |= uint32(bpf.PipesPipeHasPIPE_HAS_RAW0) << i
				}
			}
			continue
		}
		f := pipe.LookupField(name)
		if name == "port" {
			_, err := fmt.Sscan(value, &words[f.Word])
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		v, err := f.ParseValue(value)
		if err != nil {
			t.Fatalf("%s: %v", word, err)
		}
		if has |= f.Has; f.Only != 0 {
			has |= v[0]
			continue
		}
		copy(words[f.Word:], v)
	}
	if n := words[bpf.PipesPipeWordPIPE_VLANS]; n > 0 {
		has |= uint32(bpf.PipesPipeHasPIPE_HAS_VLAN0) | uint32(n-1)*uint32(bpf.PipesPipeHasPIPE_HAS_VLAN1)
	}
	const (
		ip        = bpf.PipesPipeHasPIPE_HAS_IPV4 | bpf.PipesPipeHasPIPE_HAS_IPV6
		ports     = bpf.PipesPipeHasPIPE_HAS_TCP | bpf.PipesPipeHasPIPE_HAS_UDP
		transport = bpf.PipesPipeHasPIPE_HAS_PORTS | bpf.PipesPipeHasPIPE_HAS_ICMP | bpf.PipesPipeHasPIPE_HAS_ESP | bpf.PipesPipeHasPIPE_HAS_VXLAN
	)
	if has&uint32(ports) != 0 {
		has |= uint32(bpf.PipesPipeHasPIPE_HAS_PORTS)
	}
	if has&uint32(ip|transport) != 0 {
		has |= uint32(bpf.PipesPipeHasPIPE_HAS_IP)
	}
	words[bpf.PipesPipeWordPIPE_HAS] = has
	words[bpf.PipesPipeWordPIPE_TICK] = 1
	return words
}

// TestFeatures: each thing that pipes do, in Go, by the oracle and, but for meters and turns, in the kernel.
func TestFeatures(t *testing.T) {
	for _, tt := range features {
		t.Run(tt.name, func(t *testing.T) {
			text := "apiVersion: softdpu/v1\nkind: Pipeline\nname: f\nroot: a\nbypasses_policy: true\n" + tt.line
			line, _, err := pipefile.Parse("f.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			// What leaves state behind would leave it three times.
			inKernel := len(line.Meters) == 0 && !strings.Contains(tt.line, "round-robin")
			r := newThree(t, line, pipe.Options{SpreadSeed: 1}, inKernel)
			var packets []bpf.PipesPipeFields
			var wants []string
			for row := range strings.SplitSeq(tt.packets, "\n") {
				what, want, ok := strings.Cut(row, " => ")
				if !ok {
					t.Fatalf("no packet: %s", row)
				}
				packets = append(packets, bpf.PipesPipeFields{Word: described(t, r.line, what)})
				wants = append(wants, want)
			}
			var answers []uint32
			after := make([]bpf.PipesPipeFields, kernelBatch)
			if copy(after, packets); r.kernel != nil {
				answers = r.kernel.run(t, after)
			}
			for i, want := range wants {
				f := packets[i]
				result := r.world.Walk(oracle.Packet(f.Word), 1<<20)
				got, _ := r.program.Run(&f)
				if fault := r.differs(result, got, &f); fault != "" {
					t.Errorf("packet %d: Go %s, oracle %s", i, fault, describe(result))
				}
				if r.kernel != nil && (answers[i] != got || !slices.Equal(after[i].Word[:wordIndex], f.Word[:wordIndex])) {
					t.Errorf("packet %d: the kernel answers %#x, Go %#x", i, answers[i], got)
				}
				r.wanted(t, i, want, result)
			}
			if r.kernel == nil {
				r.counts(t)
			}
		})
	}
}

// wanted compares what became of a packet with what a row says.
func (r *three) wanted(t *testing.T, i int, want string, got oracle.Result) {
	t.Helper()
	where, then, _ := strings.Cut(want, ";")
	words := strings.Fields(where)
	var ports []uint32
	for _, name := range words[1:] {
		ports = append(ports, r.line.Ports[name])
	}
	slices.Sort(ports)
	if got.To != pipe.Target(words[0]) || !slices.Equal(got.Ports, ports) {
		t.Errorf("packet %d goes to %s %v, not %s", i, got.To, got.Ports, where)
	}
	for word := range strings.FieldsSeq(then) {
		name, value, _ := strings.Cut(word, "=")
		f := pipe.LookupField(name)
		v, err := f.ParseValue(value)
		if err != nil {
			t.Fatal(err)
		}
		if has := got.After[f.Word : f.Word+f.Words()]; !slices.Equal(v, pipe.Value(has)) {
			t.Errorf("packet %d has %s %s, not %s", i, name, f.Text(has), value)
		}
	}
}
