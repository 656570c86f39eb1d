package oracle

import (
	"encoding/binary"
	"testing"
	"time"
)

// piece is an IPv4 fragment of n bytes of a UDP datagram to port 53.
func piece(offset, n int, more bool) []byte {
	frame := toWeb.packet(17, nil, append([]byte{0, 1, 0, 53, 255, 255, 0, 0}, make([]byte, max(n-8, 0))...)[:n])
	return ip4(frame, func(h []byte) {
		field := uint16(offset / 8)
		if more {
			field |= 0x2000
		}
		binary.BigEndian.PutUint16(h[6:], field)
	})
}

func pieces(want string, at ...[]byte) []step {
	var out []step
	for _, frame := range at {
		s := step{"lan0", frame, want, "", ""}
		if want == Forward {
			s.rule, s.state = "web", StateNew
		}
		out = append(out, s)
	}
	return out
}

func TestFragments(t *testing.T) {
	first := func() []step { return pieces(Forward, piece(0, 16, true)) }
	join := func(lists ...[]step) []step {
		var out []step
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	var holes []step
	for i := range 7 {
		holes = append(holes, pieces(Forward, piece(24+i*16, 8, true))...)
	}
	denied := func(frame []byte) []byte {
		return ip4(frame, func(h []byte) { copy(h[16:], []byte{198, 51, 100, 66}) })
	}
	tcp := toWeb.tcp(1, 80, "S", 1, 0, 20, scale(2))
	runScenarios(t, []scenario{
		{"out of order", join(first(), pieces(Forward, piece(24, 8, false), piece(16, 8, true)))},
		{"no first", pieces("fragment-no-first", piece(16, 8, true))},
		{"not a multiple of 8", pieces("fragment-malformed", piece(0, 20, true))},
		{"empty", pieces("fragment-malformed", piece(16, 0, false))},
		{"beyond 65535", pieces("fragment-malformed", piece(65528, 8, false))},
		{"up to 65535", join(first(), pieces(Forward, piece(65528, 7, false)))},
		{"tiny", pieces("fragment-tiny", fragments(tcp, 16)[0], fragments(tcp, 8)[1])},
		{"without all TCP options", pieces("fragment-tiny", fragments(toWeb.tcp(1, 80, "S", 1, 0, 20, scale(2), scale(2)), 24)[0])},
		{"whole TCP header", []step{{"lan0", fragments(tcp, 24)[0], Forward, "web", StateSynSent}, {"lan0", fragments(tcp, 24)[1], Forward, "web", StateSynSent}}},
		{"overlap kills", join(first(), pieces("fragment-overlap", piece(8, 16, true), piece(16, 8, true)))},
		{"the same again", join(first(), pieces(Forward, piece(16, 8, true)), pieces("fragment-overlap", piece(16, 8, true)))},
		{"second first", join(first(), pieces("fragment-overlap", piece(0, 16, true), piece(16, 8, true)))},
		{"beyond the known end", join(first(), pieces(Forward, piece(24, 8, false)), pieces("fragment-overlap", piece(32, 8, true)))},
		{"the same number again", join(first(), pieces(Forward, piece(16, 8, false)), pieces("fragment-no-first", piece(16, 8, false)),
			pieces(Forward, piece(0, 16, true), piece(16, 8, false)))},
		{"end before a known range", join(first(), pieces(Forward, piece(64, 8, true)), pieces("fragment-overlap", piece(32, 8, false)))},
		{"too many holes", join(first(), holes, pieces("fragment-too-many", piece(160, 8, true)), pieces(Forward, piece(16, 8, true), piece(160, 8, true)))},
		{"denied datagram", []step{
			{"lan0", denied(piece(0, 16, true)), "deny", "no-bad", ""},
			{"lan0", denied(piece(16, 8, true)), "deny", "no-bad", ""},
			{"lan0", denied(piece(16, 8, true)), "fragment-overlap", "", ""},
		}},
	})
	o := newOracle(t)
	first()[0].run(t, o, 0, 0)
	step{"lan0", piece(16, 8, true), Forward, "web", StateNew}.run(t, o, 1, 29*time.Second)
	step{"lan0", piece(24, 8, true), "fragment-no-first", "", ""}.run(t, o, 2, 30*time.Second)
	step{"lan0", piece(0, 16, true), Forward, "web", StateNew}.run(t, o, 3, 30*time.Second)
}

func TestFragmentsIPv6(t *testing.T) {
	cut := func(frame []byte, from, to int, field uint16) []byte {
		body := append([]byte{}, frame[54+from:54+to]...)
		header := []byte{17, 0, 0, 0, 0, 0, 0, 9}
		binary.BigEndian.PutUint16(header[2:], uint16(from)|field)
		return ip6(append(append([]byte{}, frame[:54]...), body...), 44, header...)
	}
	whole := toWeb6.udp(1, 53, 32)
	runScenarios(t, []scenario{
		{"in order", []step{
			{"lan0", cut(whole, 0, 16, 1), Forward, "web", StateNew},
			{"lan0", cut(whole, 16, 40, 0), Forward, "web", StateNew},
		}},
		{"no first", []step{{"lan0", cut(whole, 16, 40, 0), "fragment-no-first", "", ""}}},
		{"discovery in pieces", []step{
			{"lan0", ip6(edit(toWeb6.icmp(135, 0, 0, make([]byte, 16)), func(b []byte) { b[21] = 255 }), 44, 58, 0, 0, 1, 0, 0, 0, 9), "icmp-type", "", ""},
		}},
		{"error in pieces", []step{{"wan0", toWeb6.back().icmp(1, 4, 0, cut(whole, 16, 40, 0)[14:]), "icmp-no-flow", "", ""}}},
	})
}
