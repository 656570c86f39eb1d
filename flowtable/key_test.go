package flowtable

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// The hash reads keys word by word; the program reads the same memory.
func TestHashReadsTheKeysMemory(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		seed := rng.Uint64()
		tuple := randomTuple(rng, 4)
		k := keyOf(&tuple)
		mem := unsafe.Slice((*byte)(unsafe.Pointer(&k.v4)), unsafe.Sizeof(k.v4))
		if got, want := hash4(&k.v4, seed), slowHash(mem, seed); got != want {
			t.Fatalf("IPv4 key % x: hash %#x, want %#x", mem, got, want)
		}
		tuple = randomTuple(rng, 6)
		k = keyOf(&tuple)
		mem = unsafe.Slice((*byte)(unsafe.Pointer(&k.v6)), unsafe.Sizeof(k.v6))
		if got, want := hash6(&k.v6, seed), slowHash(mem, seed); got != want {
			t.Fatalf("IPv6 key % x: hash %#x, want %#x", mem, got, want)
		}
	}
}

func slowHash(mem []byte, seed uint64) uint32 {
	h := (binary.LittleEndian.Uint64(mem) ^ seed) * 0xff51afd7ed558ccd
	h ^= h >> 32
	for mem = mem[8:]; len(mem) > 0; mem = mem[8:] {
		h = (h ^ binary.LittleEndian.Uint64(mem)) * 0xc4ceb9fe1a85ec53
		h ^= h >> 29
	}
	h *= 0x9E3779B97F4A7C15
	return uint32(h >> 32)
}

func randomTuple(rng *rand.Rand, family uint8) Tuple {
	t := Tuple{Family: family, Proto: uint8(rng.Uint32()), Domain: uint16(rng.Uint32()), SrcPort: uint16(rng.Uint32()), DstPort: uint16(rng.Uint32())}
	n := 4
	if family == 6 {
		n = 16
	}
	for i := range n {
		t.Src[i], t.Dst[i] = byte(rng.Uint32()), byte(rng.Uint32())
	}
	return t
}

func TestKeyIsCanonical(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 1000 {
		tuple := randomTuple(rng, 4+2*uint8(i%2))
		back := tuple.reverse()
		k, b := keyOf(&tuple), keyOf(&back)
		if k.v4 != b.v4 || k.v6 != b.v6 || k.sender == b.sender {
			t.Fatalf("%+v: keys of both directions differ, or senders do not: %+v, %+v", tuple, k, b)
		}
		if swapped := tuple.Destination().Less(tuple.Source()); swapped != (k.sender == 1) {
			t.Fatalf("%v to %v: sender %d", tuple.Source(), tuple.Destination(), k.sender)
		}
		again := tuple4(&k.v4, k.sender)
		if tuple.Family == 6 {
			again = tuple6(&k.v6, k.sender)
		}
		if again != tuple {
			t.Fatalf("%+v comes back as %+v", tuple, again)
		}
	}
}

// Keys hold addresses and ports as the packet does.
func TestKeyBytes(t *testing.T) {
	tuple := Tuple{Family: 4, Proto: 6, Domain: 0x1064, Src: packet.Addr{10, 2, 0, 2}, Dst: packet.Addr{10, 1, 0, 2}, SrcPort: 443, DstPort: 40000}
	k := keyOf(&tuple)
	want := []byte{10, 1, 0, 2, 10, 2, 0, 2, 40000 >> 8, 40000 & 0xff, 443 >> 8, 443 & 0xff, 0x64, 0x10, 6, 0}
	if got := unsafe.Slice((*byte)(unsafe.Pointer(&k.v4)), 16); string(got) != string(want) {
		t.Errorf("key is % x, want % x", got, want)
	}
}

func TestCandidates(t *testing.T) {
	const mask, stripes = 1023, 4
	rng := rand.New(rand.NewPCG(5, 6))
	var used [mask + 1]int
	for range 100_000 {
		c := candidatesOf(rng.Uint32(), mask, stripes)
		a, b := c.group[0], c.group[1]
		if a > mask || b > mask || a == b || a&(1<<stripes-1) != b&(1<<stripes-1) || c.first > 3 {
			t.Fatalf("candidates %+v", c)
		}
		used[b]++
	}
	for g, n := range used {
		if n < 40 {
			t.Fatalf("group %d is the second candidate of %d of 100,000 keys", g, n)
		}
	}
}

func TestLayout(t *testing.T) {
	var f4 bpf.XDPFlow4
	var f6 bpf.XDPFlow6
	for name, v := range map[string][2]uintptr{
		"flow4":       {unsafe.Sizeof(f4), 128},
		"flow6":       {unsafe.Sizeof(f6), 256},
		"flow4.core":  {unsafe.Offsetof(f4.Core), 16},
		"flow4.count": {unsafe.Offsetof(f4.Count), 40},
		"flow4.leg":   {unsafe.Offsetof(f4.Leg), 72},
		"flow6.core":  {unsafe.Offsetof(f6.Core), 40},
		"flow6.leg":   {unsafe.Offsetof(f6.Leg), 96},
		"leg":         {unsafe.Sizeof(f4.Leg[0]), 24},
	} {
		if v[0] != v[1] {
			t.Errorf("%s: %d, abi.h says %d", name, v[0], v[1])
		}
	}
}
