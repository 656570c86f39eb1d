// Package sim drives packets through the packet path without ports: the offline twin.
//
// A Sim decides about one frame at a time, by the Go executor or by the XDP program that `run` loads,
// whichever Config.Engine names; both get the same clock, ports, routes and policy and give the same
// Results. The Go engine needs no privileges; the XDP engine needs root.
//
//	s, err := sim.New(sim.Config{Policy: compiled})
//	result, err := s.Packet(now, "lan", frame)
//	err = s.Close()
//
// Around it stand what `softdpu sim` needs: captures of several formats and link types (OpenCapture),
// whose packets become Ethernet frames, and a Replay, which finds for each packet the port that it
// would have arrived on.
package sim
