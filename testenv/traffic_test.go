package testenv_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

var families = []struct {
	name           string
	client, server netip.Addr
}{
	{"ipv4", netip.MustParseAddr("10.10.1.2"), netip.MustParseAddr("10.10.1.3")},
	{"ipv6", netip.MustParseAddr("fd10:1::2"), netip.MustParseAddr("fd10:1::3")},
}

// wire brings up two hosts on one veth pair.
func wire(t *testing.T) (client, server *testenv.Namespace) {
	t.Helper()
	l := testenv.New(t, "wire", testenv.Options{})
	return l.Must(t, "client"), l.Must(t, "server")
}

// routed brings up a client and a server behind a kernel that forwards, with a path of 1,400 bytes.
func routed(t *testing.T) (client, gateway, server *testenv.Namespace) {
	t.Helper()
	l := testenv.New(t, "client-server", testenv.Options{})
	client, gateway, server = l.Must(t, "client"), l.Must(t, "gw"), l.Must(t, "server")
	err := gateway.Do(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
	if err := errors.Join(err, gateway.SetMTU("wan", 1400), server.SetMTU("s0", 1400)); err != nil {
		t.Fatal(err)
	}
	return client, gateway, server
}

func TestSinkConfirmsWhatArrived(t *testing.T) {
	client, server := wire(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			sink, err := server.ServeSink(t.Context(), netip.AddrPortFrom(f.server, 0))
			if err != nil {
				t.Fatal(err)
			}
			defer sink.Close()
			const size = 20<<20 + 7
			a, err := client.SendTo(t.Context(), sink.Addr(), size, 1)
			if err != nil {
				t.Fatal(err)
			}
			b, err := client.SendTo(t.Context(), sink.Addr(), size, 2)
			if err != nil {
				t.Fatal(err)
			}
			if a.Bytes != size || a.SHA256 == b.SHA256 || a.BitsPerSecond() <= 0 {
				t.Errorf("transfers %+v and %+v", a, b)
			}
			if got := sink.Bytes(); got != 2*size {
				t.Errorf("sink counts %d bytes", got)
			}
		})
	}
}

func TestSendToEndsWithItsContext(t *testing.T) {
	client, server := wire(t)
	// Nobody accepts: the transfer stops when the buffers are full.
	l, err := server.Listen(t.Context(), "tcp", "10.10.1.3:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = client.SendTo(ctx, netip.MustParseAddrPort("10.10.1.3:7000"), 1<<30, 1)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestDownload(t *testing.T) {
	client, server := wire(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			web, err := server.ServeHTTP(t.Context(), netip.AddrPortFrom(f.server, 0))
			if err != nil {
				t.Fatal(err)
			}
			defer web.Close()
			got, err := client.Download(t.Context(), web.URL(3<<20+1))
			if err != nil || got.Bytes != 3<<20+1 {
				t.Errorf("download: %+v, %v", got, err)
			}
			_, err = client.Download(t.Context(), strings.TrimSuffix(web.URL(1), "1")+"many")
			if err == nil || !strings.Contains(err.Error(), "400") {
				t.Errorf("bad number: %v", err)
			}
			out, err := client.Command(t.Context(), "curl", "-sg", "http://"+web.Addr().String()+"/").CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), "hello ") {
				t.Errorf("curl: %v %s", err, out)
			}
		})
	}
}

func TestExchange(t *testing.T) {
	client, server := wire(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			echo, err := server.ServeEcho(t.Context(), netip.AddrPortFrom(f.server, 0))
			if err != nil {
				t.Fatal(err)
			}
			defer echo.Close()
			rtt, err := client.Exchange(t.Context(), echo.Addr(), []byte("ask"))
			if err != nil || rtt <= 0 {
				t.Errorf("exchange: %s, %v", rtt, err)
			}
			if got := echo.Datagrams(); got != 1 {
				t.Errorf("%d datagrams", got)
			}
			_, err = client.Exchange(t.Context(), netip.AddrPortFrom(f.server, 9), []byte("ask"))
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("closed port: %v", err)
			}
			c, err := client.Dial(t.Context(), "tcp", echo.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte("line")); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 8)
			if n, err := c.Read(buf); err != nil || string(buf[:n]) != "line" {
				t.Errorf("TCP echo: %q, %v", buf[:n], err)
			}
		})
	}
}

