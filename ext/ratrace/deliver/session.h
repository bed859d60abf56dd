/* session.h - one recording session of this process: live file, dictionary, lanes, serializer thread, segments.
 *
 * Opened and stopped by ruby/, which knows nothing of what is behind it. Everything the producer needs is handed out
 * at opening; from then on producer and session meet only in mapped words (lane.h, dictionary.h).
 *
 * Memory:  the session owns the mapping; producers' pointers into it are void after stop.
 * Threads: open, open_lane, stop, abandon by a thread that holds the GVL or its like (one at a time); flush and stop
 *          block and must be called without the GVL; stats from any thread.
 * Fork:    in the child: rat_session_abandon, before anything else; never stop. The mapping is MADV_DONTFORK, so
 *          there is nothing to unmap and nothing may be read.
 */
#ifndef RAT_DELIVER_SESSION_H
#define RAT_DELIVER_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/fence.h"
#include "base/status.h"
#include "deliver/beat.h"
#include "record/dictionary.h"
#include "record/lane.h"
#include "record/tags.h"

#define RAT_PERIOD_NS_DEFAULT UINT64_C(1000000000)
#define RAT_SEGMENT_BYTES_DEFAULT (UINT64_C(64) << 20)
#define RAT_SEGMENT_AGE_NS_DEFAULT (UINT64_C(3600) * 1000000000u)

struct rat_session_options {
    const char *out_dir;        /* created 0700 if it is missing; made absolute */
    const char *live_dir;       /* as rat_live_dir takes it */
    const char *service;        /* in file names and Session; "" allowed */
    const char *ruby, *recorder;
    const char *trace;          /* which methods are traced, as the file tells it; NULL = all */
    char tags[RAT_TAGS_BYTES];  /* record/tags.h */
    uint32_t slot_bytes;        /* RAT_SLOT_BYTES_MIN..MAX, a multiple of 4096 */
    uint64_t period_ns;
    uint64_t segment_bytes, segment_age_ns;
    uint32_t file_mode;         /* of segments: 0600 (also for 0) or 0640 */
    enum rat_clock_kind clock;  /* 0 = the best */
    enum rat_fence_kind fence;  /* 0 = the best */
    uint32_t frame_path;        /* ratrace.v1.FramePath */
    uint64_t parent_hi, parent_lo; /* of a forked child */
    uint32_t parent_pid;
    struct rat_beat *beat;      /* set while the session lives; may be NULL */
    bool debug;                 /* log life-cycle lines to stderr */
};

struct rat_session;

/* Start. On failure nothing is left behind and `why` (NUL-terminated, one line naming the thing and the remedy) tells
 * what to say. The serializer first recovers what dead processes left for this directory, on its own time. */
RAT_MUST_CHECK enum rat_status rat_session_open(const struct rat_session_options *options, struct rat_session **out,
                                                char *why, size_t why_length);

struct rat_dict *rat_session_dict(struct rat_session *session);
enum rat_clock_kind rat_session_clock(const struct rat_session *session);
uint64_t rat_session_ticks_per_s(const struct rat_session *session);
void rat_session_id(const struct rat_session *session, uint64_t *hi, uint64_t *lo);

/* A lane: RAT_LANE_MAIN once, or RAT_LANE_RACTOR for the next free Ractor lane. `number` (from 1) is the one in files.
 * RAT_TOO_BIG when there is none left, RAT_NO_SPACE when the live file cannot grow. */
RAT_MUST_CHECK enum rat_status rat_session_open_lane(struct rat_session *session, uint32_t lane,
                                                     struct rat_lane_producer *producer, uint32_t *number);

/* Return when all that was recorded before the call is in the segment file, or RAT_IO / RAT_NO_SPACE with what stops
 * it, after one try. Blocks. */
RAT_MUST_CHECK enum rat_status rat_session_flush(struct rat_session *session);

/* No producer comes any more: drain all, write the closing chunk, publish, unlink the live file, end the thread, free
 * the session. If the disk refuses, the live file and the part file stay for `ratrace recover`, and that is the status
 * returned. `path` (may be NULL) gets the last segment's final path. Blocks, but not for ever: RAT_LATE when the disk
 * did not answer for rat_serializer_stop_ns; then threads and memory are left behind, and the live file to a recovery. */
enum rat_status rat_session_stop(struct rat_session *session, char *path, size_t path_length);

/* A producer of another lane may come even after stop (a Ractor that nobody can halt): its lane is closed, so that it
 * drops, and mapping and dictionary are never given back. Before stop. */
void rat_session_share(struct rat_session *session);

/* In a forked child: forget, close the inherited descriptors, free the private memory. */
void rat_session_abandon(struct rat_session *session);

struct rat_session_stats {
    uint64_t stored, drop[RAT_DROP_CAUSES];         /* sum over lanes, live */
    uint64_t written_events, lost_events;           /* in chunks appended; given up */
    uint64_t chunks, bytes, raw_bytes;              /* appended */
    uint64_t segments;                              /* published */
    uint64_t flips, giveups, failed_writes;
    uint64_t encode_ns, write_ns;                   /* cumulative, serializer */
    uint64_t frames, names, contexts, folded;       /* dictionary */
    uint64_t recovered_segments, recovered_events;  /* of dead processes */
    enum rat_status last_failure;                   /* RAT_OK when the last write went well */
    uint32_t lanes, disabled_lanes;
    enum rat_clock_kind clock;
    enum rat_fence_kind fence;
    bool live_file_mapped;                          /* false = anonymous memory: nothing survives a kill */
    char why_anonymous[256];                        /* and why, cut */
    char part[4096];                                /* path of the segment being written */
};
void rat_session_stats(struct rat_session *session, struct rat_session_stats *out);

#endif
