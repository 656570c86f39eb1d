package bench

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/cbpf"
	"github.com/softdpu/softdpu/testenv"
)

// What a capture costs a packet of a known flow: one that its filter does not take, and one that it does.
// Every packet is counted, as seen, as taken and as lost, to the last.
func TestCaptureCost(t *testing.T) {
	testenv.RequireRoot(t)
	rounds := 1
	if os.Getenv("SOFTDPU_LONG") != "" {
		rounds = 15
	}
	r, err := newRig("t-bench-tap", dataplane.Options{FlowsMax: 1 << 18, HalfOpenShare: 1}, xdpPolicy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := r.gw.Do(func() error { return r.captureCost(t, rounds) }); err != nil {
		t.Error(err)
	}
}

func (r *rig) captureCost(t *testing.T, rounds int) error {
	unpin, err := pin(1)
	if err != nil {
		return err
	}
	defer unpin()
	all := scenarios()
	hit := all[slices.IndexFunc(all, func(s scenario) bool { return s.name == "ipv4-hit-1k" })]
	off, err := r.plane.Program()
	if err != nil {
		return err
	}
	defer off.Close()
	b, err := r.bed(hit, off, 1)
	if err != nil {
		return err
	}
	defer b.coll.Close()
	ran := 0 // rounds of one program
	cost := func(name string, prog *ebpf.Program, after func()) error {
		b.cost, b.prog, ran = nil, prog, 0
		for len(b.cost) < rounds {
			err := r.measure(b, true)
			ran++
			after()
			if err != nil && ran > rounds+3 { // the lab's own hosts speak now and then: as in benchXDP
				return err
			}
		}
		slices.Sort(b.cost)
		t.Logf("%-40s %3.0f ns (%.0f to %.0f)", name, b.cost[len(b.cost)/2], b.cost[0], b.cost[len(b.cost)-1])
		return nil
	}
	if err := cost("without a capture", off, func() {}); err != nil {
		return err
	}
	for _, c := range []struct {
		filter string
		takes  bool
	}{{"udp port 1", false}, {"tcp src portrange 1-1000 and ip[8] > 0", false}, {"", true}} {
		o := dataplane.CaptureOptions{Points: dataplane.Points{In: true}, Ports: []uint8{r.lan.ID}}
		if c.filter != "" {
			out, err := exec.Command("tcpdump", "-ddd", "-y", "EN10MB", "--", c.filter).Output()
			if err != nil {
				return err
			}
			if o.Filter, err = cbpf.Parse(string(out)); err != nil {
				return err
			}
		}
		capture, err := r.plane.Capture(o)
		if err != nil {
			return err
		}
		defer capture.Close()
		prog, err := r.plane.Program()
		if err != nil {
			return err
		}
		defer prog.Close()
		if err := capture.Stop(); err != nil { // the program is run by hand
			return err
		}
		read := uint64(0)
		drain := func() {
			if err := capture.Drain(func(*bpf.XDPTapped, []byte) error { read++; return nil }); err != nil {
				t.Error(err)
			}
		}
		name := "which takes everything"
		if !c.takes {
			name = "which does not take it: " + c.filter
		}
		if err := cost(name, prog, drain); err != nil {
			return err
		}
		counts, err := capture.Counts()
		if err != nil {
			return err
		}
		n, want := counts[r.lan.ID], uint64(ran*b.rounds)
		if n.Seen != want || c.takes != (n.Matched == want) || !c.takes && n.Matched > 0 || n.Matched != n.Lost+read || c.takes && read == 0 {
			t.Errorf("%s: of %d packets %d were read: %+v", name, want, read, n)
		}
	}
	return nil
}