func TestExchangeTimesOut(t *testing.T) {
	client, server := wire(t)
	silent, err := server.ListenPacket(t.Context(), "udp", "10.10.1.3:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = client.Exchange(ctx, netip.MustParseAddrPort("10.10.1.3:7000"), []byte("ask"))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestPing(t *testing.T) {
	client, server := wire(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r, err := client.Ping(t.Context(), f.server, testenv.PingOptions{Count: 3, Size: 1000})
			if err != nil || r.Sent != 3 || r.Received != 3 || len(r.RTT) != 3 || len(r.Errors) != 0 {
				t.Errorf("ping: %+v, %v", r, err)
			}
			if r, err = client.Ping(t.Context(), f.server, testenv.PingOptions{Size: 5000}); err != nil || r.Received != 1 {
				t.Errorf("fragmented: %+v, %v", r, err)
			}
			_, err = client.Ping(t.Context(), f.server, testenv.PingOptions{Size: 5000, DontFragment: true})
			if !errors.Is(err, unix.EMSGSIZE) {
				t.Errorf("too large: %v", err)
			}
		})
	}
	if err := server.SetUp("s0", false); err != nil {
		t.Fatal(err)
	}
	// The cable is pulled: silence, or the system's own refusal to send.
	r, _ := client.Ping(t.Context(), families[0].server, testenv.PingOptions{Timeout: 50 * time.Millisecond})
	if r.Received != 0 {
		t.Errorf("cable pulled: %+v", r)
	}
}

