package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/testenv"
)

// Addresses of the lab's hosts: IPv4, IPv6.
var (
	demoClient = []netip.Addr{netip.MustParseAddr("10.10.1.2"), netip.MustParseAddr("fd10:1::2")}
	demoServer = []netip.Addr{netip.MustParseAddr("10.10.2.2"), netip.MustParseAddr("fd10:2::2")}
)

const (
	demoBytes    = 1 << 20                // of a download
	demoPatience = 400 * time.Millisecond // after which silence is silence
)

// What can come of an attempt.
type demoOutcome string

const (
	demoPassed  demoOutcome = "passed"
	demoSilence demoOutcome = "no answer"
	demoRefused demoOutcome = "refused at once"
)

// An attempt is something that a host tries, what the policy makes of it, and what came of it.
type attempt struct {
	what   string
	try    func(ctx context.Context, family int) (demoOutcome, string, error) // with what to say of it
	once   bool                                                               // IPv4 alone
	want   demoOutcome
	rule   string // that must decide; "none" for the default deny
	reason string // that must be counted, "" for none

	got     []demoOutcome // by family
	said    string
	decided string // what did, as the counters tell
	right   bool
}

func (d *demo) attempts() []attempt {
	return []attempt{
		{what: "client downloads 1 MiB by HTTP from server", try: d.download, want: demoPassed, rule: "web"},
		{what: "client asks server by UDP, port 53", try: d.ask(53), want: demoPassed, rule: "names"},
		{what: "client pings server", try: d.ping, want: demoPassed, rule: "ping"},
		{what: "client traces the route to server", try: d.trace, want: demoPassed, rule: "traceroute", reason: "ttl-expired"},
		{what: "client connects to server, TCP 23", try: d.connect(d.toServer, 23), want: demoSilence, rule: "no-telnet", reason: "deny"},
		{what: "client connects to server, TCP 25", try: d.connect(d.toServer, 25), want: demoRefused, rule: "no-mail", reason: "reject"},
		{what: "client connects to server, TCP 8080", try: d.connect(d.toServer, 8080), want: demoSilence, rule: "none", reason: "no-rule-matched"},
		{what: "client asks server by UDP, port 161", try: d.ask(161), want: demoSilence, rule: "none", reason: "no-rule-matched"},
		{what: "server connects to client, TCP 22", try: d.connect(d.toClient, 22), want: demoSilence, rule: "none", reason: "no-rule-matched"},
		{what: "client sends UDP 53 as 192.0.2.66", try: d.spoof, once: true, want: demoSilence, rule: "none", reason: "spoofed"},
	}
}

// carryOut tries it with both families, and compares the gateway's counters before and after.
func (d *demo) carryOut(ctx context.Context, a *attempt) error {
	before, err := d.count(ctx)
	if err != nil {
		return err
	}
	for family := range demoServer {
		if family > 0 && a.once {
			break
		}
		outcome, said, err := a.try(ctx, family)
		if err != nil {
			return err
		}
		a.got = append(a.got, outcome)
		if a.said == "" {
			a.said = said
		}
	}
	after, err := d.count(ctx)
	if err != nil {
		return err
	}
	a.judge(before, after)
	return nil
}

// demoCounts are what the gateway has counted.
type demoCounts struct {
	judged map[string]uint64 // by rule
	drops  map[string]uint64 // by reason
	rules  map[string]gateway.RuleStatus
}

func (d *demo) count(ctx context.Context) (demoCounts, error) {
	c := demoCounts{map[string]uint64{}, map[string]uint64{}, map[string]gateway.RuleStatus{}}
	rules, err := d.api.Rules(ctx)
	if err != nil {
		return c, err
	}
	for _, r := range rules {
		c.judged[r.Name], c.rules[r.Name] = r.Judged, r
	}
	drops, err := d.api.Drops(ctx, true)
	for _, drop := range drops {
		c.drops[drop.Reason] = drop.Packets
	}
	return c, err
}

// judge says what decided, and whether all is as the policy says. Only what rose counts; of what else
// rises (the hosts' own multicast) nothing is said.
func (a *attempt) judge(before, after demoCounts) {
	a.right = true
	for _, got := range a.got {
		a.right = a.right && got == a.want
	}
	var decided []string
	if after.judged[a.rule] > before.judged[a.rule] {
		r := after.rules[a.rule]
		if a.rule == "none" {
			decided = append(decided, "no rule allows it")
		} else {
			decided = append(decided, fmt.Sprintf("rule %s, %s", a.rule, place(&r)))
		}
	}
	if a.reason != "" && after.drops[a.reason] > before.drops[a.reason] {
		decided = append(decided, a.reason)
	}
	// A spoofed packet is refused before any rule is asked.
	if a.reason == "spoofed" && len(decided) > 0 {
		decided = []string{"spoofed: not an address of zone lan"}
	}
	want := 1
	if a.reason != "" && a.reason != "spoofed" {
		want = 2
	}
	a.right = a.right && len(decided) == want
	if a.decided = strings.Join(decided, ": "); a.decided == "" {
		a.decided = "the counters do not tell"
	}
}

