package firewall

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// oracleNAT names the rule of one list that a packet meets, "" for none, from what the operator wrote. To is the
// zone that the list is asked with.
func oracleNAT(p *Policy, pk oraclePacket, destinations bool) string {
	client, server := uint16(68), uint16(67)
	if pk.src.Is6() {
		client, server = 546, 547
	}
	if destinations && pk.to == NameHost && pk.proto == 17 && pk.sport == server && pk.dport == client {
		return "" // the gateway's own DHCP
	}
	for _, r := range p.NAT {
		if f := r.family(); f != 0 && (f == 4) != pk.src.Is4() {
			continue
		}
		from := oracleEnd(p, r.From, pk.from, pk.src, &pk.mac)
		to := oracleEnd(p, r.To, pk.to, pk.dst, nil)
		switch r.Kind {
		case NATDestination:
			from = from && destinations
		case NATMasquerade, NATSource:
			from = from && !destinations
		case NATPrefix:
			if destinations {
				from, to = oracleEnd(p, r.To, pk.from, pk.src, nil), r.Outside.Contains(pk.dst)
			} else {
				from = from && r.Inside.Contains(pk.src)
			}
		}
		if from && to && oracleService(r.Services, pk) {
			return r.Name
		}
	}
	return ""
}

// The lists of nat rules answer as the policy's own words do, and rules that a warning calls dead never.
func TestNATAgreesWithOracle(t *testing.T) {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	r := rand.New(rand.NewPCG(s, 3))
	answers, dead := map[NATKind]int{}, 0
	for range 400 {
		text := randomPolicy(r)
		p, errs := parseText(t, text)
		if errs != nil {
			t.Fatalf("random policy is wrong: %v\n%s", errs, text)
		}
		c, err := Compile(p, CompileOptions{Now: day})
		if err != nil {
			t.Fatalf("compile: %v\n%s", err, text)
		}
		never := make(map[string]bool)
		for _, w := range c.Warnings {
			if strings.HasPrefix(w.Msg, "nat rule") && strings.Contains(w.Msg, "can never match") {
				never[strings.Split(w.Msg, `"`)[1]] = true
				dead++
			}
		}
		if c.NAT == nil {
			continue
		}
		for range 150 {
			pk := randomPacket(r)
			destinations := r.IntN(2) == 0
			if destinations && pk.to != NameHost {
				pk.to = ""
			}
			if pk.from == NameHost || !destinations && pk.to == NameHost {
				continue // not translated, and so never asked
			}
			want, got := oracleNAT(p, pk, destinations), ""
			list := c.NAT.Sources
			if destinations {
				list = c.NAT.Destinations
			}
			k := Key(pk.src, pk.dst, pk.proto, pk.sport, pk.dport)
			k.From, k.To, k.Context = uint8(slices.Index(c.Zones, pk.from)), uint8(slices.Index(c.Zones, pk.to)), c.MACs[pk.mac]
			if list != nil {
				got = c.NATRules[list.Classify(&k, nil)&(maxRules-1)].Name
			}
			if want != got || never[got] {
				t.Fatalf("packet %+v, destinations %v: oracle %q, pipe %q, dead %v\n%s", pk, destinations, want, got, never[got], text)
			}
			if i := slices.IndexFunc(p.NAT, func(r NATRule) bool { return r.Name == got }); i >= 0 {
				answers[p.NAT[i].Kind]++
			}
		}
	}
	t.Logf("answers %v, %d dead rules", answers, dead)
	for _, kind := range natKinds {
		if answers[NATKind(kind)] < 50 {
			t.Errorf("%s came %d times only", kind, answers[NATKind(kind)])
		}
	}
	if dead < 20 {
		t.Errorf("only %d dead rules", dead)
	}
}
