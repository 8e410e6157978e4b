/* DPDK's environment: start, log, threads, and the thread that serves control connections. See eal.rs, gate.rs. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_fbarray.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_memory.h>

typedef void (*godwit_log)(const char *text, size_t length);

static godwit_log log_to;

static ssize_t write_log(void *cookie, const char *text, size_t length)
{
	(void)cookie;
	log_to(text, length);
	return (ssize_t)length;
}

/* Starts the environment, once per process; the arguments must live for ever. What DPDK logs goes to `log`. */
int godwit_eal_init(int count, char **arguments, godwit_log log)
{
	cookie_io_functions_t functions = { .write = write_log };
	FILE *stream;

	log_to = log;
	stream = fopencookie(NULL, "w", functions);
	if (stream == NULL)
		return -errno;
	/* A line at a time, as DPDK flushes after each. */
	if (rte_openlog_stream(stream) != 0)
		return -EIO;
	return rte_eal_init(count, arguments) < 0 ? -rte_errno : 0;
}

const char *godwit_error_text(int code)
{
	return rte_strerror(code);
}

int godwit_huge_pages(void)
{
	return rte_eal_has_hugepages();
}

/* Gives the calling thread a number, and by that caches of buffers of its own. */
int godwit_thread_register(void)
{
	if (rte_lcore_id() != LCORE_ID_ANY)
		return -EEXIST;
	return rte_thread_register() < 0 ? -rte_errno : 0;
}

void godwit_thread_unregister(void)
{
	rte_thread_unregister();
}

/* Lets DPDK's thread for control connections call `callback` again and again, between its other work: the
   descriptor behind it is always readable. */
int godwit_control_hook(void (*callback)(void *))
{
	struct rte_intr_handle *handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
	int fd;

	if (handle == NULL)
		return -ENOMEM;
	fd = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	/* EXT: the thread does not read from the descriptor, so it stays readable. */
	if (rte_intr_fd_set(handle, fd) != 0 || rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT) != 0)
		return -EINVAL;
	return rte_intr_callback_register(handle, callback, NULL);
}

/* Descriptors of DPDK's memory, and a copy of each. */
static struct { int descriptor, copy; } memory[8];
static unsigned memories;

static int keep(const struct rte_memseg_list *list, void *argument)
{
	struct rte_fbarray *segments = (struct rte_fbarray *)(uintptr_t)&list->memseg_arr;
	int first = list->external ? -1 : rte_fbarray_find_next_used(segments, 0), descriptor;

	(void)argument;
	if (first < 0 || memories == sizeof(memory) / sizeof(memory[0]))
		return 0;
	descriptor = rte_memseg_get_fd_thread_unsafe(rte_fbarray_get(segments, (unsigned)first));
	if (descriptor < 0)
		return 0;
	for (unsigned i = 0; i < memories; i++)
		if (memory[i].descriptor == descriptor)
			return 0;
	memory[memories].copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
	if (memory[memories].copy < 0)
		return -1;
	memory[memories++].descriptor = descriptor;
	return 0;
}

/* memif in its zero-copy form passes the descriptor of DPDK's memory to its peer, and closes it, which is not its own,
   when the peer goes away. This keeps a copy. */
int godwit_memory_keep(void)
{
	return rte_memseg_list_walk(keep, NULL) == 0 ? 0 : -ENFILE;
}

/* This puts it where it belongs. */
void godwit_memory_restore(void)
{
	for (unsigned i = 0; i < memories; i++)
		if (fcntl(memory[i].descriptor, F_GETFD) < 0 && errno == EBADF)
			dup3(memory[i].copy, memory[i].descriptor, O_CLOEXEC);
}
