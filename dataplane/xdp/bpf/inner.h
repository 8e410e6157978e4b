/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Inner packets: reading them for entries with inner fields, and replacing their addresses. Few entries need that, so it is in two
 * programs of its own, to which the first one gives such packets: `steer_inside.bpf.c` looks for the entry, `steer_rewrite.bpf.c`
 * does what it says. The verifier looks at every way through a program, and the ways through one part multiply with those through
 * the next. So what one part has found lies in a row of memory that the processor has for itself, of whose contents the verifier
 * knows nothing, and places in the frame are checked again where they are used.
 */
#ifndef GODWIT_INNER_H
#define GODWIT_INNER_H

#include "steer.h"

#define ICMP 1
#define IPIP 4
#define TCP 6
#define IPV6_IN 41
#define FRAGMENT 44
#define GRE 47
#define ESP 50
#define ICMPV6 58
#define NO_NEXT 59
#define SCTP 132

#define TCP_LENGTH 20

/* Offsets in frames that are handled here, as a mask. */
#define REACH 0x3FFF

/* A place in the frame, for some octets; 0: beyond its end. */
INLINE __u8 *place(struct xdp_md *context, __u32 at, __u32 octets)
{
	__u8 *frame = (__u8 *)(long)context->data;
	__u64 masked = at & REACH;

	OPAQUE(masked);
	if (masked > REACH)
		return 0;
	frame += masked;
	return frame + octets > (__u8 *)(long)context->data_end ? 0 : frame;
}

/* Finds the inner packet of a G-PDU behind all extension headers. Returns 0, or -1. */
INLINE int find_inner(struct xdp_md *context, struct scratch *scratch)
{
	__u32 end = scratch->gtp_at + GTP_LENGTH + scratch->gtp_length, at = scratch->gtp_at + GTP_LENGTH;
	__u8 *gtp = place(context, scratch->gtp_at, GTP_LENGTH), *octet, next = 0;

	if (!gtp || end > REACH)
		return -1;
	if (gtp[0] & GTP_FLAGS) {
		at += GTP_OPTIONAL;
		octet = place(context, at - 1, 1);
		if (!octet)
			return -1;
		next = gtp[0] & GTP_FLAG_E ? *octet : 0;
	}
	WRITE(scratch->ip_at, at);
	WRITE(scratch->next, next);
#pragma clang loop unroll(disable)
	for (int i = 0; i < EXTENSIONS && READ(scratch->next); i++) {
		__u32 start = READ(scratch->ip_at);

		octet = place(context, start, 1);
		if (!octet || !*octet)
			return -1;
		start += 4 * *octet;
		if (start > end)
			return -1;
		octet = place(context, start - 1, 1);
		if (!octet)
			return -1;
		WRITE(scratch->ip_at, start);
		WRITE(scratch->next, *octet);
	}
	if (READ(scratch->next) || READ(scratch->ip_at) > end)
		return -1;
	return 0;
}

/* Reads the headers of the inner packet. Returns 0, or -1. */
INLINE int read_inner(struct xdp_md *context, struct scratch *scratch)
{
	__u32 end = scratch->gtp_at + GTP_LENGTH + scratch->gtp_length, at = READ(scratch->ip_at);
	__u32 left = end - at, header = IPV4_LENGTH, total, protocol, offset;
	__u8 *ip = place(context, at, IPV4_LENGTH), *behind;

	scratch->fragment = scratch->later = scratch->hidden = 0;
	if (left < IPV4_LENGTH || !ip)
		return -1;
	if (ip[0] >> 4 == 4) {
		header = (ip[0] & 15) * 4;
		total = NET16(U16(ip + 2));
		if (header < IPV4_LENGTH)
			return -1;
		offset = NET16(U16(ip + 6));
		scratch->fragment = offset & 0x3FFF;
		scratch->later = offset & 0x1FFF;
		protocol = ip[9];
		scratch->version = 4;
	} else if (ip[0] >> 4 == 6) {
		header = IPV6_LENGTH;
		behind = place(context, at, IPV6_LENGTH);
		if (!behind)
			return -1;
		total = IPV6_LENGTH + NET16(U16(behind + 4));
		protocol = behind[6];
		if (protocol == FRAGMENT) {
			behind = place(context, at + IPV6_LENGTH, 8);
			if (!behind)
				return -1;
			header += 8;
			scratch->fragment = 1;
			scratch->later = NET16(U16(behind + 2)) & 0xFFF8;
			protocol = behind[0];
		}
		scratch->hidden = protocol != TCP && protocol != UDP && protocol != ICMPV6 && protocol != SCTP &&
				  protocol != ESP && protocol != NO_NEXT;
		scratch->version = 6;
	} else {
		return -1;
	}
	if (total < header || total > left)
		return -1;
	WRITE(scratch->protocol, protocol);
	WRITE(scratch->upper_at, at + header);
	WRITE(scratch->upper_length, total - header);
	return 0;
}

