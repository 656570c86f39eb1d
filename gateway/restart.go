package gateway

import (
	"crypto/sha256"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/softdpu/softdpu/firewall"
)

// reloadable are the fields of Config that a reload puts in force; those of what the reader says of the
// file are none of the operator's. Any other that differs needs a restart.
var reloadable = []string{"File", "Ports", "Inline", "Policy", "PolicyPos", "Management", "ForceStage", "Warnings"}

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
		case reflect.ValueOf(a).FieldByName(name).Kind() == reflect.Struct:
			x, y := reflect.ValueOf(a).FieldByName(name), reflect.ValueOf(b).FieldByName(name)
			fields := differing(x.Interface(), y.Interface())
			if slices.Contains(fields, "Written") { // the section as a whole
				refuse(snake(name))
				continue
			}
			for _, field := range fields {
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
