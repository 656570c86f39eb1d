// Package bench is the engine of the bench verbs: it measures this project's own paths beside peers
// that do the same work, in the same run, and says how.
//
// Its contract:
//
//   - Every benchmark yields one object: name, environment, results. Field names and units are those
//     that `softdpu bench NAME -o json` documents; they are relied on from outside.
//   - Ours and the peer's rounds alternate, and a ratio is the median of paired rounds, so that a noisy
//     machine disturbs both alike.
//   - After each scenario the counters must show that every packet took the path that the scenario's
//     name says; else the benchmark fails instead of printing a number.
//   - The program that is measured is the one that `softdpu run` loads. Its tag stands in the result.
//   - Everything that a peer runs with (rule files, command lines, version) stands in the result or is
//     printed by --show-peer.
//   - It works in network namespaces of its own, never on the machine's devices, and keeps to the time
//     that each benchmark is given.
package bench
