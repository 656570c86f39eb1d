package main

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/testenv"
)

// The verbs of the operator against a gateway that runs.
func TestOperatorVerbs(t *testing.T) {
	testenv.RequireRoot(t)
	d := &demo{env: &Env{Stdin: strings.NewReader(""), Stdout: t.Output(), Stderr: t.Output(), Getenv: os.Getenv, Width: func() int { return 0 }}}
	defer func() {
		for i := len(d.cleanup) - 1; i >= 0; i-- {
			if err := d.cleanup[i](); err != nil {
				t.Error(err)
			}
		}
	}()
	if _, err := d.build(t.Context(), "t-verbs"); err != nil {
		t.Fatal(err)
	}
	socket := d.config.Control.Socket
	answers := func(want int, args ...string) string {
		t.Helper()
		code, stdout, stderr := execute(t, append(args, "--socket", socket)...)
		if code != want {
			t.Errorf("%s: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout + stderr
	}

	text := answers(exitYes, "status")
	for _, want := range []string{"Files          as they were loaded", "native", d.config.File, "up "} {
		if !strings.Contains(text, want) {
			t.Errorf("status does not say %q:\n%s", want, text)
		}
	}
	var s gateway.Status
	if err := json.Unmarshal([]byte(answers(exitYes, "status", "-o", "json")), &s); err != nil || len(s.Ports) != 2 || len(s.Policy.Hash) != 64 || len(s.Differs) != 0 {
		t.Errorf("%v: %+v", err, s)
	}
	before := s.Ports[1].Since
	if err := os.WriteFile(s.Policy.Files[0], []byte("# emptied\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := answers(exitYes, "status"); !strings.Contains(text, "DIFFER from what is loaded") || !strings.Contains(text, s.Policy.Files[0]+": changed") {
		t.Errorf("a changed file is not named:\n%s", text)
	}

	// A flow is ended, and is no longer listed.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := d.client.Exchange(ctx, netip.AddrPortFrom(demoServer[0], 53), []byte("who?")); err != nil {
		t.Fatal(err)
	}
	if text := answers(exitYes, "flows", "kill", "--filter", "dport 53 and proto udp"); !strings.Contains(text, "1 flow killed") {
		t.Errorf("flows kill says %q", text)
	}
	if text := answers(exitYes, "flows", "--filter", "dport 53"); !strings.Contains(text, "no flow") {
		t.Errorf("it is there still:\n%s", text)
	}

	// Packets are shown with what becomes of them.
	shown := make(chan string, 1)
	go func() {
		shown <- answers(exitYes, "capture", "--filter", "udp dst port 53", "-c", "1", "--duration", "10s")
	}()
	for text = ""; text == ""; {
		if _, err := d.client.Exchange(ctx, netip.AddrPortFrom(demoServer[0], 53), []byte("who?")); err != nil {
			t.Fatal(err)
		}
		select {
		case text = <-shown:
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, want := range []string{" in  lan  udp 10.", ":53, 46 bytes  verdict=allow rule=", " out=wan ", "1 packet captured of ", ", 0 lost"} {
		if !strings.Contains(text, want) {
			t.Errorf("capture does not say %q:\n%s", want, text)
		}
	}

	// A port that loses its link says so, and since when.
	if err := d.server.SetUp("s0", false); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if err := json.Unmarshal([]byte(answers(exitYes, "status", "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		if !s.Ports[1].Up {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if s.Ports[1].Up || !s.Ports[1].Since.After(before) || !s.Ports[0].Up {
		t.Errorf("ports %+v", s.Ports)
	}
}
