package oracle

import (
	"slices"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
)

// TestMeters: colours that are worked out by hand.
func TestMeters(t *testing.T) {
	const ms = 1_000_000
	type arrival struct {
		at            uint64 // ms
		bytes, before uint32
		want          uint32
	}
	for _, tt := range []struct {
		name  string
		meter pipe.Meter
		come  []arrival
	}{
		{"2697: committed, excess, and both fill from one rate", pipe.Meter{Type: "rfc2697", Rate: [2]uint64{1000}, Size: [2]uint64{1000, 500}}, []arrival{
			{0, 1000, green, green}, {0, 500, green, yellow}, {0, 1, green, red}, {100, 101, green, red}, {100, 100, green, green},
			{1600, 500, green, green}, {1600, 600, green, red}, {1600, 500, green, green}, {1600, 500, green, yellow}, {1600, 1, green, red},
		}},
		{"2697: blind to colours unless aware", pipe.Meter{Type: "rfc2697", Rate: [2]uint64{1000}, Size: [2]uint64{1000, 500}}, []arrival{{0, 100, red, green}}},
		{"2697: aware", pipe.Meter{Type: "rfc2697", Aware: true, Rate: [2]uint64{1000}, Size: [2]uint64{1000, 500}}, []arrival{
			{0, 100, red, red}, {0, 400, yellow, yellow}, {0, 101, yellow, red}, {0, 1000, green, green},
		}},
		{"2698: the peak bucket first", pipe.Meter{Type: "rfc2698", Rate: [2]uint64{1000, 2000}, Size: [2]uint64{500, 1000}}, []arrival{
			{0, 500, green, green}, {0, 500, green, yellow}, {0, 1, green, red}, {100, 200, green, yellow}, {100, 1, green, red}, {200, 200, green, green},
		}},
		{"2698: aware", pipe.Meter{Type: "rfc2698", Aware: true, Rate: [2]uint64{1000, 2000}, Size: [2]uint64{500, 1000}}, []arrival{
			{0, 500, yellow, yellow}, {0, 100, red, red}, {0, 500, green, green}, {0, 1, yellow, red},
		}},
		{"4115: two buckets apart", pipe.Meter{Type: "rfc4115", Rate: [2]uint64{1000, 2000}, Size: [2]uint64{500, 1000}}, []arrival{
			{0, 500, green, green}, {0, 1000, green, yellow}, {0, 1, green, red}, {100, 200, green, yellow}, {100, 100, green, green}, {100, 1, green, red},
		}},
		{"4115: aware", pipe.Meter{Type: "rfc4115", Aware: true, Rate: [2]uint64{1000, 2000}, Size: [2]uint64{500, 1000}}, []arrival{
			{0, 1001, yellow, red}, {0, 1000, yellow, yellow}, {0, 500, green, green},
		}},
		{"packets", pipe.Meter{Type: "rfc2697", Packets: true, Rate: [2]uint64{10}, Size: [2]uint64{1, 1}}, []arrival{
			{0, 1500, green, green}, {0, 1500, green, yellow}, {0, 64, green, red}, {99, 64, green, red}, {100, 64, green, green},
		}},
	} {
		b := newBucket(&tt.meter)
		for i, a := range tt.come {
			if got := b.color(a.bytes, a.before, 5*second+a.at*ms); got != a.want {
				t.Errorf("%s: packet %d is %d, want %d", tt.name, i, got, a.want)
			}
		}
	}
}

const line = `
apiVersion: softdpu/v1
kind: Pipeline
name: p
root: a
bypasses_policy: true
mirrors: {tap: [p5]}
pipes:
  - name: a
    kind: control
    miss: policy
    entries:
      - {name: later, priority: 2, match: {ip.ttl: 1-10}, forward: drop}
      - {name: sooner, priority: 1, match: {ip.ttl: 5}, forward: {pipe: b}}
      - {name: known, conditions: [ip.ttl > meta.0, ip.ttl == 99], forward: {pipe: c, index: meta.0}}
      - {name: copied, match: {ip.ttl: 77}, monitor: {mirror: tap, count: true}, forward: {port: p3}}
  - name: b
    kind: lpm
    match: [ipv4.dst, vlan.0.id]
    forward: {pipe: d}
    miss: host
    entries:
      - {name: short, prefix: 10.0.0.0/8, match: {vlan.0.id: 7}}
      - {name: long, prefix: 10.1.0.0/16, match: {vlan.0.id: 7}}
      - {name: other, prefix: 10.1.1.0/24, match: {vlan.0.id: 8}}
  - name: c
    kind: ordered-list
    forward: policy
    miss: drop
    entries:
      - {name: zero, index: 0, list: [[{copy: ipv4.dst, to: meta.1, from_bit: 8, to_bit: 4, bits: 8}], [{add: ip.ttl, value: 200}, {push_vlan: {id: 3, pcp: 1}}, {push_vlan: 4}, pop_vlan]]}
  - name: d
    kind: hash
    algorithm: flood
    miss: drop
    entries: [{index: 0, forward: {port: p3}}, {index: 1, forward: {port: p4}}]
`

