package firewall

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is one policy file: its name, which errors and relative paths follow, and its text.
type Source struct {
	Name string
	Text []byte
}

// Load reads a policy from files and directories; of a directory the files *.yaml and *.yml, in name
// order, without its subdirectories. All files are one policy. The error is an Errors if the text is
// at fault, another error if a file cannot be read.
func Load(paths ...string) (*Policy, error) {
	var sources []Source
	for _, path := range paths {
		files, err := PolicyFiles(path)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			text, err := ReadFile(f)
			if err != nil {
				return nil, fmt.Errorf("read policy: %w", err)
			}
			sources = append(sources, Source{Name: f, Text: text})
		}
	}
	return Parse(sources, ReadFile)
}

// PolicyFiles returns the files that Load reads for a path: the path itself, or of a directory those that
// end in .yaml or .yml, in name order. The files of sets are not among them.
func PolicyFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", fileError(path, err))
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	return policyFiles(path)
}

func policyFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", fileError(dir, err))
	}
	var files []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if !e.IsDir() && (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(e.Name(), ".") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read policy: %w", &FileError{
			Path: dir, Err: errors.New("directory holds no *.yaml or *.yml file"), Hint: "write the policy into one, or name a file",
		})
	}
	slices.Sort(files)
	return files, nil
}

// Parse reads a policy from memory. ReadFile reads the files that sets name, whose paths are relative
// to the file that names them; nil refuses such sets. The error is an Errors with every mistake found.
func Parse(sources []Source, readFile func(string) ([]byte, error)) (*Policy, error) {
	return new(Reading).Parse(sources, readFile)
}

func (l *loader) warn(e Error) { l.warnings = append(l.warnings, e) }

// entries returns the fields of a map from names to values whose names are new and well formed.
func (l *loader) entries(n *Node, section, what string, taken func(name string) (Pos, string)) []Field {
	if n.Kind != MapNode {
		l.Fail(n.Pos.Errorf("%s must be a map from names to values, not %s", section, n.Kind).WithHint("as in %s: {NAME: {...}}", section))
		return nil
	}
	var out []Field
	seen := make(map[string]Pos)
	for _, f := range n.Fields {
		if p, twice := seen[f.Key]; twice {
			l.Fail(f.Pos.Errorf("%s %q is declared twice", what, f.Key).WithHint("first in %s", p))
			continue
		}
		if p, as := taken(f.Key); as != "" {
			l.Fail(f.Pos.Errorf("%s %q is already declared as %s", what, f.Key, as).WithHint("first in %s", p))
			continue
		}
		if l.Identifier(f.Pos, "a "+what, f.Key) {
			seen[f.Key] = f.Pos
			out = append(out, f)
		}
	}
	return out
}

// endpointTaken says where a name of a zone or workload is declared: rules use them alike.
func (l *loader) endpointTaken(name string) (Pos, string) {
	if i, ok := l.zoneIndex[name]; ok {
		return l.policy.Zones[i].Pos, "a zone"
	}
	if i, ok := l.workloadIndex[name]; ok {
		return l.policy.Workloads[i].Pos, "a workload"
	}
	return Pos{}, ""
}

func (l *loader) zones(n *Node) {
	for _, f := range l.entries(n, "zones", "zone", l.endpointTaken) {
		if f.Key == NameHost || f.Key == NameAny {
			l.Fail(f.Pos.Errorf("zone %q is built in and cannot be declared", f.Key).WithHint("choose another name"))
			continue
		}
		l.zoneIndex[f.Key] = len(l.policy.Zones)
		l.policy.Zones = append(l.policy.Zones, Zone{Name: f.Key, Pos: f.Pos})
		if f.Value.Kind != NullNode { // `zone:` alone is a zone without ports
			l.zone(&l.policy.Zones[len(l.policy.Zones)-1], f.Value)
		}
	}
}

func (l *loader) zone(z *Zone, n *Node) {
	f := l.Fields(n, "a zone", keys["zone"])
	if p := f["ports"]; p != nil {
		for _, item := range l.List(p) {
			name, ok := l.Text(item, "a port")
			if !ok || !l.Identifier(item.Pos, "a port", name) {
				continue
			}
			z.Ports = append(z.Ports, name)
			z.PortPos = append(z.PortPos, item.Pos)
		}
	}
	if v := f["vlans"]; v != nil {
		items := l.List(v)
		for _, item := range items {
			id, ok := l.Int(item, "a VLAN id", 1, 4094)
			if ok && slices.Contains(z.VLANs, uint16(id)) {
				l.Fail(item.Pos.Errorf("VLAN %d is given twice", id))
			} else if ok {
				z.VLANs = append(z.VLANs, uint16(id))
			}
		}
		if len(items) == 0 {
			l.Fail(v.Pos.Errorf("an empty list of VLANs").WithHint("leave `vlans` out for the untagged frames of the ports"))
		}
	}
	if a := f["addresses"]; a != nil {
		if z.Addresses = l.addresses(a, "an address"); len(l.List(a)) == 0 {
			l.Fail(a.Pos.Errorf("an empty list of addresses would let nothing in").WithHint("leave `addresses` out for any"))
		}
	}
	if u := f["untrusted"]; u != nil {
		z.Untrusted = l.Bool(u, "untrusted")
	}
	z.Description = l.optionalText(f["description"], "description")
	l.claimPorts(z)
}

