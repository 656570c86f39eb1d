package bench

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softdpu/softdpu/dataplane"
)

const (
	openingFlows = 1 << 18               // whose first packets the generator has
	openingFor   = 40 * time.Millisecond // what either contender opens meanwhile has room in its table
	openingPort  = 5001                  // to which they are
)

// openingConn is flow i of those whose opening is measured: 65,536 ports of four clients, to 4,096 servers.
func openingConn(i int) conn {
	return conn{src: ip4(10<<24 | 1<<23 | 2<<8 | uint32(i>>16)), dst: ip4(10<<24 | 1<<22 | 1<<16 | uint32(i)*2654435761>>20),
		sport: uint16(i), dport: openingPort}
}

// softdpuMasquerade opens masqueraded flows.
func softdpuMasquerade() *contestant {
	policy := softdpu(10).config + "nat:\n  - {name: out, from: lan, to: wan, masquerade: {}}\n"
	return &contestant{name: "softdpu-masquerade", config: policy, opens: true, start: func(c *contestant) (forwarder, error) {
		r, err := newRig(c.prefix, dataplane.Options{FlowsMax: 1 << 18, HalfOpenShare: 1}, policy)
		if err != nil {
			return nil, err
		}
		return softdpuForwarder{rig: r}, nil
	}}
}

// kernelMasquerade does the same by nftables.
func kernelMasquerade() *contestant {
	c := kernel("kernel-nft-masquerade", nftRules(10, "")+"table ip bench_nat {\n  chain out {\n    type nat hook postrouting priority srcnat;\n    oifname \"wan\" masquerade\n  }\n}\n")
	c.opens = true
	return c
}

// forget takes all flows of a contender away that opened some.
func (l *load) forget() error {
	if f, ok := l.forwarder.(softdpuForwarder); ok {
		_, err := f.clearTranslated(openingPort)
		return err
	}
	return l.wire().gw.Do(func() error {
		count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err != nil {
			return err
		}
		most, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(count)) == strings.TrimSpace(string(most)) {
			return errors.New("the kernel's table of connections was full: make net.netfilter.nf_conntrack_max larger")
		}
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			return fmt.Errorf("flush the kernel's connections: %w", err)
		}
		return nil
	})
}
