package pipe_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
	"github.com/softdpu/softdpu/flowtable/pipe/random"
)

// framed is the whole program of a pipeline without ACL pipes, as a gateway loads it.
type framed struct {
	Program *ebpf.Program
	scratch *ebpf.Map
	cpus    [][]byte
	close   func()
}

func newFramed(t testing.TB, p *pipe.Program) *framed {
	t.Helper()
	spec, err := bpf.LoadPipes()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Replace(spec.Programs[bpf.PipesProgSoftdpuPipes]); err != nil {
		t.Fatal(err)
	}
	for name, value := range p.Constants() {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	p.Size(spec)
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			t.Fatalf("%v\n%s", err, strings.Join(ve.Log[max(0, len(ve.Log)-30):], "\n"))
		}
		t.Fatal(err)
	}
	m := p.Memory
	fill(t, c.Maps[bpf.PipesMapPipeEntries], m.Entries)
	fill(t, c.Maps[bpf.PipesMapPipeBuckets], m.Buckets)
	fill(t, c.Maps[bpf.PipesMapPipeTries], m.Tries)
	fill(t, c.Maps[bpf.PipesMapPipeRoots], m.Arena.Roots)
	fill(t, c.Maps[bpf.PipesMapPipeNodes4], m.Arena.Nodes4)
	fill(t, c.Maps[bpf.PipesMapPipeNodes6], m.Arena.Nodes6)
	return &framed{c.Programs[bpf.PipesProgSoftdpuPipes], c.Maps["pipe_scratches"], make([][]byte, ebpf.MustPossibleCPU()), c.Close}
}

// run takes a frame through the program, and returns what it leaves: the frame and its words.
func (k *framed) run(t testing.TB, frame []byte) ([]byte, []uint32) {
	t.Helper()
	o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64)}
	if _, err := k.Program.Run(o); err != nil {
		t.Fatalf("run %x: %v", frame, err)
	}
	if err := k.scratch.Lookup(uint32(0), &k.cpus); err != nil {
		t.Fatal(err)
	}
	return o.DataOut, slices.Clone((*bpf.PipesPipeFields)(unsafe.Pointer(&k.cpus[0][0])).Word[:])
}

func onFirstCPU(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // and it ends with the test: its CPU is not given back
	var first unix.CPUSet
	first.Set(0)
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		t.Skipf("keep to the first CPU: %v", err)
	}
}

// same holds what the kernel makes of a frame against what Go makes of it, and returns that; nil if it is dropped.
func (k *framed) same(t testing.TB, p *pipe.Program, frame []byte) []byte {
	t.Helper()
	got, words := k.run(t, frame)
	f := p.ParseFrame(slices.Clone(frame))
	parsed := f.Fields
	forward, walk, want, err := p.RunFrame(f)
	if have := f.Fields.Word[:fieldWords]; !slices.Equal(words[:fieldWords], have) {
		t.Fatalf("frame %x\nkernel leaves %v\nGo    leaves %v\nfrom         %v\nwalk %+v", frame, words[:fieldWords], have, parsed.Word[:fieldWords], walk)
	}
	if err != nil { // of a frame that is dropped the kernel may have written a part
		return nil
	}
	if want == nil {
		want = frame
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("frame %x\nkernel writes %x\nGo     writes %x\nforward %#x, walk %+v", frame, got, want, forward, walk)
	}
	return want
}

