package oracle

import (
	"strings"
	"testing"
)

func TestICMP(t *testing.T) {
	back, back6 := toWeb.back(), toWeb6.back()
	router := back
	router.src = "198.51.100.1"
	request, request6 := toWeb.udp(5000, 53, 600), toWeb6.udp(5000, 53, 600)
	echo := toWeb.icmp(8, 0, 77<<16|1, nil)
	open := step{"lan0", request, Forward, "web", StateNew}
	runScenarios(t, []scenario{
		{"echo", []step{
			{"wan0", back.icmp(0, 0, 77<<16|1, nil), "icmp-no-request", "", ""},
			{"lan0", echo, Forward, "ping", StateNew},
			{"wan0", back.icmp(0, 0, 78<<16|1, nil), "icmp-no-request", "", ""},
			{"wan0", back.icmp(0, 0, 77<<16|1, nil), Forward, "ping", StateReplied},
			{"lan0", toWeb.icmp(13, 0, 77<<16|2, nil), Forward, "ping", StateReplied},
			{"wan0", back.icmp(8, 0, 77<<16|1, nil), Forward, "ping", StateNew},
		}},
		{"echo in IPv6", []step{
			{"lan0", toWeb6.icmp(128, 0, 77<<16|1, nil), Forward, "ping", StateNew},
			{"wan0", back6.icmp(129, 0, 77<<16|1, nil), Forward, "ping", StateReplied},
		}},
		{"from a router", []step{open, {"wan0", router.icmp(11, 0, 0, request[14:42]), Forward, "web", StateNew}}},
		{"to another host", []step{open, {"wan0", ends{nextMAC, wanMAC, "198.51.100.9", "10.0.0.6"}.icmp(3, 1, 0, request[14:42]), "icmp-no-flow", "", ""}}},
		{"from the wrong side", []step{open, {"lan0", ends{hostMAC, lanMAC, "198.51.100.1", "10.0.0.5"}.icmp(3, 1, 0, request[14:42]), "wrong-zone", "web", StateNew}}},
		{"about the reply", []step{
			open,
			{"lan0", toWeb.icmp(3, 3, 0, back.udp(53, 5000, 0)[14:]), Forward, "web", StateNew},
			{"wan0", back.udp(53, 5000, 0), Forward, "web", StateReplied},
		}},
		{"about a query", []step{
			{"lan0", echo, Forward, "ping", StateNew},
			{"wan0", router.icmp(3, 1, 0, echo[14:42]), Forward, "ping", StateNew},
			{"lan0", toWeb.icmp(3, 1, 0, back.icmp(0, 0, 77<<16|1, nil)[14:]), Forward, "ping", StateNew},
			{"lan0", toWeb.icmp(3, 1, 0, back.icmp(0, 0, 78<<16|1, nil)[14:]), "icmp-no-flow", "", ""},
			{"wan0", router.icmp(3, 1, 0, toWeb.icmp(0, 0, 77<<16|1, nil)[14:]), "icmp-no-flow", "", ""},
		}},
		{"packet too big", []step{
			{"lan0", request6, Forward, "web", StateNew},
			{"wan0", back6.icmp(2, 0, 1280, request6[14:200]), Forward, "web", StateNew},
		}},
		{"cut short inside", []step{
			open,
			{"wan0", back.icmp(3, 3, 0, request[14:41]), "malformed-icmp", "", ""},
			{"wan0", back.icmp(3, 3, 0, edit(request[14:42], func(b []byte) { b[0] = 0x44 })), "malformed-icmp", "", ""},
			{"wan0", back6.icmp(1, 3, 0, request6[14:61]), "malformed-icmpv6", "", ""},
		}},
		{"later fragment inside", []step{open, {"wan0", back.icmp(3, 3, 0, edit(request[14:42], func(b []byte) { b[7] = 2 })), "icmp-no-flow", "", ""}}},
		{"later IPv6 fragment inside, cut short", []step{{"wan0", back6.icmp(1, 3, 0, ip6(toWeb6.udp(1, 53, 0), 44, 17, 0, 0, 64, 0, 0, 0, 9)[14:69]), "malformed-icmpv6", "", ""}}},
		{"error with TTL 1", []step{open, {"wan0", ip4(back.icmp(3, 3, 0, request[14:42]), func(h []byte) { h[8] = 1 }), "ttl-expired", "web", StateNew}}},
		{"error to the gateway", []step{
			{"lan0", outbound("10.0.0.5", "10.0.0.1").udp(1, 123, 0), "pass host", "local", StateNew},
			{"lan0", outbound("10.0.0.5", "10.0.0.1").icmp(3, 3, 0, outbound("10.0.0.1", "10.0.0.5").udp(123, 1, 0)[14:]), "pass host", "local", StateNew},
		}},
	})
}

// A flow of queries is judged again by the type and code of the packet that meets the new policy.
func TestQueryJudgedAgain(t *testing.T) {
	const id = 77<<16 | 1
	back := toWeb.back()
	request := toWeb.icmp(13, 0, id, make([]byte, 16))
	pieces := fragments(request, 8)
	for _, c := range []struct {
		name    string
		service string // of the new policy's only rule
		step    step
	}{
		{"its own query", "icmp/timestamp-request", step{"lan0", request, Forward, "new", StateNew}},
		{"its own reply", "icmp/timestamp-request", step{"wan0", back.icmp(14, 0, id, nil), Forward, "new", StateReplied}},
		{"an error about it", "icmp/timestamp-request", step{"wan0", back.icmp(3, 1, 0, request[14:42]), Forward, "new", StateNew}},
		{"another query", "icmp/timestamp-request", step{"lan0", toWeb.icmp(8, 0, id, nil), "policy-revoked", "ping", StateNew}},
		{"a later fragment", "icmp/timestamp-request", step{"lan0", pieces[1], "policy-revoked", "ping", StateNew}},
		{"a later fragment where echo is allowed", "icmp/echo-request", step{"lan0", pieces[1], Forward, "new", StateNew}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOracle(t)
			step{"lan0", pieces[0], Forward, "ping", StateNew}.run(t, o, 0, 0)
			head := testPolicy[:strings.Index(testPolicy, "rules:")]
			if err := o.SetPolicy(parsePolicy(t, head+"rules: [{name: new, from: any, to: any, service: "+c.service+", action: allow}]")); err != nil {
				t.Fatal(err)
			}
			c.step.run(t, o, 1, 0)
		})
	}
}
