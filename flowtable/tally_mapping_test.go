package flowtable

import (
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

func mappings(table *Table) (n int) {
	for f := range table.All() {
		if f.State == bpf.XDPFlowStateFLOW_MAPPING {
			n++
		}
	}
	return n
}

// A limit counts flows, and not what they leave as: what it refuses leaves no mapping behind, and another policy, or
// the end of a flow, makes none of what is there count.
func TestSourceLimitOfMappings(t *testing.T) {
	for _, flags := range []uint8{0, natFilterAddress, natFilterAny} {
		row := limitedTo(3, mapping(4, flags))
		r := natRig(t, row)
		udp := func(port uint16) []byte { return rightFrom(t, lanIf, client4, port, server4, 53) }
		for port := range uint16(3) {
			r.want(lanIf, udp(2000+port), Forward, reasonNone)
		}
		for port := range uint16(50) {
			r.want(lanIf, udp(3000+port), Drop, sourceLimit)
		}
		if n := mappings(r.Table()); n != 3 && flags != natFilterAddress || r.Table().counted64() != 3 {
			t.Errorf("%d mappings, %d flows count", n, r.Table().counted64())
		}
		for range 3 {
			r.SetNAT(buildNAT(t, row))
			if n := r.Table().counted64(); n != 3 {
				t.Errorf("behind another policy %d flows count", n)
			}
		}
		n := r.Table().Kill(func(f *Flow) bool { return f.Tuple.SrcPort == 2000 && f.State != bpf.XDPFlowStateFLOW_MAPPING }, func() {}, func(*Flow) {})
		if c := r.Table().counted64(); n != 1 || c != 2 {
			t.Errorf("%d killed, %d count", n, c)
		}
		r.want(lanIf, udp(2000), Forward, reasonNone)
		n = r.Table().Kill(func(f *Flow) bool { return f.State == bpf.XDPFlowStateFLOW_MAPPING }, func() {}, func(*Flow) {})
		if c := r.Table().counted64(); n < 3 || c != 3 {
			t.Errorf("%d killed, %d count", n, c)
		}
		r.want(lanIf, udp(2003), Drop, sourceLimit)
	}
}

// Flows that leave by mappings count as others do when their rule gets a limit.
func TestSourceLimitOfMappingsComesLater(t *testing.T) {
	for _, flags := range []uint8{0, natFilterAddress} {
		row := mapping(4, flags)
		r := natRig(t, row)
		for port := range uint16(4) {
			r.want(lanIf, rightFrom(t, lanIf, client4, 2000+port/2, server4, 53+port), Forward, reasonNone)
		}
		r.SetNAT(buildNAT(t, limitedTo(5, row)))
		if n := r.Table().counted64(); n != 4 {
			t.Errorf("%d flows count, want 4", n)
		}
		r.want(lanIf, rightFrom(t, lanIf, client4, 2000, server4, 99), Forward, reasonNone)
		r.want(lanIf, rightFrom(t, lanIf, client4, 2000, server4, 100), Drop, sourceLimit)
		r.allOver()
		r.now += 2000 * second
		r.allOver()
		if s := r.Table().State(); r.Table().counted64() != 0 || s.Flows != 0 {
			t.Errorf("%d flows count when all have ended, left are %+v", r.Table().counted64(), s)
		}
	}
}

// Strangers who come in by a mapping count for nobody: they do not use up what the end inside may have.
func TestSourceLimitOfStrangers(t *testing.T) {
	r := natRig(t, limitedTo(2, mapping(4, natFilterAny)))
	r.passes(lanIf, rightFrom(t, lanIf, client4, 1030, server4, 53), 2, end{outer4, 1030}, end{server4, 53})
	for port := range uint16(20) {
		r.passes(wanIf, rightFrom(t, wanIf, stranger4, 500+port, outer4, 1030), 1, end{stranger4, 500 + port}, end{client4, 1030})
	}
	if n := r.Table().counted64(); n != 1 {
		t.Errorf("%d flows count", n)
	}
	r.want(lanIf, rightFrom(t, lanIf, client4, 1031, server4, 53), Forward, reasonNone)
	r.want(lanIf, rightFrom(t, lanIf, client4, 1032, server4, 53), Drop, sourceLimit)
}
