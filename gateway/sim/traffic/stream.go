package traffic

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

const (
	conversations = 24   // at once
	changeEvery   = 5000 // packets under one policy
	wantReasons   = 20   // packets of each reason that a stream steers towards
	wantRules     = 20   // packets of each rule
)

// Options say what a stream leaves out.
type Options struct {
	Without []string // names of recipes; `rule` cannot be left out
	// Choose sends a packet through an executor before the oracle is asked about it, and says what that chose.
	// Without it policies do not translate.
	Choose func(*Packet) (*oracle.Choice, error)
}

// Packet is a frame that arrives.
type Packet struct {
	Index  int           // in its stream, from 0
	Now    time.Duration // monotonic, on one scale with all packets of the stream
	Port   string
	Frame  []byte
	Recipe string
	// New is the policy to publish in front of this packet; nil: the last one stays. The first
	// packet's is the stream's first policy.
	New *Policy
}

// Stream is random traffic through a random gateway. It is for one goroutine.
type Stream struct {
	*layout
	*smith
	*author
	Seed   uint64
	World  oracle.World
	Tally  *Tally
	oracle *oracle.Oracle

	r         *rand.Rand
	choose    func(*Packet) (*oracle.Choice, error)
	policy    Policy
	rules     []string
	prefix    string // of the policy's rules in the tally
	found     []witness
	byRule    map[string][]int // positions in found
	ruleNames []string         // with a witness, in order
	recipes   []recipe
	fresh     bool // the policy has not been handed out
	active    []plan
	past      []tuple // of conversations, some
	now       time.Duration
	index     int
	number    uint32 // of the next datagram
}

// plan is what is left of a conversation.
type plan struct {
	recipe string
	steps  []step
}

// step is a frame to send, and how long to wait in front of it.
type step struct {
	port   string
	frame  []byte
	wait   time.Duration
	before bool // as it leaves, if it is of a translated flow
}

// NewStream draws a gateway and its first policy. The world has no bound of flows; a stream opens
// fewer than it has packets.
func NewStream(seed uint64, opts Options) (*Stream, error) {
	r := rand.New(rand.NewPCG(seed, 0x50f7d90))
	l := newLayout(r, int(seed%3)) // a few streams in a row have all kinds
	s := &Stream{
		layout: l, smith: newSmith(l), author: newAuthor(l, r), Seed: seed, World: l.world, Tally: NewTally(), r: r,
		now: time.Hour, choose: opts.Choose,
	}
	s.maps = seed/3%2 == 0 // of all kinds of layouts
	known := recipes
	if s.translates = opts.Choose != nil && routed(l); s.translates {
		known = slices.Concat(recipes, natRecipes)
		if s.maps {
			known = slices.Concat(known, mappingRecipes)
		}
	}
	for _, c := range known {
		if (c.name == "rule" || !slices.Contains(opts.Without, c.name)) && (c.fits == nil || c.fits(l)) {
			s.recipes = append(s.recipes, c)
		}
	}
	if err := s.change(); err != nil {
		return nil, fmt.Errorf("make stream of seed %d: %w", seed, err)
	}
	return s, nil
}

// change puts the next policy in force.
func (s *Stream) change() error {
	p, rules, found, err := s.write(s.rules)
	if err != nil {
		return err
	}
	p.Worked = (s.Seed+uint64(s.index/changeEvery))%2 == 0
	s.policy, s.rules, s.found, s.fresh = p, rules, found, true
	s.prefix = fmt.Sprintf("%d/", s.index)
	s.byRule, s.ruleNames = make(map[string][]int), nil
	for i := range found {
		for _, rule := range found[i].rules {
			if len(s.byRule[rule]) == 0 {
				s.ruleNames = append(s.ruleNames, rule)
				s.Tally.Rules[s.prefix+rule] = 0
			}
			s.byRule[rule] = append(s.byRule[rule], i)
		}
	}
	if s.oracle == nil {
		if s.oracle, err = oracle.New(p.Parsed, s.World); err == nil {
			s.oracle.ForceWorker(p.Worked)
		}
		return err
	}
	s.oracle.ForceWorker(p.Worked)
	return s.oracle.SetPolicy(p.Parsed)
}

