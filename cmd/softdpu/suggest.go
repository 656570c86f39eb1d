package main

import "strings"

// suggestion returns "; did you mean WORD?" for the known word nearest to what was typed, or nothing
// if none is near.
func suggestion(typed string, known []string) string {
	best, nearest := "", 3
	for _, k := range known {
		d := distance(strings.ToLower(typed), strings.ToLower(k))
		// A beginning of a word is a near miss however long the rest is.
		if len(typed) > 1 && strings.HasPrefix(k, strings.ToLower(typed)) {
			d = min(d, 2)
		}
		// Half of the letters wrong is another word.
		if d < nearest && 2*d <= len(k) {
			best, nearest = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour to make b
// of a.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
