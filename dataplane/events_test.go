package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/testenv"
)

// What XDP has written before a stop is not lost, although the reader has not come to it yet.
func TestEventsBeforeTheEndAreRead(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "client-server")
	p := g.plane(t)
	acl, err := flowtable.CompileACL([]flowtable.ACLEntry{{
		Proto: flowtable.U8Range{Last: 255}, SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535},
		Verdict: flowtable.Verdict(1, uint32(bpf.XDPActionACTION_DENY), flowtable.VerdictLog),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(Generation{Epoch: 1, ACL: acl, Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	conn, err := g.lab.Must(t, "client").Dial(t.Context(), "udp", netip.MustParseAddrPort("10.10.2.2:9").String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const packets = 300
	for range packets {
		if _, err := conn.Write([]byte("denied")); err != nil {
			t.Fatal(err)
		}
	}
	rules := make([]bpf.XDPRuleCounter, 2)
	testenv.Eventually(t, 10*time.Second, func() error {
		if err := p.Rules(rules); err != nil {
			return err
		}
		if rules[1].Judged < packets {
			return fmt.Errorf("%d packets of %d were judged", rules[1].Judged, packets)
		}
		return nil
	})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	read := 0
	if err := p.Events(over, func(e *bpf.XDPEvent) {
		if e.Rule == 1 {
			read++
		}
	}); err != nil || read != int(rules[1].Judged) {
		t.Errorf("%d events of %d were read, %v", read, rules[1].Judged, err)
	}
}
