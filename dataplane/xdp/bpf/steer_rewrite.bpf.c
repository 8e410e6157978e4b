/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Does what an entry says that another program has found, which may replace an inner address. */
#include "inner.h"

char licence[] PART("license") = "Dual BSD/GPL";

/* Returns the verdict, or why the packet goes on. */
INLINE int carry_out(struct xdp_md *context, struct scratch *scratch)
{
	struct packet packet = {};
	struct slot slot = { .index = scratch->index, .line = line_at(scratch->index), .teid = scratch->teid };
	struct hop *hop = 0;
	__u64 change = 0;
	int out;

	if (READ(scratch->flags) & (SET_INNER_SOURCE | SET_INNER_DESTINATION)) {
		__u8 *gtp = place(context, scratch->gtp_at, GTP_LENGTH);

		/* An End Marker has no inner packet. */
		WRITE(scratch->rewrites, gtp && gtp[1] == GTP_GPDU);
		if (READ(scratch->rewrites) && (find_inner(context, scratch) || read_inner(context, scratch) ||
						prepare(context, scratch)))
			return PASS(PASSED_INNER);
	} else {
		WRITE(scratch->rewrites, 0);
	}
	slot.flags = READ(scratch->flags);
	if (!slot.line || outer(context, scratch, &packet))
		return PASS(PASSED_INNER);
	out = decide(&packet, &slot, &hop);
	if (out < 0)
		return out;
	count(&slot, packet.length);
	if (out == XDP_DROP)
		return out;
	if (READ(scratch->rewrites)) {
		rewrite_inner(context, scratch);
		change = READ(scratch->change);
	}
	slot.flags = READ(scratch->flags);
	write_headers(&packet, &slot, hop, change);
	return out;
}

PART("xdp") int steer_rewrite(struct xdp_md *context)
{
	struct scratch *scratch = own_scratch();
	int result;

	if (!scratch)
		return XDP_ABORTED;
	result = carry_out(context, scratch);
	if (result >= 0)
		return result;
	count_passed(result);
	tail_call(context, &slots, NUMBER(next_slot));
	return XDP_PASS;
}
