package gateway

import (
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
)

// CheckPolicy reads, compiles and tests the configuration's policy as Run does, and changes nothing.
// Policy tests without `out` follow the routes of the network namespace of the calling thread.
func CheckPolicy(c *Config, now time.Time) (*Ruleset, error) {
	routes, err := openRouteOracle(c)
	if err != nil {
		return nil, err
	}
	defer routes.close()
	return PrepareRuleset(c, now, routes.zone)
}

// PortConfigs says what each port of the configuration shall be under the policy, in the order of their
// names. Without a policy, nil, no port has zones.
func PortConfigs(c *Config, r *Ruleset) []dataplane.PortConfig {
	if r == nil {
		r = &Ruleset{Compiled: &firewall.Compiled{}}
	}
	return r.portConfigs(c)
}
