package pipe

import (
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

// Two CPUs at once get from the kernel's meters what the rates allow, to one in a hundred.
func TestMeterInKernel(t *testing.T) {
	const length, millis = 1000, 250
	for _, m := range []*Meter{
		{Name: "one rate", Type: "rfc2697", Rate: [2]uint64{20_000_000}, Size: [2]uint64{20_000_000, 3_000}},
		{Name: "two rates", Type: "rfc2698", Rate: [2]uint64{10_000_000, 30_000_000}, Size: [2]uint64{10_000_000, 30_000_000}},
		{Name: "two rates apart", Type: "rfc4115", Rate: [2]uint64{10_000, 20_000}, Size: [2]uint64{10_000, 20_000}, Packets: true},
	} {
		k := loadTables(t, kernelSizes{probes: 1, words: 1, first: 5})
		c, err := m.Config()
		if err != nil {
			t.Fatal(err)
		}
		k.probes[0].Length = length
		prog := k.Programs[bpf.PipeBenchProgProbeMeter]
		k.Meters[5] = c
		offer := func() { // well more than any rate lets by
			for end := time.Now().Add(millis * time.Millisecond); time.Now().Before(end); {
				if _, err := prog.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 2000}); err != nil {
					t.Error(err)
					return
				}
			}
		}
		run(t, prog, 60_000) // what the buckets hold at first: a second's worth, since the machine has other work too
		before, begin := k.tally(t), k.meterState(t, 5)
		var both sync.WaitGroup
		for range 2 {
			both.Go(offer)
		}
		both.Wait()
		for k.tally(t).Bytes[colorRed] == before.Bytes[colorRed] { // the machine had little time for this
			run(t, prog, 20_000)
		}
		after, end := k.tally(t), k.meterState(t, 5)
		seconds := float64(end.Last-begin.Last) / 1e9
		unit := 1.0
		if m.Packets {
			unit = length
		}
		// What came into a bucket, less what is in it still: the last packets may have been few.
		var spent [2]float64
		for i := range spent {
			spent[i] = (float64(m.Rate[i])*seconds - (float64(end.Tokens[i])-float64(begin.Tokens[i]))/meterUnit) * unit
		}
		want := spent
		switch m.Type {
		case "rfc2697": // the first bucket was never full
			want[1] = 0
		case "rfc2698":
			want[1] -= want[0]
		}
		for colour, want := range want {
			got := float64(after.Bytes[colour] - before.Bytes[colour])
			if got < want*0.99-length || got > want*1.01+length {
				t.Errorf("%s: %.0f bytes of colour %d in %.3f s, want %.0f", m.Name, got, colour, seconds, want)
			}
		}
	}
}

// meterState is what a meter has left: the value begins with the lock.
func (k *kernelTables) meterState(t *testing.T, number uint32) MeterState {
	t.Helper()
	var state [8]uint64
	if err := k.Maps[bpf.PipeBenchMapPipeMeterStates].Lookup(number, &state); err != nil {
		t.Fatal(err)
	}
	return MeterState{Last: state[1], Tokens: [2]uint64{state[2], state[3]}}
}
