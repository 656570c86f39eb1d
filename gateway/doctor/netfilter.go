package doctor

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A chain of nftables that hangs on a hook. iptables of today is one of them too.
type chain struct {
	family, table, name string
	hook                uint32
	drops               bool   // what no rule accepts
	rules               uint32 // and who else refers to it
}

// Of linux/netfilter.h, and what they are called.
const hookForward = 2

var nftFamilies = map[uint8]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_BRIDGE: "bridge"}

// netfilter looks for rules that packets of allowed flows meet when XDP hands them to the kernel.
func (e *examination) netfilter() {
	chains, err := nftChains()
	if err != nil {
		return // a kernel without nftables, or nobody who may ask
	}
	for _, c := range chains {
		if c.hook != hookForward || c.family == "bridge" || !c.drops && c.rules == 0 {
			continue
		}
		severity, does := Info, "they may refuse them"
		if c.drops {
			severity, does = Warning, "what they do not accept is dropped"
		}
		e.find(severity, "netfilter", "accept there what the policy allows, or take the chain away",
			"packets of allowed flows that need the kernel (an unknown neighbour, fragmentation) meet the %d rules of `nft list chain %s %s %s`: %s. Connection tracking there knows nothing of what XDP forwards",
			c.rules, c.family, c.table, c.name, does)
	}
}

// nftChains lists the base chains of the network namespace of the calling thread.
func nftChains() (out []chain, err error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
	req.AddRawData([]byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0})
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	for _, m := range msgs {
		if len(m) < 4 {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[4:])
		if err != nil {
			return nil, fmt.Errorf("list chains: %w", err)
		}
		c, base := chain{family: nftFamilies[m[0]]}, false
		for _, a := range attrs {
			switch a.Attr.Type &^ unix.NLA_F_NESTED {
			case unix.NFTA_CHAIN_TABLE:
				c.table = unix.ByteSliceToString(a.Value)
			case unix.NFTA_CHAIN_NAME:
				c.name = unix.ByteSliceToString(a.Value)
			case unix.NFTA_CHAIN_POLICY:
				c.drops = number(a.Value) == 0 // NF_DROP
			case unix.NFTA_CHAIN_USE:
				c.rules = number(a.Value)
			case unix.NFTA_CHAIN_HOOK:
				base = true
				inner, err := nl.ParseRouteAttr(a.Value)
				if err != nil {
					return nil, fmt.Errorf("list chains: %w", err)
				}
				for _, h := range inner {
					if h.Attr.Type == unix.NFTA_HOOK_HOOKNUM {
						c.hook = number(h.Value)
					}
				}
			}
		}
		if base {
			out = append(out, c)
		}
	}
	return out, nil
}

// number reads a number in network order, 0 if there is none.
func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
