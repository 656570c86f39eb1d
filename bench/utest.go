package bench

import (
	"math"
	"slices"
)

// uTest is the two-sided Mann-Whitney U test: the probability that two sets of values differ in location
// as much as a and b do, or more, when both come from the same distribution. It is exact for sets without
// equal values of up to 50 each, and otherwise the normal approximation with the correction for ties.
func uTest(a, b []float64) (p float64) {
	n, m := len(a), len(b)
	if n == 0 || m == 0 {
		return 1
	}
	type value struct {
		v    float64
		ours bool
	}
	all := make([]value, 0, n+m)
	for _, v := range a {
		all = append(all, value{v, true})
	}
	for _, v := range b {
		all = append(all, value{v, false})
	}
	slices.SortFunc(all, func(x, y value) int {
		switch {
		case x.v < y.v:
			return -1
		case x.v > y.v:
			return 1
		}
		return 0
	})
	ranks, ties := 0.0, 0.0 // of a's values; sum of t^3-t
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].v == all[i].v {
			j++
		}
		for _, v := range all[i:j] {
			if v.ours {
				ranks += float64(i+j+1) / 2
			}
		}
		t := float64(j - i)
		ties += t*t*t - t
		i = j
	}
	u := ranks - float64(n*(n+1))/2
	u = min(u, float64(n*m)-u)
	if ties == 0 && n <= 50 && m <= 50 {
		return min(1, 2*uBelow(n, m, int(u)))
	}
	nm, sum := float64(n*m), float64(n+m)
	variance := nm / 12 * (sum + 1 - ties/(sum*(sum-1)))
	if variance <= 0 {
		return 1 // all are equal
	}
	z := (math.Abs(u-nm/2) - 0.5) / math.Sqrt(variance)
	return min(1, math.Erfc(max(z, 0)/math.Sqrt2))
}

// uBelow is the probability that U of n and m values of one distribution is at most u.
func uBelow(n, m, u int) float64 {
	// ways[j][k]: so many orders of i and j values have U = k, for the i that the loop has come to
	ways := make([][]float64, m+1)
	for j := range ways {
		ways[j] = make([]float64, u+1)
		ways[j][0] = 1
	}
	for range n {
		for j := 1; j <= m; j++ {
			for k := u; k >= 0; k-- {
				// the greatest value is one of the i, above j of the others, or one of the j
				above := 0.0
				if k >= j {
					above = ways[j][k-j]
				}
				ways[j][k] = above + ways[j-1][k]
			}
		}
	}
	sum, total := 0.0, 1.0
	for _, w := range ways[m] {
		sum += w
	}
	for i := 1; i <= n; i++ {
		total *= float64(m+i) / float64(i)
	}
	return sum / total
}