// odd makes a frame one of those that nobody sends often: other protocols, more extension headers, lengths that lie.
func odd(r *rand.Rand, frame []byte) []byte {
	out := slices.Clone(frame)
	at := 14
	for at+4 < len(out) && (binary.BigEndian.Uint16(out[at-2:]) == 0x8100 || binary.BigEndian.Uint16(out[at-2:]) == 0x88a8) {
		at += 4
	}
	if at+40 > len(out) {
		return out
	}
	protocols := []byte{6, 17, 33, 136, 58, 1, 50, 43, 44, 51, 60, 0, 59}
	switch kind := binary.BigEndian.Uint16(out[at-2:]); {
	case kind == 0x0800:
		switch r.IntN(5) {
		case 0:
			out[at+9] = protocols[r.IntN(len(protocols))]
		case 1:
			binary.BigEndian.PutUint16(out[at+2:], uint16(r.IntN(len(out))))
		case 2:
			out[at] = 0x40 | byte(r.IntN(16))
		case 3:
			out[at+6] = byte(r.IntN(64))
		case 4: // the checksum is left to hardware that is not there
			unfinished(out[at:], 4)
		}
	case kind == 0x86dd:
		if r.IntN(4) == 0 {
			unfinished(out[at:], 6)
			return out
		}
		chain := []byte(nil)
		next := out[at+6]
		if r.IntN(3) == 0 {
			next = protocols[r.IntN(len(protocols))]
		}
		for range r.IntN(10) {
			h := make([]byte, 8*(1+r.IntN(3)))
			h[0], h[1] = next, byte(len(h)/8-1)
			switch next = []byte{0, 43, 44, 51, 60, 43, 44}[r.IntN(7)]; next {
			case 43:
				h[3] = byte(r.IntN(3))
			case 44:
				h = h[:8]
				h[1] = 0
				binary.BigEndian.PutUint16(h[2:], []uint16{0, 1, 8, 9}[r.IntN(4)])
			case 51:
				h[1] = byte(len(h)/4 - 2)
			}
			chain = append(h, chain...)
		}
		out[at+6] = next
		out = slices.Insert(out, at+40, chain...)
		length := binary.BigEndian.Uint16(out[at+4:]) + uint16(len(chain))
		if r.IntN(5) == 0 {
			length = uint16(r.IntN(len(out)))
		}
		binary.BigEndian.PutUint16(out[at+4:], length)
	}
	return out
}

// unfinished has the checksum of TCP or UDP be the sum of the pseudo-header.
func unfinished(ip []byte, family int) {
	h, proto, addresses := 20, ip[9], ip[12:20]
	if family == 6 {
		h, proto, addresses = 40, ip[6], ip[8:40]
	}
	at := map[byte]int{6: 16, 17: 6}[proto]
	if at == 0 || len(ip) < h+20 {
		return
	}
	length := int(binary.BigEndian.Uint16(ip[2:])) - 20
	if family == 6 {
		length = int(binary.BigEndian.Uint16(ip[4:]))
	}
	sum := uint32(proto) + uint32(length)
	for i := 0; i < len(addresses); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(addresses[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ip[h+at:], uint16(sum))
}

// complete is what gopacket writes of a frame that it knows wholly, with the checksums that it computes; nil of others.
func complete(frame []byte) []byte {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	var list []gopacket.SerializableLayer
	var network gopacket.NetworkLayer
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.Ethernet, *layers.Dot1Q:
		case *layers.IPv4:
			network = l
		case *layers.IPv6:
			network = l
		case *layers.TCP:
			_ = l.SetNetworkLayerForChecksum(network)
			list = append(list, l, gopacket.Payload(l.LayerPayload()))
			b := gopacket.NewSerializeBuffer()
			if gopacket.SerializeLayers(b, gopacket.SerializeOptions{ComputeChecksums: true}, list...) != nil {
				return nil
			}
			return b.Bytes()
		case *layers.UDP:
			_ = l.SetNetworkLayerForChecksum(network)
			list = append(list, l, gopacket.Payload(l.LayerPayload()))
			b := gopacket.NewSerializeBuffer()
			if gopacket.SerializeLayers(b, gopacket.SerializeOptions{ComputeChecksums: true}, list...) != nil {
				return nil
			}
			return b.Bytes()
		default:
			return nil
		}
		list = append(list, p.Layers()[len(list)].(gopacket.SerializableLayer))
	}
	return nil
}

