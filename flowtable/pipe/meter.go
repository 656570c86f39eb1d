package pipe

import (
	"fmt"

	"github.com/softdpu/softdpu/bpf"
)

// Limits of meters, so that no sum of tokens exceeds 64 bits.
const (
	MeterSize = 6_000_000_000 // most units of a bucket
	MeterRate = 1 << 40       // most units a second
)

const meterUnit = 1_000_000_000 // tokens

var meterKinds = map[string]bpf.PipesPipeMeterKind{
	"rfc2697": bpf.PipesPipeMeterKindPIPE_METER_RFC2697, "rfc2698": bpf.PipesPipeMeterKindPIPE_METER_RFC2698, "rfc4115": bpf.PipesPipeMeterKindPIPE_METER_RFC4115,
}

// Config returns what memory holds of a meter. An error names what no meter can have.
func (m *Meter) Config() (c bpf.PipesPipeMeter, err error) {
	kind, ok := meterKinds[m.Type]
	if !ok {
		return c, fmt.Errorf("meter %s: no type %q", m.Name, m.Type)
	}
	c = bpf.PipesPipeMeter{Kind: uint32(kind), Rate: m.Rate, Size: m.Size}
	if m.Packets {
		c.Flags |= uint32(bpf.PipesPipeMeterFlagPIPE_METER_PACKETS)
	}
	if m.Aware {
		c.Flags |= uint32(bpf.PipesPipeMeterFlagPIPE_METER_AWARE)
	}
	rfc2697 := kind == bpf.PipesPipeMeterKindPIPE_METER_RFC2697
	for i := range c.Rate {
		if rfc2697 && i == 1 {
			c.Rate[1], c.Fill[1] = 0, 0
		}
		switch {
		case c.Rate[i] > MeterRate:
			return c, fmt.Errorf("meter %s: a rate of %d a second is more than %d", m.Name, c.Rate[i], uint64(MeterRate))
		case c.Size[i] > MeterSize:
			return c, fmt.Errorf("meter %s: a size of %d is more than %d", m.Name, c.Size[i], uint64(MeterSize))
		}
	}
	c.Fill[0] = fillTime(c.Size[0], c.Rate[0])
	if c.Fill[1] = fillTime(c.Size[1], c.Rate[1]); rfc2697 {
		c.Fill[0], c.Fill[1] = fillTime(c.Size[0]+c.Size[1], c.Rate[0]), 0
	}
	return c, nil
}

// fillTime is after how many ns a bucket is full whatever was in it.
func fillTime(size, rate uint64) uint64 {
	if rate == 0 {
		return ^uint64(0)
	}
	return (size*meterUnit + rate - 1) / rate
}

// MeterState is what a meter has left: struct pipe_meter_state of bpf/pipe_meter.h. Its zero value is one that no packet
// has come to yet, whose buckets are full.
type MeterState struct {
	Last   uint64    // ns
	Tokens [2]uint64 // billionths of units
}

// Measure returns the colour of a packet of so many bytes that has a colour, at a time in ns, not 0: pipe_measure of
// bpf/pipe_meter.h. Times that go back count as none. A meter of no kind leaves the colour.
func (s *MeterState) Measure(c *bpf.PipesPipeMeter, now uint64, bytes, color uint32) uint32 {
	if c.Kind == 0 {
		return color
	}
	if c.Flags&uint32(bpf.PipesPipeMeterFlagPIPE_METER_AWARE) == 0 {
		color = colorGreen
	}
	cost := uint64(bytes) * meterUnit
	if c.Flags&uint32(bpf.PipesPipeMeterFlagPIPE_METER_PACKETS) != 0 {
		cost = meterUnit
	}
	if ns := now - s.Last; int64(ns) > 0 {
		if s.Last == 0 {
			s.Tokens = [2]uint64{c.Size[0] * meterUnit, c.Size[1] * meterUnit}
		} else {
			s.refill(c, ns)
		}
		s.Last = now
	}
	return s.take(bpf.PipesPipeMeterKind(c.Kind), cost, color)
}

func (s *MeterState) refill(c *bpf.PipesPipeMeter, ns uint64) {
	most := [2]uint64{c.Size[0] * meterUnit, c.Size[1] * meterUnit}
	if c.Kind == uint32(bpf.PipesPipeMeterKindPIPE_METER_RFC2697) {
		more := most[0] + most[1]
		if ns < c.Fill[0] {
			more = c.Rate[0] * ns
		}
		sum := s.Tokens[0] + more
		s.Tokens[0] = min(sum, most[0])
		s.Tokens[1] = min(s.Tokens[1]+sum-s.Tokens[0], most[1])
		return
	}
	for i := range s.Tokens {
		more := most[i]
		if ns < c.Fill[i] {
			more = c.Rate[i] * ns
		}
		s.Tokens[i] = min(s.Tokens[i]+more, most[i])
	}
}

func (s *MeterState) take(kind bpf.PipesPipeMeterKind, cost uint64, color uint32) uint32 {
	if color >= colorRed {
		return colorRed
	}
	if kind == bpf.PipesPipeMeterKindPIPE_METER_RFC2698 {
		if s.Tokens[1] < cost {
			return colorRed
		}
		s.Tokens[1] -= cost
		if color == colorYellow || s.Tokens[0] < cost {
			return colorYellow
		}
		s.Tokens[0] -= cost
		return colorGreen
	}
	if color == colorGreen && s.Tokens[0] >= cost {
		s.Tokens[0] -= cost
		return colorGreen
	}
	if s.Tokens[1] < cost {
		return colorRed
	}
	s.Tokens[1] -= cost
	return colorYellow
}

const (
	colorGreen  = uint32(bpf.PipesPipeColorPIPE_GREEN)
	colorYellow = uint32(bpf.PipesPipeColorPIPE_YELLOW)
	colorRed    = uint32(bpf.PipesPipeColorPIPE_RED)
)
