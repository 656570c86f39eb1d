// Package oracle is a second opinion about packets: it decides from docs/PACKET-PATH.md alone what
// must become of each, slowly and plainly, so that tests can hold the two executors against it.
//
// It is independent on purpose. Of this module it imports the parsed policy and nothing else, not the
// compiler, the flow table or the packet parser; headers are read with gopacket, and byte by byte
// where gopacket asks for more or for less than the document. Flows are a map of plain structs, rules
// are asked one after the other, ranges are lists.
//
// It knows no time-outs: flows live until another takes their place. Fragments alone age. The table
// of flows has no groups, so nothing is ever evicted; only World.FlowsMax bounds it.
//
// Which port, server and address of a pool a translated flow gets is the choice of a secret hash. The oracle is
// told of it (Choice) and says whether it may be so: Verdict.Wrong.
package oracle
