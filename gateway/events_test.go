package gateway

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

func testRuleset() *Ruleset {
	return &Ruleset{Compiled: &firewall.Compiled{
		Zones: []string{"", "host", "lan", "wan"},
		Rules: []firewall.RuleInfo{
			{Rule: &firewall.Rule{Name: "none"}},
			{Rule: &firewall.Rule{Name: "web", Action: firewall.Allow}, File: "p.yaml", Line: 7},
			{Rule: &firewall.Rule{Name: "pings", Action: firewall.Reject}, File: "p.yaml", Line: 8},
		},
	}}
}

func openTestEvents(t *testing.T, rate int) (*eventLog, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "log", "eve.json")
	e, err := openEvents(&Events{File: file, Rate: rate, MaxSize: 1 << 20, Keep: 1}, newInForce(testRuleset()), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	e.namePorts([]dataplane.Port{{PortConfig: dataplane.PortConfig{Name: "wan0"}, ID: 2}, {PortConfig: dataplane.PortConfig{Name: "lan0"}, ID: 1}})
	return e, file
}

func lines(t *testing.T, file string) []map[string]any {
	t.Helper()
	events, rest := linesSoFar(t, file)
	if rest != "" || len(events) == 0 {
		t.Fatalf("%d lines, and then %q", len(events), rest)
	}
	return events
}

