package flowtable

import (
	"encoding/binary"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// cutUp cuts an IP packet into fragments whose payloads have these lengths; the last takes the rest.
func cutUp(t testing.TB, frame []byte, lengths ...int) [][]byte {
	var p packet.Parsed
	if f := p.Decode(frame); f != packet.OK {
		t.Fatalf("cannot cut up a frame that is %v", f)
	}
	header := 20
	if p.Family == 6 {
		header = 40
	}
	payload := frame[14+header:]
	var out [][]byte
	for at := 0; at < len(payload); {
		n := len(payload) - at
		if len(lengths) > 0 {
			n, lengths = lengths[0], lengths[1:]
		}
		more := uint16(0)
		if at+n < len(payload) {
			more = 1
		}
		f := append([]byte(nil), frame[:14+header]...)
		if p.Family == 4 {
			binary.BigEndian.PutUint16(f[16:], uint16(header+n))
			f = patch(f, 20, byte(more<<5|uint16(at>>11)), byte(at>>3))
		} else {
			binary.BigEndian.PutUint16(f[18:], uint16(8+n))
			f = append(f, f[20], 0, byte(at>>8), byte(uint16(at)|more), 1, 2, 3, 4)
			f[20] = 44
		}
		out = append(out, append(f, payload[at:at+n]...))
		at += n
	}
	return out
}

const (
	noFirst = bpf.XDPReasonREASON_FRAGMENT_NO_FIRST
	overlap = bpf.XDPReasonREASON_FRAGMENT_OVERLAP
)

func TestFragmentsFollowTheFirst(t *testing.T) {
	for _, s := range []side{fromClient4, fromClient6} {
		f := cutUp(t, s.udp(t, 1000, 53, 100), 16, 24, 24)
		r := newRig(t)
		r.want(lanIf, f[1], Drop, noFirst)
		r.want(lanIf, f[0], Forward, reasonNone)
		for _, i := range []int{3, 1, 2} { // out of order
			if res := r.want(lanIf, f[i], Forward, reasonNone); res.Port != 2 || res.Rule != ruleAll || res.Leg == 0 {
				t.Errorf("fragment %d: %+v", i, res)
			}
		}
		flow := r.flow(s.tuple(17, 1000, 53))
		bytes := uint64(0)
		for _, x := range f {
			bytes += uint64(len(x) - 14)
		}
		if flow.Packets[0] != 4 || flow.Bytes[0] != bytes || r.Table().Flows() != 1 {
			t.Errorf("flow counts %v packets, %v bytes of %d", flow.Packets, flow.Bytes, bytes)
		}
		r.want(lanIf, f[1], Drop, noFirst) // the datagram is whole
		r.want(lanIf, f[0], Forward, reasonNone)
		r.want(lanIf, f[2], Forward, reasonNone)
		r.want(lanIf, f[0], Drop, overlap) // a second first one before that
		r.now += 31 * second
		r.want(lanIf, f[1], Drop, noFirst)
		r.want(lanIf, f[0], Forward, reasonNone)
	}
}

func TestFragmentRules(t *testing.T) {
	whole := fromClient4.udp(t, 1000, 53, 192) // 200 bytes of payload
	f := cutUp(t, whole, 16, 16, 16)
	last := f[3]
	type in struct {
		frame   []byte
		verdict Outcome
		reason  bpf.XDPReason
	}
	good := func(f []byte) in { return in{f, Forward, reasonNone} }
	drop := func(f []byte, r bpf.XDPReason) in { return in{f, Drop, r} }
	piece := func(offset, n int, more bool) []byte {
		hi := byte(offset >> 11)
		if more {
			hi |= 0x20
		}
		x := patch(append(append([]byte(nil), whole[:34]...), make([]byte, n)...), 16, byte((20+n)>>8), byte(20+n))
		return patch(x, 20, hi, byte(offset>>3))
	}
	for _, tc := range []struct {
		name string
		ins  []in
	}{
		{"the same fragment twice", []in{good(f[0]), good(f[1]), drop(f[1], overlap), drop(f[2], overlap)}},
		{"into the first", []in{good(f[0]), drop(piece(8, 16, true), overlap), drop(f[1], overlap)}},
		{"over a gap's end", []in{good(f[0]), good(f[2]), drop(piece(16, 24, true), overlap)}},
		{"beyond the end", []in{good(f[0]), good(last), drop(piece(200, 8, true), overlap)}},
		{"another end", []in{good(f[0]), good(last), drop(piece(16, 8, false), overlap)}},
		{"an end before what is there", []in{good(f[0]), good(piece(160, 16, true)), drop(piece(40, 8, false), overlap)}},
		{"nine ranges", []in{good(f[0]), good(piece(32, 8, true)), good(piece(48, 8, true)), good(piece(64, 8, true)), good(piece(80, 8, true)),
			good(piece(96, 8, true)), good(piece(112, 8, true)), good(piece(128, 8, true)),
			drop(piece(144, 8, true), bpf.XDPReasonREASON_FRAGMENT_TOO_MANY), good(piece(16, 16, true)), good(piece(144, 8, true))}},
		{"of another datagram", []in{good(f[0]), drop(patch(f[1], 18, 9, 9), noFirst), good(f[1])}},
		{"of another protocol", []in{good(f[0]), drop(patch(f[1], 23, 132), noFirst)}},
		{"malformed ones enter nothing", []in{drop(patch(f[0], 38, 0, 7), bpf.XDPReasonREASON_MALFORMED_UDP), drop(f[1], noFirst)}},
		{"tiny ones enter nothing", []in{drop(piece(0, 0, true), bpf.XDPReasonREASON_FRAGMENT_MALFORMED), drop(f[1], noFirst)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			for i, x := range tc.ins {
				if res := r.send(lanIf, x.frame); res.Verdict != x.verdict || res.Reason != x.reason {
					t.Fatalf("fragment %d: %v %v, want %v %v", i+1, res.Verdict, res.Reason, x.verdict, x.reason)
				}
			}
		})
	}
}

func TestFragmentsOfRefusedDatagram(t *testing.T) {
	f := cutUp(t, fromClient4.udp(t, 1000, 53, 100), 16, 24)
	r := newRig(t, func(c *Config) { c.Classifier = always(deny(3)) })
	for i := range 3 {
		if res := r.want(lanIf, f[i], Drop, bpf.XDPReasonREASON_DENY); res.Rule != 3 {
			t.Errorf("fragment %d: rule %d", i, res.Rule)
		}
	}
	if res := r.want(lanIf, f[1], Drop, noFirst); res.Rule != 0 { // their ranges were taken all the same: it is whole
		t.Errorf("rule %d has a part in what is left", res.Rule)
	}
	if c := r.Counters.Rules[3]; c.Packets != 3 || c.Judged != 1 {
		t.Errorf("rule 3 counts %+v", c)
	}

	// A state check refuses a datagram like a rule does.
	f = cutUp(t, fromClient4.tcp(t, 1000, 80, seg{flags: ack, payload: 100}), 40, 24)
	r = newRig(t)
	r.want(lanIf, f[0], Drop, bpf.XDPReasonREASON_NOT_SYN)
	r.want(lanIf, f[1], Drop, bpf.XDPReasonREASON_NOT_SYN)
}

func TestFragmentsAndTheirFlow(t *testing.T) {
	f := cutUp(t, fromClient4.udp(t, 1000, 53, 100), 16, 24, 24)
	r := newRig(t)
	r.want(lanIf, f[0], Forward, reasonNone)
	r.Publish(11, always(deny(3)), 9)
	r.want(lanIf, f[1], Drop, bpf.XDPReasonREASON_POLICY_REVOKED)
	r.Publish(12, always(allow(1)), 9)
	r.want(dmzIf, patch(f[2], 5, portMACs[dmzIf][5]), Drop, bpf.XDPReasonREASON_WRONG_ZONE)
	r.Table().Scan(Tick(r.now)+5000, &testTimeouts, func() {}, func(*Flow) {})
	r.want(lanIf, f[3], Drop, noFirst)
}

// A first fragment of TCP moves the flow's state, later ones do not.
func TestFragmentsOfTCP(t *testing.T) {
	f := cutUp(t, fromClient4.tcp(t, 40000, 443, seg{flags: syn, seq: 1, payload: 60}), 32)
	r := newRig(t)
	r.want(lanIf, f[0], Forward, reasonNone)
	r.want(lanIf, f[1], Forward, reasonNone)
	if flow := r.flow(fromClient4.tuple(6, 40000, 443)); flow.State != synSent || flow.Packets[0] != 2 {
		t.Errorf("%+v", flow)
	}
}

// An ICMP error in fragments goes through as far as its first one tells, and enters nothing.
func TestFragmentsOfICMPError(t *testing.T) {
	r := newRig(t)
	there := fromClient4.udp(t, 1000, 53, 100)
	r.want(lanIf, there, Forward, reasonNone)
	f := cutUp(t, side{wanIf, []byte{10, 9, 9, 9}, client4}.icmpError(t, 11, 0, there), 40)
	r.want(wanIf, f[0], Forward, reasonNone)
	r.want(wanIf, f[1], Drop, noFirst)
	r.want(wanIf, f[0], Forward, reasonNone)
}

// The fragment header may stand in front of other extensions: flow and datagram have two protocols.
func TestFragmentsBehindExtensions(t *testing.T) {
	whole := fromClient6.udp(t, 1000, 53, 100)
	payload := append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, whole[54:]...)
	f := cutUp(t, fromClient6.raw(t, 60, payload...), 24, 24)
	r := newRig(t)
	for i := range f {
		r.want(lanIf, f[i], Forward, reasonNone)
	}
	if flow := r.flow(fromClient6.tuple(17, 1000, 53)); flow.Packets[0] != uint64(len(f)) {
		t.Errorf("%+v", flow)
	}
}
