package firewall

import (
	"crypto/sha256"
	"net"
	"net/netip"
	"time"

	"github.com/softdpu/softdpu/flowtable"
)

// Names that a policy cannot declare.
const (
	NameHost = "host" // the gateway itself
	NameAny  = "any"
	NameNone = "none" // no rule, in a test's expectation
)

// Policy is what the operator wrote, with every name resolved and every value checked. Slices are in
// the order of the files.
type Policy struct {
	Files []string // as read, in order, without the files of sets
	// SHA-256 of every file as it was read, those of sets too, by the name it was read under.
	Sums      map[string][sha256.Size]byte
	Zones     []Zone
	Sets      []Set
	Workloads []Workload
	Services  []Service
	NAT       []NATRule
	Rules     []*Rule // what a later reading has as well is the same Rule: they must not be changed
	Tests     []Test
	Warnings  Errors // what Load noticed and does not forbid

	used    map[string]bool // "set x", "workload x", "service x": named by a rule, a nat rule or a test
	texts   [][]byte        // of Files
	places  []rulePlace     // of the names of Rules
	special []int32         // indices of the Rules that are
}

// Zone is a part of the network, by the ports and VLANs that its frames arrive on.
type Zone struct {
	Name        string
	Ports       []string
	VLANs       []uint16              // outer VLAN ids; empty: the untagged frames of Ports
	Addresses   []flowtable.AddrRange // that may come from here; empty: any
	Untrusted   bool                  // management from here is warned of
	Description string
	Pos         Pos
	PortPos     []Pos // of Ports, one each
}

// SetType says what a set holds.
type SetType string

const (
	SetPrefix SetType = "prefix"
	SetPort   SetType = "port"
	SetName   SetType = "name"
	SetMAC    SetType = "mac"
)

// Set is a list of one type. Only the field of its type is used. An empty set matches nothing.
type Set struct {
	Name        string
	Type        SetType
	Prefixes    []flowtable.AddrRange
	Ports       []flowtable.U16Range
	Names       []string
	MACs        []MAC
	File        string // it was read from, "" if inline
	Description string
	Pos         Pos

	lines []int32 // of the entries, in File or else in the policy's; 0: added at runtime
}

// MAC is an Ethernet address.
type MAC [6]byte

// String renders m with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Workload is who speaks: it matches an endpoint when every field that is not empty does; inside a
// list one is enough.
type Workload struct {
	Name        string
	Zones       []string
	Addresses   []flowtable.AddrRange
	MACs        []MAC // of the sender's frames; cannot be asked of a destination
	Labels      map[string]string
	Description string
	Pos         Pos
}

// Service is a name for alternatives of protocol and ports.
type Service struct {
	Name    string
	Matches []ServiceMatch
	Pos     Pos

	at []Pos // of Matches
}

// ServiceMatch is a protocol with ports; it matches when every field does.
type ServiceMatch struct {
	Proto  flowtable.U8Range
	Family uint8 // 4, 6, or 0 for both
	// Source and destination ports, alternatives; ICMP and ICMPv6 have type << 8 | code as DstPorts.
	// Never empty where a set has entries; {0, 65535} is any. An empty list matches nothing.
	SrcPorts, DstPorts []flowtable.U16Range
	Text               string // as written

	src, dst *portList // where sets are among it, what SrcPorts and DstPorts were made of
}

// Selector says which endpoint a rule speaks of. It matches when every field that is given does;
// inside a list one is enough. The zero value with Any matches everything, the gateway included.
type Selector struct {
	Any       bool
	Zones     []string // "host" among them is the gateway itself
	Addresses []flowtable.AddrRange
	Sets      []string // of type prefix or mac
	Workloads []string
	Labels    map[string]string // a workload that has all of these
}

// Action is what a rule does.
type Action uint8

const (
	Allow Action = iota + 1
	Deny
	Reject
)

// Rule is one rule; the first that matches decides. Where it stands the policy knows (Policy.RulePos).
type Rule struct {
	Name        string
	Description string
	Owner       string
	From, To    Selector
	Services    []ServiceMatch // alternatives; empty: any
	Action      Action
	Log         bool
	Audit       bool      // mode: audit, counted and logged only; evaluation goes on
	Expires     time.Time // first moment at which it does not match any more; zero: never
	Midstream   bool      // TCP may be picked up without its SYN
	Bypass      bool      // on_failure: bypass, where no worker takes what needs one; else it is dropped
	Mirror      Mirror
	MSSClamp    uint16 // most that SYNs over IPv4 may ask for, 20 less over IPv6; 0: whatever they do
}

// special reports whether the rule asks for more than a verdict for ever.
func (r *Rule) special() bool {
	return !r.Expires.IsZero() || r.Mirror.Port != "" || r.MSSClamp != 0 || r.Bypass
}

// Expired reports whether the rule does not match any more at now.
func (r *Rule) Expired(now time.Time) bool { return !r.Expires.IsZero() && !now.Before(r.Expires) }

// Test is a packet and the rule that must decide it.
type Test struct {
	Name   string
	Packet TestPacket
	Expect TestExpect
	Pos    Pos
}

// TestPacket describes the opening packet of a flow.
type TestPacket struct {
	In, Out       string // port, or zone; Out may be "host", or "" where routes are known
	VLAN, OutVLAN uint16 // outer VLAN id, 0 = untagged
	Src, Dst      netip.Addr
	MAC           MAC // of the source; zero: none that a policy names
	Proto         uint8
	SrcPort       uint16
	DstPort       uint16 // ICMP and ICMPv6: type << 8 | code
	Pos           Pos
	InPos, OutPos Pos
}

// TestVerdict is what a test expects.
type TestVerdict string

const (
	VerdictAllow  TestVerdict = "allow"
	VerdictDeny   TestVerdict = "deny" // by a rule or because none matched
	VerdictReject TestVerdict = "reject"
	VerdictDrop   TestVerdict = "drop" // spoofed: refused before any rule
)

// TestExpect is what must come out.
type TestExpect struct {
	Verdict TestVerdict
	Rule    string // "" = not asked, "none" = no rule matched
	NAT     TestNAT
	Pos     Pos
}

// TestNAT is what must become of an allowed packet. The zero value asks nothing.
type TestNAT struct {
	None       bool           // it is not translated
	Masquerade bool           // its source becomes the address of the port by which it leaves
	Src        netip.Addr     // its source becomes this one; of a pool, any of it does
	Dst        netip.AddrPort // its destination becomes this one; of several servers, any that takes new flows does; port 0: not asked
	Pos        Pos
}
