/* recovery.h - finish what a dead process left: its part file and its live file.
 *
 * Threads: any, blocks. Recoverers exclude each other by the lock on the live (or part) file.
 */
#ifndef RAT_DELIVER_RECOVERY_H
#define RAT_DELIVER_RECOVERY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct rat_recovery {
    uint32_t segments;  /* finished and renamed */
    uint32_t alive;     /* left alone: their owner lives */
    uint32_t failed;    /* could not be finished; see the report */
    uint32_t unplaced;  /* live files that cannot be read and may be another directory's; see the report */
    uint64_t chunks;    /* appended from live files */
    uint64_t events;    /* in them */
    uint64_t in_flight; /* events that were being written at death */
    uint64_t cut_bytes; /* torn tails */
    uint64_t power_lost; /* live files of another boot: not believed */
};

/* One line about one file, for a person ("recovered 1,234 events into …"). */
typedef void (*rat_recovery_report)(void *user, const char *line);

/* Recover all dead sessions whose output directory is `out_dir`. `live_dir` as rat_live_dir takes it. RAT_OK also when
 * there was nothing to do; RAT_NOT_FOUND when out_dir is not a directory; RAT_IO etc. when some file could not be
 * finished (the others are). Safe to run twice, by two processes at once, and to be killed at any step. */
RAT_MUST_CHECK enum rat_status rat_recover(const char *out_dir, const char *live_dir, rat_recovery_report report,
                                           void *user, struct rat_recovery *out);

/* The same; stops between two files once `*cancel` is not 0. The rest stays for the next run. */
RAT_MUST_CHECK enum rat_status rat_recover_until(const char *out_dir, const char *live_dir, rat_recovery_report report,
                                                 void *user, const _Atomic uint32_t *cancel,
                                                 struct rat_recovery *out);

#endif
