/* DPDK's rte_acl for IPv4 5-tuples, as functions that Rust can call. See acl.rs. */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <rte_acl.h>

/* Equal to `Rule` of acl.rs. Numbers in host byte order. */
struct godwit_acl_rule {
	uint32_t source, destination;
	uint32_t priority, value;
	uint16_t source_ports[2], destination_ports[2];
	uint8_t source_length, destination_length;
	uint8_t protocol, protocol_mask;
};

/* What is looked up: network byte order, first a group of one octet, then groups of four, as rte_acl wants. */
struct key {
	uint8_t protocol, unused[3];
	uint32_t source, destination;
	uint16_t source_port, destination_port;
};

enum { FIELDS = 5 };
RTE_ACL_RULE_DEF(rule, FIELDS);

static const struct rte_acl_field_def fields[FIELDS] = {
	{ RTE_ACL_FIELD_TYPE_BITMASK, 1, 0, 0, offsetof(struct key, protocol) },
	{ RTE_ACL_FIELD_TYPE_MASK, 4, 1, 1, offsetof(struct key, source) },
	{ RTE_ACL_FIELD_TYPE_MASK, 4, 2, 2, offsetof(struct key, destination) },
	{ RTE_ACL_FIELD_TYPE_RANGE, 2, 3, 3, offsetof(struct key, source_port) },
	{ RTE_ACL_FIELD_TYPE_RANGE, 2, 4, 3, offsetof(struct key, destination_port) },
};

void *godwit_acl_create(const char *name, unsigned rules)
{
	const struct rte_acl_param param = {
		.name = name, .socket_id = SOCKET_ID_ANY, .rule_size = RTE_ACL_RULE_SZ(FIELDS), .max_rule_num = rules,
	};

	return rte_acl_create(&param);
}

int godwit_acl_add(void *context, const struct godwit_acl_rule *from)
{
	struct rule rule;

	memset(&rule, 0, sizeof(rule));
	rule.data.category_mask = 1;
	rule.data.priority = (int32_t)from->priority;
	rule.data.userdata = from->value;
	rule.field[0].value.u8 = from->protocol;
	rule.field[0].mask_range.u8 = from->protocol_mask;
	rule.field[1].value.u32 = from->source;
	rule.field[1].mask_range.u32 = from->source_length;
	rule.field[2].value.u32 = from->destination;
	rule.field[2].mask_range.u32 = from->destination_length;
	rule.field[3].value.u16 = from->source_ports[0];
	rule.field[3].mask_range.u16 = from->source_ports[1];
	rule.field[4].value.u16 = from->destination_ports[0];
	rule.field[4].mask_range.u16 = from->destination_ports[1];
	return rte_acl_add_rules(context, (const struct rte_acl_rule *)&rule, 1);
}

int godwit_acl_build(void *context, size_t max_size)
{
	struct rte_acl_config config;

	memset(&config, 0, sizeof(config));
	config.num_categories = 1;
	config.num_fields = FIELDS;
	config.max_size = max_size;
	memcpy(config.defs, fields, sizeof(fields));
	return rte_acl_build(context, &config);
}

/* 0: scalar, 1: AVX2, 2: AVX-512 with 16 and 3: with 32 packets at once. Negative when the processor has it not. */
int godwit_acl_algorithm(void *context, int algorithm)
{
	static const enum rte_acl_classify_alg algorithms[] = {
		RTE_ACL_CLASSIFY_SCALAR, RTE_ACL_CLASSIFY_AVX2, RTE_ACL_CLASSIFY_AVX512X16, RTE_ACL_CLASSIFY_AVX512X32,
	};

	if (algorithm < 0 || algorithm >= (int)(sizeof(algorithms) / sizeof(algorithms[0])))
		return -EINVAL;
	return rte_acl_set_ctx_classify(context, algorithms[algorithm]);
}

int godwit_acl_classify(const void *context, const uint8_t **keys, uint32_t *values, uint32_t count)
{
	return rte_acl_classify(context, keys, values, count, 1);
}

void godwit_acl_free(void *context)
{
	rte_acl_free(context);
}
