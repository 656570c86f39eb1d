package oracle

import (
	"math/big"

	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Colours: enum pipe_color.
const (
	green = iota
	yellow
	red
)

// bucket is a meter as its RFC describes it, in whole fractions of a unit: nothing is rounded.
type bucket struct {
	*pipe.Meter
	begun  bool
	last   uint64      // ns
	tokens [2]*big.Int // units * 1e9: committed; excess or peak
}

const second = 1_000_000_000 // ns

func scaled(units uint64) *big.Int {
	n := new(big.Int).SetUint64(units)
	return n.Mul(n, big.NewInt(second))
}

func newBucket(m *pipe.Meter) *bucket {
	return &bucket{Meter: m, tokens: [2]*big.Int{scaled(m.Size[0]), scaled(m.Size[1])}}
}

// fill adds tokens for the time that has passed since the last packet.
func (b *bucket) fill(now uint64) {
	if !b.begun {
		b.begun, b.last = true, now
	}
	passed := new(big.Int).SetUint64(now - b.last)
	b.last = now
	for i := range b.tokens {
		more := new(big.Int).Mul(passed, new(big.Int).SetUint64(b.Rate[i]))
		b.tokens[i].Add(b.tokens[i], more)
		over := new(big.Int).Sub(b.tokens[i], scaled(b.Size[i]))
		if over.Sign() <= 0 {
			continue
		}
		b.tokens[i].Sub(b.tokens[i], over)
		if b.Type == "rfc2697" && i == 0 { // what the committed bucket cannot hold is the excess one's
			b.tokens[1].Add(b.tokens[1], over)
		}
	}
}

// color meters a packet that has a colour already and returns its new one.
func (b *bucket) color(length, before uint32, now uint64) uint32 {
	if !b.Aware {
		before = green
	}
	size := scaled(uint64(length))
	if b.Packets {
		size = scaled(1)
	}
	b.fill(now)
	enough := func(i int) bool { return b.tokens[i].Cmp(size) >= 0 }
	take := func(i int) { b.tokens[i].Sub(b.tokens[i], size) }
	if b.Type == "rfc2698" {
		switch {
		case before == red || !enough(1):
			return red
		case before == yellow || !enough(0):
			take(1)
			return yellow
		}
		take(0)
		take(1)
		return green
	}
	switch {
	case before == green && enough(0):
		take(0)
		return green
	case before != red && enough(1):
		take(1)
		return yellow
	}
	return red
}
