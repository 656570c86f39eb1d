// Package gateway is the daemon: its configuration, its life from start to stop, ageing of flows,
// events, and the control API that the reading verbs speak to.
//
// Run does it all. Everything that can be wrong with what people wrote is found before the network
// is touched (ruleset.go); then the plane is opened, the policy published and the ports taken (run.go).
// While it runs, goroutines age flows (ageing.go), write events (events.go), follow routes and answer
// on the control socket (server.go) and to Prometheus (telemetry.go, collector.go, metrics.go). A Ledger
// (ledger.go) keeps what flows that have ended counted.
package gateway
