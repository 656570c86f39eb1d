package gateway

import "github.com/prometheus/client_golang/prometheus"

var natLabels = []string{"rule", "kind"}

// natMetrics are those of translation. Without nat rules they are absent, but for the first.
func natMetrics() []metric {
	perRule := func(name, help string, kind prometheus.ValueType, value func(*NATRuleStatus) float64) metric {
		return metric{name, help, kind, natLabels, func(r *reading, emit emit) {
			for i := range r.nat {
				emit(value(&r.nat[i]), r.nat[i].Name, r.nat[i].Kind)
			}
		}}
	}
	return []metric{
		{"softdpu_translated_flows", "Flows that are translated; each takes two places of the flow table.", gauge, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Translated)) }},
		perRule("softdpu_nat_flows", "Flows that a nat rule translates.", gauge,
			func(r *NATRuleStatus) float64 { return float64(r.Flows) }),
		perRule("softdpu_nat_flows_opened_total", "Flows that a nat rule has translated since the start.", counter,
			func(r *NATRuleStatus) float64 { return float64(r.Opened) }),
		perRule("softdpu_nat_exhausted_total", "New flows that were refused because no port of a nat rule's addresses was free.", counter,
			func(r *NATRuleStatus) float64 { return float64(r.Exhausted) }),
		perRule("softdpu_nat_conflicts_total", "New flows that were refused because what a nat rule makes of them was another flow's.", counter,
			func(r *NATRuleStatus) float64 { return float64(r.Conflicts) }),
		perRule("softdpu_nat_ports_used", "Source ports in use of all addresses of a nat rule.", gauge,
			func(r *NATRuleStatus) float64 { return float64(r.PortsUsed) }),
		perRule("softdpu_nat_fullest_ratio", "Share of a nat rule's ports that is in use where it is largest, 0 to 1: of one address, protocol and quarter of the remote ends.", gauge,
			func(r *NATRuleStatus) float64 { return r.FullestPercent / 100 }),
		perRule("softdpu_nat_source_limited_total", "New flows that were refused because their source had as many as a nat rule lets it.", counter,
			func(r *NATRuleStatus) float64 { return float64(r.Limited) }),
		perRule("softdpu_nat_sources_near", "Sources that have more than 90 % of the flows that a nat rule lets one have.", gauge,
			func(r *NATRuleStatus) float64 { return float64(r.SourcesNear) }),
		perRule("softdpu_nat_fullest_source_ratio", "Share of the flows that a nat rule lets one source have, of the source that has most; 0 without a limit.", gauge,
			(*NATRuleStatus).fullestSource),
	}
}
