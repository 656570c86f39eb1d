package gateway

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// inodeOf is the number by which state and pins of a network namespace are called.
func inodeOf(t *testing.T, ns *testenv.Namespace) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(ns.Path(), &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// leftUnder lists the pins of a network namespace and its state.
func leftUnder(t *testing.T, inode uint64) (out []string) {
	t.Helper()
	for _, pattern := range []string{"bpf/v*-netns-%d/*/*", "netns-%d.json*"} {
		out = append(out, must(filepath.Glob(filepath.Join("/run/softdpu", fmt.Sprintf(pattern, inode))))...)
	}
	return out
}

// A gateway is killed and its network namespace deleted, without `softdpu detach`; a new namespace gets the same inode
// number. What was left under it is nobody's: it keeps nobody from blocking before the start, and the start begins
// anew, says why, and takes it away. What a gateway beside it has is not touched.
func TestLabInodeReused(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, thisVersion)
	other := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-beside"})
	beside := startProcess(t, other.Must(t, testenv.Gateway), binary, write(t, labRouted, labPolicy))
	beside.ready(t)
	besides := leftUnder(t, inodeOf(t, other.Must(t, testenv.Gateway)))

	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-again"})
	gw := l.Must(t, testenv.Gateway)
	c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1), labPolicy)
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	if done := must(p.Reload(t.Context())); done.Epoch != 2 {
		t.Fatalf("%+v", done)
	}
	p.kill()
	inode := inodeOf(t, gw)
	stale := leftUnder(t, inode)
	if len(stale) < 5 {
		t.Fatalf("left is %v", stale)
	}
	// Kept apart meanwhile, since the kernel gives the least number that is free, to whoever asks first.
	move := func(from, to uint64) {
		t.Helper()
		for _, pattern := range []string{"netns-%d.json*", "bpf/v*-netns-%d"} {
			for _, path := range must(filepath.Glob(filepath.Join("/run/softdpu", fmt.Sprintf(pattern, from)))) {
				if err := os.Rename(path, strings.Replace(path, fmt.Sprintf("-%d", from), fmt.Sprintf("-%d", to), 1)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	const nobodys = 1
	move(inode, nobodys)
	ip(t, "netns del "+gw.Name())
	l = must(testenv.Up("client-server", testenv.Options{Prefix: "t-lab-again"}))
	inode = inodeOf(t, gw)
	move(nobodys, inode)
	if left := leftUnder(t, inode); len(left) != len(stale) {
		t.Fatalf("left was %v, and is %v", stale, left)
	}

	if out, err := gw.Command(t.Context(), binary, "block", "-c", c.File).CombinedOutput(); err != nil {
		t.Errorf("block: %v: %s", err, out)
	}
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	s := must(p.Status(t.Context()))
	if log := p.log.String(); s.Policy.Epoch != 1 || s.Start.How != startFirst || strings.Contains(log, "taken over") || !strings.Contains(log, "another network namespace, which has gone") {
		t.Errorf("epoch %d, %+v\n%s", s.Policy.Epoch, s.Start, log)
	}
	if left := leftUnder(t, inode); len(left) != len(stale) {
		t.Errorf("left was %v, and now there are %v", stale, left)
	}
	for _, a := range serverAddresses(l) {
		if r, err := l.Must(t, "client").Ping(t.Context(), a, testenv.PingOptions{}); err != nil || r.Received == 0 {
			t.Errorf("ping %s: %+v, %v", a, r, err)
		}
	}
	// Killed and started again in the same namespace it is taken over.
	p.kill()
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	if log := p.log.String(); !strings.Contains(log, "taken over") || strings.Contains(log, "discarded") {
		t.Errorf("started again:\n%s", log)
	}
	p.stop(t)
	if out, err := gw.Command(t.Context(), binary, "detach").CombinedOutput(); err != nil || len(leftUnder(t, inode)) > 0 {
		t.Errorf("detach: %v: %s; left is %v", err, out, leftUnder(t, inode))
	}

	if now := leftUnder(t, inodeOf(t, other.Must(t, testenv.Gateway))); strings.Join(now, " ") != strings.Join(besides, " ") {
		t.Errorf("the gateway beside had %v, and has %v", besides, now)
	}
	if r, err := other.Must(t, "client").Ping(t.Context(), server4, testenv.PingOptions{}); err != nil || r.Received == 0 {
		t.Errorf("ping beside: %+v, %v", r, err)
	}
}
