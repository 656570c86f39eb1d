package testenv

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Counters returns the namespace's protocol counters: those of /proc/net/snmp as "Ip.ForwDatagrams",
// those of /proc/net/snmp6 under their own names, as "Ip6OutForwDatagrams".
func (n *Namespace) Counters() (map[string]uint64, error) {
	counters := map[string]uint64{}
	err := n.Do(func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return fmt.Errorf("read IPv4 counters: %w", err)
		}
		snmp6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return fmt.Errorf("read IPv6 counters: %w", err)
		}
		parseSNMP(counters, string(snmp))
		parseSNMP6(counters, string(snmp6))
		return nil
	})
	return counters, err
}

// Forwarded returns how many datagrams the namespace's kernel has forwarded: what XDP did not.
func (n *Namespace) Forwarded() (ipv4, ipv6 uint64, err error) {
	c, err := n.Counters()
	if err != nil {
		return 0, 0, err
	}
	ipv4, ok4 := c["Ip.ForwDatagrams"]
	ipv6, ok6 := c["Ip6OutForwDatagrams"]
	if !ok4 || !ok6 {
		return 0, 0, fmt.Errorf("read forwarding counters of %s: the kernel has none", n.name)
	}
	return ipv4, ipv6, nil
}

// parseSNMP reads pairs of lines, names then values. Values that are negative (a few are defined as
// -1 for "no limit") are left out.
func parseSNMP(into map[string]uint64, text string) {
	lines := strings.Split(text, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		for j := 1; j < len(names) && j < len(values); j++ {
			if v, err := strconv.ParseUint(values[j], 10, 64); err == nil {
				into[strings.TrimSuffix(names[0], ":")+"."+names[j]] = v
			}
		}
	}
}

func parseSNMP6(into map[string]uint64, text string) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 {
			if v, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				into[f[0]] = v
			}
		}
	}
}
