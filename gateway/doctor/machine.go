package doctor

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/gateway"
)

// kernel looks at what the running kernel can do.
func (e *examination) kernel() {
	k, err := dataplane.InspectKernel()
	if err != nil {
		e.find(Error, "kernel", "install a newer kernel", "%v", err)
		return
	}
	e.find(Info, "kernel", "", "Linux %s runs here", k.Release)
	for _, f := range []struct {
		has    bool
		since  string
		lacked string
	}{
		{k.MultiBuffer, "6.3", "packets larger than a page are forwarded in generic mode only"},
		{k.TCX, "6.6", "the egress guard hangs in a clsact qdisc, beside the filters of others"},
		{k.HiddenTags, "6.8", "VLAN tags that a driver hides after the start are not noticed"},
		{k.ForceForwarding, "6.17", "IPv6 forwarding is turned on for all devices, not for the ports alone"},
	} {
		if !f.has {
			e.find(Info, "kernel", "Linux "+f.since+" has it", "%s", f.lacked)
		}
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		e.find(Warning, "btf", "run a kernel with CONFIG_DEBUG_INFO_BTF", "the kernel has no type information: VLAN tags that a driver hides are not noticed")
	}
	if text, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable"); err == nil && strings.TrimSpace(string(text)) == "0" {
		e.find(Warning, "jit", "`sysctl -w net.core.bpf_jit_enable=1`", "the kernel interprets BPF programs, many times slower than compiled ones")
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err == nil && !strings.Contains(string(mounts), " bpf ") {
		e.find(Info, "bpffs", "`mount -t bpf bpf /sys/fs/bpf`", "no BPF file system is mounted: nobody can pin programs, nor be seen to have")
	}
}

// Capabilities by their numbers in linux/capability.h.
var capabilities = []struct {
	bit      uint
	name     string
	severity Severity
	without  string
}{
	{39, "CAP_BPF", Error, "programs and maps cannot be loaded"},
	{12, "CAP_NET_ADMIN", Error, "programs cannot be attached"},
	{38, "CAP_PERFMON", Error, "the verifier refuses the programs"},
	{13, "CAP_NET_RAW", Warning, "inline ports cannot be promiscuous"},
	{21, "CAP_SYS_ADMIN", Warning, "the other ends of veths in other namespaces cannot be looked at"},
}

// rights looks at what this process may do; the daemon, if it is started the same way, may as much.
func (e *examination) rights() {
	caps, ok := effective("/proc/self/status")
	if !ok {
		return
	}
	admin := caps>>21&1 == 1 // stands in for CAP_BPF and CAP_PERFMON
	for _, c := range capabilities {
		if caps>>c.bit&1 == 1 || admin && c.bit > 37 {
			continue
		}
		e.find(c.severity, "rights", "run as root, or give the service "+c.name, "%s is missing: %s", c.name, c.without)
	}
}

// effective reads a process's effective capabilities.
func effective(status string) (caps uint64, ok bool) {
	text, err := os.ReadFile(status)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if hex, found := strings.CutPrefix(line, "CapEff:"); found {
			caps, err = strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return caps, err == nil
		}
	}
	return 0, false
}

// Bytes that a flow's slot takes in both families' tables; there are two slots a flow.
const slotBytes = 128 + 256

// memory compares what the flow table will take at the start with what is there.
func (e *examination) memory(c *gateway.Config, rules *gateway.Ruleset, free int64, where string) {
	o := dataplane.Options{FlowsMax: c.Flows.Max, HalfOpenShare: c.Flows.HalfOpenShare}
	if rules != nil {
		o.Rules = len(rules.Compiled.Rules)
	}
	sizes, err := o.Sizes()
	if err != nil {
		e.find(Error, "memory", "", "%v", err)
		return
	}
	need := int64(sizes.Groups) * 4 * slotBytes
	switch {
	case free == 0:
	case need > free:
		e.find(Error, "memory", "lower flows.max, or give the machine more memory", "flows.max %d takes %d MiB of kernel memory at the start, and %d MiB are available %s", c.Flows.Max, need>>20, free>>20, where)
	case need > free/2:
		e.find(Warning, "memory", "lower flows.max, or give the machine more memory", "flows.max %d takes %d MiB of kernel memory at the start, more than half of the %d MiB that are available %s", c.Flows.Max, need>>20, free>>20, where)
	}
}

// available returns the bytes of memory that can be had, by the machine and by the control group of this
// process, and which of the two says so. 0 is not known.
func available() (bytes int64, where string) {
	if f, err := os.Open("/proc/meminfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if field := strings.Fields(s.Text()); len(field) > 1 && field[0] == "MemAvailable:" {
				kib, _ := strconv.ParseInt(field[1], 10, 64)
				bytes, where = kib<<10, "on this machine"
			}
		}
	}
	text, _ := os.ReadFile("/proc/self/cgroup")
	_, path, ok := strings.Cut(strings.TrimSpace(string(text)), "0::")
	if !ok {
		return bytes, where
	}
	dir := filepath.Join("/sys/fs/cgroup", path)
	limit, err1 := readNumber(filepath.Join(dir, "memory.max"))
	used, err2 := readNumber(filepath.Join(dir, "memory.current"))
	if err1 == nil && err2 == nil && max(0, limit-used) < bytes {
		return max(0, limit-used), "in the control group " + path
	}
	return bytes, where
}

// readNumber reads a file that holds a number; "max" is none.
func readNumber(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// writable reports whether this process could write in a directory, or make it.
func writable(dir string) error {
	for {
		err := unix.Access(dir, unix.W_OK|unix.X_OK)
		parent := filepath.Dir(dir)
		if err != unix.ENOENT || parent == dir {
			return err
		}
		dir = parent
	}
}
