package firewall

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"
)

// savedIdentities are Identities in JSON. What is free is left out.
type savedIdentities struct {
	Rules []savedRule `json:"rules"`
	Zones []savedZone `json:"zones"`
	MACs  []savedMAC  `json:"macs"`
	NAT   []savedNAT  `json:"nat,omitempty"`
}

type savedRule struct {
	ID   uint32    `json:"id"`
	Name string    `json:"name"`
	File string    `json:"file"`
	Line int       `json:"line"`
	Gone time.Time `json:"gone,omitzero"`
}

type savedZone struct {
	ID     int          `json:"id"`
	Name   string       `json:"name"`
	Places []savedPlace `json:"places"`
	Gone   time.Time    `json:"gone,omitzero"`
}

type savedPlace struct {
	Port string `json:"port"`
	VLAN uint16 `json:"vlan"`
}

type savedMAC struct {
	ID   uint16    `json:"id"`
	MAC  string    `json:"mac"`
	Gone time.Time `json:"gone,omitzero"`
}

type savedNAT struct {
	ID           uint32    `json:"id"`
	Name         string    `json:"name"`
	Family       uint8     `json:"family"`
	Destinations bool      `json:"destinations"`
	Kind         NATKind   `json:"kind"`
	File         string    `json:"file"`
	Line         int       `json:"line"`
	Gone         time.Time `json:"gone,omitzero"`
}

// MarshalJSON writes what another process needs to go on with flows of this one.
func (i *Identities) MarshalJSON() ([]byte, error) {
	rest, err := json.Marshal(struct {
		Zones []savedZone `json:"zones"`
		MACs  []savedMAC  `json:"macs"`
		NAT   []savedNAT  `json:"nat,omitempty"`
	}{i.savedZones(), i.savedMACs(), i.savedNAT()})
	if err != nil {
		return nil, err
	}
	text := append(make([]byte, 0, 100*len(i.rules)+len(rest)+16), `{"rules":[`...)
	text = append(i.appendRules(text), `],`...)
	return append(text, rest[1:]...), nil
}

func (i *Identities) savedZones() []savedZone {
	out := []savedZone{}
	for n, z := range i.zones {
		if z.name == "" {
			continue
		}
		saved := savedZone{ID: zoneFirst + n, Name: z.name, Places: []savedPlace{}, Gone: z.gone}
		for _, p := range z.places {
			saved.Places = append(saved.Places, savedPlace{p.port, p.vlan})
		}
		out = append(out, saved)
	}
	return out
}

func (i *Identities) savedMACs() []savedMAC {
	out := []savedMAC{}
	for mac, m := range i.macs {
		out = append(out, savedMAC{m.id, mac.String(), m.gone})
	}
	slices.SortFunc(out, func(a, b savedMAC) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (i *Identities) savedNAT() []savedNAT {
	out := []savedNAT{}
	for n := range i.nat {
		if r := &i.nat[n]; r.info.Name != "" {
			out = append(out, savedNAT{
				uint32(n) + 1, r.info.Name, r.info.Family, r.info.Destinations, r.info.Kind, r.info.File, r.info.Line, r.gone,
			})
		}
	}
	return out
}

// appendRules writes the rules one by one: they may be a hundred thousand, and are written with every policy.
func (i *Identities) appendRules(text []byte) []byte {
	file, quoted := "", []byte(`""`)
	for n := range i.rules {
		r := &i.rules[n]
		if r.Rule == freeRule.Rule {
			continue
		}
		if r.File != file {
			file, quoted = r.File, appendQuoted(nil, r.File)
		}
		if text[len(text)-1] != '[' {
			text = append(text, ',')
		}
		text = strconv.AppendInt(append(text, `{"id":`...), int64(RuleFirst)+int64(n), 10)
		text = appendQuoted(append(text, `,"name":`...), r.Name)
		text = append(append(text, `,"file":`...), quoted...)
		text = strconv.AppendInt(append(text, `,"line":`...), int64(r.Line), 10)
		if r.Gone {
			text = append(i.gone[n].AppendFormat(append(text, `,"gone":"`...), time.RFC3339Nano), '"')
		}
		text = append(text, '}')
	}
	return text
}

// appendQuoted writes a string of JSON.
func appendQuoted(text []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // no string is one that cannot be written
			return append(text, quoted...)
		}
	}
	return append(append(append(text, '"'), s...), '"')
}

