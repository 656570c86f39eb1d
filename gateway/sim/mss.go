package sim

import (
	"github.com/softdpu/softdpu/dataplane"
)

// portMSS is what ports hold SYNs to, by their ids.
func (s *Sim) portMSS() map[uint8]uint16 {
	out := make(map[uint8]uint16)
	for _, at := range s.byID {
		port := dataplane.Port{PortConfig: dataplane.PortConfig{MSSClamp: at.MSSClamp}, MTU: at.MTU}
		if mss := port.MSS(); mss != 0 {
			out[at.entry.Id] = mss
		}
	}
	return out
}