// claimPorts makes sure that a frame belongs to one zone only.
func (l *loader) claimPorts(z *Zone) {
	for i, port := range z.Ports {
		for _, vlan := range z.vlanIDs() {
			for o := range l.policy.Zones {
				other := &l.policy.Zones[o]
				for j, p := range other.Ports {
					if p != port || !slices.Contains(other.vlanIDs(), vlan) || other == z && j >= i {
						continue
					}
					frames := "the untagged frames"
					if vlan != 0 {
						frames = fmt.Sprintf("VLAN %d", vlan)
					}
					l.Fail(z.PortPos[i].Errorf("%s of port %q belong to zone %q already", frames, port, other.Name).
						WithHint("first in %s; give each zone its own `vlans` to share a port", other.PortPos[j]))
				}
			}
		}
	}
}

// vlanIDs returns the VLANs of z, 0 for untagged frames.
func (z *Zone) vlanIDs() []uint16 {
	if len(z.VLANs) == 0 {
		return []uint16{0}
	}
	return z.VLANs
}

func (l *loader) optionalText(n *Node, what string) string {
	if n == nil {
		return ""
	}
	text, _ := l.Text(n, what)
	return strings.Clone(text)
}

func (l *loader) workloads(n *Node) {
	for _, f := range l.entries(n, "workloads", "workload", l.endpointTaken) {
		if f.Key == NameHost || f.Key == NameAny {
			l.Fail(f.Pos.Errorf("workload %q has the name of a built-in zone", f.Key).WithHint("choose another name"))
			continue
		}
		w := Workload{Name: f.Key, Pos: f.Pos}
		v := l.Fields(f.Value, "a workload", keys["workload"])
		if z := v["zone"]; z != nil {
			w.Zones = l.zoneNames(z)
		}
		if a := v["addresses"]; a != nil {
			if w.Addresses = l.addresses(a, "an address"); len(l.List(a)) == 0 {
				l.Fail(a.Pos.Errorf("an empty list of addresses matches nothing").WithHint("leave `addresses` out for any"))
			}
		}
		if m := v["macs"]; m != nil {
			if w.MACs = l.macs(m, "a MAC address"); len(l.List(m)) == 0 {
				l.Fail(m.Pos.Errorf("an empty list of MAC addresses matches nothing").WithHint("leave `macs` out for any"))
			}
		}
		if b := v["labels"]; b != nil {
			w.Labels = l.labels(b)
		}
		w.Description = l.optionalText(v["description"], "description")
		if f.Value.Kind == MapNode && v["zone"] == nil && v["addresses"] == nil && v["macs"] == nil {
			l.Fail(f.Pos.Errorf("workload %q would be everyone", f.Key).WithHint("give it a zone, addresses or macs"))
		}
		l.workloadIndex[f.Key] = len(l.policy.Workloads)
		l.policy.Workloads = append(l.policy.Workloads, w)
	}
}

func (l *loader) labels(n *Node) map[string]string {
	out := make(map[string]string)
	if n.Kind != MapNode {
		l.Fail(n.Pos.Errorf("labels must be a map from keys to values, not %s", n.Kind).WithHint(`as in labels: {pci: "yes"}`))
		return out
	}
	for _, f := range n.Fields {
		if _, twice := out[f.Key]; twice {
			l.Fail(f.Pos.Errorf("label %q is given twice", f.Key))
			continue
		}
		if f.Value.Kind == NullNode {
			l.Fail(f.Pos.Errorf("label %q has no value", f.Key).WithHint(`write "" for an empty one`))
			continue
		}
		value, _ := l.Text(f.Value, "a label's value")
		out[strings.Clone(f.Key)] = strings.Clone(value)
	}
	return out
}

// zoneNames reads a zone or a list of zones.
func (l *loader) zoneNames(n *Node) []string {
	var out []string
	items := l.List(n)
	for _, item := range items {
		name, ok := l.Text(item, "a zone")
		if !ok {
			continue
		}
		z, known := l.zoneIndex[name]
		switch {
		case known:
			out = append(out, l.policy.Zones[z].Name)
		case name == NameHost:
			out = append(out, NameHost)
		default:
			e := Unknown(item.Pos, "zone", name, l.zoneList(), "declare it under `zones`")
			if name == NameAny {
				e = item.Pos.Errorf("any is not a zone").WithHint("leave `zone` out for any")
			}
			l.Fail(e)
		}
	}
	if len(items) == 0 {
		l.Fail(n.Pos.Errorf("an empty list of zones matches nothing").WithHint("leave `zone` out for any"))
	}
	return out
}

func (l *loader) zoneList() []string {
	return append(slices.Sorted(maps.Keys(l.zoneIndex)), NameHost)
}

func (l *loader) declareServices(n *Node) {
	taken := func(name string) (Pos, string) {
		if i, ok := l.serviceIndex[name]; ok {
			return l.policy.Services[i].Pos, "a service"
		}
		return Pos{}, ""
	}
	for _, f := range l.entries(n, "services", "service", taken) {
		if f.Key == NameAny || slices.Contains(protoNames(), f.Key) {
			l.Fail(f.Pos.Errorf("%q is built in and cannot be declared as a service", f.Key).WithHint("choose another name"))
			continue
		}
		l.serviceIndex[f.Key] = len(l.policy.Services)
		s := Service{Name: f.Key, Matches: l.services(f.Value, true), Pos: f.Pos}
		s.at = slices.Clone(l.at)
		l.policy.Services = append(l.policy.Services, s)
	}
}
