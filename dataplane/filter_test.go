package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/cbpf"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/testenv"
)

// filterExpressions are of every kind that pcap-filter(7) knows for Ethernet, and that an operator types.
var filterExpressions = []string{
	"", "ip", "ip6", "arp", "tcp", "udp", "icmp", "icmp6", "ether proto 0x88cc", "ip proto 50", "ip6 proto 58", "proto 17",
	"host 10.0.0.1", "src host 192.168.1.10", "dst host 192.168.1.1 and udp", "host fe80::1", "ip6 host 2001:db8::1",
	"net 10.0.0.0/8", "src net 192.168.0.0/16", "dst net 172.16.0.0 mask 255.240.0.0", "net 2001:db8::/32", "src net 10.1",
	"port 53", "src port 443", "dst port 80", "tcp port 443", "udp dst port 4500", "not port 22", "portrange 1000-2000", "tcp src portrange 1024-65535",
	"tcp port 80 or tcp port 443", "(tcp port 80 or tcp port 443) and net 192.168.0.0/16", "udp and not port 53 and not host 10.0.0.1",
	"ether host 00:11:22:33:44:55", "ether src 00:0c:29:3e:5c:01", "ether broadcast", "ether multicast", "broadcast", "multicast", "ip multicast", "ip6 multicast",
	"greater 200", "less 100", "len > 60", "len == 66", "len & 1 = 1",
	"vlan", "vlan 10", "vlan and tcp", "vlan 10 and vlan 20", "not vlan", "pppoes", "mpls", "llc",
	"tcp[13] & 2 != 0", "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0", "tcp[tcpflags] == tcp-syn", "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
	"icmp[icmptype] = icmp-echo", "icmp6[0] = 128", "ip[8] < 64", "ip[6:2] & 0x1fff != 0", "ip6[6] = 17", "udp[4:2] > 500", "ether[0] & 1 = 0",
	"ip[2:2] - ((ip[0] & 0xf) << 2) > 40", "ip[0] & 0xf != 5", "ether[12:2] > 1500", "tcp[2:2] % 2 = 1", "(ip[12] ^ ip[16]) = 0", "ip[2:2] * 2 > 1000 or udp[0:2] / 3 = 17",
	"1 << ip[9] = 64", "len / ip[9] > 4", "len % ip[8] = 3", "0xffffffff >> ip[8] > 0", "-ip[8] + 64 = 0", "ip[2:2] | 1 = ip[2:2]",
	"ether[200] = 0", "ether[1400:4] > 5", "ip[len - 20] = 0", "udp[udp[4:2] - 1] > 127", "ether[len - 1] = 0", "ether[len] = 0", "ether[4000] = 0", "ether[8999] != 0",
	"host (10.0.0.1 or 10.0.0.2 or 192.168.1.1) and port (53 or 80)", "tcp and (src net 10.0.0.0/8 or dst net 10.0.0.0/8) and not (port 80 or port 8080)",
	"ip host 8.8.8.8 and (udp port 53 or tcp port 53) or icmp6 or arp", "sctp", "ah or esp", "igmp", "carp", "ip proto \\icmp", "link[0] = 1", "dst host ff02::fb",
}