// TestWalk follows packets whose way is worked out by hand.
func TestWalk(t *testing.T) {
	p, _, err := pipefile.Parse("p.yaml", []byte(line))
	if err != nil {
		t.Fatal(err)
	}
	if p, err = p.Resolve(map[string]uint32{"p3": 3, "p4": 4, "p5": 5}); err != nil {
		t.Fatal(err)
	}
	const ip = hasIP | uint32(bpf.PipesPipeHasPIPE_HAS_IPV4)
	packet := func(ttl, dst uint32, more ...uint32) (p Packet) {
		p[wordHas], p[wordTTL], p[wordLength] = ip, ttl, 100
		p[bpf.PipesPipeWordPIPE_IP_DST] = dst
		if len(more) > 0 {
			p[wordHas] |= hasVLAN0
			p[wordVLANs], p[wordID0] = 1, more[0]
		}
		return p
	}
	for _, tt := range []struct {
		name  string
		in    Packet
		walk  []string
		to    pipe.Target
		ports []uint32
	}{
		{"no entry", packet(50, 0), []string{"-"}, pipe.ToPolicy, nil},
		{"no IP", Packet{}, []string{"-"}, pipe.ToPolicy, nil},
		{"a range", packet(10, 0), []string{"later"}, pipe.ToDrop, nil},
		{"behind a range", packet(11, 0), []string{"-"}, pipe.ToPolicy, nil},
		{"the lower priority", packet(5, 0x0a010101, 7), []string{"sooner", "long", "+"}, pipe.ToPort, []uint32{3, 4}},
		{"the shorter prefix", packet(5, 0x0a020101, 7), []string{"sooner", "short", "+"}, pipe.ToPort, []uint32{3, 4}},
		{"no tag", packet(5, 0x0a020101), []string{"sooner", "-"}, pipe.ToHost, nil},
		{"a list", packet(99, 0x0a02ff01), []string{"known", "zero"}, pipe.ToPolicy, nil},
		{"a mirror", packet(77, 0), []string{"copied"}, pipe.ToPort, []uint32{3, 5}},
	} {
		r := New(p).Walk(tt.in, 0)
		var walk []string
		for _, s := range r.Walk {
			switch {
			case s.Entry != nil:
				walk = append(walk, s.Entry.Name)
			case s.Found:
				walk = append(walk, "+")
			default:
				walk = append(walk, "-")
			}
		}
		if !slices.Equal(walk, tt.walk) || r.To != tt.to || !slices.Equal(r.Ports, tt.ports) {
			t.Errorf("%s: %v to %s %v", tt.name, walk, r.To, r.Ports)
		}
		if tt.name == "a list" {
			want := packet(99+200-256, 0x0a02ff01)
			want[bpf.PipesPipeWordPIPE_META1] = 0xff << 4
			want[wordHas] |= hasVLAN0
			want[wordVLANs], want[wordID0], want[wordPCP0] = 1, 3, 1
			if r.After != want {
				t.Errorf("the packet is %v\nwant %v", r.After, want)
			}
		}
	}
	w := New(p)
	for range 3 {
		w.Walk(packet(77, 0), 0)
	}
	w.Walk(packet(50, 0), 0)
	if got := w.Counts[p.Pipes[0].Entries[3]]; got != (Count{3, 300}) {
		t.Errorf("the entry counts %v", got)
	}
	if got := w.Misses[p.Pipes[0]]; got != (Count{1, 100}) {
		t.Errorf("misses are %v", got)
	}
}
