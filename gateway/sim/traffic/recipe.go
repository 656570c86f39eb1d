package traffic

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// recipe plans a conversation about one thing.
type recipe struct {
	name    string
	weight  int                // how often it is drawn for its own sake, less often if it brings allowed packets
	allowed int                // how often it is drawn to bring allowed packets
	reasons []string           // that it aims at
	fits    func(*layout) bool // nil: every world
	plan    func(*Stream, *plan)
}

func routed(l *layout) bool {
	return slices.ContainsFunc(l.segments, func(s segment) bool { return s.peer == -1 })
}

// recipes are all of them, in the order of the packet path.
var recipes = slices.Concat(frameRecipes, headerRecipes, fragmentRecipes, icmpRecipes, routeRecipes, policyRecipes, talkRecipes)

func (p *plan) add(port string, f frame) { p.wait(port, f, 0) }

func (p *plan) wait(port string, f frame, wait time.Duration) {
	p.steps = append(p.steps, step{port: port, frame: f.b, wait: wait})
}

// pick returns a tuple that some rule decides about, preferably a rule that few packets reached; with
// allowed only one that it allows.
func (s *Stream) pick(allowed bool) tuple {
	rules := s.rare()
	if len(rules) == 0 || chance(s.r, 4) {
		rules = s.ruleNames
	}
	rule := rules[s.r.IntN(len(rules))]
	if i := slices.IndexFunc(s.policy.Parsed.Rules, func(r *firewall.Rule) bool { return r.Name == rule }); i >= 0 && !allowed {
		for range 4 {
			t, ok := s.draw(s.policy.Parsed, s.policy.Parsed.Rules[i])
			if !ok {
				continue
			}
			if w, ok := s.judge(s.oracle, t); ok && slices.Contains(w.rules, rule) {
				return w.tuple
			}
		}
	}
	w := s.found[s.byRule[rule][s.r.IntN(len(s.byRule[rule]))]]
	for range 8 {
		if w.allowed || !allowed {
			break
		}
		w = s.found[s.r.IntN(len(s.found))]
	}
	return s.vary(w)
}

// rare returns the rules that few packets reached.
func (s *Stream) rare() []string {
	var out []string
	for _, rule := range s.ruleNames {
		if s.Tally.Rules[s.prefix+rule] < wantRules {
			out = append(out, rule)
		}
	}
	return out
}

// vary draws other ports and stations, if the same rules decide about them.
func (s *Stream) vary(w witness) tuple {
	other := w.tuple
	other.sport = uint16(1024 + s.r.IntN(64000))
	if seg := s.segmentOf(other.a.addr); seg != nil && s.r.IntN(2) == 0 {
		b := other.a.addr.AsSlice()
		b[len(b)-1] = byte(2 + s.r.IntN(120))
		other.a.addr = addr(b)
	}
	if other.a.addr == other.b.addr {
		return w.tuple
	}
	if again, ok := s.judge(s.oracle, other); ok && slices.Equal(again.rules, w.rules) {
		return again.tuple
	}
	other.a.addr = w.a.addr
	if again, ok := s.judge(s.oracle, other); ok && slices.Equal(again.rules, w.rules) {
		return again.tuple
	}
	return w.tuple
}

// tuple returns one of a family (0: any) and of one of the protocols (none: any): of a rule if there
// is one, else of its own making.
func (s *Stream) tuple(family uint8, protos ...uint8) tuple {
	fits := func(t *tuple) bool {
		return (family == 0 || t.is4() == (family == 4)) && (len(protos) == 0 || slices.Contains(protos, t.proto))
	}
	for range 12 {
		w := s.found[s.r.IntN(len(s.found))]
		if w.allowed && w.b.port != "" && fits(&w.tuple) {
			return s.vary(w)
		}
	}
	for {
		if t := s.free(); t.b.port != "" && fits(&t) {
			return t
		}
	}
}

// free makes a tuple that no rule was asked about.
func (s *Stream) free() tuple {
	t, _ := s.drawService(nil)
	family := uint8(4 + 2*s.r.IntN(2))
	switch t.proto {
	case protoICMP:
		family = 4
	case protoICMPv6:
		family = 6
	}
	if s.r.IntN(2) == 0 {
		t.dport = []uint16{22, 53, 80, 123, 443, 8080, t.dport}[s.r.IntN(7)]
	}
	if t.proto == protoICMP || t.proto == protoICMPv6 {
		t.dport = map[uint8]uint16{protoICMP: 8 << 8, protoICMPv6: 128 << 8}[t.proto]
	}
	near := s.openSegment()
	far := s.openSegment()
	if near.peer >= 0 {
		far = &s.segments[near.peer]
	}
	for far.peer == -1 != (near.peer == -1) {
		far = s.openSegment()
	}
	t.a = s.stationOf(near, family)
	t.b = s.stationOf(far, family)
	for t.b.addr == t.a.addr {
		t.b = s.stationOf(far, family)
	}
	return t
}

// openSegment draws a segment whose frames can leave.
func (s *Stream) openSegment() *segment {
	for {
		if seg := s.segment(); seg.peer != -2 {
			return seg
		}
	}
}

func (s *Stream) stationOf(seg *segment, family uint8) station {
	return station{port: seg.port, vlan: seg.vlan, mac: seg.macs[s.r.IntN(len(seg.macs))], addr: seg.host(s.r, family)}
}

func (s *Stream) family() uint8 { return uint8(4 + 2*s.r.IntN(2)) }

// datagramID returns one that no other datagram of the last minute has.
func (s *Stream) datagramID() uint32 {
	s.number++
	return s.number
}

// mtu returns the MTU of the port that a tuple's opener's packets leave by.
func (s *Stream) mtu(t *tuple) int {
	i := slices.IndexFunc(s.world.Ports, func(p oracle.Port) bool { return p.Name == t.b.port })
	return s.world.Ports[i].MTU
}

func chance(r *rand.Rand, oneIn int) bool { return r.IntN(oneIn) == 0 }
