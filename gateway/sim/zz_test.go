package sim

import (
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/gateway/sim/traffic"
)

func TestZZ(t *testing.T) {
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	eng := Engine(os.Getenv("ENGINE"))
	if eng == "" {
		eng = EngineGo
	}
	r := &reading{t: t, engine: eng}
	st, err := traffic.NewStream(seed, traffic.Options{Choose: r.choose})
	if err != nil {
		t.Fatal(err)
	}
	r.st = st
	text := ""
	fails := 0
	h := fnv.New64a()
	for range 10000 {
		p, want, err := st.Next()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%s %x %v %x\n", p.Port, p.Frame, r.got.Reason, r.got.Frame)
		if p.Index%1000 == 999 {
			fmt.Printf("digest %d %x\n", p.Index, h.Sum64())
		}
		if p.New != nil {
			text = p.New.Text
		}
		if eng == EngineXDP && len(p.Frame) < 14 {
			continue
		}
		if d := r.sim.reads(&p, &want, &r.got); d != "" {
			if fails == 0 {
				show := strings.Split(text, "\n")
				for _, l := range show {
					if len(l) > 300 {
						l = l[:300]
					}
					if !strings.HasPrefix(l, "  - {name: r") || os.Getenv("RULES") != "" || want.Rule != "" && strings.Contains(l, want.Rule) || got(r, l) {
						fmt.Println(l)
					}
				}
				for _, rt := range st.World.Routes {
					fmt.Printf("route %+v\n", rt)
				}
			}
			fmt.Printf("packet %d now %v %s in %s: %s\n%x\nwant %+v\ngot %+v routed %v\n", p.Index, p.Now, p.Recipe, p.Port, d, p.Frame, want, r.got, r.sim.routed)
			if f, ok := r.sim.flowOf(r.sim.ports[p.Port], p.Frame); ok {
				fmt.Printf("flow %+v nat %+v\n", f, f.NAT)
			}
			_ = bpf.XDPReasonREASON_NONE
			if fails++; fails == 2 {
				t.Fatal()
			}
		}
	}
}

func got(r *reading, l string) bool {
	return r.got.RuleID != 0 && strings.Contains(l, r.got.Rule.Name)
}