// The filter takes what libpcap takes, of real captures and of frames that were damaged, tagged, or are
// larger than a page.
func TestFilterAgreesWithLibpcap(t *testing.T) {
	testenv.RequireRoot(t)
	frames := filterFrames(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "frames.pcap")
	writeFrames(t, file, frames)
	known, taken := 0, 0
	for _, expression := range filterExpressions {
		out, err := exec.Command("tcpdump", "-ddd", "-y", "EN10MB", "--", expression).CombinedOutput()
		if err != nil {
			t.Logf("%q is not for libpcap here: %s", expression, bytes.TrimSpace(out))
			continue
		}
		program, err := cbpf.Parse(string(out))
		if err != nil {
			t.Errorf("%q: %v", expression, err)
			continue
		}
		known++
		want := libpcapTakes(t, file, expression, len(frames))
		for hook, prog := range map[string]*ebpf.Program{"XDP": filterProgram(t, program, cbpf.XDP), "tc": filterProgram(t, program, cbpf.TC)} {
			for i, frame := range frames {
				if hook == "tc" && (len(frame) < 34 || len(frame) > 3000) {
					continue // the kernel runs no program on such skbs for a test
				}
				if got := filterTakes(t, prog, frame); got != want[i] {
					t.Errorf("%q, %s: frame %d of %d bytes: taken %v, by libpcap %v: %x", expression, hook, i, len(frame), got, want[i], frame[:min(80, len(frame))])
					break
				}
			}
			prog.Close()
		}
		for _, w := range want {
			if w {
				taken++
			}
		}
	}
	t.Logf("%d expressions on %d frames, %d taken", known, len(frames), taken)
	if known < 90 || taken < 300 {
		t.Errorf("%d expressions were tried, and %d frames taken: too few", known, taken)
	}
}

// filterFrames are real and made-up Ethernet frames.
func filterFrames(t *testing.T) [][]byte {
	t.Helper()
	frames := captureFrames(t)
	r := rand.New(rand.NewPCG(7, 7))
	for _, f := range slices.Clone(frames) {
		if r.IntN(4) == 0 { // cut, damaged and tagged copies
			frames = append(frames, f[:14+r.IntN(len(f)-13)])
			c := slices.Clone(f)
			c[12+r.IntN(min(len(c), 60)-12)] ^= byte(1 + r.IntN(255))
			frames = append(frames, c, tagFrame(f, 10), tagFrame(tagFrame(f, 20), 10))
		}
	}
	for _, size := range []int{60, 4000, 5000, 9014} {
		udp := udpFrame(size)
		frames = append(frames, udp, tagFrame(udp, 10))
	}
	return frames
}

// captureFrames are those of the captures in SOFTDPU_TESTDATA that are of Ethernet, every kind of
// conversation being cut short; without, a few of our own.
func captureFrames(t *testing.T) (frames [][]byte) {
	dir := os.Getenv("SOFTDPU_TESTDATA")
	if dir == "" {
		t.Log("SOFTDPU_TESTDATA is not set: real captures left out")
		for size := 60; size < 1514; size += 100 {
			frames = append(frames, udpFrame(size))
		}
		return frames
	}
	files, err := filepath.Glob(filepath.Join(dir, "pcaps", "*.pcap*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no captures (%v)", dir, err)
	}
	for _, name := range files {
		out, err := exec.Command("tcpdump", "-r", name, "-w", "-").Output() // of pcapng, too
		if err != nil {
			continue // of several kinds of links
		}
		link, packets := readFrames(t, out)
		if link != 1 {
			continue
		}
		for _, p := range packets[:min(12, len(packets))] {
			if len(p.frame) >= 14 && len(p.frame) < 9100 {
				frames = append(frames, p.frame)
			}
		}
	}
	return frames
}

func tagFrame(frame []byte, vid byte) []byte {
	return slices.Concat(frame[:12], []byte{0x81, 0, 0, vid}, frame[12:])
}

func udpFrame(size int) []byte {
	frame := make([]byte, size)
	for i := range frame {
		frame[i] = byte(i * 7)
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: false},
		&layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: []byte{2, 0, 0, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}},
		&layers.UDP{SrcPort: 53, DstPort: 4500},
		gopacket.Payload(frame[42:]))
	if err != nil {
		panic(err)
	}
	return b.Bytes()
}

// writeFrames writes a capture in which a frame's second is its number.
func writeFrames(t *testing.T, file string, frames [][]byte) {
	t.Helper()
	out := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	for _, word := range []uint32{2 | 4<<16, 0, 0, CaptureMax, 1} {
		out = binary.LittleEndian.AppendUint32(out, word)
	}
	for i, f := range frames {
		for _, word := range []int{i, 0, len(f), len(f)} {
			out = binary.LittleEndian.AppendUint32(out, uint32(word))
		}
		out = append(out, f...)
	}
	if err := os.WriteFile(file, out, 0o644); err != nil {
		t.Fatal(err)
	}
}

