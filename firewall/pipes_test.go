package firewall_test

import (
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/pipes"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/oracle"
)

// own is the word of a field of the gateway's own pipes.
func own(n int) int { return pipe.OwnField(n, "", "", nil).Word }

// words are those of a packet that opens a flow, as the gateway's own pipes see it.
func words(k *bpf.XDPClassifyKey, local bool) (w oracle.Packet) {
	put := func(at int, hi, lo uint64) {
		if k.Family == 4 {
			w[at] = uint32(lo)
			return
		}
		w[at], w[at+1], w[at+2], w[at+3] = uint32(hi>>32), uint32(hi), uint32(lo>>32), uint32(lo)
	}
	put(int(bpf.PipesPipeWordPIPE_IP_SRC), k.SrcHi, k.SrcLo)
	put(int(bpf.PipesPipeWordPIPE_IP_DST), k.DstHi, k.DstLo)
	has := uint32(bpf.PipesPipeHasPIPE_HAS_IP | bpf.PipesPipeHasPIPE_HAS_IPV6)
	if k.Family == 4 {
		has = uint32(bpf.PipesPipeHasPIPE_HAS_IP | bpf.PipesPipeHasPIPE_HAS_IPV4)
	}
	switch k.Proto {
	case 6, 17:
		has |= uint32(bpf.PipesPipeHasPIPE_HAS_PORTS)
		w[bpf.PipesPipeWordPIPE_L4SPORT], w[bpf.PipesPipeWordPIPE_L4DPORT] = uint32(k.Sport), uint32(k.Dport)
	case 1, 58:
		has |= uint32(bpf.PipesPipeHasPIPE_HAS_ICMP)
		w[bpf.PipesPipeWordPIPE_ICMP_TYPE], w[bpf.PipesPipeWordPIPE_ICMP_CODE] = uint32(k.Dport>>8), uint32(k.Dport&0xff)
	}
	w[bpf.PipesPipeWordPIPE_HAS], w[bpf.PipesPipeWordPIPE_IP_PROTO] = has, uint32(k.Proto)
	w[own(pipes.FieldFrom)], w[own(pipes.FieldTo)], w[own(pipes.FieldMAC)] = uint32(k.From), uint32(k.To), uint32(k.Context)
	if local {
		w[own(pipes.FieldLocal)] = 1
	}
	return w
}

