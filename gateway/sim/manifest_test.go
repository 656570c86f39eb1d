package sim

import (
	"encoding/csv"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// What others found in the captures: a client that opened a connection to a server.
var expectedFlow = regexp.MustCompile(`\b(?:tls|quic) (\S+)>(\S+) sni=`)

// tunnelled are captures whose connections stand inside other packets.
var tunnelled = map[string]bool{"nDPI__4in6tunnel.pcap": true, "nDPI__vxlan.pcap": true}

// The conversations of the captures are those that nDPI, Suricata and tshark saw, opened by the same
// end, unless they do not agree themselves who opened one.
func TestConversationsOfCaptures(t *testing.T) {
	dir := os.Getenv("SOFTDPU_TESTDATA")
	if dir == "" {
		t.Skip("SOFTDPU_TESTDATA is not set: conversations of captures left out")
	}
	f, err := os.Open(filepath.Join(dir, "pcaps", "manifest.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma, r.LazyQuotes, r.FieldsPerRecord = '\t', true, -1
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, row := range rows[1:] {
		expected := expectedFlow.FindAllStringSubmatch(row[3], -1)
		if len(expected) == 0 || tunnelled[row[0]] {
			continue
		}
		replayed := replay(t, tolerant(t), "lan")
		walk(t, filepath.Join(dir, "pcaps", row[0]), func(c *Captured) {
			if _, err := replayed.Packet(c); err != nil {
				t.Fatal(err)
			}
		})
		for _, e := range expected {
			src, dst := endOf(t, e[1]), endOf(t, e[2])
			ok := false
			for _, c := range replayed.Conversations() {
				a, b := c.Source, 1-c.Source
				ok = ok || netip.AddrPortFrom(c.Addr[a], c.Port[a]) == src && netip.AddrPortFrom(c.Addr[b], c.Port[b]) == dst
			}
			contested := slices.ContainsFunc(expected, func(other []string) bool { return other[1] == e[2] && other[2] == e[1] })
			if !ok && !contested {
				t.Errorf("%s: no conversation from %v to %v", row[0], src, dst)
			} else if ok {
				found++
			}
		}
	}
	t.Logf("%d conversations found", found)
	if found == 0 {
		t.Error("none was compared")
	}
}

// endOf reads ADDRESS:PORT, where an IPv6 address stands without brackets.
func endOf(t *testing.T, s string) netip.AddrPort {
	t.Helper()
	m := regexp.MustCompile(`^(.*):(\d+)$`).FindStringSubmatch(s)
	if m == nil {
		t.Fatalf("%q is no end", s)
	}
	ap, err := netip.ParseAddrPort("[" + m[1] + "]:" + m[2])
	if err != nil {
		ap, err = netip.ParseAddrPort(s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ap
}
