package worker

// InRounds calls fn on the thread of a worker, between two rounds; round does one.
func (c *Crew) InRounds(id int, fn func(round func() bool)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.workers[id]
	return c.ask(w, func() { fn(w.round) })
}
