package gateway

import (
	"slices"
	"strconv"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// MSSClamp is the most that SYNs that come or leave by a port may ask for over IPv4, 20 less over IPv6, in bytes:
// as dataplane.PortConfig has it, so dataplane.MSSAuto follows the MTU and 0 is none.
type MSSClamp uint16

// String writes it as the configuration does.
func (m MSSClamp) String() string {
	if m == dataplane.MSSAuto {
		return mssAuto
	}
	return strconv.Itoa(int(m))
}

// mssAuto, as mss_clamp of a port, follows the MTU.
const mssAuto = "auto"

// mssClamp reads the most that SYNs that come or leave by a port may ask for.
func (r *configReader) mssClamp(n *firewall.Node) MSSClamp {
	if n.Kind == firewall.ScalarNode && n.Text == mssAuto {
		return dataplane.MSSAuto
	}
	before := len(r.Errs)
	mss, ok := r.Int(n, "mss_clamp", flowtable.MSSMin, flowtable.MSSMax)
	if !ok {
		for i := range r.Errs[before:] {
			r.Errs[before+i].Hint = "or write auto, for what fits the port's MTU"
		}
	}
	return MSSClamp(mss)
}

// clampsMSS reports whether a port or a rule holds SYNs to an MSS.
func (r *Ruleset) clampsMSS() bool {
	return slices.ContainsFunc(r.config.Ports, func(p Port) bool { return p.MSSClamp != 0 }) || len(r.Compiled.MSS()) > 0
}
