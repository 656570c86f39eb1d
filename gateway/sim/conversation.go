package sim

import (
	"bytes"
	"net/netip"

	"github.com/softdpu/softdpu/dataplane/packet"
)

// Conversation is what two ends say to each other: one flow of the capture, also if no packet of it
// was allowed. Index 0 is the end that spoke first.
type Conversation struct {
	ID      int   // from 1, in the order of the capture
	Family  uint8 // 4 or 6; 0 = no IP
	Proto   uint8
	VLAN    uint16
	Addr    [2]netip.Addr
	Port    [2]uint16 // ICMP queries: identifier of the requester, 0
	Ports   bool      // Port is of TCP, UDP or SCTP
	Packets [2]uint64
	Bytes   [2]uint64 // IP total lengths
	First   uint64    // ns
	Last    uint64
	// Source is the index of the end that opened it: who sent the SYN, else who spoke first.
	Source int
	In     [2]string // ports by which the ends' packets arrive

	swapped bool // what is not IP: the first sender is the key's hi
	fins    [2]bool
	closed  bool
}

// conversationKey names a conversation from either side: ends in canonical order.
type conversationKey struct {
	lo, hi         netip.Addr
	loPort, hiPort uint16
	vlan           uint16
	proto          uint8
	ethertype      uint16 // of what is not IP
	loMAC, hiMAC   [6]byte
}

// datagramKey names a fragmented datagram.
type datagramKey struct {
	src, dst netip.Addr
	id       uint32
	proto    uint8
	vlan     uint16
}

// conversations finds for each packet what it belongs to.
type conversations struct {
	byKey     map[conversationKey]*Conversation
	all       []*Conversation
	fragments map[datagramKey]fragmentOf
}

// fragmentOf is where the later fragments of a datagram belong.
type fragmentOf struct {
	of   *Conversation
	side int
}

func newConversations() *conversations {
	return &conversations{byKey: make(map[conversationKey]*Conversation), fragments: make(map[datagramKey]fragmentOf)}
}

// ends is a packet's conversation seen from its sender.
type ends struct {
	key     conversationKey
	src     netip.Addr
	dst     netip.Addr
	srcPort uint16
	dstPort uint16
	swapped bool // the sender is the key's hi
}

// meet returns the conversation that a packet belongs to, and which end sent it. A new one gets its
// ports from enter.
func (c *conversations) meet(frame []byte, h *Headers, now uint64, enter func(*Conversation)) (*Conversation, int) {
	d := datagramKey{h.Src, h.Dst, h.FragmentID, h.Proto, h.VLAN}
	if h.Later {
		if f, ok := c.fragments[d]; ok {
			return f.of, f.side
		}
	}
	e := endsOf(frame, h)
	if h.isICMP() && h.icmp() == packet.Error {
		if in, ok := h.quoted(frame); ok {
			// The error travels towards the inner sender, as what the other end sends does.
			about := endsOf(nil, &in)
			if found := c.byKey[about.key]; found != nil {
				return found, 1 - found.side(&about)
			}
		}
	}
	found := c.byKey[e.key]
	opens := h.Proto == packet.ProtoTCP && h.Whole && h.TCPFlags&(packet.SYN|packet.ACK|packet.RST) == packet.SYN
	if found == nil || found.closed && opens {
		found = &Conversation{
			ID: len(c.all) + 1, Family: h.Family, Proto: h.Proto, VLAN: h.VLAN, Ports: h.Ports,
			Addr: [2]netip.Addr{e.src, e.dst}, Port: [2]uint16{e.srcPort, e.dstPort}, First: now, swapped: e.swapped,
		}
		if h.Proto == packet.ProtoTCP && h.Whole && h.TCPFlags&(packet.SYN|packet.ACK) == packet.SYN|packet.ACK {
			found.Source = 1 // the answer to a SYN that the capture does not have
		}
		enter(found)
		c.byKey[e.key] = found
		c.all = append(c.all, found)
	}
	side := found.side(&e)
	if h.Fragment && !h.Later {
		c.fragments[d] = fragmentOf{found, side}
	}
	return found, side
}

// side returns which end of the conversation sends.
func (c *Conversation) side(e *ends) int {
	if c.Family == 0 {
		if e.swapped == c.swapped {
			return 0
		}
		return 1
	}
	if e.src == c.Addr[0] && e.srcPort == c.Port[0] {
		return 0
	}
	return 1
}

// count adds a packet of an end, and notes a connection's end.
func (c *Conversation) count(side int, h *Headers, frame int, now uint64) {
	c.Packets[side]++
	if h.Family != 0 {
		frame = h.Length
	}
	c.Bytes[side] += uint64(frame)
	c.Last = max(c.Last, now)
	if h.Proto == packet.ProtoTCP && h.Whole {
		c.fins[side] = c.fins[side] || h.TCPFlags&packet.FIN != 0
		c.closed = c.closed || h.TCPFlags&packet.RST != 0 || c.fins[0] && c.fins[1]
	}
}

func endsOf(frame []byte, h *Headers) (e ends) {
	e.key.vlan, e.key.proto = h.VLAN, h.Proto
	if h.Family == 0 {
		e.beside(frame, h)
		return e
	}
	e.src, e.dst = h.Src, h.Dst
	if h.Ports {
		e.srcPort, e.dstPort = h.SrcPort, h.DstPort
	} else if h.isICMP() {
		switch h.icmp() {
		case packet.Query:
			e.srcPort = h.ICMPID
		case packet.Reply:
			e.dstPort = h.ICMPID
		}
	}
	e.key.lo, e.key.loPort, e.key.hi, e.key.hiPort = e.src, e.srcPort, e.dst, e.dstPort
	if order := e.src.Compare(e.dst); order > 0 || order == 0 && e.srcPort > e.dstPort {
		e.key.lo, e.key.loPort, e.key.hi, e.key.hiPort = e.key.hi, e.key.hiPort, e.key.lo, e.key.loPort
		e.swapped = true
	}
	return e
}

// beside makes the ends of a frame that is not IP: stations, but for ARP the hosts that it speaks of,
// because its questions go to everybody.
func (e *ends) beside(frame []byte, h *Headers) {
	e.key.ethertype = h.EtherType
	if h.EtherType == etherARP && len(frame) >= h.L3+28 {
		e.src, e.dst = netip.AddrFrom4([4]byte(frame[h.L3+14:])), netip.AddrFrom4([4]byte(frame[h.L3+24:]))
		e.key.lo, e.key.hi = e.src, e.dst
		if e.src.Compare(e.dst) > 0 {
			e.key.lo, e.key.hi, e.swapped = e.dst, e.src, true
		}
	} else if len(frame) >= 12 {
		e.key.loMAC, e.key.hiMAC = [6]byte(frame[6:]), [6]byte(frame)
		if bytes.Compare(e.key.loMAC[:], e.key.hiMAC[:]) > 0 {
			e.key.loMAC, e.key.hiMAC, e.swapped = e.key.hiMAC, e.key.loMAC, true
		}
	}
}
