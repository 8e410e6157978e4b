/* Ports of DPDK (ethdev) and their packet buffers (mbufs), as functions that Rust can call. See port.rs, frames.rs. */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

/* Packets per call; equal to `CALL` of port.rs. */
enum { CALL = 64 };
/* Buffers that a thread keeps for itself. */
enum { CACHE = 256 };

/* Equal to `Raw` of frames.rs: an mbuf's memory, and where the packet is in it. */
struct godwit_frame {
	uint8_t *base;
	struct rte_mbuf *mbuf;
	uint32_t room, start, end;
};

/* Equal to `Wanted` of port.rs. */
struct godwit_wanted {
	uint32_t buffers;
	uint16_t queues, descriptors, mtu, patient;
};

/* Equal to `Opened` of port.rs. */
struct godwit_opened {
	struct rte_mempool *pool;
	const char *driver;
	uint16_t port, mtu, started;
	uint8_t mac[6];
};

/* Equal to `Counters` of port.rs. */
struct godwit_counters {
	uint64_t missed, errors, send_errors, no_buffer;
};

/* Finds the port of a device, after plugging it in if need be. */
static int find(const char *device, const char *name, uint16_t *port)
{
	struct rte_dev_iterator iterator;
	int result;

	if (rte_eth_dev_get_port_by_name(name, port) == 0)
		return -EEXIST;
	result = rte_dev_probe(device);
	/* A physical device was probed at the start. */
	if (result < 0 && result != -EEXIST)
		return result;
	if (rte_eth_dev_get_port_by_name(name, port) == 0)
		return 0;
	/* Drivers may call the port otherwise than the device. */
	RTE_ETH_FOREACH_MATCHING_DEV(*port, device, &iterator) {
		rte_eth_iterator_cleanup(&iterator);
		return 0;
	}
	return -ENODEV;
}

static int configure(uint16_t port, const struct godwit_wanted *wanted, const struct rte_eth_dev_info *info)
{
	struct rte_eth_conf conf;

	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mtu = wanted->mtu;
	/* Drivers that know no MTU accept only what the default frame holds. */
	if (info->max_mtu != 0 && conf.rxmode.mtu > info->max_mtu)
		return -EMSGSIZE;
	if (wanted->queues > info->max_rx_queues || wanted->queues > info->max_tx_queues)
		return -ERANGE;
	if (wanted->queues > 1 && info->flow_type_rss_offloads != 0) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		/* By addresses only: by ports, fragments would overtake their first, which alone has any. */
		conf.rx_adv_conf.rss_conf.rss_hf = RTE_ETH_RSS_IP & info->flow_type_rss_offloads;
	}
	return rte_eth_dev_configure(port, wanted->queues, wanted->queues, &conf);
}

static int set_up_queues(uint16_t port, const struct godwit_wanted *wanted, struct rte_mempool *pool)
{
	uint16_t receive = wanted->descriptors, transmit = wanted->descriptors;
	int socket = rte_eth_dev_socket_id(port);
	int result = rte_eth_dev_adjust_nb_rx_tx_desc(port, &receive, &transmit);

	for (uint16_t queue = 0; result == 0 && queue < wanted->queues; queue++) {
		result = rte_eth_rx_queue_setup(port, queue, receive, socket, NULL, pool);
		if (result == 0)
			result = rte_eth_tx_queue_setup(port, queue, transmit, socket, NULL);
	}
	return result;
}

/* Closes the port and frees its pool, unless buffers of it are still about; 1 if so. */
int godwit_port_close(uint16_t port, struct rte_mempool *pool)
{
	struct rte_eth_dev_info info;
	struct rte_device *device = rte_eth_dev_info_get(port, &info) == 0 ? info.device : NULL;

	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	if (device != NULL)
		rte_dev_remove(device);
	if (pool == NULL)
		return 0;
	if (!rte_mempool_full(pool))
		return 1;
	rte_mempool_free(pool);
	return 0;
}

/*
 * The buffers that were freed last are used first: they are still in a cache, also when another worker has freed them. A ring, which
 * is DPDK's default, goes through all buffers in turn. DPDK 22.11's af_xdp needs the ring: without huge pages it gives the kernel
 * only the first part of a pool, and a stack begins with the last.
 */
static struct rte_mempool *make_pool(const char *driver, const char *name, unsigned buffers, uint32_t room, int socket)
{
	struct rte_mempool *pool = NULL;

	if (strcmp(driver, "net_af_xdp") != 0)
		pool = rte_pktmbuf_pool_create_by_ops(name, buffers, CACHE, 0, room, socket, "stack");
	/* Some builds of DPDK have the default only. */
	return pool != NULL ? pool : rte_pktmbuf_pool_create(name, buffers, CACHE, 0, room, socket);
}

/* Plugs in, configures and starts a device. `device` as DPDK describes one, `name` its part before the first comma. */
int godwit_port_open(const char *device, const char *name, const struct godwit_wanted *wanted,
		struct godwit_opened *opened)
{
	static uint32_t number;
	struct rte_mempool *pool = NULL;
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	char pool_name[32];
	uint32_t data = RTE_MAX(wanted->mtu + 64u, 2048u);
	uint16_t port;
	int result = find(device, name, &port);

