package gateway

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/firewall"
)

// inForce is the policy in force, and what names rules and zones while another takes its place. It is
// safe for concurrent use; one goroutine at a time replaces.
type inForce struct {
	current, names atomic.Pointer[Ruleset]
}

func newInForce(r *Ruleset) *inForce {
	f := new(inForce)
	f.current.Store(r)
	f.names.Store(r)
	return f
}

// Load returns the policy in force.
func (f *inForce) Load() *Ruleset { return f.current.Load() }

// Names returns the policy by which rules and zones are called. It knows those of the policies before
// too, as long as flows may bear them.
func (f *inForce) Names() *Ruleset { return f.names.Load() }

func (f *inForce) rule(id uint32) firewall.RuleInfo { return f.Names().rule(id) }

func (f *inForce) zoneName(id uint8) string { return f.Names().zoneName(id) }

// replace puts a policy in force by publish. The names go first: the first packet that another rule
// decides may write an event. After an error everything is as before.
func (f *inForce) replace(r *Ruleset, publish func() error) error {
	old := f.Load()
	f.names.Store(r)
	if err := publish(); err != nil {
		f.names.Store(old)
		return err
	}
	f.current.Store(r)
	return nil
}

// note puts r in the place of the policy in force, from which nothing but what sets were told differs.
func (f *inForce) note(r *Ruleset) {
	f.names.Store(r)
	f.current.Store(r)
}
