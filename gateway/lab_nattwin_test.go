package gateway

import (
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim"
)

// A natTwin is a gateway that is simulated, with the addresses of a natRoom.
type natTwin struct {
	sim     *sim.Sim
	macs    [2][]byte // of frames towards wan, towards lan
	out     []ipPacket
	refused map[string]int // by reason
}

func newNatTwin(t *testing.T) *natTwin {
	t.Helper()
	policy := must(firewall.Parse([]firewall.Source{{Name: "policy.yaml", Text: []byte(natPolicy)}}, nil))
	cfg := sim.Config{Policy: must(firewall.Compile(policy, firewall.CompileOptions{}))}
	n := &natTwin{refused: make(map[string]int)}
	for i, p := range []struct{ name, networks, networks6 string }{{"lan", "10.50.0.0/16", "fd50::/16"}, {"wan", "10.60.0.0/16", "fd60::/16"}} {
		port := sim.Port{Name: p.name, MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, MTU: 1500,
			IP4: [2]netip.Addr{gwLAN[0], gwWAN[0]}[i], IP6: [2]netip.Addr{gwLAN[1], gwWAN[1]}[i]}
		cfg.Ports = append(cfg.Ports, port)
		next := [6]byte{2, 0, 0, 0, 1, byte(i)}
		for _, network := range []string{p.networks, p.networks6} {
			cfg.Routes = append(cfg.Routes, sim.Route{Prefix: netip.MustParsePrefix(network), Port: p.name, MAC: next})
		}
		n.macs[i] = append(port.MAC[:], next[:]...)
	}
	n.sim = must(sim.New(cfg))
	t.Cleanup(func() {
		if err := n.sim.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *natTwin) send(t *testing.T, side int, p ipPacket) {
	t.Helper()
	r, err := n.sim.Packet(1, [2]string{"lan", "wan"}[side], p.behind(n.macs[side]))
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict == sim.Forward {
		n.out = append(n.out, append(ipPacket(nil), r.Frame[14:]...))
	} else {
		n.refused[r.Verdict.String()+" "+r.Reason.String()]++
	}
}

func (n *natTwin) collect(_ *testing.T, into natResults) {
	for _, p := range n.out {
		into.add(p)
	}
	n.out = nil
}
