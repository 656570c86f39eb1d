package firewall

import (
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// Ids of the rules that every compiled policy has.
const (
	RuleNone       = uint32(bpf.XDPBuiltinRuleRULE_NONE)        // no rule matched
	RuleManagement = uint32(bpf.XDPBuiltinRuleRULE_MANAGEMENT)  // "builtin-management"
	RuleDHCPClient = uint32(bpf.XDPBuiltinRuleRULE_DHCP_CLIENT) // "builtin-dhcp-client"
	RuleARP        = uint32(bpf.XDPBuiltinRuleRULE_ARP)         // "builtin-arp": no entries, counted by the executors
	RuleND         = uint32(bpf.XDPBuiltinRuleRULE_ND)          // "builtin-nd": likewise
	RuleICMPErrors = uint32(bpf.XDPBuiltinRuleRULE_ICMP_ERRORS) // "builtin-icmp-errors": likewise
	RuleReplies    = uint32(bpf.XDPBuiltinRuleRULE_REPLIES)     // "builtin-replies": likewise
	RuleFirst      = uint32(bpf.XDPBuiltinRuleRULE_FIRST)       // first id of the policy's rules
)

// Ref is a name with the place where it was written.
type Ref struct {
	Name string
	Pos  Pos
}

// Management is what a policy must not cut off: services of the gateway itself, from zones.
// The zero value is none.
type Management struct {
	From     []Ref // zones of the policy
	Services []Ref // names of services of the policy, or literals such as tcp/22
	// Override puts these allows behind anti-spoofing and the policy's rules instead of before them.
	Override bool
}

// CompileOptions are what a policy's meaning depends on beside its text.
type CompileOptions struct {
	Now        time.Time // rules that have expired by then do not match
	Management Management
	// Ports are the gateway's port names. Nil: every name that a zone uses is taken to exist.
	Ports []string
	// OwnNamePorts gives a zone none of whose ports exist the port of its own name, if there is one;
	// ports that do not exist are then no error.
	OwnNamePorts bool
	// After is the result for the policy before: what it has of rules that are the same is taken over, which makes no
	// difference to the result but takes less time. Nil: there is none.
	After *Compiled
	// Previous are the identities of the policy that this one follows; nil: it is the first, and its
	// rules are numbered in its order, its zones in the order of their names.
	Previous *Identities
}

// Compiled is a policy ready to be built into a classifier. It is immutable.
type Compiled struct {
	Rules   []RuleInfo           // index = rule id; those of earlier policies are Gone, ids without a Name free
	Order   []uint32             // ids of the policy's rules in its order, without the built-in ones
	Special []uint32             // those of them that mirror, clamp, bypass or expire
	Zones   []string             // index = zone id: "", "host", then the policy's; "" = an id that it does not use
	Ports   []PortZone           // in order of port and VLAN
	Entries []flowtable.ACLEntry // in evaluation order
	// What the policy translates, without a nat rule that can match nil. Its pipes are numbered as if no other
	// stood before them: NATBehind.
	NAT                         *flowtable.NAT
	NATRules                    []NATRuleInfo        // index = nat rule id, [0] is none; those of earlier policies are Gone, ids without a Name free
	NATOrder                    [][]uint32           // ids of the policy's nat rules, in its order
	NATDestinations, NATSources []flowtable.ACLEntry // in evaluation order; a verdict's rule is a nat rule's id, 0 of what is exempt
	MACs                        map[MAC]uint16       // identity of each MAC that the policy names, from 1
	Tests                       []Test
	Warnings                    Errors // of the policy and of its compilation
	// NextExpiry is when the earliest rule expires that had not at compile time; zero: none will.
	NextExpiry time.Time
	// Identities are for the policy that follows this one.
	Identities *Identities

	source compiledFrom
}

// RuleInfo is what messages and counters say of a rule.
type RuleInfo struct {
	*Rule          // never nil; without a name if the id is free. Of rule 0, "none", and of built-in ones it says no more than messages need
	File    string // "" for built-in rules and rule 0
	Line    int
	Builtin bool
	Expired bool
	Gone    bool // of an earlier policy: flows may still bear it
}

// PortZone says which zone a frame belongs to.
type PortZone struct {
	Port string
	VLAN uint16 // outer VLAN id, 0 = untagged
	Zone uint8
}
