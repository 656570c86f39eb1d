package pipe

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// exactMeter is a meter as the RFCs tell it, with rational numbers of units and seconds.
type exactMeter struct {
	m      *Meter
	last   *big.Rat // s; nil: full
	tokens [2]*big.Rat
}

func (x *exactMeter) colour(ns uint64, bytes, colour uint32) uint32 {
	now := big.NewRat(int64(ns), 1e9)
	var size, rate [2]*big.Rat
	for i := range size {
		size[i], rate[i] = new(big.Rat).SetUint64(x.m.Size[i]), new(big.Rat).SetUint64(x.m.Rate[i])
	}
	least := func(a, b *big.Rat) *big.Rat {
		if a.Cmp(b) < 0 {
			return a
		}
		return b
	}
	if x.last == nil {
		x.last, x.tokens = now, size
	}
	if passed := new(big.Rat).Sub(now, x.last); passed.Sign() > 0 {
		x.last = now
		come := new(big.Rat).Mul(rate[0], passed)
		sum := new(big.Rat).Add(x.tokens[0], come)
		x.tokens[0] = least(sum, size[0])
		second := new(big.Rat).Mul(rate[1], passed)
		if x.m.Type == "rfc2697" { // what the first bucket has no room for
			second = new(big.Rat).Sub(sum, x.tokens[0])
		}
		x.tokens[1] = least(new(big.Rat).Add(x.tokens[1], second), size[1])
	}
	cost := new(big.Rat).SetUint64(uint64(bytes))
	if x.m.Packets {
		cost.SetUint64(1)
	}
	if !x.m.Aware {
		colour = colorGreen
	}
	has := [2]bool{x.tokens[0].Cmp(cost) >= 0, x.tokens[1].Cmp(cost) >= 0}
	var uses [2]bool
	switch x.m.Type {
	case "rfc2697", "rfc4115":
		switch {
		case colour == colorGreen && has[0]:
			uses[0] = true
		case colour != colorRed && has[1]:
			colour, uses[1] = colorYellow, true
		default:
			colour = colorRed
		}
	case "rfc2698":
		switch {
		case colour == colorRed || !has[1]:
			colour = colorRed
		case colour == colorYellow || !has[0]:
			colour, uses[1] = colorYellow, true
		default:
			uses[0], uses[1] = true, true
		}
	}
	for i, used := range uses {
		if used {
			x.tokens[i] = new(big.Rat).Sub(x.tokens[i], cost)
		}
	}
	return colour
}

// Meters colour every packet as exact arithmetic does, from one byte a second to more than 400 Gbit/s, after no time and after
// days.
func TestMeterAgainstRationals(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	magnitude := func(most float64) uint64 { return uint64(math.Exp(rnd.Float64() * math.Log(most))) }
	var seen [3]int
	for range 600 {
		m := &Meter{
			Name: "m", Type: []string{"rfc2697", "rfc2698", "rfc4115"}[rnd.IntN(3)], Packets: rnd.IntN(3) == 0, Aware: rnd.IntN(2) == 0,
			Rate: [2]uint64{magnitude(MeterRate), magnitude(MeterRate)}, Size: [2]uint64{magnitude(MeterSize), magnitude(MeterSize)},
		}
		switch rnd.IntN(6) {
		case 0:
			m.Size = [2]uint64{MeterSize, MeterSize}
			m.Rate = [2]uint64{MeterRate, MeterRate}
		case 1:
			m.Rate[rnd.IntN(2)] = 0
		case 2:
			m.Size[rnd.IntN(2)] = 0
		}
		if m.Type == "rfc2697" {
			m.Rate[1] = 0
		}
		c, err := m.Config()
		if err != nil {
			t.Fatal(err)
		}
		var s MeterState
		exact := &exactMeter{m: m}
		now := magnitude(1e17)
		mean := float64(1e9) / float64(max(1, m.Rate[0])) * 700 // ns between packets of 700 bytes at the rate
		for n := range 200 {
			bytes, colour := 1+rnd.Uint32N(1518), rnd.Uint32N(3)
			if n == 0 && rnd.IntN(10) == 0 {
				bytes = 1 << 16
			}
			got, want := s.Measure(&c, now, bytes, colour), exact.colour(now, bytes, colour)
			if got != want {
				t.Fatalf("%+v: packet %d of %d bytes at %d ns, colour %d: got %d, want %d; left %v, exactly %v", m, n, bytes, now, colour, got, want, s, exact.tokens)
			}
			seen[got]++
			switch rnd.IntN(20) {
			case 0:
				now += magnitude(1e15) // days
			case 1:
				now -= min(now-1, magnitude(1e6)) // another CPU was later
			default:
				now += uint64(min(rnd.ExpFloat64()*mean, 1e15))
			}
		}
	}
	for colour, n := range seen {
		if n < 1000 {
			t.Errorf("only %d packets of colour %d", n, colour)
		}
	}
}

func TestMeterRefused(t *testing.T) {
	for _, x := range []struct {
		name string
		m    Meter
		want string
	}{
		{"type", Meter{Type: "rfc1"}, "no type"},
		{"rate", Meter{Type: "rfc2698", Rate: [2]uint64{1, MeterRate + 1}}, "rate of"},
		{"size", Meter{Type: "rfc4115", Size: [2]uint64{MeterSize + 1, 1}}, "size of"},
	} {
		if _, err := x.m.Config(); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.name, err)
		}
	}
	var s MeterState
	if got := s.Measure(&bpf.PipesPipeMeter{}, 1, 100, colorYellow); got != colorYellow {
		t.Errorf("no meter made yellow %d", got)
	}
}
