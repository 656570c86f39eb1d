package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/softdpu/softdpu/testenv"
)

// TestLatency measures for a moment: every frame that was sent arrived or was lost.
func TestLatency(t *testing.T) {
	testenv.RequireRoot(t)
	report, err := Latency(t.Context(), LatencyOptions{Rounds: 2, Duration: 50 * time.Millisecond, Rate: 20000})
	if err != nil {
		t.Fatal(err)
	}
	checkReport(t, report, []string{"xdp-p50", "xdp-p50/redirect", "xdp-p99", "xdp-p99/redirect", "worker-p50", "worker-p50/redirect", "worker-p99", "worker-p99/redirect"}, "us")
	for _, r := range report.Results {
		peer := "kernel"
		if strings.HasSuffix(r.Name, "/redirect") {
			peer = "redirect"
		}
		if r.Peer != peer || r.PeerValue <= 0 || r.Ratio <= 0 || len(r.Values) != 2 || len(r.Ratios) != 2 {
			t.Errorf("%s does not stand beside the %s: %+v", r.Name, peer, r)
		}
	}
	if report.Environment.PeerConfig["kernel"] == "" || report.Environment.ProgramTag == "" {
		t.Error("the report does not say what was measured")
	}
	if len(report.Histograms) != 4 {
		t.Fatalf("%d histograms, expected those of the kernel, a redirect, XDP and a worker", len(report.Histograms))
	}
	for _, h := range report.Histograms {
		if h.Sent != 2000 || h.Received+h.Lost != h.Sent || h.Doubled != 0 || h.Received < h.Sent/2 {
			t.Errorf("%s: of 2 times 1000 frames %d were sent, %d received, %d lost, %d came twice", h.Name, h.Sent, h.Received, h.Lost, h.Doubled)
		}
		n := uint64(0)
		for _, b := range h.Buckets {
			n += b.Packets
		}
		if n != h.Received {
			t.Errorf("%s: the histogram has %d frames, %d were received", h.Name, n, h.Received)
		}
		for i, p := range h.Percentiles[1:] {
			if before := h.Percentiles[i]; p.Percent <= before.Percent || p.Value < before.Value || p.SinceDue < before.SinceDue || p.Late < before.Late {
				t.Errorf("%s: percentile %+v follows %+v", h.Name, p, before)
			}
		}
		if fastest := h.Percentiles[0].Value; fastest <= 0 || fastest > 1e5 {
			t.Errorf("%s: the median is %v us", h.Name, fastest)
		}
	}
}

// A gateway that stands still for 50 ms out of 100 shows in the frames that were due meanwhile, not in one
// alone: the sender does not wait for it.
func TestLatencyOfStall(t *testing.T) {
	testenv.RequireRoot(t)
	j, err := newJourneys()
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	l, err := startLane("t-lab-latency", latencyContestants()[0], j)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}()
	gw, err := l.wire().lab.Namespace("gw")
	if err != nil {
		t.Fatal(err)
	}
	const frames, slowFrom = 2000, 200
	if err := gw.Do(func() error { return attachStall(t, "lan", slowFrom, 50*time.Millisecond) }); err != nil {
		t.Fatal(err)
	}
	due := make([]uint64, frames)
	for i := range due {
		due[i] = uint64(i) * 50_000
	}
	p, err := l.pass(due, 0)
	if err != nil {
		t.Fatal(err)
	}
	if p.sent != frames || p.received+p.lost != frames {
		t.Errorf("of %d frames %d were sent, %d received and %d lost", frames, p.sent, p.received, p.lost)
	}
	// of 1000 frames that were due in those 50 ms, all but the last few were late by 10 ms or lost
	if got := p.at(&p.sinceDue, 80); got < 10_000 {
		t.Errorf("a fifth of the frames were due while the gateway stood still; the 80th percentile is %v us, the 99th %v; %d were lost",
			got, p.at(&p.sinceDue, 99), p.lost)
	}
	if got := p.at(&p.latency, 99); got < 10_000 {
		t.Errorf("the 99th percentile is %v us", got)
	}
}

// attachStall attaches a program that from a packet on takes 4096 readings of the clock for each, for d.
func attachStall(t *testing.T, device string, packet int32, d time.Duration) error {
	memory, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1})
	if err != nil {
		return err
	}
	t.Cleanup(func() { memory.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapValue(asm.R6, memory.FD(), 0), // packets, end of the stall
		asm.FnKtimeGetNs.Call(),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord),
		asm.JNE.Imm(asm.R1, packet, "started"),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, int32(d.Nanoseconds())),
		asm.StoreMem(asm.R6, 8, asm.R2, asm.DWord),
		asm.LoadMem(asm.R2, asm.R6, 8, asm.DWord).WithSymbol("started"),
		asm.JGE.Reg(asm.R7, asm.R2, "pass"),
		asm.Mov.Imm(asm.R8, 4096),
		asm.FnKtimeGetNs.Call().WithSymbol("again"),
		asm.Sub.Imm(asm.R8, 1),
		asm.JNE.Imm(asm.R8, 0, "again"),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"), // XDP_PASS
		asm.Return(),
	}})
	if err != nil {
		return err
	}
	t.Cleanup(func() { prog.Close() })
	index, err := deviceIndex(device)
	if err != nil {
		return err
	}
	at, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: int(index), Flags: link.XDPDriverMode})
	if err != nil {
		return err
	}
	t.Cleanup(func() { at.Close() })
	return nil
}

