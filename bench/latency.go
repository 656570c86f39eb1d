package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/testenv"
)

// LatencyOptions of `bench latency`. The zero value is a full run.
type LatencyOptions struct {
	Rounds   int           // of each contender; 0 = 25
	Duration time.Duration // of each measurement; 0 = 500 ms
	Rate     float64       // frames a second; 0 = half of what the kernel carries without loss
	Seed     uint64        // of the times at which frames are sent; 0 = 1
	Progress func(string)
}

// latencyLongest is the longest measurement. In a second the kernel gives the bench's CPUs to others.
const latencyLongest = 900*time.Millisecond - latencyWarmup

// latencyShares are the percentiles that results and histograms tell.
var latencyShares = []struct {
	name    string // of the result, behind the contender's; "": there is none
	percent float64
}{{"p50", 50}, {"", 90}, {"p99", 99}, {"", 99.9}, {"", 99.99}, {"", 100}}

// Latency measures how long frames take through softdpu and through the kernel's forwarding, in turn, at
// one rate. The method is in docs/BENCHMARKS.md.
func Latency(ctx context.Context, o LatencyOptions) (report *Report, err error) {
	if o.Rounds == 0 {
		o.Rounds = 25
	}
	if o.Duration == 0 {
		o.Duration = 500 * time.Millisecond
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	switch {
	case o.Rounds < 0:
		return nil, fmt.Errorf("measure %d rounds: it must be 1 or more", o.Rounds)
	case o.Duration < time.Millisecond || o.Duration > latencyLongest:
		return nil, fmt.Errorf("measure for %v: it must be 1ms to %v", o.Duration, latencyLongest)
	case o.Rate < 0:
		return nil, fmt.Errorf("send %.0f frames a second: it must be more than 0", o.Rate)
	case o.Rate*(latencyWarmup+o.Duration).Seconds() > latencyMost:
		return nil, fmt.Errorf("send %.0f frames a second for %v: there may be %d frames at most", o.Rate, o.Duration, latencyMost)
	}
	if os.Geteuid() != 0 {
		return nil, testenv.ErrNotRoot
	}
	j, err := newJourneys()
	if err != nil {
		return nil, err
	}
	defer j.close()
	var lanes []*lane
	defer func() {
		for _, l := range lanes {
			err = errors.Join(err, l.close())
		}
	}()
	env := newEnvironment(o.Seed)
	env.PeerConfig = map[string]string{}
	for i, c := range latencyContestants() {
		o.Progress("starting " + c.name)
		l, err := startLane(fmt.Sprintf("%s%d", labPrefix, i), c, j)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", c.name, err)
		}
		lanes = append(lanes, l)
		env.PeerConfig[c.name] = c.config
		if env.ProgramTag == "" { // XDP's: with workers it is another
			env.ProgramTag, env.XDPMode, env.Driver = l.tag, l.mode, "veth"
		}
	}
	random := rand.New(rand.NewPCG(o.Seed, 0))
	rate, found := o.Rate, "as asked for"
	if rate == 0 {
		s := &rateSearch{pass: lanes[0].pass, random: random, progress: o.Progress}
		most, err := s.run(ctx)
		if err != nil {
			return nil, fmt.Errorf("find the rate that the kernel carries: %w", err)
		}
		rate, found = most/2, fmt.Sprintf("half of %.0f, which the kernel carried without loss (%s)", most, s.bound)
	}
	for round := -1; round < o.Rounds; round++ { // the first warms up
		due, warmup := warmed(rate, o.Duration, random)
		for i := range lanes { // each is the first in turn
			l := lanes[(i+round+1)%len(lanes)]
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			p, err := l.pass(due, warmup)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", l.name, err)
			}
			if round >= 0 {
				l.add(p)
			}
		}
		o.Progress(fmt.Sprintf("round %d of %d at %.0f frames/s", round+1, o.Rounds, rate))
	}
	env.Engine = "xdp"
	env.Peers = map[string]string{"kernel": env.Kernel}
	env.Pinning = "sender CPU 0; gateway's polling thread CPU 1; both real-time; of worker, the NAPI in front of it CPU 0"
	env.Method = fmt.Sprintf("%d-byte UDP frames of %d flows in turn, each answered once beforehand, sent at random times (a Poisson process) at %.0f a second (%s), whatever becomes of them; latency from the sender's last instruction before a frame leaves to the first of an XDP program at the far end, CLOCK_MONOTONIC; of worker, whose NAPI can hold the sender up, and of its peers beside it, from when a frame was due; how late by the schedule the sender was stands apart; a frame that has not come %v after the last was sent is lost and counts as that late; contenders in turn with the same schedule, %v each after %v that do not count, %d rounds",
		latencyFrame, gatewayFlows, rate, found, latencyPatience, o.Duration, latencyWarmup, o.Rounds)
	return latencyReport(env, lanes), nil
}

// latencyPeers is how many lanes, the first ones, are not ours: the kernel, and the least that a router must do.
const latencyPeers = 2

// latencyReport holds each of ours against its peers, which come first.
func latencyReport(env Environment, lanes []*lane) *Report {
	report := &Report{Bench: "latency", Environment: env}
	for _, l := range lanes[latencyPeers:] {
		for i, s := range latencyShares {
			if s.name == "" {
				continue
			}
			for n, peer := range lanes[:latencyPeers] {
				name := l.name + "-" + s.name
				if n > 0 {
					name += "/" + peer.name
				}
				ours, theirs := l.rounds[i], peer.rounds[i]
				if l.onSender() { // whom it may hold up
					ours, theirs = l.due[i], peer.due[i]
				}
				report.Results = append(report.Results, summarize(name, "us", ours).versus(peer.name, ours, theirs))
			}
		}
	}
	for _, l := range lanes {
		report.Histograms = append(report.Histograms, l.histogram())
	}
	return report
}

// latencyContestants returns the peers and then ours, by the names that results begin with.
func latencyContestants() []*contestant {
	forward := kernel("kernel", "")
	policy := strings.TrimSuffix(softdpu(10).config, "\n") + fmt.Sprintf("\n  - {name: poller, from: lan, to: host, service: udp/%d, action: allow}\n", pollerPort)
	ours := func(prefix string) (softdpuForwarder, error) {
		r, err := newRig(prefix, dataplane.Options{FlowsMax: 1 << 18}, policy)
		return softdpuForwarder{rig: r}, err
	}
	return []*contestant{
		forward,
		redirect("redirect", bpf.BenchProgReroute, "ethtool -K lan gro on; ethtool -K wan gro on; an XDP program on lan that rewrites constant MACs, TTL and header checksum, and redirects to wan"),
		{name: "xdp", config: policy, start: func(c *contestant) (forwarder, error) {
			f, err := ours(c.prefix)
			if err != nil {
				return nil, err
			}
			return f, nil
		}},
		{name: "worker", config: "force_stage: forward; workers: {count: 1, cpus: [1], mode: copy, poll: always}\n" + policy,
			start: func(c *contestant) (forwarder, error) {
				f, err := ours(c.prefix)
				if err != nil {
					return nil, err
				}
				if f.worker, err = f.startWorker(); err != nil {
					return nil, errors.Join(err, f.close())
				}
				return f, nil
			}},
	}
}

// LatencyContenders lists the contenders of Latency with their command lines and policies.
func LatencyContenders() []Contender {
	var list []Contender
	for _, c := range latencyContestants() {
		list = append(list, Contender{c.name, c.config})
	}
	return list
}