func (d *demo) download(ctx context.Context, family int) (demoOutcome, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	t, err := d.client.Download(ctx, d.web[family].URL(demoBytes))
	if err != nil {
		return outcomeOf(err)
	}
	return demoPassed, fmt.Sprintf("whole in %s", t.Duration.Round(time.Millisecond)), nil
}

func (d *demo) ask(port uint16) func(context.Context, int) (demoOutcome, string, error) {
	return func(ctx context.Context, family int) (demoOutcome, string, error) {
		ctx, cancel := context.WithTimeout(ctx, demoPatience)
		defer cancel()
		rtt, err := d.client.Exchange(ctx, netip.AddrPortFrom(demoServer[family], port), []byte("who is there?"))
		if err != nil {
			return outcomeOf(err)
		}
		return demoPassed, "answer in " + rtt.Round(10*time.Microsecond).String(), nil
	}
}

func (d *demo) ping(ctx context.Context, family int) (demoOutcome, string, error) {
	r, err := d.client.Ping(ctx, demoServer[family], testenv.PingOptions{})
	if err != nil {
		return "", "", err
	}
	if r.Received == 0 {
		return demoSilence, "", nil
	}
	return demoPassed, "answer in " + r.RTT[0].Round(10*time.Microsecond).String(), nil
}

func (d *demo) trace(ctx context.Context, family int) (demoOutcome, string, error) {
	hops, err := d.client.Traceroute(ctx, demoServer[family], testenv.TracerouteOptions{Timeout: demoPatience, MaxHops: 3})
	if err != nil {
		return "", "", err
	}
	if len(hops) != 2 || !hops[1].Reached || !hops[0].From.IsValid() {
		return demoSilence, "", nil
	}
	return demoPassed, fmt.Sprintf("by way of %s", hops[0].From), nil
}

// A demoEnd is who connects, and to which address by family.
type demoEnd func() (*testenv.Namespace, []netip.Addr)

func (d *demo) toServer() (*testenv.Namespace, []netip.Addr) { return d.client, demoServer }
func (d *demo) toClient() (*testenv.Namespace, []netip.Addr) { return d.server, demoClient }

func (d *demo) connect(end demoEnd, port uint16) func(context.Context, int) (demoOutcome, string, error) {
	return func(ctx context.Context, family int) (demoOutcome, string, error) {
		ctx, cancel := context.WithTimeout(ctx, demoPatience)
		defer cancel()
		from, to := end()
		start := time.Now()
		c, err := from.Dial(ctx, "tcp", netip.AddrPortFrom(to[family], port).String())
		if errors.Is(err, unix.ECONNREFUSED) {
			return demoRefused, "after " + time.Since(start).Round(10*time.Microsecond).String(), nil
		}
		if err != nil {
			return outcomeOf(err)
		}
		return demoPassed, "", c.Close()
	}
}

// outcomeOf tells silence from an error of the demo itself.
func outcomeOf(err error) (demoOutcome, string, error) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return demoSilence, "", nil
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES):
		return demoRefused, "", nil
	}
	return "", "", err
}

// spoof sends a datagram with a source that does not live in the client's zone. It passed if the
// server has seen it.
func (d *demo) spoof(context.Context, int) (demoOutcome, string, error) {
	own, err := d.client.MAC("c0")
	if err != nil {
		return "", "", err
	}
	router, err := d.gateway.MAC("lan")
	if err != nil {
		return "", "", err
	}
	sender, err := d.client.OpenSender("c0")
	if err != nil {
		return "", "", err
	}
	defer sender.Close()
	before := d.echo[0].Datagrams()
	if err := sender.Send(datagram(router, own, netip.MustParseAddr("192.0.2.66"), demoServer[0], 53, "let me in")); err != nil {
		return "", "", err
	}
	time.Sleep(demoPatience)
	if d.echo[0].Datagrams() > before {
		return demoPassed, "", nil
	}
	return demoSilence, "nothing arrives", nil
}

// datagram builds an Ethernet frame with IPv4 and UDP, without a UDP checksum.
func datagram(to, from []byte, src, dst netip.Addr, port uint16, payload string) []byte {
	ip := make([]byte, 20, 28+len(payload))
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(payload)))
	copy(ip[12:], src.AsSlice())
	copy(ip[16:], dst.AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	ip = binary.BigEndian.AppendUint16(ip, 40000)
	ip = binary.BigEndian.AppendUint16(ip, port)
	ip = binary.BigEndian.AppendUint16(ip, uint16(8+len(payload)))
	ip = append(binary.BigEndian.AppendUint16(ip, 0), payload...)
	return append(append(append(append([]byte{}, to...), from...), 0x08, 0x00), ip...)
}