// The policy as pipes, read entry by entry, decides as its classifiers in force and as its words do.
func TestPolicyAsPipes(t *testing.T) {
	s := firewall.Seed()
	t.Logf("seed %d", s)
	r := rand.New(rand.NewPCG(s, 4))
	seen := map[string]int{}
	for range 250 {
		d := firewall.Draw(t, r)
		c := d.Compiled
		rules, err := flowtable.CompileACL(c.Entries)
		if err != nil {
			t.Fatal(err)
		}
		nat, err := c.NATBehind(rules)
		if err != nil {
			t.Fatal(err)
		}
		model := pipes.New(c, rules, nat, pipes.Options{Most: 1 << 30}).Pipeline
		world := oracle.New(model)
		world.Hash = func(key []uint32) uint32 {
			h := fnv.New32()
			for _, w := range key {
				h.Write([]byte{byte(w), byte(w >> 8), byte(w >> 16), byte(w >> 24)})
			}
			return h.Sum32()
		}
		world.Slots = func(p *pipe.Pipe) (slots []int) {
			i := slices.IndexFunc(c.NATRules, func(n firewall.NATRuleInfo) bool { return pipes.Servers+n.Name == p.Name })
			rule := &nat.Rules[i]
			for _, server := range nat.Buckets[rule.Bucket : rule.Bucket+rule.Buckets] {
				slots = append(slots, slices.IndexFunc(p.Entries, func(e *pipe.Entry) bool {
					return p.Actions[e.Action].Ops[0].Value[0] == uint32(server)
				}))
			}
			return slots
		}
		for range 200 {
			pk := d.Packet(r)
			local := r.IntN(3) == 0
			got := world.Walk(words(&pk.Key, local), 0)
			want := d.Judge(pk)
			if v := verdict(got); v.Verdict != want.Verdict || v.Rule != want.Rule || !slices.Equal(v.Audited, want.Audited) {
				t.Fatalf("packet %+v\npolicy %+v\npipes  %+v\n%s", pk, want, v, d.Text)
			}
			var audited []string
			answer := rules.Classify(&pk.Key, func(rule uint32) { audited = append(audited, c.Rules[rule].Name) })
			if name := c.Rules[answer&0xffffff].Name; name != want.Rule || !slices.Equal(audited, want.Audited) {
				t.Fatalf("packet %+v\npolicy %+v\nclassifier %s, %v\n%s", pk, want, name, audited, d.Text)
			}
			seen[string(want.Verdict)]++
			seen["audited"] += len(want.Audited)
			if nat == nil {
				continue
			}
			destination := ""
			if pk.From != firewall.NameHost && !pk.Dst.IsMulticast() && pk.Dst != netip.MustParseAddr("255.255.255.255") {
				destination = translates(c, d.NAT(pk, true, local))
			}
			source := ""
			if want.Verdict == firewall.VerdictAllow && pk.To != firewall.NameHost && pk.From != firewall.NameHost {
				name := d.NAT(pk, false, local)
				if source = translates(c, name); name == "" && destination != "" && pk.From == pk.To && hairpins(d.Policy, destination) {
					source = destination
					seen["hairpin"]++
				}
			}
			name := func(n int) string { return c.NATRules[got.After[own(n)]].Name }
			if name(pipes.FieldDestination) != destination || name(pipes.FieldSource) != source {
				t.Fatalf("packet %+v, local %v: policy translates by %q and %q, pipes by %q and %q\n%s", pk, local,
					destination, source, name(pipes.FieldDestination), name(pipes.FieldSource), d.Text)
			}
			if i := slices.IndexFunc(d.Policy.NAT, func(n firewall.NATRule) bool { return n.Name == destination }); i >= 0 {
				seen["destination"]++
				if chosen := got.After[own(pipes.FieldServer)]; d.Policy.NAT[i].Kind == firewall.NATDestination && !serves(&d.Policy.NAT[i], &nat.Servers[chosen], pk.Key.Family) {
					t.Fatalf("packet %+v: rule %s chooses server %d\n%s", pk, destination, chosen, d.Text)
				}
			}
			if source != "" {
				seen["source"]++
			}
		}
	}
	t.Logf("%v", seen)
	for _, what := range []string{"allow", "deny", "reject", "drop", "audited", "destination", "source", "hairpin"} {
		if seen[what] < 5 {
			t.Errorf("%s came %d times only", what, seen[what])
		}
	}
}

// verdict is what the pipes say in the policy's words.
func verdict(r oracle.Result) (v firewall.DrawnVerdict) {
	i := slices.IndexFunc(r.Walk, func(s oracle.Step) bool { return s.Pipe.Name == pipes.Rules })
	base := func(e *pipe.Entry) string { name, _, _ := strings.Cut(e.Name, "/"); return name }
	for _, e := range r.Audited {
		v.Audited = append(v.Audited, base(e))
	}
	v.Rule, v.Verdict = "none", firewall.VerdictDeny
	e := r.Walk[i].Entry
	if e == nil {
		return v
	}
	switch v.Rule = base(e); {
	case e.Forward.Reason == "spoofed":
		v.Rule, v.Verdict = "none", firewall.VerdictDrop
	case e.Forward.Reason == "reject":
		v.Verdict = firewall.VerdictReject
	case e.Forward.To != pipe.ToDrop:
		v.Verdict = firewall.VerdictAllow
	}
	return v
}

// translates is the name of a nat rule that changes something; "" of one that keeps.
func translates(c *firewall.Compiled, name string) string {
	i := slices.IndexFunc(c.NATRules, func(n firewall.NATRuleInfo) bool { return n.Name == name })
	if c.NATRules[i].Kind == firewall.NATKeep {
		return ""
	}
	return name
}

func hairpins(p *firewall.Policy, name string) bool {
	return slices.ContainsFunc(p.NAT, func(n firewall.NATRule) bool { return n.Name == name && n.Kind == firewall.NATDestination && n.Hairpin })
}

// serves tells whether a rule may choose a server.
func serves(rule *firewall.NATRule, s *bpf.XDPNatServer, family uint8) bool {
	var b [16]byte
	for i, w := range s.Address {
		b[4*i], b[4*i+1], b[4*i+2], b[4*i+3] = byte(w), byte(w>>8), byte(w>>16), byte(w>>24)
	}
	a := netip.AddrFrom16(b)
	if family == 4 {
		a = netip.AddrFrom4([4]byte(b[:4]))
	}
	return slices.ContainsFunc(rule.Servers, func(s firewall.NATServer) bool { return s.Address == a && !s.Drain })
}
