package flowtable

import (
	"encoding/binary"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// A flood of SYNs costs no established flow, and every packet of it is accounted for.
func TestFlood(t *testing.T) {
	const established, flood = 200, 20_000
	r := newRig(t, func(c *Config) {
		var err error
		c.Table, err = NewTable(TableConfig{Groups4: 256, Groups6: 8, Seed: 3, StripeBits: 3, FlowsMax: 500, HalfOpenMax: 250, OverflowMax: 10})
		if err != nil {
			t.Fatal(err)
		}
	})
	for i := range uint16(established) {
		port := 1000 + i
		r.want(lanIf, fromClient4.tcp(t, port, 443, seg{flags: syn, seq: 1000, win: 1000}), Forward, reasonNone)
		r.want(wanIf, fromServer4.tcp(t, 443, port, seg{flags: syn | ack, seq: 5000, ack: 1001, win: 1000}), Forward, reasonNone)
		r.want(lanIf, fromClient4.tcp(t, port, 443, seg{flags: ack, seq: 1001, ack: 5001, win: 1000}), Forward, reasonNone)
	}
	seed := fromClient4.tcp(t, 1, 443, seg{flags: syn, seq: 1000})
	var sent, full uint64
	for i := range uint32(flood) {
		f := append([]byte(nil), seed...)
		binary.BigEndian.PutUint32(f[26:], 0x0a010100+i) // 10.1.1.0 and up
		f = patch(f, 26)
		r.now += second / 1000
		switch res := r.send(lanIf, f); {
		case res.Verdict == Forward:
			sent++
		case res.Reason == bpf.XDPReasonREASON_FLOW_TABLE_FULL:
			full++
		default:
			t.Fatalf("SYN %d: %+v", i, res)
		}
	}
	c, table := r.Table().Counters, r.Table()
	if sent+full != flood || c.Created != established+sent || c.Refused != full {
		t.Errorf("sent %d, refused %d; counters %+v", sent, full, c)
	}
	if held := c.Created - c.Evicted; held != uint64(table.Flows()) || table.Flows() > 500 || table.HalfOpen() > 250 {
		t.Errorf("created less evicted is %d; the table holds %d, %d half-open", held, table.Flows(), table.HalfOpen())
	}
	if c.Evicted == 0 || full == 0 {
		t.Errorf("the flood met no full table: %+v", c)
	}
	listed, half := int64(0), int64(0)
	var packets uint64
	for f := range table.All() {
		listed++
		if halfOpen(f.State) {
			half++
		}
		packets += f.Packets[0] + f.Packets[1]
	}
	if listed != table.Flows() || half != table.HalfOpen() {
		t.Errorf("listed %d and %d half-open, counted %d and %d", listed, half, table.Flows(), table.HalfOpen())
	}
	// Evicted flows left their packets to the rule.
	if sum := packets + r.Counters.Rules[ruleAll].Packets; sum != sent+3*established {
		t.Errorf("flows and rule count %d packets, sent %d", sum, sent+3*established)
	}
	for i := range uint16(established) {
		r.want(lanIf, fromClient4.tcp(t, 1000+i, 443, seg{flags: ack, seq: 1001, ack: 5001, payload: 10}), Forward, reasonNone)
	}

	freed := table.Scan(Tick(r.now)+1000, &testTimeouts, func() {}, func(f *Flow) { r.Counters.Credit(f) })
	if table.Flows() != listed-int64(freed) || table.HalfOpen() != 0 || table.Flows() != 0 {
		t.Errorf("%d freed, %d left", freed, table.Flows())
	}
	if got := r.Counters.Rules[ruleAll].Packets; got != sent+4*established {
		t.Errorf("the rule counts %d packets of %d", got, sent+4*established)
	}
	if r.Counters.Dropped() != full {
		t.Errorf("%d dropped, %d refused", r.Counters.Dropped(), full)
	}
}
