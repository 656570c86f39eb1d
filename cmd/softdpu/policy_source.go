package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/gateway/sim"
)

// policySource are the flags by which verbs that work without a daemon are told of gateway and policy.
type policySource struct {
	config   string
	policies []string
	routes   []string
	own      []string // of --address
}

func (s *policySource) addConfigFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.config, "config", "c", "", "the gateway's configuration, which names ports and policy")
}

func (s *policySource) addPolicyFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&s.policies, "policy", nil, "policy `file` or directory (several: repeat it); in the place of the configuration's")
}

func (s *policySource) addRoutesFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&s.routes, "routes", nil, "`file` with the output of 'ip -j route show table all', - for the standard input (several: repeat it)")
}

func (s *policySource) addAddressFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&s.own, "address", nil, "`PORT=ADDRESS` or PORT.VLAN=ADDRESS: what masquerading writes there, if --routes does not tell (several: repeat it)")
}

// offline is what those flags came to.
type offline struct {
	config   *gateway.Config // nil without -c
	policy   *firewall.Policy
	compiled *firewall.Compiled
	routes   *sim.KernelRoutes // nil without --routes
	devices  []sim.Device      // of --address
}

// load reads configuration, policy and routes. Without a configuration the policy is compiled with
// options, and without either there is none: policy and compiled are nil.
func (s *policySource) load(env *Env, options firewall.CompileOptions) (*offline, error) {
	o := &offline{}
	paths := s.policies
	options.Now = time.Now()
	if s.config != "" {
		config, err := gateway.LoadConfig(s.config)
		if err != nil {
			return nil, err
		}
		o.config, options = config, config.CompileOptions(time.Now())
		if len(paths) == 0 {
			paths = []string{config.Policy}
		}
	}
	if len(paths) == 0 {
		return o, nil
	}
	var err error
	if o.policy, err = firewall.Load(paths...); err != nil {
		return nil, err
	}
	if o.compiled, err = firewall.Compile(o.policy, options); err != nil {
		return nil, err
	}
	if err := s.loadAddresses(o); err != nil {
		return nil, err
	}
	return o, s.loadRoutes(env, o)
}

// loadAddresses reads --address.
func (s *policySource) loadAddresses(o *offline) error {
	for _, text := range s.own {
		name, address, _ := strings.Cut(text, "=")
		a, err := netip.ParseAddr(address)
		if err != nil {
			return fmt.Errorf("--address %s: write PORT=ADDRESS, as in wan0=192.0.2.2", text)
		}
		d := sim.Device{Port: name}
		exists := func(z firewall.PortZone) bool { return z.Port == d.Port }
		if !slices.ContainsFunc(o.compiled.Ports, exists) {
			if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
				id, err := strconv.ParseUint(name[dot+1:], 10, 12)
				if err == nil {
					d.Port, d.VLAN = name[:dot], uint16(id)
				}
			}
			if !slices.ContainsFunc(o.compiled.Ports, exists) {
				return fmt.Errorf("--address %s: the policy has no port %q", text, d.Port)
			}
		}
		if a.Is4() {
			d.IP4 = a
		} else {
			d.IP6 = a
		}
		o.devices = append(o.devices, d)
	}
	return nil
}

