package flowtable

import (
	"sync/atomic"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// A leg's route is good for a second, or until routes change.
func TestRouteAge(t *testing.T) {
	there := fromClient4.udp(t, 1000, 53, 10)
	const tick = 1 << tickShift
	for _, tc := range []struct {
		name  string
		pause []uint64 // ns before each further packet; the last one is asked about
		setup func(*rig)
		stale bool
	}{
		{"at once", []uint64{0}, nil, false},
		{"half a second", []uint64{second / 2}, nil, false},
		{"last packet a second ago", []uint64{second + 2*tick}, nil, true},
		{"look-up a second ago, packets since", []uint64{second / 2, second/2 + 4*tick}, nil, true},
		{"look-up under a second ago, packets since", []uint64{second / 2, second / 3}, nil, false},
		{"routes changed since", []uint64{second / 2}, func(r *rig) {
			atomic.StoreUint32(&r.Table().State().RouteChanged, Tick(r.now)+10)
		}, true},
		{"routes changed before", []uint64{second / 2}, func(r *rig) {
			atomic.StoreUint32(&r.Table().State().RouteChanged, Tick(r.now)-10)
		}, false},
		{"time of the look-up wrapped", []uint64{0x40000 * tick}, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.want(lanIf, there, Forward, reasonNone)
			if tc.setup != nil {
				tc.setup(r)
			}
			for i, pause := range tc.pause {
				r.now += pause
				r.route = &Route{Nexthop: hopWAN}
				want := uint32(hopWAN)
				if i == len(tc.pause)-1 {
					r.route = &Route{Nexthop: hopTagged}
					if tc.stale {
						want = hopTagged
					}
				}
				if res := r.want(lanIf, there, Forward, reasonNone); res.Nexthop != want {
					t.Fatalf("packet %d by next hop %d, want %d", i+2, res.Nexthop, want)
				}
			}
		})
	}
}

func TestUnresolvedNeighbourIsAskedAgain(t *testing.T) {
	r := newRig(t)
	there := fromClient4.udp(t, 1000, 53, 10)
	r.route = &Route{Nexthop: hopPending}
	for range 2 {
		if res := r.want(lanIf, there, Pass, reasonNone); res.Pass != passNeigh || res.Nexthop != hopPending {
			t.Fatalf("%+v", res)
		}
	}
	r.hops[hopPending].State = NexthopReady
	if res := r.want(lanIf, there, Forward, reasonNone); res.Port != 2 {
		t.Errorf("port %d", res.Port)
	}
}

// A lost route drops the packet and not the flow.
func TestRouteLost(t *testing.T) {
	r := newRig(t)
	there := fromClient4.udp(t, 1000, 53, 10)
	r.want(lanIf, there, Forward, reasonNone)
	r.now += 2 * second
	r.route = &Route{Reason: bpf.XDPReasonREASON_NO_ROUTE}
	r.want(lanIf, there, Drop, bpf.XDPReasonREASON_NO_ROUTE)
	r.route = nil
	r.want(lanIf, there, Forward, reasonNone)
	if f := r.flow(fromClient4.tuple(17, 1000, 53)); f.Packets[0] != 2 {
		t.Errorf("%d packets", f.Packets[0])
	}
}

// A route that moves to another zone is judged with that zone.
func TestRouteMovesToAnotherZone(t *testing.T) {
	there := fromClient4.udp(t, 1000, 53, 10)
	toDMZ := func(verdict uint32) rules {
		return func(k *bpf.XDPClassifyKey, _ func(uint32)) uint32 {
			if k.To == zoneDMZ {
				return verdict
			}
			return allow(1)
		}
	}
	t.Run("allowed", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Classifier = toDMZ(allow(2)) })
		r.want(lanIf, there, Forward, reasonNone)
		r.now += 2 * second
		r.route = &Route{Nexthop: hopDMZ}
		if res := r.want(lanIf, there, Forward, reasonNone); res.Port != 3 || res.Rule != 2 {
			t.Errorf("port %d by rule %d", res.Port, res.Rule)
		}
		// The other end now lives there.
		r.route = nil
		r.want(dmzIf, side{dmzIf, server4, client4}.udp(t, 53, 1000, 1), Forward, reasonNone)
		r.want(wanIf, fromServer4.udp(t, 53, 1000, 1), Drop, bpf.XDPReasonREASON_WRONG_ZONE)
	})
	t.Run("not allowed", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Classifier = toDMZ(deny(3)) })
		r.want(lanIf, there, Forward, reasonNone)
		r.now += 2 * second
		r.route = &Route{Nexthop: hopDMZ}
		res := r.want(lanIf, there, Drop, bpf.XDPReasonREASON_POLICY_REVOKED)
		if res.Word&WordRevoked == 0 {
			t.Error("the flow is not revoked")
		}
		// Not even within the second in which its leg would trust the route.
		r.want(lanIf, there, Drop, bpf.XDPReasonREASON_POLICY_REVOKED)
		if f := r.flow(fromClient4.tuple(17, 1000, 53)); f.Packets[0] != 1 {
			t.Errorf("%d packets", f.Packets[0])
		}
	})
}

// Inline legs look the peer up once.
func TestInlineRoute(t *testing.T) {
	r := newRig(t)
	there := tag(inline4.udp(t, 1000, 53, 10), 7)
	if res := r.want(leftIf, there, Forward, reasonNone); res.From != zoneVLAN || res.To != zonePeerVLAN || res.Nexthop != NexthopPort+5 {
		t.Errorf("%+v", res)
	}
	r.now += 100 * second
	r.want(leftIf, there, Forward, reasonNone)
	if res := r.want(rightIf, tag(inlineBack4.udp(t, 53, 1000, 1), 7), Forward, reasonNone); res.Port != 4 || res.Leg != 2 {
		t.Errorf("back: %+v", res)
	}
	// The same tuple untagged is of another routing domain.
	r.want(leftIf, inline4.udp(t, 1000, 53, 10), Forward, reasonNone)
	if r.Table().Flows() != 2 {
		t.Errorf("%d flows", r.Table().Flows())
	}
}
