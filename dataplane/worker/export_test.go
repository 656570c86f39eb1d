package worker

// InRounds calls fn on the thread of a worker, between two rounds; round does one.
func (c *Crew) InRounds(id int, fn func(round func() bool)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.workers[id]
	return c.ask(w, func() { fn(w.round) })
}

// Beat gives a sign of life in a worker's place.
func (c *Crew) Beat(id int) { c.workers[id].beat.Store(nowTick()) }

// HandedRoom is how many descriptors one worker can hand over to another that takes none.
func (c *Crew) HandedRoom() int { handed, _ := exchangeSizes(len(c.workers)); return handed }

// BePatient has workers take each other to be alive for 20 s without a sign of life: a test that shall lose nothing is not
// about a machine that keeps them from their CPUs.
func (c *Crew) BePatient() { c.silent.Store(20_000) }
