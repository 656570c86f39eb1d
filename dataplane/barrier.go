package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A barrier stands in for a gateway that has not started yet: a table of nftables that drops whatever the
// kernel would forward. Unlike the sysctls it holds for devices that come later, whoever turns forwarding
// on, and nothing has to be put back. A gateway lowers it once XDP and guards stand.
const barrierTable = "softdpu-block"

// ErrGatewayBefore says that there is no need of a barrier, or no place for one.
var ErrGatewayBefore = errors.New("a gateway has been started in this network namespace: what it left holds; `softdpu detach` takes it off")

// Of linux/netfilter.h and its kin.
const (
	nfDrop        = 0
	nfAccept      = 1
	hookForward   = 2
	barrierBefore = -500 // of all chains that others may have: connection tracking sees nothing of it
)

// RaiseBarrier keeps the kernel from forwarding packets in the network namespace of the calling thread, but
// for those from bridge to bridge, and from bridging frames from or to the devices, until LowerBarrier.
// Without devices, which are not known then, it keeps it from forwarding anything. Where a gateway has
// been since the machine started it is refused with ErrGatewayBefore, unless forced: what that has left blocks, or hands the
// kernel packets that it is to forward. A kernel without nftables has its forwarding turned off instead,
// and why is returned. It needs CAP_NET_ADMIN.
func RaiseBarrier(devices []string, force bool) (without error, err error) {
	ns, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	defer ns.close()
	s, err := readState(stateFile(ns.id.Ino))
	if err != nil {
		return nil, err
	}
	if s.Plane != 0 && !force {
		return nil, ErrGatewayBefore
	}
	if without = nft(barrier(unix.NFPROTO_INET, nfDrop, devices)...); without != nil {
		if err := forwardNothing(); err != nil {
			return nil, errors.Join(without, err)
		}
		return fmt.Errorf("raise the barrier: %w", without), nil
	}
	// A kernel that cannot filter bridges may have none.
	if err := nft(barrier(unix.NFPROTO_BRIDGE, nfAccept, devices)...); err != nil && !noNFT(err) {
		return nil, fmt.Errorf("raise the barrier on bridges: %w", err)
	}
	return nil, nil
}

// LowerBarrier takes the barrier of the calling thread's network namespace away, and reports whether there
// was one.
func LowerBarrier() (found bool, err error) {
	for _, family := range []uint8{unix.NFPROTO_INET, unix.NFPROTO_BRIDGE} {
		err := nft(barrierMessage(unix.NFT_MSG_DELTABLE, family))
		found = found || err == nil
		if err != nil && !noNFT(err) {
			return found, fmt.Errorf("take away the table %s of nftables, which keeps the kernel from forwarding: %w", barrierTable, err)
		}
	}
	return found, nil
}

// forwardNothing turns the kernel's forwarding off: first the switches of all devices, which change the
// others, and that of new ones.
func forwardNothing() error {
	var errs []error
	for _, pattern := range []string{"ipv[46]/conf/all/*forwarding", "ipv[46]/conf/default/*forwarding", "ipv[46]/conf/*/*forwarding"} {
		files, _ := filepath.Glob(filepath.Join(procSysNet, pattern))
		for _, file := range files {
			switch filepath.Base(file) {
			case "forwarding", "force_forwarding": // and not mc_forwarding, which only the kernel writes
				name, _ := filepath.Rel(procSysNet, file)
				if err := writeSysctl(name, "0"); !errors.Is(err, fs.ErrNotExist) {
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// barrier is the whole table of a family, in place of the one before.
func barrier(family uint8, policy uint32, devices []string) []nftMessage {
	out := []nftMessage{
		barrierMessage(unix.NFT_MSG_NEWTABLE, family),
		barrierMessage(unix.NFT_MSG_DELTABLE, family),
		barrierMessage(unix.NFT_MSG_NEWTABLE, family),
		forwardChain(family, policy),
	}
	for _, device := range devices {
		for _, key := range []uint32{unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME} {
			out = append(out, forwardRule(family, append(nftIs(key, device), nftExpr("counter"), nftVerdict(nfDrop))...))
		}
	}
	if policy == nfAccept {
		return out
	}
	if len(devices) > 0 {
		// What goes from bridge to bridge, and where br_netfilter is loaded what stays on one, has nothing
		// to do with ports.
		bridges := append(nftIs(metaIIFKind, "bridge"), nftIs(metaOIFKind, "bridge")...)
		out = append(out, forwardRule(family, append(bridges, nftVerdict(nfAccept))...))
	}
	return append(out, forwardRule(family, nftExpr("counter"))) // of what the chain's policy drops
}

// barrierMessage makes the table of a family, or takes it away.
func barrierMessage(kind uint16, family uint8) nftMessage {
	return nftMessage{kind, 0, family, []*nl.RtAttr{nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(barrierTable))}}
}

// forwardChain makes the table's chain for what is forwarded.
func forwardChain(family uint8, policy uint32) nftMessage {
	before := int32(barrierBefore)
	return nftMessage{unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, family, []*nl.RtAttr{
		nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated(barrierTable)),
		nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated("forward")),
		nftNest(unix.NFTA_CHAIN_HOOK,
			nl.NewRtAttr(unix.NFTA_HOOK_HOOKNUM, nl.BEUint32Attr(hookForward)),
			nl.NewRtAttr(unix.NFTA_HOOK_PRIORITY, nl.BEUint32Attr(uint32(before)))),
		nl.NewRtAttr(unix.NFTA_CHAIN_POLICY, nl.BEUint32Attr(policy)),
		nl.NewRtAttr(unix.NFTA_CHAIN_TYPE, nl.ZeroTerminated("filter")),
	}}
}

// forwardRule makes a rule of that chain.
func forwardRule(family uint8, expressions ...*nl.RtAttr) nftMessage {
	return nftMessage{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND, family, []*nl.RtAttr{
		nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(barrierTable)),
		nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated("forward")),
		nftNest(unix.NFTA_RULE_EXPRESSIONS, expressions...),
	}}
}
