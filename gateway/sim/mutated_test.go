package sim

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/testenv"
)

// Frames of real captures with bytes changed, cut and repeated, in by random ports at random times:
// both engines say the same of each, in a simulation with inline and routed ports.
func TestMutatedCapturesThroughBothEngines(t *testing.T) {
	dir := os.Getenv("SOFTDPU_TESTDATA")
	if dir == "" {
		t.Skip("SOFTDPU_TESTDATA is not set: mutated captures left out")
	}
	testenv.RequireRoot(t)
	files, _ := filepath.Glob(filepath.Join(dir, "pcaps", "*.pcap*"))
	var frames [][]byte
	for _, file := range files {
		walk(t, file, func(c *Captured) {
			if frame, _, ok := c.Link.Ethernet(c.Data, nil); ok {
				frames = append(frames, bytes.Clone(frame))
			}
		})
	}
	if len(frames) == 0 {
		t.Fatal("no frame to change")
	}
	cfg := Config{
		Policy: compile(t, `zones: {a: {ports: [a]}, b: {ports: [b]}, v: {ports: [a, b], vlans: [7, 100]}, r: {ports: [r]}, s: {ports: [s]}, t: {ports: [s], vlans: [20]}}
nat:
  - {name: site, from: any, to: [r, s, t], prefix: {inside: 192.168.2.0/24, outside: 198.51.100.0/24}}
  - {name: six, from: any, to: any, prefix: {inside: "2001::/16", outside: "3ffe::/16"}}
  - {name: few, from: r, to: s, service: udp/53, masquerade: {ports: 3000-3007}}
  - {name: out, from: any, to: [s, t], masquerade: {}}
  - {name: pool, from: any, to: r, snat: {addresses: 203.0.113.8/30}}
  - {name: farm, from: any, to: [172.16.0.0/12, 10.0.0.0/9], service: tcp/80, dnat: {servers: [{address: 10.200.0.1, port: 8080}, {address: 192.168.7.7}, {address: 192.0.2.9}], spread: connection}}
rules:
  - {name: no-names, from: any, to: any, service: udp/53, action: reject}
  - {name: under-way, from: [b, s], to: any, service: tcp/any, action: allow, midstream: true}
  - {name: no-telnet, from: any, to: any, service: tcp/23, action: deny}
  - {name: all, from: any, to: any, action: allow}
`, firewall.CompileOptions{}),
		Ports: []Port{{Name: "a", MTU: 1500}, {Name: "b", MTU: 1300}, {Name: "r", MAC: [6]byte{2, 0, 0, 0, 0, 1}, IP4: netip.MustParseAddr("10.0.0.1"), IP6: netip.MustParseAddr("2001:db8::1")},
			{Name: "s", MAC: [6]byte{2, 0, 0, 0, 0, 2}, MTU: 1400, IP4: netip.MustParseAddr("10.0.0.2"), FixChecksums: true}},
		Inline: [][2]string{{"a", "b"}}, Ethertypes: []uint16{0x8864}, FlowsMax: 256,
		Routes: []Route{
			{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Port: "s", MAC: [6]byte{2, 1, 1, 1, 1, 1}},
			{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Port: "r", MAC: [6]byte{2, 1, 1, 1, 1, 2}},
			{Prefix: netip.MustParsePrefix("192.168.0.0/16"), Port: "s", VLAN: 20, MAC: [6]byte{2, 1, 1, 1, 1, 3}},
			{Prefix: netip.MustParsePrefix("172.16.0.0/12"), Port: "s"},
			{Prefix: netip.MustParsePrefix("192.168.1.0/24"), Kind: RouteHost},
			{Prefix: netip.MustParsePrefix("2000::/4"), Port: "r", MAC: [6]byte{2, 1, 1, 1, 1, 4}},
		},
	}
	for class := range cfg.Timeouts {
		for state := range cfg.Timeouts[class] {
			cfg.Timeouts[class][state] = uint32(500*(state+1) + 70*class)
		}
	}
	both := openBoth(t, cfg)
	n := 60_000
	if os.Getenv("SOFTDPU_LONG") != "" {
		n = 3_000_000
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	reasons, failures := map[string]int{}, 0
	now := uint64(1_700_000_000e9)
	for i := range n {
		frame, port := mutate(random, frames), []string{"a", "b", "r", "s"}[random.IntN(4)]
		if at := both[0].ports[port]; at.peer == nil && len(frame) > 6 && random.IntN(50) > 0 {
			copy(frame, at.MAC[:])
		}
		now += uint64(random.ExpFloat64() * 2e6)
		var results [2]Result
		for j, s := range both {
			var err error
			if results[j], err = s.Packet(now, port, frame); err != nil {
				t.Fatal(err)
			}
		}
		if difference := differ(&results[0], &results[1]); difference != "" {
			t.Errorf("packet %d, in by %s: %s\n%x", i, port, difference, frame)
			if failures++; failures == 10 {
				t.Fatal("and so on")
			}
		}
		reasons[fmt.Sprintf("%v %v", results[0].Verdict, results[0].Reason)]++
	}
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		t.Logf("%8d %s", reasons[name], name)
	}
	if a, b := both[0].Table().Flows(), both[1].Table().Flows(); a != b {
		t.Errorf("%d and %d flows at the end", a, b)
	}
}

// mutate returns a copy of one of the frames, three times in four with some of its headers changed.
func mutate(random *rand.Rand, frames [][]byte) []byte {
	frame := bytes.Clone(frames[random.IntN(len(frames))])
	if random.IntN(8) == 0 && len(frame) > 12 {
		tag := [][]byte{{0x81, 0, 0, 7}, {0x81, 0, 0, 100}, {0x88, 0xa8, 0, 7, 0x81, 0, 0, 9}, {0x81, 0, 0x20, 0}}[random.IntN(4)]
		frame = slices.Insert(frame, 12, tag...)
	}
	for range random.IntN(4) {
		if len(frame) == 0 {
			break
		}
		at := random.IntN(min(len(frame), 100))
		switch random.IntN(6) {
		case 0:
			frame = frame[:random.IntN(len(frame))+1]
		case 1:
			frame = append(frame, make([]byte, random.IntN(64))...)
		case 2:
			frame[at] ^= 1 << random.IntN(8)
		default:
			frame[at] = []byte{0, 1, 4, 5, 6, 8, 17, 44, 47, 50, 58, 60, 0x20, 0x40, 0x45, 0x60, 0x7f, 0x80, 0xe0, 0xff}[random.IntN(20)]
		}
	}
	if random.IntN(3) > 0 {
		mend(frame)
	}
	return frame
}

// mend corrects an IPv4 header checksum, so that what is behind it is looked at.
func mend(frame []byte) {
	h := ReadHeaders(frame)
	if h.Family == 4 && h.L4 <= len(frame) {
		frame[h.L3+10], frame[h.L3+11] = 0, 0
		sum := packet.Checksum(frame[h.L3:h.L4], 0)
		frame[h.L3+10], frame[h.L3+11] = byte(sum>>8), byte(sum)
	}
}
