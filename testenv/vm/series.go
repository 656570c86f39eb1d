package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A series is a line of kernels, with what is to run on its newest.
type series struct {
	name    string
	title   string
	prefix  string   // of versions; none for any
	suites  []string // of the mirror, where they are looked for
	always  bool     // such a kernel can always be had
	modules []string // with "?": if the kernel has it
	limit   time.Duration
	jobs    []job
}

// wire names the machine's ports to the tests of AF_XDP sockets.
const wire = "SOFTDPU_WIRE=eth0,eth1"

var known = []series{
	{
		name: "6.1", title: "Debian 12's own kernel", prefix: "6.1", always: true,
		suites:  []string{"bookworm", "bookworm-security"},
		modules: modules,
		limit:   20 * time.Minute,
		jobs: []job{
			{name: "bpf", folder: "bpf", limit: 5 * time.Minute},
			{name: "flowtable", folder: "flowtable", limit: 4 * time.Minute, tests: []string{"TestSetsInMapsOfKernel", "TestForestChecks"}},
			{name: "xsk", folder: "dataplane/xsk", limit: 6 * time.Minute, env: []string{wire, "SOFTDPU_WIRE_MODE=copy"}, skips: []skip{
				{"since Linux 6.6", []string{
					"TestNoAllocs/multi-buffer_true", "TestFullTxRingTakesWholePackets", "TestJumboPacketsSpanFrames/copy,_frames_of_2048",
					"TestJumboPacketsSpanFrames/copy,_frames_of_4096", "TestJumboPacketsSpanFrames/generic,_frames_of_2048",
					"TestPacketLongerThanTheBatchIsDropped", "TestPacketOfTooManyFramesIsDropped",
					"TestForwardTCP/jumbo_packets_in_several_frames", "TestForwardTCP/jumbo_packets,_left_to_the_device",
					"TestWire/several_frames_a_packet",
				}},
				{"since Linux 6.8", []string{"TestForwardTCP/checksums_left_to_the_device", "TestChecksumRequest"}},
				{"no xdpsock to compare with", []string{"TestWireBesideXdpsock"}},
			}},
			{name: "dataplane", folder: "dataplane", limit: 5 * time.Minute, tests: []string{
				"TestAttachFallsBackToGeneric", "TestAttachInline", "TestDriversOwnWords", "TestNativeLeavesSegmentationToTheDriver",
				"TestHiddenTagsAreDropped", "TestUnseenTagsAreSaid", "TestFilterOddPrograms", "TestPublishSwapsBothPrograms",
				"TestProblems", "TestKeepTakesOver", "TestKeepGivesBackPorts", "TestDeviceRefused", "TestNexthopsInUseAreKeptAlive",
				"TestVLANDevicesAreFollowed", "TestChangesMakeRoutesStale", "TestMappedMemoryIsTheMaps", "TestCounters",
			}, skips: []skip{
				{"since Linux 6.16", []string{"TestHiddenTagsAreDropped"}},
				{"since Linux 6.8", []string{"TestUnseenTagsAreSaid/driver_without_an_answer"}},
			}},
			{name: "gateway", folder: "gateway", limit: 6 * time.Minute, tests: []string{
				"TestRunInline", "TestLabGeneric", "TestLabTakeOverAfterReload", "TestLabBarrierOfBridges",
			}},
			// All flows through workers, in copy mode, and what becomes of them.
			{name: "workers", folder: "gateway", limit: 6 * time.Minute, tests: []string{
				"TestLabForceStage", "TestLabWorkerTraffic/client-server-1500",
			}},
			// Ordinary frames in drivers, and jumbo frames, which this kernel redirects in generic mode only.
			{name: "traffic", folder: "gateway", limit: 6 * time.Minute, tests: []string{
				"TestLabTraffic/client-server-1500", "TestLabTraffic/inline-9000",
			}},
			{name: "translation", folder: "gateway", limit: 6 * time.Minute, tests: []string{
				"TestLabNATMasquerade/driver", "TestLabNATForward", "TestLabNATErrors",
			}},
		},
	},
	{
		name: "newest", title: "the newest kernel that Debian offers",
		suites:  []string{"unstable"},
		modules: modules,
		limit:   10 * time.Minute,
		jobs: []job{
			{name: "xsk", folder: "dataplane/xsk", limit: 6 * time.Minute, env: []string{wire}, skips: []skip{
				{"no xdpsock to compare with", []string{"TestWireBesideXdpsock"}},
			}},
			{name: "xdpsock", folder: "dataplane/xsk", limit: 3 * time.Minute, env: []string{wire}, beside: "XDPSOCK", tests: []string{"TestWireBesideXdpsock"}},
		},
	},
}

// modules are what labs and the machine's ports need, and what they need is found by itself, but for crc32c, which
// libcrc32c asks for by no dependency that is written down.
var modules = []string{
	"virtio_pci", "virtio_net", "veth", "dummy", "macvlan", "bridge", "tun", "8021q", "sch_ingress", "cls_bpf",
	"crc32c_generic?", "nf_tables", "nft_ct", "nft_reject_inet", "nft_limit", "nft_log", "nf_log_syslog",
	"nft_flow_offload", "nft_nat", "nft_masq", "nft_chain_nat", "nft_fib_inet", "nft_meta_bridge", "nft_reject_bridge",
}

// chosen returns the serieses that a name stands for.
func chosen(name string) ([]series, error) {
	if name == "all" {
		return known, nil
	}
	for _, s := range known {
		if s.name == name {
			return []series{s}, nil
		}
	}
	return nil, fmt.Errorf("there is no kernel %q: say 6.1, newest or all", name)
}

// wanted returns the jobs to run: those that need nothing that is not named, or the one of that name.
func (s series) wanted(name string) (jobs []job, err error) {
	for _, j := range s.jobs {
		if has := j.beside == "" || filepath.IsAbs(os.Getenv(j.beside)); name == "" && has || name == j.name {
			if !has {
				return nil, fmt.Errorf("run job %s: the variable %s does not name a program by its whole path", j.name, j.beside)
			}
			jobs = append(jobs, j)
		}
	}
	if len(jobs) == 0 {
		return nil, fmt.Errorf("there is no job %q on %s", name, s.title)
	}
	return jobs, nil
}
