#include "base/fence.h"

#include <errno.h>
#include <stdatomic.h>
#if defined(__linux__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifdef RAT_TEST
int rat_fence_test_errno;
int rat_fence_test_skip;
#endif

const char *rat_fence_name(enum rat_fence_kind kind)
{
    return kind == RAT_FENCE_MEMBARRIER ? "membarrier" : "seq_cst";
}

#if defined(__linux__) && defined(SYS_membarrier) && !defined(RAT_FORCE_SEQ_CST)
static int membarrier(int command)
{
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

enum rat_fence_kind rat_fence_choose(enum rat_fence_kind wanted)
{
    if (wanted == RAT_FENCE_SEQ_CST)
        return RAT_FENCE_SEQ_CST;
    int offered = membarrier(MEMBARRIER_CMD_QUERY);
    if (offered < 0 || !(offered & MEMBARRIER_CMD_PRIVATE_EXPEDITED))
        return RAT_FENCE_SEQ_CST;
    if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0)
        return RAT_FENCE_SEQ_CST;
    return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0 ? RAT_FENCE_MEMBARRIER : RAT_FENCE_SEQ_CST;
}

static int fence_threads(void)
{
    return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}
#else
enum rat_fence_kind rat_fence_choose(enum rat_fence_kind wanted)
{
    (void)wanted;
    return RAT_FENCE_SEQ_CST;
}

static int fence_threads(void)
{
    errno = ENOSYS;
    return -1;
}
#endif

enum rat_status rat_fence_all(enum rat_fence_kind kind)
{
    if (kind == RAT_FENCE_SEQ_CST) {
        atomic_thread_fence(memory_order_seq_cst); /* the producer's announce is seq_cst, too */
        return RAT_OK;
    }
#ifdef RAT_TEST
    if (rat_fence_test_skip)
        return RAT_OK;
    if (rat_fence_test_errno)
        return rat_status_from_errno(rat_fence_test_errno);
#endif
    return fence_threads() == 0 ? RAT_OK : rat_status_from_errno(errno);
}
