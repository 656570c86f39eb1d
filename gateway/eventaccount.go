package gateway

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/dataplane"
)

// An eventAccount counts, in memory that outlives the process, the events that the daemon has taken and
// those of them of which it is known what became. What lies between is lost if the process is killed: up
// to a second's events, or all that wait for a disk. The log's lock guards it.
type eventAccount struct {
	credit *dataplane.Credit // nil before open and after close
}

// open goes on from the account of the run before, and returns how many events that one had when it ended.
// So many wait now, which came before there was an account.
func (a *eventAccount) open(credit *dataplane.Credit, waiting uint64) (lost uint64) {
	lost = atomic.LoadUint64(&credit.Taken) - atomic.LoadUint64(&credit.Settled)
	atomic.AddUint64(&credit.Settled, lost)
	atomic.AddUint64(&credit.Taken, waiting)
	a.credit = credit
	return lost
}

// close ends the account: its memory may go.
func (a *eventAccount) close() { a.credit = nil }

func (a *eventAccount) take() {
	if a.credit != nil {
		atomic.AddUint64(&a.credit.Taken, 1)
	}
}

// settle says that so many events are written, or counted as lost.
func (a *eventAccount) settle(n uint64) {
	if a.credit != nil {
		atomic.AddUint64(&a.credit.Settled, n)
	}
}