type pcapPacket struct {
	second uint32
	frame  []byte
}

// readFrames reads what tcpdump writes.
func readFrames(t *testing.T, b []byte) (link uint32, packets []pcapPacket) {
	t.Helper()
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 && binary.LittleEndian.Uint32(b) != 0xa1b23c4d {
		t.Fatalf("tcpdump wrote no capture: %x", b[:min(24, len(b))])
	}
	link = binary.LittleEndian.Uint32(b[20:])
	for b = b[24:]; len(b) >= 16; {
		n := binary.LittleEndian.Uint32(b[8:])
		packets = append(packets, pcapPacket{binary.LittleEndian.Uint32(b), b[16 : 16+n]})
		b = b[16+n:]
	}
	return link, packets
}

func libpcapTakes(t *testing.T, file, expression string, n int) []bool {
	t.Helper()
	cmd := exec.Command("tcpdump", "-r", file, "-w", "-", "--", expression)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tcpdump -r with %q: %v: %s", expression, err, &stderr)
	}
	taken := make([]bool, n)
	_, packets := readFrames(t, out)
	for _, p := range packets {
		taken[p.second] = true
	}
	return taken
}

// filterObject is read once: it is large.
var filterObject = sync.OnceValues(bpf.LoadXDP)

// filterProgram is a program that answers what the filter says, with the functions of our own that it
// calls.
func filterProgram(t *testing.T, program cbpf.Program, hook cbpf.Hook) *ebpf.Program {
	t.Helper()
	return filterProgramWithTag(t, program, hook, 0)
}

// filterProgramWithTag has the kernel put a VLAN tag beside the packet first, if vid is not 0.
func filterProgramWithTag(t *testing.T, program cbpf.Program, hook cbpf.Hook, vid int32) *ebpf.Program {
	t.Helper()
	spec, err := filterObject()
	if err != nil {
		t.Fatal(err)
	}
	from, function, kind := bpf.XDPProgSoftdpuTapped, "tap_matches_xdp", ebpf.XDP
	if hook == cbpf.TC {
		from, function, kind = bpf.XDPProgGuardTapped, "tap_matches_tc", ebpf.SchedCLS
	}
	whole := spec.Programs[from].Copy()
	main := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	if vid != 0 {
		main = append(main, asm.Mov.Imm(asm.R2, 0x0081), asm.Mov.Imm(asm.R3, vid), asm.FnSkbVlanPush.Call())
	}
	main = append(main, asm.Mov.Reg(asm.R1, asm.R6), asm.Call.Label(function), asm.Return())
	i32 := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	main[0] = btf.WithFuncMetadata(main[0], &btf.Func{
		Name: "main", Linkage: btf.GlobalFunc,
		Type: &btf.FuncProto{Return: i32, Params: []btf.FuncParam{{Name: "ctx", Type: &btf.Pointer{Target: &btf.Void{}}}}},
	}).WithSymbol("main").WithSource(whole.Instructions[0].Source())
	p := &ebpf.ProgramSpec{Name: "filter", Type: kind, License: "Dual BSD/GPL", Instructions: append(main, whole.Instructions...)}
	if hook == cbpf.XDP {
		p.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	body, err := program.Function(hook)
	if err != nil {
		t.Fatal(err)
	}
	if err := flowtable.ReplaceFunction(p, function, body); err != nil {
		t.Fatal(err)
	}
	prog, err := ebpf.NewProgram(p)
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			t.Fatalf("%v\n%s", err, strings.Join(ve.Log[max(0, len(ve.Log)-30):], "\n"))
		}
		t.Fatal(err)
	}
	return prog
}

