//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipes.c: a pipeline of match/action pipes in front of the gateway's own. docs/pipes.md. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "pipes.h"
#include "pipe_lpm.h"
#include "pipe_meter.h"
#include "pipe_table.h"

/* Types and numbers that Go needs and no map holds. */
#define EXPORT(kind, name) const kind name *export_##name __attribute__((unused))

EXPORT(struct, pipe_fields);
EXPORT(struct, pipe_entry);
EXPORT(enum, pipe_entry_flag);
EXPORT(struct, pipe_bucket);
EXPORT(struct, pipe_meter);
EXPORT(struct, pipe_node4);
EXPORT(struct, pipe_node6);
EXPORT(enum, pipe_word);
EXPORT(enum, pipe_has);
EXPORT(enum, pipe_written);
EXPORT(enum, pipe_fragment);
EXPORT(enum, pipe_color);
EXPORT(enum, pipe_ct);
EXPORT(enum, pipe_forward);
EXPORT(enum, pipe_limit);
EXPORT(enum, pipe_base);
EXPORT(enum, pipe_meter_kind);
EXPORT(enum, pipe_meter_flag);

char program_license[] SEC("license") = "Dual BSD/GPL";
