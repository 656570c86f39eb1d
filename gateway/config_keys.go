package gateway

// configKeys are the keys that each kind of map of the configuration may hold;
// firewall/schema/gateway.schema.json says the same under "$defs", and a test holds them together.
var configKeys = map[string][]string{
	"gateway": {"apiVersion", "kind", "ports", "inline", "policy", "management", "override_management",
		"on_stop", "upgrade_grace", "flows", "metrics", "control", "events", "force_stage", "workers", "state", "ethertypes"},
	"port":       {"device", "mtu", "fix_offloads", "fix_checksums", "xdp_mode", "mss_clamp"},
	"management": {"from", "services"},
	"flows":      {"max", "half_open_share", "timeouts"},
	"timeouts": {"tcp_syn_sent", "tcp_syn_received", "tcp_established", "tcp_fin_wait", "tcp_time_wait",
		"tcp_closed", "udp_new", "udp", "icmp", "other"},
	"metrics": {"listen"},
	"control": {"socket", "group"},
	"events":  {"file", "rate", "max_size", "keep", "drops"},
	"workers": {"count", "cpus", "mode", "ring_size", "frames", "frame_size", "huge_pages", "busy_poll", "poll"},
}
