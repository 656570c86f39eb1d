package dataplane

import (
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options Options
		want    Sizes
	}{
		{"defaults", Options{}, Sizes{1_000_000, 500_000, 524_288, 10, 15_625, 1024, 16_384}},
		{"one flow", Options{FlowsMax: 1, HalfOpenShare: 0.1}, Sizes{1, 1, 2, 0, 1024, 1024, 16_384}},
		{"not a power of two", Options{FlowsMax: 100_000, HalfOpenShare: 0.25}, Sizes{100_000, 25_000, 65_536, 10, 1562, 1024, 16_384}},
		{"exactly twice", Options{FlowsMax: 65_536}, Sizes{65_536, 32_768, 32_768, 10, 1024, 1024, 16_384}},
		{"few groups, few locks", Options{FlowsMax: 256}, Sizes{256, 128, 128, 3, 1024, 1024, 16_384}},
		{"many", Options{FlowsMax: 16_000_000, Rules: 100_000}, Sizes{16_000_000, 8_000_000, 8_388_608, 10, 65_536, 1024, 262_144}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.options.Sizes()
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
			if int64(got.Groups)*groupSlots < 2*got.FlowsMax {
				t.Errorf("%d groups have fewer than twice %d slots", got.Groups, got.FlowsMax)
			}
		})
	}
}

func TestSizesRefused(t *testing.T) {
	for _, tt := range []struct {
		options Options
		want    string
	}{
		{Options{FlowsMax: -1}, "flows.max is -1"},
		{Options{FlowsMax: 1 << 30}, "between 1 and 134217728"},
		{Options{HalfOpenShare: 1.5}, "half_open_share is 1.5"},
		{Options{HalfOpenShare: -0.5}, "half_open_share is -0.5"},
		{Options{Rules: 1 << 24}, "at most 16777215"},
		{Options{Ethertypes: make([]uint16, 9)}, "at most 8"},
	} {
		if _, err := tt.options.Sizes(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got error %v, want one with %q", tt.options, err, tt.want)
		}
	}
}

// The numbers of abi.h and maps.h that are written down here again.
func TestABI(t *testing.T) {
	var text string
	for _, name := range []string{"../bpf/abi.h", "../bpf/abi_work.h", "../bpf/abi_set.h", "../bpf/abi_nat.h", "../bpf/maps.h"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text += string(b)
	}
	for name, want := range map[string]uint64{
		"PORT_MAX": portMax, "PORT_SLOTS": portSlots,
		"PORT_INLINE": portInline, "PORT_VLANS": portVLANs, "PORT_FIX_CHECKSUM": portFixChecksum, "PORT_UP": portUp,
		"ZONE_NONE": zoneNone, "ZONE_HOST": zoneHost,
		"NEXTHOP_HOST": nexthopHost, "NEXTHOP_PORT": nexthopPort, "NEXTHOP_FIRST": nexthopFirst,
		"NEXTHOP_PENDING": nexthopPending, "NEXTHOP_READY": nexthopReady, "NEXTHOP_KEEP": nexthopKeep, "NEXTHOP_FED_SHIFT": nexthopFedShift,
		"QUEUE_MAX": bpf.QueueMax, "WORKER_SILENT": bpf.WorkerSilent, "CELL_NONE": bpf.CellNone,
		"STAGE_FORWARD": bpf.StageForward, "STAGE_MIRROR": bpf.StageMirror,
		"GROUP_SLOTS": groupSlots, "STRIPES": 1 << stripeBitsMax, "TICK_SHIFT": TickShift,
	} {
		m := regexp.MustCompile(`(?m)^#define ` + name + `\s+(\w+)`).FindStringSubmatch(text)
		if m == nil {
			t.Errorf("%s is not defined", name)
			continue
		}
		if got, err := strconv.ParseUint(strings.TrimSuffix(m[1], "u"), 0, 64); err != nil || got != want {
			t.Errorf("%s is %s, here %d", name, m[1], want)
		}
	}
	// What changes together must lie in one word.
	var p bpf.XDPPort
	if unsafe.Offsetof(p.Mac)/8 != unsafe.Offsetof(p.Mtu)/8 || unsafe.Offsetof(p.Ifindex)/8 != unsafe.Offsetof(p.Pair)/8 {
		t.Error("MAC and MTU, or index and flags, of a port are in two words")
	}
}

func TestPerfectHash(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 200 {
		indices := make([]uint32, 1+random.IntN(portMax))
		first := random.Uint32N(1 << 20)
		taken := make(map[uint32]bool)
		for i := range indices {
			indices[i] = first + uint32(i) // as devices made one after the other have
			if round%2 == 0 {
				for indices[i] = 0; indices[i] == 0 || taken[indices[i]]; {
					indices[i] = random.Uint32N(1<<31-1) + 1
				}
			}
			taken[indices[i]] = true
		}
		mul, err := perfectHash(indices)
		if err != nil {
			t.Fatalf("%d indices: %v", len(indices), err)
		}
		slots := make(map[uint32]uint32)
		for _, index := range indices {
			slot := index * mul >> 24
			if other, ok := slots[slot]; ok || slot >= portSlots {
				t.Fatalf("multiplier %d puts %d and %d into slot %d", mul, index, other, slot)
			}
			slots[slot] = index
		}
	}
}

