package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
)

// errNotHere means that this kernel lacks what a peer needs.
var errNotHere = errors.New("not available on this kernel")

// gatewayConn is flow i of the load; the last rule of every rule set admits all of them.
func gatewayConn(i int) conn {
	return conn{src: ip4(10<<24 | 1<<23 | 1<<8 | uint32(i)), dst: ip4(10<<24 | 1<<22 | 2), sport: uint16(10000 + i), dport: 5001}
}

// gatewayRules calls rule for each of n rules: all but the last name what no flow is.
func gatewayRules(n int, rule func(i int, src, dst string, port int)) {
	for i := range n - 1 {
		rule(i, fmt.Sprintf("10.%d.%d.0/24", 200+i/250, i%250), fmt.Sprintf("10.99.%d.0/24", i%250), 7000+i)
	}
	rule(n-1, "10.128.0.0/9", "10.64.0.0/10", 5001)
}

type softdpuForwarder struct {
	*rig
	worker *workerCore // nil: XDP forwards
}

func (f softdpuForwarder) wire() *wires { return f.wires }

// softdpu is the packet path that `run` loads, under n rules of which the flows match the last.
func softdpu(n int) *contestant {
	var b strings.Builder
	b.WriteString("apiVersion: softdpu/v1\nkind: Policy\nzones:\n  lan: {ports: [lan]}\n  wan: {ports: [wan]}\nrules:\n")
	gatewayRules(n, func(i int, src, dst string, port int) {
		fmt.Fprintf(&b, "  - {name: rule-%d, from: {zone: lan, addresses: [%s]}, to: {zone: wan, addresses: [%s]}, service: udp/%d, action: allow}\n", i, src, dst, port)
	})
	policy := b.String()
	return &contestant{name: fmt.Sprintf("softdpu-%d", n), config: policy, start: func(c *contestant) (forwarder, error) {
		r, err := newRig(c.prefix, dataplane.Options{FlowsMax: 1 << 18}, policy)
		if err != nil {
			return nil, err
		}
		return softdpuForwarder{rig: r}, nil
	}}
}

type wiresForwarder struct {
	*wires
	after    []func() error
	redirect string // name of the program that forwards in the kernel's stead, "": there is none
}

func (f *wiresForwarder) wire() *wires { return f.wires }

func (f *wiresForwarder) close() error {
	return errors.Join(f.stop(), f.wires.close())
}

// stop takes what forwards away and leaves the wires.
func (f *wiresForwarder) stop() error {
	var err error
	for i := len(f.after) - 1; i >= 0; i-- {
		err = errors.Join(err, f.after[i]())
	}
	f.after = nil
	return err
}

// kernel forwards itself, under a rule set if it is not "".
func kernel(name, rules string) *contestant {
	config := "sysctl net.ipv4.ip_forward=1; ethtool -K lan gro on; ethtool -K wan gro on"
	if rules != "" {
		config += "; nft -f -, with:\n" + rules
	}
	return &contestant{name: name, config: config, start: func(c *contestant) (forwarder, error) {
		w, err := newWires(c.prefix)
		if err != nil {
			return nil, err
		}
		f := &wiresForwarder{wires: w}
		err = w.gw.Do(func() error {
			if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
				return err
			}
			return groOn("lan", "wan")
		})
		if err == nil && rules != "" {
			err = nft(w, rules)
		}
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		return f, nil
	}}
}

// groOn gives devices a NAPI of their own, without which no redirected frame reaches them.
func groOn(devices ...string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer e.Close()
	for _, d := range devices {
		if err := e.Change(d, map[string]bool{"rx-gro": true}); err != nil {
			return fmt.Errorf("turn GRO of %s on: %w", d, err)
		}
	}
	return nil
}

func nft(w *wires, rules string) error {
	cmd := w.gw.Command(context.Background(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	out, err := cmd.CombinedOutput()
	if err != nil {
		if bytes.Contains(out, []byte("flowtable")) || bytes.Contains(out, []byte("Operation not supported")) || bytes.Contains(out, []byte("No such file")) {
			return fmt.Errorf("%w: nft: %s", errNotHere, bytes.TrimSpace(out))
		}
		return fmt.Errorf("load nftables rules: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// nftRules is a forward chain of n rules behind `first`, for the flows' direction; answers have a rule
// of their own at its end.
func nftRules(n int, first string) string {
	var b strings.Builder
	b.WriteString("table inet bench {\n  chain forward {\n    type filter hook forward priority filter; policy drop;\n" + first)
	gatewayRules(n, func(_ int, src, dst string, port int) {
		fmt.Fprintf(&b, "    ip saddr %s ip daddr %s udp dport %d accept\n", src, dst, port)
	})
	b.WriteString("    iifname \"wan\" accept\n  }\n}\n")
	return b.String()
}

// nftFlowtable adds the flow table that `flow add @fast` names.
func nftFlowtable(rules string) string {
	return strings.Replace(rules, "table inet bench {\n", "table inet bench {\n  flowtable fast {\n    hook ingress priority filter\n    devices = { lan, wan }\n  }\n", 1)
}

// redirect is a program of bench.c that sends every frame by wan.
func redirect(name, program, config string) *contestant {
	return &contestant{name: name, config: config, start: func(c *contestant) (forwarder, error) {
		w, err := newWires(c.prefix)
		if err != nil {
			return nil, err
		}
		f := &wiresForwarder{wires: w, redirect: program}
		err = w.gw.Do(func() error { return f.attachRedirect(program) })
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		return f, nil
	}}
}

func (f *wiresForwarder) attachRedirect(program string) error {
	wan, err := deviceIndex("wan")
	if err != nil {
		return err
	}
	spec, err := bpf.LoadBench()
	if err != nil {
		return err
	}
	macs := [2]uint64{macWord(f.serve), macWord(f.wanMAC)}
	if err := spec.Variables[bpf.BenchVarNextMac].Set(macs); err != nil {
		return err
	}
	coll, err := loadBench(spec, nil, program)
	if err != nil {
		return err
	}
	f.after = append(f.after, func() error { coll.Close(); return nil })
	if err := coll.Maps[bpf.BenchMapOutputs].Put(uint32(0), wan); err != nil {
		return fmt.Errorf("set output: %w", err)
	}
	lan, err := deviceIndex("lan")
	if err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: coll.Programs[program], Interface: int(lan), Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("attach %s: %w", program, err)
	}
	f.after = append(f.after, l.Close)
	return nil
}

// macWord is a MAC in the low 48 bits, as it stands in a frame.
func macWord(mac [6]byte) uint64 {
	return binary.LittleEndian.Uint64(append(mac[:], 0, 0))
}

// loadBench loads some of bench.c's programs, with maps of another collection in the place of their own.
func loadBench(spec *ebpf.CollectionSpec, shared map[string]*ebpf.Map, programs ...string) (*ebpf.Collection, error) {
	for name := range spec.Programs {
		if !selected(programs, name) {
			delete(spec.Programs, name)
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", strings.Join(programs, ", "), err)
	}
	return coll, nil
}
