package gateway

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// Config is what the operator wrote about this machine, with defaults filled in.
type Config struct {
	File       string
	Sum        [sha256.Size]byte // SHA-256 of the file as LoadConfig has read it
	Text       []byte            // of the file, likewise
	Ports      []Port            // in name order
	Inline     [][2]string       // pairs of port names that are joined as a bump in the wire
	Policy     string            // file or directory
	PolicyPos  firewall.Pos
	Management firewall.Management
	OnStop     OnStop
	// UpgradeGrace is for how long TCP is picked up without its SYN, where the policy allows it, after a
	// start that could not take over the flows of the run before; 0: not at all.
	UpgradeGrace time.Duration
	Flows        Flows
	Metrics      Metrics
	Control      Control
	Events       Events
	ForceStage   string // that all flows need, "" for none
	Workers      Workers
	State        string   // directory of what outlives a restart of the machine
	Ethertypes   []uint16 // host order; passed between inline ports beside IP, ARP and neighbour discovery
	Warnings     firewall.Errors
}

// Port is a network device under the gateway's name for it.
type Port struct {
	Name         string
	Device       string
	MTU          int          // bytes of an IP packet; 0: as the device has it
	FixOffloads  bool         // turn offloads off that are in XDP's way, and restore them at the end
	FixChecksums FixChecksums // complete partial checksums
	XDPMode      XDPMode
	MSSClamp     MSSClamp
	Pos          firewall.Pos // of the name
	DevicePos    firewall.Pos
}

// FixChecksums says on which ports XDP completes checksums that are still the bare pseudo-header sum.
type FixChecksums string

const (
	FixChecksumsAuto FixChecksums = "auto" // on devices of kind veth and tun
	FixChecksumsOn   FixChecksums = "on"
	FixChecksumsOff  FixChecksums = "off"
)

// XDPMode says how programs are attached.
type XDPMode string

const (
	XDPAuto    XDPMode = "auto" // native, else generic, which is then said
	XDPNative  XDPMode = "native"
	XDPGeneric XDPMode = "generic"
)

// OnStop says what is left in force by a clean stop.
type OnStop string

const (
	OnStopBlock OnStop = "block" // the host's own traffic and management; nothing is forwarded
	OnStopKeep  OnStop = "keep"  // the last policy
	OnStopOpen  OnStop = "open"  // nothing: the host is as it was before the start
)

// Flows bounds the flow table.
type Flows struct {
	Max           int     // entries of both families
	HalfOpenShare float64 // of Max, that half-open flows may fill; above 0, at most 1
	Timeouts      Timeouts
}

// Metrics says where /metrics and /healthz are served.
type Metrics struct {
	Listen string // host:port, "" for nowhere
}

// Control is the socket that the other verbs speak to.
type Control struct {
	Socket string
	Group  string // that may read
}

// Limits of abi.h.
const (
	maxPorts      = 64
	maxPairs      = 15
	maxEthertypes = 8
)

const (
	minFlows  = 16
	maxFlows  = 1 << 24
	maxDevice = 15 // characters, IFNAMSIZ
)

// LoadConfig reads the gateway's configuration. Paths in it are relative to its directory. The error
// is a firewall.Errors if the text is at fault, another error if the file cannot be read.
func LoadConfig(path string) (*Config, error) {
	text, err := firewall.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	c, err := ParseConfig(path, text)
	if err == nil {
		c.Sum, c.Text = sha256.Sum256(text), text
	}
	return c, err
}

// ParseConfig reads a configuration from memory; name is what errors call it and paths are relative to.
func ParseConfig(name string, text []byte) (*Config, error) {
	docs, errs := firewall.ParseYAML(name, text)
	r := &configReader{dir: filepath.Dir(name)}
	r.Errs = errs
	switch {
	case len(errs) > 0:
	case len(docs) == 0:
		r.Fail(firewall.Error{File: name, Msg: "file is empty", Hint: "begin with: apiVersion: " + firewall.APIVersion + " and kind: Gateway"})
	case len(docs) > 1:
		r.Fail(docs[1].Pos.Errorf("a gateway has one document").WithHint("take the documents behind the first out"))
	}
	c := &Config{
		File:   name,
		OnStop: OnStopBlock, UpgradeGrace: time.Minute,
		Flows:   Flows{Max: 262_144, HalfOpenShare: 0.5, Timeouts: DefaultTimeouts()},
		Metrics: Metrics{Listen: "127.0.0.1:9469"},
		Control: Control{Socket: "/run/softdpu/softdpu.sock", Group: "softdpu"},
		Events:  defaultEvents(),
		Workers: defaultWorkers(),
		State:   "/var/lib/softdpu",
	}
	if len(docs) > 0 {
		r.config(c, docs[0])
	}
	if len(r.Errs) > 0 {
		return nil, r.Errs.Sorted(name)
	}
	c.Warnings = r.warnings.Sorted(name)
	return c, nil
}

