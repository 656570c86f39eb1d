package gateway

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/testenv"
)

// The baseline of the specification; ICMP has type and code where others have ports.
func TestCommunityIDBaseline(t *testing.T) {
	for _, row := range []struct {
		proto        uint8
		src, dst     string
		sport, dport uint16
		want         string
	}{
		{58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", 135, 0, "1:dGHyGvjMfljg6Bppwm3bg0LO8TY="},
		{58, "fe80::260:97ff:fe07:69ea", "fe80::200:86ff:fe05:80da", 136, 0, "1:dGHyGvjMfljg6Bppwm3bg0LO8TY="},
		{58, "fe80::260:97ff:fe07:69ea", "fe80::200:86ff:fe05:80da", 135, 0, "1:zavyT/cezQr1fmImYCwYnMXbgck="},
		{58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", 136, 0, "1:zavyT/cezQr1fmImYCwYnMXbgck="},
		{58, "3ffe:501:1800:2345::2", "3ffe:507:0:1:200:86ff:fe05:80da", 3, 0, "1:2ObVBgIn28oZvibYZhZMBgh7WdQ="},
		{58, "3ffe:501:410:0:2c0:dfff:fe47:33e", "3ffe:507:0:1:200:86ff:fe05:80da", 1, 4, "1:hLZd0XGWojozrvxqE0dWB1iM6R0="},
		{58, "3ffe:507:0:1:200:86ff:fe05:80da", "3ffe:501:0:1001::2", 128, 0, "1:+TW+HtLHvV1xnGhV1lv7XoJrqQg="},
		{58, "3ffe:501:0:1001::2", "3ffe:507:0:1:200:86ff:fe05:80da", 129, 0, "1:+TW+HtLHvV1xnGhV1lv7XoJrqQg="},
		{58, "fe80::200:86ff:fe05:80da", "ff02::2", 133, 0, "1:hO+sN4H+MG5MY/8hIrXPqc4ZQz0="},
		{58, "fe80::260:97ff:fe07:69ea", "ff02::1", 134, 0, "1:pkvHqCL88/tg1k4cPigmZXUtL00="},
		{1, "192.168.0.89", "192.168.0.1", 8, 0, "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="},
		{1, "192.168.0.1", "192.168.0.89", 0, 0, "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="},
		{1, "10.0.0.1", "10.0.0.2", 11, 0, "1:YHxtAirCG//0OzkcVAukqKQN9xM="},
		{6, "2001:470:e5bf:dead:4957:2174:e82c:4887", "2607:f8b0:400c:c03::1a", 63943, 25, "1:/qFaeAR+gFe1KYjMzVDsMv+wgU4="},
		{6, "2607:f8b0:400c:c03::1a", "2001:470:e5bf:dead:4957:2174:e82c:4887", 25, 63943, "1:/qFaeAR+gFe1KYjMzVDsMv+wgU4="},
		{6, "128.232.110.120", "66.35.250.204", 34855, 80, "1:LQU9qZlK+B5F3KDmev6m5PMibrg="},
		{6, "66.35.250.204", "128.232.110.120", 80, 34855, "1:LQU9qZlK+B5F3KDmev6m5PMibrg="},
		{17, "192.168.1.52", "8.8.8.8", 54585, 53, "1:d/FP5EW3wiY1vCndhwleRRKHowQ="},
		{17, "8.8.8.8", "192.168.1.52", 53, 54585, "1:d/FP5EW3wiY1vCndhwleRRKHowQ="},
		{46, "10.1.12.1", "10.1.12.2", 0, 0, "1:KHlLkgoJW7ifUTyTSgyVfkFHzKw="},
		{46, "10.1.12.2", "10.1.12.1", 0, 0, "1:KHlLkgoJW7ifUTyTSgyVfkFHzKw="},
		{132, "192.168.170.8", "192.168.170.56", 0, 0, ""}, // ports are not known
	} {
		if got := communityID(row.proto, netip.MustParseAddr(row.src), netip.MustParseAddr(row.dst), row.sport, row.dport); got != row.want {
			t.Errorf("%d %s %d > %s %d: %q, want %q", row.proto, row.src, row.sport, row.dst, row.dport, got, row.want)
		}
	}
}

// Both directions have one id, also between two ports of one address.
func TestCommunityIDHasNoDirection(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	ids := map[string]bool{}
	for range 1000 {
		var a, b [4]byte
		binary.BigEndian.PutUint32(a[:], random.Uint32())
		binary.BigEndian.PutUint32(b[:], random.Uint32())
		if random.IntN(4) == 0 {
			b = a
		}
		src, dst, sport, dport := netip.AddrFrom4(a), netip.AddrFrom4(b), uint16(random.Uint32()), uint16(random.Uint32())
		id := communityID(6, src, dst, sport, dport)
		if back := communityID(6, dst, src, dport, sport); back != id {
			t.Fatalf("seed %d: %s:%d and %s:%d have %s and %s", seed, src, sport, dst, dport, id, back)
		}
		ids[id] = true
	}
	if len(ids) != 1000 {
		t.Errorf("seed %d: %d ids for 1000 flows", seed, len(ids))
	}
}

// Wireshark gives the packets of the captures the same ids.
func TestCommunityIDAsWireshark(t *testing.T) {
	dir := os.Getenv("SOFTDPU_TESTDATA")
	if dir == "" {
		t.Skip("SOFTDPU_TESTDATA is not set: Community IDs of captures left out")
	}
	tshark := testenv.RequireProgram(t, "tshark")
	var captures []string
	for _, pattern := range []string{"nDPI__d*", "nDPI__http*", "nDPI__quic*", "nDPI__tls_w*", "live__aes128gcm16*", "zeek__retry*"} {
		captures = append(captures, must(filepath.Glob(filepath.Join(dir, "pcaps", pattern)))...)
	}
	compared := map[uint8]int{}
	for _, capture := range captures {
		cmd := exec.CommandContext(t.Context(), tshark, "-n", "-r", capture, "--enable-protocol", "communityid", "-T", "fields", "-E", "separator=|",
			"-e", "communityid", "-e", "ip.src", "-e", "ip.dst", "-e", "ipv6.src", "-e", "ipv6.dst", "-e", "ip.proto",
			"-e", "tcp.srcport", "-e", "tcp.dstport", "-e", "udp.srcport", "-e", "udp.dstport",
			"-e", "icmp.type", "-e", "icmp.code", "-e", "icmpv6.type", "-e", "icmpv6.code")
		out, _ := cmd.Output() // a capture that ends in the middle of a packet is an error, behind all others
		for line := range strings.Lines(string(out)) {
			f := strings.Split(strings.TrimSpace(line), "|")
			if len(f) != 14 || f[0] == "" || strings.Contains(line, ",") {
				continue // no id, or packets inside packets
			}
			src, err1 := netip.ParseAddr(f[1] + f[3])
			dst, err2 := netip.ParseAddr(f[2] + f[4])
			if err1 != nil || err2 != nil {
				continue
			}
			var proto uint8
			var ports [2]string
			for _, kind := range []struct {
				proto  uint8
				fields []string
			}{{6, f[6:8]}, {17, f[8:10]}, {1, f[10:12]}, {58, f[12:14]}} {
				if kind.fields[0] != "" {
					proto, ports = kind.proto, [2]string(kind.fields)
				}
			}
			if proto == 0 {
				number, err := strconv.ParseUint(f[5], 10, 8)
				if err != nil || number == protoTCP || number == protoUDP || number == protoSCTP || isICMP(uint8(number)) {
					continue // fragments
				}
				proto = uint8(number)
			}
			sport, _ := strconv.ParseUint(ports[0], 10, 16)
			dport, _ := strconv.ParseUint(ports[1], 10, 16)
			if got := communityID(proto, src, dst, uint16(sport), uint16(dport)); got != f[0] {
				t.Errorf("%s: %s: %s", filepath.Base(capture), line, got)
			}
			compared[proto]++
		}
	}
	t.Logf("packets by protocol: %v", compared)
	if compared[protoTCP] < 500 || compared[protoUDP] < 100 || compared[protoICMP] == 0 || compared[protoICMPv6] == 0 {
		t.Errorf("only these were compared: %v", compared)
	}
}
