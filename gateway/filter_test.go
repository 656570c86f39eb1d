package gateway

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestFilter(t *testing.T) {
	web := &Flow{
		Family: 4, Proto: "tcp", SrcIP: netip.MustParseAddr("10.20.1.7"), SrcPort: 40000, DestIP: netip.MustParseAddr("203.0.113.5"), DestPort: 443,
		From: "lan", To: "wan", State: "established", Tier: "xdp", Rule: "pos-pays",
		NAT: &FlowNAT{
			SrcIP: netip.MustParseAddr("198.51.100.9"), SrcPort: 1024, DestIP: netip.MustParseAddr("10.30.0.5"), DestPort: 8443,
			SourceRule: "branch", DestinationRule: "www",
		},
	}
	ping := &Flow{
		Family: 6, Proto: "icmpv6", SrcIP: netip.MustParseAddr("fd10:1::2"), SrcPort: 7, DestIP: netip.MustParseAddr("fd10:2::2"),
		From: "lan", To: "host", State: "new", Tier: "xdp", Rule: "ping", Revoked: true,
	}
	tests := []struct {
		filter    string
		web, ping bool
	}{
		{"", true, true},
		{"  ", true, true},
		{"src 10.0.0.0/8 and dport 443", true, false},
		{"src 10.20.1.99/24", true, false}, // bits behind the prefix are not asked
		{"dst 10.20.0.0/16", false, false},
		{"dst 10.30.0.5 and src 198.51.100.9", true, false}, // translated
		{"host 198.51.100.9 and host 10.20.1.7", true, false},
		{"dst 198.51.100.9 or src 10.30.0.5", false, false},
		{"sport 1024 and dport 8443", true, false},
		{"sport 8443 or dport 1024", false, false},
		{"nat branch and nat www", true, false},
		{"nat ping", false, false},
		{"not nat www", false, true},
		{"host fd10:2::2", false, true},
		{"host 203.0.113.5", true, false},
		{"src fd10:1::/64 or proto tcp", true, true},
		{"sport 40000", true, false},
		{"port 400-500", true, false},
		{"port 0-65535", true, true},
		{"dport 444", false, false},
		{"proto 6", true, false},
		{"proto icmpv6", false, true},
		{"family 6", false, true},
		{"from lan", true, true},
		{"to wan", true, false},
		{"zone host", false, true},
		{"state established", true, false},
		{"rule ping", false, true},
		{"tier xdp", true, true},
		{"tier hardware", false, false},
		{"revoked", false, true},
		{"not revoked", true, false},
		{"not not revoked", false, true},
		{"not (proto tcp and dport 443)", false, true},
		// not binds closest, or least.
		{"not proto tcp and dport 443", false, false},
		{"rule ping or proto tcp and dport 1", false, true},
		{"(rule ping or proto tcp) and dport 443", true, false},
		{"(proto tcp)and(dport 443)", true, false},
	}
	for _, tt := range tests {
		t.Run(tt.filter, func(t *testing.T) {
			f, err := ParseFilter(tt.filter)
			if err != nil {
				t.Fatal(err)
			}
			if f.Match(web) != tt.web || f.Match(ping) != tt.ping {
				t.Errorf("web %t, ping %t", f.Match(web), f.Match(ping))
			}
		})
	}
}

func TestFilterErrors(t *testing.T) {
	tests := []struct {
		filter string
		column int
		want   string
	}{
		{"dport http", 7, `"http" is not a port`},
		{"dport 443 rule x", 11, "expected `and` or `or`"},
		{"dport 443 and", 14, "ends here"},
		{"dport", 6, "dport needs a port"},
		{"src 10.0.0.0/33", 5, "is not an address"},
		{"src fe80::1%eth0", 5, "is not an address"},
		{"port 9-8", 6, "is not a port"},
		{"port 65536", 6, "is not a port"},
		{"state open", 7, "established"},
		{"proto tpc", 7, "icmpv6"},
		{"tier gpu", 6, "worker"},
		{"family 5", 8, `no family "5"`},
		{"(rule a", 8, "column 1 is not closed"},
		{"rule a)", 7, "expected `and` or `or`"},
		{"()", 2, "expected a condition"},
		{"zöne lan", 1, "conditions begin with src"},
		{"rule ä or x y", 11, "expected a condition"}, // columns count characters
		{strings.Repeat("(", 200) + "revoked", 102, "more than 100"},
		{strings.Repeat("not ", 200) + "revoked", 405, "more than 100"},
	}
	for _, tt := range tests {
		t.Run(tt.filter, func(t *testing.T) {
			_, err := ParseFilter(tt.filter)
			var fault *FilterError
			if !errors.As(err, &fault) || fault.Column != tt.column || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func FuzzFilter(f *testing.F) {
	f.Add("src 10.0.0.0/8 and (dport 443 or not state new)")
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := ParseFilter(text)
		if err != nil {
			var fault *FilterError
			if !errors.As(err, &fault) || fault.Column < 1 || fault.Column > len([]rune(text))+1 || fault.Error() == "" {
				t.Errorf("%#v", err)
			}
			return
		}
		filter.Match(&Flow{})
	})
}
