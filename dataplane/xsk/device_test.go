package xsk_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestInspect compares what is told of a device with what the lab made.
func TestInspect(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix, Queues: 2})
	gw := l.Must(t, "gw")
	inspect := func() (d xsk.Device) {
		t.Helper()
		check(t, gw.Do(func() (err error) { d, err = xsk.Inspect("lan"); return err }))
		return d
	}
	index := must(gw.Index("lan"))(t)
	d := inspect()
	if d.Name != "lan" || d.Index != index || d.Driver != "veth" || !d.Up || d.MTU != 1500 || d.Queues != 2 || d.XDP != xsk.Any {
		t.Errorf("device %+v", d)
	}
	if d.Known && (d.Features&(xsk.FeatureBasic|xsk.FeatureRedirect) == 0 || d.Features&xsk.FeatureZeroCopy != 0) {
		t.Errorf("features %#x", d.Features)
	}
	for _, mode := range []xsk.Mode{xsk.Copy, xsk.Generic} {
		var r *xsk.Redirect
		check(t, gw.Do(func() (err error) { r, err = xsk.Attach("lan", xsk.AttachOptions{Mode: mode}); return err }))
		if d := inspect(); d.XDP != mode {
			t.Errorf("a program runs in mode %s, want %s", d.XDP, mode)
		}
		err := gw.Do(func() error { _, err := xsk.Attach("lan", xsk.AttachOptions{Mode: mode}); return err })
		if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "has an XDP program already") {
			t.Errorf("a second program: %v", err)
		}
		check(t, r.Close())
	}
}
