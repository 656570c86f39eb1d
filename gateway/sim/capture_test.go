package sim

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
)

// pcapFile writes a capture as libpcap does.
func pcapFile(order binary.ByteOrder, magic, link uint32, records ...[]byte) []byte {
	b := make([]byte, 24)
	order.PutUint32(b, magic)
	order.PutUint16(b[4:], 2)
	order.PutUint16(b[6:], 4)
	order.PutUint32(b[16:], 65_535)
	order.PutUint32(b[20:], link)
	return append(b, bytes.Join(records, nil)...)
}

func record(order binary.ByteOrder, sec, fraction uint32, original int, data string) []byte {
	b := make([]byte, 16)
	order.PutUint32(b, sec)
	order.PutUint32(b[4:], fraction)
	order.PutUint32(b[8:], uint32(len(data)))
	order.PutUint32(b[12:], uint32(original))
	return append(b, data...)
}

type appender interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// ngBlock writes a pcapng block; strings are padded to whole words.
func ngBlock(o appender, kind uint32, parts ...any) []byte {
	var body []byte
	for _, p := range parts {
		switch p := p.(type) {
		case uint16:
			body = o.AppendUint16(body, p)
		case uint32:
			body = o.AppendUint32(body, p)
		case uint64:
			body = o.AppendUint64(body, p)
		case string:
			body = append(body, p...)
			for len(body)%4 != 0 {
				body = append(body, 0)
			}
		}
	}
	b := o.AppendUint32(nil, kind)
	b = o.AppendUint32(b, uint32(len(body)+12))
	return o.AppendUint32(append(b, body...), uint32(len(body)+12))
}

func section(o appender) []byte {
	return ngBlock(o, blockSection, uint32(byteOrderMagic), uint16(1), uint16(0), ^uint64(0))
}

func readAll(b []byte) (all []Captured, err error) {
	c, err := NewCapture(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for {
		var p Captured
		if err := c.Next(&p); err == io.EOF {
			return all, nil
		} else if err != nil {
			return all, err
		}
		p.Data = bytes.Clone(p.Data)
		all = append(all, p)
	}
}

func TestCaptures(t *testing.T) {
	le, be := binary.LittleEndian, binary.BigEndian
	zipped := func(b []byte) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		z.Write(b)
		z.Close()
		return out.Bytes()
	}
	micro := pcapFile(le, magicMicro, 1, record(le, 5, 7, 3, "abc"), record(le, 6, 0, 100, "cut"))
	ng := bytes.Join([][]byte{
		section(le),
		ngBlock(le, 0x0bad, "unknown"),
		ngBlock(le, blockIface, uint16(1), uint16(0), uint32(0)),
		ngBlock(le, blockIface, uint16(101), uint16(0), uint32(2), uint16(optionResolution), uint16(1), "\x09", uint16(optionOffset), uint16(8), uint64(1), uint16(0), uint16(0)),
		ngBlock(le, blockIface, uint16(276), uint16(0), uint32(0), uint16(optionResolution), uint16(1), "\x8a"),
		ngBlock(le, blockEnhanced, uint32(0), uint32(0), uint32(5_000_007), uint32(3), uint32(3), "abc"),
		ngBlock(le, blockEnhanced, uint32(1), uint32(1), uint32(0), uint32(3), uint32(9), "def"),
		ngBlock(le, blockEnhanced, uint32(2), uint32(0), uint32(2048), uint32(1), uint32(1), "g"),
		ngBlock(le, blockSimple, uint32(6), "simple"),
		ngBlock(le, blockPacket, uint16(0), uint16(0), uint32(0), uint32(9), uint32(3), uint32(3), "old"),
		section(be),
		ngBlock(be, blockIface, uint16(9), uint16(0), uint32(4)),
		ngBlock(be, blockEnhanced, uint32(0), uint32(0), uint32(1), uint32(3), uint32(3), "big"),
		ngBlock(be, blockSimple, uint32(6), "simp"),
	}, nil)
	rows := []struct {
		name string
		file []byte
		want []Captured
	}{
		{"microseconds", micro, []Captured{{1, 5_000_007_000, 1, []byte("abc"), 3}, {2, 6_000_000_000, 1, []byte("cut"), 100}}},
		{"compressed", zipped(micro), []Captured{{1, 5_000_007_000, 1, []byte("abc"), 3}, {2, 6_000_000_000, 1, []byte("cut"), 100}}},
		{"big-endian", pcapFile(be, magicMicro, 0, record(be, 5, 7, 3, "abc")), []Captured{{1, 5_000_007_000, 0, []byte("abc"), 3}}},
		{"nanoseconds", pcapFile(le, magicNano, 101, record(le, 5, 7, 3, "abc")), []Captured{{1, 5_000_000_007, 101, []byte("abc"), 3}}},
		{"big-endian nanoseconds", pcapFile(be, magicNano, 113, record(be, 5, 7, 3, "abc")), []Captured{{1, 5_000_000_007, 113, []byte("abc"), 3}}},
		{"with a frame check sequence", pcapFile(le, magicMicro, 0x4000_0001, record(le, 1, 0, 3, "abc")), []Captured{{1, 1e9, 1, []byte("abc"), 3}}},
		{"original length too short", pcapFile(le, magicMicro, 1, record(le, 1, 0, 1, "abc")), []Captured{{1, 1e9, 1, []byte("abc"), 3}}},
		{"without packets", pcapFile(le, magicMicro, 1), nil},
		{"pcapng", ng, []Captured{
			{1, 5_000_007_000, 1, []byte("abc"), 3},
			{2, 1<<32 + 1e9, 101, []byte("def"), 9},
			{3, 2e9, 276, []byte("g"), 1},
			{4, 2e9, 1, []byte("simple"), 6},
			{5, 9_000, 1, []byte("old"), 3},
			{6, 1_000, 9, []byte("big"), 3},
			{7, 1_000, 9, []byte("simp"), 6},
		}},
	}
	for _, row := range rows {
		got, err := readAll(row.file)
		if err != nil || len(got) != len(row.want) {
			t.Errorf("%s: %d packets, %v", row.name, len(got), err)
			continue
		}
		for i, w := range row.want {
			g := got[i]
			if g.N != w.N || g.Time != w.Time || g.Link != w.Link || !bytes.Equal(g.Data, w.Data) || g.Original != w.Original {
				t.Errorf("%s: %+v, want %+v", row.name, g, w)
			}
		}
	}
}