func TestPerfectHashImpossible(t *testing.T) {
	if _, err := perfectHash([]uint32{7, 7}); err == nil {
		t.Error("two equal indices were kept apart")
	}
}

func TestParseRelease(t *testing.T) {
	for release, want := range map[string]kernel{
		"6.18.44-fc": {major: 6, minor: 18}, "5.15.0-91-generic": {major: 5, minor: 15}, "7.1": {major: 7, minor: 1},
		"6.1-rc3": {major: 6, minor: 1},
	} {
		if got, err := parseRelease(release); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", release, got, err)
		}
	}
	if _, err := parseRelease("linux"); err == nil {
		t.Error("a release without numbers was read")
	}
	if err := (kernel{major: 5, minor: 17}).check("5.17.9"); err == nil || !strings.Contains(err.Error(), "kernel 5.17.9 is too old: softdpu needs Linux 5.18 or newer (helpers bpf_xdp_load_bytes") {
		t.Errorf("an old kernel is refused by %v", err)
	}
	if err := (kernel{major: 5, minor: 18}).check("5.18.0"); err != nil {
		t.Error(err)
	}
	if k := (kernel{major: 5, minor: 15}); !k.atLeast(5, 15) || k.atLeast(5, 16) || k.atLeast(6, 0) || !k.atLeast(4, 20) {
		t.Error("versions are compared wrongly")
	}
}

// What the programs call exists in the oldest kernel that Open accepts, and not all of it in an older one.
func TestHelpersOfTheOldestKernel(t *testing.T) {
	since := map[asm.BuiltinFunc]kernel{
		asm.FnMapLookupElem: {major: 3, minor: 19}, asm.FnMapUpdateElem: {major: 3, minor: 19}, asm.FnMapDeleteElem: {major: 3, minor: 19},
		asm.FnKtimeGetNs: {major: 4, minor: 1}, asm.FnTailCall: {major: 4, minor: 2}, asm.FnSkbLoadBytes: {major: 4, minor: 5},
		asm.FnCsumDiff: {major: 4, minor: 6}, asm.FnSkbPullData: {major: 4, minor: 9}, asm.FnXdpAdjustHead: {major: 4, minor: 10},
		asm.FnRedirectMap: {major: 4, minor: 14}, asm.FnXdpAdjustMeta: {major: 4, minor: 15}, asm.FnXdpAdjustTail: {major: 4, minor: 18},
		asm.FnFibLookup: {major: 4, minor: 18}, asm.FnSpinLock: {major: 5, minor: 1}, asm.FnSpinUnlock: {major: 5, minor: 1},
		asm.FnGetSmpProcessorId: {major: 4, minor: 1}, asm.FnSkbStoreBytes: {major: 4, minor: 1},
		asm.FnL3CsumReplace: {major: 4, minor: 1}, asm.FnL4CsumReplace: {major: 4, minor: 1},
		asm.FnRingbufOutput: {major: 5, minor: 8}, asm.FnRingbufReserve: {major: 5, minor: 8}, asm.FnRingbufSubmit: {major: 5, minor: 8}, asm.FnRingbufDiscard: {major: 5, minor: 8},
		asm.FnKtimeGetCoarseNs: {major: 5, minor: 11},
		asm.FnXdpGetBuffLen:    {major: 5, minor: 18}, asm.FnXdpLoadBytes: {major: 5, minor: 18}, asm.FnXdpStoreBytes: {major: 5, minor: 18},
	}
	oldest := kernel{major: needs.major, minor: needs.minor}
	spec, err := bpf.LoadXDP()
	if err != nil {
		t.Fatal(err)
	}
	called := make(map[asm.BuiltinFunc]bool)
	for _, prog := range spec.Programs {
		for _, ins := range prog.Instructions {
			if ins.IsBuiltinCall() {
				called[asm.BuiltinFunc(ins.Constant)] = true
			}
		}
	}
	needed := false
	for fn := range called {
		k, ok := since[fn]
		if !ok {
			t.Errorf("since which kernel is there %s?", fn)
		} else if !oldest.atLeast(k.major, k.minor) {
			t.Errorf("%s is not in Linux %d.%d", fn, oldest.major, oldest.minor)
		}
		needed = needed || k == oldest
	}
	if !needed {
		t.Errorf("no helper needs Linux %d.%d", oldest.major, oldest.minor)
	}
}
