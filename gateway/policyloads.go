package gateway

import (
	"sync/atomic"
	"time"
)

// policyLoads counts policies that were put in force, the one of the start included, and those that were
// refused. The zero value is ready, and safe for concurrent use.
type policyLoads struct {
	applied, refused atomic.Uint64
	lastRefused      atomic.Bool
	appliedAt        atomic.Int64 // Unix time in ns, 0: never
}

// count takes the result of one attempt to put a policy in force.
func (l *policyLoads) count(err error) {
	if err != nil {
		l.refused.Add(1)
	} else {
		l.applied.Add(1)
		l.appliedAt.Store(time.Now().UnixNano())
	}
	l.lastRefused.Store(err != nil)
}
