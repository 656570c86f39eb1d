package gateway

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/testenv"
)

// A natHeld is what came out of a translator, by talk and step, as if everybody had chosen the opener's own port.
type natHeld struct {
	packets natResults
	seen    []natSeen // by talk: how it looks to the end that did not open it
	mapped  int       // talks whose port is another
}

type natResults map[[2]int][]ipPacket

// A natGateway is between two networks of hosts that say nothing by themselves.
type natGateway interface {
	// send sends a packet, towards wan (0) or towards lan (1).
	send(t *testing.T, side int, p ipPacket)
	// collect sorts in what has arrived, fragments in their order.
	collect(t *testing.T, into natResults)
}

// natBatch is how many talks are on the way at once: no queue on the way is shorter.
const natBatch = 50

// holdTalks has all talks held, step by step. What does not come out within some seconds is left out.
func holdTalks(t *testing.T, g natGateway, talks []*natTalk) natHeld {
	t.Helper()
	seen, missing := make([]natSeen, len(talks)), 0
	raw, out := natResults{}, natHeld{packets: natResults{}, seen: seen}
	for batch := range slices.Chunk(talks, natBatch) {
		for step := range natTagsATalk {
			want := map[[2]int]int{}
			for _, talk := range batch {
				if step >= len(talk.steps) || step > 0 && !seen[talk.index].src.IsValid() {
					continue
				}
				var arrived ipPacket
				if about := talk.steps[step].about; about > 0 {
					if got := raw[[2]int{talk.index, about}]; len(got) > 0 {
						arrived = got[0]
					} else {
						continue
					}
				}
				packets, toWAN := talk.packets(step, seen[talk.index], arrived)
				side := 1
				if toWAN {
					side = 0
				}
				for _, p := range packets {
					g.send(t, side, p)
				}
				want[[2]int{talk.index, step}] = len(packets)
			}
			if len(want) == 0 {
				continue
			}
			limit := 10 * time.Second
			if missing > 0 { // something is wrong already, and hardly that it takes long
				limit = time.Second
			}
			for end := time.Now().Add(testenv.Patience(limit)); ; time.Sleep(500 * time.Microsecond) {
				g.collect(t, raw)
				lacks := 0
				for key, count := range want {
					lacks += max(0, count-len(raw[key]))
				}
				if lacks == 0 {
					break
				}
				if time.Now().After(end) {
					missing += lacks
					break
				}
			}
			if missing > 200 {
				t.Errorf("%d packets did not come out: the rest is left out", missing)
				return out
			}
			for _, talk := range batch {
				key := [2]int{talk.index, step}
				if got := raw[key]; len(got) > 0 {
					if step == 0 {
						seen[talk.index] = tupleOf(got[0])
						if seen[talk.index].src.Port() != talk.src.Port() {
							out.mapped++
						}
					}
					for _, p := range got {
						out.packets[key] = append(out.packets[key], p.asIf(!talk.steps[step].back, talk.src.Port()))
					}
				}
			}
		}
	}
	return out
}

// tupleOf returns whom a packet is from and to.
func tupleOf(p ipPacket) natSeen {
	src, dst := p.ports()
	return natSeen{netip.AddrPortFrom(p.src(), src), netip.AddrPortFrom(p.dst(), dst)}
}

// add sorts a packet in.
func (r natResults) add(p ipPacket) {
	tag := int(p.tag())
	key := [2]int{tag/natTagsATalk - 1, tag % natTagsATalk}
	r[key] = append(r[key], p)
	slices.SortStableFunc(r[key], func(a, b ipPacket) int {
		at, _ := a.fragment()
		other, _ := b.fragment()
		return at - other
	})
}

// asIf returns the packet as it had been if the translator had chosen that port for the opener, and identification 0
// for fragments that it made anew. It does not touch what end saw no port of the translator.
func (p ipPacket) asIf(byOpener bool, port uint16) ipPacket {
	p = slices.Clone(p)
	inner, isError := p.isError()
	if !isError {
		if offset, _ := p.fragment(); byOpener && offset == 0 {
			p.setPort(true, port)
		}
		if at := p.identification(); at > 0 {
			clear(p[at : at+4])
		}
		return p
	}
	before := slices.Clone(inner)
	if byOpener {
		inner.setPort(false, port)
	}
	if at := inner.identification(); at > 0 {
		clear(inner[at : at+4])
	}
	_, at := p.transport()
	for i := 0; i+1 < len(inner); i += 2 {
		if w, was := binary.BigEndian.Uint16(inner[i:]), binary.BigEndian.Uint16(before[i:]); w != was {
			adjust(p[at+2:], was, w)
		}
	}
	return p
}

