package flowtable

import "math/bits"

const (
	forestMaxBits = 16   // of a window
	forestSample  = 4096 // boxes of a list by which a window is chosen
	forestAside   = 0.2  // what a box that goes to the next tree costs, of one that every search compares
	forestWidth   = 1. / 64
)

// forestWindow is a run of bits of a field.
type forestWindow struct{ field, shift, bits int }

// children returns the first of the window's values that a box holds, and how many, which follow it around.
func (w forestWindow) children(b *forestBox) (first, n int) {
	r := &b.field[w.field]
	lo, hi := r.first>>w.shift, r.last>>w.shift
	if hi-lo >= 1<<w.bits {
		return 0, 1 << w.bits
	}
	return int(lo & (1<<w.bits - 1)), int(hi - lo + 1)
}

// choose returns the window after which least is left to compare: the boxes that a key drawn from one of them
// meets in its child. With ejects, boxes in many children do not count there. It answers false where nothing
// is won.
func (t *forestTree) choose(boxes []int32, ejects bool) (best forestWindow, ok bool) {
	sample := boxes
	if len(boxes) > forestSample {
		step := (len(boxes) + forestSample - 1) / forestSample
		sample = make([]int32, 0, forestSample)
		for i := 0; i < len(boxes); i += step {
			sample = append(sample, boxes[i])
		}
	}
	scale := float64(len(boxes)) / float64(len(sample))
	least := min(float64(len(boxes))*forestGain, float64(len(boxes))-forestStep)
	if len(boxes) > t.leaf {
		least = float64(len(boxes)) // anything is better
	}
	most := min(forestMaxBits, bits.Len(uint(2*len(sample))))
	for field := range forestFields {
		varies, whole := t.varies(sample, field)
		if varies == 0 || whole == len(sample) || ejects && whole > len(sample)*7/8 {
			continue
		}
		top := bits.Len64(varies)
		tried := 0
		for _, n := range [...]int{most, most * 3 / 4, most / 2, 4, 2, 1} {
			n = min(n, top)
			if n == 0 || n == tried {
				continue
			}
			tried = n
			for shift := top - n; shift >= 0; shift-- {
				if varies>>(shift+n-1)&1 == 0 {
					continue // the same as a narrower window
				}
				w := forestWindow{field, shift, n}
				score, fits := t.score(sample, w, ejects)
				if score = score*scale + float64(int(1)<<n)*forestWidth; fits && score < least {
					best, least, ok = w, score, true
				}
			}
		}
	}
	return best, ok
}

// varies returns the bits of a field in which the boxes that ask for it differ, or which their ranges leave
// open, and how many boxes do not ask for it.
func (t *forestTree) varies(boxes []int32, field int) (varies uint64, whole int) {
	limit := uint64(1)<<forestLayout[field].width - 1 // all, for 64
	if t.family == 4 && (field == forestSrcLo || field == forestDstLo) {
		limit = 1<<32 - 1
	}
	one := -1
	for _, box := range boxes {
		r := &t.boxes[box].field[field]
		if r.first == 0 && r.last >= limit {
			whole++
			continue
		}
		if one < 0 {
			one = int(box)
		}
		varies |= r.first ^ t.boxes[one].field[field].first | r.first ^ r.last
	}
	if whole > 0 && varies == 0 && whole < len(boxes) {
		varies = limit // all that ask want the same: a window tells them from the others
	}
	return varies, whole
}

// score returns what a window leaves.
func (t *forestTree) score(boxes []int32, w forestWindow, ejects bool) (score float64, ok bool) {
	t.looks -= len(boxes)
	count := t.count[:1<<w.bits]
	clear(count)
	wide, total, everywhere := 0, 0, 0
	for _, box := range boxes {
		first, n := w.children(&t.boxes[box])
		total += n
		switch {
		case n == 1:
			count[first]++
		case ejects && n > forestCopies:
			wide++
		case n == 1<<w.bits:
			everywhere++
		default:
			for i := range n {
				count[(first+i)&(1<<w.bits-1)]++
			}
		}
	}
	growth := forestGrowth
	if len(boxes) > t.leaf {
		growth = forestForced
	}
	if ejects && wide > len(boxes)*7/8 || !ejects && w.bits > 1 && total > growth*len(boxes) {
		return 0, false
	}
	sum := 0.
	for _, n := range count {
		sum += float64(n) * float64(int(n)+everywhere)
	}
	return sum/float64(len(boxes)-wide+1) + float64(everywhere) + forestAside*float64(wide), true
}
