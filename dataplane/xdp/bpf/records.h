/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The records that the steering program shares with `src/steer/records.rs`, which writes them. The section `records` of
 * the object has the sizes and numbers of this file; a test compares them with those of the other one.
 */
#ifndef GODWIT_RECORDS_H
#define GODWIT_RECORDS_H

#include <linux/types.h>

/* An entry, as far as most packets need it: half a cache line. A bucket of two is one cache line. */
struct line {
	__u64 key;      /* one of those below, and from OWNER_BIT on the number + 1 of the processor that counts here without locking */
	__u64 action;   /* TEID to set, flags below << 32, number of the hop << 48 */
	__u64 packets;
	__u64 octets;
};

/* Keys. 0 is a line that was never used, behind which no search goes. */
#define KEY_REMOVED 1           /* a line that was used: the search goes on behind it */
#define KEY_NUMBER_BIT 32       /* tunnels: TEID, and from this bit on the number of the anchor, which is not 0 */
#define KEY_INSIDE 0xFFFF       /* entries for inner fields: number of the tunnel's line, and this in place of an anchor's number */
#define KEY_FRAME 0xFFFF        /* link-layer addresses: their hash, and this; the addresses are in `more` */
#define OWNER_BIT 48

/* The rest of an entry: what holds while it changes (VERDICT_MORE), and what few entries have. One cache line. */
struct more {
	__u64 turn;     /* epoch << 2 | settled << 1 | slot: from this epoch on, or at once, the slot holds; until then the other */
	__u64 action[2];        /* of each slot */
	__u32 inner[2];         /* of each slot: inner address, or number of its row */
	__u32 key[3];           /* as the process has it: two link-layer addresses */
	__u32 zero;
	__u64 packets;          /* counted by processors that do not own the line */
	__u64 octets;
};

#define TURN_SLOT 1
#define TURN_SETTLED 2
#define TURN_EPOCH_BIT 2

/* Flags of an action. */
#define VERDICT 0x0007         /* one of these: */
#define VERDICT_ABSENT 0       /* as if there were no entry */
#define VERDICT_FORWARD 1
#define VERDICT_HOST 2         /* on to the next part of the chain */
#define VERDICT_DROP 3
#define VERDICT_MORE 4         /* the slot of `more` that holds says what */
#define SET_TEID 0x0008
#define SET_INNER_SOURCE 0x0010
#define SET_INNER_DESTINATION 0x0020
#define INNER_IPV6 0x0040      /* the inner address is a row of `addresses` */
#define END_MARKERS 0x0080     /* also for End Markers */
#define INSIDE_BIT 8           /* from this bit on: which sets of inner fields are looked up, the first one first */
#define INSIDE_ANY 0x3F00
#define INNER_ANY (INSIDE_ANY | SET_INNER_SOURCE | SET_INNER_DESTINATION)
#define HOP_BIT 16

/* Sets of inner fields, and which fields each has. All have the IP version. */
#define INSIDE_FLOW 0
#define INSIDE_SERVICE 1       /* protocol, destination, its port */
#define INSIDE_CLIENT 2        /* protocol, source, its port */
#define INSIDE_DESTINATION 3
#define INSIDE_SOURCE 4
#define INSIDE_FAMILY 5
#define INSIDE_SETS 6

/* The key of an entry for inner fields: those that the set does not have are 0. Its value is the number of a line. */
struct inside_key {
	__u32 line;             /* the tunnel's */
	__u8 set;
	__u8 version;
	__u8 protocol;
	__u8 zero;
	__u8 source_port[2];
	__u8 destination_port[2];
	__u8 source[16];        /* IPv4 addresses are mapped (::ffff:0:0/96) */
	__u8 destination[16];
};

/* What is written, and where packets go: one cache line. The next one says which packets only. */
struct hop {
	__u8 eth_destination[6];
	__u8 eth_source[6];
	__u32 interface;        /* index; 0: none */
	__u32 port;             /* its number in `ports` */
	__u32 flags;
	__u64 destination[2];   /* as octets on the wire; IPv4 addresses are mapped */
	__u64 source[2];
	__u64 zero;
	/* the guard */
	__u8 only_eth_destination[6];
	__u8 only_eth_source[6];
	__u32 only_interface;
	__u64 only_source[2];
	__u64 zeros[4];
};

#define HOP_DESTINATION 0x01
#define HOP_SOURCE 0x02
#define HOP_ETH_DESTINATION 0x04
#define HOP_ETH_SOURCE 0x08
#define HOP_ETH_BOTH 0x0C
/* The family of the addresses, if there are some. */
#define HOP_IPV6 0x10
#define HOP_IPV4 0x20
#define ONLY_INTERFACE 0x100
#define ONLY_SOURCE 0x200
#define ONLY_ETH_DESTINATION 0x400
#define ONLY_ETH_SOURCE 0x800
#define ONLY_ANY 0xF00

/* An outer destination address, and where the lines of its tunnels are. */
struct anchor {
	__u64 address[2];       /* as octets on the wire; IPv4 addresses are mapped */
	__u32 first_teid;
	__u32 teids;            /* that many TEIDs have lines of their own */
	__u32 first_line;
	__u16 number;
	__u16 state;
};

#define ANCHOR_NEVER 0
#define ANCHOR_REMOVED 1
#define ANCHOR_IPV4 2
#define ANCHOR_IPV6 3
/* Rows that are searched for an address. */
#define ANCHOR_PROBES 16

/* Lines that are searched for a key: buckets of two neighbours. */
#define PROBES 32

/* What holds for all packets. */
struct control {
	__u64 epoch;            /* 0: none, everything goes on */
	__u64 zeros[7];
};

/* Why a packet went on to the next part. */
#define PASSED_OTHER 0          /* no IPv4 or IPv6 without tags, options and extension headers, to the port of GTP-U */
#define PASSED_FRAGMENT 1       /* a fragment of the outer packet */
#define PASSED_MALFORMED 2      /* lengths or versions that contradict each other */
#define PASSED_SIGNALLING 3     /* a message of the path, or an End Marker that the entry does not want */
#define PASSED_NO_ENTRY 4
#define PASSED_HOST 5           /* the entry says so */
#define PASSED_GUARD 6          /* the entry is for packets of another interface, sender or family */
#define PASSED_INNER 7          /* the inner packet cannot be read or rewritten here */
#define PASSED_NO_PORT 8        /* the interface has gone */
#define PASSED_CHANGING 9       /* the entry changed each time it was read, or another one of those that were read */
#define PASSED_PAUSED 10        /* no epoch holds */
#define PASSED_COUNT 11
/* Counters of a processor, in whole cache lines, and processors that have their own. */
#define PASSED_ROW 16
#define PASSED_PROCESSORS 256

/* The programs for inner packets, by their places in their array. */
#define PROGRAM_INSIDE 0
#define PROGRAM_REWRITE 1
#define SCRATCH_OCTETS 128

#endif