// differences says where two translators did otherwise.
func (theirs natResults) differences(ours natResults, talks []*natTalk) (found []string) {
	for _, talk := range talks {
		for step := range talk.steps {
			key := [2]int{talk.index, step}
			want, got := theirs[key], ours[key]
			if slices.EqualFunc(want, got, func(a, b ipPacket) bool { return bytes.Equal(a, b) }) && len(want) > 0 {
				continue
			}
			found = append(found, fmt.Sprintf("%s, step %d %+v:\n kernel: %s\n other:  %s", talk.name, step, talk.steps[step], describePackets(want), describePackets(got)))
		}
	}
	return found
}

func describePackets(packets []ipPacket) string {
	if len(packets) == 0 {
		return "nothing"
	}
	var b strings.Builder
	for _, p := range packets {
		first := gopacket.LayerType(layers.LayerTypeIPv4)
		if p.six() {
			first = layers.LayerTypeIPv6
		}
		for _, l := range gopacket.NewPacket(p, first, gopacket.Default).Layers() {
			if l.LayerType() != gopacket.LayerTypePayload {
				fmt.Fprintf(&b, "%s ", gopacket.LayerString(l))
			}
		}
		fmt.Fprintf(&b, "%s; ", hex.EncodeToString(p[:min(len(p), 128)]))
	}
	return b.String()
}

// natTalks returns talks in which the openers say that much, beside errors.
func natTalks(packets int) (talks []*natTalk, seed uint64) {
	seed = rand.Uint64()
	for n := 0; n < packets; {
		talk := newNatTalk(seed, len(talks))
		for _, s := range talk.steps {
			if !s.back {
				n++
			}
		}
		talks = append(talks, talk)
	}
	return talks, seed
}

// report tells of the first differences.
func (theirs natResults) report(t *testing.T, ours natResults, talks []*natTalk, seed uint64) {
	t.Helper()
	found := theirs.differences(ours, talks)
	for _, d := range found[:min(10, len(found))] {
		t.Errorf("%s", d)
	}
	if len(found) > 0 {
		t.Errorf("%d packets are not alike; seed %d", len(found), seed)
	}
}

// Comparing two translators finds nothing where there is nothing, though they choose other ports, and finds a bit that
// is wrong, wherever it is.
func TestLabNATCompared(t *testing.T) {
	t.Parallel()
	talks, seed := natTalks(sized(300, 3000))
	plain, random := newNatRoom(t, "t-lab-nca"), newNatRoom(t, "t-lab-ncb")
	plain.kernel(t, "")
	random.kernel(t, "fully-random")
	theirs, others := holdTalks(t, plain, talks), holdTalks(t, random, talks)
	theirs.packets.report(t, others.packets, talks, seed)
	if t.Failed() {
		return
	}
	t.Logf("%d talks; another port in %d and %d of them", len(talks), theirs.mapped, others.mapped)
	for _, talk := range talks {
		if changed := theirs.seen[talk.index] != (natSeen{talk.src, talk.dst}); changed != talk.changes {
			t.Errorf("%s: translated %v, not %v: %+v", talk.name, changed, talk.changes, theirs.seen[talk.index])
		}
	}
	if others.mapped < len(talks)/4 {
		t.Errorf("only %d of %d talks have another port", others.mapped, len(talks))
	}
	r := rand.New(rand.NewPCG(seed, 1))
	for range 500 {
		wrong := maps.Clone(others.packets)
		talk := talks[r.IntN(len(talks))]
		key := [2]int{talk.index, r.IntN(len(talk.steps))}
		wrong[key] = slices.Clone(wrong[key])
		i := r.IntN(len(wrong[key]))
		p := slices.Clone(wrong[key][i])
		p[r.IntN(len(p))] ^= 1 << r.IntN(8)
		wrong[key][i] = p
		if found := theirs.packets.differences(wrong, talks); len(found) != 1 {
			t.Fatalf("%s, step %d: %d differences instead of one", talk.name, key[1], len(found))
		}
	}
}

// What softdpu translates is what the kernel's own translation makes of it, byte for byte: by XDP, and by the twin.
func TestLabNATLikeKernel(t *testing.T) {
	t.Parallel()
	talks, seed := natTalks(sized(1000, 10_000))
	kernel, room := newNatRoom(t, "t-lab-nka"), newNatRoom(t, "t-lab-nkb")
	kernel.kernel(t, "")
	theirs := holdTalks(t, kernel, talks)
	packets := 0
	for _, p := range theirs.packets {
		packets += len(p)
	}
	t.Logf("%d packets in %d talks; another port in %d of them", packets, len(talks), theirs.mapped)
	t.Run("twin", func(t *testing.T) {
		twin := newNatTwin(t)
		ours := holdTalks(t, twin, talks)
		theirs.packets.report(t, ours.packets, talks, seed)
		t.Logf("another port in %d talks; refused: %v", ours.mapped, twin.refused)
	})
	t.Run("xdp", func(t *testing.T) {
		g := runIn(t, room.lab, write(t, labRouted, natPolicy))
		ours := holdTalks(t, room, talks)
		theirs.packets.report(t, ours.packets, talks, seed)
		t.Logf("another port in %d talks; refused: %v", ours.mapped, must(g.Drops(t.Context(), false)))
	})
}
