package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

const (
	nftPeer    = "nft"            // in results
	nftMost    = 60 * time.Second // that one call of nft may take
	nftForward = "sysctl net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lan.rp_filter=0; ethtool -K lan gro on; ethtool -K wan gro on; ip route del 10.128.0.0/9; ip route add default via 10.10.2.2"
)

// policyPeer is the kernel's forwarding in two labs: under no rule, and under those of a set by nftables.
type policyPeer struct {
	bare, ruled *load
	file        string // which nft reads
	time        time.Duration

	rules []nftRule // of the set
	each  []float64 // ns that the set's rules take of a packet, one value a round
}

// newPolicyPeer builds both labs. mac is the address that frames are sent to. The caller closes it.
func newPolicyPeer(prefix string, mac [6]byte, d time.Duration) (p *policyPeer, err error) {
	dir, err := os.MkdirTemp("", "softdpu-bench-")
	if err != nil {
		return nil, err
	}
	p = &policyPeer{file: filepath.Join(dir, "rules.nft"), time: d}
	if p.bare, err = startNFT(prefix+"-bare", nftBare, mac); err == nil {
		p.ruled, err = startNFT(prefix+"-nft", "", mac)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *policyPeer) close() error {
	err := os.RemoveAll(filepath.Dir(p.file))
	for _, l := range []*load{p.bare, p.ruled} {
		if l != nil {
			err = errors.Join(err, l.close())
		}
	}
	return err
}

// startNFT starts a kernel that forwards whatever is sent to mac from lan to wan, with the sink behind it.
func startNFT(prefix, rules string, mac [6]byte) (l *load, err error) {
	c := kernel(prefix, rules)
	c.prefix = prefix
	l = &load{}
	if l.forwarder, err = c.start(c); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	w := l.wire()
	if l.client, err = w.lab.Namespace("client"); err != nil {
		return l, err
	}
	if l.server, err = w.lab.Namespace("server"); err != nil {
		return l, err
	}
	if err := w.gw.Do(func() error { return w.forwardAll(mac) }); err != nil {
		return l, err
	}
	if err := l.server.Do(l.attachSink); err != nil {
		return l, err
	}
	return l, l.pinNAPI()
}

// forwardAll has the gateway send by wan what has any source and any destination, and makes mac the address of lan.
func (w *wires) forwardAll(mac [6]byte) error {
	for _, name := range []string{"all", "lan"} { // the larger of both counts
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", []byte("0"), 0); err != nil {
			return err
		}
	}
	lan, err := netlink.LinkByName("lan")
	if err != nil {
		return fmt.Errorf("find lan: %w", err)
	}
	if err := netlink.LinkSetHardwareAddr(lan, net.HardwareAddr(mac[:])); err != nil {
		return fmt.Errorf("set the address of lan: %w", err)
	}
	w.lanMAC = mac
	_, clients, _ := net.ParseCIDR("10.128.0.0/9")
	if err := netlink.RouteDel(&netlink.Route{LinkIndex: lan.Attrs().Index, Dst: clients}); err != nil {
		return fmt.Errorf("take the route to %s away: %w", clients, err)
	}
	return w.route("0.0.0.0/0", "10.10.2.2", "wan")
}

// nft runs nft in the namespace of the rules, and returns the seconds that it took.
func (p *policyPeer) nft(ctx context.Context, args ...string) (seconds float64, err error) {
	limited, cancel := context.WithTimeout(ctx, nftMost)
	defer cancel()
	err = p.ruled.wire().gw.Do(func() error {
		begin := time.Now()
		out, err := exec.CommandContext(limited, "nft", args...).CombinedOutput() // of this thread's namespace
		seconds = time.Since(begin).Seconds()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case limited.Err() != nil:
			return fmt.Errorf("nft %.80s: it takes more than %v", strings.Join(args, " "), nftMost)
		case err != nil:
			first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
			return fmt.Errorf("nft %.80s: %w: %.300s", strings.Join(args, " "), err, first)
		}
		return nil
	})
	return seconds, err
}

// take has the peer work with a filter set from now on.
func (p *policyPeer) take(set []byte) (err error) {
	p.each = nil
	if p.rules, err = nftRulesOf(set); err != nil {
		return err
	}
	return os.WriteFile(p.file, nftFile(p.rules), 0o600)
}

