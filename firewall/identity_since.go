package firewall

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// laterIdentities are what Identities have other than earlier ones, in JSON. What is nil is as it was.
type laterIdentities struct {
	Rules []savedRule `json:"rules,omitempty"` // those without a name are free
	Zones []savedZone `json:"zones,omitempty"` // all
	MACs  *[]savedMAC `json:"macs,omitempty"`  // all
	NAT   *[]savedNAT `json:"nat,omitempty"`   // all
}

// Since writes what i has other than earlier identities, for ReadIdentities. Where the rules stand that both have is not
// among it: whoever reads it knows the place of what a policy has from there, and of what is gone it is the one before.
func (i *Identities) Since(earlier *Identities) ([]byte, error) {
	var later laterIdentities
	for n := range max(len(i.rules), len(earlier.rules)) {
		is, was := i.ruleAt(n), earlier.ruleAt(n)
		if is.Rule == was.Rule && !is.Gone && !was.Gone {
			continue
		}
		gone := i.gone[n]
		if is.Name != was.Name || !gone.Equal(earlier.gone[n]) || is.Gone && (is.File != was.File || is.Line != was.Line) {
			later.Rules = append(later.Rules, savedRule{RuleFirst + uint32(n), is.Name, is.File, is.Line, gone})
		}
	}
	sameZone := func(a, b zoneIdentity) bool {
		return a.name == b.name && a.gone.Equal(b.gone) && slices.Equal(a.places, b.places)
	}
	if !slices.EqualFunc(i.zones, earlier.zones, sameZone) {
		later.Zones = i.savedZones()
	}
	if !maps.EqualFunc(i.macs, earlier.macs, func(a, b macIdentity) bool { return a.id == b.id && a.gone.Equal(b.gone) }) {
		saved := i.savedMACs()
		later.MACs = &saved
	}
	sameNAT := func(a, b natIdentity) bool {
		return a.info.key() == b.info.key() && a.info.Kind == b.info.Kind && a.info.File == b.info.File && a.info.Line == b.info.Line && a.gone.Equal(b.gone)
	}
	if !slices.EqualFunc(i.nat, earlier.nat, sameNAT) {
		saved := i.savedNAT()
		later.NAT = &saved
	}
	return json.Marshal(later)
}

// ruleAt is what a number stands for, freeRule if there is none.
func (i *Identities) ruleAt(n int) *RuleInfo {
	if n < len(i.rules) {
		return &i.rules[n]
	}
	return &freeRule
}

// ReadIdentities reads what MarshalJSON wrote, and unless it is empty what Since wrote of later ones. It refuses what
// Compile could not have made.
func ReadIdentities(text, since []byte) (*Identities, error) {
	var s savedIdentities
	if err := strictly(text, &s); err != nil {
		return nil, err
	}
	if len(since) > 0 {
		var later laterIdentities
		if err := strictly(since, &later); err != nil {
			return nil, err
		}
		s.follow(&later)
	}
	return s.identities()
}

func strictly(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("read identities: %w", err)
	}
	return nil
}

// follow makes of s what it is later.
func (s *savedIdentities) follow(later *laterIdentities) {
	other := make(map[uint32]bool, len(later.Rules))
	for _, r := range later.Rules {
		other[r.ID] = true
	}
	s.Rules = slices.DeleteFunc(s.Rules, func(r savedRule) bool { return other[r.ID] })
	for _, r := range later.Rules {
		if r.Name != "" {
			s.Rules = append(s.Rules, r)
		}
	}
	if later.Zones != nil {
		s.Zones = later.Zones
	}
	if later.MACs != nil {
		s.MACs = *later.MACs
	}
	if later.NAT != nil {
		s.NAT = *later.NAT
	}
}
