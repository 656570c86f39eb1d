package xsk

import "fmt"

// A Pool is the list of free frames of one worker, from which its sockets fill their rings and to which
// completed and freed frames come back. It belongs to that worker alone: Alloc, Free, and the methods of
// its sockets are for one goroutine at a time.
//
// Frames may change pools: one that is received here and sent by a socket of another pool ends there.
// Whoever hands frames over sees to it that as many come back.
type Pool struct {
	u    *UMEM
	free []uint64 // addresses of frames; the last is the next: it is likeliest in the cache
}

// NewPool makes a pool of n frames that no other pool has.
func (u *UMEM) NewPool(n int) (*Pool, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n < 0 || n > len(u.spare) {
		return nil, fmt.Errorf("make pool of %d frames: %d of the UMEM's %d are in no pool", n, len(u.spare), len(u.holder))
	}
	// With room for all frames no pool ever grows, whatever it is given.
	p := &Pool{u, make([]uint64, 0, len(u.holder))}
	left := len(u.spare) - n
	for i := range n {
		p.free = append(p.free, u.spare[left+i])
	}
	u.spare = u.spare[:left]
	u.pools[p] = struct{}{}
	return p, nil
}

// Len returns the number of free frames.
func (p *Pool) Len() int { return len(p.free) }

// length is Len for others than the worker, who may be moving frames.
//
//go:norace
func (p *Pool) length() int { return len(p.free) }

// Alloc moves free frames to the caller, as many as batch is long or there are, and returns how many.
// Each descriptor has length 0 and stands where the kernel would put a packet, behind the headroom.
func (p *Pool) Alloc(batch []Desc) int {
	n := min(len(batch), len(p.free))
	left := len(p.free) - n
	for i, addr := range p.free[left:] {
		batch[n-1-i] = Desc{Addr: addr + uint64(p.u.headroom)}
		if debug {
			p.u.track.move(addr, placeFree, placeCaller, 0)
		}
	}
	p.free = p.free[:left]
	return n
}

// Free takes the frames of the descriptors from the caller. Two descriptors must not lie in one frame.
func (p *Pool) Free(batch []Desc) {
	for i := range batch {
		if debug {
			p.u.track.move(batch[i].Addr, placeCaller, placeFree, 0)
		}
		p.put(p.u.start(batch[i].Addr))
	}
}

// Give moves up to n free frames to another pool of the UMEM and returns how many. Both must be the caller's.
func (p *Pool) Give(to *Pool, n int) int {
	left := len(p.free) - min(n, len(p.free))
	n = len(p.free) - left
	to.free = append(to.free, p.free[left:]...)
	p.free = p.free[:left]
	return n
}

// put adds the frame that starts at addr.
func (p *Pool) put(addr uint64) {
	n := len(p.free)
	p.free = p.free[:n+1]
	p.free[n] = addr
}

// Close gives the free frames back to the UMEM, for another pool. What comes back later is lost to it:
// close the sockets first.
func (p *Pool) Close() {
	p.u.mu.Lock()
	defer p.u.mu.Unlock()
	if _, ok := p.u.pools[p]; !ok {
		return
	}
	delete(p.u.pools, p)
	p.u.spare = append(p.u.spare, p.free...)
	p.free = nil
}
