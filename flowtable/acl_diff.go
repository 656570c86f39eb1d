package flowtable

import "slices"

// aclRun are entries that two lists have alike, one behind the other.
type aclRun struct{ old, new, n int }

// aclDiff returns what two lists of entries have in common, in their order, as much as there is. It answers false
// where more than most entries came or went. What lists share in memory is not compared.
func aclDiff(old, new []ACLEntry, most int) ([]aclRun, bool) {
	ahead := 0
	for ahead < min(len(old), len(new)) && sameEntry(&old[ahead], &new[ahead]) {
		ahead++
	}
	behind := 0
	for behind < min(len(old), len(new))-ahead && sameEntry(&old[len(old)-1-behind], &new[len(new)-1-behind]) {
		behind++
	}
	d := aclDiffer{old: old[ahead : len(old)-behind], new: new[ahead : len(new)-behind]}
	middle, ok := d.runs(most)
	if !ok {
		return nil, false
	}
	runs := []aclRun{{0, 0, ahead}}
	for _, r := range middle {
		runs = append(runs, aclRun{r.old + ahead, r.new + ahead, r.n})
	}
	runs = append(runs, aclRun{len(old) - behind, len(new) - behind, behind})
	return slices.DeleteFunc(runs, func(r aclRun) bool { return r.n == 0 }), true
}

// aclDiffer finds the shortest way from a list to another (Myers, "An O(ND) difference algorithm"): it goes along
// diagonals, on which entries are alike, and from one to the next with an entry that went or came.
type aclDiffer struct{ old, new []ACLEntry }

// slide returns where a diagonal leaves entries that are alike, x entries of the old list in.
func (d *aclDiffer) slide(x, diagonal int) int {
	for x < len(d.old) && x-diagonal < len(d.new) && sameEntry(&d.old[x], &d.new[x-diagonal]) {
		x++
	}
	return x
}

func (d *aclDiffer) runs(most int) ([]aclRun, bool) {
	var steps [][]int32 // how far each diagonal got with so many changes, from the lowest diagonal on
	for n := 0; ; n++ {
		if n > most {
			return nil, false
		}
		step := make([]int32, 2*n+1)
		steps = append(steps, step)
		for diagonal := -n; diagonal <= n; diagonal += 2 {
			x := 0
			if n > 0 {
				x, _ = d.from(steps[n-1], n, diagonal)
			}
			if x > len(d.old) || x-diagonal > len(d.new) {
				step[diagonal+n] = -1 // no way
				continue
			}
			x = d.slide(x, diagonal)
			step[diagonal+n] = int32(x)
			if x == len(d.old) && x-diagonal == len(d.new) {
				return d.back(steps, diagonal), true
			}
		}
	}
}

// from returns where change n puts a diagonal, and the diagonal that it comes from; last is how far they got before.
func (d *aclDiffer) from(last []int32, n, diagonal int) (x, before int) {
	got := func(diagonal int) int {
		if diagonal < -(n-1) || diagonal > n-1 {
			return -1
		}
		return int(last[diagonal+n-1])
	}
	came, went := got(diagonal+1), got(diagonal-1)
	if went >= 0 && went+1 > came {
		return went + 1, diagonal - 1
	}
	if came >= 0 {
		return came, diagonal + 1
	}
	return len(d.old) + 1, diagonal
}

// back follows the way that ended on a diagonal back to its beginning.
func (d *aclDiffer) back(steps [][]int32, diagonal int) (runs []aclRun) {
	for n := len(steps) - 1; n >= 0; n-- {
		end, start, before := int(steps[n][diagonal+n]), 0, diagonal
		if n > 0 {
			start, before = d.from(steps[n-1], n, diagonal)
		}
		runs = append(runs, aclRun{start, start - diagonal, end - start})
		diagonal = before
	}
	slices.Reverse(runs)
	return runs
}

// sameEntry tells whether two entries say the same.
func sameEntry(a, b *ACLEntry) bool {
	return a.Verdict == b.Verdict && a.Audit == b.Audit && a.Family == b.Family && a.Proto == b.Proto &&
		a.SrcPort == b.SrcPort && a.DstPort == b.DstPort && a.From == b.From && a.To == b.To &&
		sameList(a.Src, b.Src) && sameList(a.Dst, b.Dst) && sameList(a.Contexts, b.Contexts)
}

// sameList tells whether two lists are one, or hold the same.
func sameList[T comparable](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}
