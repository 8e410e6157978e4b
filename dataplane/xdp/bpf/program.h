/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What all programs need: the helpers of the kernel that they call, and how they name what is known only when they are
 * loaded. `src/object.rs` puts it in.
 *
 * - A map is an `extern char`; `&name` is the map.
 * - Memory is an `extern __u64`, so that the compiler knows that it is aligned and does not read octet by octet.
 * - A number is an `extern char`; NUMBER(name) is a constant for the verifier, like one written here. It is never 0.
 */
#ifndef GODWIT_PROGRAM_H
#define GODWIT_PROGRAM_H

#include <linux/bpf.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "addresses are put together for little-endian processors"
#endif

#define PART(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define NUMBER(name) ((__u64)&(name))
#define MEMORY(name, type) ((type *)&(name))

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* Reads or writes once, as it stands: another processor may use the same word. */
#define READ(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))

/* The compiler knows nothing of the value, so a limit that was checked on it is checked on the register that is used. */
#define OPAQUE(x) asm volatile("" : "+r"(x))

/* Network order is the other order here. */
#define NET16(x) __builtin_bswap16(x)
#define NET32(x) __builtin_bswap32(x)

static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const tail_call)(void *context, void *programs, __u32 slot) = (void *)BPF_FUNC_tail_call;
static __u32 (*const processor)(void) = (void *)BPF_FUNC_get_smp_processor_id;
static long (*const redirect)(void *ports, __u64 port, __u64 flags) = (void *)BPF_FUNC_redirect_map;
static __u32 (*const random32)(void) = (void *)BPF_FUNC_get_prandom_u32;

#endif
