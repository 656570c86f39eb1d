package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// silence has a namespace drop the ICMP errors that say of what length packets must be.
const silence = `table inet silent {
	chain in {
		type filter hook input priority 0;
		icmp type destination-unreachable drop
		icmpv6 type packet-too-big drop
	}
}
`

// A way that is narrower than the ends know and does not say so: connections agree on the MSS that ports and
// rules say, the first one too, whose SYN the kernel carries on since no neighbour is known, and what they
// transfer fits. Without, what is long is lost.
func TestLabMSS(t *testing.T) {
	t.Parallel()
	const narrow = 1400
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-mss"}, labRouted, labPolicy)
	for _, ns := range []*testenv.Namespace{r.client, r.server} {
		sysctl(t, ns, "ipv4/tcp_timestamps", "0") // or the kernel tells the MSS without their 12 bytes
		nft := ns.Command(t.Context(), "nft", "-f", "-")
		nft.Stdin = strings.NewReader(silence)
		if out, err := nft.CombinedOutput(); err != nil {
			t.Fatalf("nft: %v: %s", err, out)
		}
	}
	if err := r.gw.SetMTU("wan", narrow); err != nil {
		t.Fatal(err)
	}
	if got := r.agreed(t, client4, server4); got != [2]int{1460, 1460} {
		t.Errorf("without a limit the ends agree on %v", got)
	}
	web, err := r.server.ServeHTTP(t.Context(), netip.AddrPortFrom(server4, 80))
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.client.Download(limited(t, time.Second), web.URL(100_000))
	web.Close()
	if err == nil {
		t.Error("the way is not narrow: long packets pass")
	}

	auto := strings.Replace(labRouted, "{device: wan}", "{device: wan, mss_clamp: auto}", 1)
	both := strings.Replace(auto, "{device: lan}", "{device: lan, mss_clamp: 1200}", 1)
	masqueraded := labPolicy + "nat: [{name: branch, from: lan, to: wan, masquerade: {}}]\n"
	rule := strings.Replace(labPolicy, "service: tcp/5001, ", "service: tcp/5001, mss_clamp: 1000, ", 1)
	for _, row := range []struct {
		name           string
		config, policy string
		ipv4           int
	}{
		{"port", auto, labPolicy, narrow - 40},
		{"other port", both, labPolicy, 1200},
		{"rule", both, rule, 1000},
		{"rule alone", labRouted, rule, 1000},
		{"translated", auto, masqueraded, narrow - 40},
	} {
		r.mustReload(t, row.config, row.policy)
		r.forgetNeighbours(t)
		for i, ends := range [][2]netip.Addr{{client4, server4}, {client6, server6}} {
			want := [2]int{row.ipv4 - 20*i, row.ipv4 - 20*i}
			if got := r.agreed(t, ends[0], ends[1]); got != want {
				t.Errorf("%s, IPv%d: the ends agree on %v, want %v", row.name, 4+2*i, got, want)
			}
		}
	}
	if passes := r.tally(t).passes["neighbour-unknown"]; passes < 5 {
		t.Errorf("the kernel carried on only %d packets", passes)
	}

	// As the MTU becomes, so does the MSS.
	if err := r.gw.SetMTU("wan", 1300); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		for _, p := range must(r.Status(t.Context())).Ports {
			if p.Name == "wan" && (p.MTU != 1300 || p.MSSClamp != 1260) {
				return fmt.Errorf("port %+v", p)
			}
		}
		return nil
	})
	if got := r.agreed(t, client6, server6); got != [2]int{1240, 1240} {
		t.Errorf("behind a smaller MTU the ends agree on %v", got)
	}
	transfers(t, r)
	for _, ns := range []*testenv.Namespace{r.client, r.server} {
		if n := must(ns.Counters())["Tcp.InCsumErrors"]; n != 0 {
			t.Errorf("%s got %d segments with wrong checksums", ns.Name(), n)
		}
	}
}

// agreed opens a connection and returns what its ends may send in a segment: the client's, then the server's.
func (r *rig) agreed(t *testing.T, client, server netip.Addr) (mss [2]int) {
	t.Helper()
	l, err := r.server.Listen(t.Context(), "tcp", netip.AddrPortFrom(server, 5001).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	c, err := r.client.Dial(limited(t, 10*time.Second), "tcp", netip.AddrPortFrom(server, 5001).String())
	if err != nil {
		t.Fatalf("%v\n%s", err, r.tally(t))
	}
	defer c.Close()
	s, ok := <-accepted
	if !ok {
		t.Fatal("the server has no connection")
	}
	defer s.Close()
	for i, end := range []net.Conn{c, s} {
		raw, err := end.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var failed error
		if err := raw.Control(func(fd uintptr) {
			mss[i], failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
		}); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
	}
	return mss
}

// forgetNeighbours has the gateway ask for its neighbours' MACs anew.
func (r *rig) forgetNeighbours(t *testing.T) {
	t.Helper()
	for _, device := range []string{"lan", "wan"} {
		ip(t, fmt.Sprintf("-n %s neigh flush dev %s", r.gw.Name(), device))
	}
}
