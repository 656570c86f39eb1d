package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/testenv"
)

// Every capture of the independent data through both engines: no crash, and equal verdicts packet by
// packet, in a tolerant simulation and under a policy that refuses some.
func TestCapturesThroughBothEngines(t *testing.T) {
	dir := os.Getenv("SOFTDPU_TESTDATA")
	if dir == "" {
		t.Skip("SOFTDPU_TESTDATA is not set: captures left out")
	}
	testenv.RequireRoot(t)
	files, err := filepath.Glob(filepath.Join(dir, "pcaps", "*.pcap*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in %s/pcaps: %v", dir, err)
	}
	everything, err := Everything()
	if err != nil {
		t.Fatal(err)
	}
	strict := compile(t, `zones: {lan: {}, wan: {}}
rules:
  - {name: web, from: lan, to: wan, service: [tcp/80, tcp/443, udp/443], action: allow}
  - {name: names, from: any, to: any, service: udp/53, action: reject}
  - {name: old, from: wan, to: lan, service: tcp/any, action: allow, midstream: true}
  - {name: no-esp, from: any, to: any, service: [esp, udp/500-4500], action: deny}
`, firewall.CompileOptions{Ports: []string{"lan", "wan"}, OwnNamePorts: true})
	total := 0
	for _, policy := range []Config{{Policy: everything, Tolerant: true}, {Policy: strict}} {
		for _, in := range []string{"lan", "wan"} {
			total += throughBoth(t, policy, in, files)
		}
	}
	t.Logf("%d packets of %d captures, both engines alike", total, len(files))
	if total == 0 {
		t.Error("no packet was compared")
	}
}

// throughBoth compares the engines on one table for all captures, and returns the packets compared.
func throughBoth(t *testing.T, cfg Config, in string, files []string) (packets int) {
	t.Helper()
	both := openBoth(t, cfg)
	for _, file := range files {
		replays := [2]*Replay{}
		for i, s := range both {
			var err error
			if replays[i], err = NewReplay(s, in); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		walk(t, file, func(c *Captured) {
			n++
			a, err := replays[0].Packet(c)
			if err != nil {
				t.Fatalf("%s: go: %v", file, err)
			}
			b, err := replays[1].Packet(c)
			if err != nil {
				t.Fatalf("%s: xdp: %v", file, err)
			}
			if difference := differ(&a.Result, &b.Result); difference != "" {
				t.Errorf("%s, packet %d, in by %s: %s\n%x", filepath.Base(file), c.N, a.In, difference, c.Data[:min(len(c.Data), 128)])
			}
		})
		if n == 0 {
			t.Errorf("%s: no packet", file)
		}
		packets += n
	}
	return packets
}

func walk(t *testing.T, file string, each func(*Captured)) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	capture, err := NewCapture(f)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for {
		var c Captured
		if err := capture.Next(&c); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		each(&c)
	}
}

// openBoth makes one simulation for each engine.
func openBoth(t testing.TB, cfg Config) (both [2]*Sim) {
	t.Helper()
	for i, engine := range []Engine{EngineGo, EngineXDP} {
		cfg.Engine = engine
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		both[i] = s
	}
	return both
}

// differ says in what two results differ, "" if in nothing.
func differ(a, b *Result) string {
	x, y := *a, *b
	x.Frame, y.Frame = nil, nil
	if !reflect.DeepEqual(x, y) {
		return fmt.Sprintf("go says %+v, %+v, xdp says %+v, %+v", x, x.NAT, y, y.NAT)
	}
	if !bytes.Equal(a.Frame, b.Frame) {
		return fmt.Sprintf("%v: go sends %x, xdp sends %x", a.Verdict, a.Frame, b.Frame)
	}
	return ""
}

func compile(t testing.TB, body string, o firewall.CompileOptions) *firewall.Compiled {
	t.Helper()
	text := "apiVersion: softdpu/v1\nkind: Policy\n" + body
	policy, err := firewall.Parse([]firewall.Source{{Name: "p.yaml", Text: []byte(text)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := firewall.Compile(policy, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
