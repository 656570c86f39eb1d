package pipe

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		field, text string
		want        Match // without the field
	}{
		{"l4.dport", "80", Match{Value: Value{80}}},
		{"l4.dport", "0x50/0xf0", Match{Value: Value{0x50}, Mask: Value{0xf0}}},
		{"l4.dport", "80-90", Match{Value: Value{80}, Last: Value{90}}},
		{"vlan.0.id", "any", Match{Value: Value{0}, Mask: Value{0}}},
		{"ipv6.src", "any", Match{Value: make(Value, 4), Mask: make(Value, 4)}},
		{"ip.proto", "tcp", Match{Value: Value{6}}},
		{"ip.ecn", "not-ect", Match{Value: Value{0}}},
		{"ip.dscp", "af42", Match{Value: Value{36}}},
		{"ip.version", "6", Match{Value: Value{hasIPv6}}},
		{"l4.type", "none", Match{Value: Value{0}}},
		{"ip.checksum", "bad", Match{Value: Value{0}}},
		{"tcp.flags", "syn,!ack", Match{Value: Value{2}, Mask: Value{0x12}}},
		{"tcp.flags", "!rst", Match{Value: Value{0}, Mask: Value{4}}},
		{"tcp.flags", "0x02", Match{Value: Value{2}}},
		{"port", "lan0", Match{Port: "lan0"}},
		{"eth.dst", "02:00:5e:10:00:01", Match{Value: Value{0x0200, 0x5e100001}}},
		{"eth.dst", "01:00:5e:00:00:00/25", Match{Value: Value{0x0100, 0x5e000000}, Mask: Value{0xffff, 0xff800000}}},
		{"eth.dst", "01:00:00:00:00:00/01:00:00:00:00:00", Match{Value: Value{0x0100, 0}, Mask: Value{0x0100, 0}}},
		{"ipv4.src", "10.1.0.0/16", Match{Value: Value{0x0a010000}, Mask: Value{0xffff0000}}},
		{"ipv4.src", "10.0.0.1/255.0.0.255", Match{Value: Value{0x0a000001}, Mask: Value{0xff0000ff}}},
		{"ipv4.src", "10.0.0.1-10.0.0.9", Match{Value: Value{0x0a000001}, Last: Value{0x0a000009}}},
		{"ipv6.dst", "2001:db8::/33", Match{Value: Value{0x20010db8, 0, 0, 0}, Mask: Value{0xffffffff, 0x80000000, 0, 0}}},
		{"ip.ttl", "1-4", Match{Value: Value{1}, Last: Value{4}}},
	} {
		f := LookupField(tt.field)
		got, err := f.Parse(tt.text)
		tt.want.Field = f
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %s is %+v, %v", tt.field, tt.text, got, err)
		}
	}
}

// TestParseWhatIsWritten: what a match writes of itself is read to the same.
func TestParseWhatIsWritten(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		f := Fields[r.IntN(len(Fields))]
		m := Match{Field: f, Value: make(Value, f.Words())}
		full := f.Full()
		masked := f.Only == 0 && f.Format != Port && r.IntN(2) == 0
		if masked {
			m.Mask = make(Value, f.Words())
		}
		for i := range m.Value {
			m.Value[i] = r.Uint32() & full[i]
			if masked {
				m.Mask[i] = r.Uint32() & full[i] >> r.IntN(33)
				m.Value[i] &= m.Mask[i]
			}
		}
		if f.Only != 0 {
			m.Value[0] = f.Names()[r.IntN(len(f.Names()))].Value
		}
		if f.Format == Port {
			m.Value, m.Port = nil, "wan0"
		}
		got, err := f.Parse(m.Text())
		if err != nil || got.Port != m.Port || !slices.Equal(got.Value, m.Value) || !slices.Equal(got.mask(), m.mask()) {
			t.Fatalf("%s %+v is written %s, which is %+v, %v", f.Name, m, m.Text(), got, err)
		}
	}
}

func TestRates(t *testing.T) {
	for _, tt := range []struct {
		text    string
		rate    uint64
		packets bool
		again   string
	}{
		{"10Mbit", 1250000, false, "10Mbit"}, {"1.5Gbit", 187500000, false, "1500Mbit"}, {"8bit", 1, false, "8bit"}, {"1 kbit", 125, false, "1kbit"},
		{"1000pps", 1000, true, "1kpps"}, {"999pps", 999, true, "999pps"}, {"2Mpps", 2e6, true, "2Mpps"}, {"125000B/s", 125000, false, "1Mbit"}, {"3B/s", 3, false, "24bit"},
	} {
		rate, packets, err := ParseRate(tt.text)
		if err != nil || rate != tt.rate || packets != tt.packets || RateText(rate, packets) != tt.again {
			t.Errorf("%s is %d, %t, %v, written %s", tt.text, rate, packets, err, RateText(rate, packets))
		}
	}
	for _, text := range []string{"", "10", "1bit", "-8bit", "1e30bit", "xbit", "0.1pps", "1_000pps", "NaNpps", "infpps"} {
		if rate, _, err := ParseRate(text); err == nil {
			t.Errorf("%q is %d", text, rate)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		text  string
		size  uint64
		bare  bool
		again string
	}{
		{"64KB", 64000, false, "64KB"}, {"64KiB", 65536, false, "64KiB"}, {"1MiB", 1 << 20, false, "1MiB"}, {"1500", 1500, true, "1500"}, {"1500B", 1500, false, "1500"},
		{"1.5KB", 1500, false, "1500"}, {"2GB", 2e9, false, "2GB"}, {"0", 0, true, "0"},
	} {
		size, bare, err := ParseSize(tt.text)
		if err != nil || size != tt.size || bare != tt.bare || SizeText(size, false) != tt.again {
			t.Errorf("%s is %d, %t, %v, written %s", tt.text, size, bare, err, SizeText(size, false))
		}
	}
	for _, text := range []string{"", "-1", "64kb", "much", "0.5", "1e300GB"} {
		if size, _, err := ParseSize(text); err == nil {
			t.Errorf("%q is %d", text, size)
		}
	}
}
