package flowtable

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// routeLife is how long a leg trusts its route, in ticks: one second, rounded up.
const routeLife = 954

// reroute gives the packet the leg's next hop, looking it up if it is not known or no longer good.
// A flow that now leaves by another zone is judged again.
func (e *Executor) reroute(w *work, leg *bpf.XDPLeg) bpf.XDPReason {
	w.nexthop, w.to = uint32(leg.Nexthop), *e.zoneOf(w, !w.opener)
	if !e.stale(w, leg) {
		return reasonNone
	}
	zone := e.zoneOf(w, !w.opener)
	if reason := e.lookUpRoute(w); reason != reasonNone {
		return reason
	}
	leg.Nexthop, leg.Route = uint16(w.nexthop), uint16(w.tick>>2)
	if w.to == *zone {
		return reasonNone
	}
	*zone = w.to
	e.rejudge(w)
	if w.flow.word()&WordRevoked != 0 {
		return bpf.XDPReasonREASON_POLICY_REVOKED
	}
	return reasonNone
}

// stale reports whether the leg's route must be looked up. The time of the look-up has 16 bits of
// four ticks; that the last packet is under a second old keeps it from wrapping unseen.
func (e *Executor) stale(w *work, leg *bpf.XDPLeg) bool {
	if leg.Nexthop == NexthopNone {
		return true
	}
	if w.inline() {
		return false
	}
	if int(leg.Nexthop) >= len(e.cfg.Nexthops) || e.cfg.Nexthops[leg.Nexthop].State != NexthopReady && leg.Nexthop != NexthopHost {
		return true
	}
	since := uint16(w.tick>>2) - leg.Route
	lookedUp := w.tick - uint32(since)<<2
	return w.tick-leg.Seen >= routeLife || since >= routeLife>>2 ||
		int32(lookedUp-e.cfg.Table.routeChanged()) < 0
}

// lookUpRoute fills nexthop, to and, while the next hop's MAC is not known, pass: for the destination with
// which the packet leaves.
func (e *Executor) lookUpRoute(w *work) bpf.XDPReason {
	w.pass = 0
	if w.inline() {
		w.nexthop, w.to = uint32(w.port.Peer), w.port.PeerZone
		if e.p.VLAN != 0 {
			w.to = e.cfg.VLANZones[VLANKey(w.port.PeerPort, e.p.VLAN)]
		}
		if w.to == ZoneNone {
			return bpf.XDPReasonREASON_VLAN_UNKNOWN
		}
		return reasonNone
	}
	switch {
	case w.route.Nexthop == NexthopHost, isGroup(e.p.Family, &w.leaving().Dst):
		if w.translated {
			return bpf.XDPReasonREASON_NAT_TO_HOST
		}
		w.nexthop, w.to = NexthopHost, ZoneHost
		return reasonNone
	case w.route.Nexthop == NexthopNone && w.route.Reason != reasonNone:
		return w.route.Reason
	case w.route.Nexthop == NexthopNone || int(w.route.Nexthop) >= len(e.cfg.Nexthops):
		return bpf.XDPReasonREASON_INTERNAL
	}
	hop := &e.cfg.Nexthops[w.route.Nexthop]
	w.nexthop, w.to = w.route.Nexthop, hop.Zone
	if hop.State != NexthopReady {
		w.passTo(bpf.XDPPassCausePASS_NEIGHBOUR)
	}
	if unroutable(e.p.Family, &e.p.Src) {
		return bpf.XDPReasonREASON_MARTIAN
	}
	return reasonNone
}

// endsHere reports whether nobody would carry an IPv6 packet on: what is not for the link or the gateway,
// discovery or not, the kernel would route past the rules.
func endsHere(w *work, dst *packet.Addr) bool {
	return isGroup(6, dst) || linkLocal(dst) || w.route.Nexthop == NexthopHost
}

// isGroup reports whether dst is multicast or IPv4's limited broadcast.
func isGroup(family uint8, dst *packet.Addr) bool {
	if family == 6 {
		return dst[0] == 0xff
	}
	return dst[0]>>4 == 14 || load32(dst[:]) == 0xffffffff
}

// unroutable reports whether a source must stay on its link: fe80::/10 and 0.0.0.0.
func unroutable(family uint8, src *packet.Addr) bool {
	if family == 6 {
		return linkLocal(src)
	}
	return load32(src[:]) == 0
}

// linkLocal reports whether an IPv6 address is in fe80::/10.
func linkLocal(a *packet.Addr) bool { return a[0] == 0xfe && a[1]&0xc0 == 0x80 }
