package pipe_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/random"
)

// parsed loads the program of pipelines as the object has it, for a pipeline's raw fields, and says what it finds in frames.
func parsed(t *testing.T, line *pipe.Pipeline) func(frame []byte) []uint32 {
	t.Helper()
	spec, err := bpf.LoadPipes()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	set := func(name string, v any) {
		if err := spec.Variables[name].Set(v); err != nil {
			t.Fatal(err)
		}
	}
	set("check_ip", uint8(1))
	for i, r := range line.Raws {
		base := slices.Index([]string{"l2", "l3", "l4", "payload"}, r.Base)
		set([]string{"raw0", "raw1", "raw2", "raw3"}[i], uint32(base<<16|r.Offset))
	}
	var o struct {
		Program *ebpf.Program `ebpf:"softdpu_pipes"`
		Scratch *ebpf.Map     `ebpf:"pipe_scratches"`
	}
	if err := spec.LoadAndAssign(&o, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		o.Program.Close()
		o.Scratch.Close()
	})
	cpus := make([][]byte, ebpf.MustPossibleCPU())
	return func(frame []byte) []uint32 {
		if _, err := o.Program.Run(&ebpf.RunOptions{Data: frame}); err != nil {
			t.Fatal(err)
		}
		if err := o.Scratch.Lookup(uint32(0), &cpus); err != nil {
			t.Fatal(err)
		}
		return slices.Clone((*bpf.PipesPipeFields)(unsafe.Pointer(&cpus[0][0])).Word[:])
	}
}

// TestParsedInKernel: the program finds in frames what whoever wrote them put there, raw fields at all bases included.
func TestParsedInKernel(t *testing.T) {
	needsRoot(t)
	runtime.LockOSThread() // and it ends with the test: its CPU is not given back
	var first unix.CPUSet
	first.Set(0)
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		t.Skipf("keep to the first CPU: %v", err)
	}
	raws := 0
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 5))
		line, err := random.Pipeline(r, random.Size{}).Resolve(random.Ports)
		if err != nil {
			t.Fatal(err)
		}
		find, source := parsed(t, line), random.Packets(r, line)
		for range 150 {
			packet := source.Next()
			if len(packet.Frame) > 1500 { // beyond a page's frame of this kernel's tests
				continue
			}
			got := find(packet.Frame)
			for w := range fieldWords {
				// No frame holds these.
				if w == int(bpf.PipesPipeWordPIPE_PORT) || w == int(bpf.PipesPipeWordPIPE_RANDOM) {
					continue
				}
				if got[w] != packet.Words[w] {
					t.Fatalf("seed %d: word %d is %#x, the frame was made with %#x\n%x\nfound %v\nmade  %v", seed, w, got[w], packet.Words[w], packet.Frame, got, packet.Words)
				}
				if w >= int(bpf.PipesPipeWordPIPE_RAW0) && got[w] != 0 {
					raws++
				}
			}
		}
	}
	if raws < 100 {
		t.Errorf("only %d raw fields are found", raws)
	}
}
