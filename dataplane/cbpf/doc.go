// Package cbpf reads classic BPF filters, as libpcap compiles them, and writes them as eBPF.
//
//	program, err := cbpf.Parse(out) // of `tcpdump -ddd -y EN10MB EXPRESSION`
//	body, err := program.Function(cbpf.XDP)
//
// A filter means what libpcap means by it: it sees the whole frame, in however many buffers that lies,
// and a load behind its end refuses the packet.
package cbpf
