package gateway

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// Timeouts say how long a flow of each protocol and state is kept after its last packet in either
// direction; a TCP handshake, after its opening packet.
type Timeouts struct {
	TCPSynSent     time.Duration
	TCPSynReceived time.Duration
	TCPEstablished time.Duration
	TCPFinWait     time.Duration
	TCPTimeWait    time.Duration
	TCPClosed      time.Duration
	UDPNew         time.Duration // no reply yet
	UDP            time.Duration
	ICMP           time.Duration // and ICMPv6
	Other          time.Duration // every other protocol
}

// DefaultTimeouts are no shorter than the RFCs ask: 5382 REQ-5 for TCP, 4787 REQ-5 for UDP, 5508
// REQ-2 for ICMP.
func DefaultTimeouts() Timeouts {
	return Timeouts{
		TCPSynSent:     transitory,
		TCPSynReceived: transitory,
		TCPEstablished: 2*time.Hour + 4*time.Minute,
		TCPFinWait:     transitory,
		TCPTimeWait:    transitory,
		TCPClosed:      transitory,
		UDPNew:         2 * time.Minute,
		UDP:            5 * time.Minute,
		ICMP:           time.Minute,
		Other:          5 * time.Minute,
	}
}

const (
	transitory = 4 * time.Minute
	minTimeout = time.Second
	maxTimeout = 24 * 24 * time.Hour // ticks of 2^20 ns wrap after 52 days and are compared signed
)

// field returns a time-out by its key, with the least that an RFC asks of it (0: none does) and
// which RFC that is.
func (t *Timeouts) field(key string) (value *time.Duration, least time.Duration, rfc string) {
	switch key {
	case "tcp_syn_sent":
		return &t.TCPSynSent, transitory, "RFC 5382"
	case "tcp_syn_received":
		return &t.TCPSynReceived, transitory, "RFC 5382"
	case "tcp_established":
		return &t.TCPEstablished, 2*time.Hour + 4*time.Minute, "RFC 5382"
	case "tcp_fin_wait":
		return &t.TCPFinWait, transitory, "RFC 5382"
	case "tcp_time_wait":
		return &t.TCPTimeWait, transitory, "RFC 5382"
	case "tcp_closed":
		return &t.TCPClosed, 0, ""
	case "udp_new":
		return &t.UDPNew, 2 * time.Minute, "RFC 4787"
	case "udp":
		return &t.UDP, 2 * time.Minute, "RFC 4787"
	case "icmp":
		return &t.ICMP, time.Minute, "RFC 5508"
	}
	return &t.Other, 0, ""
}

// Ticks are the time-outs as the flow table keeps them. No flow ends before its time-out has passed.
func (t *Timeouts) Ticks() (out flowtable.Timeouts) {
	tcp := &out[flowtable.ClassTCP]
	for state, d := range map[flowState]time.Duration{
		flowSynSent: t.TCPSynSent, flowSynReceived: t.TCPSynReceived, flowEstablished: t.TCPEstablished,
		flowFinWait: t.TCPFinWait, flowTimeWait: t.TCPTimeWait, flowClosed: t.TCPClosed,
	} {
		tcp[state] = flowtable.TimeoutTicks(d)
	}
	for class, d := range map[flowtable.Class]time.Duration{
		flowtable.ClassTCP: t.TCPTimeWait, flowtable.ClassUDP: t.UDP, flowtable.ClassICMP: t.ICMP,
	} {
		out[class][flowMapping] = flowtable.TimeoutTicks(d) // since its last flow, too
	}
	for class, d := range map[flowtable.Class][2]time.Duration{
		flowtable.ClassUDP: {t.UDPNew, t.UDP}, flowtable.ClassICMP: {t.ICMP, t.ICMP}, flowtable.ClassOther: {t.Other, t.Other},
	} {
		out[class][flowNew], out[class][flowReplied] = flowtable.TimeoutTicks(d[0]), flowtable.TimeoutTicks(d[1])
	}
	return out
}

func (r *configReader) flows(f *Flows, n *firewall.Node) {
	m := r.Fields(n, "flows", configKeys["flows"])
	if v := m["max"]; v != nil {
		f.Max, _ = r.Int(v, "max", minFlows, maxFlows)
	}
	if v := m["half_open_share"]; v != nil {
		if text, ok := r.Text(v, "half_open_share"); ok {
			share, err := strconv.ParseFloat(text, 64)
			if err != nil || !(share > 0 && share <= 1) {
				r.Fail(v.Pos.Errorf("half_open_share must be a number above 0 and at most 1, not %q", text))
			}
			f.HalfOpenShare = share
		}
	}
	if v := m["timeouts"]; v != nil {
		for key, value := range r.Fields(v, "timeouts", configKeys["timeouts"]) {
			to, least, rfc := f.Timeouts.field(key)
			d, ok := r.duration(value, key)
			if !ok {
				continue
			}
			*to = d
			if d < least {
				r.warn(value.Pos.Errorf("%s of %s is shorter than %s asks", key, value.Text, rfc).
					WithHint("idle connections may lose their entry; %s is the least it asks", short(least)))
			}
		}
	}
}

