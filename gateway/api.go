package gateway

import (
	"net/netip"
	"time"
)

// Flow is one connection as GET /v1/flows and `softdpu flows` show it.
type Flow struct {
	Family       uint8      `json:"family"` // 4 or 6
	Proto        string     `json:"proto"`
	SrcIP        netip.Addr `json:"src_ip"` // of the opening packet, as are the next
	SrcPort      uint16     `json:"src_port"`
	DestIP       netip.Addr `json:"dest_ip"`
	DestPort     uint16     `json:"dest_port"`
	From         string     `json:"from"` // zones
	To           string     `json:"to"`
	State        string     `json:"state"`
	Revoked      bool       `json:"revoked"` // no longer allowed: a drop until its time-out
	Tier         string     `json:"tier"`
	WhyNotHigher string     `json:"why_not_higher"`
	Rule         string     `json:"rule"`
	File         string     `json:"file"` // "" for built-in rules
	Line         int        `json:"line"`
	Epoch        uint32     `json:"epoch"`
	Packets      [2]uint64  `json:"packets"` // opener's direction first
	Bytes        [2]uint64  `json:"bytes"`   // of IP packets
	AgeS         float64    `json:"age_s"`
	IdleS        float64    `json:"idle_s"`
	CommunityID  string     `json:"community_id"`  // "" where the flow table does not keep what it is made of
	NAT          *FlowNAT   `json:"nat,omitempty"` // absent: it is not translated
}

// Drop is what was dropped for one reason.
type Drop struct {
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // of frames
	// Unlogged counts the events that were left out, where events.drops asks for them: by the limit, or
	// because the ring was full.
	Unlogged uint64 `json:"unlogged"`
}

