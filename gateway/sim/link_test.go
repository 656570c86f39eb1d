package sim

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Each link type's header in front of the same packet must give the same packet in an Ethernet frame.
func TestLinkTypes(t *testing.T) {
	const made = "025d0000ff02 025d0000ff01 "
	rows := []struct {
		name         string
		link         LinkType
		header, want string // want: header of the frame
		v6           bool
	}{
		{"Ethernet", LinkEthernet, "020000000001 020000000002 0800", "020000000001 020000000002 0800", false},
		{"raw IPv4", LinkRaw, "", made + "0800", false},
		{"raw IPv6", LinkRaw, "", made + "86dd", true},
		{"raw, BSD's number", 12, "", made + "0800", false},
		{"raw, another's number", 14, "", made + "86dd", true},
		{"IPv4", LinkIPv4, "", made + "0800", false},
		{"IPv6", LinkIPv6, "", made + "86dd", true},
		{"NULL, little-endian host", LinkNull, "02000000", made + "0800", false},
		{"NULL, big-endian host", LinkNull, "00000002", made + "0800", false},
		{"NULL, macOS IPv6", LinkNull, "1e000000", made + "86dd", true},
		{"NULL, FreeBSD IPv6", LinkNull, "1c000000", made + "86dd", true},
		{"NULL, NetBSD IPv6, big-endian", LinkNull, "00000018", made + "86dd", true},
		{"NULL, AppleTalk", LinkNull, "10000000", made + "ffff", false},
		{"LOOP", LinkLoop, "00000002", made + "0800", false},
		{"LOOP IPv6", LinkLoop, "00000018", made + "86dd", true},
		{"PPP", LinkPPP, "ff03 0021", made + "0800", false},
		{"PPP without address and control", LinkPPP, "0057", made + "86dd", true},
		{"PPP, compressed protocol", LinkPPP, "21", made + "0800", false},
		{"PPP_HDLC", LinkPPPHDLC, "ff03 0057", made + "86dd", true},
		{"cooked", LinkCooked, "0000 0001 0006 020000000009 0000 0800", "025d0000ff02 020000000009 0800", false},
		{"cooked, loopback device", LinkCooked, "0000 0304 0006 000000000000 0000 0800", made + "0800", false},
		{"cooked, no address", LinkCooked, "0004 0200 0000 0000000000000000 86dd", made + "86dd", true},
		{"cooked 2", LinkCooked2, "0800 0000 00000003 0001 00 06 020000000009 0000", "025d0000ff02 020000000009 0800", false},
		{"cooked 2, tunnel", LinkCooked2, "86dd 0000 00000003 0300 04 00 0000000000000000", made + "86dd", true},
	}
	v4 := udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x")[14:]
	v6 := udp(t, "2001:db8::1", "2001:db8::2", 5000, 53, "x")[14:]
	for _, row := range rows {
		packet := v4
		if row.v6 {
			packet = v6
		}
		header := unhex(t, row.header)
		frame, more, ok := row.link.Ethernet(append(bytes.Clone(header), packet...), make([]byte, 0, 64))
		want := append(unhex(t, row.want), packet...)
		if !ok || !bytes.Equal(frame, want) || more != 14-len(header) {
			t.Errorf("%s: %t, %d more:\n%x, want\n%x", row.name, ok, more, frame, want)
		}
		if err := row.link.check(); err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
		for n := range header {
			if frame, _, ok := row.link.Ethernet(header[:n], nil); ok && len(frame) > 14+n {
				t.Errorf("%s: %d bytes of header became %x", row.name, n, frame)
			}
		}
	}
}

func TestPPPControlStaysPPP(t *testing.T) {
	frame, _, ok := LinkPPP.Ethernet(unhex(t, "ff03 c021 0101 0004"), nil)
	if want := unhex(t, "025d0000ff02 025d0000ff01 880b c021 0101 0004"); !ok || !bytes.Equal(frame, want) {
		t.Errorf("%t %x, want %x", ok, frame, want)
	}
}

func TestForeignLinkTypesAreNamed(t *testing.T) {
	for link, want := range map[LinkType]string{105: "link type 105, IEEE802_11 (Wi-Fi) is not supported", 65_000: "link type 65000 is not"} {
		if err := link.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v", uint32(link), err)
		}
	}
}
