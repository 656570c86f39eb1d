package pipe

import (
	"slices"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// TestFields: every word that a packet's parser fills is a field, and none is two but where it is meant.
func TestFields(t *testing.T) {
	owners := make(map[int][]string)
	for _, f := range Fields {
		for w := f.Word; w < f.Word+f.Words(); w++ {
			owners[w] = append(owners[w], f.Name)
		}
		if f.Help == "" || f.Bits < 1 || f.Bits > 128 {
			t.Errorf("field %s: %+v", f.Name, f)
		}
		if LookupField(f.Name) != f {
			t.Errorf("field %s is not found", f.Name)
		}
		for _, n := range f.Names() {
			if n.Value&^f.Full()[0] != 0 {
				t.Errorf("field %s: %s = %#x is wider than it", f.Name, n.Word, n.Value)
			}
		}
	}
	for w := range int(bpf.PipesPipeWordPIPE_RAW0) {
		shared := w >= int(bpf.PipesPipeWordPIPE_IP_SRC) && w < int(bpf.PipesPipeWordPIPE_L4SPORT) || w == int(bpf.PipesPipeWordPIPE_HAS)
		if n := len(owners[w]); n == 0 || n > 1 && !shared {
			t.Errorf("word %d belongs to %v", w, owners[w])
		}
	}
}

func TestFieldFull(t *testing.T) {
	for name, want := range map[string]Value{
		"eth.src": {0xffff, 0xffffffff}, "vlan.0.id": {0xfff}, "tcp.seq": {0xffffffff}, "ip.df": {1},
		"ipv6.src": {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, "ip.version": {hasIPv4 | hasIPv6},
	} {
		if got := LookupField(name).Full(); !slices.Equal(got, want) {
			t.Errorf("%s: %#x, want %#x", name, got, want)
		}
	}
}

func TestRawFields(t *testing.T) {
	p := &Pipeline{Raws: []*Raw{{Name: "teid", Base: "payload", Offset: 4}, {Name: "qfi", Base: "payload", Offset: 12}}}
	f := p.Field("raw.qfi")
	if f == nil || f.Word != int(bpf.PipesPipeWordPIPE_RAW1) || f.Has != uint32(bpf.PipesPipeHasPIPE_HAS_RAW1) || f.Bits != 32 || f.Write {
		t.Errorf("raw.qfi is %+v", f)
	}
	if f := p.Field("raw.x"); f != nil {
		t.Errorf("raw.x is %+v", f)
	}
	if f := p.Field("ip.ttl"); f != LookupField("ip.ttl") {
		t.Errorf("ip.ttl is %+v", f)
	}
	if names := p.FieldNames(); !slices.Contains(names, "raw.teid") || !slices.Contains(names, "port") {
		t.Errorf("names are %v", names)
	}
}
