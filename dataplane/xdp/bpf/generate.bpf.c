/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * A generator of GTP-U packets in IPv4, for frames that the kernel makes (BPF_F_TEST_XDP_LIVE_FRAMES). The kernel uses frames again
 * with what the receiver has made of them, so everything is written each time.
 */
#include "program.h"

#define HEADERS 96

/* HEADERS octets that each frame begins with; and one word, the state of the sequence of TEIDs. */
extern __u64 template, sequence;
extern char first_teid, teid_mask;

char licence[] PART("license") = "Dual BSD/GPL";

PART("xdp") int generate(struct xdp_md *context)
{
	__u8 *frame = (__u8 *)(long)context->data;
	__u64 *state = MEMORY(sequence, __u64), *from = MEMORY(template, __u64);

	if (frame + HEADERS > (__u8 *)(long)context->data_end)
		return XDP_ABORTED;
#pragma clang loop unroll(full)
	for (int i = 0; i < HEADERS / 8; i++)
		((__u64 *)frame)[i] = from[i];
	*state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	*(__u32 *)(frame + 46) = NET32((__u32)(NUMBER(first_teid) + (*state >> 33 & NUMBER(teid_mask))));
	return XDP_TX;
}
