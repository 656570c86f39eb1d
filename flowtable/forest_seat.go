package flowtable

// seat gives entries that come, of the new list, places in the order of all. Where there is none between two that
// stay, some around get others: their old ones belong to the earlier version. It answers false if that would be too
// many, or no place is left.
func (g *forestGraft) seat(come []int) bool {
	places := g.family.places
	for len(come) > 0 {
		before, behind := g.left(come[0]), g.right(come[0])
		n := 1
		for n < len(come) && come[n] < behind {
			n++
		}
		members := append([]int(nil), come[:n]...)
		come = come[n:]
		moved := 0
		for {
			first, end := g.spread[g.at].first, g.spread[g.at].end
			if before >= 0 {
				first = places[before] + 1
			}
			if behind < len(places) {
				end = places[behind]
			}
			free := g.busy[forestInOrder].free(first, end)
			if need := len(members); len(free) >= need && (moved == 0 || len(free) >= need+need/2) {
				g.spreadOut(members, free, behind == len(places))
				break
			}
			if moved > forestMoved || before < 0 && behind == len(places) {
				return false
			}
			for range max(1, moved/2) {
				if before >= 0 {
					members = append([]int{before}, members...)
					before = g.left(before)
					moved++
				}
				if behind < len(places) {
					members = append(members, behind)
					behind = g.right(behind)
					moved++
				}
			}
		}
	}
	return true
}

// left and right return the entry with a place that is next to one.
func (g *forestGraft) left(i int) int {
	for i--; i >= 0 && g.family.places[i] == forestNowhere; i-- {
	}
	return i
}

func (g *forestGraft) right(i int) int {
	for i++; i < len(g.family.places) && g.family.places[i] == forestNowhere; i++ {
	}
	return i
}

// spreadOut gives entries some of the places that are free, evenly; behind all others no further apart than at first.
func (g *forestGraft) spreadOut(members []int, free []uint32, last bool) {
	for k, i := range members {
		at := (2*k + 1) * len(free) / (2 * len(members))
		if last {
			at = min(at, (k+1)*forestGap-1)
		}
		place := free[at]
		origin := g.family.places[i]
		if earlier, fresh := g.origin[origin]; fresh { // it got that place by this change
			delete(g.origin, origin)
			g.busy[forestInOrder].clear(origin, 1)
			origin = earlier
		}
		g.origin[place] = origin
		if origin != forestNowhere {
			g.moved[i] = true
		}
		g.busy[forestInOrder].set(place, 1)
		g.family.places[i] = place
	}
}