// PortNames returns the names of all ports.
func (c *Config) PortNames() []string {
	names := make([]string, len(c.Ports))
	for i := range c.Ports {
		names[i] = c.Ports[i].Name
	}
	return names
}

// CompileOptions returns what the policy is compiled with on this gateway.
func (c *Config) CompileOptions(now time.Time) firewall.CompileOptions {
	return firewall.CompileOptions{Now: now, Management: c.Management, Ports: c.PortNames()}
}

type configReader struct {
	firewall.Reader
	dir      string
	warnings firewall.Errors
}

func (r *configReader) warn(e firewall.Error) { r.warnings = append(r.warnings, e) }

func (r *configReader) config(c *Config, n *firewall.Node) {
	f := r.Document(n, "Gateway", configKeys["gateway"])
	if f == nil {
		return
	}
	if v := f["ports"]; v != nil {
		r.ports(c, v)
	} else {
		r.Fail(n.Pos.Errorf("file names no ports").WithHint("add ports: {lan0: {device: eth1}, wan0: {device: eth0}}"))
	}
	if v := f["inline"]; v != nil {
		r.inline(c, v)
	}
	if v := f["policy"]; v != nil {
		c.Policy, c.PolicyPos = r.path(v, "policy"), v.Pos
	} else {
		r.Fail(n.Pos.Errorf("file names no policy").WithHint("add policy: a file or directory"))
	}
	r.management(c, n, f["management"])
	if v := f["override_management"]; v != nil {
		c.Management.Override = r.Bool(v, "override_management")
	}
	if v := f["on_stop"]; v != nil {
		c.OnStop = OnStop(r.Choice(v, "on_stop", "block", "keep", "open"))
	}
	if v := f["upgrade_grace"]; v != nil {
		if v.Kind == firewall.ScalarNode && v.Text == firewall.NameNone {
			c.UpgradeGrace = 0
		} else {
			c.UpgradeGrace, _ = r.duration(v, "upgrade_grace")
		}
	}
	if v := f["flows"]; v != nil {
		r.flows(&c.Flows, v)
	}
	if v := f["metrics"]; v != nil {
		r.metrics(c, v)
	}
	if v := f["control"]; v != nil {
		m := r.Fields(v, "control", configKeys["control"])
		if s := m["socket"]; s != nil {
			c.Control.Socket = r.path(s, "socket")
		}
		if g := m["group"]; g != nil {
			c.Control.Group, _ = r.Text(g, "group")
		}
	}
	if v := f["events"]; v != nil {
		r.events(&c.Events, v)
	}
	if v := f["force_stage"]; v != nil {
		c.ForceStage = r.Choice(v, "force_stage", StageForward)
	}
	if v := f["workers"]; v != nil {
		r.workers(&c.Workers, v)
	}
	if v := f["state"]; v != nil {
		c.State = r.path(v, "state")
	}
	if v := f["ethertypes"]; v != nil {
		r.ethertypes(c, v)
	}
}

func (r *configReader) ports(c *Config, n *firewall.Node) {
	if n.Kind != firewall.MapNode {
		r.Fail(n.Pos.Errorf("ports must be a map from names to values, not %s", n.Kind).WithHint("as in ports: {lan0: {device: eth1}}"))
		return
	}
	names := make(map[string]firewall.Pos)
	devices := make(map[string]string)
	for _, f := range n.Fields {
		if first, twice := names[f.Key]; twice {
			r.Fail(f.Pos.Errorf("port %q is declared twice", f.Key).WithHint("first in %s", first))
			continue
		}
		names[f.Key] = f.Pos
		if !r.Identifier(f.Pos, "a port", f.Key) {
			continue
		}
		if f.Key == firewall.NameHost || f.Key == firewall.NameAny {
			r.Fail(f.Pos.Errorf("%q cannot be the name of a port", f.Key).WithHint("it is built in; choose another name"))
			continue
		}
		p := Port{Name: f.Key, Pos: f.Pos, FixChecksums: FixChecksumsAuto, XDPMode: XDPAuto}
		r.port(&p, f.Value)
		if other, taken := devices[p.Device]; taken && p.Device != "" {
			r.Fail(p.DevicePos.Errorf("device %q is port %q already", p.Device, other).WithHint("a device is one port; tell networks on it apart by VLANs of zones"))
		}
		devices[p.Device] = p.Name
		c.Ports = append(c.Ports, p)
	}
	if len(n.Fields) == 0 {
		r.Fail(n.Pos.Errorf("a gateway needs at least one port"))
	}
	if len(c.Ports) > maxPorts {
		r.Fail(c.Ports[maxPorts].Pos.Errorf("gateway has %d ports, more than %d", len(c.Ports), maxPorts))
	}
	slices.SortFunc(c.Ports, func(a, b Port) int { return strings.Compare(a.Name, b.Name) })
}

