package flowtable

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// farm returns n servers with the weights, in turn.
func farm(n int, weights ...uint16) (servers []Server) {
	for i := range n {
		servers = append(servers, Server{
			Address: netip.AddrFrom4([4]byte{10, 20, byte(i >> 8), byte(i)}), Port: 8443, Weight: weights[i%len(weights)],
		})
	}
	return servers
}

// spread asks for buckets, by the servers' addresses.
func spread(t *testing.T, servers []Server) []netip.Addr {
	t.Helper()
	buckets, err := ConsistentHash(servers)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]netip.Addr, len(buckets))
	for i, s := range buckets {
		out[i] = servers[s].Address
	}
	return out
}

func TestConsistentHashBalance(t *testing.T) {
	for _, servers := range [][]Server{
		farm(2, 1), farm(3, 1), farm(7, 1, 2, 3), farm(40, 1), farm(100, 1, 4), farm(5, 65535), farm(300, 1, 2),
	} {
		total, got := 0, map[netip.Addr]int{}
		for _, s := range servers {
			total += int(s.Weight)
		}
		buckets := spread(t, servers)
		for _, a := range buckets {
			got[a]++
		}
		for _, s := range servers {
			want := float64(len(buckets)) * float64(s.Weight) / float64(total)
			if off := float64(got[s.Address])/want - 1; off < -0.01 || off > 0.01 {
				t.Errorf("%d servers: weight %d has %d of %d buckets, want %.1f", len(servers), s.Weight, got[s.Address], len(buckets), want)
			}
		}
	}
}

// Of what the others had, nearly nothing moves when one server goes, drains or comes back.
func TestConsistentHashDisruption(t *testing.T) {
	for _, n := range []int{2, 3, 5, 10, 30, 60, 200} {
		servers := farm(n, 1, 2)
		before := spread(t, servers)
		for _, gone := range []int{0, n / 2, n - 1} {
			less := slices.Delete(slices.Clone(servers), gone, gone+1)
			drained := slices.Clone(servers)
			drained[gone].Drain = true
			for name, after := range map[string][]netip.Addr{"gone": spread(t, less), "drained": spread(t, drained)} {
				if len(after) != len(before) {
					if name == "drained" || n != 2 {
						t.Fatalf("%d servers have %d buckets, with one %s %d", n, len(before), name, len(after))
					}
					continue // one alone: all buckets are its own
				}
				others, moved := 0, 0
				for i, a := range before {
					if after[i] == servers[gone].Address {
						t.Fatalf("%d servers: bucket %d is of the one %s", n, i, name)
					}
					if a != servers[gone].Address {
						others++
						if after[i] != a {
							moved++
						}
					}
				}
				if limit := 2 * others / n; moved > limit {
					t.Errorf("%d servers, one %s: %d of the others' %d buckets moved, want at most %d", n, name, moved, others, limit)
				}
			}
		}
	}
}

func TestConsistentHashIgnoresOrder(t *testing.T) {
	servers := farm(9, 1, 5, 2)
	servers[3].Address = netip.MustParseAddr("2001:db8::3")
	servers[4].Address, servers[4].Port = servers[5].Address, 9443
	want := spread(t, servers)
	rand.New(rand.NewPCG(3, 1)).Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	if !slices.Equal(want, spread(t, servers)) {
		t.Error("another order of the servers gives other buckets")
	}
}

func TestConsistentHashOfFewServers(t *testing.T) {
	none := farm(3, 0)
	none = append(none, Server{Address: netip.MustParseAddr("10.0.0.1"), Weight: 1, Drain: true})
	if b, err := ConsistentHash(none); err != nil || len(b) != 0 {
		t.Errorf("%d buckets of servers that take nothing, %v", len(b), err)
	}
	if b, err := ConsistentHash(nil); err != nil || len(b) != 0 {
		t.Errorf("%d buckets of no server, %v", len(b), err)
	}
	if b, err := ConsistentHash(farm(1, 7)); err != nil || fmt.Sprint(b) != "[0]" {
		t.Errorf("buckets %v of one server, %v", b, err)
	}
	one := append(farm(2, 0), Server{Address: netip.MustParseAddr("10.0.0.1"), Weight: 3})
	if b, err := ConsistentHash(one); err != nil || len(b) != 4093 || slices.Max(b) != 2 || slices.Min(b) != 2 {
		t.Errorf("buckets of the only server that takes something: %d, %v", len(b), err)
	}
}

func TestConsistentHashRefuses(t *testing.T) {
	for want, servers := range map[string][]Server{
		"there twice": append(farm(3, 1), farm(1, 2)...), "no address": {{Weight: 1}, {Weight: 1}},
		"more than 65535": make([]Server, 65536),
	} {
		if _, err := ConsistentHash(servers); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one of %q", err, want)
		}
	}
}
