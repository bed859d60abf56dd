/* fence.h - the serializer's half of the asymmetric lock: membarrier(2), and whether it may be used.
 *
 * The producer announces itself with a plain store and looks with a plain load; on x86 and arm64 a load may pass an
 * earlier store to another address, so somebody must fence. One membarrier(PRIVATE_EXPEDITED) by the serializer runs
 * a full fence on every CPU that runs a thread of this process: the producer pays nothing.
 *
 * Threads: any. Fork: the registration does not survive exec; in a child call rat_fence_choose again.
 */
#ifndef RAT_BASE_FENCE_H
#define RAT_BASE_FENCE_H

#include "base/status.h"

/* Values are those of ratrace.v1.FenceKind. */
enum rat_fence_kind { RAT_FENCE_MEMBARRIER = 1, RAT_FENCE_SEQ_CST = 2 };

/* Register for membarrier; RAT_FENCE_SEQ_CST where it is missing, refused, or `wanted` so (RATRACE_FENCE=seq_cst). */
enum rat_fence_kind rat_fence_choose(enum rat_fence_kind wanted);

/* Fence every producer. RAT_OK, or RAT_ACCESS/RAT_IO: then nothing may be concluded about any producer's stores. */
RAT_MUST_CHECK enum rat_status rat_fence_all(enum rat_fence_kind kind);

const char *rat_fence_name(enum rat_fence_kind kind);

#ifdef RAT_TEST
/* Tests only: make the next calls of rat_fence_all fail (errno) or do nothing (the mutation "no membarrier"). */
extern int rat_fence_test_errno;
extern int rat_fence_test_skip;
#endif

#endif
