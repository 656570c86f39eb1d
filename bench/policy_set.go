package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// A policyRun is what one set of rules gave, and its peer beside it while that goes on.
type policyRun struct {
	*policyRig
	name string
	peer *policyPeer // nil: there is none, or none any more

	compile, change, apart    []float64 // s
	peerCompile, peerChange   []float64
	miss, missP99, peerMisses []float64 // ns
}

// beside has the peer do what softdpu has just done. It goes on without one that cannot.
func (r *policyRun) beside(ctx context.Context, do func(*policyPeer) error) error {
	if r.peer == nil {
		return nil
	}
	err := do(r.peer)
	if err != nil && ctx.Err() == nil {
		r.leaveOut(r.name+" of nftables", err)
		r.peer, err = nil, nil
	}
	return err
}

// set measures one set of rules.
func (p *policyRig) set(ctx context.Context, kind string, size int, text []byte) ([]Result, error) {
	r := &policyRun{policyRig: p, name: fmt.Sprintf("%s-%d", kind, size), peer: p.peer}
	text = firstRules(text, size)
	policy, rules, err := denyingPolicy(text, kind)
	if err != nil {
		return nil, err
	}
	err = r.beside(ctx, func(p *policyPeer) error {
		err := p.take(text)
		r.env.PeerConfig[nftPeer+"-"+r.name] = nftSummary(p.rules)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.o.Progress(fmt.Sprintf("%s: compiling %d rules", r.name, rules))
	compiled, err := r.compileAll(ctx, policy, max(1, min(r.o.Rounds, 30_000/size)))
	if err != nil {
		return nil, err
	}
	rnd := rand.New(rand.NewPCG(r.o.Seed, uint64(size)))
	headers, err := drawHeaders(ownEntries(compiled), r.o.Headers, rnd)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSetLeftOut, err)
	}
	if err := r.pinned(func() error { return r.missAll(ctx, headers) }); err != nil {
		return nil, err
	}
	r.o.Progress(r.name + ": changing single rules")
	editTime := r.o.EditTime
	if size < 100_000 {
		editTime /= 3
	}
	if r.change, r.apart, err = r.changeOne(policy, editTime, rnd); err != nil {
		return nil, err
	}
	err = r.beside(ctx, func(p *policyPeer) (err error) {
		r.peerChange, err = p.changeOne(ctx, len(r.change), r.o.EditTime/3, rnd)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r.results(kind, size), nil
}

// compileAll puts a policy in force several times.
func (r *policyRun) compileAll(ctx context.Context, policy string, times int) (compiled *firewall.Compiled, err error) {
	for range times {
		begin := time.Now()
		next, err := compileAfter([]byte(policy), nil)
		if err == nil {
			err = r.publish(next)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: softdpu cannot load it: %w", errSetLeftOut, err)
		}
		compiled = next.compiled
		r.compile = append(r.compile, time.Since(begin).Seconds())
		err = r.beside(ctx, func(p *policyPeer) error {
			seconds, err := p.load(ctx)
			if err == nil {
				r.peerCompile = append(r.peerCompile, seconds)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return compiled, nil
}

// missAll classifies packets, round by round.
func (r *policyRun) missAll(ctx context.Context, headers []header) error {
	prog, err := r.plane.Program()
	if err != nil {
		return err
	}
	defer prog.Close()
	m, err := r.layHeaders(headers, prog)
	if err != nil {
		return err
	}
	defer m.coll.Close()
	err = r.beside(ctx, func(p *policyPeer) error { return p.lay(m.coll.Maps[bpf.BenchMapTrace], len(headers)) })
	if err != nil {
		return err
	}
	if r.peer != nil {
		defer r.peer.unlay()
	}
	for round := -1; round < r.o.Rounds; round++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.measure(r.policyRig, round >= 0); err != nil {
			return err
		}
		if err := r.beside(ctx, func(p *policyPeer) error { return p.measure(round >= 0) }); err != nil {
			return err
		}
		r.o.Progress(fmt.Sprintf("%s: round %d of %d", r.name, round+1, r.o.Rounds))
	}
	r.miss, r.missP99 = m.mean, m.p99
	switch {
	case r.peer == nil:
	case median(r.peer.each) > 0:
		r.peerMisses = r.peer.each
	default:
		r.leaveOut(r.name+" of nftables", errors.New("its rules took no time that other work on this machine did not hide"))
	}
	return nil
}

// results holds what there is against limits and against the peer.
func (r *policyRun) results(kind string, size int) []Result {
	compileMost, changeMost := 0.0, 0.0
	if size == 100_000 {
		compileMost, changeMost = compileGoal, changeGoal
	}
	list := held("miss-"+r.name, "ns", r.miss, r.peerMisses, missGoals[size][kind])
	list = append(list, summarize("miss-"+r.name+"-p99", "ns", r.missP99))
	list = append(list, held("compile-"+r.name, "s", r.compile, r.peerCompile, compileMost)...)
	list = append(list, held("change-one-"+r.name, "s", percentile99(r.change), percentile99(r.peerChange), changeMost)...)
	return append(list, held("change-apart-"+r.name, "s", percentile99(r.apart), nil, changeMost)...)
}

// held is a result beside a peer, if that has a value for each of ours, and against a limit that is not 0: two results
// if there are both.
func held(name, unit string, ours, theirs []float64, limit float64) []Result {
	r := summarize(name, unit, ours)
	var list []Result
	if limit > 0 {
		list = append(list, r.against(limit))
		r.Name += "/" + nftPeer
	}
	switch {
	case len(theirs) == len(ours):
		list = append(list, r.versus(nftPeer, ours, theirs))
	case limit == 0:
		list = append(list, r)
	}
	return list
}

// percentile99 is the 99th percentile of edits' seconds, if there are any.
func percentile99(edits []float64) []float64 {
	if len(edits) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(edits))
	return []float64{sorted[(len(sorted)-1)*99/100]}
}

// ownEntries are those of the policy's rules, without the built-in ones.
func ownEntries(compiled *firewall.Compiled) []flowtable.ACLEntry {
	const rule = 1<<24 - 1
	return slices.DeleteFunc(slices.Clone(compiled.Entries), func(e flowtable.ACLEntry) bool { return e.Verdict&rule < firewall.RuleFirst })
}

func (r *policyRig) publish(next *rules) error {
	return r.gw.Do(func() error {
		r.epoch++
		err := r.plane.Publish(dataplane.Generation{
			Epoch: 1 + r.epoch, ACL: next.acl, Revised: next.revised, Change: next.change, Rules: len(next.compiled.Rules) - 1,
		})
		if err == nil {
			r.rules = next
		}
		return err
	})
}
