package firewall

import (
	"errors"
	"strings"
	"testing"
)

const classBenchSet = `@214.90.21.218/32	83.251.103.210/32	0 : 65535	1521 : 1521	0x06/0xFF	0x1000/0x1000	
@10.1.2.3/8	0.0.0.0/0	0 : 65535	0 : 65535	0x00/0x00	0x0000/0x0000	
@0.0.0.0/0	192.0.2.0/24	1024 : 65535	53 : 53	0x11/0xFF	0x0000/0x0000	

@0.0.0.0/0	192.0.2.0/24	0 : 65535	20 : 21	0x00/0x00	0x0000/0x0000	
@192.0.2.1/32	192.0.2.2/32	0 : 65535	0 : 65535	0x2F/0xFF	0x0000/0x0000	
@192.0.2.1/32	192.0.2.2/32	0 : 65535	80 : 80	0x01/0xFF	0x0000/0x0000	
@192.0.2.1/32	192.0.2.2/32	0 : 65535	0 : 65535	0x59/0xFF	0x0000/0x0000	
`

func TestImportClassBench(t *testing.T) {
	var out strings.Builder
	done, err := ImportClassBench(&out, strings.NewReader(classBenchSet), "set.rules")
	if err != nil {
		t.Fatal(err)
	}
	want := `apiVersion: softdpu/v1
kind: Policy
rules:
  - {name: line-1, from: {addresses: [214.90.21.218/32]}, to: {addresses: [83.251.103.210/32]}, service: {proto: tcp, port: 1521}, action: allow}
  - {name: line-2, from: {addresses: [10.0.0.0/8]}, to: {addresses: [0.0.0.0/0]}, action: allow}
  - {name: line-3, from: {addresses: [0.0.0.0/0]}, to: {addresses: [192.0.2.0/24]}, service: {proto: udp, source_port: 1024-65535, port: 53}, action: allow}
  - {name: line-5, from: {addresses: [0.0.0.0/0]}, to: {addresses: [192.0.2.0/24]}, service: [{proto: tcp, port: 20-21}, {proto: udp, port: 20-21}], action: allow}
  - {name: line-6, from: {addresses: [192.0.2.1/32]}, to: {addresses: [192.0.2.2/32]}, service: gre, action: allow}
  - {name: line-8, from: {addresses: [192.0.2.1/32]}, to: {addresses: [192.0.2.2/32]}, service: proto/89, action: allow}
`
	if out.String() != want {
		t.Errorf("wrote\n%s", out.String())
	}
	if done.Lines != 7 || done.Rules != 6 || len(done.Warnings) != 1 || done.Warnings[0].Line != 7 ||
		!strings.Contains(done.Warnings[0].Error(), "set.rules:7:1: ports of protocol 1: the rule matches nothing (left out") {
		t.Errorf("told %+v", done)
	}
	if p, err := Parse([]Source{{Name: "policy.yaml", Text: []byte(out.String())}}, nil); err != nil || len(p.Rules) != 6 {
		t.Errorf("the policy does not load: %v", err)
	}
}

func TestImportClassBenchMistakes(t *testing.T) {
	good := "@192.0.2.1/32	192.0.2.2/32	0 : 65535	0 : 65535	0x06/0xFF	0x0000/0x0000\n"
	for _, tt := range []struct{ line, want string }{
		{"rules: []", "set.rules:2:1: this is not a rule of a ClassBench set (a rule is: @source/length"},
		{strings.Replace(good, "@", "", 1), "not a rule"},
		{strings.Replace(good, "0 : 65535", "0 - 65535", 1), "not a rule"},
		{strings.Replace(good, "192.0.2.1/32", "192.0.2.1/33", 1), `"192.0.2.1/33" is not an IPv4 prefix`},
		{strings.Replace(good, "192.0.2.2/32", "2001:db8::/32", 1), "not a rule"},
		{strings.Replace(good, "192.0.2.2/32", "192.0.2.2", 1), `"192.0.2.2" is not an IPv4 prefix`},
		{strings.Replace(good, "0 : 65535", "9 : 8", 1), "port range"},
		{strings.Replace(good, "0 : 65535", "0 : 65536", 1), "not a port range"},
		{strings.Replace(good, "0x06/0xFF", "tcp/0xFF", 1), `"tcp/0xFF" is not a protocol`},
		{strings.Replace(good, "0x06/0xFF", "0x106/0xFF", 1), "is not a protocol"},
		{strings.Replace(good, "0x06/0xFF", "0x06/0x0F", 1), `"0x0F" is not a mask`},
		{strings.Replace(good, "0x06/0xFF", "0x06", 1), `"" is not a mask`},
		{"@" + strings.Repeat("1", 100_000), "set.rules: "}, // a line without end
	} {
		_, err := ImportClassBench(&strings.Builder{}, strings.NewReader(good+tt.line), "set.rules")
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.60q: error %v, wanted %q", tt.line, err, tt.want)
		}
	}
	var e Error
	if _, err := ImportClassBench(&strings.Builder{}, strings.NewReader("\n"), "empty"); !errors.As(err, &e) || !strings.Contains(e.Error(), "empty: there is no rule in it") {
		t.Errorf("an empty set: %v", err)
	}
}
