package dataplane

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/cbpf"
	"github.com/softdpu/softdpu/testenv"
)

// The programs that run while nobody captures have nothing of it: not one instruction more.
func TestCaptureOffIsNotThere(t *testing.T) {
	for _, read := range []func() (*ebpf.CollectionSpec, error){bpf.LoadXDP, bpf.LoadWithoutNAT} {
		spec, err := read()
		if err != nil {
			t.Fatal(err)
		}
		for name, tapped := range map[string]bool{
			bpf.XDPProgSoftdpu: false, bpf.XDPProgGuard: false, bpf.XDPProgDispatch: false, bpf.XDPProgGuardDispatch: false, bpf.XDPProgMark: false,
			bpf.XDPProgSoftdpuTapped: true, bpf.XDPProgGuardTapped: true,
		} {
			var found []string
			for _, ins := range spec.Programs[name].Instructions {
				for _, s := range []string{ins.Symbol(), ins.Reference()} {
					if strings.HasPrefix(s, "tap") || strings.HasSuffix(s, "_tapped") && s != name {
						found = append(found, s)
					}
				}
			}
			if (len(found) > 0) != tapped {
				t.Errorf("%s mentions %q", name, found)
			}
		}
	}
}

// slot describes the program that packets meet.
func slot(t *testing.T, p *Plane, m string) (name, tag string, instructions int) {
	t.Helper()
	var prog *ebpf.Program
	if err := p.maps[m].Lookup(uint32(0), &prog); err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	size, err := info.TranslatedSize()
	if err != nil {
		t.Fatal(err)
	}
	return info.Name, info.Tag, size / 8
}