// Pass is what went to the kernel's stack for one cause.
type Pass struct {
	Cause   string `json:"cause"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // of frames
}

// RuleStatus is a rule of the policy and what it counted.
type RuleStatus struct {
	Name        string      `json:"name"` // "none" for what no rule matched
	Action      string      `json:"action"`
	Mode        string      `json:"mode"` // enforce or audit
	File        string      `json:"file"`
	Line        int         `json:"line"`
	Packets     uint64      `json:"packets"`  // of flows that it allowed, or that it refused
	Bytes       uint64      `json:"bytes"`    // of IP packets
	Flows       uint64      `json:"flows"`    // that it allows now
	Judged      uint64      `json:"judged"`   // times that it decided, or in audit mode would have
	LastHit     *time.Time  `json:"last_hit"` // of the last of them
	Log         bool        `json:"log"`
	Unlogged    uint64      `json:"unlogged"` // events that the limit left out
	Builtin     bool        `json:"builtin"`
	Expired     bool        `json:"expired"`
	Mirror      *RuleMirror `json:"mirror"`     // null: no packets are mirrored
	OnFailure   string      `json:"on_failure"` // of rules that allow, else ""
	MSSClamp    uint16      `json:"mss_clamp"`  // most that SYNs over IPv4 may ask for; 0: whatever they do
	Description string      `json:"description,omitempty"`
	Owner       string      `json:"owner,omitempty"`
}

// Status is what GET /v1/status answers.
type Status struct {
	Version string       `json:"version"`
	PID     int          `json:"pid"`
	Started time.Time    `json:"started"`
	Kernel  string       `json:"kernel"`
	Config  string       `json:"config"`
	Start   Inheritance  `json:"start"`   // what it has of the run before
	Program string       `json:"program"` // tag of the running XDP program
	Policy  PolicyStatus `json:"policy"`
	Differs []FileStatus `json:"differs"` // files that are not as they were loaded
	Ports   []PortStatus `json:"ports"`
	Table   TableStatus  `json:"table"`
	// Fragments is what became of later fragments that came before their first.
	Fragments FragmentStatus `json:"fragments"`
	Events    EventStatus    `json:"events"`
	Workers   WorkersSummary `json:"workers"`
	Notes     []string       `json:"notes"` // what runs below its best, and why
	// Capture is the one that runs; null if none does.
	Capture *CaptureStatus `json:"capture"`
}

// PolicyStatus is the running policy.
type PolicyStatus struct {
	Path       string     `json:"path"`
	Files      []string   `json:"files"`
	Hash       string     `json:"hash"` // SHA-256 over all files, those of sets too
	Loaded     time.Time  `json:"loaded"`
	Epoch      uint32     `json:"epoch"`
	Rules      int        `json:"rules"` // without built-in ones
	NAT        int        `json:"nat"`   // rules of translation
	Zones      []string   `json:"zones"`
	Tests      int        `json:"tests"` // all passed
	NextExpiry *time.Time `json:"next_expiry"`

	Entry        int                `json:"entry"`         // of the history, 0 if it is not in it
	Unconfirmed  *UnconfirmedStatus `json:"unconfirmed"`   // it comes back by itself
	RolledBack   *RolledBackStatus  `json:"rolled_back"`   // it is not that of the files
	HistoryError string             `json:"history_error"` // why the history cannot be relied on, "" if it can
	// RuntimeEntries counts entries that sets were given at runtime, and those taken out of them there.
	RuntimeEntries int `json:"runtime_entries"`
}

// PortStatus is a port as it runs.
type PortStatus struct {
	Name         string            `json:"name"`
	Device       string            `json:"device"`
	Kind         string            `json:"kind"`
	Driver       string            `json:"driver"`
	Mode         string            `json:"mode"` // native or generic
	WhyNotNative string            `json:"why_not_native"`
	Guard        string            `json:"guard"` // how the egress guard hangs there
	Zone         string            `json:"zone"`  // of untagged frames, "" for none
	VLANs        map[uint16]string `json:"vlans,omitempty"`
	Peer         string            `json:"peer"` // inline, "" for routed
	MAC          string            `json:"mac"`
	MTU          int               `json:"mtu"`
	MSSClamp     uint16            `json:"mss_clamp"` // most that SYNs over IPv4 may ask for; 0: whatever they do
	Up           bool              `json:"up"`
	Since        time.Time         `json:"since"`   // up or down, or missing
	Missing      string            `json:"missing"` // why the port has no device now, "" if it has one
	Notes        []string          `json:"notes"`
}

// TableStatus is the flow table. It holds what was created less what was evicted, aged and killed. A
// translated flow takes two of its FlowsMax places.
type TableStatus struct {
	Flows       int64  `json:"flows"`
	Translated  int64  `json:"translated"` // of them
	FlowsMax    int64  `json:"flows_max"`
	HalfOpen    int64  `json:"half_open"`
	HalfOpenMax int64  `json:"half_open_max"`
	Created     uint64 `json:"created"` // without those reopened
	Refused     uint64 `json:"refused"`
	Evicted     uint64 `json:"evicted"`
	Revived     uint64 `json:"revived"` // revoked flows that the policy allowed again
	Overflowed  uint64 `json:"overflowed"`
	Reopened    uint64 `json:"reopened"` // connections that were over and began anew in the place of their own flow
	Aged        uint64 `json:"aged"`
	Killed      uint64 `json:"killed"` // by somebody who asked for it
}

// FragmentStatus is what became of later fragments that came before their first.
type FragmentStatus struct {
	Held     uint64 `json:"held"`     // now
	Released uint64 `json:"released"` // the first has come
	Expired  uint64 `json:"expired"`  // it has not, in 1 s
}

// EventStatus is the events file.
type EventStatus struct {
	File      string `json:"file"`
	Written   uint64 `json:"written"`
	Waiting   uint64 `json:"waiting"`   // in memory, for the next second or for the disk
	Unlogged  uint64 `json:"unlogged"`  // by the limit, or because the ring was full
	Lost      uint64 `json:"lost"`      // the file did not take them, or the run before was killed with them
	Rotations uint64 `json:"rotations"` // of the file, by the gateway
	Error     string `json:"error"`     // why the file cannot be written or rotated now, "" if it can
}

// apiError is the body of every answer that is none.
type apiError struct {
	Error  string `json:"error"`
	Column int    `json:"column,omitempty"` // of a filter
	Hint   string `json:"hint,omitempty"`
	// Errors are those of configuration and policy, one by one.
	Errors []Mistake `json:"errors,omitempty"`
}
