package gateway

import (
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// HistoryEntry is a policy that came into force, or was refused.
type HistoryEntry struct {
	Entry    int               `json:"entry"` // number, for rollback and diff
	Time     time.Time         `json:"time"`
	By       string            `json:"by"`       // what brought it about
	User     string            `json:"user"`     // who asked, by the credentials of the connection; "" for nobody
	Login    string            `json:"login"`    // as whom that user has logged in, if as another
	UID      *uint32           `json:"uid"`      // of user
	Comment  string            `json:"comment"`  // of who asked
	Result   string            `json:"result"`   // in-force or refused
	Current  bool              `json:"current"`  // it is in force now
	Confirm  string            `json:"confirm"`  // waiting, confirmed or rolled-back; "" if nobody has to
	Restored int               `json:"restored"` // entry whose policy it brought back, 0 for none
	Epoch    uint32            `json:"epoch"`    // under which it came into force
	Hash     string            `json:"hash"`     // as status has it; "" if it could not be read
	Files    []string          `json:"files"`
	Rules    int               `json:"rules"`    // without built-in ones
	Changes  *firewall.Changes `json:"changes"`  // of the policy before; null if that is not known
	Kept     bool              `json:"kept"`     // its files are, so that it can be rolled back to
	Mistakes int               `json:"mistakes"` // for which it was refused
	Errors   []Mistake         `json:"errors"`   // the first of them
}

// UnconfirmedStatus is a change that comes back by itself.
type UnconfirmedStatus struct {
	Entry    int       `json:"entry"`    // of the history
	Before   int       `json:"before"`   // entry whose policy it comes back to
	Deadline time.Time `json:"deadline"` // by the clock at the time of the change
	LeftS    float64   `json:"left_s"`
}

// RolledBackStatus is a policy that is in force in place of that on disk.
type RolledBackStatus struct {
	Entry int       `json:"entry"` // of the history, that is in force
	To    int       `json:"to"`    // entry whose policy it has
	Time  time.Time `json:"time"`
	By    string    `json:"by"` // rollback or not-confirmed
	User  string    `json:"user"`
}

// Confirmed is what POST /v1/policy/confirm answers.
type Confirmed struct {
	Entry int    `json:"entry"`
	Epoch uint32 `json:"epoch"`
}

// PolicyDiff is what GET /v1/policy/diff answers: what would have to be done to From to make it To.
type PolicyDiff struct {
	From          DiffSide              `json:"from"`
	To            DiffSide              `json:"to"`
	Same          bool                  `json:"same"` // nothing that acts differs
	Changes       firewall.Changes      `json:"changes"`
	Differences   []firewall.Difference `json:"differences"`
	Configuration []firewall.FieldDiff  `json:"configuration"` // keys of the configuration that a reload puts in force
	Restart       []Mistake             `json:"restart"`       // what only a restart puts in force
}

// DiffSide is one of the policies that are compared.
type DiffSide struct {
	What  string `json:"what"`  // in-force, entry or files
	Entry int    `json:"entry"` // 0 for files
	Hash  string `json:"hash"`
}
