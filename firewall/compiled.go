package firewall

import (
	"time"

	"github.com/softdpu/softdpu/flowtable"
)

// Ids of the rules that every compiled policy has.
const (
	RuleNone       uint32 = iota // no rule matched
	RuleManagement               // "builtin-management"
	RuleDHCPClient               // "builtin-dhcp-client"
	RuleARP                      // "builtin-arp": no entries, counted by the executors
	RuleND                       // "builtin-nd": likewise
	RuleICMPErrors               // "builtin-icmp-errors": likewise
	RuleReplies                  // "builtin-replies": likewise
	RuleFirst                    // first rule of the policy; the others follow in its order
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
	// Override puts these allows behind the policy's rules instead of before them.
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
}

// Compiled is a policy ready to be built into a classifier. It is immutable.
type Compiled struct {
	Rules    []RuleInfo           // index = rule id
	Zones    []string             // index = zone id: "", "host", then the policy's in name order
	Ports    []PortZone           // in order of port and VLAN
	Entries  []flowtable.ACLEntry // in evaluation order
	MACs     map[MAC]uint16       // identity of each MAC that the rules name, from 1
	Tests    []Test
	Warnings Errors // of the policy and of its compilation
	// NextExpiry is when the earliest rule expires that had not at compile time; zero: none will.
	NextExpiry time.Time
}

// RuleInfo is what messages and counters say of a rule.
type RuleInfo struct {
	Name        string // rule 0: "none"
	File        string // "" for built-in rules and rule 0
	Line        int
	Action      Action // 0 for rule 0
	Log         bool
	Audit       bool
	Builtin     bool
	Expired     bool
	Description string
	Owner       string
}

// PortZone says which zone a frame belongs to.
type PortZone struct {
	Port string
	VLAN uint16 // outer VLAN id, 0 = untagged
	Zone uint8
}