// What a passage says of times that are known.
func TestPassage(t *testing.T) {
	us := func(v ...uint64) []uint64 {
		for i := range v {
			v[i] *= 1000
		}
		return v
	}
	const begin = 1_000_000
	due := us(0, 10, 20, 30)
	for _, test := range []struct {
		name                       string
		sent, arrived              []uint64 // us; of arrived 0 is lost
		lost                       uint64
		latency, sinceDue, maxLate float64 // us: medians, and the greatest
	}{
		{"on time", us(1000, 1010, 1020, 1030), us(1002, 1012, 1022, 1032), 0, 2, 2, 0},
		{"a gateway that stands still", us(1000, 1010, 1020, 1030), us(1050, 1051, 1052, 1053), 0, 32, 32, 0},
		{"a sender that stands still", us(1050, 1051, 1052, 1053), us(1052, 1053, 1054, 1055), 0, 2, 34, 50},
		{"half is lost", us(1000, 1010, 1020, 1030), us(1002, 0, 0, 1032), 2, 2, 2, 0},
		{"more than half is lost", us(1000, 1010, 1020, 1030), us(0, 0, 0, 1032), 3, 200_000, 200_000, 0},
		{"all is lost", us(1000, 1010, 1020, 1030), us(0, 0, 0, 0), 4, 200_000, 200_000, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPassage(begin, due, test.sent, test.arrived)
			if p.sent != 4 || p.lost != test.lost || p.received+p.lost != p.sent {
				t.Errorf("sent %d, received %d, lost %d", p.sent, p.received, p.lost)
			}
			late, _ := p.late.at(1, 0)
			for _, v := range []struct {
				what      string
				got, want float64
			}{{"latency", p.at(&p.latency, 50), test.latency}, {"since due", p.at(&p.sinceDue, 50), test.sinceDue}, {"late", microseconds(late), test.maxLate}} {
				if math.Abs(v.got-v.want) > v.want/64 {
					t.Errorf("%s: %v us, expected %v", v.what, v.got, v.want)
				}
			}
		})
	}
}

// The search finds the rate above which a pretended gateway loses, though one trial in three loses a frame
// for other reasons, and above which a pretended sender is late.
func TestRateSearch(t *testing.T) {
	for _, test := range []struct {
		name        string
		loses, late float64 // frames/s
		want        float64
	}{
		{"loss", 777_777, math.Inf(1), 777_777},
		{"less than the first rate", 33_333, math.Inf(1), 33_333},
		{"the sender", math.Inf(1), 1_500_000, 1_500_000},
		{"no limit", math.Inf(1), math.Inf(1), 12_800_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			trials := 0
			s := &rateSearch{random: rand.New(rand.NewPCG(1, 2)), progress: func(string) {}, pass: func(due []uint64, warmup int) (*passage, error) {
				trials++
				rate := float64(len(due)-warmup) / rateTrial.Seconds()
				p := &passage{sent: uint64(len(due)), received: uint64(len(due))}
				if rate > test.loses || trials%3 == 0 {
					p.lost, p.received = 1, p.received-1
				}
				if rate > test.late {
					p.late.add(time.Millisecond.Nanoseconds())
				} else {
					p.late.add(10)
				}
				return p, nil
			}}
			got, err := s.run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got > test.want || got < test.want/rateStep*0.99 {
				t.Errorf("%.0f frames/s, expected %.0f", got, test.want)
			}
		})
	}
	t.Run("everything is lost", func(t *testing.T) {
		s := &rateSearch{random: rand.New(rand.NewPCG(1, 2)), progress: func(string) {}, pass: func([]uint64, int) (*passage, error) {
			return &passage{sent: 1, lost: 1}, nil
		}}
		if rate, err := s.run(t.Context()); err == nil {
			t.Errorf("found %.0f frames/s", rate)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := (&rateSearch{}).run(ctx); err == nil {
			t.Error("a cancelled search found something")
		}
	})
}

// Frames come at the rate that was asked for, independently of each other, and the same for a seed.
func TestRandomly(t *testing.T) {
	const rate = 100_000
	due := randomly(rate, time.Second, rand.New(rand.NewPCG(7, 0)))
	if len(due) != rate || !slices.IsSorted(due) || due[0] != 0 {
		t.Fatalf("%d frames, sorted %v, the first at %d", len(due), slices.IsSorted(due), due[0])
	}
	if last := float64(due[len(due)-1]); math.Abs(last/1e9-1) > 0.02 {
		t.Errorf("the last of a second's frames is due after %.3f s", last/1e9)
	}
	longer := 0 // gaps longer than their mean: 1/e of an exponential distribution
	for i := range due[1:] {
		if due[i+1]-due[i] > 1e9/rate {
			longer++
		}
	}
	if share := float64(longer) / rate; math.Abs(share-1/math.E) > 0.01 {
		t.Errorf("%.3f of the gaps are longer than the mean, expected %.3f", share, 1/math.E)
	}
	if again := randomly(rate, time.Second, rand.New(rand.NewPCG(7, 0))); !slices.Equal(due, again) {
		t.Error("the same seed gives another schedule")
	}
}

func TestLatencyRefuses(t *testing.T) {
	for _, o := range []LatencyOptions{{Rounds: -1}, {Duration: time.Minute}, {Duration: time.Nanosecond}, {Rate: -1}, {Rate: 1e9}} {
		t.Run(fmt.Sprint(o.Rounds, o.Duration, o.Rate), func(t *testing.T) {
			if _, err := Latency(t.Context(), o); err == nil {
				t.Error("it was accepted")
			}
		})
	}
}
