package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// rateSearch finds the highest rate that a lane carries without loss.
type rateSearch struct {
	pass     func(due []uint64, warmup int) (*passage, error)
	random   *rand.Rand
	progress func(string)
	bound    string // what ended the search: loss, or the sender
}

const (
	rateFirst   = 100_000 // frames/s
	rateLast    = 8_000_000
	rateStep    = 1.04 // the search ends when what fails is no more above what passes
	rateTrial   = 50 * time.Millisecond
	rateTries   = 4                     // a rate passes when one of so many trials loses nothing: other work on the machine loses frames too
	senderSlack = 20 * time.Microsecond // that the median frame may be late
)

// run doubles the rate until frames are lost, then halves the interval in between. The rate that it
// returns, in frames a second, lost none in a trial of its own.
func (s *rateSearch) run(ctx context.Context) (float64, error) {
	low, high := 0.0, 0.0
	for rate := float64(rateFirst); ; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		ok, err := s.carries(rate)
		if err != nil {
			return 0, err
		}
		if ok {
			low = rate
		} else {
			high = rate
		}
		switch {
		case high == 0 && rate >= rateLast:
			return low, nil
		case high == 0:
			rate *= 2
		case low == 0 && high <= 1000:
			return 0, fmt.Errorf("frames are lost at %.0f a second already", high)
		case low == 0:
			rate /= 2
		case high/low <= rateStep:
			return low, nil
		default:
			rate = (low + high) / 2
		}
	}
}

// carries tells whether nothing is lost at a rate, in frames a second.
func (s *rateSearch) carries(rate float64) (bool, error) {
	for try := range rateTries {
		p, err := s.pass(warmed(rate, rateTrial, s.random))
		if err != nil {
			return false, err
		}
		s.progress(fmt.Sprintf("%.0f frames/s: %d of %d lost (try %d)", rate, p.lost, p.sent, try+1))
		if late, _ := p.late.at(0.5, 0); late > senderSlack {
			s.bound = "more than which the sender could not send on time"
			continue
		}
		if p.lost == 0 {
			return true, nil
		}
		s.bound = "more than which lost frames"
	}
	return false, nil
}
