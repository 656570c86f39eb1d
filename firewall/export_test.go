package firewall

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

// A Drawn policy is a random one with what the naive reading of its text says of packets: for tests of packages that stand
// on this one.
type Drawn struct {
	Text     string
	Policy   *Policy
	Compiled *Compiled
	now      time.Time
}

// DrawnPacket opens a flow.
type DrawnPacket struct {
	From, To string
	Src, Dst netip.Addr
	Key      bpf.XDPClassifyKey
	packet   oraclePacket
}

// DrawnVerdict is what becomes of one.
type DrawnVerdict struct {
	Verdict TestVerdict
	Rule    string // "none" if none matched
	Audited []string
}

// Seed is that of random policies.
func Seed() uint64 {
	if *seed != 0 {
		return *seed
	}
	return uint64(time.Now().UnixNano())
}

// Draw makes a policy of random words.
func Draw(t *testing.T, r *rand.Rand) *Drawn {
	t.Helper()
	d := &Drawn{Text: randomPolicy(r), now: day}
	var errs Errors
	if d.Policy, errs = parseText(t, d.Text); errs != nil {
		t.Fatalf("random policy is wrong: %v\n%s", errs, d.Text)
	}
	var err error
	if d.Compiled, err = Compile(d.Policy, CompileOptions{Now: d.now}); err != nil {
		t.Fatalf("compile: %v\n%s", err, d.Text)
	}
	return d
}

// Packet draws a packet.
func (d *Drawn) Packet(r *rand.Rand) DrawnPacket {
	pk := randomPacket(r)
	k := Key(pk.src, pk.dst, pk.proto, pk.sport, pk.dport)
	k.From, k.To, k.Context = uint8(slices.Index(d.Compiled.Zones, pk.from)), uint8(slices.Index(d.Compiled.Zones, pk.to)), d.Compiled.MACs[pk.mac]
	return DrawnPacket{pk.from, pk.to, pk.src, pk.dst, k, pk}
}

// Judge says what the policy's words are about a packet.
func (d *Drawn) Judge(p DrawnPacket) DrawnVerdict {
	v := oracle(d.Policy, d.now, p.packet)
	return DrawnVerdict{v.verdict, v.rule, v.audited}
}

// NAT names the nat rule of one list that the policy's words say is about a packet, "" for none. Local says that
// its destination is the gateway's own.
func (d *Drawn) NAT(p DrawnPacket, destinations, local bool) string {
	pk := p.packet
	if destinations {
		if pk.to = ""; local {
			pk.to = NameHost
		}
	}
	return oracleNAT(d.Policy, pk, destinations)
}