func TestPingReportsErrors(t *testing.T) {
	client, _, _ := routed(t)
	tests := []struct {
		name, dst, from string
		options         testenv.PingOptions
		kind, code      uint8
		mtu             uint32
	}{
		{"ipv4 ttl", "10.10.2.2", "10.10.1.1", testenv.PingOptions{TTL: 1}, 11, 0, 0},
		{"ipv6 ttl", "fd10:2::2", "fd10:1::1", testenv.PingOptions{TTL: 1}, 3, 0, 0},
		{"ipv4 too big", "10.10.2.2", "10.10.1.1", testenv.PingOptions{Size: 1450, DontFragment: true}, 3, 4, 1400},
		{"ipv6 too big", "fd10:2::2", "fd10:1::1", testenv.PingOptions{Size: 1440}, 2, 0, 1400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := client.Ping(t.Context(), netip.MustParseAddr(tt.dst), tt.options)
			want := testenv.ICMPError{From: netip.MustParseAddr(tt.from), Type: tt.kind, Code: tt.code, MTU: tt.mtu}
			if err != nil || len(r.Errors) != 1 || r.Errors[0] != want {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

func TestTraceroute(t *testing.T) {
	client, _, _ := routed(t)
	for _, tt := range []struct{ dst, hops string }{
		{"10.10.2.2", "1 10.10.1.1 11/0 false, 2 10.10.2.2 3/3 true"},
		{"fd10:2::2", "1 fd10:1::1 3/0 false, 2 fd10:2::2 1/4 true"},
		{"10.10.2.99", "1 10.10.1.1 11/0 false, 2 invalid IP 0/0 false"},
	} {
		t.Run(tt.dst, func(t *testing.T) {
			hops, err := client.Traceroute(t.Context(), netip.MustParseAddr(tt.dst),
				testenv.TracerouteOptions{MaxHops: 2, Timeout: testenv.Patience(500 * time.Millisecond)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, h := range hops {
				got = append(got, fmt.Sprintf("%d %s %d/%d %t", h.TTL, h.From, h.Type, h.Code, h.Reached))
			}
			if s := strings.Join(got, ", "); s != tt.hops {
				t.Errorf("hops %s", s)
			}
		})
	}
}

func TestPathMTU(t *testing.T) {
	client, gateway, server := routed(t)
	for _, address := range []string{"10.10.2.2", "fd10:2::2"} {
		t.Run(address, func(t *testing.T) {
			echo, err := server.ServeEcho(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(address), 0))
			if err != nil {
				t.Fatal(err)
			}
			defer echo.Close()
			mtu, err := client.PathMTU(t.Context(), echo.Addr())
			if err != nil || mtu != 1400 {
				t.Errorf("path MTU %d, %v", mtu, err)
			}
		})
	}
	// Frames that the far end's device does not take vanish without a word.
	if err := gateway.SetMTU("wan", 1500); err != nil {
		t.Fatal(err)
	}
	flush := client.Command(t.Context(), "ip", "route", "flush", "cache")
	if out, err := flush.CombinedOutput(); err != nil {
		t.Fatalf("flush: %v %s", err, out)
	}
	echo, err := server.ServeEcho(t.Context(), netip.MustParseAddrPort("10.10.2.2:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	if mtu, err := client.PathMTU(t.Context(), echo.Addr()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("black hole: path MTU %d, %v", mtu, err)
	}
}

func TestForwardedCountsTheKernelsWork(t *testing.T) {
	client, gateway, _ := routed(t)
	before4, before6, err := gateway.Forwarded()
	if err != nil {
		t.Fatal(err)
	}
	for _, dst := range []string{"10.10.2.2", "fd10:2::2"} {
		if _, err := client.Ping(t.Context(), netip.MustParseAddr(dst), testenv.PingOptions{Count: 10}); err != nil {
			t.Fatal(err)
		}
	}
	after4, after6, err := gateway.Forwarded()
	if err != nil || after4-before4 != 20 || after6-before6 != 20 {
		t.Errorf("forwarded %d and %d, %v", after4-before4, after6-before6, err)
	}
}

func TestCaptureSeesWhatIsSent(t *testing.T) {
	client, server := wire(t)
	frame := func(n byte) []byte {
		f := make([]byte, 100)
		copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
		f[99] = n
		return f
	}
	ours := func(f []byte) bool { return len(f) == 100 && f[12] == 0x88 && f[13] == 0xb5 }
	in, err := server.StartCapture("s0", testenv.CaptureOptions{Match: ours, Keep: 3, Snaplen: 60})
	if err != nil {
		t.Fatal(err)
	}
	out, err := client.StartCapture("c0", testenv.CaptureOptions{Match: ours, Outgoing: true})
	if err != nil {
		t.Fatal(err)
	}
	none, err := client.StartCapture("c0", testenv.CaptureOptions{Match: ours})
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const count = 5000
	for i := range count {
		if err := s.Send(frame(byte(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Send(make([]byte, 2000)); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("too long a frame: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := in.Wait(ctx, count); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		name    string
		capture *testenv.Capture
		want    int
	}{{"arriving", in, count}, {"leaving", out, count}, {"arriving at the sender", none, 0}} {
		if got, err := tt.capture.Stop(); err != nil || got != tt.want {
			t.Errorf("%s: %d frames, %v", tt.name, got, err)
		}
	}
	kept := in.Frames()
	if len(kept) != 3 || kept[0].Length != 100 || !bytes.Equal(kept[2].Data, frame(2)[:60]) {
		t.Errorf("kept %+v", kept)
	}
	if f := out.Frames(); len(f) != count || !f[0].Outgoing || !bytes.Equal(f[9].Data, frame(9)) {
		t.Errorf("kept %d frames that leave", len(f))
	}
	if stats, err := server.DeviceStats("s0"); err != nil || stats.RxPackets < count {
		t.Errorf("device counts %+v, %v", stats, err)
	}
}

func TestCaptureShowsVLANTagsAndPartialChecksums(t *testing.T) {
	client, server := wire(t)
	c, err := server.StartCapture("s0", testenv.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tagged := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 10, 0x88, 0xb5}, make([]byte, 60)...)
	if err := s.Send(tagged); err != nil {
		t.Fatal(err)
	}
	if conn, err := client.Dial(t.Context(), "tcp", "10.10.1.3:9"); err == nil {
		conn.Close()
		t.Error("the closed port took a connection")
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		seenTag, seenPartial := false, false
		for _, f := range c.Frames() {
			seenTag = seenTag || bytes.Equal(f.Data, tagged) && f.Length == len(tagged)
			seenPartial = seenPartial || f.ChecksumPartial
		}
		if !seenTag || !seenPartial {
			return fmt.Errorf("tag %t, partial checksum %t", seenTag, seenPartial)
		}
		return nil
	})
	if _, err := c.Stop(); err != nil {
		t.Error(err)
	}
}