// A capture swaps another form of the programs in, and leaves exactly what was there before; frames of
// several buffers are captured whole; what finds no room is counted, to the packet.
func TestCapture(t *testing.T) {
	mtu, length := 9000, 8800
	if k, err := probeKernel(); err != nil {
		t.Fatal(err)
	} else if !k.frags {
		mtu, length = 1500, 1400 // no frames of several buffers in drivers
	}
	lab := testenv.New(t, "client-server", testenv.Options{MTU: mtu})
	g := &gateway{lab, lab.Must(t, testenv.Gateway)}
	p := g.plane(t)
	if _, err := p.Capture(CaptureOptions{}); err == nil {
		t.Error("a capture without policy began")
	}
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	follow(t, p) // or after 3 s a packet goes by the kernel, so that it asks for the neighbour
	client, server := lab.Must(t, "client"), lab.Must(t, "server")
	if r, err := server.Ping(context.Background(), netip.MustParseAddr("10.10.2.1"), testenv.PingOptions{}); err != nil || r.Received == 0 {
		t.Fatalf("the gateway does not answer the server: %v", err)
	}
	sink, err := server.ListenPacket(context.Background(), "udp4", "10.10.2.2:5000")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	out, err := exec.Command("tcpdump", "-ddd", "-y", "EN10MB", "udp port 5000 and udp[8:4] > 9").Output()
	if err != nil {
		t.Fatal(err)
	}
	filter, err := cbpf.Parse(string(out))
	if err != nil {
		t.Fatal(err)
	}

	plain, tag, size := slot(t, p, bpf.XDPMapGenerations)
	guard, guardTag, _ := slot(t, p, bpf.XDPMapGuards)
	ids, err := p.PortIDs([]string{"lan0"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Capture(CaptureOptions{Ports: ids, Points: Points{In: true}, Filter: filter})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := p.Capture(CaptureOptions{}); !errors.Is(err, ErrCapturing) {
		t.Errorf("a second capture: %v", err)
	}
	with, _, more := slot(t, p, bpf.XDPMapGenerations)
	t.Logf("%s %d instructions, %s %d", plain, size, with, more)
	if plain != bpf.XDPProgSoftdpu || with != bpf.XDPProgSoftdpuTapped || more <= size {
		t.Errorf("%s (%d instructions) gave way to %s (%d)", plain, size, with, more)
	}

	conn, err := client.Dial(context.Background(), "udp4", "10.10.2.2:5000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	payload := bytes.Repeat([]byte("softdpu!"), length/8)
	stopped := false
	send := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			binary.BigEndian.PutUint32(payload, uint32(i))
			if _, err := conn.Write(payload); err != nil {
				t.Fatal(err)
			}
			if i%64 != 63 { // a veth queue is 256 long
				continue
			}
			testenv.Eventually(t, 5*time.Second, func() error {
				counts, err := c.Counts()
				if err == nil && !stopped && counts[ids[0]].Seen <= uint64(i) {
					err = fmt.Errorf("%d packets of %d have come", counts[ids[0]].Seen, i)
				}
				return err
			})
		}
	}
	var numbers []int
	handle := func(head *bpf.XDPTapped, frame []byte) error {
		if int(head.Length) != len(frame) || len(frame) != 42+len(payload) || !bytes.Equal(frame[46:], payload[4:]) {
			return fmt.Errorf("a frame of %d bytes is captured as %d", head.Length, len(frame))
		}
		if head.Rule != 1 || head.Reason != 0 || head.From != 2 || head.To != 3 || head.Port != ids[0] || head.Egress == 0 || head.Egress == ids[0] {
			return fmt.Errorf("a forwarded packet is described by %+v", head)
		}
		numbers = append(numbers, int(binary.BigEndian.Uint32(frame[42:])))
		return nil
	}
	send(0, 100)
	testenv.Eventually(t, 5*time.Second, func() error {
		if err := c.Read(handle); err != nil {
			t.Fatal(err)
		}
		if len(numbers) < 90 {
			return fmt.Errorf("%d of 90 packets are captured", len(numbers))
		}
		return nil
	})
	for i, n := range numbers {
		if n != i+10 {
			t.Fatalf("captured were %v", numbers)
		}
	}

	// More than the ring holds, under another policy, and nobody reads.
	if err := p.Publish(Generation{Epoch: 2, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if with, _, _ := slot(t, p, bpf.XDPMapGenerations); with != bpf.XDPProgSoftdpuTapped {
		t.Errorf("after a reload %s is in force", with)
	}
	const all = 2100
	send(100, all)
	testenv.Eventually(t, 5*time.Second, func() error {
		counts, err := c.Counts()
		if err == nil && counts[ids[0]].Matched < all-10 {
			err = fmt.Errorf("%d of %d packets have come", counts[ids[0]].Matched, all-10)
		}
		return err
	})
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	stopped = true
	if err := c.Drain(handle); err != nil {
		t.Fatal(err)
	}
	counts, err := c.Counts()
	if err != nil {
		t.Fatal(err)
	}
	n := counts[ids[0]]
	t.Logf("%+v, %d read", n, len(numbers))
	if n.Matched != all-10 || n.Lost == 0 || n.Matched-n.Lost != uint64(len(numbers)) || n.Seen < all {
		t.Errorf("of %d packets %d were read: %+v", all-10, len(numbers), n)
	}
	if !slices.IsSorted(numbers) {
		t.Error("captured packets are not in order")
	}

	// As it was.
	if name, now, _ := slot(t, p, bpf.XDPMapGenerations); name != plain || now == "" {
		t.Errorf("%s is left", name)
	}
	if name, _, _ := slot(t, p, bpf.XDPMapGuards); name != guard {
		t.Errorf("%s is left", name)
	}
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if name, now, same := slot(t, p, bpf.XDPMapGenerations); name != plain || now != tag || same != size {
		t.Errorf("the same policy is another program after a capture: %s, %d instructions instead of %d", name, same, size)
	}
	if _, now, _ := slot(t, p, bpf.XDPMapGuards); now != guardTag {
		t.Error("the same policy has another guard after a capture")
	}
	send(0, 50)
	if again, err := c.Counts(); err != nil || again[ids[0]] != n {
		t.Errorf("a capture that has ended counts on: %+v, %v", again[ids[0]], err)
	}
}