// short renders a duration without its zero parts.
func short(d time.Duration) string {
	return strings.TrimSuffix(strings.TrimSuffix(d.String(), "0s"), "0m")
}

func (r *configReader) duration(n *firewall.Node, what string) (time.Duration, bool) {
	text, ok := r.Text(n, what)
	if !ok {
		return 0, false
	}
	d, err := parseDuration(text)
	switch {
	case err != nil:
		r.Fail(n.Pos.Errorf("%s: %v", what, err).WithHint("write it as in 30s, 5m, 2h4m or 1d12h"))
		return 0, false
	case d < minTimeout || d > maxTimeout:
		r.Fail(n.Pos.Errorf("%s must be between 1s and 24d, not %s", what, text))
		return 0, false
	}
	return d, true
}

// parseDuration reads Go's durations, with whole days in front of the rest.
func parseDuration(text string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not a duration", text)
	var days time.Duration
	rest := text
	if number, after, found := strings.Cut(text, "d"); found {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, bad
		}
		days, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || rest == "0" || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		return 0, bad
	}
	if d > maxSpan {
		return maxSpan + 1, nil // the sum must not overflow
	}
	return days + d, nil
}

// maxSpan is the longest duration that anybody may ask for.
const maxSpan = 3650 * 24 * time.Hour

// metrics reads where to serve them, or none.
func (r *configReader) metrics(c *Config, n *firewall.Node) {
	if n.Kind == firewall.ScalarNode {
		if n.Text != firewall.NameNone {
			r.Fail(firewall.Unknown(n.Pos, "metrics", n.Text, []string{firewall.NameNone}, `write {listen: "127.0.0.1:9469"}, or none`))
		}
		c.Metrics.Listen = ""
		return
	}
	l := r.Fields(n, "metrics", configKeys["metrics"])["listen"]
	if l == nil {
		return
	}
	c.Metrics.Listen = r.listen(l)
	host, _, _ := net.SplitHostPort(c.Metrics.Listen)
	if a, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !a.IsLoopback()) {
		r.warn(l.Pos.Errorf("metrics are served beyond this machine, to whoever the policy lets in").
			WithHint("they tell names of rules and ports; 127.0.0.1 serves this machine alone"))
	}
}

func (r *configReader) listen(n *firewall.Node) string {
	text, ok := r.Text(n, "listen")
	if !ok {
		return ""
	}
	_, port, err := net.SplitHostPort(text)
	if v, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || v == 0 {
		r.Fail(n.Pos.Errorf("%q is not an address to listen on", text).WithHint(`write it as in "127.0.0.1:9469"`))
	}
	return text
}

// ethertypeNames are those that people ask for between two switches or hosts.
var ethertypeNames = map[string]uint16{
	"wol": 0x0842, "rarp": 0x8035, "mpls": 0x8847, "mpls-multicast": 0x8848, "pppoe-discovery": 0x8863,
	"pppoe-session": 0x8864, "slow": 0x8809, "lacp": 0x8809, "eapol": 0x888e, "profinet": 0x8892,
	"ethercat": 0x88a4, "macsec": 0x88e5, "goose": 0x88b8, "lldp": 0x88cc, "mrp": 0x88e3, "ptp": 0x88f7,
	"cfm": 0x8902, "fcoe": 0x8906, "fip": 0x8914, "roce": 0x8915, "batman": 0x4305,
}

// judgedEthertypes never pass unasked.
var judgedEthertypes = map[uint16]string{
	0x0800: "IPv4 is judged by the policy", 0x86dd: "IPv6 is judged by the policy", 0x0806: "ARP always passes between inline ports",
	0x8100: "VLAN tags are looked behind", 0x88a8: "VLAN tags are looked behind",
}

func (r *configReader) ethertypes(c *Config, n *firewall.Node) {
	items := r.List(n)
	for _, item := range items {
		text, ok := r.Text(item, "an ethertype")
		if !ok {
			continue
		}
		value, known := ethertypeNames[text]
		if !known {
			v, err := strconv.ParseUint(text, 0, 16)
			if err != nil || v < 0x600 {
				e := firewall.Unknown(item.Pos, "ethertype", text, slices.Sorted(maps.Keys(ethertypeNames)), "write a name such as lldp, or a number from 0x0600 as in 0x88cc")
				if text == "stp" || err == nil && v < 0x600 {
					e.Hint = "frames with a length in place of an ethertype, as STP has, cannot be passed"
				}
				r.Fail(e)
				continue
			}
			value = uint16(v)
		}
		if why := judgedEthertypes[value]; why != "" {
			r.Fail(item.Pos.Errorf("ethertype %s cannot be passed unasked", text).WithHint("%s; leave it out", why))
			continue
		}
		if !slices.Contains(c.Ethertypes, value) {
			c.Ethertypes = append(c.Ethertypes, value)
		}
	}
	if len(c.Ethertypes) > maxEthertypes {
		r.Fail(n.Pos.Errorf("%d ethertypes, more than %d", len(c.Ethertypes), maxEthertypes))
	}
	if len(items) > 0 && len(c.Inline) == 0 {
		r.Fail(n.Pos.Errorf("ethertypes without inline ports").WithHint("only inline ports pass them; take ethertypes out, or join ports with inline: [[lan0, wan0]]"))
	}
}
