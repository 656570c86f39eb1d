package dataplane

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/flowtable"
)

// MSSAuto, as PortConfig.MSSClamp, is the MSS that fits the port's MTU, whatever that becomes.
const MSSAuto = 0xffff

// MSS returns the most that SYNs over IPv4 that come or leave by the port may ask for, as things stand; 20 less
// over IPv6; 0 = whatever they do.
func (p *Port) MSS() uint16 {
	if p.MSSClamp == MSSAuto {
		return flowtable.MSSOf(p.MTU)
	}
	return p.MSSClamp
}

// storeMSS tells XDP the port's MSS.
func (p *Plane) storeMSS(port *Port) {
	atomic.StoreUint64(&p.mem.portMSS[port.ID], uint64(port.MSS()))
}
