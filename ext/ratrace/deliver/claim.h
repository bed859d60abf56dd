/* claim.h - one owner per segment, among all processes that ship or clean up one directory.
 *
 * A claim is a write lock on one byte of DIR/.claims, at a place the segment's name gives. The lock belongs to the open
 * file (an OFD lock): two shippers exclude each other whether they are threads or processes, reading or copying the
 * segments drops nothing, and the kernel voids the claims of whoever dies, at once and whatever killed it. Nothing is
 * written there, so nothing can be left behind or be believed wrongly. Two names that give the same byte (1 in 2^62)
 * are merely not delivered at the same time.
 *
 * After a claim the segment must be looked at again: its last owner may have delivered and removed it.
 *
 * Fork.    A child shares the open file, and with it the claim, which would outlive its owner. So the child closes the
 *          descriptor (rat_claims_in_child, from pthread_atfork); that unlocks nothing in the parent.
 * Limits.  Where the file system has no OFD locks, POSIX locks are used: then one process must not ship one directory
 *          twice. Who deletes .claims while somebody ships makes two deliveries of one segment possible, under one
 *          idempotency key.
 *
 * Threads: one at a time.
 */
#ifndef RAT_DELIVER_CLAIM_H
#define RAT_DELIVER_CLAIM_H

#include "base/handle.h"
#include "base/status.h"

#define RAT_CLAIMS_NAME ".claims"

struct rat_claims {
    struct rat_handle file;
};

/* Claim a segment of the directory `dir_fd`; the file is made when it is first needed. RAT_BUSY: somebody has it. */
RAT_MUST_CHECK enum rat_status rat_claim_take(struct rat_claims *claims, int dir_fd, const char *name);
void rat_claim_drop(struct rat_claims *claims, const char *name);

void rat_claims_close(struct rat_claims *claims);

/* In a forked child; async-signal-safe. */
void rat_claims_in_child(struct rat_claims *claims);

#endif
