// Package bpf holds the XDP and tc programs, the types that they share with Go (abi.h), and the Go
// code that bpf2go makes of both. It imports nothing of ours.
package bpf

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -go-package bpf -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type action -type builtin_rule -type classify_key -type counter -type egress -type event -type packet_kind -type event_kind -type flow4 -type flow4_group -type flow4_key -type flow6 -type flow6_group -type flow6_key -type flow_core -type flow_count -type flow_state -type fragment -type gateway_state -type leg -type local_key -type nexthop -type pass_cause -type pass_mark -type port -type reason -type rule_counter -type set_field -type sim -type sim_control -type sim_result -type table_counter XDP xdp.c
//go:generate go tool bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type arrivals -type in_flight -type trace_frame Bench bench.c
//go:generate go tool bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -no-global-types VLAN vlan.c
