package xsk_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestOpenSaysWhyNot asks for what cannot be had.
func TestOpenSaysWhyNot(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix, Queues: 2})
	gw := l.Must(t, "gw")
	check(t, gw.SetMTU("wan", 3000))
	check(t, l.Must(t, "server").SetMTU("s0", 3000))
	veth := "driver veth has no zero-copy (xdp-features 0x"
	if !xsk.KernelAtLeast(6, 3) {
		veth = "driver veth refuses it, and before Linux 6.3 the kernel does not say"
	}
	soon := small
	soon.BindTimeout = 50 * time.Millisecond
	for _, tt := range []struct {
		name   string
		umem   xsk.UMEMOptions
		device string
		queue  int
		rings  xsk.SocketOptions
		attach xsk.Mode // of a program that is on the device; Any is none
		is     error
		want   []string
	}{
		{name: "zero-copy of a driver without", umem: xsk.UMEMOptions{Mode: xsk.ZeroCopy}, device: "lan", rings: small,
			is: unix.EOPNOTSUPP, want: []string{"open socket on lan queue 0", "bind in mode zero-copy", veth}},
		{name: "a queue beyond", umem: xsk.UMEMOptions{Mode: xsk.Copy}, device: "lan", queue: 2, rings: small,
			is: unix.EINVAL, want: []string{"lan queue 2", "it has queues 0 to 1"}},
		{name: "another socket on the queue", umem: xsk.UMEMOptions{}, device: "lan", queue: 1, rings: soon,
			is: unix.EBUSY, want: []string{"another socket holds the queue", "ss --xdp"}},
		{name: "an MTU above the frame", umem: xsk.UMEMOptions{FrameSize: 2048}, device: "wan", rings: small,
			want: []string{"its MTU of 3000 makes packets of up to 3022 bytes and a frame holds 1792", "MultiBuffer"}},
		{name: "copy of a generic program", umem: xsk.UMEMOptions{Mode: xsk.Copy}, device: "lan", rings: small, attach: xsk.Generic,
			want: []string{"runs in generic mode", "xdpdrv"}},
		{name: "generic of a native program", umem: xsk.UMEMOptions{Mode: xsk.Generic}, device: "lan", rings: small, attach: xsk.Copy,
			want: []string{"runs in the driver", "xdpgeneric"}},
		{name: "no such device", umem: xsk.UMEMOptions{}, device: "nowhere", rings: small, want: []string{"find device nowhere"}},
		{name: "a ring of 100", umem: xsk.UMEMOptions{}, device: "lan", rings: xsk.SocketOptions{Rx: 100}, want: []string{"rx ring of 100 entries: it must be a power of two"}},
		{name: "busy polling for a nanosecond", umem: xsk.UMEMOptions{}, device: "lan",
			rings: xsk.SocketOptions{BusyPoll: xsk.BusyPoll{Time: 1}}, want: []string{"busy polling of 1ns"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			holder := newEnd(t, xsk.UMEMOptions{Frames: 64, Mode: xsk.Copy})
			held := &port{}
			held.sockets = append(held.sockets, must(open(gw, holder.umem, holder.pool, "lan", 1, small))(t))
			holder.ports = append(holder.ports, held)
			if tt.attach != xsk.Any {
				check(t, gw.Do(func() (err error) {
					held.redirect, err = xsk.Attach("lan", xsk.AttachOptions{Mode: tt.attach})
					return err
				}))
			}
			tt.umem.Frames = 64
			e := newEnd(t, tt.umem)
			s, err := open(gw, e.umem, e.pool, tt.device, tt.queue, tt.rings)
			if err == nil {
				s.Close()
				t.Fatal("it was opened")
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %q is not %q", err, tt.is)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if n := e.pool.Len(); n != 64 {
				t.Errorf("%d frames of 64 are left in the pool", n)
			}
		})
	}
}
