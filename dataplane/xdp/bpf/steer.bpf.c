/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* The steering part of an interface's chain of XDP programs: `steer.h`, and on to the next part where it does not apply. */
#include "steer.h"

char licence[] PART("license") = "Dual BSD/GPL";

/* Compared with `src/steer/records.rs` by a test. */
const __u32 record_numbers[] PART("records") = {
	sizeof(struct line), sizeof(struct hop), sizeof(struct anchor), sizeof(struct inside_key), sizeof(struct more),
	PROBES, ANCHOR_PROBES, PASSED_COUNT, PASSED_ROW, PASSED_PROCESSORS, KEY_REMOVED, KEY_NUMBER_BIT, KEY_INSIDE, KEY_FRAME,
	VERDICT_FORWARD, VERDICT_HOST, VERDICT_DROP, VERDICT_MORE, SET_TEID, SET_INNER_SOURCE, SET_INNER_DESTINATION, INNER_IPV6,
	END_MARKERS, INSIDE_BIT, INSIDE_SETS, HOP_BIT, HOP_DESTINATION, HOP_SOURCE, HOP_ETH_DESTINATION, HOP_ETH_SOURCE,
	HOP_IPV6, HOP_IPV4, ONLY_INTERFACE, ONLY_SOURCE, ONLY_ETH_DESTINATION, ONLY_ETH_SOURCE,
	ANCHOR_REMOVED, ANCHOR_IPV4, ANCHOR_IPV6, sizeof(struct scratch),
};

PART("xdp") int steer(struct xdp_md *context)
{
	int result = steer_frame(context);

	if (likely(result >= 0))
		return result;
	if (result == TO_INSIDE || result == TO_REWRITE) {
		tail_call(context, &inner_programs, result == TO_INSIDE ? PROGRAM_INSIDE : PROGRAM_REWRITE);
		result = PASS(PASSED_INNER);
	}
	count_passed(result);
	tail_call(context, &slots, NUMBER(next_slot));
	return XDP_PASS;
}
