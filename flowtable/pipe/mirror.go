package pipe

import (
	"cmp"
	"fmt"
	"slices"
)

// copies finds out with which mirrors packets may leave, and where to: those groups of ports get what both ask for.
func (c *compiler) copies() error {
	c.join = map[[2]uint32]uint32{}
	come := make([]map[uint32]bool, len(c.Pipes))
	for i := range come {
		come[i] = map[uint32]bool{}
	}
	come[c.root][0] = true
	for _, n := range c.Order {
		pl := c.Pipes[n]
		for m := range come[n] {
			pl.mirrors = append(pl.mirrors, m)
		}
		slices.Sort(pl.mirrors)
		ways := map[[2]uint32]bool{{0, pl.miss}: true}
		places := pl.Places
		if pl.single() {
			places = []uint32{pl.First}
		}
		for _, at := range places {
			r := &c.Memory.Entries[at]
			ways[[2]uint32{uint32(r.Mirror), r.Forward}] = true
		}
		for _, a := range pl.actions {
			if slices.ContainsFunc(a.steps, func(s step) bool { return s.Kind == TTL }) {
				ways[[2]uint32{0, toDrop | reasonTTL}] = true
				for _, at := range pl.Places {
					ways[[2]uint32{uint32(c.Memory.Entries[at].Mirror), toDrop | reasonTTL}] = true
				}
			}
		}
		list := make([][2]uint32, 0, len(ways))
		for w := range ways {
			list = append(list, w)
		}
		slices.SortFunc(list, func(a, b [2]uint32) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
		for _, w := range list {
			for _, m := range pl.mirrors {
				if w[0] != 0 {
					m = w[0]
				}
				if w[1]>>forwardShift == toPipe>>forwardShift {
					come[w[1]&forwardPipe][m] = true
				} else if err := c.copy(pl, m, w[1]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// copy makes the group for packets that leave a pipe with a mirror.
func (c *compiler) copy(pl *Planned, mirror, forward uint32) error {
	if mirror == 0 {
		return nil
	}
	ids := c.mirrors[mirror-1]
	switch forward >> forwardShift {
	case toDrop >> forwardShift:
	case toPort >> forwardShift:
		ids = append(slices.Clone(ids), forward&forwardMask)
	case toPorts >> forwardShift:
		ids = append(slices.Clone(ids), c.Groups[forward&forwardMask]...)
	default:
		return fmt.Errorf("pipe %s: packets with mirror %s go to the host, to the policy or to a worker, where nothing copies them: forward them to a port, or drop them",
			pl.Pipe.Name, c.Pipeline.Mirrors[mirror-1].Name)
	}
	group, err := c.group(ids)
	c.join[[2]uint32{mirror, forward}] = group
	return err
}

// group returns the number of a group of ports.
func (c *compiler) group(ids []uint32) (uint32, error) {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if i := slices.IndexFunc(c.Groups, func(g []uint32) bool { return slices.Equal(g, ids) }); i >= 0 {
		return uint32(i), nil
	}
	if len(c.Groups) == maxGroups {
		return 0, fmt.Errorf("mirrors and flooding need more than %d groups of ports", maxGroups)
	}
	c.Groups = append(c.Groups, ids)
	return uint32(len(c.Groups) - 1), nil
}
