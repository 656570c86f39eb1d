package pipe_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/random"
)

// The object's own program loads with pipelines of each kind in it, with one of all of them that is in parts, and with
// one that crosses every limit: no chain of calls needs more stack than there is.
func TestLoads(t *testing.T) {
	needsRoot(t)
	r := rand.New(rand.NewPCG(17, 17))
	lines := map[string]*pipe.Pipeline{"all": random.Pipeline(r, random.Size{Pipes: 40, Entries: 40}), "crossing": crossing(r, 1900)}
	for _, kind := range pipe.Kinds() {
		kinds := []pipe.Kind{kind}
		if kind == pipe.OrderedList {
			kinds = append(kinds, pipe.Control)
		}
		lines[string(kind)] = random.Pipeline(r, random.Size{Kinds: kinds, Pipes: 6, Entries: 20})
	}
	for name, line := range lines {
		t.Run(name, func(t *testing.T) {
			o := pipe.Options{Limits: pipe.Limits{Always: true}, Trace: name == "all"}
			if name == "all" {
				o.Limits.Function = 1500
			}
			p := compiled(t, line, o)
			spec, err := bpf.LoadPipes()
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Replace(spec.Programs[bpf.PipesProgSoftdpuPipes]); err != nil {
				t.Fatal(err)
			}
			if err := spec.Variables[bpf.PipesVarUsed].Set(p.Used); err != nil {
				t.Fatal(err)
			}
			for _, m := range spec.Maps {
				m.Pinning = ebpf.PinNone
			}
			c, err := ebpf.NewCollection(spec)
			if err != nil {
				var ve *ebpf.VerifierError
				if errors.As(err, &ve) {
					err = fmt.Errorf("%w: %s", err, strings.Join(ve.Log[max(0, len(ve.Log)-20):], "\n"))
				}
				t.Fatal(err)
			}
			c.Close()
		})
	}
}
