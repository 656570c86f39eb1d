package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/gateway/pcapng"
	"github.com/softdpu/softdpu/testenv"
)

// daemon is the gateway as operators run it, in a lab.
type daemon struct {
	*wires
	*gateway.Client
	stop func() error
}

func (d *daemon) wire() *wires { return d.wires }

func (d *daemon) close() error { return errors.Join(d.stop(), d.wires.close()) }

// startDaemon runs the gateway under the rules of contestant softdpu.
func startDaemon(t *testing.T, prefix, policy string) (*daemon, error) {
	dir := t.TempDir()
	config := `apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: lan, fix_offloads: true}, wan: {device: wan, fix_offloads: true}}
policy: policy.yaml
management: none
on_stop: open
control: {socket: s, group: softdpu-nobody}
events: {file: eve.json}
`
	for name, text := range map[string]string{"softdpu.yaml": config, "policy.yaml": policy} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	w, err := newWires(prefix)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- w.gw.Do(func() error {
			return gateway.RunFile(ctx, filepath.Join(dir, "softdpu.yaml"), gateway.Options{
				Log: slog.New(slog.DiscardHandler), Version: "test", Ready: func() { close(ready) },
			})
		})
	}()
	d := &daemon{wires: w, Client: gateway.NewClient(filepath.Join(dir, "s")), stop: func() error { cancel(); return <-done }}
	select {
	case <-ready:
		return d, nil
	case err := <-done:
		cancel()
		return nil, errors.Join(err, w.close())
	}
}

// captureFilter takes 10 of the 1,024 frames that the generator sends in turn.
const captureFilter = "udp src portrange 10500-10509 and ip[8] > 0"

// captured is what a capture of the rig's load brought.
type captured struct {
	raw        bytes.Buffer
	packets    uint64
	statistics pcapng.Statistics // of lan
	err        error
}

// check looks at every packet.
func (c *captured) check() {
	r := pcapng.NewReader(bytes.NewReader(c.raw.Bytes()))
	for {
		p, err := r.Packet()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.err = errors.Join(c.err, err)
			}
			break
		}
		c.packets++
		port := binary.BigEndian.Uint16(p.Data[34:])
		if !strings.HasPrefix(p.Comment, "verdict=allow rule=rule-9 at=") || !strings.Contains(p.Comment, " from=lan to=wan out=wan epoch=1") ||
			p.Length != 60 || port < 10500 || port > 10509 || p.Direction != pcapng.Inbound {
			c.err = fmt.Errorf("packet %d, from port %d, is described by %q", c.packets, port, p.Comment)
		}
	}
	c.statistics = r.Statistics()[0]
}

// A capture of one packet in a hundred at the full rate of the lab costs next to nothing of it, brings
// exactly those packets with the right verdict or counts them as lost, and Wireshark reads it. Rates with
// and without are measured in turn; only the long form judges them, since a busy machine would.
func TestCaptureRate(t *testing.T) {
	testenv.RequireRoot(t)
	rounds, duration := 2, 100*time.Millisecond
	if os.Getenv("SOFTDPU_LONG") != "" {
		rounds, duration = 11, time.Second
	}
	program, err := exec.Command("tcpdump", "-ddd", "-y", "EN10MB", captureFilter).Output()
	if err != nil {
		t.Fatal(err)
	}
	var d *daemon
	l, err := startLoad("t-bench-cap", &contestant{name: "daemon", start: func(c *contestant) (_ forwarder, err error) {
		d, err = startDaemon(t, c.prefix, softdpu(10).config)
		return d, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}()
	measure := func() float64 {
		t.Helper()
		rate, err := l.measure(duration)
		if err != nil {
			t.Fatal(err)
		}
		return rate
	}
	measure() // warms up
	var ratios, rates []float64
	var last *captured
	before := measure()
	for range rounds {
		stream, err := d.Capture(t.Context(), &gateway.CaptureRequest{Ports: []string{"lan"}, Filter: captureFilter, Program: string(program)})
		if err != nil {
			t.Fatal(err)
		}
		c, done := &captured{}, make(chan struct{})
		c.raw.Grow(32 << 20) // not while it is measured
		go func() {          // as `softdpu capture -w` does
			defer close(done)
			_, c.err = io.Copy(&c.raw, stream)
		}()
		on := measure()
		if _, err := d.StopCapture(t.Context(), stream.ID); err != nil {
			t.Fatal(err)
		}
		<-done
		stream.Close()
		c.check()
		arrived, sent, err := l.arrived()
		if err != nil {
			t.Fatal(err)
		}
		s := c.statistics
		// The generator goes through its trace in turn; a frame or two of other kinds may come by.
		least, most := float64(arrived.Packets)*10/1024-20, float64(sent.Sent)*10/1024+20
		if c.err != nil || s.Delivered != c.packets || s.Accepted != s.Delivered+s.Dropped ||
			s.Received+20 < arrived.Packets || float64(s.Accepted) < least || float64(s.Accepted) > most {
			t.Errorf("%d packets of %d sent and %d arrived were read: %+v: %v", c.packets, sent.Sent, arrived.Packets, s, c.err)
		}
		after := measure()
		off := (before + after) / 2
		ratios, rates, last = append(ratios, on/off), append(rates, off), c
		t.Logf("%.0f packets/s without, %.0f with: %.3f; %d captured, %d lost", off, on, on/off, c.packets, s.Dropped)
		before = after
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	median := ratios[len(ratios)/2]
	t.Logf("median of the ratios %.3f (%.3f to %.3f), of the rates without %.0f packets/s", median, ratios[0], ratios[len(ratios)-1], rates[len(rates)/2])
	if os.Getenv("SOFTDPU_LONG") != "" && median < 0.95 {
		t.Errorf("under a capture the rate is %.3f of that without", median)
	}
	tsharkCounts(t, last)
}

// tsharkCounts compares what Wireshark's reader finds in a capture.
func tsharkCounts(t *testing.T, c *captured) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Log("no tshark: its reading of the capture left out")
		return
	}
	file := filepath.Join(t.TempDir(), "x.pcapng")
	if err := os.WriteFile(file, c.raw.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tshark", "-r", file, "-Y", `frame.comment contains "verdict=allow rule=rule-9" && frame.interface_name == "lan"`, "-T", "fields", "-e", "udp.srcport").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	if n := uint64(bytes.Count(out, []byte("\n"))); n != c.packets {
		t.Errorf("tshark finds %d packets of %d", n, c.packets)
	}
}
