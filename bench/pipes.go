package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

// PipesSizes are the numbers of entries that look-ups are timed at.
var PipesSizes = []int{1000, 1_000_000, 10_000_000}

const (
	pipesPeer  = "bpf-hash"
	pipesBatch = 16384   // entries
	pipesMost  = 1000000 // entries that come and go in a round
	pipesGoal  = 300_000 // entries inserted a second, at the least
	pipesFrame = 64      // bytes
	pipesLoad  = 20_000  // look-ups of a test run beside changes
)

// PipesOptions of `bench pipes`. The zero value is a full run.
type PipesOptions struct {
	Rounds   int    // of each figure; 0 = 7
	Seed     uint64 // of keys and of the order of packets; 0 = 1
	Sizes    []int  // empty = PipesSizes
	Probes   int    // packets of a round, a power of two; 0 = 1,048,576
	Progress func(string)
}

// Pipes measures tables of exact matches: how fast entries come into a live one and leave it, and what a packet's
// look-up takes, beside a hash map of the kernel: method in docs/BENCHMARKS.md.
func Pipes(ctx context.Context, o PipesOptions) (*Report, error) {
	o.fill()
	report := &Report{Bench: "pipes", Environment: newEnvironment(o.Seed)}
	env := &report.Environment
	env.Driver, env.XDPMode, env.Engine, env.Pinning = "test run", "none", "xdp", "CPU 1 for look-ups; changes where the system puts them"
	env.Method = "BPF_PROG_TEST_RUN over " + strconv.Itoa(o.Probes) + " keys of five words in random order, each of which has an entry; the same program without a look-up is subtracted round by round; entries come and go in batches of " +
		strconv.Itoa(pipesBatch) + " while the same program looks keys up on another CPU"
	env.Peers = map[string]string{pipesPeer: env.Kernel}
	env.PeerConfig = map[string]string{pipesPeer: "BPF_MAP_TYPE_HASH, preallocated, keys of 20 bytes, values of 128; BPF_MAP_UPDATE_BATCH and BPF_MAP_DELETE_BATCH of " + strconv.Itoa(pipesBatch)}
	for _, size := range o.Sizes {
		if size < 1 {
			return nil, fmt.Errorf("look up among %d entries: name a number from 1", size)
		}
		results, err := pipesOf(ctx, &o, size)
		if err != nil {
			return nil, fmt.Errorf("%d entries: %w", size, err)
		}
		report.Results = append(report.Results, results...)
	}
	return report, nil
}

func (o *PipesOptions) fill() {
	if o.Rounds == 0 {
		o.Rounds = 7
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if len(o.Sizes) == 0 {
		o.Sizes = PipesSizes
	}
	if o.Probes == 0 {
		o.Probes = 1 << 20
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
}

// pipesOf measures tables of one size: look-ups in full ones, then that entries come and go.
func pipesOf(ctx context.Context, o *PipesOptions, size int) (results []Result, err error) {
	o.Progress(fmt.Sprintf("%d entries: filling a table and its peer", size))
	keys := pipeKeys(size, o.Seed)
	b, err := newPipesBed(size, o.Probes)
	if err != nil {
		return nil, err
	}
	defer b.close()
	sides := []pipesSide{b.table, b.peer}
	for _, s := range sides {
		if _, err := s.change(keys, true); err != nil {
			return nil, err
		}
	}
	rnd := rand.New(rand.NewPCG(o.Seed, uint64(size)))
	for i := range b.probes {
		copy(b.probes[i].Key[:], keys[rnd.IntN(size)][:])
	}
	var found, peerFound []float64
	err = pinnedHere(func() error {
		for round := -1; round < o.Rounds; round++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			var ns [3]float64
			for i, name := range []string{bpf.PipeBenchProgProbeNothing, bpf.PipeBenchProgProbeFind, bpf.PipeBenchProgProbePeer} {
				if ns[i], err = b.lookUp(name); err != nil {
					return err
				}
			}
			if round >= 0 {
				found, peerFound = append(found, ns[1]-ns[0]), append(peerFound, ns[2]-ns[0])
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	name := sizeName(size)
	results = append(results, summarize("lookup-"+name, "ns", found).versus(pipesPeer, found, peerFound))
	var inserts, removes [2][]float64
	moved := keys[:min(size, pipesMost)]
	for round := range o.Rounds {
		o.Progress(fmt.Sprintf("%d entries: round %d of %d", size, round+1, o.Rounds))
		for i, s := range sides {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			rates, err := b.comeAndGo(s, moved)
			if err != nil {
				return nil, err
			}
			removes[i], inserts[i] = append(removes[i], rates[0]), append(inserts[i], rates[1])
		}
	}
	insert := summarize("insert-"+name, "entries/s", inserts[0])
	results = append(results, insert.against(pipesGoal))
	insert.Name += "/" + pipesPeer
	results = append(results, insert.versus(pipesPeer, inserts[0], inserts[1]))
	return append(results, summarize("remove-"+name, "entries/s", removes[0]).versus(pipesPeer, removes[0], removes[1])), nil
}

// pinnedHere calls fn on CPU 1, where there is one.
func pinnedHere(fn func() error) error {
	unpin, err := pin(min(1, runtime.NumCPU()-1))
	if err != nil {
		return err
	}
	defer unpin()
	return fn()
}

func sizeName(size int) string {
	switch {
	case size%1_000_000 == 0:
		return strconv.Itoa(size/1_000_000) + "m"
	case size%1000 == 0:
		return strconv.Itoa(size/1000) + "k"
	}
	return strconv.Itoa(size)
}

// pipeKeys draws different keys: addresses, ports and a protocol.
func pipeKeys(n int, seed uint64) []pipeKey {
	keys := make([]pipeKey, n)
	for i := range keys {
		// Odd multipliers leave numbers of 32 bits different.
		keys[i] = pipeKey{uint32(i)*0x9e3779b1 + uint32(seed), 0xc0a80000 | uint32(i)>>7&0xffff, uint32(i)*31&0xffff | 1024, 443, 6}
	}
	rand.New(rand.NewPCG(seed, 7)).Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// comeAndGo removes keys and inserts them again, each all at once, while packets look keys up. It returns how many a
// second both are.
func (b *pipesBed) comeAndGo(s pipesSide, keys []pipeKey) (rates [2]float64, err error) {
	stop := make(chan struct{})
	var load sync.WaitGroup
	var loadErr error
	load.Go(func() {
		frame := make([]byte, pipesFrame)
		for loadErr == nil {
			select {
			case <-stop:
				return
			default:
			}
			_, loadErr = b.coll.Programs[s.program()].Run(&ebpf.RunOptions{Data: frame, Repeat: pipesLoad})
		}
	})
	for i, insert := range []bool{false, true} {
		var took time.Duration
		if took, err = s.change(keys, insert); err != nil {
			break
		}
		rates[i] = float64(len(keys)) / took.Seconds()
	}
	close(stop)
	load.Wait()
	runtime.GC() // what one side leaves is not the other's to clean up
	return rates, errors.Join(err, loadErr)
}

// batches cuts keys up.
func batches(keys []pipeKey) [][]pipeKey { return slices.Collect(slices.Chunk(keys, pipesBatch)) }
