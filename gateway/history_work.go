package gateway

import "sync"

// workMost is how much may wait to be written to the history before a change waits for it: each holds the files of a policy.
const workMost = 6

// historyWork is what is done to the files of a history, one after the other, beside whoever asks for it. The zero value is
// ready, and safe for concurrent use.
type historyWork struct {
	mu   sync.Mutex
	last <-chan struct{} // closed: nothing is left to do; nil: nothing was
	left int
}

// begin does something once all before it is done, and closes done behind it.
func (w *historyWork) begin(do func()) (done <-chan struct{}) {
	over := make(chan struct{})
	w.mu.Lock()
	before := w.last
	w.last = over
	w.left++
	w.mu.Unlock()
	go func() {
		if before != nil {
			<-before
		}
		do()
		w.mu.Lock()
		w.left--
		w.mu.Unlock()
		close(over)
	}()
	return over
}

// wait waits until all that was begun is done.
func (w *historyWork) wait() {
	w.mu.Lock()
	last := w.last
	w.mu.Unlock()
	if last != nil {
		<-last
	}
}

// full reports whether so much is left to do that no more should be begun.
func (w *historyWork) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left >= workMost
}
