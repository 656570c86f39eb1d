package sim

import (
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// A UDP flow, an ICMP flow and one of another protocol end each at its own time-out, of either family,
// before and after the first reply.
func TestProtocolsAgeApart(t *testing.T) {
	const states = bpf.XDPFlowStateFLOW_STATE_LEN
	for _, row := range []struct {
		name  string
		class flowtable.Class
		there []byte
		back  []byte
	}{
		{"UDP", flowtable.ClassUDP, udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x"), udp(t, "192.0.2.1", "10.1.0.2", 53, 5000, "y")},
		{"UDP over IPv6", flowtable.ClassUDP, udp(t, "2001:db8::2", "2001:db8:1::1", 5000, 53, "x"), udp(t, "2001:db8:1::1", "2001:db8::2", 53, 5000, "y")},
		{"ICMP", flowtable.ClassICMP, echo(t, "10.1.0.2", "192.0.2.1", true, 9), echo(t, "192.0.2.1", "10.1.0.2", false, 9)},
		{"GRE", flowtable.ClassOther, gre(t, "10.1.0.2", "192.0.2.1"), gre(t, "192.0.2.1", "10.1.0.2")},
		{"GRE over IPv6", flowtable.ClassOther, gre(t, "2001:db8::2", "2001:db8:1::1"), gre(t, "2001:db8:1::1", "2001:db8::2")},
	} {
		t.Run(row.name, func(t *testing.T) {
			engines(t, func(t *testing.T, engine Engine) {
				for _, answered := range []bool{false, true} {
					cfg := Config{Engine: engine, Policy: compile(t, `zones: {lan: {}, wan: {}}
rules: [{name: out, from: lan, to: wan, action: allow}]
`, firewall.CompileOptions{Ports: []string{"lan", "wan"}, OwnNamePorts: true})}
					var timeout time.Duration
					for class := range cfg.Timeouts {
						for state := range states {
							d := time.Duration(20*class+40+3*int(state)) * time.Second
							cfg.Timeouts[class][state] = flowtable.TimeoutTicks(d)
							if flowtable.Class(class) == row.class && (state == bpf.XDPFlowStateFLOW_REPLIED) == answered &&
								(state == bpf.XDPFlowStateFLOW_REPLIED || state == bpf.XDPFlowStateFLOW_NEW) {
								timeout = d
							}
						}
					}
					s := open(t, cfg)
					start := 1_700_000_000 * second
					send(t, s, start, "lan", row.there)
					if answered {
						if r := send(t, s, start, "wan", row.back); r.Verdict != Forward {
							t.Fatalf("reply: %+v", r)
						}
					}
					// A frame that makes no flow moves the clock.
					ended := uint64(0)
					for now := start; ended == 0 && now < start+300*second; now += second / 4 {
						send(t, s, now, "wan", []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34})
						if s.Table().Flows() == 0 {
							ended = now
						}
					}
					if idle := time.Duration(ended - start); idle < timeout || idle > timeout+1500*time.Millisecond {
						t.Errorf("answered %v: ended after %v, its time-out is %v", answered, idle, timeout)
					}
				}
			})
		})
	}
}

func gre(t *testing.T, src, dst string) []byte {
	return build(t, src, dst, layers.IPProtocolGRE, gopacket.Payload([]byte{0, 0, 0x08, 0, 1, 2, 3, 4}))
}