// Next returns the next packet and what must become of it. An error is a mistake of this package: a
// policy that it wrote does not parse.
func (s *Stream) Next() (Packet, oracle.Verdict, error) {
	if s.index > 0 && s.index%changeEvery == 0 {
		if err := s.change(); err != nil {
			return Packet{}, oracle.Verdict{}, fmt.Errorf("change policy of seed %d at packet %d: %w", s.Seed, s.index, err)
		}
	}
	for len(s.active) < conversations {
		c := s.next()
		p := plan{recipe: c.name}
		c.plan(s, &p)
		if len(p.steps) > 0 {
			s.active = append(s.active, p)
		}
	}
	i := s.r.IntN(len(s.active))
	at := &s.active[i]
	next := at.steps[0]
	s.now += next.wait + time.Duration(s.r.IntN(2000))*time.Microsecond
	p := Packet{Index: s.index, Now: s.now, Port: next.port, Frame: next.frame, Recipe: at.recipe}
	if s.fresh {
		policy := s.policy
		p.New, s.fresh = &policy, false
	}
	if at.steps = at.steps[1:]; len(at.steps) == 0 {
		s.active[i] = s.active[len(s.active)-1]
		s.active = s.active[:len(s.active)-1]
	}
	s.index++
	var c *oracle.Choice
	if s.choose != nil {
		p.Frame = s.outside(&next)
		var err error
		if c, err = s.choose(&p); err != nil {
			return p, oracle.Verdict{}, err
		}
	}
	v := s.oracle.Check(p.Now, p.Port, p.Frame, c)
	s.Tally.count(p.Recipe, s.prefix, &v)
	return p, v, nil
}

// outside makes of a step the frame that its sender sends, who may know the flow by another tuple.
func (s *Stream) outside(next *step) []byte {
	if next.before {
		if frame, ok := s.oracle.Before(next.port, next.frame); ok {
			return frame
		}
	}
	if frame, ok := s.oracle.Behind(next.port, next.frame); ok && !chance(s.r, 20) {
		return frame
	}
	return next.frame
}

// next draws the next recipe: one for rules or reasons that are still rare, one that brings allowed
// packets while fewer than half are, or any.
func (s *Stream) next() *recipe {
	if s.r.IntN(3) == 0 && len(s.rare()) > 0 {
		return &s.recipes[slices.IndexFunc(s.recipes, func(c recipe) bool { return c.name == "rule" })]
	}
	if 2*s.Tally.Allowed < s.Tally.Packets {
		return s.weighted(func(c *recipe) int { return c.allowed })
	}
	if s.r.IntN(2) == 0 {
		rare := func(c *recipe) int {
			n := 0
			for _, reason := range c.reasons {
				n += s.Tally.Want(reason, wantReasons)
			}
			return n
		}
		if c := s.weighted(rare); c != nil {
			return c
		}
	}
	return s.weighted(func(c *recipe) int { return 12 * c.weight / (1 + c.allowed) })
}

// weighted draws by weight; nil if all weights are zero.
func (s *Stream) weighted(weight func(*recipe) int) *recipe {
	total := 0
	for i := range s.recipes {
		total += weight(&s.recipes[i])
	}
	if total == 0 {
		return nil
	}
	n := s.r.IntN(total)
	for i := range s.recipes {
		if n -= weight(&s.recipes[i]); n < 0 {
			return &s.recipes[i]
		}
	}
	return nil
}

// Replay makes the stream of a seed again, up to the packet with this index, which it returns with
// its verdict. Options must be those of the first time.
func Replay(seed uint64, opts Options, index int) (*Stream, Packet, oracle.Verdict, error) {
	s, err := NewStream(seed, opts)
	if err != nil {
		return nil, Packet{}, oracle.Verdict{}, err
	}
	for {
		p, v, err := s.Next()
		if err != nil || p.Index == index {
			return s, p, v, err
		}
	}
}
