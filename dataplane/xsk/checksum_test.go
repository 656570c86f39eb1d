package xsk

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// naiveChecksum adds words one by one, as RFC 1071 says it.
func naiveChecksum(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(append([]byte{}, b...), 0)
	}
	sum := uint32(0)
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
		sum = sum&0xffff + sum>>16
	}
	if sum == 0xffff {
		return 0xffff
	}
	return ^uint16(sum)
}

// TestCompleteChecksum cuts packets into frames at random places, odd ones among them.
func TestCompleteChecksum(t *testing.T) {
	u, err := NewUMEM(UMEMOptions{Frames: 16, FrameSize: 2048, MultiBuffer: true})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	p, err := u.NewPool(16)
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		data := make([]byte, 60+r.IntN(2000))
		for i := range data {
			data[i] = byte(r.Uint32()) * byte(r.IntN(2))
		}
		start, offset := 14+r.IntN(20), 2*r.IntN(10)
		want := naiveChecksum(data[start:])

		packet := make([]Desc, 1+r.IntN(4))
		if p.Alloc(packet) != len(packet) {
			t.Fatal("the pool is empty")
		}
		rest := data
		for i := range packet {
			n := r.IntN(len(rest)/2 + 1)
			if i == 0 {
				n += 2
			}
			if i == len(packet)-1 {
				n = len(rest)
			}
			n = min(n, len(rest), u.Payload())
			if i < len(packet)-1 {
				packet[i].Options = Continues
			}
			packet[i].Len = uint32(n)
			copy(u.Frame(packet[i]), rest[:n])
			rest = rest[n:]
		}
		if len(rest) > 0 { // the last frame was too short for it
			p.Free(packet)
			continue
		}
		u.CompleteChecksum(packet, start, offset)
		var got []byte
		for _, d := range packet {
			got = append(got, u.Frame(d)...)
		}
		if sum := binary.BigEndian.Uint16(got[start+offset:]); sum != want {
			t.Fatalf("checksum %#04x, want %#04x: %d bytes in %d frames, from %d at %d", sum, want, len(data), len(packet), start, offset)
		}
		copy(data[start+offset:], got[start+offset:start+offset+2])
		for i := range data {
			if data[i] != got[i] {
				t.Fatalf("byte %d was changed", i)
			}
		}
		p.Free(packet)
	}
}

func TestVersionAtLeast(t *testing.T) {
	for _, tt := range []struct {
		release      string
		major, minor int
		want         bool
	}{
		{"6.18.44-fc-v769", 6, 18, true},
		{"6.18.44-fc-v769", 6, 19, false},
		{"6.1.0-52-amd64", 6, 6, false},
		{"7.2.13+deb14-amd64", 6, 8, true},
		{"5.15.0", 6, 1, false},
		{"6.8-rc1", 6, 8, true},
	} {
		if got := versionAtLeast(tt.release, tt.major, tt.minor); got != tt.want {
			t.Errorf("%s at least %d.%d: %t", tt.release, tt.major, tt.minor, got)
		}
	}
}
