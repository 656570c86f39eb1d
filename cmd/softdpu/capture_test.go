package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/gateway/pcapng"
)

func TestCaptureWrongUse(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"capture --point inn", "--point inn: it must be in, out or drop; did you mean in?"},
		{"capture --snaplen 0", "--snaplen 0: it must be from 1 to 65536 bytes"},
		{"capture -s 65537", "--snaplen 65537"},
		{"capture --duration -1s", "must not be negative"},
		{"capture tcp port 80", `takes no argument "tcp"`},
	} {
		if code, stdout, stderr := execute(t, strings.Fields(c.args)...); code != exitError || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d: %s", c.args, code, stderr)
		}
	}
	file := filepath.Join(t.TempDir(), "x.pcapng")
	for filter, want := range map[string]string{
		"tcp prot 80":      "syntax error",
		"host no.invalid.": "unknown host",
		"inbound":          "--filter \"inbound\": ",
		"ip protochain 6":  "it jumps out of the program, or back as `protochain` does",
	} {
		if code, _, stderr := execute(t, "capture", "--filter", filter, "-w", file); code != exitError || !strings.Contains(stderr, want) || !strings.Contains(stderr, filter) {
			t.Errorf("%s: exit code %d: %s", filter, code, stderr)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a capture that is refused makes a file")
	}
	t.Setenv("PATH", t.TempDir())
	if code, _, stderr := execute(t, "capture", "--filter", "tcp"); code != exitError || !strings.Contains(stderr, "apt install tcpdump") {
		t.Errorf("without tcpdump: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := execute(t, "capture", "--socket", filepath.Join(t.TempDir(), "none")); code != exitError || !strings.Contains(stderr, "no softdpu answers") {
		t.Errorf("without a daemon: exit code %d: %s", code, stderr)
	}
}

func TestCaptureText(t *testing.T) {
	ip := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	tcp := append(append([]byte{}, ip...), 0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0, 0, 0, 0, 0, 0)
	arp := append(append([]byte{}, ip[:12]...), 8, 6, 0, 1)
	vlan := append(append(append([]byte{}, ip[:12]...), 0x81, 0, 0, 10), ip[12:]...)
	for _, c := range []struct {
		data []byte
		want string
	}{
		{tcp, "tcp 10.0.0.1:12345 > 10.0.0.2:80 [S]"},
		{arp, "arp"},
		{vlan, "vlan 10 tcp 10.0.0.1 > 10.0.0.2"},
		{append(append([]byte{}, ip[:12]...), 0x88, 0xcc), "ethertype 0x88cc"},
		{ip[:20], "ethertype 0x0800"},
		{nil, "ethertype 0x0000"},
	} {
		if got := packetText(c.data); got != c.want {
			t.Errorf("%x is %q, and not %q", c.data, got, c.want)
		}
	}
	p := &pcapng.Packet{Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.Local), Data: tcp, Length: 54, Direction: pcapng.Outbound, Comment: "verdict=deny rule=\x1b[31mred"}
	if got, want := captureText(p, "lan0"), "03:04:05.000006 out lan0  tcp 10.0.0.1:12345 > 10.0.0.2:80 [S], 54 bytes  verdict=deny rule="; !strings.HasPrefix(got, want) || strings.ContainsRune(got, 0x1b) {
		t.Errorf("a line says %q", got)
	}
}
