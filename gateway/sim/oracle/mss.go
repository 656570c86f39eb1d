package oracle

import (
	"encoding/binary"
	"slices"
)

// clamp is what section 7.8 says of the MSS, for a packet that leaves by a port or is the kernel's to carry on.
func (o *Oracle) clamp(p *packet, v Verdict) Verdict {
	if v.Reason != "" || !p.tcp.syn || o.world.port(v.Out) == nil {
		return v
	}
	limit := o.mssLimit(p, v.Out, v.Rule)
	// The segment stands as far from the frame's end as it came.
	fromEnd := len(p.frame) - p.ip - p.total + len(p.payload)
	frame := slices.Clone(v.Frame)
	segment := frame[len(frame)-fromEnd:]
	options := segment[20 : int(segment[12]>>4)*4]
	at := findMSS(options)
	if limit == 0 || at < 0 {
		return v
	}
	was := int(binary.BigEndian.Uint16(options[at:]))
	if was <= limit {
		return v
	}
	binary.BigEndian.PutUint16(options[at:], uint16(limit))
	// The sum of all words falls as the option's bytes do: the first is worth 256 if it begins a word. It is
	// one's complement, where 0 and 0xffff are the same, and what is summed here never is 0.
	fall := was - limit
	if at%2 != 0 {
		fall = (was>>8 + was&0xff<<8) - (limit>>8 + limit&0xff<<8)
	}
	sum := 0xffff - int(binary.BigEndian.Uint16(segment[16:])) - fall
	for sum <= 0 {
		sum += 0xffff
	}
	for sum > 0xffff {
		sum -= 0xffff
	}
	binary.BigEndian.PutUint16(segment[16:], uint16(0xffff-sum))
	v.Frame, v.Clamped = frame, true
	return v
}

// mssLimit is the least of what the ports and the rule say, 0 if none does.
func (o *Oracle) mssLimit(p *packet, out, rule string) int {
	var limits []int
	for _, port := range []string{p.port, out} {
		if n := o.world.MSS[port]; n != 0 {
			limits = append(limits, int(n))
		}
	}
	for _, r := range o.policy.Rules {
		if r.Name == rule && r.MSSClamp != 0 {
			limits = append(limits, int(r.MSSClamp))
		}
	}
	if len(limits) == 0 {
		return 0
	}
	if p.is4() {
		return slices.Min(limits)
	}
	return slices.Min(limits) - 20
}

// findMSS finds where the option's value stands, if in front of the first option that is malformed; else -1.
func findMSS(b []byte) int {
	for at := 0; at < len(b) && b[at] != 0; {
		if b[at] == 1 {
			at++
			continue
		}
		if at+1 == len(b) || b[at+1] < 2 || at+int(b[at+1]) > len(b) {
			break
		}
		if b[at] == 2 && b[at+1] == 4 {
			return at + 2
		}
		at += int(b[at+1])
	}
	return -1
}