func filterTakes(t *testing.T, prog *ebpf.Program, frame []byte) bool {
	t.Helper()
	o := &ebpf.RunOptions{Data: frame}
	answer, err := prog.Run(o)
	if err != nil {
		t.Fatalf("run filter on %d bytes: %v", len(frame), err)
	}
	return answer != 0
}

// A tag that stands beside a packet of the kernel is seen where it will be on the wire.
func TestFilterSeesTagBeside(t *testing.T) {
	testenv.RequireRoot(t)
	dir := t.TempDir()
	plain := udpFrame(300)
	tagged := tagFrame(plain, 10)
	file := filepath.Join(dir, "frames.pcap")
	writeFrames(t, file, [][]byte{tagged})
	for _, expression := range []string{
		"vlan", "vlan 10", "vlan 11", "vlan 10 and udp port 53", "ip", "not ip", "len = 304", "vlan and ip[2:2] = 286",
		"ether[10:4] = 0x00008100", "ether[12] = 0x81", "ether[13:2] = 0", "ether[14:4] = 0x000a0800", "ether[15] = 10", "ether[300:4] != 0", "ether[303] != 0", "ether[304] >= 0",
	} {
		out, err := exec.Command("tcpdump", "-ddd", "-y", "EN10MB", "--", expression).Output()
		if err != nil {
			t.Fatalf("%q: %v", expression, err)
		}
		program, err := cbpf.Parse(string(out))
		if err != nil {
			t.Fatalf("%q: %v", expression, err)
		}
		prog := filterProgramWithTag(t, program, cbpf.TC, 10)
		if got, want := filterTakes(t, prog, plain), libpcapTakes(t, file, expression, 1)[0]; got != want {
			t.Errorf("%q: taken %v, by libpcap %v", expression, got, want)
		}
		prog.Close()
	}
}

// What no compiler writes, but somebody may ask for: the longest programs, dead code, loads far away.
func TestFilterOddPrograms(t *testing.T) {
	testenv.RequireRoot(t)
	long := make(cbpf.Program, 0, 4096)
	for len(long) < 1200 { // each asks for a byte and goes on
		long = append(long, cbpf.Instruction{Code: 0x30, K: uint32(len(long) % 60)}, cbpf.Instruction{Code: 0x15, JF: 0, JT: 0, K: 1})
	}
	long = append(long, cbpf.Instruction{Code: 0x06, K: 1})
	for _, c := range []struct {
		name    string
		program cbpf.Program
		takes   bool
	}{
		{"many loads", long, true},
		{"dead code", cbpf.Program{{Code: 0x05, K: 1}, {Code: 0x06, K: 0}, {Code: 0x06, K: 7}}, true},
		{"everything", cbpf.All, true},
		{"a load where no frame reaches", cbpf.Program{{Code: 0x20, K: 1 << 31}, {Code: 0x06, K: 1}}, false},
		{"an offset that would wrap around", cbpf.Program{{Code: 0x01, K: 0xffffffff}, {Code: 0x50, K: 1}, {Code: 0x06, K: 1}}, false},
		{"a shift by more than a word", cbpf.Program{{Code: 0x00, K: 1}, {Code: 0x01, K: 32}, {Code: 0x6c}, {Code: 0x16}}, false},
		{"a division by 0", cbpf.Program{{Code: 0x00, K: 1}, {Code: 0x01, K: 0}, {Code: 0x3c}, {Code: 0x06, K: 1}}, false},
		{"memory that nobody wrote", cbpf.Program{{Code: 0x60, K: 15}, {Code: 0x16}}, false},
		{"memory", cbpf.Program{{Code: 0x01, K: 0x80000000}, {Code: 0x03, K: 15}, {Code: 0x60, K: 15}, {Code: 0x16}}, true},
	} {
		for _, hook := range []cbpf.Hook{cbpf.XDP, cbpf.TC} {
			prog := filterProgram(t, c.program, hook)
			if got := filterTakes(t, prog, udpFrame(100)); got != c.takes {
				t.Errorf("%s, hook %d: taken %v", c.name, hook, got)
			}
			prog.Close()
		}
	}
}
