/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* options.h: IPv4 and TCP options. They are copied before they are walked, since only SYNs and few
 * others have any: packet pointers at unknown offsets would cost the verifier more. */
#ifndef SOFTDPU_OPTIONS_H
#define SOFTDPU_OPTIONS_H

#include "packet.h"

#define OPTIONS_MAX 40

/* Where a walk through options starts: 0, but read from the zeroes behind them, so that the verifier
 * sees one state for all walks and not one for each position. */
#define OPTIONS_START(s) ((s)->bytes[OPTIONS_MAX])

/* Copies `len` bytes of options (1..40) to the start of the scratch bytes, zeroes behind them. */
static __always_inline bool load_options(void *ctx, enum hook hook, __u32 at, __u32 len)
{
	struct scratch *s = scratch();

	if (!s)
		return false;
	__builtin_memset(s->bytes, 0, OPTIONS_MAX + 4);
	/* in a form in which Linux 6.1, too, sees that it is not 0 */
	len--;
	opaque(len);
	len = (len & 63) + 1;
	return len <= OPTIONS_MAX && !load_bytes(ctx, hook, at, s->bytes, len);
}

/* IPv4 options in the scratch bytes; `sum` is that of the fixed header. */
__noinline int check_options4(__u32 len, __u64 sum)
{
	struct scratch *s = scratch();
	__u32 at;

	if (!s)
		return REASON_INTERNAL;
#pragma unroll
	for (int i = 0; i < OPTIONS_MAX / 4; i++)
		sum += ((__u32 *)s->bytes)[i];
	if (fold(sum) != 0xffff)
		return REASON_MALFORMED_IPV4_CHECKSUM;
	at = OPTIONS_START(s);
	for (int i = 0; i < OPTIONS_MAX; i++) {
		__u8 kind, size;

		opaque(at);
		at &= 63;
		if (at >= len || at >= OPTIONS_MAX)
			return REASON_NONE;
		kind = s->bytes[at];
		if (kind == 0)
			return REASON_NONE;
		if (kind == 1) {
			at++;
			continue;
		}
		if (at + 2 > len)
			return REASON_MALFORMED_IPV4_OPTIONS;
		size = s->bytes[at + 1];
		if (size < 2 || at + size > len)
			return REASON_MALFORMED_IPV4_OPTIONS;
		if (kind == 131 || kind == 137)
			return REASON_IPV4_SOURCE_ROUTE;
		at += size;
	}
	return REASON_NONE;
}

#define TCP_OPTION_MSS 2
#define TCP_OPTION_WINDOW 3

/* Where the value of the first TCP option of that kind and length begins in the scratch bytes, 0 without
 * it. What stands behind a malformed option is not found: malformed options are the ends' affair. */
static __always_inline __u32 find_option(const struct scratch *s, __u32 len, __u32 kind,
					 __u32 length)
{
	__u32 at = OPTIONS_START(s);

	for (int i = 0; i < OPTIONS_MAX; i++) {
		__u8 size;

		opaque(at);
		at &= 63;
		if (at >= len || at >= OPTIONS_MAX)
			return 0;
		if (s->bytes[at] == 0)
			return 0;
		if (s->bytes[at] == 1) {
			at++;
			continue;
		}
		if (at + 2 > len)
			return 0;
		size = s->bytes[at + 1];
		if (size < 2 || at + size > len)
			return 0;
		if (s->bytes[at] == kind && size == length)
			return at + 2;
		at += size;
	}
	return 0;
}

/* The window scale among the TCP options in the scratch bytes, WSCALE_NONE without it. */
__noinline int find_wscale(__u32 len)
{
	struct scratch *s = scratch();
	__u32 at;

	if (!s)
		return WSCALE_NONE;
	at = find_option(s, len, TCP_OPTION_WINDOW, 3);
	if (!at)
		return WSCALE_NONE;
	opaque(at);
	at = s->bytes[at & 63];
	return at > 14 ? 14 : at;
}

#endif
