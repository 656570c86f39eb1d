package gateway

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/softdpu/softdpu/firewall"
)

// reloadable are the fields of Config that a reload puts in force; those of what the reader says of the
// file are none of the operator's. Any other that differs needs a restart.
var reloadable = []string{"File", "Policy", "PolicyPos", "Management", "Warnings"}

// restartFor says which keys of another version of this configuration only a restart puts in force.
func (c *Config) restartFor(next *Config) (errs firewall.Errors) {
	at := firewall.Pos{File: next.File}
	refuse := func(key string) {
		errs = append(errs, at.Errorf("%s has changed, which a reload does not put in force", key).WithHint("restart softdpu, or change it back"))
	}
	a, b := c.comparable(), next.comparable()
	for _, name := range differing(a, b) {
		switch {
		case slices.Contains(reloadable, name):
		case name == "Ports" && slices.Equal(c.PortNames(), next.PortNames()):
			for i := range a.Ports {
				for _, field := range differing(a.Ports[i], b.Ports[i]) {
					refuse("ports." + a.Ports[i].Name + "." + snake(field))
				}
			}
		case reflect.ValueOf(a).FieldByName(name).Kind() == reflect.Struct:
			x, y := reflect.ValueOf(a).FieldByName(name), reflect.ValueOf(b).FieldByName(name)
			for _, field := range differing(x.Interface(), y.Interface()) {
				refuse(snake(name) + "." + snake(field))
			}
		default:
			refuse(snake(name))
		}
	}
	return errs
}

// differing returns the names of the fields in which two structs of a type differ.
func differing(a, b any) (names []string) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			names = append(names, x.Type().Field(i).Name)
		}
	}
	return names
}

// comparable is the configuration without what differs although it says the same, and without what a
// reload changes inside a field.
func (c *Config) comparable() Config {
	out := *c
	out.Sum, out.Text = [sha256.Size]byte{}, nil
	out.Ports = slices.Clone(c.Ports)
	for i := range out.Ports {
		out.Ports[i].Pos, out.Ports[i].DevicePos = firewall.Pos{}, firewall.Pos{}
	}
	out.Flows.Timeouts = Timeouts{}
	return out
}

// snake writes a field's name as its key: XDPMode is xdp_mode.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		begins := i > 0 && unicode.IsUpper(r) &&
			(unicode.IsLower(rune(name[i-1])) || i+1 < len(name) && unicode.IsLower(rune(name[i+1])))
		if begins {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// restartFor says which ports and VLANs would lie in another zone than under this policy. Packets are
// judged by the zone of their port, which is not a part of what is published at once. A zone with all
// that belonged to another is no other zone, whatever its name.
func (r *Ruleset) restartFor(next *Ruleset) (errs firewall.Errors) {
	type place struct {
		port string
		vlan uint16
	}
	was, is := make(map[place]uint8), make(map[place]uint8)
	var places []place
	for _, p := range r.Compiled.Ports {
		at := place{p.Port, p.VLAN}
		was[at], places = p.Zone, append(places, at)
	}
	for _, p := range next.Compiled.Ports {
		at := place{p.Port, p.VLAN}
		if is[at] = p.Zone; was[at] == 0 {
			places = append(places, at)
		}
	}
	for _, at := range places {
		if was[at] == is[at] {
			continue
		}
		pos := next.config.PolicyPos
		for i := range next.policy.Zones {
			if z := &next.policy.Zones[i]; is[at] != 0 && z.Name == next.zoneName(is[at]) {
				pos = z.Pos
			}
		}
		what := fmt.Sprintf("port %q", at.port)
		if at.vlan != 0 {
			what = fmt.Sprintf("VLAN %d on port %q", at.vlan, at.port)
		}
		name := func(r *Ruleset, id uint8) string {
			if id == 0 {
				return "no zone"
			}
			return fmt.Sprintf("zone %q", r.zoneName(id))
		}
		errs = append(errs, pos.Errorf("%s moves from %s to %s, which a reload does not put in force", what, name(r, was[at]), name(next, is[at])).
			WithHint("restart softdpu, or leave it where it is"))
	}
	return errs.Sorted(next.Files...)
}
