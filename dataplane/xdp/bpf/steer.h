/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Steers GTP-U packets by exact-match entries: from the outer destination and the TEID to a line, from there to a hop.
 *
 *   frame -> outer headers -> anchor (by outer destination) -> line (by TEID) -> hop -> out
 *                                                               |  `-> while it changes: its rest -> slot (by epoch)
 *                                                               `-> inner fields -> another line
 * A packet costs half a cache line that depends on its tunnel; anchors and hops are few and stay in the cache. Everything is
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
extern __u64 control, anchors, lines, hops, addresses, more, passed, scratches;
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
	struct xdp_md *context;
	__u8 *frame;
	__u8 *udp;
	__u64 length;           /* of the frame */
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
	struct line *line;
	__u64 index;
	__u32 teid;
	__u32 inner;
	__u32 flags;
};

/* A result that is no verdict: the packet goes on to the next part, as it came, for this reason. */
#define PASS(reason) (-1 - (reason))
/* Returns it. The compiler would set the result in front of each condition, also for packets that do not return here. */
#define RETURN_PASS(reason)                                                                                            \
	do {                                                                                                           \
		int result = PASS(reason);                                                                             \
		OPAQUE(result);                                                                                        \
		return result;                                                                                         \
	} while (0)
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

/* One's complement sums below 2^40, in words of either order (RFC 1071 section 2, RFC 1624). */
INLINE __u32 fold(__u64 sum)
{
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

/* The lower half of an IPv4 address's form in the tables. */
INLINE __u64 mapped(__u32 address)
{
	return MAPPED | (__u64)address << 32;
}

/* The row of the anchors' table with this number, masked. */
INLINE struct anchor *anchor_row(__u64 number)
{
	struct anchor *anchor;

	number &= NUMBER(anchors_mask);
	OPAQUE(number);
	anchor = MEMORY(anchors, struct anchor) + number;
	OPAQUE(anchor);
	return anchor;
}

/* Whether the row has this address. */
INLINE int has_address(const struct anchor *anchor, const __u8 *address, int ipv6)
{
	if (ipv6)
		return READ(anchor->state) == ANCHOR_IPV6 && anchor->address[1] == U64(address + 8) &&
		       anchor->address[0] == U64(address);
	return READ(anchor->state) == ANCHOR_IPV4 && anchor->address[1] >> 32 == U32(address);
}

/* Finds the row of an outer destination: nearly always the first one that is looked at. */
INLINE struct anchor *find_anchor(const __u8 *address, int ipv6)
{
	__u64 mixed = ipv6 ? U64(address) ^ U64(address) >> 29 ^ U64(address + 8) : U32(address);
	__u64 at = mixed * 0x9E3779B97F4A7C15ULL >> 40;
	struct anchor *anchor = anchor_row(at);

	if (likely(has_address(anchor, address, ipv6)))
		return anchor;
#pragma clang loop unroll(disable)
	for (int i = 0; i < ANCHOR_PROBES; i++) {
		anchor = anchor_row(at + i);
		if (READ(anchor->state) == ANCHOR_NEVER)
			return 0;
		if (has_address(anchor, address, ipv6))
			return anchor;
	}
	return 0;
}

enum found { FOUND, OTHER_KEY, FREE, CHANGING };

/* A line by its number; 0: there is none. */
INLINE struct line *line_at(__u64 index)
{
	OPAQUE(index);
	if (unlikely(index >= NUMBER(line_count)))
		return 0;
	OPAQUE(index);
	return MEMORY(lines, struct line) + index;
}

/* The rest of a line. */
INLINE struct more *more_at(__u64 index)
{
	OPAQUE(index);
	if (unlikely(index >= NUMBER(line_count)))
		return 0;
	OPAQUE(index);
	return MEMORY(more, struct more) + index;
}

INLINE void put_action(struct slot *slot, __u64 action)
{
	slot->teid = action;
	slot->flags = action >> 32;
}

/* Reads the slot that holds. Returns whether it is of one piece: not, if the line was changed meanwhile. */
INLINE int read_slot(struct more *more, __u64 epoch, struct slot *slot)
{
	__u64 turn = READ(more->turn), which = turn & TURN_SLOT;

	if (turn >> TURN_EPOCH_BIT > epoch && !(turn & TURN_SETTLED))
		which ^= 1;
	put_action(slot, READ(more->action[which]));
	slot->inner = READ(more->inner[which]);
	return READ(more->turn) == turn;
}

/* Reads what holds for a line. A line that is being changed is read again. What holds may be of a later epoch than this one, if that
 * has begun meanwhile: who reads several lines for a packet looks at the epoch again. */
INLINE enum found read_line(struct line *line, __u64 index, __u64 epoch, struct slot *slot)
{
	struct more *more;

	slot->line = line;
	slot->index = index;
	put_action(slot, READ(line->action));
	if (likely(!(slot->flags & VERDICT_MORE)))
		return FOUND;
	more = more_at(index);
	return more && (read_slot(more, epoch, slot) || read_slot(more, epoch, slot)) ? FOUND : CHANGING;
}

INLINE __u64 current_epoch(void)
{
	return READ(MEMORY(control, struct control)->epoch);
}

/* The key of a line without its owner. */
INLINE __u64 key_of(const struct line *line)
{
	return READ(line->key) & ((1ULL << OWNER_BIT) - 1);
}

/* Looks whether a line has this key, and what holds. Lines get other keys a grace period after nothing holds in them. Of two link-layer
 * addresses, `frame`, the key is only the hash. */
INLINE enum found look(__u64 index, __u64 key, const __u32 *frame, __u64 epoch, struct slot *slot)
{
	struct line *line = line_at(index);
	__u64 found;

	if (!line)
		return FREE;
	found = key_of(line);
	if (found != key)
		return found ? OTHER_KEY : FREE;
	if (frame) {
		struct more *more = more_at(index);

		if (!more || READ(more->key[0]) != frame[0] || READ(more->key[1]) != frame[1] || READ(more->key[2]) != frame[2])
			return OTHER_KEY;
	}
	return read_line(line, index, epoch, slot);
}

INLINE __u32 hash_key(__u32 first, __u32 second, __u32 third)
{
	__u32 hash = first * 0x9E3779B1u ^ second * 0x85EBCA6Bu ^ third * 0xC2B2AE35u;

	hash ^= hash >> 15;
	hash *= 0x2C1B3C6Du;
	return hash ^ hash >> 13;
}

/* Which line of a bucket has the key, if one has: calculated, as a jump would be foreseen wrongly for every third packet, and be
 * found out only when the line comes from memory. */
INLINE __u64 place_in_bucket(__u64 index, __u64 key)
{
	struct line *line = line_at(index);
	__u64 differs = line ? key_of(line) ^ key : 0;

	differs = (differs | -differs) >> 63;
	OPAQUE(differs);
	return index + differs;
}

/* Looks for a key in a region of the lines that is a hash table. */
INLINE enum found search(__u64 first, __u64 mask, __u32 hash, __u64 key, const __u32 *frame, __u64 epoch, struct slot *slot)
{
	__u32 step = hash >> 16 | 1;

#pragma clang loop unroll(disable)
	for (int i = 0; i < PROBES; i += 2, hash += step) {
		__u64 bucket = first + 2 * (hash & mask);
		enum found found;

		/* Two pairs of addresses may have the same hash. */
		if (frame && (found = look(bucket, key, frame, epoch, slot)) != OTHER_KEY)
			return found;
		found = look(frame ? bucket + 1 : place_in_bucket(bucket, key), key, frame, epoch, slot);
		if (likely(found != OTHER_KEY))
			return found;
	}
	return FREE;
}

/* Whether the packet is one of those that the hop is for. */
INLINE int guarded(const struct packet *packet, const struct hop *hop, __u32 flags)
{
	const __u8 *frame = packet->frame, *ip = frame + ETH_LENGTH;
	__u64 front = packet->ipv6 ? U64(ip + 8) : 0, back = packet->ipv6 ? U64(ip + 16) : mapped(U32(ip + 12));

	if (flags & ONLY_INTERFACE && hop->only_interface != packet->context->ingress_ifindex)
		return 0;
	if (flags & ONLY_SOURCE && (hop->only_source[1] != back || hop->only_source[0] != front))
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
INLINE void count(const struct slot *slot, __u64 octets)
{
	struct line *line = slot->line;
	__u64 us = processor() + 1, key = READ(line->key);
	struct more *more;

	if (likely(key >> OWNER_BIT == us) ||
	    (!(key >> OWNER_BIT) && __sync_val_compare_and_swap(&line->key, key, key | us << OWNER_BIT) == key)) {
		WRITE(line->packets, line->packets + 1);
		WRITE(line->octets, line->octets + octets);
		return;
	}
	more = more_at(slot->index);
	if (!more)
		return;
	__sync_fetch_and_add(&more->packets, 1);
	__sync_fetch_and_add(&more->octets, octets);
}

/* Replaces 16 octets; returns the change for checksums. */
INLINE __u64 replace128(__u8 *at, const __u64 new[2])
{
	__u64 change = replaced64(U64(at), new[0]) + replaced64(U64(at + 8), new[1]);

	U64(at) = new[0];
	U64(at + 8) = new[1];
	return change;
}

/* Replaces 4 octets; returns the change for checksums. */
INLINE __u64 replace32(__u8 *at, __u32 new)
{
	__u64 change = replaced32(U32(at), new);

	U32(at) = new;
	return change;
}

/* Writes the outer addresses; returns the change for checksums. */
INLINE __u64 write_outer(struct packet *packet, const struct hop *hop, __u32 flags)
{
	__u8 *ip = packet->frame + ETH_LENGTH;
	__u64 change = 0;

	if (packet->ipv6) {
		if (flags & HOP_DESTINATION)
			change += replace128(ip + 24, hop->destination);
		if (flags & HOP_SOURCE)
			change += replace128(ip + 8, hop->source);
		return change;
	}
	if (flags & HOP_DESTINATION)
		change += replace32(ip + 16, hop->destination[1] >> 32);
	if (flags & HOP_SOURCE)
		change += replace32(ip + 12, hop->source[1] >> 32);
	U16(ip + 10) = mended(U16(ip + 10), change);
	return change;
}

/* Whether the packet may be handled as the slot says, and where it goes then: nothing is written yet. Returns the program's
 * verdict, or why it goes on. */
INLINE int decide(struct packet *packet, const struct slot *slot, struct hop **its_hop)
{
	__u32 verdict = slot->flags & VERDICT, wrong = packet->ipv6 ? HOP_IPV4 : HOP_IPV6, flags;
	__u64 number = slot->flags >> HOP_BIT;
	struct hop *hop;

	OPAQUE(number);
	if (unlikely(number >= NUMBER(hop_count)))
		RETURN_PASS(PASSED_NO_ENTRY);
	hop = MEMORY(hops, struct hop) + number;
	OPAQUE(hop);
	*its_hop = hop;
	flags = hop->flags;
	if (unlikely(flags & (ONLY_ANY | wrong)) && (flags & wrong || !guarded(packet, hop, flags)))
		RETURN_PASS(PASSED_GUARD);
	if (unlikely(verdict != VERDICT_FORWARD)) {
		if (verdict == VERDICT_DROP)
			return XDP_DROP;
		RETURN_PASS(PASSED_HOST);
	}
	if (hop->interface == packet->context->ingress_ifindex)
		return XDP_TX;
	if (unlikely(redirect(&ports, hop->port, 0) != XDP_REDIRECT))
		RETURN_PASS(PASSED_NO_PORT);
	return XDP_REDIRECT;
}

/* Writes the link-layer addresses. */
INLINE void write_link(__u8 *frame, const struct hop *hop, __u32 flags)
{
	if (likely((flags & HOP_ETH_BOTH) == HOP_ETH_BOTH)) {
		U64(frame) = U64(hop->eth_destination);
		U32(frame + 8) = U32(hop->eth_source + 2);
		return;
	}
	if (flags & HOP_ETH_DESTINATION) {
		U32(frame) = U32(hop->eth_destination);
		U16(frame + 4) = U16(hop->eth_destination + 4);
	}
	if (flags & HOP_ETH_SOURCE) {
		U32(frame + 6) = U32(hop->eth_source);
		U16(frame + 10) = U16(hop->eth_source + 4);
	}
}

/* Writes the headers in front of the inner packet. `change` is what the inner packet has changed in its own sum. */
INLINE void write_headers(struct packet *packet, const struct slot *slot, const struct hop *hop, __u64 change)
{
	__u8 *gtp = packet->udp + UDP_LENGTH;
	__u32 flags = hop->flags;
	__u16 checksum;

	write_link(packet->frame, hop, flags);
	if (flags & (HOP_DESTINATION | HOP_SOURCE))
		change += write_outer(packet, hop, flags);
	if (slot->flags & SET_TEID)
		change += replace32(gtp + 4, NET32(slot->teid));
	checksum = U16(packet->udp + 6);
	if (checksum) {
		checksum = mended(checksum, change);
		U16(packet->udp + 6) = checksum ? checksum : 0xFFFF;
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
	scratch->gtp_at = packet->udp + UDP_LENGTH - packet->frame;
	scratch->gtp_length = NET16(U16(packet->udp + UDP_LENGTH + 2));
	return slot->flags & INSIDE_ANY ? TO_INSIDE : TO_REWRITE;
}

INLINE enum found search_frame(const __u32 key[3], __u64 epoch, struct slot *slot)
{
	__u32 hash = hash_key(key[0], key[1], key[2]);

	return search(NUMBER(frame_first), NUMBER(frame_mask), hash, hash | (__u64)KEY_FRAME << KEY_NUMBER_BIT, key, epoch, slot);
}

/* Finds the entry for link-layer addresses: one for both, else one for the destination alone. */
INLINE enum found find_frame(struct packet *packet, __u64 epoch, struct slot *slot)
{
	__u32 key[3] = { U32(packet->frame), U32(packet->frame + 4), U32(packet->frame + 8) };
	enum found found = search_frame(key, epoch, slot);

	if (found == CHANGING || (found == FOUND && slot->flags & VERDICT))
		return found;
	key[1] &= 0xFFFF;
	key[2] = 0;
	return search_frame(key, epoch, slot);
}

/* Finds the entry of a packet's tunnel. */
INLINE enum found find_tunnel(struct packet *packet, __u64 epoch, struct slot *slot)
{
	struct anchor *anchor = find_anchor(packet->frame + ETH_LENGTH + (packet->ipv6 ? 24 : 16), packet->ipv6);
	__u32 teid = NET32(U32(packet->udp + UDP_LENGTH + 4)), offset;

	if (!anchor)
		return FREE;
	offset = teid - anchor->first_teid;
	if (likely(offset < anchor->teids)) {
		/* A line of the anchor alone: nothing holds in it if the TEID has no entry. */
		__u64 index = (__u64)anchor->first_line + offset;
		struct line *line = line_at(index);

		return line ? read_line(line, index, epoch, slot) : FREE;
	}
	return search(NUMBER(tunnel_first), NUMBER(tunnel_mask), hash_key(teid, anchor->number, 0),
		      teid | (__u64)anchor->number << KEY_NUMBER_BIT, 0, epoch, slot);
}

/* The result for a packet that is steered by its tunnel's or its link-layer addresses' entry. */
#define STEERED (-102)

/* What to do with a packet that is not simply sent on as its tunnel's entry says. */
INLINE int special(struct packet *packet, enum found found, __u64 epoch, struct slot *slot)
{
	int end_marker = packet->udp[UDP_LENGTH + 1] == GTP_END_MARKER;

	if (found == FOUND && slot->flags & VERDICT) {
		if (end_marker && (!(slot->flags & END_MARKERS) || slot->flags & INSIDE_ANY))
			return PASS(PASSED_SIGNALLING);
		return slot->flags & INNER_ANY ? leave(packet, slot, epoch) : STEERED;
	}
	if (found != CHANGING && end_marker)
		return PASS(PASSED_SIGNALLING);
	if (found != CHANGING)
		found = find_frame(packet, epoch, slot);
	/* The tunnel's line was read before: its entry may have come in an epoch in which this one went. */
	if (found == CHANGING || current_epoch() != epoch)
		return PASS(PASSED_CHANGING);
	return found == FOUND && slot->flags & VERDICT ? STEERED : PASS(PASSED_NO_ENTRY);
}

/* Steers a G-PDU or End Marker. */
INLINE int steer_packet(struct packet *packet)
{
	__u64 epoch = current_epoch();
	struct slot slot = {};
	struct hop *hop = 0;
	enum found found;
	int out;

	if (unlikely(!epoch))
		return PASS(PASSED_PAUSED);
	found = find_tunnel(packet, epoch, &slot);
	if (unlikely(found != FOUND || (slot.flags & (VERDICT | INNER_ANY)) != VERDICT_FORWARD ||
		     packet->udp[UDP_LENGTH + 1] != GTP_GPDU)) {
		out = special(packet, found, epoch, &slot);
		if (out != STEERED)
			return out;
	}
	out = decide(packet, &slot, &hop);
	if (unlikely(out < 0))
		return out;
	count(&slot, packet->length);
	if (likely(out != XDP_DROP))
		write_headers(packet, &slot, hop, 0);
	return out;
}

/* Bits of the first half of GTP-U's header, as a number: of the version and PT, of the type without its last bit, of the length. */
#define GTP_KIND 0xF0FE0000
#define GTP_VERSION 0xF0000000
#define GTP_SIZE 0xFFFF

/* Whether a datagram of this length, with `room` octets in the frame, is to the port of GTP-U, and lengths and these bits of the
 * GTP-U header are as in a G-PDU. */
INLINE int is_gtp(const __u8 *udp, __u32 length, __u64 room, __u32 bits)
{
	__u32 gtp = NET32(U32(udp + UDP_LENGTH));

	/* The length is the lower half of both words. Its upper bits are 0, so no carry hides a difference. */
	return length - UDP_LENGTH - GTP_LENGTH <= room - UDP_LENGTH - GTP_LENGTH &&
	       NET32(U32(udp + 2)) - length == 2152 << 16 &&
	       (gtp & (bits | GTP_SIZE)) - length == (0x30FF0000 & bits) - UDP_LENGTH - GTP_LENGTH &&
	       (!(gtp & GTP_FLAGS << 24) || length >= UDP_LENGTH + GTP_LENGTH + GTP_OPTIONAL);
}

/* Why a datagram is no G-PDU or End Marker. */
INLINE int why_not(const __u8 *udp, __u32 length, __u64 room)
{
	if (U16(udp + 2) != GTP_PORT)
		return PASS(PASSED_OTHER);
	return is_gtp(udp, length, room, GTP_VERSION) ? PASS(PASSED_SIGNALLING) : PASS(PASSED_MALFORMED);
}

/* Steers a frame. Returns the program's verdict, or why it goes on as it came. */
INLINE int steer_frame(struct xdp_md *context)
{
	__u8 *frame = (__u8 *)(long)context->data, *end = (__u8 *)(long)context->data_end, *ip = frame + ETH_LENGTH;
	struct packet packet = { .context = context, .frame = frame, .udp = ip + IPV4_LENGTH, .length = end - frame };
	__u64 room = packet.length - ETH_LENGTH - IPV4_LENGTH;
	__u32 length;

	if (unlikely(packet.udp + UDP_LENGTH + GTP_LENGTH > end))
		RETURN_PASS(PASSED_OTHER);
	/* Type, version and IHL. */
	if (likely((U32(frame + 12) & NET32(0xFFFFFF00)) == NET32(0x08004500))) {
		/* Flags, offset, TTL and protocol. */
		int whole = (U32(ip + 6) & NET32(0x3FFF00FF)) == NET32(UDP);

		length = NET16(U16(ip + 2)) - IPV4_LENGTH;
		if (likely(whole && is_gtp(packet.udp, length, room, GTP_KIND)))
			return steer_packet(&packet);
		if (ip[9] != UDP)
			return PASS(PASSED_OTHER);
		return whole ? why_not(packet.udp, length, room) : PASS(PASSED_FRAGMENT);
	}
	if (U16(frame + 12) == ETH_IPV6) {
		packet.ipv6 = 1;
		packet.udp = ip + IPV6_LENGTH;
		length = NET16(U16(ip + 4));
		room = packet.length - ETH_LENGTH - IPV6_LENGTH;
		if (ip[0] >> 4 != 6 || ip[6] != UDP || packet.udp + UDP_LENGTH + GTP_LENGTH > end)
			return PASS(PASSED_OTHER);
		if (!is_gtp(packet.udp, length, room, GTP_KIND))
			return why_not(packet.udp, length, room);
		/* The tables have IPv4 addresses in this form; no packet should. */
		if (!U64(ip + 24) && U32(ip + 32) == (__u32)MAPPED)
			return PASS(PASSED_OTHER);
		return steer_packet(&packet);
	}
	return PASS(PASSED_OTHER);
}

#endif
