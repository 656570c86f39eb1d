package testenv

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// An ICMPError is an ICMP or ICMPv6 error message that came back.
type ICMPError struct {
	From       netip.Addr
	Type, Code uint8
	MTU        uint32 // of packet-too-big and fragmentation-needed, else 0
}

// Error implements error.
func (e ICMPError) Error() string {
	s := fmt.Sprintf("%s says ICMP %d/%d", e.From, e.Type, e.Code)
	if e.MTU != 0 {
		s += fmt.Sprintf(" (MTU %d)", e.MTU)
	}
	return s
}

// An icmpFamily holds what differs between ICMP and ICMPv6.
type icmpFamily struct {
	network, any   string // of the raw socket
	echo, reply    uint8  // types
	level          int    // of socket options
	hops, discover int    // options: TTL, path MTU discovery
	probeDF        int    // value of discover: never fragment, and obey what the path says
	mtu            int    // option: path MTU of a connected socket
	headers        int    // bytes of IP and UDP headers
}

func familyOf(a netip.Addr) icmpFamily {
	if a.Unmap().Is4() {
		return icmpFamily{"ip4:icmp", "0.0.0.0", 8, 0, unix.IPPROTO_IP, unix.IP_TTL,
			unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, unix.IP_MTU, 20 + 8}
	}
	return icmpFamily{"ip6:ipv6-icmp", "::", 128, 129, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS,
		unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, unix.IPV6_MTU, 40 + 8}
}

// option sets a socket option of the connection.
func option(c any, level, name, value int) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	if err := raw.Control(func(fd uintptr) { setErr = unix.SetsockoptInt(int(fd), level, name, value) }); err != nil {
		return err
	}
	return setErr
}

func getOption(c any, level, name int) (value int, err error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var getErr error
	if err := raw.Control(func(fd uintptr) { value, getErr = unix.GetsockoptInt(int(fd), level, name) }); err != nil {
		return 0, err
	}
	return value, getErr
}

// echoRequest builds an echo request. The kernel fills in ICMPv6's checksum, which covers addresses.
func (f icmpFamily) echoRequest(id, seq uint16, payload []byte) []byte {
	b := make([]byte, 8, 8+len(payload))
	b[0] = f.echo
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	b = append(b, payload...)
	if f.level == unix.IPPROTO_IP {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

// checksum is the Internet checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// parseError takes an ICMP message apart if it is an error: the protocol of the packet inside, and
// that packet's transport header, of at least 8 bytes. Extension headers inside are not followed:
// what is sent here has none.
func (f icmpFamily) parseError(msg []byte, from net.Addr) (e ICMPError, proto uint8, transport []byte, ok bool) {
	if len(msg) < 8 {
		return e, 0, nil, false
	}
	e = ICMPError{Type: msg[0], Code: msg[1], From: addrOf(from)}
	inner := msg[8:]
	if f.level == unix.IPPROTO_IP {
		if e.Type != 3 && e.Type != 11 && e.Type != 12 || len(inner) < 20 {
			return e, 0, nil, false
		}
		if e.Type == 3 && e.Code == 4 {
			e.MTU = uint32(binary.BigEndian.Uint16(msg[6:]))
		}
		header := int(inner[0]&15) * 4
		if len(inner) < header+8 {
			return e, 0, nil, false
		}
		return e, inner[9], inner[header:], true
	}
	if e.Type < 1 || e.Type > 4 || len(inner) < 40+8 {
		return e, 0, nil, false
	}
	if e.Type == 2 {
		e.MTU = binary.BigEndian.Uint32(msg[4:])
	}
	return e, inner[6], inner[40:], true
}

func addrOf(a net.Addr) netip.Addr {
	if ip, ok := a.(*net.IPAddr); ok {
		addr, _ := netip.AddrFromSlice(ip.IP)
		return addr.Unmap()
	}
	return netip.Addr{}
}
