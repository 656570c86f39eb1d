package xsk_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/safchain/ethtool"

	"github.com/softdpu/softdpu/testenv"
)

// TestExampleReceives runs the program of Example_receive.
func TestExampleReceives(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	sender := must(l.Must(t, "client").OpenSender("c0"))(t)
	defer sender.Close()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := uint64(0); ; n++ { // until enough have come: those before the program is there do not count
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
				if err := sender.Send(frameOf(n, shortest)); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	err := l.Must(t, "server").Do(func() error {
		packets, err := countArrivals("s0", 500)
		if packets < 500 {
			t.Errorf("%d packets", packets)
		}
		return err
	})
	close(stop)
	<-done
	check(t, err)
}

// TestExampleForwards runs the program of Example_forward as a cable between two hosts, over which kernels
// resolve each other's addresses and run TCP.
func TestExampleForwards(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	client, server := l.Must(t, "client"), l.Must(t, "server")
	// The example completes no checksums.
	check(t, client.Do(func() error { return setFeature("c0", "tx-checksum-ip-generic", false) }))
	check(t, server.Do(func() error { return setFeature("s0", "tx-checksum-ip-generic", false) }))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- l.Must(t, "gw").Do(func() error { return forward(ctx, "lan", "wan") })
	}()
	defer func() {
		cancel()
		check(t, <-done)
	}()
	transfer(t, client, server, 4<<20)
}

// transfer sends bytes both ways over TCP, the receiver comparing hashes.
func transfer(t *testing.T, client, server *testenv.Namespace, bytes int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	for _, way := range []struct {
		from, to *testenv.Namespace
		address  string
	}{{client, server, "10.10.1.3:0"}, {server, client, "10.10.1.2:0"}} {
		sink := must(way.to.ServeSink(ctx, netip.MustParseAddrPort(way.address)))(t)
		sent := must(way.from.SendTo(ctx, sink.Addr(), bytes, 1))(t)
		t.Logf("%.0f Mbit/s", sent.BitsPerSecond()/1e6)
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	}
}

// setFeature switches a feature of a device of the calling thread's namespace.
func setFeature(device, feature string, on bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Change(device, map[string]bool{feature: on})
}