// linesSoFar is for a file that is still written: it may be empty, and end in a part of a line.
func linesSoFar(t *testing.T, file string) (events []map[string]any, rest string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	whole := strings.SplitAfter(string(text), "\n")
	rest = whole[len(whole)-1]
	for _, line := range whole[:len(whole)-1] {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		delete(e, "timestamp")
		events = append(events, e)
	}
	return events, rest
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

// frameHead is the beginning of a frame.
var frameHead = [14]uint8{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}

// counted is a packet of that many bytes.
func counted(bytes uint64) [2]bpf.XDPFlowCount {
	return [2]bpf.XDPFlowCount{{Packets: 1, Bytes: bytes}}
}

func TestEvents(t *testing.T) {
	now := dataplane.NowTick()
	tests := []struct {
		name  string
		event bpf.XDPEvent
		want  string
	}{
		{"deny", bpf.XDPEvent{Kind: 2, Family: 4, Proto: 6, Rule: 1, Src: inMemory("10.0.0.1"), Dst: inMemory("10.0.0.2"), Sport: 0x3930, Dport: 0xbb01, From: 2, To: 3, Reason: uint8(bpf.XDPReasonREASON_DENY)},
			`{"event_type":"drop","src_ip":"10.0.0.1","src_port":12345,"dest_ip":"10.0.0.2","dest_port":443,"proto":"TCP","community_id":"1:BcxUUdwzbXK/1LMhdUdqolDtFek=","softdpu":{"event":"deny","rule":"web","file":"p.yaml","line":7,"from":"lan","to":"wan","reason":"deny"}}`},
		{"audit of a ping", bpf.XDPEvent{Kind: 3, Family: 6, Proto: 58, Rule: 2, Src: inMemory("fd10:1::2"), Dst: inMemory("fd10:2::2"), Icmp: 128 << 8, From: 2, To: 1},
			`{"event_type":"audit","src_ip":"fd10:1::2","dest_ip":"fd10:2::2","proto":"IPv6-ICMP","icmp_type":128,"icmp_code":0,"community_id":"1:RvxIFJeGOKkO0qzoiLpuVt0wF0M=","softdpu":{"event":"audit","rule":"pings","file":"p.yaml","line":8,"from":"lan","to":"host","action":"reject"}}`},
		{"unknown protocol, rule and zone", bpf.XDPEvent{Kind: 2, Family: 4, Proto: 9, Rule: 77, Src: inMemory("10.0.0.1"), Dst: inMemory("10.0.0.2"), From: 200},
			`{"event_type":"drop","src_ip":"10.0.0.1","src_port":0,"dest_ip":"10.0.0.2","dest_port":0,"proto":"009","community_id":"1:J/llhOmpcTyoC2+ES4rY6kDJjt0=","softdpu":{"event":"deny","rule":"rule-77","from":"zone-200","reason":"none"}}`},
		{"drop of a segment", bpf.XDPEvent{Kind: 4, Family: 4, Proto: 6, Rule: 1, Src: inMemory("10.0.0.1"), Dst: inMemory("10.0.0.2"), Sport: 0x3930, Dport: 0xbb01, From: 2, To: 3, Reason: uint8(bpf.XDPReasonREASON_NOT_SYN), Port: 1, Vlan: 7, Ethernet: frameHead, Count: counted(64)},
			`{"in_iface":"lan0","event_type":"drop","vlan":[7],"src_ip":"10.0.0.1","src_port":12345,"dest_ip":"10.0.0.2","dest_port":443,"proto":"TCP","community_id":"1:BcxUUdwzbXK/1LMhdUdqolDtFek=","ether":{"src_mac":"02:00:00:00:00:02","dest_mac":"02:00:00:00:00:01","ether_type":2048},"drop":{"len":64},"softdpu":{"event":"drop","rule":"web","file":"p.yaml","line":7,"from":"lan","to":"wan","reason":"not-syn"}}`},
		{"drop of what is not IP", bpf.XDPEvent{Kind: 4, From: 2, Reason: uint8(bpf.XDPReasonREASON_ETHERTYPE), Port: 2, Ethernet: frameHead, Count: counted(60)},
			`{"in_iface":"wan0","event_type":"drop","ether":{"src_mac":"02:00:00:00:00:02","dest_mac":"02:00:00:00:00:01","ether_type":2048},"drop":{"len":60},"softdpu":{"event":"drop","from":"lan","reason":"ethertype"}}`},
		{"drop of a frame cut short", bpf.XDPEvent{Kind: 4, Reason: uint8(bpf.XDPReasonREASON_MALFORMED_ETHERNET), Port: 1, Count: counted(9)},
			`{"in_iface":"lan0","event_type":"drop","drop":{"len":9},"softdpu":{"event":"drop","reason":"malformed-ethernet"}}`},
		{"drop of a TCP header cut short", bpf.XDPEvent{Kind: 4, Family: 4, Proto: 6, Src: inMemory("10.0.0.1"), Dst: inMemory("10.0.0.2"), From: 2, Reason: uint8(bpf.XDPReasonREASON_MALFORMED_TCP), Port: 1, Count: counted(40)},
			`{"in_iface":"lan0","event_type":"drop","src_ip":"10.0.0.1","dest_ip":"10.0.0.2","proto":"TCP","drop":{"len":40},"softdpu":{"event":"drop","from":"lan","reason":"malformed-tcp"}}`},
		{"drop of an error about a segment", bpf.XDPEvent{Kind: 4, Family: 4, Proto: 6, Src: inMemory("10.0.0.2"), Dst: inMemory("10.0.0.1"), Sport: 0xbb01, Dport: 0x3930, Icmp: 3<<8 | 1, Packet: uint8(bpf.XDPPacketKindPACKET_ERROR), From: 2, Reason: uint8(bpf.XDPReasonREASON_ICMP_NO_FLOW), Port: 1, Count: counted(70)},
			`{"in_iface":"lan0","event_type":"drop","src_ip":"10.0.0.2","src_port":443,"dest_ip":"10.0.0.1","dest_port":12345,"proto":"TCP","icmp_type":3,"icmp_code":1,"community_id":"1:BcxUUdwzbXK/1LMhdUdqolDtFek=","drop":{"len":70},"softdpu":{"event":"drop","from":"lan","reason":"icmp-no-flow"}}`},
		{"drop of a reply", bpf.XDPEvent{Kind: 4, Family: 6, Proto: 58, Src: inMemory("fd10:2::2"), Dst: inMemory("fd10:1::2"), Dport: 1, Icmp: 129 << 8, Packet: uint8(bpf.XDPPacketKindPACKET_REPLY), From: 2, Reason: uint8(bpf.XDPReasonREASON_ICMP_NO_REQUEST), Port: 1, Count: counted(70)},
			`{"in_iface":"lan0","event_type":"drop","src_ip":"fd10:2::2","dest_ip":"fd10:1::2","proto":"IPv6-ICMP","icmp_type":129,"icmp_code":0,"community_id":"1:RvxIFJeGOKkO0qzoiLpuVt0wF0M=","drop":{"len":70},"softdpu":{"event":"drop","from":"lan","reason":"icmp-no-request"}}`},
		{"drop by the guard", bpf.XDPEvent{Kind: 4, Family: 4, Proto: 9, Src: inMemory("10.0.0.1"), Dst: inMemory("10.0.0.2"), Reason: uint8(bpf.XDPReasonREASON_KERNEL_BYPASS), Port: 2, Guard: 1, Count: counted(60)},
			`{"out_iface":"wan0","event_type":"drop","src_ip":"10.0.0.1","dest_ip":"10.0.0.2","proto":"009","community_id":"1:J/llhOmpcTyoC2+ES4rY6kDJjt0=","drop":{"len":60},"softdpu":{"event":"drop","reason":"kernel-bypass"}}`},
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
	for state, want := range map[flowState]string{flowSynSent: "evicted", flowTimeWait: "reopened", flowClosed: "reopened"} {
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

// What the disk does not take waits, and is written later, in order; above the backlog it is lost and
// counted. Each change is said once.
func TestEventsWaitForTheDisk(t *testing.T) {
	e, file := openTestEvents(t, 1000)
	log := &lockedBuffer{}
	e.log = slog.New(slog.NewTextHandler(log, nil))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stopWriter(e)
	event := bpf.XDPEvent{Kind: 2, Family: 4, Proto: 6}
	put := func(port uint16) {
		event.Dport = port<<8 | port>>8
		e.packet(&event)
	}
	put(1)
	e.drain()
	good := e.file.file
	e.file.file = full
	e.backlog = 1000 // three events
	for port := range uint16(10) {
		put(2 + port)
		e.drain()
	}
	var s EventStatus
	e.status(&s)
	if s.Written != 1 || s.Waiting+s.Lost != 10 || s.Waiting < 2 || s.Lost < 2 || !strings.Contains(s.Error, "no space left") {
		t.Errorf("on a full disk: %+v", s)
	}
	kept := int(s.Waiting)
	e.file.file = good
	full.Close()
	put(0)
	e.drain()
	e.drain()
	put(99)
	e.drain()
	lost := s.Lost + 1 // that of port 0, which met a full backlog
	s = EventStatus{}
	if e.status(&s); s.Written != uint64(kept)+2 || s.Waiting != 0 || s.Lost != lost || s.Error != "" {
		t.Errorf("afterwards: %+v, lost %d", s, lost)
	}
	var ports []float64
	for _, l := range lines(t, file) {
		ports = append(ports, l["dest_port"].(float64))
	}
	if len(ports) != kept+2 || !slices.IsSorted(ports) || ports[len(ports)-1] != 99 {
		t.Errorf("ports %v", ports)
	}
	for _, said := range []string{"cannot be written", "written again"} {
		if n := strings.Count(log.String(), said); n != 1 {
			t.Errorf("%q is said %d times:\n%s", said, n, log)
		}
	}
}

// stopWriter leaves it to the test to write.
func stopWriter(e *eventLog) {
	close(e.stopping)
	<-e.stopped
}

// A disk that does not answer holds nobody who brings an event, asks for the status, or stops.
func TestEventsDoNotWaitForAHungDisk(t *testing.T) {
	t.Parallel()
	e, _ := openTestEvents(t, 1<<30)
	r, w, err := os.Pipe() // takes 64 KiB, then holds its writer
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	stopWriter(e)
	e.file.file, e.file.maxSize = w, 0
	e.stopping, e.stopped = make(chan struct{}), make(chan struct{})
	go e.run()

	const events = 50_000
	start := time.Now()
	event, f := bpf.XDPEvent{Kind: 2, Family: 4, Proto: 6}, flowtable.Flow{Tuple: flowtable.Tuple{Family: 4, Proto: 6}, Log: true}
	for range events / 2 {
		e.packet(&event)
		e.flowEnd(&f, 0, endAged)
	}
	var s EventStatus
	e.status(&s)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
	if s.Lost == 0 || s.Waiting == 0 || s.Written != 0 || s.Written+s.Waiting+s.Lost != events {
		t.Errorf("%+v", s)
	}
	start = time.Now()
	if err := e.close(); err == nil || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(start); took > 2*eventGrace {
		t.Errorf("close took %s", took)
	}
	if e.status(&s); s.Lost != events || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	r.Close() // whoever comes back from the disk now makes no file where the test's are taken away
	<-e.stopped
}

// Flows of ICMP end with the type that they began with, as far as it was told.
func TestICMPFlowKeepsItsType(t *testing.T) {
	e, file := openTestEvents(t, 1)
	now := dataplane.NowTick()
	start := bpf.XDPEvent{Kind: 0, Family: 4, Proto: 1, Rule: 2, Src: inMemory("192.168.0.89"), Dst: inMemory("192.168.0.1"), Sport: 0x0100, Icmp: 13 << 8, Created: now, Tick: now}
	e.packet(&start)
	start.Icmp, start.Sport = 8<<8, 0x0200
	e.packet(&start)
	for _, id := range []uint16{1, 2, 3} {
		f := flowtable.Flow{
			Tuple: flowtable.Tuple{Family: 4, Proto: 1, Src: packet.Addr{192, 168, 0, 89}, Dst: packet.Addr{192, 168, 0, 1}, SrcPort: id},
			State: flowReplied, Log: true, Rule: uint32(10 + id), Created: now,
		}
		e.flowEnd(&f, now, endAged)
	}
	if err := e.close(); err != nil {
		t.Fatal(err)
	}
	got := lines(t, file)
	if len(got) != 5 || len(e.queries) != 0 {
		t.Fatalf("%d events, %d remembered: %v", len(got), len(e.queries), got)
	}
	for i := range 2 {
		began, ended := got[i], got[i+2]
		if began["icmp_type"] != ended["icmp_type"] || began["community_id"] != ended["community_id"] || began["flow_id"] != ended["flow_id"] || ended["src_port"] != nil {
			t.Errorf("began %v\nended %v", began, ended)
		}
	}
	if got[1]["community_id"] != "1:X0snYXpgwiv9TZtqg64sgzUn6Dk=" || got[0]["community_id"] == got[1]["community_id"] {
		t.Errorf("ids: %v", got)
	}
	if unknown := got[4]; unknown["icmp_type"] != nil || unknown["community_id"] != nil {
		t.Errorf("without a start: %v", unknown)
	}
}

// Why flows end that the daemon ends.
func TestEndReasons(t *testing.T) {
	for _, row := range []struct {
		flow flowtable.Flow
		want string
	}{
		{flowtable.Flow{State: flowEstablished}, "aged"}, {flowtable.Flow{State: flowSynSent}, "aged"}, {flowtable.Flow{State: flowReplied}, "aged"},
		{flowtable.Flow{State: flowFinWait}, "aged"}, {flowtable.Flow{State: flowTimeWait}, "closed"}, {flowtable.Flow{State: flowClosed}, "reset"},
		{flowtable.Flow{State: flowEstablished, Revoked: true}, "revoked"}, {flowtable.Flow{State: flowClosed, Revoked: true}, "revoked"},
	} {
		if got := endReason(&row.flow); got != row.want {
			t.Errorf("%s, revoked %v: %s, want %s", row.flow.State, row.flow.Revoked, got, row.want)
		}
	}
}