/* Puts an address of the inner packet into a key. Returns 0, or -1. */
INLINE int put_address(struct xdp_md *context, struct scratch *scratch, __u8 *to, __u32 ipv4_at, __u32 ipv6_at)
{
	__u8 *from;

	if (READ(scratch->version) == 6) {
		from = place(context, READ(scratch->ip_at) + ipv6_at, 16);
		if (!from)
			return -1;
		U32(to) = U32(from);
		U32(to + 4) = U32(from + 4);
		U32(to + 8) = U32(from + 8);
		U32(to + 12) = U32(from + 12);
		return 0;
	}
	from = place(context, READ(scratch->ip_at) + ipv4_at, 4);
	if (!from)
		return -1;
	U32(to + 8) = NET32(0x0000FFFF);
	U32(to + 12) = U32(from);
	return 0;
}

/*
 * Looks for an entry of one set of inner fields. Returns 1 when it is found, and the scratch has its slot; 0 when there is none; -1
 * when the host must decide.
 */
INLINE int look_inside(struct xdp_md *context, struct scratch *scratch, __u32 set)
{
	__u32 tunnel = scratch->index, version = READ(scratch->version), protocol = READ(scratch->protocol);
	__u32 *line;
	struct inside_key key = { .line = tunnel, .set = set, .version = version };
	int ported = set <= INSIDE_CLIENT;
	struct slot slot = {};
	enum found found;
	__u8 *at;

	/* Parts of one packet go the same way, and only the first one has ports. */
	if (ported && (READ(scratch->fragment) || READ(scratch->hidden)))
		return -1;
	if (ported)
		key.protocol = protocol;
	if (ported && (protocol == TCP || protocol == UDP || protocol == SCTP)) {
		at = place(context, READ(scratch->upper_at), 4);
		if (!at || READ(scratch->upper_length) < 4)
			return -1;
		if (set != INSIDE_SERVICE)
			U16(key.source_port) = U16(at);
		if (set != INSIDE_CLIENT)
			U16(key.destination_port) = U16(at + 2);
	}
	if ((set == INSIDE_FLOW || set == INSIDE_CLIENT || set == INSIDE_SOURCE) &&
	    put_address(context, scratch, key.source, 12, 8))
		return -1;
	if ((set == INSIDE_FLOW || set == INSIDE_SERVICE || set == INSIDE_DESTINATION) &&
	    put_address(context, scratch, key.destination, 16, 24))
		return -1;
	line = map_lookup(&inside, &key);
	if (!line)
		return 0;
	found = look(READ(*line), tunnel | (__u64)KEY_INSIDE << KEY_NUMBER_BIT, 0, scratch->epoch, &slot);
	if (found == CHANGING)
		return -1;
	if (found != FOUND || !(slot.flags & VERDICT))
		return 0;
	scratch->index = slot.index;
	scratch->teid = slot.teid;
	scratch->inner = slot.inner;
	WRITE(scratch->flags, slot.flags);
	return 1;
}

/* Finds what is to be written into the inner packet. Returns 0, or -1 when that cannot be done here. */
INLINE int prepare(struct xdp_md *context, struct scratch *scratch)
{
	__u32 flags = READ(scratch->flags), ipv6 = (flags & INNER_IPV6) != 0, checksum = 0, least;

	if (READ(scratch->version) != (ipv6 ? 6 : 4) || READ(scratch->hidden))
		return -1;
	if (!place(context, READ(scratch->ip_at), IPV6_LENGTH) && ipv6)
		return -1;
	switch (READ(scratch->protocol)) {
	case TCP:
		checksum = 16;
		break;
	case UDP:
		checksum = 6;
		break;
	case ICMPV6:
		if (!ipv6)
			return -1;
		checksum = 2;
		break;
	case ICMP:
	case IPIP:
	case IPV6_IN:
	case GRE:
	case ESP:
	case SCTP:
	case NO_NEXT:
		break;
	default:
		return -1;      /* its checksum may have the addresses in it */
	}
	WRITE(scratch->checksum_at, 0);
	if (checksum && !READ(scratch->later)) {
		/* As on the host path, which mends nothing in a header that is cut off. */
		least = READ(scratch->protocol) == TCP ? TCP_LENGTH : checksum + 2;
		if (READ(scratch->upper_length) < least ||
		    !place(context, READ(scratch->upper_at) + checksum, 2))
			return -1;
		WRITE(scratch->checksum_at, READ(scratch->upper_at) + checksum);
	}
	return 0;
}

