package gateway

import (
	"strings"
	"testing"

	"github.com/softdpu/softdpu/testenv"
)

// asymmetricRouted has a second port on either side.
var asymmetricRouted = strings.Replace(labRouted, "wan: {device: wan}}", "wan: {device: wan}, lan2: {device: lan2}, wan2: {device: wan2}}", 1)

// addReturnPath adds to a client-server lab a second cable on either side, and has replies take them:
//
//	client c0 --> lan  gw wan  --> s0 server
//	client c1 <-- lan2 gw wan2 <-- s1 server
func addReturnPath(t *testing.T, l *testenv.Lab) {
	t.Helper()
	client, server, gw := l.Must(t, "client").Name(), l.Must(t, "server").Name(), l.Must(t, testenv.Gateway).Name()
	for _, side := range []struct{ ns, far, near, net string }{{client, "c1", "lan2", "3"}, {server, "s1", "wan2", "4"}} {
		ip(t, "link add "+side.near+" netns "+gw+" type veth peer name "+side.far+" netns "+side.ns)
		for _, end := range []struct{ ns, device, host string }{{gw, side.near, "1"}, {side.ns, side.far, "2"}} {
			ip(t, "-n "+end.ns+" addr add 10.10."+side.net+"."+end.host+"/24 dev "+end.device)
			ip(t, "-n "+end.ns+" addr add fd10:"+side.net+"::"+end.host+"/64 dev "+end.device+" nodad")
			ip(t, "-n "+end.ns+" link set "+end.device+" up")
		}
		ip(t, "netns exec "+side.ns+" ethtool -K "+side.far+" gro on") // for the NAPI that a redirect needs
	}
	ip(t, "-n "+server+" route add 10.10.1.0/24 via 10.10.4.1")
	ip(t, "-n "+server+" route add fd10:1::/64 via fd10:4::1")
	ip(t, "-n "+gw+" route add 10.10.1.2/32 via 10.10.3.2")
	ip(t, "-n "+gw+" route add fd10:1::2/128 via fd10:3::2")
}
