package gateway

import (
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"net/netip"
)

const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
)

// communityID returns the Community ID, version 1 with seed 0, of the flow that a packet belongs to: the
// same for both directions, and the same as Zeek, Suricata and Wireshark give it
// (github.com/corelight/community-id-spec). In the place of ports, ICMP has its type and code. It is ""
// for SCTP, whose ports the flow table does not keep.
func communityID(proto uint8, src, dst netip.Addr, sport, dport uint16) string {
	if proto == protoSCTP {
		return ""
	}
	ports, oneWay := proto == protoTCP || proto == protoUDP || isICMP(proto), false
	if isICMP(proto) {
		answer, known := icmpAnswers(proto)[uint8(sport)]
		if known {
			dport = uint16(answer)
		}
		oneWay = !known
	}
	if order := src.Compare(dst); !oneWay && (order > 0 || order == 0 && sport > dport) {
		src, dst, sport, dport = dst, src, dport, sport
	}
	b := make([]byte, 2, 40) // the seed
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	b = append(b, proto, 0)
	if ports {
		b = binary.BigEndian.AppendUint16(b, sport)
		b = binary.BigEndian.AppendUint16(b, dport)
	}
	sum := sha1.Sum(b)
	return "1:" + base64.StdEncoding.EncodeToString(sum[:])
}

// icmpAnswers gives the other type of each kind of ICMP exchange. What is not in it, errors for
// instance, goes one way.
func icmpAnswers(proto uint8) map[uint8]uint8 {
	if proto == protoICMPv6 {
		return icmp6Answers
	}
	return icmp4Answers
}

var (
	icmp4Answers = bothWays(map[uint8]uint8{8: 0, 10: 9, 13: 14, 15: 16, 17: 18})
	icmp6Answers = bothWays(map[uint8]uint8{128: 129, 130: 131, 133: 134, 135: 136, 139: 140, 144: 145})
)

func bothWays(pairs map[uint8]uint8) map[uint8]uint8 {
	all := make(map[uint8]uint8, 2*len(pairs))
	for a, b := range pairs {
		all[a], all[b] = b, a
	}
	return all
}