/* Replaces an inner address; returns the change for checksums, 0 if it is there already. */
INLINE __u64 write_address(struct xdp_md *context, struct scratch *scratch, __u32 flags, __u32 ipv4_at, __u32 ipv6_at)
{
	__u64 change, row = scratch->inner, *address;
	__u8 *at;

	if (!(flags & INNER_IPV6)) {
		at = place(context, READ(scratch->ip_at) + ipv4_at, 4);
		if (!at || U32(at) == READ(scratch->inner))
			return 0;
		change = replaced32(U32(at), scratch->inner);
		U32(at) = scratch->inner;
		return change;
	}
	at = place(context, READ(scratch->ip_at) + ipv6_at, 16);
	OPAQUE(row);
	if (!at || row >= NUMBER(address_count))
		return 0;
	address = MEMORY(addresses, __u64) + 2 * row;
	if (U32(at) == (__u32)address[0] && U32(at + 4) == address[0] >> 32 &&
	    U32(at + 8) == (__u32)address[1] && U32(at + 12) == address[1] >> 32)
		return 0;
	change = replaced32(U32(at), address[0]) + replaced32(U32(at + 4), address[0] >> 32) +
		 replaced32(U32(at + 8), address[1]) + replaced32(U32(at + 12), address[1] >> 32);
	U32(at) = address[0];
	U32(at + 4) = address[0] >> 32;
	U32(at + 8) = address[1];
	U32(at + 12) = address[1] >> 32;
	return change;
}

/* Mends a checksum in the inner packet; returns the change that this is itself. */
INLINE __u64 mend_inner(struct xdp_md *context, __u32 where, __u64 change, int zero_is_none)
{
	__u8 *at = place(context, where, 2);
	__u16 old, new;

	if (!at)
		return 0;
	old = U16(at);
	if (!old && zero_is_none)
		return 0;
	new = mended(old, change);
	if (!new && zero_is_none)
		new = 0xFFFF;
	U16(at) = new;
	return (__u64)(__u16)~old + new;
}

/* Rewrites the inner packet as it was prepared; leaves the change for the outer UDP checksum. */
INLINE void rewrite_inner(struct xdp_md *context, struct scratch *scratch)
{
	__u32 flags = READ(scratch->flags);
	__u64 change, all;

	if (flags & SET_INNER_SOURCE)
		WRITE(scratch->change, write_address(context, scratch, flags, 12, 8));
	else
		WRITE(scratch->change, write_address(context, scratch, flags, 16, 24));
	all = change = READ(scratch->change);
	if (!change)
		return;         /* what is not changed keeps its checksums, wrong ones too */
	if (!(flags & INNER_IPV6))
		all += mend_inner(context, READ(scratch->ip_at) + 10, change, 0);
	if (READ(scratch->checksum_at))
		all += mend_inner(context, READ(scratch->checksum_at), change, READ(scratch->protocol) == UDP);
	WRITE(scratch->change, all);
}

/* The outer headers of a packet that the first program has looked at. Returns 0, or -1. */
INLINE int outer(struct xdp_md *context, struct scratch *scratch, struct packet *packet)
{
	__u8 *frame = (__u8 *)(long)context->data, *end = (__u8 *)(long)context->data_end, *ip = frame + ETH_LENGTH;

	packet->context = context;
	packet->frame = frame;
	packet->length = end - frame;
	packet->ipv6 = scratch->gtp_at != ETH_LENGTH + IPV4_LENGTH + UDP_LENGTH;
	packet->udp = ip + (packet->ipv6 ? IPV6_LENGTH : IPV4_LENGTH);
	return packet->udp + UDP_LENGTH + GTP_LENGTH > end ? -1 : 0;
}

#endif
