/* salvage.h - one dead session: from its live file and its part file to a finished segment.
 *
 * Threads: any, blocks. The caller holds the lock on the live file (live_view.h).
 */
#ifndef RAT_DELIVER_SALVAGE_H
#define RAT_DELIVER_SALVAGE_H

#include <stdint.h>

#include "base/status.h"
#include "deliver/live_view.h"

struct rat_salvage {
    uint64_t chunks, events, in_flight, cut_bytes, segments;
    char path[4096]; /* of the newest finished segment, "" = there was nothing to write */
};

/* Append what was not flushed, close, unlink `live_path`, publish. Adds to `out`, also on failure; then everything
 * that was there before still is, and a second call goes on where this one stopped. RAT_BUSY: somebody has the part
 * file. */
RAT_MUST_CHECK enum rat_status rat_salvage_session(struct rat_live_view *view, const char *live_path,
                                                   struct rat_salvage *out);

/* A part file whose live file is gone (or never was): cut its torn tail and publish. A closing chunk is there if the
 * session, or a recovery, came that far; none is made up, because what was lost behind the last chunk is unknown. A
 * file without any chunk is removed. */
RAT_MUST_CHECK enum rat_status rat_salvage_part(const char *path, struct rat_salvage *out);

#endif
