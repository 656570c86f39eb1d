package dataplane

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// On a kernel without nftables no device forwards, those that come later neither.
func TestForwardNothing(t *testing.T) {
	g := newGateway(t, "client-server")
	g.do(t, func() error {
		for _, name := range []string{"ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding", "ipv4/conf/default/forwarding", "ipv6/conf/wan/force_forwarding"} {
			if err := writeSysctl(name, "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return forwardNothing()
	})
	if out, err := g.ns.Command(t.Context(), "ip", "link", "add", "later", "type", "veth", "peer", "name", "end").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	g.do(t, func() error {
		files, err := filepath.Glob(procSysNet + "/ipv[46]/conf/*/*forwarding")
		seen := 0
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(text)) != "0" {
				t.Errorf("%s is %s", file, text)
			}
			if strings.Contains(file, "/later/") {
				seen++
			}
		}
		if seen < 4 {
			t.Errorf("%d switches of the device that came later: %v", seen, files)
		}
		return err
	})
}
