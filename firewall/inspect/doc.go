// Package inspect is layer 7: protocol parsers, reassembly and signatures.
//
// Contract: it sees the payload of a flow, in order, as a worker stage hands it over in batches, and
// answers with what it saw (server name, HTTP host, DNS name, fingerprint, alerts) and whether the
// verdict is known, at which point the flow may leave the worker. It imports dataplane/packet and
// nothing else of this module; it keeps no packet after the call returns; it allocates only at a
// flow's start. The policy language refuses `inspect` on a rule until this package has code.
package inspect
