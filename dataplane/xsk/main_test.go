package xsk_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// holderVariable makes the test program one that holds a queue until it is killed: "DEVICE".
const holderVariable = "XSK_TEST_HOLD"

// TestMain fails the run if a test left descriptors or mappings of sockets behind.
func TestMain(m *testing.M) {
	if device := os.Getenv(holderVariable); device != "" {
		fmt.Fprintln(os.Stderr, holdQueue(device))
		os.Exit(1)
	}
	if what := os.Getenv(forwarderVariable); what != "" {
		fmt.Fprintln(os.Stderr, forwarder(what))
		os.Exit(1)
	}
	os.Exit(testenv.RunWithoutLeaks(m))
}

// holdQueue binds queue 0 of the device with packets under way, says so, and never ends.
func holdQueue(device string) error {
	u, err := xsk.NewUMEM(xsk.UMEMOptions{})
	if err != nil {
		return err
	}
	p, err := u.NewPool(u.Frames())
	if err != nil {
		return err
	}
	r, err := xsk.Attach(device, xsk.AttachOptions{})
	if err != nil {
		return err
	}
	s, err := xsk.Open(u, p, device, 0, xsk.SocketOptions{})
	if err != nil {
		return err
	}
	if err := r.Add(s); err != nil {
		return err
	}
	var one [1]xsk.Desc
	for range 100 {
		p.Alloc(one[:])
		one[0].Len = 60
		s.Transmit(one[:])
	}
	fmt.Println("held")
	select {}
}
