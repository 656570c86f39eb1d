package pcapng

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

var (
	start   = time.Unix(1_700_000_000, 123_456_789)
	lan     = Interface{Name: "lan0", Description: "device eth1", Filter: "tcp port 80", Snaplen: 65536}
	wan     = Interface{Name: "wan0", Snaplen: 96}
	packets = []Packet{
		{Interface: 0, Time: start, Data: []byte{1, 2, 3, 4, 5}, Length: 60, Direction: Inbound, Comment: "verdict=allow"},
		{Interface: 1, Time: start.Add(time.Nanosecond), Data: []byte{6, 7, 8, 9}, Length: 4, Direction: Outbound, Comment: `verdict=drop reason=not-syn at="a b.yaml:3"`},
		{Interface: 0, Time: start.Add(time.Hour)}, // nothing known of it
	}
	counts = Statistics{Interface: 1, Start: start, End: start.Add(time.Minute), Received: 1 << 40, Accepted: 7, Dropped: 3, Delivered: 4}
)

func write(t *testing.T, out io.Writer) {
	t.Helper()
	w := NewWriter(out)
	err := errors.Join(w.Section(Section{Application: "softdpu test", OS: "Linux", Comment: "a comment"}), w.Interface(lan), w.Interface(wan))
	for i := range packets {
		err = errors.Join(err, w.Packet(&packets[i]))
	}
	if err := errors.Join(err, w.Statistics(Statistics{Interface: 1}), w.Statistics(counts)); err != nil {
		t.Fatal(err)
	}
}

func TestReadsWhatIsWritten(t *testing.T) {
	var b bytes.Buffer
	write(t, &b)
	r := NewReader(&b)
	for i, want := range packets {
		p, err := r.Packet()
		if err != nil {
			t.Fatal(err)
		}
		if p.Interface != want.Interface || !p.Time.Equal(want.Time) || !bytes.Equal(p.Data, want.Data) || p.Length != want.Length ||
			p.Direction != want.Direction || p.Comment != want.Comment {
			t.Errorf("packet %d is read as %+v", i, p)
		}
	}
	if p, err := r.Packet(); !errors.Is(err, io.EOF) {
		t.Errorf("behind the last packet: %+v, %v", p, err)
	}
	if i := r.Interfaces(); len(i) != 2 || i[0] != lan || i[1] != wan {
		t.Errorf("interfaces %+v", i)
	}
	s := r.Statistics()[1]
	if !s.Start.Equal(counts.Start) || !s.End.Equal(counts.End) {
		t.Errorf("from %s to %s", s.Start, s.End)
	}
	if s.Start, s.End = counts.Start, counts.End; s != counts {
		t.Errorf("statistics %+v", s)
	}
}

// A capture that breaks off is told from one that ends; damaged ones are errors.
func TestBrokenCaptures(t *testing.T) {
	var b bytes.Buffer
	write(t, &b)
	whole := b.Bytes()
	ends := map[int]bool{}
	for at := 0; at < len(whole); at += int(whole[at+4]) | int(whole[at+5])<<8 {
		ends[at] = true
	}
	read := func(b []byte) error {
		r := NewReader(bytes.NewReader(b))
		for {
			if _, err := r.Packet(); err != nil {
				return err
			}
		}
	}
	for n := range len(whole) {
		if err := read(whole[:n]); errors.Is(err, io.EOF) != ends[n] || !ends[n] && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut to %d of %d bytes: %v", n, len(whole), err)
		}
	}
	for i := range whole {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 0xff
		_ = read(damaged) // whatever it is, it is no panic
	}
	if err := read([]byte(strings.Repeat("x", 100))); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("no capture at all: %v", err)
	}
}

// Wireshark's tools find in it what was written.
func TestWireshark(t *testing.T) {
	testenv.RequireProgram(t, "tshark")
	file := filepath.Join(t.TempDir(), "x.pcapng")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, f)
	f.Close()
	out, err := exec.Command("tshark", "-r", file, "-T", "fields", "-E", "separator=|",
		"-e", "frame.time_epoch", "-e", "frame.interface_name", "-e", "frame.cap_len", "-e", "frame.len", "-e", "frame.comment").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := `1700000000.123456789|lan0|5|60|verdict=allow
1700000000.123456790|wan0|4|4|verdict=drop reason=not-syn at="a b.yaml:3"
1700003600.123456789|lan0|0|0|
`
	if string(out) != want {
		t.Errorf("tshark reads\n%s", out)
	}
	if _, err := exec.LookPath("capinfos"); err == nil {
		out, err := exec.Command("capinfos", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"softdpu test", "a comment", "Name = lan0", "Description = device eth1", "Filter string = tcp port 80", "nanoseconds (9)"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("capinfos does not say %q:\n%s", want, out)
			}
		}
	}
}
