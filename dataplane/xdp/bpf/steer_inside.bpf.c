/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Looks for the entry for inner fields of a packet whose tunnel has some; the tunnel's own entry holds where there is none. */
#include "inner.h"

char licence[] PART("license") = "Dual BSD/GPL";

PART("xdp") int steer_inside(struct xdp_md *context)
{
	struct scratch *scratch = own_scratch();
	int reason = PASSED_INNER;

	if (!scratch)
		return XDP_ABORTED;
	if (find_inner(context, scratch) || read_inner(context, scratch))
		goto host;
#pragma clang loop unroll(disable)
	for (__u32 set = 0; set < INSIDE_SETS; set++) {
		int found;

		if (!(READ(scratch->flags) >> (INSIDE_BIT + set) & 1))
			continue;
		found = look_inside(context, scratch, set);
		if (found < 0)
			goto host;
		if (found)
			break;
	}
	/* Entries of one epoch handle a packet, the tunnel's and this one. */
	reason = PASSED_CHANGING;
	if (current_epoch() != scratch->epoch)
		goto host;
	reason = PASSED_INNER;
	tail_call(context, &inner_programs, PROGRAM_REWRITE);
host:
	count_passed(PASS(reason));
	tail_call(context, &slots, NUMBER(next_slot));
	return XDP_PASS;
}
