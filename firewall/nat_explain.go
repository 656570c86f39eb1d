package firewall

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// Translation is what the nat rules make of the packet that opens a flow, as far as it does not hang on the
// running gateway: its secret chooses among servers and addresses of a pool, and ports when the flow opens.
type Translation struct {
	// Ids of nat rules that matched, 0: none.
	DestinationRule, SourceRule uint32
	To                          []netip.AddrPort    // one of these is the new destination; empty: it stays. Port 0: there is none
	From                        flowtable.AddrRange // one of these is the new source; zero: it stays, or Masquerade
	Masquerade                  bool                // the new source is the address of the port by which the flow leaves
	Exempt                      bool                // the gateway's management or its own DHCP: no rule for destinations is asked
	// Rules of each list that were asked in vain, in order.
	DestinationMisses, SourceMisses []NATMiss
}

// NATMiss is a nat rule that is not about a packet.
type NATMiss struct {
	Rule *NATRuleInfo
	Why  string // "the source address is another"
	Ways int    // in which the packet is another than the rule's; of the other family, in all
}

// natWays is the most that a miss can have.
const natWays = 6

// TranslateDestination asks the rules for destinations about a packet from a zone. Local says that its
// destination is an address of the gateway itself.
func (c *Compiled) TranslateDestination(p *TestPacket, from uint8, local bool) Translation {
	k := c.natKey(p, from)
	t := c.natDestination(&k, local)
	if k.To = 0; local {
		k.To = zoneHost
	}
	return Translation{DestinationRule: t.destination, To: t.to, Exempt: t.exempt, DestinationMisses: c.natMisses(&k, true, t.destination)}
}

// TranslateSource goes on with a packet that the policy allows from one zone to another.
func (c *Compiled) TranslateSource(t *Translation, p *TestPacket, from, to uint8) {
	k := c.natKey(p, from)
	k.To = to
	inner := translation{destination: t.DestinationRule, to: t.To}
	c.natSource(&k, &inner)
	t.SourceRule, t.From, t.Masquerade = inner.source, inner.from, inner.masquerade
	t.SourceMisses = c.natMisses(&k, false, inner.source)
}

func (c *Compiled) natKey(p *TestPacket, from uint8) bpf.XDPClassifyKey {
	k := Key(p.Src, p.Dst, p.Proto, p.SrcPort, p.DstPort)
	k.From, k.Context = from, c.MACs[p.MAC]
	return k
}

// natMisses returns the rules of a list in front of the one that matched, with what kept them from it.
func (c *Compiled) natMisses(k *bpf.XDPClassifyKey, destinations bool, matched uint32) (misses []NATMiss) {
	list := c.NATSources
	if destinations {
		list = c.NATDestinations
	}
	for _, ids := range c.NATOrder {
		miss := NATMiss{}
		for _, id := range ids {
			info := &c.NATRules[id]
			if info.Destinations != destinations {
				continue
			}
			if id == matched && id != 0 {
				return misses
			}
			if info.Family != k.Family {
				if miss.Rule == nil {
					miss = NATMiss{info, "it translates the other address family", natWays}
				}
				continue
			}
			why := natMissed(k, list, id)
			miss = NATMiss{info, strings.Join(why, ", "), len(why)}
		}
		if miss.Rule != nil {
			misses = append(misses, miss)
		}
	}
	return misses
}

// natMissed says what keeps a packet from the entry of a rule that it is nearest to.
func natMissed(k *bpf.XDPClassifyKey, list []flowtable.ACLEntry, id uint32) []string {
	src, dst := keyAddress(k.Family, k.SrcHi, k.SrcLo), keyAddress(k.Family, k.DstHi, k.DstLo)
	var fewest []string
	for i := range list {
		e := &list[i]
		if e.Verdict&(maxRules-1) != id {
			continue
		}
		why := []string{}
		for _, f := range []struct {
			holds bool
			why   string
		}{
			{e.From.Has(k.From), "it comes from another zone"},
			{inAddresses(e.Src, src), "the source address is another"},
			{len(e.Contexts) == 0 || slices.Contains(e.Contexts, k.Context), "the source MAC address is another"},
			{e.To.Has(k.To), natWrongZone(k)},
			{inAddresses(e.Dst, dst), "the destination address is another"},
			{e.Proto.First <= k.Proto && k.Proto <= e.Proto.Last && e.SrcPort.First <= k.Sport && k.Sport <= e.SrcPort.Last &&
				e.DstPort.First <= k.Dport && k.Dport <= e.DstPort.Last, "the service is another"},
		} {
			if !f.holds {
				why = append(why, f.why)
			}
		}
		if fewest == nil || len(why) < len(fewest) {
			fewest = why
		}
	}
	if len(fewest) == 0 {
		return []string{"what is for the gateway's management or its DHCP is not translated"}
	}
	return fewest
}

func natWrongZone(k *bpf.XDPClassifyKey) string {
	if k.To == 0 {
		return "the destination is no address of the gateway itself"
	}
	return "it goes to another zone"
}

func inAddresses(list []flowtable.AddrRange, a netip.Addr) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(r flowtable.AddrRange) bool {
		return r.First.Is4() == a.Is4() && !a.Less(r.First) && !r.Last.Less(a)
	})
}
