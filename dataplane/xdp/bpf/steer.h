/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Steers GTP-U packets by exact-match entries: from the outer destination and the TEID to a line, from there to a hop.
 *
 *   frame -> outer headers -> anchor (by outer destination) -> line (by TEID) -> slot (by epoch) -> hop -> out
 *                                                                  |
 *                                                                  `-> inner fields -> another line
 * A packet costs one cache line that depends on its tunnel; anchors and hops are few and stay in the cache. Everything is
 * looked at before anything is written, so a packet that goes on to the next part is as it came. `docs/xdp-steering.md`
 * says what packets are steered, `records.h` what is shared with the process.
 */
#ifndef GODWIT_STEER_H
#define GODWIT_STEER_H

#include "program.h"
#include "records.h"

/* Maps. */
extern char slots, ports, inside, inner_programs;
/* Memory. */
extern char control, anchors, lines, hops, addresses, others, passed, scratches;
/* Numbers: the place behind this part in the chain, lengths of tables, and where regions of the lines begin. */
extern char next_slot, anchors_mask, line_count, hop_count, address_count;
extern char tunnel_first, tunnel_mask, frame_first, frame_mask;

#define ETH_LENGTH 14
#define ETH_IPV4 NET16(0x0800)
#define ETH_IPV6 NET16(0x86DD)
#define IPV4_LENGTH 20
#define IPV6_LENGTH 40
#define UDP_LENGTH 8
#define GTP_LENGTH 8
#define GTP_OPTIONAL 4
#define GTP_PORT NET16(2152)
#define GTP_FLAGS 0x07          /* E, S, PN */
#define GTP_FLAG_E 0x04
#define GTP_GPDU 255
#define GTP_END_MARKER 254
/* Extension headers that are read before an inner packet. */
#define EXTENSIONS 8
#define MAPPED 0xFFFF0000ULL    /* lower half of ::ffff:0:0, in network order */

#define UDP 17

#define U16(p) (*(__u16 *)(p))
#define U32(p) (*(__u32 *)(p))
#define U64(p) (*(__u64 *)(p))

/* A packet whose outer headers are as they should be. */
struct packet {
	__u8 *frame;
	void *end;
	__u8 *udp;
	__u8 *gtp;
	__u64 length;           /* of the frame */
	__u64 destination[2], source[2];
	__u32 interface;
	__u32 gtp_length;       /* behind its mandatory octets */
	int ipv6;
};

/* What the programs for inner packets leave each other. Places are those in the frame. */
struct scratch {
	__u64 index, epoch, change;
	__u32 teid, inner, flags;
	__u32 gtp_at, gtp_length;
	__u32 next, ip_at, version, protocol;
	__u32 upper_at, upper_length;
	__u32 fragment;         /* some of a packet */
	__u32 later;            /* not its first part */
	__u32 hidden;           /* extension headers that are not read here */
	__u32 checksum_at;
	__u32 rewrites;         /* whether an inner address is replaced */
	__u32 zeros[10];
};

/* What an entry wants, with the line that counts. */
struct slot {
	__u64 index;
	__u32 teid;
	__u32 inner;
	__u32 flags;
};

/* A result that is no verdict: the packet goes on to the next part, as it came, for this reason. */
#define PASS(reason) (-1 - (reason))
/* Others: the packet is for a program that reads inner packets. */
#define TO_INSIDE (-100)
#define TO_REWRITE (-101)

/* Counts why the packet goes on. */
INLINE void count_passed(int result)
{
	__u64 cpu = processor(), reason = -1 - result;

	OPAQUE(cpu);
	OPAQUE(reason);
	if (cpu < PASSED_PROCESSORS && reason < PASSED_ROW)
		MEMORY(passed, __u64)[cpu * PASSED_ROW + reason]++;
}

/* One's complement sums, in words of either order (RFC 1071 section 2, RFC 1624). */
INLINE __u32 fold(__u64 sum)
{
	sum = (sum & 0xFFFFFFFF) + (sum >> 32);
	sum = (sum & 0xFFFF) + (sum >> 16);
	sum = (sum & 0xFFFF) + (sum >> 16);
	return (sum & 0xFFFF) + (sum >> 16);
}

INLINE __u64 replaced32(__u32 old, __u32 new)
{
	return (__u64)(__u32)~old + new;
}

INLINE __u64 replaced64(__u64 old, __u64 new)
{
	return replaced32(old, new) + replaced32(old >> 32, new >> 32);
}

INLINE __u16 mended(__u16 checksum, __u64 change)
{
	return ~fold((__u16)~checksum + change);
}

/* Finds the row of an outer destination. */
INLINE struct anchor *find_anchor(const __u64 address[2])
{
	__u64 at = (address[0] ^ (address[0] >> 29) ^ address[1]) * 0x9E3779B97F4A7C15ULL >> 40;

#pragma clang loop unroll(disable)
	for (int i = 0; i < ANCHOR_PROBES; i++) {
		__u64 row = (at + i) & NUMBER(anchors_mask);
		struct anchor *anchor;

		OPAQUE(row);
		if (row > NUMBER(anchors_mask))
			return 0;
		anchor = MEMORY(anchors, struct anchor) + row;
		__u16 state = READ(anchor->state);
		if (state == ANCHOR_NEVER)
			return 0;
		if (state == ANCHOR_PRESENT && anchor->address[1] == address[1] && anchor->address[0] == address[0])
			return anchor;
	}
	return 0;
}

enum found { FOUND, OTHER_KEY, FREE, CHANGING };

/* Looks whether a line has this key, and which slot holds. A line that is being changed is read again. */
INLINE enum found look(__u64 index, const __u32 key[3], __u64 epoch, struct slot *slot)
{
	struct line *line;

	OPAQUE(index);
	if (index >= NUMBER(line_count))
		return FREE;
	line = MEMORY(lines, struct line) + index;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 2; i++) {
		__u64 turn = READ(line->turn);
		__u64 front = READ(U64(line->key));
		__u32 back = READ(line->key[2]);
		__u32 which = (turn & TURN_SLOT) ^ (!(turn & TURN_SETTLED) && epoch < turn >> TURN_EPOCH_BIT);
		__u64 low = READ(line->low[which & 1]);
		__u32 high = READ(line->high[which & 1]);

		if (unlikely(READ(line->turn) != turn))
			continue;
		if (front != (key[0] | (__u64)key[1] << 32) || back != key[2])
			return front | back ? OTHER_KEY : FREE;
		slot->index = index;
		slot->teid = low;
		slot->inner = low >> 32;
		slot->flags = high;
		return FOUND;
	}
	return CHANGING;
}

/* Looks for a key in a region of the lines that is a hash table. */
INLINE enum found search(__u64 first, __u64 mask, const __u32 key[3], __u64 epoch, struct slot *slot)
{
	__u32 hash = key[0] * 0x9E3779B1u ^ key[1] * 0x85EBCA6Bu ^ key[2] * 0xC2B2AE35u;
	__u32 step;

	hash ^= hash >> 15;
	hash *= 0x2C1B3C6Du;
	hash ^= hash >> 13;
	step = hash >> 16 | 1;
#pragma clang loop unroll(disable)
	for (int i = 0; i < PROBES; i++) {
		__u64 bucket = (hash + (__u32)(i >> 1) * step) & mask;
		enum found found = look(first + 2 * bucket + (i & 1), key, epoch, slot);

		if (found != OTHER_KEY)
			return found;
	}
	return FREE;
}

/* Whether the packet is one of those that the hop is for. */
INLINE int guarded(const struct packet *packet, const struct hop *hop, __u32 flags)
{
	const __u8 *frame = packet->frame;

	if (flags & ONLY_INTERFACE && hop->only_interface != packet->interface)
		return 0;
	if (flags & ONLY_SOURCE &&
	    (hop->only_source[1] != packet->source[1] || hop->only_source[0] != packet->source[0]))
		return 0;
	if (flags & ONLY_ETH_DESTINATION && (U32(frame) != U32(hop->only_eth_destination) ||
					     U16(frame + 4) != U16(hop->only_eth_destination + 4)))
		return 0;
	if (flags & ONLY_ETH_SOURCE && (U32(frame + 6) != U32(hop->only_eth_source) ||
					U16(frame + 10) != U16(hop->only_eth_source + 4)))
		return 0;
	return 1;
}

/* Counts a packet of an entry: without locking where this processor owns the line, as nearly all packets of a tunnel come
 * to one processor. The first one to come owns it. */
INLINE void count(__u64 index, __u64 octets)
{
	__u32 us = processor() + 1;
	struct line *line;
	struct others *shared;

	OPAQUE(index);
	if (index >= NUMBER(line_count))
		return;
	line = MEMORY(lines, struct line) + index;
	if (likely(READ(line->owner) == us) ||
	    (!READ(line->owner) && __sync_val_compare_and_swap(&line->owner, 0, us) == 0)) {
		WRITE(line->packets, line->packets + 1);
		WRITE(line->octets, line->octets + octets);
		return;
	}
	shared = MEMORY(others, struct others) + index;
	__sync_fetch_and_add(&shared->packets, 1);
	__sync_fetch_and_add(&shared->octets, octets);
}

/* Writes the outer addresses; returns the change for checksums. */
INLINE __u64 write_outer(struct packet *packet, const struct hop *hop, __u32 flags)
{
	__u8 *ip = packet->frame + ETH_LENGTH;
	__u64 change = 0;

	if (packet->ipv6) {
		if (flags & HOP_DESTINATION) {
			change += replaced64(packet->destination[0], hop->destination[0]) +
				  replaced64(packet->destination[1], hop->destination[1]);
			U64(ip + 24) = hop->destination[0];
			U64(ip + 32) = hop->destination[1];
		}
		if (flags & HOP_SOURCE) {
			change += replaced64(packet->source[0], hop->source[0]) +
				  replaced64(packet->source[1], hop->source[1]);
			U64(ip + 8) = hop->source[0];
			U64(ip + 16) = hop->source[1];
		}
		return change;
	}
	if (flags & HOP_DESTINATION) {
		change += replaced32(packet->destination[1] >> 32, hop->destination[1] >> 32);
		U32(ip + 16) = hop->destination[1] >> 32;
	}
	if (flags & HOP_SOURCE) {
		change += replaced32(packet->source[1] >> 32, hop->source[1] >> 32);
		U32(ip + 12) = hop->source[1] >> 32;
	}
	U16(ip + 10) = mended(U16(ip + 10), change);
	return change;
}

/* Whether the packet may be handled as the slot says, and where it goes then: nothing is written yet. Returns the program's
 * verdict, or why it goes on. */
INLINE int decide(struct packet *packet, const struct slot *slot, struct hop **its_hop)
{
	__u32 verdict = slot->flags & VERDICT, flags;
	__u64 number = slot->flags >> HOP_BIT;
	struct hop *hop;

	OPAQUE(number);
	if (number >= NUMBER(hop_count))
		return PASS(PASSED_NO_ENTRY);
	*its_hop = hop = MEMORY(hops, struct hop) + number;
	flags = hop->flags;
	if (flags & ONLY_ANY && !guarded(packet, hop, flags))
		return PASS(PASSED_GUARD);
	if (verdict == VERDICT_HOST)
		return PASS(PASSED_HOST);
	if (verdict == VERDICT_DROP)
		return XDP_DROP;
	if (flags & (HOP_DESTINATION | HOP_SOURCE) && !(flags & HOP_IPV6) != !packet->ipv6)
		return PASS(PASSED_GUARD);
	if (hop->interface == packet->interface)
		return XDP_TX;
	return redirect(&ports, hop->port, 0) == XDP_REDIRECT ? XDP_REDIRECT : PASS(PASSED_NO_PORT);
}

/* Writes the headers in front of the inner packet. `change` is what the inner packet has changed in its own sum. */
INLINE void write_headers(struct packet *packet, const struct slot *slot, const struct hop *hop, __u64 change)
{
	__u32 flags = hop->flags;
	__u16 checksum;

	if (flags & (HOP_DESTINATION | HOP_SOURCE))
		change += write_outer(packet, hop, flags);
	if (slot->flags & SET_TEID) {
		__u32 teid = NET32(slot->teid);

		change += replaced32(U32(packet->gtp + 4), teid);
		U32(packet->gtp + 4) = teid;
	}
	checksum = U16(packet->udp + 6);
	if (checksum) {
		checksum = mended(checksum, change);
		U16(packet->udp + 6) = checksum ? checksum : 0xFFFF;
	}
	if (flags & HOP_ETH_DESTINATION) {
		U32(packet->frame) = U32(hop->eth_destination);
		U16(packet->frame + 4) = U16(hop->eth_destination + 4);
	}
	if (flags & HOP_ETH_SOURCE) {
		U32(packet->frame + 6) = U32(hop->eth_source);
		U16(packet->frame + 10) = U16(hop->eth_source + 4);
	}
}

/* The row of memory that this processor has for itself. */
INLINE struct scratch *own_scratch(void)
{
	__u64 cpu = processor();

	OPAQUE(cpu);
	return cpu < PASSED_PROCESSORS ? MEMORY(scratches, struct scratch) + cpu : 0;
}

/* Leaves the packet to the programs for inner packets. */
INLINE int leave(struct packet *packet, const struct slot *slot, __u64 epoch)
{
	struct scratch *scratch = own_scratch();

	if (!scratch)
		return PASS(PASSED_INNER);
	scratch->index = slot->index;
	scratch->epoch = epoch;
	scratch->teid = slot->teid;
	scratch->inner = slot->inner;
	scratch->flags = slot->flags;
	scratch->gtp_at = packet->gtp - packet->frame;
	scratch->gtp_length = packet->gtp_length;
	return slot->flags & INSIDE_ANY ? TO_INSIDE : TO_REWRITE;
}

/* Finds the entry for link-layer addresses: one for both, else one for the destination alone. */
INLINE enum found find_frame(struct packet *packet, __u64 epoch, struct slot *slot)
{
	__u32 key[3] = { U32(packet->frame), U32(packet->frame + 4), U32(packet->frame + 8) };
	enum found found = search(NUMBER(frame_first), NUMBER(frame_mask), key, epoch, slot);

	if (found == CHANGING || (found == FOUND && slot->flags & VERDICT))
		return found;
	key[1] &= 0xFFFF;
	key[2] = 0;
	return search(NUMBER(frame_first), NUMBER(frame_mask), key, epoch, slot);
}

/* Steers a packet to the port of GTP-U, whose outer headers end at `packet->udp`. */
INLINE int steer_udp(struct packet *packet, __u32 udp_length)
{
	__u8 *gtp = packet->gtp;
	__u64 epoch = READ(MEMORY(control, struct control)->epoch);
	__u32 key[3] = {}, offset;
	struct anchor *anchor;
	struct slot slot = {};
	struct hop *hop = 0;
	enum found found = FREE;
	int out;

	if (udp_length < UDP_LENGTH + GTP_LENGTH || U16(packet->udp + 4) != NET16((__u16)udp_length))
		return PASS(PASSED_MALFORMED);
	packet->gtp_length = NET16(U16(gtp + 2));
	if ((gtp[0] & 0xF0) != 0x30 || packet->gtp_length != udp_length - UDP_LENGTH - GTP_LENGTH ||
	    (gtp[0] & GTP_FLAGS && packet->gtp_length < GTP_OPTIONAL))
		return PASS(PASSED_MALFORMED);
	if (gtp[1] != GTP_GPDU && gtp[1] != GTP_END_MARKER)
		return PASS(PASSED_SIGNALLING);
	if (unlikely(!epoch))
		return PASS(PASSED_PAUSED);
	anchor = find_anchor(packet->destination);
	if (anchor) {
		key[0] = NET32(U32(gtp + 4));
		key[1] = anchor->number;
		offset = key[0] - anchor->first_teid;
		if (offset < anchor->teids)
			found = look((__u64)anchor->first_line + offset, key, epoch, &slot);
		else
			found = search(NUMBER(tunnel_first), NUMBER(tunnel_mask), key, epoch, &slot);
	}
	if (found == FOUND && slot.flags & VERDICT) {
		if (gtp[1] == GTP_END_MARKER && (!(slot.flags & END_MARKERS) || slot.flags & INSIDE_ANY))
			return PASS(PASSED_SIGNALLING);
		if (slot.flags & (INSIDE_ANY | SET_INNER_SOURCE | SET_INNER_DESTINATION))
			return leave(packet, &slot, epoch);
	} else {
		if (found != CHANGING && gtp[1] != GTP_GPDU)
			return PASS(PASSED_SIGNALLING);
		if (found != CHANGING)
			found = find_frame(packet, epoch, &slot);
		if (unlikely(found == CHANGING))
			return PASS(PASSED_CHANGING);
		if (found != FOUND || !(slot.flags & VERDICT))
			return PASS(PASSED_NO_ENTRY);
	}
	out = decide(packet, &slot, &hop);
	if (out < 0)
		return out;
	count(slot.index, packet->length);
	if (out != XDP_DROP)
		write_headers(packet, &slot, hop, 0);
	return out;
}

/* Steers a frame. Returns the program's verdict, or why it goes on as it came. */
INLINE int steer_frame(struct xdp_md *context)
{
	struct packet packet = {
		.frame = (__u8 *)(long)context->data,
		.end = (void *)(long)context->data_end,
		.interface = context->ingress_ifindex,
	};
	__u8 *frame = packet.frame, *ip = frame + ETH_LENGTH;

	packet.length = (__u8 *)packet.end - frame;
	if (frame + ETH_LENGTH + IPV4_LENGTH + UDP_LENGTH + GTP_LENGTH > (__u8 *)packet.end)
		return PASS(PASSED_OTHER);
	if (likely(U16(frame + 12) == ETH_IPV4)) {
		__u32 total = NET16(U16(ip + 2));

		packet.udp = ip + IPV4_LENGTH;
		if (ip[0] != 0x45 || ip[9] != UDP)
			return PASS(PASSED_OTHER);
		if (U16(ip + 6) & NET16(0x3FFF))
			return PASS(PASSED_FRAGMENT);
		if (U16(packet.udp + 2) != GTP_PORT)
			return PASS(PASSED_OTHER);
		if (total < IPV4_LENGTH || ETH_LENGTH + total > packet.length)
			return PASS(PASSED_MALFORMED);
		packet.gtp = packet.udp + UDP_LENGTH;
		packet.source[1] = MAPPED | (__u64)U32(ip + 12) << 32;
		packet.destination[1] = MAPPED | (__u64)U32(ip + 16) << 32;
		return steer_udp(&packet, total - IPV4_LENGTH);
	}
	if (U16(frame + 12) == ETH_IPV6) {
		__u32 payload = NET16(U16(ip + 4));

		if (ip[0] >> 4 != 6 || ip[6] != UDP ||
		    ip + IPV6_LENGTH + UDP_LENGTH + GTP_LENGTH > (__u8 *)packet.end)
			return PASS(PASSED_OTHER);
		packet.udp = ip + IPV6_LENGTH;
		if (U16(packet.udp + 2) != GTP_PORT)
			return PASS(PASSED_OTHER);
		if (ETH_LENGTH + IPV6_LENGTH + payload > packet.length)
			return PASS(PASSED_MALFORMED);
		packet.ipv6 = 1;
		packet.gtp = packet.udp + UDP_LENGTH;
		packet.source[0] = U64(ip + 8);
		packet.source[1] = U64(ip + 16);
		packet.destination[0] = U64(ip + 24);
		packet.destination[1] = U64(ip + 32);
		/* The tables have IPv4 addresses in this form; no packet should. */
		if (!packet.destination[0] && (__u32)packet.destination[1] == (__u32)MAPPED)
			return PASS(PASSED_OTHER);
		return steer_udp(&packet, payload);
	}
	return PASS(PASSED_OTHER);
}

#endif
