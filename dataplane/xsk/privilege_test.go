package xsk_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestOpenSaysWhatPrivilegeIsMissing opens sockets on a thread that lacks one capability each.
func TestOpenSaysWhatPrivilegeIsMissing(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	defer func() { check(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)) }()
	check(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: limit.Max}))
	busy := small
	busy.BusyPoll.Time = 20 * time.Microsecond
	for _, tt := range []struct {
		name    string
		without uint
		rings   xsk.SocketOptions
		is      error
		want    string
	}{
		{"memory", unix.CAP_IPC_LOCK, small, unix.ENOBUFS, "raise RLIMIT_MEMLOCK (`ulimit -l`) above 1024 KiB or give the process CAP_IPC_LOCK"},
		{"socket", unix.CAP_NET_RAW, small, unix.EPERM, "it needs CAP_NET_RAW"},
		{"busy polling", unix.CAP_NET_ADMIN, busy, unix.EPERM, "it needs CAP_NET_ADMIN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 4096, Mode: xsk.Copy})
			err := l.Must(t, "gw").Do(func() error {
				return without(tt.without, func() error {
					s, err := xsk.Open(e.umem, e.pool, "lan", 0, tt.rings)
					if err == nil {
						err = s.Close()
					}
					return err
				})
			})
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v does not say %q", err, tt.want)
			}
			if n := e.pool.Len(); n != 256 {
				t.Errorf("%d frames of 256 are left in the pool", n)
			}
		})
	}
}

// without calls fn while the calling thread, which must be locked, lacks a capability.
func without(capability uint, fn func() error) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had, have [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		return err
	}
	have = had
	have[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(&header, &have[0]); err != nil {
		return err
	}
	err := fn()
	return errors.Join(err, unix.Capset(&header, &had[0]))
}

// TestAttachSaysWhyNot puts programs where they cannot be, or only otherwise.
func TestAttachSaysWhyNot(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix, MTU: 9000})
	attach := func(device string, o xsk.AttachOptions) (r *xsk.Redirect, err error) {
		err = l.Must(t, "gw").Do(func() error { r, err = xsk.Attach(device, o); return err })
		return r, err
	}
	if _, err := attach("lan", xsk.AttachOptions{Mode: xsk.Copy}); err == nil || !strings.Contains(err.Error(), "its MTU is 9000: set MultiBuffer") {
		t.Errorf("a program for packets of one buffer on a device of MTU 9000: %v", err)
	}
	if _, err := attach("lo", xsk.AttachOptions{Mode: xsk.ZeroCopy}); !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "has no XDP") {
		t.Errorf("a native program on the loopback: %v", err)
	}
	if _, err := attach("nowhere", xsk.AttachOptions{}); err == nil || !strings.Contains(err.Error(), "find device nowhere") {
		t.Errorf("a program on no device: %v", err)
	}
	r, err := attach("lo", xsk.AttachOptions{})
	check(t, err)
	tried := r.Attempts()
	if r.Mode() != xsk.Generic || len(tried) != 2 || tried[0].Mode != xsk.Copy || tried[0].Err == nil || tried[1].Err != nil {
		t.Errorf("mode %s after %v", r.Mode(), tried)
	}
	if said := tried[0].String() + "; " + tried[1].String(); !strings.HasPrefix(said, "copy: ") || !strings.HasSuffix(said, "generic: granted") {
		t.Errorf("it says %q", said)
	}
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, MultiBuffer: xsk.KernelAtLeast(6, 6), FrameSize: os.Getpagesize(), Mode: xsk.Copy})
	check(t, l.Must(t, "gw").SetMTU("wan", 1500))
	s := must(open(l.Must(t, "gw"), e.umem, e.pool, "wan", 0, small))(t)
	if err := r.Add(s); err == nil || !strings.Contains(err.Error(), "of their own device only") {
		t.Errorf("a socket of another device: %v", err)
	}
	check(t, s.Close())
	check(t, r.Close())
}
