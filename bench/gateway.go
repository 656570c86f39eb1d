package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

// GatewayOptions of `bench gateway`. The zero value is a full run.
type GatewayOptions struct {
	Rounds   int           // 0 = 9
	Duration time.Duration // of each measurement; 0 = 1 s
	Only     []string      // contenders by name; empty = all
	Progress func(string)
}

const gatewayFlows = 1000

// contestant is one way to forward in a lab of its own.
type contestant struct {
	name   string
	config string // command lines and rule files in full
	start  func(*contestant) (forwarder, error)
	prefix string // of its lab

	// opens is what happens with contestants who are to open flows: every frame is of another one.
	opens bool

	rates []float64 // packets/s, one a round
}

// forwarder is a running gateway with something that loads it.
type forwarder interface {
	wire() *wires
	close() error
}

// Gateway measures forwarding on one core: softdpu beside the kernel under nftables rules and beside
// bare XDP redirects, in turn. The method is in docs/BENCHMARKS.md.
func Gateway(ctx context.Context, o GatewayOptions) (report *Report, err error) {
	if o.Rounds == 0 {
		o.Rounds = 9
	}
	if o.Duration == 0 {
		o.Duration = time.Second
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, fmt.Errorf("find the peer: %w: install nftables", err)
	}
	var loads []*load
	defer func() {
		for _, l := range loads {
			err = errors.Join(err, l.close())
		}
	}()
	env := newEnvironment(0)
	env.Peers, env.PeerConfig = map[string]string{}, map[string]string{}
	var all []*contestant
	for i, c := range contestants() {
		if !selected(o.Only, c.name) {
			continue
		}
		o.Progress("starting " + c.name)
		l, err := startLoad(fmt.Sprintf("%s%d", labPrefix, i), c)
		if errors.Is(err, errNotHere) {
			env.PeerConfig[c.name] = err.Error()
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", c.name, err)
		}
		loads, all = append(loads, l), append(all, c)
		env.PeerConfig[c.name] = c.config
		if l.tag != "" {
			env.ProgramTag, env.XDPMode, env.Driver = l.tag, l.mode, "veth"
		}
	}
	for round := -1; round < o.Rounds; round++ { // the first warms up
		for i, l := range loads {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			d := o.Duration
			if round < 0 {
				d /= 4
			}
			if all[i].opens {
				d = openingFor
			}
			rate, err := l.measure(d)
			if err == nil && all[i].opens {
				err = l.forget()
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", all[i].name, err)
			}
			if !l.waited {
				env.PeerConfig[all[i].name] = all[i].config + "\n(the generator did not keep up: the figure is the generator's)"
			}
			if round >= 0 {
				all[i].rates = append(all[i].rates, rate)
			}
		}
		o.Progress(fmt.Sprintf("round %d of %d", round+1, o.Rounds))
	}
	env.Engine = "xdp"
	env.Pinning = "generator CPU 0; gateway's NAPI thread and the sink behind it CPU 1"
	env.Method = fmt.Sprintf("60-byte UDP frames of %d flows in turn, each answered once beforehand, as fast as the gateway takes them with at most %d on their way; packets counted at the far end; contenders in turn, %v each, %d rounds; of nat-new-flows each frame is the first of another flow, %v each, after which all flows are taken away", gatewayFlows, flightWindow, o.Duration, o.Rounds, openingFor)
	if v, err := exec.Command("nft", "--version").Output(); err == nil {
		env.Peers["nftables"] = strings.TrimSpace(string(v))
	}
	env.Peers["kernel"] = env.Kernel
	return gatewayReport(env, all), nil
}

// gatewayReport pairs each of ours with its peers, round by round.
func gatewayReport(env Environment, all []*contestant) *Report {
	by := map[string]*contestant{}
	for _, c := range all {
		by[c.name] = c
	}
	report := &Report{Bench: "gateway", Environment: env}
	for _, pair := range []struct{ result, ours, peer string }{
		{"forward-10-rules", "softdpu-10", "kernel-nft-10"},
		{"forward-1000-rules", "softdpu-1000", "kernel-nft-1000"},
		{"forward-1000-rules-established", "softdpu-1000", "kernel-nft-1000-established"},
		{"forward-1000-rules-established/nft-flowtable", "softdpu-1000", "kernel-nft-flowtable"},
		{"forward-redirect", "softdpu-10", "xdp-redirect"},
		{"forward-redirect/xdp-reroute", "softdpu-10", "xdp-reroute"},
		{"nat-new-flows", "softdpu-masquerade", "kernel-nft-masquerade"},
	} {
		ours, peer := by[pair.ours], by[pair.peer]
		if ours == nil || peer == nil {
			continue
		}
		r := summarize(pair.result, "packets/s", ours.rates).versus(pair.peer, ours.rates, peer.rates)
		report.Results = append(report.Results, r)
	}
	return report
}

func contestants() []*contestant {
	return []*contestant{
		softdpu(10), softdpu(1000),
		kernel("kernel-nft-10", nftRules(10, "")),
		kernel("kernel-nft-1000", nftRules(1000, "")),
		kernel("kernel-nft-1000-established", nftRules(1000, "    ct state established,related accept\n")),
		kernel("kernel-nft-flowtable", nftFlowtable(nftRules(1000, "    meta l4proto udp ct state established flow add @fast\n    ct state established,related accept\n"))),
		redirect("xdp-redirect", bpf.BenchProgRedirect, "an XDP program of one bpf_redirect_map on lan"),
		redirect("xdp-reroute", bpf.BenchProgReroute, "the same, with constant MACs, TTL and header checksum rewritten"),
		softdpuMasquerade(), kernelMasquerade(),
	}
}

// Contender is one way to forward and what it runs with.
type Contender struct{ Name, Config string }

// GatewayContenders lists the contenders of Gateway with their command lines and rule files.
func GatewayContenders() []Contender {
	var list []Contender
	for _, c := range contestants() {
		list = append(list, Contender{c.name, c.config})
	}
	return list
}
