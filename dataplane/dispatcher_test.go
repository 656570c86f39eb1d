package dataplane

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

const unseenTags = "VLAN tags that are hidden from now on would not be noticed"

// A tag that the sender's device begins to hide after the start takes no frame into the zone of
// untagged ones.
func TestHiddenTagsAreDropped(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	ports := routed()
	ports[0].VLANs, ports[0].FixOffloads = map[uint16]uint8{10: 4}, true
	if err := p.Attach(ports); err != nil {
		t.Fatal(err)
	}
	lan := p.Ports()[0]
	notes := strings.Join(lan.Notes, "\n")
	if !p.kernel.atLeast(6, 16) && strings.Contains(notes, unseenTags) {
		t.Skipf("tags that a driver hides: since Linux 6.16: %s", notes)
	}
	if lan.Running != ModeNative || strings.Contains(notes, unseenTags) {
		t.Fatalf("it runs in %s mode, and its notes are %q", lan.Running, notes)
	}

	client, server := g.lab.Must(t, "client"), g.lab.Must(t, "server")
	// The gateway knows the server's MAC from now on.
	if r, err := server.Ping(context.Background(), netip.MustParseAddr("10.10.2.1"), testenv.PingOptions{}); err != nil || r.Received == 0 {
		t.Fatalf("the gateway does not answer the server: %v", err)
	}
	// Nothing comes back: the kernel here has no VLAN device by which it could be routed.
	sink, err := server.ListenPacket(context.Background(), "udp4", "10.10.2.2:5000")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	from, err := client.MAC("c0")
	if err != nil {
		t.Fatal(err)
	}
	frame := func(sport uint16, payload string) []byte {
		ip := &layers.IPv4{
			Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP,
			SrcIP: net.IPv4(10, 10, 1, 2), DstIP: net.IPv4(10, 10, 2, 2),
		}
		udp := &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: 5000}
		if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		b := gopacket.NewSerializeBuffer()
		err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: from, DstMAC: lan.MAC[:], EthernetType: layers.EthernetTypeIPv4},
			ip, udp, gopacket.Payload(payload))
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	untagged := frame(1000, "an untagged frame")
	tagged := func(sport uint16) []byte { return frame(sport, "a frame of VLAN 10, which its length shows") }
	length := len(tagged(0))
	tagFrames(t, client, "c0", length, 10)

	capture, err := server.StartCapture("s0", testenv.CaptureOptions{Match: func(f []byte) bool {
		return bytes.Contains(f, []byte("VLAN 10")) || bytes.Contains(f, []byte("untagged"))
	}})
	if err != nil {
		t.Fatal(err)
	}
	sender, err := client.OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	send := func(frame []byte) {
		t.Helper()
		if err := sender.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	arrived := 0
	// Frames of one sender keep their order: once an untagged one is there, no other is under way.
	arrive := func(what string, count int) {
		t.Helper()
		send(untagged)
		arrived += count + 1
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err := capture.Wait(ctx, arrived)
		if n := capture.Count(); err != nil || n != arrived {
			reasons, _ := p.Reasons()
			t.Fatalf("%s: %d frames arrived so far, want %d (%v); dropped: %v", what, n, arrived, err, reasons)
		}
	}
	offloaded := func(want bpf.XDPCounter) {
		t.Helper()
		reasons, err := p.Reasons()
		if err != nil {
			t.Fatal(err)
		}
		if got := reasons[bpf.XDPReasonREASON_VLAN_OFFLOADED]; got.Packets != want.Packets || got.Bytes != want.Bytes {
			t.Errorf("%d packets of %d bytes were dropped as vlan-offloaded, want %d of %d", got.Packets, got.Bytes, want.Packets, want.Bytes)
		}
	}

	send(tagged(1001))
	arrive("tag in the frame", 1)
	offloaded(bpf.XDPCounter{})

	hide(t, client, "c0", true)
	send(tagged(1002)) // would open a flow from the zone of untagged frames
	arrive("tag beside the frame", 0)
	offloaded(bpf.XDPCounter{Packets: 1, Bytes: uint64(length)})

	hide(t, client, "c0", false)
	send(tagged(1002))
	arrive("tag in the frame again", 1)
	offloaded(bpf.XDPCounter{Packets: 1, Bytes: uint64(length)})

	// Its dispatcher finds the generations that follow, too.
	if err := p.Publish(Generation{Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	send(tagged(1001))
	testenv.Eventually(t, 5*time.Second, func() error {
		reasons, err := p.Reasons()
		if err == nil && reasons[bpf.XDPReasonREASON_POLICY_REVOKED].Packets != 1 {
			err = fmt.Errorf("the flow was not revoked: %v", reasons)
		}
		return err
	})
	if _, err := capture.Stop(); err != nil {
		t.Error(err)
	}

	// A device that goes takes its dispatcher with it, and Close, at the end, gives back the rest.
	g.do(t, func() error {
		l, err := netlink.LinkByName("lan")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
}

// tagFrames puts a VLAN tag on the frames of that length which leave by a device, where the kernel
// keeps it: beside the frame, until a device that hides none puts it inside.
func tagFrames(t *testing.T, ns *testenv.Namespace, device string, length int, vlan int32) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "tag", Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXEgress, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // __sk_buff.len
			asm.JNE.Imm(asm.R2, int32(length), "out"),
			asm.Mov.Imm(asm.R2, int32(networkOrder16(0x8100))),
			asm.Mov.Imm(asm.R3, vlan),
			asm.FnSkbVlanPush.Call(),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TCX_NEXT
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	index, err := ns.Index(device)
	if err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Program: prog, Interface: index, Attach: ebpf.AttachTCXEgress})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// hide lets a device keep VLAN tags beside the frames that it sends, or in them.
func hide(t *testing.T, ns *testenv.Namespace, device string, on bool) {
	t.Helper()
	err := ns.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return setFeatures(e, device, tagsLeftOut.features, on)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Where hidden tags cannot be noticed a port runs all the same, and says once what it lacks and why.
func TestUnseenTagsAreSaid(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		device netlink.Link // nil: the lab's veth
		port   PortConfig
		kernel func(*kernel)
		mode   Mode
		want   string
	}{
		{name: "old kernel", kernel: func(k *kernel) { k.rxTags = false }, mode: ModeNative, want: "(Linux 6.8 does)"},
		{name: "generic mode", port: PortConfig{Mode: ModeGeneric}, mode: ModeGeneric, want: "generic mode takes no program"},
		{name: "driver without an answer", device: &netlink.Tuntap{Mode: netlink.TUNTAP_MODE_TAP}, mode: ModeNative, want: "driver tun does not tell XDP"},
		{name: "driver without native XDP", device: &netlink.Bridge{}, mode: ModeGeneric, want: "generic mode takes no program"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, "client-server")
			tt.port.Name, tt.port.Device, tt.port.Zone = "lan0", "lan", 2
			tt.port.VLANs, tt.port.FixOffloads = map[uint16]uint8{10: 3}, true
			if tt.device != nil {
				*tt.device.Attrs() = netlink.LinkAttrs{Name: "x0", Flags: net.FlagUp}
				tt.port.Device = "x0"
				g.do(t, func() error {
					if err := netlink.LinkAdd(tt.device); err != nil {
						return err
					}
					return netlink.LinkSetUp(tt.device)
				})
			}
			p := g.plane(t)
			if tt.kernel != nil {
				tt.kernel(&p.kernel)
			} else if !p.kernel.rxTags && tt.mode == ModeNative {
				t.Skip("tags that a driver tells of: since Linux 6.8")
			}
			if err := p.Attach([]PortConfig{tt.port}); err != nil {
				t.Fatal(err)
			}
			port := p.Ports()[0]
			notes := strings.Join(port.Notes, "\n")
			t.Log(notes)
			if port.Running != tt.mode || strings.Count(notes, unseenTags) != 1 || !strings.Contains(notes, tt.want) {
				t.Errorf("it runs in %s mode, want %s, and its notes are %q, want one that says %q", port.Running, tt.mode, notes, tt.want)
			}
		})
	}
}
