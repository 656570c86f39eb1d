package gateway

import (
	"math"
	"runtime"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// A metric is one name that /metrics serves: what it means, and how its values come out of a reading.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	each       func(r *reading, emit emit)
}

// emit takes one value, with the values of the metric's labels.
type emit func(value float64, labels ...string)

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// quietRules is how many rules a policy may have for all of them to be shown. Of a larger one those that
// never decided are left out: 100,000 rules are half a million series.
const quietRules = 1000

// metrics returns what is served, in the order of docs/GATEWAY.md, which a test holds against it.
func metrics() []metric {
	return slices.Concat(gatewayMetrics(), natMetrics(), workerMetrics())
}

func gatewayMetrics() []metric {
	return []metric{
		// The gateway.
		{"softdpu_build_info", "Always 1: what runs.", gauge, []string{"version", "go_version", "kernel"},
			func(r *reading, emit emit) { emit(1, r.version, runtime.Version(), r.kernel) }},
		{"softdpu_start_time_seconds", "When the gateway was started, in Unix time.", gauge, nil,
			func(r *reading, emit emit) { emit(seconds64(r.started.UnixNano())) }},
		{"softdpu_healthy", "1 while packets can pass, as /healthz says; 0 if not.", gauge, nil,
			func(r *reading, emit emit) { emit(truth(len(r.problems) == 0)) }},
		{"softdpu_reading_duration_seconds", "How long it took to read what is shown here, the flow table included.", gauge, nil,
			func(r *reading, emit emit) { emit(r.took.Seconds()) }},

		// The policy.
		{"softdpu_policy_epoch", "Number of the running policy; flows with an older one are judged again.", gauge, nil,
			func(r *reading, emit emit) { emit(float64(r.epoch)) }},
		{"softdpu_policy_info", "Always 1: the running policy, by the SHA-256 of its files.", gauge, []string{"hash"},
			func(r *reading, emit emit) { emit(1, r.hash) }},
		{"softdpu_policy_rules", "Rules of the running policy, without built-in ones.", gauge, nil,
			func(r *reading, emit emit) { emit(float64(r.policyRules)) }},
		{"softdpu_policy_files_differ", "1 if files of configuration, policy or sets are no longer those that run.", gauge, nil,
			func(r *reading, emit emit) { emit(truth(r.filesDiffer)) }},
		{"softdpu_policy_loads_total", "Policies put in force, the first at the start, and policies refused.", counter, []string{"result"},
			func(r *reading, emit emit) {
				emit(float64(r.loadsApplied), "applied")
				emit(float64(r.loadsRefused), "refused")
			}},
		{"softdpu_policy_last_load_successful", "0 if the last policy was refused.", gauge, nil,
			func(r *reading, emit emit) { emit(truth(!r.lastLoadRefused)) }},
		{"softdpu_policy_loaded_timestamp_seconds", "When the running policy was put in force, in Unix time.", gauge, nil,
			func(r *reading, emit emit) { emit(seconds64(r.loadedAt)) }},
		{"softdpu_policy_next_expiry_timestamp_seconds", "When the next rule expires, in Unix time; absent if none will.", gauge, nil,
			func(r *reading, emit emit) {
				if !r.nextExpiry.IsZero() {
					emit(float64(r.nextExpiry.Unix()))
				}
			}},
		{"softdpu_set_entries", "Entries of a set that are in force, by where they come from: the policy, or runtime.", gauge, []string{"set", "type", "source"},
			func(r *reading, emit emit) {
				for _, s := range r.sets {
					emit(float64(s.Written-s.Removed), s.Name, s.Type, "policy")
					emit(float64(s.Added), s.Name, s.Type, "runtime")
				}
			}},

		// Packets: by rule and verdict, by reason of the drop, by cause of the pass.
		{"softdpu_rule_packets_total", "Packets of flows that a rule allowed, both directions, or that it refused.", counter, ruleLabels,
			eachRule(func(r *RuleStatus) float64 { return float64(r.Packets) })},
		{"softdpu_rule_bytes_total", "Bytes of IP packets of flows that a rule allowed, both directions, or that it refused.", counter, ruleLabels,
			eachRule(func(r *RuleStatus) float64 { return float64(r.Bytes) })},
		{"softdpu_rule_decisions_total", "Times that a rule decided, or in audit mode would have.", counter, ruleLabels,
			eachRule(func(r *RuleStatus) float64 { return float64(r.Judged) })},
		{"softdpu_rule_flows", "Flows that a rule allows now.", gauge, ruleLabels,
			eachRule(func(r *RuleStatus) float64 { return float64(r.Flows) })},
		{"softdpu_rule_last_decision_timestamp_seconds", "When a rule last decided, in Unix time; absent if it never did.", gauge, ruleLabels,
			func(r *reading, emit emit) {
				for i := range r.rules {
					if rule := &r.rules[i]; rule.LastHit != nil {
						emit(seconds64(rule.LastHit.UnixNano()), rule.Name, rule.Action, rule.Mode)
					}
				}
			}},
		{"softdpu_drop_packets_total", "Packets dropped, by reason.", counter, []string{"reason"},
			func(r *reading, emit emit) {
				for _, d := range r.drops {
					emit(float64(d.Packets), d.Reason)
				}
			}},
		{"softdpu_drop_bytes_total", "Bytes of frames dropped, by reason.", counter, []string{"reason"},
			func(r *reading, emit emit) {
				for _, d := range r.drops {
					emit(float64(d.Bytes), d.Reason)
				}
			}},
		{"softdpu_pass_packets_total", "Packets that went to the kernel instead of out by XDP, by cause.", counter, []string{"cause"},
			func(r *reading, emit emit) {
				for _, p := range r.passes {
					emit(float64(p.Packets), p.Cause)
				}
			}},
		{"softdpu_pass_bytes_total", "Bytes of frames that went to the kernel instead of out by XDP, by cause.", counter, []string{"cause"},
			func(r *reading, emit emit) {
				for _, p := range r.passes {
					emit(float64(p.Bytes), p.Cause)
				}
			}},

		// Flows and their table.
		{"softdpu_flows", "Flows in the table, by state and by where they live.", gauge, []string{"state", "tier"},
			func(r *reading, emit emit) {
				for _, s := range flowStates {
					emit(float64(r.states[s]-r.carried[s]), s.String(), tierXDP)
					emit(float64(r.carried[s]), s.String(), tierWorker)
				}
			}},
		{"softdpu_revoked_flows", "Of the flows, those that the policy no longer allows: drops until their time-out.", gauge, nil,
			func(r *reading, emit emit) { emit(float64(r.revoked)) }},
		{"softdpu_table_flows", "Places of the flow table in use.", gauge, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Flows + r.table.Translated)) }},
		{"softdpu_table_flows_limit", "Places of the flow table: flows.max.", gauge, nil,
			func(r *reading, emit emit) { emit(float64(r.table.FlowsMax)) }},
		{"softdpu_table_half_open_flows", "Of the places in use, those of half-open flows.", gauge, nil,
			func(r *reading, emit emit) { emit(float64(r.table.HalfOpen)) }},
		{"softdpu_table_half_open_flows_limit", "Places that half-open flows may take: flows.half_open_share.", gauge, nil,
			func(r *reading, emit emit) { emit(float64(r.table.HalfOpenMax)) }},
		{"softdpu_flows_created_total", "Flows created, without those reopened.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Created)) }},
		{"softdpu_flows_reopened_total", "Connections that were over and began anew in the place of their own flow.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Reopened)) }},
		{"softdpu_flows_refused_total", "New flows that found no place: their packets are the drop flow-table-full.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Refused)) }},
		{"softdpu_flows_evicted_total", "Half-open flows that gave their place to a new one.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Evicted)) }},
		{"softdpu_flows_aged_total", "Flows that ended because they were idle for their time-out.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Aged)) }},
		{"softdpu_flows_killed_total", "Flows that ended because somebody asked for it.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Killed)) }},
		{"softdpu_flows_revived_total", "Revoked flows that the policy allowed again.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Revived)) }},
		{"softdpu_flows_overflowed_total", "Of the flows created and reopened, those stored outside their groups.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.table.Overflowed)) }},

		// Fragments.
		{"softdpu_fragments_held", "Later fragments that wait for their first.", gauge, nil,
			func(r *reading, emit emit) { emit(float64(r.fragments.Held)) }},
		{"softdpu_fragments_released_total", "Held fragments whose first has come.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.fragments.Released)) }},
		{"softdpu_fragments_expired_total", "Held fragments whose first had not come after 1 s: the drop fragment-no-first.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.fragments.Expired)) }},

		// Ports.
		{"softdpu_port_info", "Always 1: how a port runs. Mode is native or generic.", gauge, []string{"port", "device", "driver", "mode", "zone", "peer"},
			func(r *reading, emit emit) {
				for _, p := range r.ports {
					emit(1, p.Name, p.Device, p.Driver, p.Mode, p.Zone, p.Peer)
				}
			}},
		{"softdpu_port_up", "1 if the port's device is up and has a carrier.", gauge, portLabels,
			func(r *reading, emit emit) {
				for _, p := range r.ports {
					emit(truth(p.Up), p.Name)
				}
			}},
		{"softdpu_port_present", "1 if the port has its device; 0 while that is gone or cannot be taken.", gauge, portLabels,
			func(r *reading, emit emit) {
				for _, p := range r.ports {
					emit(truth(p.Missing == ""), p.Name)
				}
			}},
		{"softdpu_port_since_timestamp_seconds", "Since when the port is up, down or without its device, in Unix time.", gauge, portLabels,
			func(r *reading, emit emit) {
				for _, p := range r.ports {
					emit(seconds64(p.Since.UnixNano()), p.Name)
				}
			}},
		{"softdpu_port_receive_packets_total", "Frames received, as the port's device counts them.", counter, portLabels,
			func(r *reading, emit emit) {
				for _, d := range r.devices {
					emit(float64(d.RxPackets), d.Port)
				}
			}},
		{"softdpu_port_receive_bytes_total", "Bytes of frames received, as the port's device counts them.", counter, portLabels,
			func(r *reading, emit emit) {
				for _, d := range r.devices {
					emit(float64(d.RxBytes), d.Port)
				}
			}},
		{"softdpu_port_transmit_packets_total", "Frames sent, as the port's device counts them.", counter, portLabels,
			func(r *reading, emit emit) {
				for _, d := range r.devices {
					emit(float64(d.TxPackets), d.Port)
				}
			}},
		{"softdpu_port_transmit_bytes_total", "Bytes of frames sent, as the port's device counts them.", counter, portLabels,
			func(r *reading, emit emit) {
				for _, d := range r.devices {
					emit(float64(d.TxBytes), d.Port)
				}
			}},
		{"softdpu_port_errors_total", "Frames that the port's device counts as errors, by direction.", counter, []string{"port", "direction"},
			func(r *reading, emit emit) {
				for _, d := range r.devices {
					emit(float64(d.RxErrors), d.Port, "receive")
					emit(float64(d.TxErrors), d.Port, "transmit")
				}
			}},

		// Events.
		{"softdpu_events_written_total", "Events written to the file.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.events.Written)) }},
		{"softdpu_events_unlogged_total", "Events left out by their limit, or because the ring was full.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.events.Unlogged)) }},
		{"softdpu_events_lost_total", "Events that the file did not take, or that the run before was killed with.", counter, nil,
			func(r *reading, emit emit) { emit(float64(r.events.Lost)) }},
	}
}

var (
	ruleLabels = []string{"rule", "verdict", "mode"}
	portLabels = []string{"port"}
)

// eachRule emits a value of every rule that is shown.
func eachRule(value func(*RuleStatus) float64) func(*reading, emit) {
	return func(r *reading, emit emit) {
		for i := range r.rules {
			if rule := &r.rules[i]; len(r.rules) <= quietRules || rule.LastHit != nil || rule.Packets > 0 || rule.Flows > 0 {
				emit(value(rule), rule.Name, rule.Action, rule.Mode)
			}
		}
	}
}

func truth(v bool) float64 {
	if v {
		return 1
	}
	return 0
}

// seconds64 turns nanoseconds into seconds, to the microsecond that a float64 of today's date can hold.
func seconds64(ns int64) float64 { return math.Round(float64(ns)/1e3) / 1e6 }
