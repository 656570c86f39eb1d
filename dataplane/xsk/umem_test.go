package xsk_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

func TestUMEMOptions(t *testing.T) {
	for _, o := range []xsk.UMEMOptions{
		{Frames: -1},
		{FrameSize: 1024},
		{FrameSize: 3000},
		{FrameSize: 1 << 20},
		{FrameSize: 2048, Headroom: 2000},
		{Headroom: 3},
		{Headroom: -8},
		{Mode: xsk.Generic + 1},
	} {
		if u, err := xsk.NewUMEM(o); err == nil {
			t.Errorf("%+v made a UMEM", o)
			u.Close()
		}
	}
	u := must(xsk.NewUMEM(xsk.UMEMOptions{Frames: 10, FrameSize: 2048, Headroom: 64}))(t)
	if u.Frames() != 10 || u.Payload() != 2048-256-64 {
		t.Errorf("%d frames that hold %d bytes", u.Frames(), u.Payload())
	}
	p := must(u.NewPool(6))(t)
	if _, err := u.NewPool(5); err == nil {
		t.Error("two pools have more frames than there are")
	}
	q := must(u.NewPool(4))(t)
	batch := make([]xsk.Desc, 10)
	if n := p.Alloc(batch); n != 6 {
		t.Errorf("%d frames of 6", n)
	}
	batch[0].Len = 100
	if b := u.Frame(batch[0]); len(b) != 100 || cap(b) != u.Payload() {
		t.Errorf("%d bytes of %d", len(b), cap(b))
	}
	if front, behind := u.Room(batch[0]); front != 256+64 || behind != u.Payload()-100 {
		t.Errorf("room for %d in front and %d behind", front, behind)
	}
	copy(u.Before(batch[0], 3), "abc")
	batch[0].Addr -= 3
	batch[0].Len += 3
	if b := u.Frame(batch[0]); string(b[:3]) != "abc" {
		t.Errorf("%q in front", b[:3])
	}
	p.Free(batch[:6])
	p.Close()
	p.Close()
	r := must(u.NewPool(6))(t)
	if c := u.Census(); c != (xsk.Census{Total: 10, Free: 10}) {
		t.Errorf("census %+v", c)
	}
	r.Close()
	q.Close()
	check(t, u.Close())
	check(t, u.Close())
}

// TestHugePages has pages of 2 MiB where the machine can give them, and is told why where it cannot.
func TestHugePages(t *testing.T) {
	testenv.RequireRoot(t)
	const limit = "/proc/sys/vm/nr_overcommit_hugepages"
	before := must(os.ReadFile(limit))(t)
	set := func(value string) {
		t.Helper()
		check(t, os.WriteFile(limit, []byte(value), 0))
	}
	t.Cleanup(func() { set(string(before)) })
	if free := hugePagesFree(t); free == 0 {
		set("0")
		u := must(xsk.NewUMEM(xsk.UMEMOptions{Frames: 1024, FrameSize: 4096, HugePages: true}))(t)
		size, why := u.Pages()
		if size != os.Getpagesize() || why == nil || !errors.Is(why, unix.ENOMEM) || !strings.Contains(why.Error(), "vm.nr_hugepages") {
			t.Errorf("pages of %d bytes: %v", size, why)
		}
		check(t, u.Close())
	}
	set("8")
	e := newEnd(t, xsk.UMEMOptions{Frames: 1025, FrameSize: 4096, HugePages: true, Mode: xsk.Copy}) // three pages, the last one mostly unused
	size, why := e.umem.Pages()
	if why != nil {
		t.Fatalf("this machine has no three pages of 2 MiB in one piece: %v", why)
	}
	if size != 2<<20 {
		t.Errorf("pages of %d bytes", size)
	}
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 1024, Completion: 64}).sockets[0]
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	led := newLedger(2000, everyLength)
	go feed(t, led, 32, sender.Send)
	receiveAll(t, e, s, led)
}

func hugePagesFree(t *testing.T) int {
	t.Helper()
	text := must(os.ReadFile("/proc/meminfo"))(t)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "HugePages_Free:"); ok {
			return must(strconv.Atoi(strings.TrimSpace(rest)))(t)
		}
	}
	return 0
}
