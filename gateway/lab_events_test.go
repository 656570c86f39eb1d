package gateway

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

const endsPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.10.1.0/24]}
  wan: {ports: [wan]}
rules:
  - {name: out, from: {zone: lan}, to: {zone: wan}, service: [tcp/7, udp/7], action: allow, log: true}
  - {name: while, from: {zone: lan}, to: {zone: wan}, service: udp/8, action: allow, log: true}
`

// Every flow of a rule that logs ends in one event, which says why.
func TestLabFlowEnds(t *testing.T) {
	t.Parallel()
	// A flow that the policy stops allowing is not to age before that.
	o := openWith(t, "t-lab-en", labRouted+"flows: {max: 16, half_open_share: 1, timeouts: {tcp_time_wait: 1s, tcp_closed: 1s, udp: 4s, udp_new: 4s}}\n", endsPolicy)
	c := write(t, labRouted, strings.Replace(endsPolicy, "udp/8", "udp/9", 1))
	next := must(PrepareRuleset(c, time.Now(), nil)).generation(2)
	out := way{srcMAC: must(o.client.MAC("c0")), dstMAC: must(o.gw.MAC("lan")), src: client4, dst: server4}
	back := way{srcMAC: must(o.server.MAC("s0")), dstMAC: must(o.gw.MAC("wan")), src: server4, dst: client4}
	step := func(want uint32, port uint32, frame []byte) {
		t.Helper()
		err := o.gw.Do(func() error {
			if verdict, err := o.arrive(port, frame); err != nil || verdict != want {
				return fmt.Errorf("verdict %d, want %d: %v", verdict, want, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	client := func(sport uint16, flags string, seq, ack uint32) {
		t.Helper()
		step(xdpRedirect, o.lan, out.tcp(t, sport, 7, flags, seq, ack, nil))
	}
	server := func(dport uint16, flags string, seq, ack uint32) {
		t.Helper()
		step(xdpRedirect, o.wan, back.tcp(t, 7, dport, flags, seq, ack, nil))
	}
	shake := func(sport uint16, first uint32) {
		t.Helper()
		client(sport, "S", first, 0)
		server(sport, "SA", 5000, first+1)
		client(sport, "A", first+1, 5001)
	}
	finish := func(sport uint16, first uint32) {
		t.Helper()
		client(sport, "FA", first+1, 5001)
		server(sport, "FA", 5001, first+2)
		client(sport, "A", first+2, 5002)
	}
	shake(1, 100) // both sides end it
	finish(1, 100)
	shake(2, 100) // one side resets it
	client(2, "RA", 101, 5001)
	shake(3, 100) // it begins anew, and goes on until the stop
	finish(3, 100)
	shake(3, 900_000)
	step(xdpRedirect, o.lan, out.udp(t, 4, 7, nil)) // nobody says more
	step(xdpRedirect, o.lan, out.udp(t, 5, 8, nil)) // the policy stops allowing it

	if err := o.gw.Do(func() error { return o.plane.Publish(next) }); err != nil {
		t.Fatal(err)
	}
	o.program.Close()
	o.program = must(o.plane.Program())
	step(xdpDrop, o.lan, out.udp(t, 5, 8, nil))

	// All but the one that began anew.
	testenv.Eventually(t, 20*time.Second, func() error {
		flows, err := o.api.Flows(t.Context(), "", 0)
		if err == nil && len(flows) != 1 {
			err = fmt.Errorf("%d flows are left: %+v", len(flows), flows)
		}
		return err
	})
	// More half-open ones than there is place for.
	for port := range uint16(200) {
		err := o.gw.Do(func() error {
			_, err := o.arrive(o.lan, out.tcp(t, 1000+port, 7, "S", 1, 0, nil))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	table := o.table(t)
	o.end()

	starts, ends := map[any]int{}, map[string]int{}
	var policies, order []string
	for _, e := range lines(t, o.config.Events.File) {
		ours := e["softdpu"].(map[string]any)
		switch ours["event"] {
		case "flow-start":
			starts[e["flow_id"]]++
			if id := communityID(map[any]uint8{"TCP": protoTCP, "UDP": protoUDP}[e["proto"]], client4, server4, uint16(e["src_port"].(float64)), uint16(e["dest_port"].(float64))); e["community_id"] != id {
				t.Errorf("community id %s: %v", id, e)
			}
		case "flow-end":
			starts[e["flow_id"]]--
			reason := e["flow"].(map[string]any)["reason"].(string)
			if port := e["src_port"].(float64); port < 1000 {
				reason += fmt.Sprint(" ", e["proto"], " ", port)
			}
			ends[reason]++
		default:
			order = append(order, ours["event"].(string))
		}
		if e["event_type"] == "policy" {
			p := e["policy"].(map[string]any)
			policies = append(policies, fmt.Sprint(p["epoch"], " ", p["rules"], " ", p["zones"], " ", ours["by"]))
			read, err := PrepareRuleset(o.config, time.Now(), nil)
			if err != nil || p["hash"] != read.hash() {
				t.Errorf("hash %v, %v", p["hash"], err)
			}
		}
	}
	for id, n := range starts {
		if n != 0 {
			t.Errorf("flow %v has %d ends too few", id, n)
		}
	}
	evicted, stopped := int(table.Evicted), int(table.Flows)-1
	if want := map[string]int{
		"closed TCP 1": 1, "reset TCP 2": 1, "reopened TCP 3": 1, "stopped TCP 3": 1, "aged UDP 4": 1, "revoked UDP 5": 1,
		"evicted": evicted, "stopped": stopped,
	}; !maps.Equal(ends, want) || evicted == 0 || stopped == 0 {
		t.Errorf("ends %v\nwant %v", ends, want)
	}
	if got := strings.Join(policies, ", "); got != "1 2 3 start" {
		t.Errorf("policies: %s", got)
	}
	if got := strings.Join(order, " "); got != "gateway-start policy-loaded gateway-stop" {
		t.Errorf("other events: %s", got)
	}
}

// Drops that no rule decided are told if they are asked for, so many of each reason a second.
func TestLabDropEvents(t *testing.T) {
	const rate = 5
	o := openWith(t, "t-lab-dr", strings.Replace(labRouted, "{file: eve.json}", fmt.Sprintf("{file: eve.json, drops: true, rate: %d}", rate), 1), endsPolicy)
	out := way{srcMAC: must(o.client.MAC("c0")), dstMAC: must(o.gw.MAC("lan")), src: client4, dst: server4}
	spoofed, astray, back := out, out, way{srcMAC: out.dstMAC, dstMAC: out.srcMAC, src: server4, dst: client4}
	spoofed.src, astray.dstMAC = netip.MustParseAddr("172.16.0.1"), out.srcMAC
	broken := out.udp(t, 1, 7, nil)
	broken[14+10] ^= 0xff // the header's checksum
	short := out.frame(t, layers.IPProtocolTCP, &layers.UDP{SrcPort: 1, DstPort: 2})
	foreign := serialize(t, &layers.Ethernet{SrcMAC: out.srcMAC, DstMAC: out.dstMAC, EthernetType: 0x8809})
	foreign = append(foreign, make([]byte, 46)...)
	echo := out.echo(t, 1, 1, nil)

	x := way{src: netip.MustParseAddr("10.10.7.2"), dst: server4}
	ip(t, fmt.Sprintf("link add x0 netns %s type veth peer name x1 netns %s", o.gw.Name(), o.client.Name()))
	ip(t, "-n "+o.gw.Name()+" addr add 10.10.7.1/24 dev x0")
	ip(t, "-n "+o.gw.Name()+" link set x0 up")
	ip(t, "-n "+o.client.Name()+" link set x1 up")
	sysctl(t, o.gw, "ipv4/ip_forward", "1")
	x.srcMAC, x.dstMAC = must(o.client.MAC("x1")), must(o.gw.MAC("x0"))
	sender, err := o.client.OpenSender("x1")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()

	// no rule lets the gateway do that
	_, _ = o.gw.Ping(limited(t, 200*time.Millisecond), server4, testenv.PingOptions{})
	const many = 200
	err = o.onCPU(0, func() error {
		for _, frame := range [][]byte{
			spoofed.udp(t, 1, 7, nil), out.udp(t, 2, 9, nil), astray.udp(t, 3, 7, nil), broken, short, foreign, echo,
			out.unreachable(t, back.tcp(t, 44, 45, "A", 1, 1, nil)),
		} {
			if _, err := o.arrive(o.lan, frame); err != nil {
				return err
			}
		}
		for port := range uint16(many) {
			if verdict, err := o.arrive(o.lan, out.tcp(t, 1000+port, 9, "A", 1, 1, nil)); err != nil || verdict != xdpDrop {
				return fmt.Errorf("verdict %d, %v", verdict, err)
			}
		}
		// allowed by a rule that logs: the rule's own event, and no second one
		_, err := o.arrive(o.lan, out.tcp(t, 500, 7, "A", 1, 1, nil))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sender.Send(x.udp(t, 6, 7, nil)); err != nil { // forwarded by the kernel, beside XDP
		t.Fatal(err)
	}
	drops := map[string]Drop{}
	testenv.Eventually(t, 5*time.Second, func() error {
		for _, d := range must(o.api.Drops(t.Context(), true)) {
			drops[d.Reason] = d
		}
		if drops["kernel-bypass"].Packets == 0 {
			return fmt.Errorf("the kernel's packet has not come: %+v", drops)
		}
		return nil
	})
	unlogged := must(o.api.Status(t.Context())).Events.Unlogged
	o.end()

	told := map[string]int{}
	var examples []string
	for _, e := range lines(t, o.config.Events.File) {
		if e["event_type"] != "drop" {
			continue
		}
		ours := e["softdpu"].(map[string]any)
		reason := ours["reason"].(string)
		if ours["event"] == "deny" {
			if reason != "not-syn" || ours["rule"] != "out" || e["src_port"] != 500.0 {
				t.Errorf("deny %v", e)
			}
			continue
		}
		told[reason]++
		if told[reason] <= 2*rate {
			examples = append(examples, fmt.Sprint(reason, " ", e["in_iface"], " ", e["out_iface"], " ", e["proto"], " ", e["src_ip"], " ", e["src_port"], " ", e["dest_port"], " ", e["icmp_type"], " ", ours["from"], " ", ours["to"]))
		}
		if e["ether"] == nil || e["drop"].(map[string]any)["len"].(float64) < 14 || e["community_id"] == nil && e["src_port"] != nil {
			t.Errorf("%v", e)
		}
	}
	got := strings.Join(examples, "\n") + "\n"
	for _, want := range []string{
		"spoofed lan <nil> UDP 172.16.0.1 1 7 <nil> lan ",
		"no-rule-matched lan <nil> UDP 10.10.1.2 2 9 <nil> lan wan\n",
		"not-for-us lan <nil> <nil> <nil> <nil> <nil> <nil> lan <nil>\n",
		"malformed-ipv4-checksum lan <nil> ",
		"malformed-tcp lan <nil> TCP 10.10.1.2 <nil> <nil> <nil> lan <nil>\n",
		"ethertype lan <nil> <nil> <nil> <nil> <nil> <nil> lan <nil>\n",
		"icmp-no-flow lan <nil> TCP 10.10.1.2 45 44 3 lan <nil>\n",
		"kernel-bypass <nil> wan UDP 10.10.7.2 6 7 <nil> <nil> <nil>\n",
		"no-rule-matched <nil> wan ICMP 10.10.2.1 <nil> <nil> 8 host wan\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("not told: %q", want)
		}
	}
	if t.Failed() {
		t.Log("told:\n" + got)
	}
	sum := uint64(0)
	for reason, d := range drops {
		sum += d.Unlogged
		if wrote := uint64(told[reason]); reason != "not-syn" && (d.Packets > 0 || wrote > 0) && wrote+d.Unlogged != d.Packets {
			t.Errorf("%s: %d told, %d left out, %d dropped", reason, wrote, d.Unlogged, d.Packets)
		}
	}
	if d := drops["no-rule-matched"]; d.Packets < many || d.Unlogged < many-20*rate || told["no-rule-matched"] < rate {
		t.Errorf("no-rule-matched: %+v, %d told", d, told["no-rule-matched"])
	}
	if unlogged < sum {
		t.Errorf("status says %d events were left out, the reasons %d", unlogged, sum)
	}
}

// A full disk disturbs no traffic; what is lost is counted, and events go on once there is room.
func TestLabFullDisk(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	disk := t.TempDir()
	if err := unix.Mount("softdpu-test", disk, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	file, ballast := filepath.Join(disk, "eve.json"), filepath.Join(disk, "ballast")
	config := strings.Replace(labRouted, "eve.json", file+", rate: 100000, drops: [no-rule-matched], max_size: 0", 1)
	o := openWith(t, "t-lab-fd", config, endsPolicy)
	o.events.mu.Lock()
	o.events.backlog = 64 << 10
	o.events.mu.Unlock()
	if err := os.WriteFile(ballast, make([]byte, 52<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	out := way{srcMAC: must(o.client.MAC("c0")), dstMAC: must(o.gw.MAC("lan")), src: client4, dst: server4}
	echo, err := o.server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	exchanges, dropped := 0, 0
	var status EventStatus
	testenv.Eventually(t, 20*time.Second, func() error {
		err := o.gw.Do(func() error {
			for port := range uint16(200) {
				if _, err := o.arrive(o.lan, out.udp(t, 1000+port, 9, nil)); err != nil {
					return err
				}
				dropped++
			}
			return nil
		})
		if err != nil {
			return err
		}
		if _, err := o.client.Exchange(limited(t, time.Second), echo.Addr(), []byte("still there?")); err != nil {
			t.Errorf("exchange %d: %v", exchanges, err)
		}
		exchanges++
		if status = must(o.api.Status(t.Context())).Events; status.Lost == 0 || !strings.Contains(status.Error, "no space left") {
			return fmt.Errorf("nothing is lost: %+v", status)
		}
		return nil
	})
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	written := status.Written
	if err := unix.Mount("softdpu-test", disk, "tmpfs", unix.MS_REMOUNT|unix.MS_NODEV|unix.MS_NOSUID, "size=4m"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if status = must(o.api.Status(t.Context())).Events; status.Error != "" || status.Waiting != 0 || status.Written <= written {
			return fmt.Errorf("not written: %+v", status)
		}
		return nil
	})
	o.end()
	told := 0
	for _, e := range lines(t, file) {
		if e["softdpu"].(map[string]any)["event"] == "drop" {
			told++
		}
	}
	// beside drops there are the starts and ends of exchanges, start, stop and policy
	lost, other := int(status.Lost), 2*exchanges+3
	if told+lost < dropped || told+lost > dropped+other || told == 0 {
		t.Errorf("%d dropped, %d told, %d lost", dropped, told, lost)
	}
	t.Logf("%d exchanges; %d dropped, %d told, %d events lost", exchanges, dropped, told, lost)
}
