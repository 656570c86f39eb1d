// Package bench measures: the packet path without a network (XDP), the gateway on real devices beside
// the kernel (Gateway). Every figure comes as a Result with its spread, every report with the
// circumstances under which it was taken. Methods and what the figures were are in docs/BENCHMARKS.md.
package bench
