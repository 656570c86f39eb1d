package cbpf

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	p, err := Parse("4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n") // ip
	want := Program{{Code: 40, K: 12}, {Code: 21, JF: 1, K: 2048}, {Code: 6, K: 262144}, {Code: 6}}
	if err != nil || !slices.Equal(p, want) {
		t.Errorf("%+v, %v", p, err)
	}
}

// A filter is refused that would mean something else, or could not end.
func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                           "number of its instructions",
		"2\n6 0 0 1\n":                               "has 1 instructions and says 2",
		"1\n6 0 0\n":                                 "line 2 is not four numbers",
		"1\n6 0 0 1 9\n":                             "line 2 is not four numbers",
		"1\n40 0 0 12\n":                             "does not return",
		"2\n21 0 1 0\n6 0 0 0\n":                     "jumps out of the program",
		"2\n5 0 0 4294967295\n6 0 0 1\n":             "protochain",
		"2\n40 0 0 4294963200\n6 0 0 1\n":            "not in the frame",
		"2\n52 0 0 0\n6 0 0 1\n":                     "divides by 0",
		"2\n100 0 0 32\n6 0 0 1\n":                   "shifts by 32",
		"2\n96 0 0 16\n6 0 0 1\n":                    "word 16",
		"2\n999 0 0 16\n6 0 0 1\n":                   "none of classic BPF",
		"4097\n" + strings.Repeat("6 0 0 1\n", 4097): "from 1 to 4096",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, and not %q", text, err, want)
		}
	}
}

// A filter that loads nothing calls nothing: the verifier would not find what it does not need.
func TestFunctionCallsWhatItNeeds(t *testing.T) {
	byte12 := Program{{Code: classLD | sizeB | modeABS, K: 12}, {Code: classRET | returnA}}
	for _, hook := range []Hook{XDP, TC} {
		for _, c := range []struct {
			program Program
			calls   []string
		}{{All, nil}, {byte12, []string{loaders[hook]}}} {
			body, err := c.program.Function(hook)
			if err != nil {
				t.Fatal(err)
			}
			if got := body.FunctionReferences(); !slices.Equal(got, c.calls) {
				t.Errorf("hook %d: it calls %q instead of %q", hook, got, c.calls)
			}
		}
	}
	// Each of the conditional jumps may lead to the end, and each load takes many instructions.
	var long Program
	for len(long) < maxInstructions-2 {
		long = append(long, byte12[0])
	}
	long = append(Program{{Code: classJMP | jmpJA, K: uint32(len(long))}}, append(long, byte12[1])...)
	if _, err := long.Function(XDP); err != nil {
		t.Errorf("what a jump leaves out takes no room: %v", err)
	}
	long[0] = Instruction{Code: classJMP | jmpJEQ | sourceX, JF: 1}
	if _, err := long.Function(XDP); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("a filter that cannot be written is %v", err)
	}
}
