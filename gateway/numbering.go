package gateway

import (
	"fmt"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
)

// mostSince is how much of what numbers mean may stand beside what was written whole, in bytes. Beyond, it is
// written whole again, which of 100,000 rules takes as long as all else about a change.
const mostSince = 128 << 10

// A numbering writes what numbers mean for the run that takes over one day: of the first policy whole, and of those
// that follow what they have other than that. The zero value is ready.
type numbering struct {
	whole *firewall.Identities // that text is of
	text  dataplane.NumbersText
}

// write returns the text for the identities of a policy that is to be in force.
func (n *numbering) write(of *firewall.Identities) (dataplane.NumbersText, error) {
	told := func(err error) error {
		return fmt.Errorf("write the numbers of rules, zones and MAC addresses: %w", err)
	}
	if n.whole != nil {
		since, err := of.Since(n.whole)
		if err != nil {
			return n.text, told(err)
		}
		if len(since) <= mostSince {
			return dataplane.NumbersText{Whole: n.text.Whole, Since: since}, nil
		}
	}
	whole, err := of.MarshalJSON()
	if err != nil {
		return n.text, told(err)
	}
	n.whole, n.text = of, dataplane.NumbersText{Whole: whole}
	return n.text, nil
}
