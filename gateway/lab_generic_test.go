package gateway

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// sending is what of a device's offloads leaves segmentation and checksums for later.
func sending(t *testing.T, ns *testenv.Namespace, device string) (on []string) {
	t.Helper()
	out, err := ns.Command(t.Context(), "ethtool", "-k", device).CombinedOutput()
	if err != nil {
		t.Fatalf("ethtool: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if strings.HasPrefix(name, "tx-") && value == "on" {
			on = append(on, name)
		}
	}
	return on
}

// In generic mode XDP sees what the other end's stack sends, before it is segmented and summed. The
// gateway does not start to drop it, or to leave it to the kernel: it refuses, or has the work done before
// as long as it runs.
func TestLabGeneric(t *testing.T) {
	for _, topology := range []string{"client-server", "inline"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			o := testenv.Options{Prefix: "t-lab-g" + topology[:1]}
			l := testenv.New(t, topology, o)
			c := write(t, strings.ReplaceAll(generic(labConfig(topology)), "fix_offloads: true", "fix_offloads: false"), labPolicy)
			err := l.Must(t, testenv.Gateway).Do(func() error {
				return Run(t.Context(), c, Options{Ready: func() { t.Error("it runs") }})
			})
			if err == nil {
				t.Fatal("it ran")
			}
			for _, want := range []string{
				"port lan: the other end of device lan, c0, leaves segmentation and checksums to XDP", "`ethtool -K c0 tx-tcp-segmentation off",
				"port wan: the other end of device wan, s0, leaves segmentation and checksums to XDP", "fix_offloads: true",
			} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("does not say %q: %v", want, err)
				}
			}
			before := sending(t, l.Must(t, "client"), "c0")
			if len(before) < 3 {
				t.Fatalf("the client's offloads are not veth's own: %v", before)
			}

			r := newRigIn(t, l, o, generic(labConfig(topology)), labPolicy)
			start := r.tally(t)
			for _, a := range r.addresses() {
				sink, err := r.server.ServeSink(t.Context(), netip.AddrPortFrom(a, 5001))
				if err != nil {
					t.Fatal(err)
				}
				defer sink.Close()
				web, err := r.server.ServeHTTP(t.Context(), netip.AddrPortFrom(a, 80))
				if err != nil {
					t.Fatal(err)
				}
				defer web.Close()
				up, err := r.client.SendTo(limited(t, 20*time.Second), sink.Addr(), 16<<20, 1)
				if err != nil {
					t.Fatalf("%v\n%s", err, r.tally(t).since(start))
				}
				if _, err := r.client.Download(limited(t, 20*time.Second), web.URL(4<<20)); err != nil {
					t.Fatalf("%v\n%s", err, r.tally(t).since(start))
				}
				t.Logf("%s: 16 MiB at %.0f Mbit/s", a, up.BitsPerSecond()/1e6)
			}
			n := r.tally(t).since(start)
			t.Logf("%s", n)
			if len(n.drops) > 0 {
				t.Errorf("the gateway dropped something: %v", n.drops)
			}
			if n.redirected() < 0.99 {
				t.Errorf("XDP redirected less than 99 %%: %s", n)
			}
			if n.forwarded[0] > maxForwarded || n.forwarded[1] > maxForwarded {
				t.Errorf("the kernel forwarded more than %d packets of a family: %s", maxForwarded, n)
			}
			r.stop()
			if after := sending(t, r.client, "c0"); strings.Join(before, " ") != strings.Join(after, " ") {
				t.Errorf("%v were on, and after the end %v", before, after)
			}
		})
	}
}

// A packet that left the client with an open checksum has a right one wherever it is needed first: here
// by a router behind the gateway whose device sums nothing.
func TestLabChecksumsFurtherOn(t *testing.T) {
	for name, config := range map[string]string{"native": labInline, "generic": generic(labInline)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "inline", testenv.Options{Prefix: "t-lab-c" + name[:1]}, config, labPolicy)
			far := behind(t, r.lab, 1500)
			if out, err := r.server.Command(t.Context(), "ethtool", "-K", "r0", "tx", "off").CombinedOutput(); err != nil {
				t.Fatalf("ethtool: %v\n%s", err, out)
			}
			for _, a := range far {
				sink, err := must(testenv.OpenNamespace(r.lab.Prefix+"-far")).ServeSink(t.Context(), netip.AddrPortFrom(a, 5001))
				if err != nil {
					t.Fatal(err)
				}
				defer sink.Close()
				if _, err := r.client.SendTo(limited(t, 10*time.Second), sink.Addr(), 4<<20, 2); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
