package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nftTimeout is how long the kernel may take to answer. It may have to load a module.
const nftTimeout = 10 * time.Second

// Of linux/netfilter/nf_tables.h: what package unix lacks.
const (
	metaIIFKind = 26
	metaOIFKind = 27
)

// An nftMessage is one message to nftables.
type nftMessage struct {
	kind, flags uint16 // NFT_MSG_*, and NLM_F_* beside REQUEST and ACK
	family      uint8
	attributes  []*nl.RtAttr
}

// nft has nftables do what the messages say, all or nothing, in the network namespace of the calling
// thread.
func nft(messages ...nftMessage) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(nftTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return fmt.Errorf("set time-out of netlink socket: %w", err)
	}

	// The begin and the end of a transaction name the subsystem in network order.
	batch := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES)
	out := netlinkMessage(nil, unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, batch)
	for i := range messages {
		m := &messages[i]
		body := []byte{m.family, unix.NFNETLINK_V0, 0, 0}
		for _, a := range m.attributes {
			body = append(body, a.Serialize()...)
		}
		out = netlinkMessage(out, unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, unix.NLM_F_REQUEST|unix.NLM_F_ACK|m.flags, body)
	}
	out = netlinkMessage(out, unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, batch)
	if err := unix.Sendto(fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask nftables: %w", err)
	}

	// One answer to each message, or one to the begin where there is no nftables.
	b := make([]byte, 64<<10)
	for answers := 0; answers < len(messages); {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return fmt.Errorf("hear from nftables: %w", err)
		}
		for rest := b[:n]; len(rest) >= unix.SizeofNlMsghdr; answers++ {
			length := binary.NativeEndian.Uint32(rest)
			if length < unix.SizeofNlMsghdr+4 || int(length) > len(rest) || binary.NativeEndian.Uint16(rest[4:]) != unix.NLMSG_ERROR {
				return errors.New("hear from nftables: an answer that is none")
			}
			if errno := int32(binary.NativeEndian.Uint32(rest[unix.SizeofNlMsghdr:])); errno != 0 {
				return unix.Errno(-errno)
			}
			rest = rest[min(len(rest), int(length+3)&^3):]
		}
	}
	return nil
}

// noNFT reports whether nft failed because the kernel has no such thing, and so nothing of it.
func noNFT(err error) bool {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// netlinkMessage appends a message; body is a multiple of 4 bytes.
func netlinkMessage(b []byte, kind, flags uint16, body []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = append(b, make([]byte, 8)...) // sequence number, port
	return append(b, body...)
}

func nftNest(kind int, inner ...*nl.RtAttr) *nl.RtAttr {
	a := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	for _, i := range inner {
		a.AddChild(i)
	}
	return a
}

// nftExpr is one expression of a rule.
func nftExpr(name string, data ...*nl.RtAttr) *nl.RtAttr {
	return nftNest(unix.NFTA_LIST_ELEM, nl.NewRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated(name)), nftNest(unix.NFTA_EXPR_DATA, data...))
}

// nftIs goes on with a rule only if a packet's device has that name or kind: the key is
// NFT_META_IIFNAME or OIFNAME, or metaIIFKind or metaOIFKind.
func nftIs(key uint32, value string) []*nl.RtAttr {
	b := make([]byte, unix.IFNAMSIZ) // as long as a register; names and kinds are filled with zeros
	copy(b, value)
	return []*nl.RtAttr{
		nftExpr("meta",
			nl.NewRtAttr(unix.NFTA_META_KEY, nl.BEUint32Attr(key)),
			nl.NewRtAttr(unix.NFTA_META_DREG, nl.BEUint32Attr(unix.NFT_REG_1))),
		nftExpr("cmp",
			nl.NewRtAttr(unix.NFTA_CMP_SREG, nl.BEUint32Attr(unix.NFT_REG_1)),
			nl.NewRtAttr(unix.NFTA_CMP_OP, nl.BEUint32Attr(unix.NFT_CMP_EQ)),
			nftNest(unix.NFTA_CMP_DATA, nl.NewRtAttr(unix.NFTA_DATA_VALUE, b))),
	}
}

// nftVerdict ends a rule: NF_DROP or NF_ACCEPT.
func nftVerdict(code uint32) *nl.RtAttr {
	return nftExpr("immediate",
		nl.NewRtAttr(unix.NFTA_IMMEDIATE_DREG, nl.BEUint32Attr(unix.NFT_REG_VERDICT)),
		nftNest(unix.NFTA_IMMEDIATE_DATA, nftNest(unix.NFTA_DATA_VERDICT, nl.NewRtAttr(unix.NFTA_VERDICT_CODE, nl.BEUint32Attr(code)))))
}