	if (result != 0)
		return result;
	result = rte_eth_dev_info_get(port, &info);
	if (result == 0)
		result = configure(port, wanted, &info);
	if (result == 0) {
		snprintf(pool_name, sizeof(pool_name), "godwit%u", __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
		pool = make_pool(info.driver_name, pool_name, wanted->buffers, data + RTE_PKTMBUF_HEADROOM,
				rte_eth_dev_socket_id(port));
		if (pool == NULL)
			result = -rte_errno;
	}
	if (result == 0)
		result = set_up_queues(port, wanted, pool);
	if (result == 0)
		result = rte_eth_macaddr_get(port, &mac);
	if (result == 0) {
		result = rte_eth_dev_start(port);
		opened->started = result == 0;
		if (wanted->patient)
			result = 0;
	}
	if (result != 0) {
		godwit_port_close(port, pool);
		return result;
	}
	/* Neighbour discovery is multicast. Not every driver filters at all. */
	if (rte_eth_allmulticast_enable(port) != 0)
		rte_eth_promiscuous_enable(port);
	opened->pool = pool;
	opened->driver = info.driver_name;
	opened->port = port;
	opened->mtu = wanted->mtu;
	memcpy(opened->mac, mac.addr_bytes, sizeof(opened->mac));
	return 0;
}

/* Whether the other end is there. */
int godwit_port_up(uint16_t port)
{
	struct rte_eth_link link;

	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

/* Tries to connect anew. */
int godwit_port_restart(uint16_t port)
{
	int result = rte_eth_dev_stop(port);

	return result < 0 ? result : rte_eth_dev_start(port);
}

void godwit_port_counters(uint16_t port, struct godwit_counters *counters)
{
	struct rte_eth_stats stats;

	if (rte_eth_stats_get(port, &stats) != 0)
		return;
	counters->missed = stats.imissed;
	counters->errors = stats.ierrors;
	counters->send_errors = stats.oerrors;
	counters->no_buffer = stats.rx_nombuf;
}

static inline void describe(struct rte_mbuf *mbuf, struct godwit_frame *frame)
{
	frame->base = mbuf->buf_addr;
	frame->mbuf = mbuf;
	frame->room = mbuf->buf_len;
	frame->start = mbuf->data_off;
	frame->end = (uint32_t)mbuf->data_off + mbuf->data_len;
}

/* A frame of ours is one buffer that nobody else refers to. */
static inline bool plain(const struct rte_mbuf *mbuf)
{
	return (mbuf->nb_segs == 1) & (mbuf->refcnt == 1) & (mbuf->buf_len > 0)
		&& (uint32_t)mbuf->data_off + mbuf->data_len <= mbuf->buf_len;
}

/* Receives up to `count` packets; `refused` counts those in several pieces, which are dropped. */
uint16_t godwit_port_receive(uint16_t port, uint16_t queue, struct godwit_frame *frames, uint16_t count,
		uint64_t *refused)
{
	struct rte_mbuf *mbufs[CALL];
	uint16_t kept = 0;
	uint16_t received = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(count, (uint16_t)CALL));

	for (uint16_t i = 0; i < received; i++) {
		if (likely(plain(mbufs[i]))) {
			describe(mbufs[i], &frames[kept++]);
		} else {
			rte_pktmbuf_free(mbufs[i]);
			*refused += 1;
		}
	}
	return kept;
}

/* Sends up to CALL packets, which all are used up; returns how many the device took, which are the first ones. */
uint16_t godwit_port_transmit(uint16_t port, uint16_t queue, const struct godwit_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[CALL];
	uint16_t taken;

	count = RTE_MIN(count, (uint16_t)CALL);
	for (uint16_t i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = frames[i].mbuf;

		mbuf->data_off = (uint16_t)frames[i].start;
		mbuf->data_len = (uint16_t)(frames[i].end - frames[i].start);
		mbuf->pkt_len = mbuf->data_len;
		/* What the receiving device noted about the packet is no longer true. */
		mbuf->ol_flags &= RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL;
		mbufs[i] = mbuf;
	}
	taken = rte_eth_tx_burst(port, queue, mbufs, count);
	if (taken < count)
		rte_pktmbuf_free_bulk(mbufs + taken, (unsigned)(count - taken));
	return taken;
}

/* Takes `count` buffers, or none. */
int godwit_frames_take(struct rte_mempool *pool, struct godwit_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[CALL];

	if (count > CALL || rte_pktmbuf_alloc_bulk(pool, mbufs, count) != 0)
		return -ENOMEM;
	for (uint16_t i = 0; i < count; i++)
		describe(mbufs[i], &frames[i]);
	return 0;
}

/* Gives buffers back to the pools they are from. */
void godwit_frames_give(struct rte_mbuf **mbufs, uint16_t count)
{
	rte_pktmbuf_free_bulk(mbufs, count);
}
