package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/gateway/sim"
)

const (
	// xskFrame is the length of the frames that are made, in bytes, without a frame check sequence: the
	// least that Ethernet has.
	xskFrame = 60
	// xskFirstSource is the source address of the first flow; flow i has this one plus i.
	xskFirstSource = 10<<24 | 1<<23
	xskMaxFlows    = 1 << 23
	// xskMaxReplay bounds what a capture may hold, in frames: 256 MiB of map.
	xskMaxReplay = 1 << 17
)

// xskTraffic is what is sent: flows, or the packets of a capture.
type xskTraffic struct {
	rate  float64 // packets/s; 0 = as fast as can be
	flows int
	pcap  [][]byte // if not nil, instead of flows
}

// template returns the frame of flow 0, without a UDP checksum, so that a flow is nothing but its source
// address and the sum of the IPv4 header.
func (xskTraffic) template(dst, src [6]byte) []byte {
	f := appendFrame(nil, conn{src: ip4(xskFirstSource), dst: ip4(10<<24 | 1<<22 | 2), sport: 10000, dport: 5001},
		frameSpec{dstMAC: dst, srcMAC: src, size: xskFrame})
	f[40], f[41] = 0, 0
	return f
}

// headSum is the sum of the IPv4 header of a template, without the source address and the checksum, in
// words as they lie in memory.
func headSum(frame []byte) (sum uint32) {
	for at := 14; at < 34; at += 2 {
		if at != 24 && at != 26 && at != 28 {
			sum += uint32(binary.LittleEndian.Uint16(frame[at:]))
		}
	}
	return sum
}

// xskSource is what one worker of tx-push sends.
type xskSource struct {
	traffic  xskTraffic
	template []byte
	sum      uint32
	at       int
	interval time.Duration // between two packets, times 1024
	next     time.Duration // likewise, since start
	start    time.Time
}

// newSource makes the source of one of so many workers, who share the rate.
func newSource(t xskTraffic, workers int, template []byte) *xskSource {
	s := &xskSource{traffic: t, template: template, sum: headSum(template), start: time.Now()}
	if t.rate > 0 {
		s.interval = time.Duration(1e9 * 1024 * float64(workers) / t.rate)
	}
	return s
}

// due returns how many packets, up to most, are due.
func (s *xskSource) due(most int) int {
	if s.interval == 0 {
		return most
	}
	now := time.Since(s.start) << 10
	if behind := now - s.next; behind < 0 {
		return 0
	} else if limit := time.Duration(100*time.Microsecond) << 10; behind > limit {
		s.next = now - limit
	}
	return int(min(int64(most), int64((now-s.next)/s.interval)+1))
}

// sent says how many of the packets that were written went out. The rest is written again.
func (s *xskSource) sent(n, written int) {
	s.next += time.Duration(n) * s.interval
	if left := written - n; left > 0 {
		count := s.traffic.count()
		s.at = ((s.at-left)%count + count) % count
	}
}

// count returns after how many packets the traffic begins anew.
func (t xskTraffic) count() int {
	if t.pcap != nil {
		return len(t.pcap)
	}
	return t.flows
}

// write writes the next packet into a frame that Alloc gave.
func (s *xskSource) write(u *xsk.UMEM, d *xsk.Desc) {
	packet := s.template
	if s.traffic.pcap != nil {
		packet = s.traffic.pcap[s.at]
	}
	d.Len = uint32(len(packet))
	f := u.Frame(*d)
	copy(f, packet)
	if s.traffic.pcap == nil && s.traffic.flows > 1 {
		binary.BigEndian.PutUint32(f[26:], uint32(xskFirstSource|s.at))
		sum := s.sum + uint32(binary.LittleEndian.Uint16(f[26:])) + uint32(binary.LittleEndian.Uint16(f[28:]))
		sum = sum>>16 + sum&0xffff
		sum = sum>>16 + sum&0xffff
		binary.LittleEndian.PutUint16(f[24:], ^uint16(sum))
	}
	if s.at++; s.at >= s.traffic.count() {
		s.at = 0
	}
}

// readReplay reads the packets of a capture of Ethernet frames, each of at most longest bytes.
func readReplay(file string, longest int) (packets [][]byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open capture: %w", err)
	}
	defer f.Close()
	c, err := sim.NewCapture(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for {
		var p sim.Captured
		err := c.Next(&p)
		switch {
		case errors.Is(err, io.EOF):
			if len(packets) == 0 {
				return nil, fmt.Errorf("%s: the capture holds no packet", file)
			}
			return packets, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		case p.Link != sim.LinkEthernet:
			return nil, fmt.Errorf("%s: packet %d has no Ethernet header: it cannot be replayed", file, p.N)
		case p.Original > len(p.Data):
			return nil, fmt.Errorf("%s: packet %d was cut from %d bytes to %d when it was captured: capture it whole (tcpdump -s 0)", file, p.N, p.Original, len(p.Data))
		case len(p.Data) > longest || len(p.Data) < 14:
			return nil, fmt.Errorf("%s: packet %d has %d bytes: 14 to %d can be sent", file, p.N, len(p.Data), longest)
		case len(packets) == xskMaxReplay:
			return nil, fmt.Errorf("%s: the capture holds more than %d packets", file, xskMaxReplay)
		}
		packets = append(packets, append([]byte(nil), p.Data...))
	}
}
