/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* track.h: connection tracking of a known flow. docs/PACKET-PATH.md, section 10; RFC 9293 for the
 * sequence arithmetic, RFC 5961 for why RST and FIN count only inside the window. */
#ifndef SOFTDPU_TRACK_H
#define SOFTDPU_TRACK_H

#include "flow.h"

/* The receive window of the end whose leg this is, in bytes. Scales count only if both SYNs had one. */
static __always_inline __u32 window(const struct leg *r, const struct leg *d)
{
	__u8 scale = r->flags & d->flags & LEG_WSCALE_SEEN ? r->flags & LEG_WSCALE_MASK : 0;
	__u32 win = (__u32)r->win << scale;

	return win ? win : 1;
}

static __always_inline bool in_window(__u32 x, const struct leg *r, const struct leg *d)
{
	__s32 off = x - r->ack;

	return !(r->flags & LEG_WINDOW) || (off >= 0 && (__u32)off <= window(r, d));
}

/* Whether ack acknowledges what the other end's SYN began: up to 64 KiB may have come with it. */
static __always_inline bool acknowledges_syn(__u32 ack, const struct leg *d)
{
	return ack - d->ack <= 65535;
}

/* A window as it is stored: those in SYN segments are not scaled. */
static __always_inline __u16 stored_window(const struct leg *d, const struct leg *r,
					   const struct packet *p)
{
	__u8 scale = d->flags & LEG_WSCALE_MASK;

	if (likely(!(p->tcp_flags & TCP_SYN)) || !(d->flags & r->flags & LEG_WSCALE_SEEN))
		return p->win;
	return (p->win + (1u << scale) - 1) >> scale;
}

/* Window rule: what the sender d says of its receive window. */
static __always_inline void note_window(struct leg *d, __u32 ack, __u16 win)
{
	__s32 ahead = ack - d->ack;

	if (ahead > 0 || !(d->flags & LEG_WINDOW)) {
		d->ack = ack;
		d->win = win;
		d->flags |= LEG_WINDOW;
	} else if (ahead == 0 && win > d->win) {
		d->win = win;
	}
}

/* What a SYN says of its sender's window scale. */
static __always_inline __u8 scale_flags(const struct packet *p)
{
	return p->wscale == WSCALE_NONE ? 0 : p->wscale | LEG_WSCALE_SEEN;
}

/* What a change of state that came too late means. */
static __always_inline int changed(bool done)
{
	return done ? REASON_NONE : REASON_FLOW_GONE;
}

static __always_inline int reset(struct flow_core *core, const struct leg *d, const struct leg *r,
				 struct packet *p)
{
	if (!in_window(p->seq, r, d))
		return REASON_TCP_WINDOW;
	return changed(change_state(core, &p->word, FLOW_CLOSED));
}

static __always_inline int track_syn_sent(struct flow_core *core, struct leg *d, struct leg *r,
					  struct packet *p)
{
	__u8 flags = p->tcp_flags;

	if (p->opener) {
		if ((flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
			r->ack = p->seq + 1;
			r->flags &= ~LEG_WINDOW;
			d->win = p->win;
			d->flags = (d->flags & LEG_XLAT) | scale_flags(p);
			return REASON_NONE;
		}
		if (flags & TCP_RST) {
			if (p->seq != r->ack && p->seq != r->ack - 1 &&
			    !(r->flags & LEG_WINDOW && in_window(p->seq, r, d)))
				return REASON_TCP_WINDOW;
			return changed(change_state(core, &p->word, FLOW_CLOSED));
		}
		return REASON_TCP_STATE;
	}
	if (flags & TCP_RST) {
		if (!(flags & TCP_ACK) || !acknowledges_syn(p->ack, d))
			return REASON_TCP_WINDOW;
		return changed(change_state(core, &p->word, FLOW_CLOSED));
	}
	if (flags & TCP_SYN) {
		if (flags & TCP_ACK && !acknowledges_syn(p->ack, d))
			return REASON_TCP_STATE;
		if (!change_state(core, &p->word, FLOW_SYN_RECEIVED))
			return REASON_FLOW_GONE;
		r->ack = p->seq + 1;
		d->flags = (d->flags & LEG_XLAT) | scale_flags(p);
		if (d->flags & r->flags & LEG_WSCALE_SEEN)
			r->win = (r->win + (1u << (r->flags & LEG_WSCALE_MASK)) - 1) >>
				 (r->flags & LEG_WSCALE_MASK);
		r->flags |= LEG_WINDOW;
		d->win = stored_window(d, r, p);
		d->flags |= LEG_WINDOW;
		if (flags & TCP_ACK)
			d->ack = p->ack;
		return REASON_NONE;
	}
	if (flags & TCP_FIN)
		return REASON_TCP_STATE;
	/* a challenge ACK of a connection that the other end still remembers: the opener answers
	 * with a RST that this acknowledgement makes valid */
	d->ack = p->ack;
	d->win = p->win;
	d->flags |= LEG_WINDOW;
	return REASON_NONE;
}

static __always_inline int track_fin(struct flow_core *core, struct leg *d, struct leg *r,
				     struct packet *p)
{
	__u32 end = p->seq + (p->l4_len - p->l4_data) + 1;

	if (!in_window(end, r, d)) {
		/* an old one once more */
		return (__s32)(end - r->ack) <= 0 ? REASON_NONE : REASON_TCP_WINDOW;
	}
	d->flags |= LEG_FIN;
	return changed(
		change_state(core, &p->word, r->flags & LEG_FIN ? FLOW_TIME_WAIT : FLOW_FIN_WAIT));
}

/* All of TCP but the plain ACK segment of an established flow, which the hit path does itself. */
__noinline int track_tcp(struct flow_core *core, struct leg *d, struct leg *r, struct packet *p)
{
	__u8 flags;
	int reason;

	if (!core || !d || !r || !p)
		return REASON_INTERNAL;
	flags = p->tcp_flags;
	switch (state_of(p->word)) {
	case FLOW_SYN_SENT:
		return track_syn_sent(core, d, r, p);
	case FLOW_SYN_RECEIVED:
		if (flags & TCP_RST)
			return reset(core, d, r, p);
		if (!p->opener)
			goto note;
		if (!(flags & TCP_ACK))
			return REASON_NONE; /* its SYN again */
		if (!acknowledges_syn(p->ack, d))
			return REASON_TCP_STATE;
		if (!change_state(core, &p->word, FLOW_ESTABLISHED))
			return REASON_FLOW_GONE;
		break;
	case FLOW_ESTABLISHED:
	case FLOW_FIN_WAIT:
		break;
	case FLOW_TIME_WAIT:
	case FLOW_CLOSED:
		return REASON_NONE;
	default:
		return REASON_FLOW_GONE;
	}
	if (flags & TCP_RST)
		return reset(core, d, r, p);
	if (flags & TCP_FIN) {
		reason = track_fin(core, d, r, p);
		if (reason)
			return reason;
	}
note:
	if (flags & TCP_ACK)
		note_window(d, p->ack, stored_window(d, r, p));
	return REASON_NONE;
}

/* UDP, ICMP queries and everything else: an answer is all there is to see. */
static __always_inline int track_other(struct flow_core *core, struct packet *p)
{
	if (likely(state_of(p->word) != FLOW_NEW || p->opener))
		return REASON_NONE;
	return changed(change_state(core, &p->word, FLOW_REPLIED));
}

#endif
