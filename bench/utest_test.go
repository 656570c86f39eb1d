package bench

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Probabilities that can be counted by hand, and some of R's wilcox.test.
func TestUTest(t *testing.T) {
	run := func(from, n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(from + i)
		}
		return v
	}
	for _, test := range []struct {
		name string
		a, b []float64
		want float64
	}{
		{"three below three", []float64{1, 2, 3}, []float64{4, 5, 6}, 2.0 / 20},
		{"five above five", run(10, 5), run(0, 5), 2.0 / 252},
		{"one apart", []float64{1, 2, 4}, []float64{3, 5, 6}, 2 * 2.0 / 20},
		{"interleaved", []float64{1, 4}, []float64{2, 3}, 1},
		{"hollander and wolfe", []float64{0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46}, []float64{1.15, 0.88, 0.90, 0.74, 1.21}, 0.2544123544},
		{"all equal", []float64{1, 1, 1}, []float64{1, 1, 1}, 1},
		{"ties", []float64{1, 2, 2, 3, 3}, []float64{3, 4, 4, 5, 6}, 0.019168},
		{"none", nil, []float64{1}, 1},
		{"large sets", run(0, 60), run(1000, 60), 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, got := range []float64{uTest(test.a, test.b), uTest(test.b, test.a)} {
				if math.Abs(got-test.want) > 2e-4 {
					t.Errorf("p = %.6f, expected %.6f", got, test.want)
				}
			}
		})
	}
}

// Sets of one distribution differ at a level of 0.01 about once in a hundred times.
func TestUTestLevel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const runs = 4000
	found := 0
	for range runs {
		var a, b []float64
		for range 15 {
			a, b = append(a, random.NormFloat64()), append(b, random.NormFloat64())
		}
		if uTest(a, b) < compareLevel {
			found++
		}
	}
	if found < runs/200 || found > runs/66 {
		t.Errorf("%d of %d comparisons of the same differ", found, runs)
	}
}