// deviceAddress returns what masquerading writes at a port and VLAN, if that is known.
func (o *offline) deviceAddress(port string, vlan uint16, is4 bool) (netip.Addr, bool) {
	all := slices.Clone(o.devices)
	if o.routes != nil {
		ip4, ip6 := ownAddresses(o.routes.Addresses[port])
		all = append(append(all, sim.Device{Port: port, IP4: ip4, IP6: ip6}), o.routes.VLANs...)
	}
	for _, d := range all {
		a := d.IP6
		if is4 {
			a = d.IP4
		}
		if d.Port == port && d.VLAN == vlan && a.IsValid() {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// loadRoutes reads the files of --routes. The configuration or the policy says which device is which port.
func (s *policySource) loadRoutes(env *Env, o *offline) error {
	if len(s.routes) == 0 {
		return nil
	}
	var readers []io.Reader
	for _, name := range s.routes {
		if name == "-" {
			readers = append(readers, env.Stdin)
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("read routes: %w", err)
		}
		defer f.Close()
		readers = append(readers, f)
	}
	routes, err := sim.ReadKernelRoutes(io.MultiReader(readers...), o.portOf)
	if err != nil {
		return err
	}
	o.routes = &routes
	return nil
}

// portOf says which port a network device is: by the configuration, else a port has its device's name.
// A VLAN device is called DEVICE.ID, as is usual.
func (o *offline) portOf(device string) (port string, vlan uint16, ok bool) {
	if port, ok = o.deviceOf(device); ok {
		return port, 0, true
	}
	dot := strings.LastIndexByte(device, '.')
	if dot < 0 {
		return "", 0, false
	}
	id, err := strconv.ParseUint(device[dot+1:], 10, 12)
	if port, ok = o.deviceOf(device[:dot]); err != nil || !ok {
		return "", 0, false
	}
	if o.compiled != nil { // else the policy is yet to be read
		_, ok = o.compiled.ZoneOf(port, uint16(id))
	}
	return port, uint16(id), ok
}

func (o *offline) deviceOf(device string) (port string, ok bool) {
	if o.config != nil {
		for _, p := range o.config.Ports {
			if p.Device == device {
				return p.Name, true
			}
		}
		return "", false
	}
	return device, slices.ContainsFunc(o.compiled.Ports, func(p firewall.PortZone) bool { return p.Port == device })
}

// peerOf returns the inline peer of a port, "" if it is routed.
func (o *offline) peerOf(port string) string {
	if o.config != nil {
		for _, pair := range o.config.Inline {
			switch port {
			case pair[0]:
				return pair[1]
			case pair[1]:
				return pair[0]
			}
		}
	}
	return ""
}

// router answers which zone a destination lies in, for firewall.RunTests; nil if nothing is known of it.
func (o *offline) router() func(in string, dst netip.Addr) (zone string, ok bool) {
	if o.routes == nil && (o.config == nil || len(o.config.Inline) == 0) {
		return nil
	}
	return func(in string, dst netip.Addr) (string, bool) {
		if peer := o.peerOf(in); peer != "" {
			return o.zoneName(peer, 0)
		}
		if dst.IsMulticast() || dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return firewall.NameHost, true
		}
		if o.routes == nil {
			return "", false
		}
		r, ok := o.routes.Lookup(dst)
		switch {
		case !ok:
			return "", false
		case r.Kind == sim.RouteHost:
			return firewall.NameHost, true
		case r.Kind == sim.RoutePort:
			return o.zoneName(r.Port, r.VLAN)
		}
		return "", false
	}
}

func (o *offline) zoneName(port string, vlan uint16) (string, bool) {
	id, ok := zoneOf(o.compiled, port, vlan)
	return o.compiled.Zones[id], ok
}

// zoneOf returns the zone of a port's frames, or the zone of this name. Without a VLAN the port's only
// zone will do.
func zoneOf(c *firewall.Compiled, name string, vlan uint16) (id uint8, ok bool) {
	if id, ok = c.ZoneOf(name, vlan); ok {
		return id, true
	}
	var only []uint8
	for _, p := range c.Ports {
		if p.Port == name {
			only = append(only, p.Zone)
		}
	}
	if vlan == 0 && len(only) == 1 {
		return only[0], true
	}
	if i := slices.Index(c.Zones, name); i > 0 && len(only) == 0 {
		return uint8(i), true
	}
	return 0, false
}

// mistakes returns the errors of a text that a person wrote; nil if err is of another kind.
func mistakes(err error) firewall.Errors {
	var list firewall.Errors
	var one firewall.Error
	switch {
	case errors.As(err, &list):
		return list
	case errors.As(err, &one):
		return firewall.Errors{one}
	}
	return nil
}
