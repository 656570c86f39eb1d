package main

import (
	"fmt"
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

var all = []series{
	{
		name: "6.1", title: "Debian 12's own kernel", prefix: "6.1", always: true,
		suites:  []string{"bookworm", "bookworm-security"},
		modules: modules,
		limit:   25 * time.Minute,
		jobs: []job{
			{name: "bpf", folder: "bpf", limit: time.Minute},
			{name: "flowtable", folder: "flowtable", limit: 20 * time.Minute},
			{name: "dataplane", folder: "dataplane", limit: 20 * time.Minute, tests: []string{
				"TestCapture", "TestFilterAgreesWithLibpcap", "TestProblems", "TestKeepGivesBackPorts",
			}},
			{name: "gateway", folder: "gateway", limit: 20 * time.Minute, tests: []string{
				"TestLabTraffic", "TestLabGeneric", "TestLabPathMTU", "TestLabTraceroute", "TestLabKernelBypass", "TestLabTakeOverAfterReload",
				"TestLabBarrierOfBridges", "TestLabBesideOthers", "TestRunInline", "TestRun", "TestLabFragmentNumbers", "TestLabCapture",
				"TestLabLife", "TestLabSets", "TestLabRoutes", "TestLabDevices", "TestLabTogether", "TestLabKill",
			}},
			{name: "xsk", folder: "dataplane/xsk", limit: 4 * time.Minute, env: []string{wire, "SOFTDPU_WIRE_MODE=copy"}},
		},
	},
	{
		name: "newest", title: "the newest kernel that Debian offers",
		suites:  []string{"unstable"},
		modules: modules,
		limit:   10 * time.Minute,
		jobs: []job{
			{name: "xsk", folder: "dataplane/xsk", limit: 5 * time.Minute, env: []string{wire}},
		},
	},
}

// modules are what labs and the machine's ports need, and what they need is found by itself, but for crc32c, which
// libcrc32c asks for by no dependency that is written down.
var modules = []string{
	"virtio_pci", "virtio_net", "veth", "dummy", "bridge", "tun", "8021q", "sch_ingress", "cls_bpf",
	"crc32c_generic?", "nf_tables", "nft_ct", "nft_reject_inet", "nft_limit", "nft_log", "nf_log_syslog",
	"nft_flow_offload", "nft_nat", "nft_masq", "nft_chain_nat", "nft_fib_inet", "nft_meta_bridge", "nft_reject_bridge",
}

// chosen returns the serieses that a name stands for.
func chosen(name string) ([]series, error) {
	if name == "all" {
		return all, nil
	}
	for _, s := range all {
		if s.name == name {
			return []series{s}, nil
		}
	}
	return nil, fmt.Errorf("there is no kernel %q: say 6.1, newest or all", name)
}
