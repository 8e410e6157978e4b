/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The steering program behind one that varies the TEID of an outer IPv4 packet, for measuring it. The entries must leave the
 * packet as it is, apart from the TEID. With `baseline` 2 only the TEID is varied, with 3 a line at random is read and written as well.
 */
#include "steer.h"

/* Two words of memory: the state of the sequence of TEIDs, which is first_teid plus a number of up to teid_mask; and the outer
 * destination. All packets are in the same frame. Were the destination not written, a packet would have to wait for the line of the
 * one before, from which that has its destination, and no two lines would come from memory at the same time. */
extern __u64 sequence;
extern char first_teid, teid_mask, baseline;

char licence[] PART("license") = "Dual BSD/GPL";

PART("xdp") int steer_bench(struct xdp_md *context)
{
	__u8 *frame = (__u8 *)(long)context->data;
	__u64 *state = MEMORY(sequence, __u64), what = NUMBER(baseline);
	int verdict;

	if (frame + 50 > (__u8 *)(long)context->data_end)
		return XDP_ABORTED;
	*state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	U32(frame + 46) = NET32((__u32)(NUMBER(first_teid) + (*state >> 33 & NUMBER(teid_mask))));
	if (state[1])
		U32(frame + 30) = state[1];
	OPAQUE(what);
	if (what == 3) {
		struct line *line = line_at(*state >> 33 & NUMBER(teid_mask));

		if (line)
			WRITE(line->octets, READ(line->octets));
	}
	if (what != 1)
		return XDP_TX;
	verdict = steer_frame(context);
	return verdict < 0 ? XDP_PASS : verdict;
}
