package firewall

import (
	"maps"
	"testing"
)

const mssPolicy = head + `zones: {a: {ports: [a0]}, b: {ports: [b0]}}
rules:
  - {name: plain, from: a, to: b, service: tcp/1, action: allow}
  - {name: narrow, from: a, to: b, service: tcp/2, action: allow, mss_clamp: 1360}
  - {name: over, from: a, to: b, service: tcp/3, action: allow, mss_clamp: 88, expires: 2026-05-31}
  - {name: all, from: b, to: a, action: allow, mss_clamp: 65495}
`

// Rules say what the SYNs of their flows may ask for, until their last day.
func TestCompiledMSS(t *testing.T) {
	c, err := compileText(t, mssPolicy, CompileOptions{Ports: []string{"a0", "b0"}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[uint32]uint16{c.Order[1]: 1360, c.Order[3]: 65495}
	if got := c.MSS(); !maps.Equal(got, want) {
		t.Errorf("MSS %v, want %v", got, want)
	}
	if c, err = compileText(t, mssPolicy, CompileOptions{Now: day.AddDate(0, -2, 0)}); err != nil || c.MSS()[c.Order[2]] != 88 {
		t.Errorf("on its last day: %v, %v", c.MSS(), err)
	}
}
