package flowtable

import (
	"cmp"
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// Server is one of those over which a consistent hash spreads.
type Server struct {
	Address netip.Addr
	Port    uint16 // 0: as the packets have it
	Weight  uint16 // its share is in proportion to it; 0: none
	Drain   bool   // gets no bucket, and keeps its place all the same: nothing else moves when it is back
}

// Sizes of consistent hashes: primes, of which the first is used that gives a hundred buckets to a server of
// the least weight. They are far apart, since one that changes moves most buckets.
var consistentSizes = [...]int{4093, 65537}

const consistentShare = 100 // buckets

// ConsistentHash returns the index of a server for each bucket, after Maglev (Eisenbud and others, NSDI
// 2016): each has its share of the buckets to one bucket, and what a server had when it goes is nearly all
// that moves. It depends on addresses, ports and weights, not on the order of the servers. Without a server
// that takes new flows there is no bucket; one server that is alone has one. It is an error if an address
// and port is there twice, an address is none, or there are more than 65,535 servers.
func ConsistentHash(servers []Server) ([]uint16, error) {
	if len(servers) > math.MaxUint16 {
		return nil, fmt.Errorf("spread over %d servers: more than %d", len(servers), math.MaxUint16)
	}
	order := make([]int, len(servers))
	for i := range order {
		order[i] = i
		if !servers[i].Address.IsValid() {
			return nil, fmt.Errorf("spread over servers: number %d has no address", i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(servers[a].Address.Compare(servers[b].Address), cmp.Compare(servers[a].Port, servers[b].Port))
	})
	for i := 1; i < len(order); i++ {
		if a, b := servers[order[i-1]], servers[order[i]]; a.Address == b.Address && a.Port == b.Port {
			return nil, fmt.Errorf("spread over servers: %v port %d is there twice", a.Address, a.Port)
		}
	}
	size := consistentSize(servers)
	var turns consistentTurns
	for rank, i := range order {
		if s := &servers[i]; s.Weight > 0 && !s.Drain {
			turns = append(turns, newConsistentTurn(s, uint16(i), rank, size))
		}
	}
	if len(turns) == 0 {
		return nil, nil
	}
	heap.Init(&turns)
	buckets, taken := make([]uint16, size), make([]bool, size)
	for range size {
		t := turns[0]
		for taken[t.at] {
			t.at = (t.at + t.skip) % size
		}
		buckets[t.at], taken[t.at] = t.server, true
		t.got++
		heap.Fix(&turns, 0)
	}
	return buckets, nil
}

// consistentSize returns the number of buckets for servers, those that drain included.
func consistentSize(servers []Server) int {
	if len(servers) == 1 {
		return 1
	}
	total, least := 0, math.MaxInt
	for i := range servers {
		w := max(1, int(servers[i].Weight))
		total, least = total+w, min(least, w)
	}
	for _, size := range consistentSizes {
		if total*consistentShare <= size*least {
			return size
		}
	}
	return consistentSizes[len(consistentSizes)-1]
}

// consistentTurn is a server's walk over the buckets, each once: from at in steps of skip.
type consistentTurn struct {
	at, skip int
	got      int // buckets
	weight   int
	rank     int // in the order of addresses
	server   uint16
}

func newConsistentTurn(s *Server, server uint16, rank, size int) *consistentTurn {
	address := s.Address.As16()
	sum := sha256.Sum256(binary.BigEndian.AppendUint16(address[:], s.Port))
	t := &consistentTurn{weight: int(s.Weight), rank: rank, server: server, skip: 1}
	t.at = int(binary.BigEndian.Uint64(sum[:]) % uint64(size))
	if size > 1 {
		t.skip += int(binary.BigEndian.Uint64(sum[8:]) % uint64(size-1))
	}
	return t
}

// consistentTurns is a heap of who is next: the server that would have the least for its weight.
type consistentTurns []*consistentTurn

func (t consistentTurns) Len() int      { return len(t) }
func (t consistentTurns) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *consistentTurns) Push(x any)   { *t = append(*t, x.(*consistentTurn)) }
func (t *consistentTurns) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

func (t consistentTurns) Less(i, j int) bool {
	a, b := t[i], t[j]
	return cmp.Or(cmp.Compare((a.got+1)*b.weight, (b.got+1)*a.weight), cmp.Compare(a.rank, b.rank)) < 0
}