func TestDamagedCaptures(t *testing.T) {
	le := binary.LittleEndian
	whole := pcapFile(le, magicMicro, 1, record(le, 5, 7, 3, "abc"))
	iface := ngBlock(le, blockIface, uint16(1), uint16(0), uint32(0))
	rows := []struct {
		name    string
		file    []byte
		packets int
		want    string
	}{
		{"empty", nil, 0, "shorter than"},
		{"text", []byte("10:00 IP a > b"), 0, "neither pcap nor pcapng"},
		{"header cut", whole[:20], 0, "ends inside"},
		{"record header cut", whole[:30], 0, "read packet 1: the capture ends inside it"},
		{"record cut", whole[:42], 0, "read packet 1: the capture ends inside it"},
		{"record of a gigabyte", pcapFile(le, magicMicro, 1, append(record(le, 1, 0, 3, "abc"), record(le, 1, 1, 1, "")[:8]...), []byte{0, 0, 0, 0x40, 0, 0, 0, 0}), 1, "read packet 2: record claims 1073741824 bytes"},
		{"version", append(append(bytes.Clone(whole[:4]), 9, 0), whole[6:]...), 0, "pcap version 9"},
		{"link type", pcapFile(le, magicMicro, 105), 0, "link type 105, IEEE802_11 (Wi-Fi) is not supported"},
		{"link type of an interface", bytes.Join([][]byte{section(le), ngBlock(le, blockIface, uint16(127), uint16(0), uint32(0)),
			ngBlock(le, blockEnhanced, uint32(0), uint32(0), uint32(0), uint32(0), uint32(0))}, nil), 0, "link type 127, IEEE802_11_RADIOTAP"},
		{"packet of no interface", append(section(le), ngBlock(le, blockEnhanced, uint32(0), uint32(0), uint32(0), uint32(0), uint32(0))...), 0, "interface 0, which the capture does not describe"},
		{"packet longer than its block", bytes.Join([][]byte{section(le), iface, ngBlock(le, blockEnhanced, uint32(0), uint32(0), uint32(0), uint32(99), uint32(99), "a")}, nil), 0, "packet claims 99 bytes"},
		{"block of 5 bytes", append(section(le), 1, 0, 0, 0, 5, 0, 0, 0), 0, "block of 5 bytes"},
		{"section without byte order", append(ngBlock(le, blockSection, uint32(7), uint64(0), uint64(0)), 0), 0, "without byte order"},
		{"block cut", append(section(le), iface[:15]...), 0, "ends inside"},
	}
	for _, row := range rows {
		got, err := readAll(row.file)
		if err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), row.want) || len(got) != row.packets {
			t.Errorf("%s: %d packets, %v", row.name, len(got), err)
		}
	}
}

func TestCaptureWriter(t *testing.T) {
	var b bytes.Buffer
	w, err := NewCaptureWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write(5_000_000_007, []byte("abc"), 9), w.Write(6e9, []byte("de"), 0), w.Flush()); err != nil {
		t.Fatal(err)
	}
	got, err := readAll(b.Bytes())
	if err != nil || len(got) != 2 || got[0].Time != 5_000_000_007 || string(got[0].Data) != "abc" || got[0].Original != 9 ||
		got[0].Link != LinkEthernet || got[1].Original != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Whatever a file holds, reading it ends, and a packet's bytes are never more than its record has.
func FuzzCapture(f *testing.F) {
	le := binary.LittleEndian
	f.Add(pcapFile(le, magicMicro, 1, record(le, 5, 7, 3, "abc")))
	f.Add(bytes.Join([][]byte{section(le), ngBlock(le, blockIface, uint16(1), uint16(0), uint32(0), uint16(9), uint16(1), "\x09"),
		ngBlock(le, blockEnhanced, uint32(0), uint32(0), uint32(1), uint32(3), uint32(3), "abc"), ngBlock(le, blockSimple, uint32(4), "abcd")}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1 && b[0] == 0x1f && b[1] == 0x8b {
			return // what gzip makes of it is not ours
		}
		all, _ := readAll(b)
		total := 0
		for _, p := range all {
			total += len(p.Data)
			if p.Original < len(p.Data) {
				t.Errorf("packet of %d bytes with %d on the wire", len(p.Data), p.Original)
			}
			frame, _, ok := p.Link.Ethernet(p.Data, nil)
			if ok {
				ReadHeaders(frame)
			}
		}
		if total > len(b) {
			t.Errorf("%d bytes of packets in a file of %d", total, len(b))
		}
	})
}