// UnmarshalJSON is ReadIdentities.
func (i *Identities) UnmarshalJSON(text []byte) error {
	read, err := ReadIdentities(text, nil)
	if err == nil {
		*i = *read
	}
	return err
}

func (s *savedIdentities) identities() (*Identities, error) {
	out := Identities{macs: make(map[MAC]macIdentity, len(s.MACs))}
	names := make(map[string]bool)
	for _, r := range s.Rules {
		n := int(r.ID) - int(RuleFirst)
		if n < 0 || r.ID >= maxRules || r.Name == "" || names[r.Name] {
			return nil, fmt.Errorf("read identities: rule %q cannot have id %d", r.Name, r.ID)
		}
		names[r.Name] = true
		for len(out.rules) <= n {
			out.rules = append(out.rules, freeRule)
		}
		if out.rules[n].Name != "" {
			return nil, fmt.Errorf("read identities: rules %q and %q have id %d", out.rules[n].Name, r.Name, r.ID)
		}
		out.rules[n] = RuleInfo{Rule: &Rule{Name: r.Name}, File: r.File, Line: r.Line, Gone: !r.Gone.IsZero()}
		if !r.Gone.IsZero() {
			if out.gone == nil {
				out.gone = make(map[int]time.Time)
			}
			out.gone[n] = r.Gone
		}
	}
	for _, z := range s.Zones {
		n := z.ID - zoneFirst
		if n < 0 || z.ID > zoneMax || z.Name == "" {
			return nil, fmt.Errorf("read identities: zone %q cannot have id %d", z.Name, z.ID)
		}
		for len(out.zones) <= n {
			out.zones = append(out.zones, zoneIdentity{})
		}
		if out.zones[n].name != "" {
			return nil, fmt.Errorf("read identities: zones %q and %q have id %d", out.zones[n].name, z.Name, z.ID)
		}
		out.zones[n] = zoneIdentity{name: z.Name, gone: z.Gone}
		for _, p := range z.Places {
			out.zones[n].places = append(out.zones[n].places, place{p.Port, p.VLAN})
		}
	}
	taken := make(map[uint16]bool)
	for _, m := range s.MACs {
		mac, err := net.ParseMAC(m.MAC)
		if err != nil || len(mac) != len(MAC{}) || m.ID == 0 || taken[m.ID] {
			return nil, fmt.Errorf("read identities: MAC address %q cannot have id %d", m.MAC, m.ID)
		}
		taken[m.ID] = true
		out.macs[MAC(mac)] = macIdentity{m.ID, m.Gone}
	}
	if err := out.readNAT(s.NAT); err != nil {
		return nil, err
	}
	return &out, nil
}

func (i *Identities) readNAT(saved []savedNAT) error {
	known := make(map[natKey]bool)
	for _, r := range saved {
		info := NATRuleInfo{Name: r.Name, File: r.File, Line: r.Line, Kind: r.Kind, Family: r.Family, Destinations: r.Destinations}
		n := int(r.ID) - 1
		if n < 0 || r.ID >= maxRules || r.Name == "" || r.Family != 4 && r.Family != 6 || known[info.key()] {
			return fmt.Errorf("read identities: nat rule %q cannot have id %d", r.Name, r.ID)
		}
		known[info.key()] = true
		for len(i.nat) <= n {
			i.nat = append(i.nat, natIdentity{})
		}
		if i.nat[n].info.Name != "" {
			return fmt.Errorf("read identities: nat rules %q and %q have id %d", i.nat[n].info.Name, r.Name, r.ID)
		}
		i.nat[n] = natIdentity{info, r.Gone}
	}
	return nil
}
