package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Every value is in the bucket whose range holds it, and buckets follow each other without a gap.
func TestHistogramBuckets(t *testing.T) {
	end := int64(0)
	for b := range histogramBuckets {
		from, below := bucketRange(b)
		if from != end || below <= from {
			t.Fatalf("bucket %d is [%d, %d), the one before ends at %d", b, from, below, end)
		}
		if width := below - from; width > 1 && width*128 > from {
			t.Errorf("bucket %d is [%d, %d), wider than a part in 128", b, from, below)
		}
		for _, v := range []int64{from, below - 1} {
			if got := bucketOf(v); got != b {
				t.Fatalf("%d is in bucket %d, expected %d", v, got, b)
			}
		}
		end = below
	}
	if bucketOf(-1) != 0 || bucketOf(math.MaxInt64) != histogramBuckets-1 || end != 1<<histogramLongest {
		t.Errorf("what is out of range is not in the outer buckets: %d, %d; the last ends at %d", bucketOf(-1), bucketOf(math.MaxInt64), end)
	}
}

// Percentiles are those of the sorted values, but for the width of a bucket, lost ones being the greatest.
func TestHistogramPercentiles(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var h, one, two histogram
		var values []int64
		lost := random.IntN(20) * random.IntN(2)
		for i := range 1 + random.IntN(3000) {
			v := int64(math.Exp(random.Float64() * 23))
			values = append(values, v)
			h.add(v)
			if i%3 == 0 {
				one.add(v)
			} else {
				two.add(v)
			}
		}
		slices.Sort(values)
		one.merge(&two)
		for _, share := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
			rank := max(1, int(math.Ceil(share*float64(len(values)+lost)-1e-6)))
			got, ok := h.at(share, uint64(lost))
			if merged, okMerged := one.at(share, uint64(lost)); merged != got || ok != okMerged {
				t.Fatalf("percentile %g of two histograms merged is %d, of one %d", 100*share, merged, got)
			}
			if ok != (rank <= len(values)) {
				t.Fatalf("percentile %g of %d values and %d lost: found %v", 100*share, len(values), lost, ok)
			}
			if !ok {
				continue
			}
			want := values[rank-1]
			if diff := math.Abs(float64(int64(got) - want)); diff > float64(want)/128+1 {
				t.Fatalf("percentile %g of %d values is %d, expected %d", 100*share, len(values), got, want)
			}
		}
		n := uint64(0)
		last := 0.0
		for _, b := range h.buckets() {
			if b.From < last || b.Below <= b.From {
				t.Fatalf("bucket %+v follows one that ends at %g", b, last)
			}
			n, last = n+b.Packets, b.Below
		}
		if n != uint64(len(values)) || n != h.total {
			t.Fatalf("buckets hold %d of %d values", n, len(values))
		}
	}
}

func TestHistogramOfNothing(t *testing.T) {
	var h histogram
	if d, ok := h.at(0.5, 0); ok {
		t.Errorf("the median of nothing is %v", d)
	}
	if b := h.buckets(); b != nil {
		t.Errorf("buckets of nothing: %v", b)
	}
}
