package gateway

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

func testRuleset() *Ruleset {
	return &Ruleset{Compiled: &firewall.Compiled{
		Zones: []string{"", "host", "lan", "wan"},
		Rules: []firewall.RuleInfo{{Name: "none"}, {Name: "web", File: "p.yaml", Line: 7, Action: firewall.Allow}, {Name: "pings", File: "p.yaml", Line: 8, Action: firewall.Reject}},
	}}
}

func openTestEvents(t *testing.T, rate int) (*eventLog, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "log", "eve.json")
	e, err := openEvents(&Events{File: file, Rate: rate}, newInForce(testRuleset()), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return e, file
}

func lines(t *testing.T, file string) (events []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		delete(e, "timestamp")
		events = append(events, e)
	}
	return events
}

// inMemory puts an address where events have it.
func inMemory(a string) (words [4]uint32) {
	b := make([]byte, 16)
	copy(b, netip.MustParseAddr(a).AsSlice())
	for i := range words {
		words[i] = uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24
	}
	return words
}

func TestEvents(t *testing.T) {
	now := dataplane.NowTick()
	tests := []struct {
		name  string
		event bpf.XDPEvent
		want  string
	}{
		{"deny", bpf.XDPEvent{Kind: 2, Family: 4, Proto: 6, Rule: 1, Src: inMemory("10.0.0.1"), Dst: inMemory("10.0.0.2"), Sport: 0x3930, Dport: 0xbb01, From: 2, To: 3, Reason: uint8(bpf.XDPReasonREASON_DENY)},
			`{"event_type":"drop","src_ip":"10.0.0.1","src_port":12345,"dest_ip":"10.0.0.2","dest_port":443,"proto":"TCP","softdpu":{"event":"deny","rule":"web","file":"p.yaml","line":7,"from":"lan","to":"wan","reason":"deny"}}`},
		{"audit of a ping", bpf.XDPEvent{Kind: 3, Family: 6, Proto: 58, Rule: 2, Src: inMemory("fd10:1::2"), Dst: inMemory("fd10:2::2"), Icmp: 128 << 8, From: 2, To: 1},
			`{"event_type":"audit","src_ip":"fd10:1::2","dest_ip":"fd10:2::2","proto":"IPv6-ICMP","icmp_type":128,"icmp_code":0,"softdpu":{"event":"audit","rule":"pings","file":"p.yaml","line":8,"from":"lan","to":"host","action":"reject"}}`},
		{"unknown protocol, rule and zone", bpf.XDPEvent{Kind: 2, Family: 4, Proto: 9, Rule: 77, Src: inMemory("10.0.0.1"), Dst: inMemory("10.0.0.2"), From: 200},
			`{"event_type":"drop","src_ip":"10.0.0.1","src_port":0,"dest_ip":"10.0.0.2","dest_port":0,"proto":"009","softdpu":{"event":"deny","rule":"rule-77","from":"zone-200","to":"","reason":"none"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, file := openTestEvents(t, 1000)
			tt.event.Tick, tt.event.Created = now, now
			e.packet(&tt.event)
			if err := e.close(); err != nil {
				t.Fatal(err)
			}
			var want map[string]any
			if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			got, wanted := text(t, lines(t, file)[0]), text(t, want)
			if got != wanted {
				t.Errorf("got  %s\nwant %s", got, wanted)
			}
		})
	}
}

// XDP ends half-open flows whose place it needs, and closed ones that are opened anew.
func TestEndsOfXDP(t *testing.T) {
	for state, want := range map[flowState]string{flowSynSent: "evicted", flowTimeWait: "closed"} {
		event := bpf.XDPEvent{Kind: 1, Family: 4, Proto: 6, Rule: 1, State: uint8(state)}
		if got := testRuleset().packetEvent(&event, newEveClock()); got.Flow.Reason != want || got.Flow.State != state.String() || got.Softdpu.Event != "flow-end" {
			t.Errorf("%s: %+v", state, got.Flow)
		}
	}
}

func text(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A flow's start, as XDP tells it, and its end, as the daemon does, have the same id.
func TestFlowStartAndEnd(t *testing.T) {
	e, file := openTestEvents(t, 2)
	now := dataplane.NowTick()
	e.packet(&bpf.XDPEvent{Kind: 0, Family: 4, Proto: 17, Rule: 1, Src: inMemory("10.0.0.1"), Dst: inMemory("10.0.0.2"), Sport: 0x3930, Dport: 0x3500, From: 2, To: 3, Created: now - 2000, Tick: now - 2000})
	f := flowtable.Flow{
		Tuple: flowtable.Tuple{Family: 4, Proto: 17, Src: packet.Addr{10, 0, 0, 1}, Dst: packet.Addr{10, 0, 0, 2}, SrcPort: 12345, DstPort: 53},
		State: flowReplied, Log: true, From: 2, To: 3, Rule: 1, Created: now - 2000,
		Packets: [2]uint64{3, 4}, Bytes: [2]uint64{300, 400}, Seen: [2]uint32{now - 1000, now - 1500},
	}
	written := 0
	for range 5 {
		if e.flowEnd(&f, now, endAged) {
			written++
		}
	}
	if written < 2 || written > 4 { // 2 a second, and the second may have turned
		t.Errorf("%d ends", written)
	}
	if err := e.close(); err != nil {
		t.Fatal(err)
	}
	got := lines(t, file)
	if len(got) != 1+written || got[0]["flow_id"] != got[1]["flow_id"] {
		t.Errorf("%v", got)
	}
	flow := got[1]["flow"].(map[string]any)
	if flow["pkts_toserver"] != 3.0 || flow["bytes_toclient"] != 400.0 || flow["reason"] != "aged" || flow["state"] != "replied" || flow["start"].(string) >= flow["end"].(string) {
		t.Errorf("%v", flow)
	}
}

// A file that takes nothing costs the events, which are counted, and nothing else.
func TestEventsAreLostAndCounted(t *testing.T) {
	e, file := openTestEvents(t, 1000)
	var event bpf.XDPEvent
	event.Kind, event.Family, event.Proto = 2, 4, 6
	good := e.file
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	e.packet(&event)
	e.mu.Lock()
	e.flush()
	e.file = full
	e.mu.Unlock()
	for range 3 {
		e.packet(&event)
	}
	e.mu.Lock()
	e.flush()
	e.file = good
	e.mu.Unlock()
	e.packet(&event)
	if err := e.close(); err != nil {
		t.Fatal(err)
	}
	if written, lost := e.counts(); written != 2 || lost != 3 || len(lines(t, file)) != 2 {
		t.Errorf("%d written, %d lost, %d lines", written, lost, len(lines(t, file)))
	}
}
