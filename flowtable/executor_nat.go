package flowtable

import "net/netip"

// Routed returns the destination whose route Process will want for this frame, if it wants one: the packet's
// own, or what it becomes by translation. Local is that of the Route: that the destination in the packet is
// the gateway's own. It changes nothing. Ok is false of frames without a flow of a routed port.
func (e *Executor) Routed(now uint64, ifindex uint32, frame []byte, local bool) (dst netip.Addr, ok bool) {
	e.w = work{frame: frame, port: e.ports[ifindex], tick: Tick(now), route: Route{Local: local}}
	return e.destination(&e.w)
}

func (e *Executor) destination(w *work) (netip.Addr, bool) {
	if w.port == nil || e.p.Decode(w.frame) != 0 || e.p.Family == 0 {
		return netip.Addr{}, false
	}
	return address(e.p.Family, &e.p.Dst), true
}
