package bench

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts durations of nanoseconds to 68 s in buckets that are at most a part in 128 of their
// values wide; below 256 ns each value has its own. HdrHistogram does the same, and is not used because
// this is all of it that is needed.
type histogram struct {
	counts [histogramBuckets]uint64
	total  uint64
	least  int64 // ns
	most   int64 // ns
}

const (
	histogramBits    = 7  // of a value, after its highest, that choose the bucket
	histogramLongest = 36 // bits of the largest value; larger ones count as it
	histogramBuckets = (histogramLongest - histogramBits + 1) << histogramBits
)

// bucketOf returns the bucket of a value in ns.
func bucketOf(ns int64) int {
	v := uint64(max(ns, 0))
	if v >= 1<<histogramLongest {
		return histogramBuckets - 1
	}
	shift := max(bits.Len64(v)-1-histogramBits, 0)
	return shift<<histogramBits + int(v>>shift)
}

// bucketRange returns the least value of a bucket and the least above it, in ns.
func bucketRange(b int) (from, below int64) {
	shift := max(b>>histogramBits-1, 0)
	from = int64(b-shift<<histogramBits) << shift
	return from, from + 1<<shift
}

func (h *histogram) add(ns int64) {
	h.counts[bucketOf(ns)]++
	if h.total == 0 || ns < h.least {
		h.least = ns
	}
	h.most = max(h.most, ns)
	h.total++
}

// merge adds what another histogram counted.
func (h *histogram) merge(o *histogram) {
	if o.total == 0 {
		return
	}
	if h.total == 0 || o.least < h.least {
		h.least = o.least
	}
	h.most = max(h.most, o.most)
	h.total += o.total
	for b, n := range o.counts {
		h.counts[b] += n
	}
}

// at returns the value that a share of all values, of which there are `more` besides those counted that
// are greater than any, do not exceed: the middle of its bucket, never beyond the greatest. It returns
// false when that is one of those not counted, or there is none.
func (h *histogram) at(share float64, more uint64) (time.Duration, bool) {
	rank := max(uint64(math.Ceil(share*float64(h.total+more)-1e-6)), 1)
	if rank > h.total {
		return 0, false
	}
	if rank == h.total {
		return time.Duration(h.most), true
	}
	seen := uint64(0)
	for b, n := range h.counts {
		if seen += n; seen >= rank {
			from, below := bucketRange(b)
			return time.Duration(min(max((from+below-1)/2, h.least), h.most)), true
		}
	}
	return time.Duration(h.most), true
}

// buckets returns what was counted, in us, in buckets that are at most a part in 32 of their values wide.
func (h *histogram) buckets() []Bucket {
	const together = 4
	var list []Bucket
	for b := 0; b < len(h.counts); b += together {
		n := uint64(0)
		for _, c := range h.counts[b : b+together] {
			n += c
		}
		if n > 0 {
			from, _ := bucketRange(b)
			_, below := bucketRange(b + together - 1)
			list = append(list, Bucket{microseconds(time.Duration(from)), microseconds(time.Duration(below)), n})
		}
	}
	return list
}