// TestFramesInKernel: the program finds in any frame what Go finds in it, and writes into it what Go writes, byte by byte;
// of frames that gopacket knows, its checksums stay right.
func TestFramesInKernel(t *testing.T) {
	needsRoot(t)
	onFirstCPU(t)
	lines, packets := 12, 300
	if os.Getenv("SOFTDPU_LONG") != "" {
		lines, packets = 300, 2000
	}
	changed, right := 0, 0
	check := func(k *framed, p *pipe.Program, source *random.Source, r *rand.Rand) {
		t.Helper()
		frame := source.Next().Frame
		if len(frame) > 1500 {
			return
		}
		before := complete(frame)
		if after := k.same(t, p, frame); after != nil && !bytes.Equal(after, frame) {
			changed++
			if bytes.Equal(before, frame) {
				if want := complete(after); want != nil && !bytes.HasPrefix(want, after) { // it pads what is short
					t.Fatalf("%x becomes %x, with the checksums of gopacket %x", frame, after, want)
				}
				right++
			}
		}
		k.same(t, p, random.Damage(r, frame))
		k.same(t, p, odd(r, frame))
	}
	all, _, err := pipefile.Parse("f.yaml", []byte(rewritesAll))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(0, 76))
	p := compiled(t, all, pipe.Options{})
	k, source := newFramed(t, p), random.Packets(r, p.Pipeline)
	for range 10 * packets {
		check(k, p, source, r)
	}
	k.close()
	for seed := uint64(0); lines > 0; seed++ {
		r := rand.New(rand.NewPCG(seed, 77))
		kinds := []pipe.Kind{pipe.Control, pipe.OrderedList, pipe.Basic, pipe.LPM, pipe.Hash, pipe.CT}
		line := random.Pipeline(r, random.Size{Kinds: kinds, Pipes: 6})
		if slices.ContainsFunc(line.Pipes, func(p *pipe.Pipe) bool { return p.Algorithm == pipe.RoundRobin || p.Algorithm == pipe.Random }) {
			continue
		}
		for _, p := range line.Pipes { // meters go by the kernel's clock
			if p.Monitor.Meter = ""; true {
				for _, e := range p.Entries {
					if e.Monitor != nil {
						e.Monitor.Meter = ""
					}
				}
			}
		}
		p := compiled(t, line, pipe.Options{Seed: seed, SpreadSeed: seed})
		if p.Used>>bpf.PipesPipeWordPIPE_RANDOM&1 == 1 {
			continue
		}
		lines--
		k, source := newFramed(t, p), random.Packets(r, p.Pipeline)
		for range packets {
			check(k, p, source, r)
		}
		k.close()
	}
	t.Logf("%d frames are changed, gopacket knows %d of them", changed, right)
	if changed < 500 || right < 100 {
		t.Errorf("%d frames are changed, gopacket knows %d of them: the test asks too little", changed, right)
	}
}

// rewritesAll changes all that can be changed.
const rewritesAll = `apiVersion: softdpu/v1
kind: Pipeline
name: f
root: a
bypasses_policy: true
raws: {a: {base: l3, offset: 7}, b: {base: l4, offset: 3}, c: {base: payload, offset: 0}}
pipes:
  - name: a
    kind: control
    miss: host
    actions:
      - do: [{set: ipv4.src, value: 192.0.2.1}, {add: ipv4.dst, value: 0.0.1.1}, {set: ipv6.src, value: "2001:db8::77"}, {add: ipv6.dst, value: "::1:0:0:ffff"},
             {add: l4.sport, value: 1000}, {copy: l4.dport, to: meta.0, bits: 16}, {set: l4.dport, value: 53}, {set: ip.dscp, value: ef}, {add: ip.ecn, value: 1}, {add: ip.ttl, value: 255},
             pop_vlan, {add: vlan.0.id, value: 1}, {push_vlan: {id: 100, pcp: 5}}, {add: eth.src, value: "00:00:00:00:00:01"}]
      - do: [{copy: meta.0, to: meta.1, bits: 32}]
    forward: host
    entries:
      - {match: {raw.a: 0/0x1}}
      - {match: {raw.b: 0/0x1, ip.checksum: ok}}
      - {match: {raw.c: 0/0x1}, action: 1}
`

// FuzzFrame: whatever the frame, the program finds in it what Go finds in it, and writes what Go writes.
func FuzzFrame(f *testing.F) {
	needsRoot(f)
	line, _, err := pipefile.Parse("f.yaml", []byte(rewritesAll))
	if err != nil {
		f.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	source := random.Packets(r, line)
	for range 200 {
		frame := source.Next().Frame
		f.Add(frame)
		f.Add(odd(r, frame))
	}
	resolved, err := line.Resolve(nil)
	if err != nil {
		f.Fatal(err)
	}
	p, err := pipe.Compile(resolved, pipe.Options{})
	if err != nil {
		f.Fatal(err)
	}
	k := newFramed(f, p)
	f.Cleanup(k.close)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 1500 {
			return
		}
		onFirstCPU(t)
		k.same(t, p, frame)
	})
}
