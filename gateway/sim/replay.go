package sim

import (
	"fmt"
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/flowtable"
)

// Replay sends the packets of a capture through a Sim. The capture does not say on which port a packet
// arrived, so the first packet of each conversation comes in by one port and its replies by another.
//
// It knows flows as their openers do, as a capture in front of a translating gateway does: what the other end
// of a translated flow sends is given the addresses that this end knows, before it arrives.
type Replay struct {
	sim           *Sim
	in            string // "" = by the route to the sender
	fallback      string
	conversations *conversations
	buf           []byte // of converted frames
	room          []byte // of frames that are changed before they arrive
}

// Outcome is what became of one packet of a capture.
type Outcome struct {
	Result
	Headers      Headers
	In           string // port of arrival
	Length       int    // of the frame as captured
	Truncated    bool   // the capture holds less than what was on the wire
	Anomalies    []string
	Conversation *Conversation
	Side         int // of the conversation's ends: who sent it
}

// NewReplay makes a Replay. In names the port of first packets; if it is empty, that is the port to
// which a route leads back to the sender, else the first port.
func NewReplay(s *Sim, in string) (*Replay, error) {
	if in != "" && s.ports[in] == nil {
		return nil, fmt.Errorf("replay capture: no port %q", in)
	}
	return &Replay{
		sim: s, in: in, fallback: s.byID[0].Name, conversations: newConversations(),
		buf: make([]byte, 0, MaxFrame), room: make([]byte, MaxFrame),
	}, nil
}

// Packet sends one packet. The outcome's slices are valid until the next call.
func (r *Replay) Packet(c *Captured) (Outcome, error) {
	frame, more, ok := c.Link.Ethernet(c.Data, r.buf)
	out := Outcome{Length: len(c.Data), Truncated: len(c.Data) < c.Original}
	if out.Truncated {
		out.Anomalies = append(out.Anomalies, "truncated")
	}
	if !ok {
		frame = nil // shorter than its link header: the packet path says malformed-ethernet
	}
	h := ReadHeaders(frame)
	out.Anomalies = append(out.Anomalies, wrongChecksums(frame, &h)...)
	out.Headers = h
	out.Conversation, out.Side = r.conversations.meet(frame, &h, c.Time, r.enter)
	out.Conversation.count(out.Side, &h, len(frame), c.Time)
	out.In = out.Conversation.In[out.Side]

	arrived := r.arrive(frame, out.In, &h, c.Original+more)
	if r.sim.translates {
		arrived = r.outside(arrived, out.Conversation, out.Side)
	}
	result, err := r.sim.Packet(c.Time, out.In, arrived)
	if err != nil {
		return out, fmt.Errorf("packet %d: %w", c.N, err)
	}
	if len(arrived) > len(frame) && result.Frame != nil {
		// What was added to a cut packet does not leave again.
		result.Frame = result.Frame[:max(0, len(result.Frame)-(len(arrived)-len(frame)))]
	}
	if result.Tolerated != bpf.XDPReasonREASON_NONE && result.Tolerated != bpf.XDPReasonREASON_MALFORMED_IPV4CHECKSUM {
		out.Anomalies = append(out.Anomalies, result.Tolerated.String())
	}
	if result.NAT != nil && result.Verdict == Forward && out.Side == out.Conversation.Source {
		out.Conversation.In[1-out.Side] = result.Out // where its destination lives after all
	}
	out.Result = result
	return out, nil
}

// Conversations returns those met so far, in the order of their first packets.
func (r *Replay) Conversations() []*Conversation { return r.conversations.all }

// arrive makes the frame that reaches the port: routed ports get it addressed to themselves, and what
// the capture cut off behind the headers is filled up with zeros, since the packet path holds a
// packet's length against its bytes and looks at headers alone.
func (r *Replay) arrive(frame []byte, in string, h *Headers, original int) []byte {
	at := r.sim.ports[in]
	readdress := at.peer == nil && len(frame) >= ethernetLen && frame[0]&1 == 0
	fill := len(frame) < original && (h.Whole || h.Later)
	if !readdress && !fill {
		return frame
	}
	room := r.room[:copy(r.room, frame)]
	if readdress {
		copy(room, at.MAC[:])
	}
	if fill {
		n := len(room)
		room = r.room[:min(original, len(r.room))]
		clear(room[n:])
	}
	return room
}

// outside gives a packet of the other end of a translated flow the addresses that this end knows.
func (r *Replay) outside(frame []byte, c *Conversation, side int) []byte {
	t := flowtable.Tuple{Family: c.Family, Proto: c.Proto, Src: address(c.Addr[side]), Dst: address(c.Addr[1-side])}
	switch c.Proto {
	case packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMP, packet.ProtoICMPv6:
		t.SrcPort, t.DstPort = c.Port[side], c.Port[1-side]
	}
	f, ok := r.sim.Table().Lookup(t)
	if !ok || f.NAT == nil || reversed(f.Tuple) != t {
		return frame
	}
	room := r.room[:copy(r.room, frame)]
	out := reversed(f.NAT.Outer)
	if !flowtable.Translate(room, &out) {
		return frame
	}
	return room
}

func reversed(t flowtable.Tuple) flowtable.Tuple {
	t.Src, t.Dst, t.SrcPort, t.DstPort = t.Dst, t.Src, t.DstPort, t.SrcPort
	return t
}

// enter gives a new conversation the ports by which its ends' packets arrive.
func (r *Replay) enter(c *Conversation) {
	in := r.in
	if in == "" {
		if in = r.portOf(c.Addr[0]); in == "" {
			in = r.fallback
		}
	}
	c.In = [2]string{in, r.other(in, c.Addr[1])}
}

// other returns the port of the replies: the peer, or where the route leads, or the other of two.
func (r *Replay) other(in string, dst netip.Addr) string {
	at := r.sim.ports[in]
	if at.peer != nil {
		return at.peer.Name
	}
	if port := r.portOf(dst); port != "" {
		return port
	}
	if len(r.sim.byID) == 2 {
		return r.sim.byID[2-at.entry.Id].Name
	}
	return in
}

func (r *Replay) portOf(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	if port := r.sim.Lookup(a); r.sim.ports[port] != nil {
		return port
	}
	return ""
}

// address is an address as package packet has it.
func address(a netip.Addr) (p packet.Addr) {
	copy(p[:], a.AsSlice())
	return p
}