// load puts the set in force where there are no rules, and returns the seconds that it took.
func (p *policyPeer) load(ctx context.Context) (seconds float64, err error) {
	if _, err := p.nft(ctx, "flush", "ruleset"); err != nil {
		return 0, err
	}
	return p.nft(ctx, "-f", p.file)
}

// lay has both labs be sent the frames of a trace, a power of two.
func (p *policyPeer) lay(trace *ebpf.Map, frames int) error {
	p.unlay()
	for _, l := range []*load{p.bare, p.ruled} {
		if err := l.client.Do(func() error { return l.loadGeneratorOf(frames, trace) }); err != nil {
			return err
		}
	}
	return nil
}

// unlay gives the trace back.
func (p *policyPeer) unlay() {
	for _, l := range []*load{p.bare, p.ruled} {
		if l.coll != nil {
			l.coll.Close()
			l.coll = nil
		}
	}
}

// measure takes one round: packets without a rule, then under the set.
func (p *policyPeer) measure(keep bool) error {
	var ns [2]float64
	for i, l := range []*load{p.bare, p.ruled} {
		d := p.time
		if !keep {
			d /= 4
		}
		rate, err := l.measure(d)
		if err != nil {
			return fmt.Errorf("forward under %s: %w", []string{"no rule", "nftables"}[i], err)
		}
		ns[i] = 1e9 / rate
	}
	if keep {
		p.each = append(p.each, ns[1]-ns[0])
	}
	return nil
}

// changeOne makes single edits at random places, as many as `most` if they take no longer than d, and returns the
// seconds that each took: in turn a rule is added, deleted, moved, given another action, or its source is widened.
// Afterwards the rules are not those of the set.
func (p *policyPeer) changeOne(ctx context.Context, most int, d time.Duration, rnd *rand.Rand) (seconds []float64, err error) {
	left := slices.Clone(p.rules) // that have their handles still: nft gives what it replaces a new one
	begin := time.Now()
	for n := 0; n < 1 || n < most && time.Since(begin) < d; n++ {
		if len(left) < 2 {
			if _, err := p.load(ctx); err != nil {
				return nil, err
			}
			left = slices.Clone(p.rules)
		}
		var command string
		command, left = nftEdit(left, n, rnd)
		took, err := p.nft(ctx, command)
		if err != nil {
			return nil, err
		}
		seconds = append(seconds, took)
	}
	return seconds, nil
}

// nftEdit is edit n of a table in which rules are, two at least, and which of them keep their handles.
func nftEdit(rules []nftRule, n int, rnd *rand.Rand) (command string, left []nftRule) {
	const rule = "rule ip bench forward"
	i := rnd.IntN(len(rules))
	r := rules[i]
	if n%5 == 0 {
		return fmt.Sprintf("insert %s handle %d %s", rule, r.handle, rules[rnd.IntN(len(rules))].text("accept")), rules
	}
	left = slices.Delete(rules, i, i+1)
	switch n % 5 {
	case 1:
		return fmt.Sprintf("delete %s handle %d", rule, r.handle), left
	case 2:
		before := left[rnd.IntN(len(left))]
		return fmt.Sprintf("delete %s handle %d; insert %s handle %d %s", rule, r.handle, rule, before.handle, r.text("accept")), left
	case 3:
		return fmt.Sprintf("replace %s handle %d %s", rule, r.handle, r.text("drop")), left
	}
	r.src, _ = r.src.Addr().Prefix(max(r.src.Bits()-1, 0))
	return fmt.Sprintf("replace %s handle %d %s", rule, r.handle, r.text("accept")), left
}

// PolicyContenders lists what the peer of Policy runs with, for each set: rule files whole, or of larger ones the
// beginning.
func PolicyContenders(o PolicyOptions) ([]Contender, error) {
	o.fill()
	if err := o.check(); err != nil {
		return nil, err
	}
	list := []Contender{{nftPeer, nftForward}, {"no rule", "nft -f -, with:\n" + nftBare}}
	for _, kind := range o.Kinds {
		text, err := filters(kind, o.Rules[kind], o.Seed)
		if err != nil {
			return nil, err
		}
		for _, size := range o.Sizes {
			rules, err := nftRulesOf(firstRules(text, size))
			if err != nil {
				return nil, fmt.Errorf("%d rules of %s: %w", size, kind, err)
			}
			list = append(list, Contender{fmt.Sprintf("%s-%s-%d", nftPeer, kind, size), nftSummary(rules)})
		}
	}
	return list, nil
}
