package sim

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// Flows and aliases that find no place in their groups are the same flows: their packets go the same ways,
// replies to the end inside too, and are told of by the same rules.
func TestTranslatedBesideTheGroups(t *testing.T) {
	const client, server, outside = "10.1.0.2", "192.0.2.1", "203.0.113.8"
	zones := "zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\nrules: [{name: all, from: any, to: any, action: allow}]\n"
	cfg := Config{
		Policy: compile(t, zones, firewall.CompileOptions{}),
		Ports:  []Port{{Name: "lan", MAC: [6]byte(receiverMAC)}, {Name: "wan", MAC: [6]byte(receiverMAC)}},
		Routes: []Route{
			{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Port: "wan", MAC: [6]byte{2, 1, 1, 1, 1, 1}},
			{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Port: "lan", MAC: [6]byte{2, 1, 1, 1, 1, 2}},
		},
		FlowsMax: 32, HalfOpenShare: 1,
	}
	cfg.Timeouts = flowtable.UniformTimeouts(flowtable.TimeoutTicks(time.Second))
	flows := crowdedPorts(t, cfg, client, server, 12)
	aliases := crowdedPorts(t, cfg, outside, server, 12)

	cfg.Policy = compile(t, zones+"nat: [{name: pool, from: lan, to: wan, snat: {addresses: "+outside+"/32}}]\n", firewall.CompileOptions{})
	both := openBoth(t, cfg)
	clock := uint64(0)
	for _, crowd := range []struct {
		what  string
		ports []uint16
	}{{"flows", flows}, {"aliases", aliases}} {
		clock += 10 * second // all before them end
		beside := 0
		for _, sport := range crowd.ports {
			frames := map[string][]byte{
				"lan": udp(t, client, server, sport, 53, "x"),
				"wan": udp(t, server, outside, 53, sport, "y"),
			}
			for _, port := range []string{"lan", "wan", "lan"} {
				for _, s := range both {
					what := fmt.Sprintf("%s, %s: from %d by %s", s.cfg.Engine, crowd.what, sport, port)
					r := send(t, s, clock, port, frames[port])
					out, src, dst := "wan", outside, server
					if port == "wan" {
						out, src, dst = "lan", server, client
					}
					if r.Out != out || r.NAT == nil || r.NAT.Src.String() != src || r.NAT.Dst.String() != dst || r.NAT.SourceRule != "pool" {
						t.Errorf("%s: %v %v, out by %q as %+v", what, r.Verdict, r.Reason, r.Out, r.NAT)
					}
				}
			}
			if f, ok := both[1].flowOf(both[1].ports["lan"], frames["lan"]); ok && f.ID.Overflow {
				beside++
			}
		}
		if n := int(both[1].Table().State().Overflow4); n == 0 || crowd.what == "flows" && beside == 0 || crowd.what == "aliases" && n == beside {
			t.Errorf("%s: %d entries are beside the groups, %d of them flows", crowd.what, n, beside)
		}
	}
}

// crowdedPorts returns source ports of the client whose flows of UDP to port 53 of the server all have the same two
// groups of an IPv4 table to live in.
func crowdedPorts(t *testing.T, cfg Config, client, server string, n int) (ports []uint16) {
	t.Helper()
	s := open(t, cfg)
	clock := uint64(0)
	// land returns the group that the last of flows goes to.
	land := func(sports ...uint16) (group uint32) {
		clock += 10 * second
		for _, sport := range sports {
			send(t, s, clock, "lan", udp(t, client, server, sport, 53, "x"))
		}
		for f := range s.Table().All() {
			if f.Tuple.SrcPort == sports[len(sports)-1] {
				group = f.ID.Group
			}
		}
		return group
	}
	const first = 1024
	one, other := land(first), uint32(0)
	for port := uint16(first + 1); len(ports) < n; port++ {
		if land(port) != one {
			continue
		}
		if group := land(first, port); len(ports) == 0 {
			other, ports = group, append(ports, port)
		} else if group == other {
			ports = append(ports, port)
		}
	}
	return ports
}
