package gateway

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// forced sends all flows of a configuration through workers.
func forced(config string) string { return config + "force_stage: forward\n" }

// Where all flows go through workers, people notice nothing of it: the same traffic, and over two queues, so
// that directions of one flow arrive on different ones.
func TestLabWorkerTraffic(t *testing.T) {
	for _, topology := range []string{"client-server", "inline"} {
		for _, mtu := range []int{1500, 9000} {
			t.Run(fmt.Sprintf("%s-%d", topology, mtu), func(t *testing.T) {
				if mtu > 1500 && !kernelAtLeast(t, 6, 6) {
					t.Skip("packets of several buffers reach AF_XDP sockets from Linux 6.6 on")
				}
				r := newRig(t, topology, testenv.Options{Prefix: fmt.Sprintf("t-lab-w%s%d", topology[:1], mtu/1000), MTU: mtu, Queues: 2},
					forced(labConfig(topology)), labPolicy)
				r.mayDrop = []string{"worker-full", "egress-full"}
				passesTraffic(t, r, mtu)
				acrossQueues(t, r)
				for _, f := range must(r.Flows(t.Context(), "", 0)) {
					if f.Tier != "worker" || !strings.Contains(f.WhyNotHigher, "force_stage") {
						t.Errorf("flow %s:%d to %s:%d lives in %s: %q", f.SrcIP, f.SrcPort, f.DestIP, f.DestPort, f.Tier, f.WhyNotHigher)
					}
				}
			})
		}
	}
}

// acrossQueues exchanges datagrams on many flows, until some have gone from one worker to another.
func acrossQueues(t *testing.T, r *rig) {
	t.Helper()
	for _, a := range r.addresses() {
		echo, err := r.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7))
		if err != nil {
			t.Fatal(err)
		}
		defer echo.Close()
		for range 50 {
			if err := r.again(func() error {
				_, err := r.client.Exchange(limited(t, 5*time.Second), echo.Addr(), []byte("across"))
				return err
			}); err != nil {
				t.Fatalf("%v; dropped %v", err, must(r.Drops(t.Context(), false)))
			}
		}
	}
	w := must(r.Workers(t.Context()))
	if len(w.Workers) != 2 {
		t.Fatalf("%d workers, want one for each of two queues", len(w.Workers))
	}
	for i, n := range w.Workers {
		if n.Packets == 0 || n.TakenOver == 0 || n.HandedOver == 0 {
			t.Errorf("worker %d took %d packets from sockets, %d from the other, and gave it %d", i, n.Packets, n.TakenOver, n.HandedOver)
		}
	}
}
