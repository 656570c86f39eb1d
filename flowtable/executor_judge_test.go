package flowtable

import (
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

func deny(rule uint32) uint32 { return Verdict(rule, uint32(bpf.XDPActionACTION_DENY), 0) }

// A new policy takes effect on the next packet of every flow, whichever direction it comes from.
func TestRevokeAndRevive(t *testing.T) {
	there, back := fromClient4.udp(t, 1000, 53, 10), fromServer4.udp(t, 53, 1000, 20)
	for _, tc := range []struct {
		name    string
		ifindex uint32
		frame   []byte
	}{{"by the opener", lanIf, there}, {"by the other end", wanIf, back}} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.want(lanIf, there, Forward, reasonNone)
			r.want(wanIf, back, Forward, reasonNone)
			before := r.flow(fromClient4.tuple(17, 1000, 53))

			r.Publish(11, always(deny(3)), 9)
			r.now += second
			for range 2 {
				res := r.want(tc.ifindex, tc.frame, Drop, bpf.XDPReasonREASON_POLICY_REVOKED)
				if res.Word&WordRevoked == 0 || res.Rule != ruleAll {
					t.Errorf("word %#x, rule %d", res.Word, res.Rule)
				}
			}
			f := r.flow(fromClient4.tuple(17, 1000, 53))
			if !f.Revoked || f.Epoch != 11 || f.Rule != ruleAll || f.Packets != before.Packets || f.Seen != before.Seen {
				t.Errorf("revoked flow %+v", f)
			}
			if r.Counters.Rules[3].Judged != 0 {
				t.Error("a rule that revokes counts as one that decided about a packet")
			}

			// Until the policy comes back, or another allows it.
			r.Publish(12, always(Verdict(5, 1, VerdictLog)), 9)
			res := r.want(tc.ifindex, tc.frame, Forward, reasonNone)
			if res.Rule != 5 || res.Word&(WordRevoked|WordLog) != WordLog {
				t.Errorf("revived: rule %d, word %#x", res.Rule, res.Word)
			}
			if f = r.flow(fromClient4.tuple(17, 1000, 53)); f.Rule != 5 || f.Epoch != 12 || f.Revoked || !f.Log {
				t.Errorf("revived flow %+v", f)
			}
			if c := r.Table().Counters; c.Revived != 1 || c.Created != 1 {
				t.Errorf("%+v", c)
			}

			// Both rules are credited with their own packets once the flow ends.
			n := r.Table().Scan(Tick(r.now)+1000, &testTimeouts, func() {}, func(f *Flow) { r.Counters.Credit(f) })
			if n != 1 {
				t.Fatalf("%d freed", n)
			}
			one, five := r.Counters.Rules[ruleAll], r.Counters.Rules[5]
			if one.Packets != 2 || one.Bytes != before.Bytes[0]+before.Bytes[1] || five.Packets != 1 || five.Bytes != uint64(len(tc.frame)-14) {
				t.Errorf("rule 1 counts %+v, rule 5 %+v", one, five)
			}
			// And its replies are replies, whichever rule they were under.
			want := bpf.XDPRuleCounter{Packets: before.Packets[1], Bytes: before.Bytes[1]}
			if tc.ifindex == wanIf {
				want.Packets, want.Bytes = want.Packets+1, want.Bytes+uint64(len(tc.frame)-14)
			}
			if got := r.Counters.Rules[ruleReplies]; got != want {
				t.Errorf("replies count %+v, want %+v", got, want)
			}
		})
	}
}

func TestEpochsCompareSigned(t *testing.T) {
	asked := 0
	count := rules(func(*bpf.XDPClassifyKey, func(uint32)) uint32 { asked++; return allow(1) })
	r := newRig(t, func(c *Config) { c.Classifier, c.Epoch = count, 0xffffffff })
	frame := fromClient4.udp(t, 1000, 53, 10)
	r.want(lanIf, frame, Forward, reasonNone)
	r.want(lanIf, frame, Forward, reasonNone)
	if asked != 1 {
		t.Fatalf("asked %d times under one policy", asked)
	}
	r.Publish(1, count, 9)
	r.want(lanIf, frame, Forward, reasonNone)
	r.want(lanIf, frame, Forward, reasonNone)
	if asked != 2 {
		t.Errorf("asked %d times after the epoch wrapped", asked)
	}
	r.Publish(0, count, 9) // a flow judged by a newer policy than this CPU runs is left alone
	r.want(lanIf, frame, Forward, reasonNone)
	if asked != 2 {
		t.Errorf("an older policy judged again: asked %d times", asked)
	}
}

func TestPublishKeepsCounters(t *testing.T) {
	r := newRig(t)
	r.Counters.Rules[9].Packets = 7
	r.Publish(11, always(allow(12)), 12)
	if len(r.Counters.Rules) != 13 || r.Counters.Rules[9].Packets != 7 {
		t.Errorf("%d rule counters, rule 9 counts %d", len(r.Counters.Rules), r.Counters.Rules[9].Packets)
	}
	r.Publish(12, always(allow(1)), 1)
	r.want(lanIf, fromClient4.udp(t, 1, 2, 3), Forward, reasonNone)
	if len(r.Counters.Rules) != 13 {
		t.Error("counters of rules that flows may still belong to are gone")
	}
	r.Counters.rule(99, 1, 1) // of a policy long gone
}

// An entry keeps no ICMP code: an error has its flow judged by that of the query inside.
func TestErrorJudgesByTheQuotedCode(t *testing.T) {
	code3 := rules(func(k *bpf.XDPClassifyKey, _ func(uint32)) uint32 {
		if k.Dport&0xff == 3 {
			return allow(2)
		}
		return deny(3)
	})
	for _, tc := range []struct {
		name   string
		there  []byte
		router side
		typ    byte
	}{
		{"IPv4", fromClient4.raw(t, 1, 8, 3, 0, 0, 0, 9, 0, 1), side{wanIf, []byte{10, 9, 9, 9}, client4}, 11},
		{"IPv6", fromClient6.raw(t, 58, 128, 3, 0, 0, 0, 9, 0, 1), side{wanIf, []byte{0xfd, 9, 15: 9}, client6}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.want(lanIf, tc.there, Forward, reasonNone)
			r.Publish(11, code3, 9)
			if res := r.want(wanIf, tc.router.icmpError(t, tc.typ, 0, tc.there), Forward, reasonNone); res.Rule != 2 {
				t.Errorf("rule %d", res.Rule)
			}
			at := len(tc.there) - 7 // the code of the query, which ends the frame
			r.Publish(12, code3, 9)
			r.want(wanIf, tc.router.icmpError(t, tc.typ, 0, patch(tc.there, at, 0)), Drop, noFlow)
		})
	}
}