func (r *configReader) port(p *Port, n *firewall.Node) {
	f := r.Fields(n, "a port", configKeys["port"])
	if v := f["device"]; v != nil {
		p.DevicePos = v.Pos
		name, ok := r.Text(v, "device")
		if ok && (name == "" || len(name) > maxDevice || strings.ContainsAny(name, "/ \t") || name == "." || name == "..") {
			r.Fail(v.Pos.Errorf("%q is not the name of a network device", name).WithHint("as `ip link` shows it, at most %d characters", maxDevice))
		}
		p.Device = name
	} else if n.Kind == firewall.MapNode {
		r.Fail(p.Pos.Errorf("port %q names no device", p.Name).WithHint("add device: as `ip link` shows it"))
	}
	if v := f["mtu"]; v != nil {
		p.MTU, _ = r.Int(v, "mtu", 68, 65535)
	}
	if v := f["fix_offloads"]; v != nil {
		p.FixOffloads = r.Bool(v, "fix_offloads")
	}
	if v := f["fix_checksums"]; v != nil {
		p.FixChecksums = FixChecksums(r.Choice(v, "fix_checksums", "auto", "on", "off"))
	}
	if v := f["xdp_mode"]; v != nil {
		p.XDPMode = XDPMode(r.Choice(v, "xdp_mode", "auto", "native", "generic"))
	}
	if v := f["mss_clamp"]; v != nil {
		p.MSSClamp = r.mssClamp(v)
	}
}

func (r *configReader) inline(c *Config, n *firewall.Node) {
	if n.Kind != firewall.ListNode {
		r.Fail(n.Pos.Errorf("inline must be a list of pairs, not %s", n.Kind).WithHint("as in inline: [[lan0, wan0]]"))
		return
	}
	used := make(map[string]bool)
	for _, pair := range n.Items {
		if pair.Kind != firewall.ListNode || len(pair.Items) != 2 {
			r.Fail(pair.Pos.Errorf("an inline pair is a list of two ports").WithHint("as in inline: [[lan0, wan0]]"))
			continue
		}
		var names [2]string
		for i, item := range pair.Items {
			name, ok := r.Text(item, "a port")
			switch {
			case !ok:
			case !slices.Contains(c.PortNames(), name):
				r.Fail(firewall.Unknown(item.Pos, "port", name, c.PortNames(), "declare it under `ports`"))
			case used[name]:
				r.Fail(item.Pos.Errorf("port %q is joined already", name).WithHint("a port has one inline peer"))
			}
			used[name] = true
			names[i] = name
		}
		c.Inline = append(c.Inline, names)
	}
	if len(c.Inline) > maxPairs {
		r.Fail(n.Items[maxPairs].Pos.Errorf("gateway has %d inline pairs, more than %d", len(c.Inline), maxPairs))
	}
}

// management is required, so that nobody locks himself out by forgetting it.
func (r *configReader) management(c *Config, doc, n *firewall.Node) {
	if n == nil {
		r.Fail(doc.Pos.Errorf("file does not say management").
			WithHint("add management: {from: [ZONE], services: [ssh]}, which no policy can cut off, or management: none"))
		return
	}
	if n.Kind == firewall.ScalarNode {
		if n.Text != firewall.NameNone {
			r.Fail(firewall.Unknown(n.Pos, "management", n.Text, []string{firewall.NameNone}, "write {from: [ZONE], services: [ssh]}, or none"))
		}
		return
	}
	f := r.Fields(n, "management", configKeys["management"])
	for _, list := range []struct {
		key, what string
		to        *[]firewall.Ref
	}{{"from", "a zone", &c.Management.From}, {"services", "a service", &c.Management.Services}} {
		v := f[list.key]
		if v == nil || len(r.List(v)) == 0 {
			if n.Kind == firewall.MapNode {
				r.Fail(n.Pos.Errorf("management does not say %s", list.key).WithHint("write {from: [ZONE], services: [ssh]}, or none"))
			}
			continue
		}
		for _, item := range r.List(v) {
			if name, ok := r.Text(item, list.what); ok {
				*list.to = append(*list.to, firewall.Ref{Name: name, Pos: item.Pos})
			}
		}
	}
}

// path reads a path and makes it relative to nothing.
func (r *configReader) path(n *firewall.Node, what string) string {
	text, ok := r.Text(n, what)
	if !ok {
		return ""
	}
	if text == "" {
		r.Fail(n.Pos.Errorf("%s is an empty path", what))
		return ""
	}
	if filepath.IsAbs(text) {
		return filepath.Clean(text)
	}
	return filepath.Join(r.dir, text)
}
