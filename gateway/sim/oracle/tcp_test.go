package oracle

import (
	"testing"

	"github.com/google/gopacket/layers"
)

// talk writes segments of one connection: opener's, then the other end's.
type talk struct{ there, back ends }

func (c talk) open(flags string, seq, ack uint32, n int, want string, state State, edits ...func(*layers.TCP)) step {
	return step{"lan0", c.there.tcp(4000, 80, flags, seq, ack, n, edits...), want, "web", state}
}

func (c talk) other(flags string, seq, ack uint32, n int, want string, state State, edits ...func(*layers.TCP)) step {
	return step{"wan0", c.back.tcp(80, 4000, flags, seq, ack, n, edits...), want, "web", state}
}

func TestTCP(t *testing.T) {
	c := talk{toWeb, toWeb.back()}
	shake := func(edits ...func(*layers.TCP)) []step {
		return []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent, edits...),
			c.other("SA", 500, 101, 0, Forward, StateSynReceived, edits...),
			c.open("A", 101, 501, 0, Forward, StateEstablished),
		}
	}
	after := func(before []step, steps ...step) []step { return append(before, steps...) }
	resume := func(flags string, seq uint32, want string, state State) step {
		return step{"lan0", toWeb.tcp(4000, 8080, flags, seq, 1, 0), want, "resume", state}
	}
	closed := after(shake(),
		c.other("FA", 501, 101, 0, Forward, StateFinWait),
		c.open("FA", 101, 502, 0, Forward, StateTimeWait),
		c.other("A", 502, 102, 0, Forward, StateTimeWait))
	runScenarios(t, []scenario{
		{"orderly end", after(closed, c.open("S", 9000, 0, 0, Forward, StateSynSent))},
		{"reuse from the other end, not allowed", after(closed,
			step{"wan0", c.back.tcp(80, 4000, "S", 9, 0, 0), "no-rule-matched", "", ""},
			c.open("A", 102, 502, 0, Forward, StateTimeWait))},
		{"syn again", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.open("S", 200, 0, 0, Forward, StateSynSent),
			c.other("SA", 500, 101, 0, "tcp-state", StateSynSent),
			c.other("SA", 500, 201, 0, Forward, StateSynReceived),
			c.other("SA", 500, 201, 0, Forward, StateSynReceived),
			c.open("S", 200, 0, 0, Forward, StateSynReceived),
		}},
		{"syn/ack with data in the syn", []step{
			c.open("S", 100, 0, 10, Forward, StateSynSent),
			c.other("SA", 500, 111, 0, Forward, StateSynReceived),
			c.open("A", 111, 500, 0, "tcp-state", StateSynReceived),
			c.open("A", 111, 501+65536, 0, "tcp-state", StateSynReceived),
			c.open("A", 111, 501, 5, Forward, StateEstablished),
		}},
		{"nothing but syn and rst before the answer", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.open("FA", 101, 1, 0, "tcp-state", StateSynSent),
			c.open("SA", 100, 1, 0, "tcp-state", StateSynSent),
			c.other("FA", 500, 101, 0, "tcp-state", StateSynSent),
			c.other("R", 0, 101, 0, "tcp-window", StateSynSent),
			c.other("RA", 0, 100, 0, "tcp-window", StateSynSent),
			c.open("R", 99, 0, 0, "tcp-window", StateSynSent),
			c.open("R", 101, 0, 0, Forward, StateClosed),
			c.open("S", 300, 0, 0, Forward, StateSynSent),
			c.other("RA", 0, 301, 0, Forward, StateClosed),
			c.other("A", 0, 301, 0, Forward, StateClosed),
		}},
		{"challenge", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.other("A", 7, 5000, 0, Forward, StateSynSent),
			c.open("R", 5000, 0, 0, Forward, StateClosed),
		}},
		{"challenge, then an answer to the syn", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.other("A", 7, 5000, 0, Forward, StateSynSent),
			c.other("SA", 500, 101, 0, "tcp-state", StateSynSent),
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.other("SA", 500, 101, 0, Forward, StateSynReceived),
			c.open("RA", 5000, 501, 0, "tcp-window", StateSynReceived),
			c.open("A", 101, 501, 0, Forward, StateEstablished),
		}},
		{"challenge, then the syn again", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.other("A", 7, 5000, 0, Forward, StateSynSent),
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.open("R", 5000, 0, 0, "tcp-window", StateSynSent),
		}},
		{"both open", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.other("S", 500, 0, 0, Forward, StateSynReceived),
			c.open("SA", 100, 501, 0, Forward, StateEstablished),
			c.other("SA", 500, 101, 0, Forward, StateEstablished),
		}},
		{"rst in and out of the window", after(shake(),
			c.open("R", 100, 0, 0, "tcp-window", StateEstablished),
			c.open("R", 101+1001, 0, 0, "tcp-window", StateEstablished),
			c.other("RA", 501+1001, 101, 0, "tcp-window", StateEstablished),
			c.open("R", 101+1000, 0, 0, Forward, StateClosed))},
		{"scaled window", after(shake(scale(3)),
			c.other("A", 501, 101, 0, Forward, StateEstablished),
			c.open("R", 101+8001, 0, 0, "tcp-window", StateEstablished),
			c.open("R", 101+8000, 0, 0, Forward, StateClosed))},
		{"scale of one side only", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent, scale(3)),
			c.other("SA", 500, 101, 0, Forward, StateSynReceived),
			c.open("A", 101, 501, 0, Forward, StateEstablished),
			c.other("R", 501+1001, 0, 0, "tcp-window", StateEstablished),
			c.other("R", 501+1000, 0, 0, Forward, StateClosed),
		}},
		{"a syn's window is not scaled", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent, scale(14)),
			c.other("SA", 500, 101, 0, Forward, StateSynReceived, scale(3), window(801)),
			c.open("R", 101+809, 0, 0, "tcp-window", StateSynReceived),
			c.open("R", 101+808, 0, 0, Forward, StateClosed),
		}},
		{"rst of the other end by the window of the opener's syn", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent, scale(14), window(801)),
			c.other("SA", 500, 101, 0, Forward, StateSynReceived, scale(3)),
			c.other("R", 501+16385, 101, 0, "tcp-window", StateSynReceived),
			c.other("R", 501+16384, 101, 0, Forward, StateClosed),
		}},
		{"both open: windows are those of the syns", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.other("S", 500, 0, 0, Forward, StateSynReceived, window(10)),
			c.open("R", 112, 0, 0, "tcp-window", StateSynReceived),
			c.other("R", 1502, 0, 0, "tcp-window", StateSynReceived),
			c.open("R", 111, 0, 0, Forward, StateClosed),
		}},
		{"zero window holds one", after(shake(),
			c.other("A", 501, 102, 0, Forward, StateEstablished, window(0)),
			c.open("FA", 101, 501, 2, "tcp-window", StateEstablished),
			c.open("FA", 101, 501, 1, Forward, StateFinWait))},
		{"old fin counts nothing", after(shake(),
			c.other("A", 501, 200, 0, Forward, StateEstablished),
			c.open("FA", 101, 501, 5, Forward, StateEstablished),
			c.open("FA", 101, 501, 98, Forward, StateFinWait),
			c.open("FA", 101, 501, 98, Forward, StateFinWait))},
		{"a fin outside the window still ends the handshake", []step{
			c.open("S", 100, 0, 0, Forward, StateSynSent),
			c.other("SA", 500, 101, 0, Forward, StateSynReceived),
			c.open("FA", 5000, 501, 0, "tcp-window", StateEstablished),
		}},
		{"reset of what both have closed", after(closed, c.open("R", 7, 0, 0, Forward, StateTimeWait))},
		{"midstream", []step{
			resume("R", 1, "not-syn", ""),
			resume("SA", 1, "not-syn", ""),
			resume("A", 1, Forward, StateEstablished),
			resume("R", 77, Forward, StateClosed),
		}},
		{"midstream by its fin", []step{resume("FA", 1, Forward, StateFinWait)}},
		{"wrong zone", after(shake(), step{"lan0", tagged(toWeb.tcp(4000, 80, "A", 101, 501, 0), 20), "wrong-zone", "web", StateEstablished})},
	})
}
