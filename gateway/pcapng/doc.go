// Package pcapng writes captures in the pcap next generation format, with comments, directions and
// statistics, and reads what it has written. Times are in nanoseconds, links are Ethernet, numbers little
// endian.
//
//	w := pcapng.NewWriter(out)
//	err := w.Section(pcapng.Section{Application: "softdpu 1.0"})
//	err = w.Interface(pcapng.Interface{Name: "lan0", Snaplen: 65536})
//	err = w.Packet(&pcapng.Packet{Time: time.Now(), Data: frame, Length: len(frame), Comment: "verdict=allow"})
//	err = w.Statistics(pcapng.Statistics{Interface: 0, Dropped: 3})
package pcapng

import "time"

// Section describes a capture.
type Section struct {
	Application string // that wrote it
	OS          string
	Comment     string
}

// An Interface is a place where packets are captured. They are numbered from 0 in the order of writing.
type Interface struct {
	Name, Description string
	Filter            string // as it was asked for; "" for none
	Snaplen           uint32 // bytes of a frame, at most
}

// Direction of a packet, seen from the machine.
type Direction uint8

const (
	DirectionUnknown Direction = iota
	Inbound
	Outbound
)

// A Packet is a captured frame, or its first bytes.
type Packet struct {
	Interface int
	Time      time.Time
	Data      []byte
	Length    int // bytes of the frame
	Direction Direction
	Comment   string
}

// Statistics say what became of packets at one interface since the capture began.
type Statistics struct {
	Interface  int
	Start, End time.Time
	Received   uint64 // seen
	Accepted   uint64 // by the filter
	Dropped    uint64 // of those: lost for want of room
	Delivered  uint64 // of those: in the capture
}

// Blocks and options of the format.
const (
	blockInterface  = 1
	blockStatistics = 5
	blockPacket     = 6
	blockSection    = 0x0a0d0d0a

	byteOrder = 0x1a2b3c4d

	optionEnd     = 0
	optionComment = 1

	sectionOS, sectionApplication = 3, 4

	interfaceName, interfaceDescription, interfaceResolution, interfaceFilter = 2, 3, 9, 11

	packetFlags = 2

	statisticsStart, statisticsEnd, statisticsReceived, statisticsIfDropped = 2, 3, 4, 5
	statisticsAccepted, statisticsOSDropped, statisticsDelivered            = 6, 7, 8

	linkEthernet    = 1
	nanoseconds     = 9 // resolution: 10^-9 s
	filterAsText    = 0 // first byte of a filter option
	maxOption       = 65535
	blockHeaderSize = 8
)
