#include "deliver/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "deliver/live_file.h"
#include "deliver/recovery.h"
#include "deliver/serializer.h"

struct rat_session {
    struct rat_live_file live;
    struct rat_dict *dict;
    struct rat_serializer serializer;
    char live_dir[RAT_LIVE_PATH_MAX];
    bool debug;
    /* what dead processes left, finished by a thread of its own while ours already records */
    pthread_t recoverer;
    bool recovers;
    _Atomic bool has_recovered;
    _Atomic uint32_t cancel;
    _Atomic uint64_t recovered_segments, recovered_events;
};

static __attribute__((format(printf, 3, 4))) void say(char *why, size_t length, const char *format, ...)
{
    if (why == NULL || length == 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, length, format, arguments);
    va_end(arguments);
}

/* ---------------------------------------------------------------- recovery of others */

static void report(void *user, const char *line)
{
    const struct rat_session *session = user;
    if (session->debug)
        fprintf(stderr, "ratrace: %s\n", line);
}

static void *recoverer_main(void *argument)
{
    struct rat_session *session = argument;
    prctl(PR_SET_NAME, "ratrace-recover");
    struct rat_recovery found;
    enum rat_status status = rat_recover_until(rat_live_head(&session->live)->out_dir, session->live_dir, report,
                                               session, &session->cancel, &found);
    if (status != RAT_OK)
        report(session, "what other processes left could not all be recovered");
    atomic_store_explicit(&session->recovered_segments, found.segments, memory_order_relaxed);
    atomic_store_explicit(&session->recovered_events, found.events, memory_order_relaxed); /* both only shown */
    atomic_store_explicit(&session->has_recovered, true, memory_order_release); /* it needs the session no more */
    return NULL;
}

/* ---------------------------------------------------------------- open */

static void put_string(char *to, size_t length, const char *from)
{
    snprintf(to, length, "%s", from != NULL ? from : "");
}

static enum rat_status fill_head(struct rat_live_head *head, const struct rat_session_options *options, char *why,
                                 size_t why_length)
{
    rat_live_identify(head);
    enum rat_status status = rat_outlet_prepare_dir(options->out_dir, head->out_dir, why, why_length);
    if (status != RAT_OK)
        return status;
    put_string(head->service, sizeof head->service, options->service);
    put_string(head->ruby, sizeof head->ruby, options->ruby);
    put_string(head->recorder, sizeof head->recorder, options->recorder);
    put_string(head->trace, sizeof head->trace, options->trace);
    memcpy(head->tags, options->tags, sizeof head->tags);
    head->parent_hi = options->parent_hi;
    head->parent_lo = options->parent_lo;
    head->parent_pid = options->parent_pid;
    head->clock = rat_clock_choose(options->clock, &head->ticks_per_s);
    head->fence = rat_fence_choose(options->fence);
    atomic_store_explicit(&head->frame_path, options->frame_path, memory_order_relaxed);
    head->start = rat_anchor_take((enum rat_clock_kind)head->clock);
    head->file_mode = options->file_mode;
    head->slot_bytes = options->slot_bytes != 0 ? options->slot_bytes : RAT_SLOT_BYTES_DEFAULT;
    atomic_store_explicit(&head->segment, 1, memory_order_relaxed);
    return RAT_OK;
}

static bool hold(void *owner)
{
    struct rat_session *session = owner;
    return rat_live_hold(&session->live);
}

static enum rat_status start_serializer(struct rat_session *session, const struct rat_session_options *options)
{
    struct rat_serializer *serializer = &session->serializer;
    struct rat_live_head *head = rat_live_head(&session->live);
    enum rat_status status = rat_outlet_init(&serializer->outlet, head);
    if (status != RAT_OK)
        return status;
    serializer->mapping = session->live.mapping;
    serializer->mapped = session->live.length;
    serializer->fence = (enum rat_fence_kind)head->fence;
    serializer->period_ns = options->period_ns != 0 ? options->period_ns : RAT_PERIOD_NS_DEFAULT;
    serializer->segment_bytes = options->segment_bytes != 0 ? options->segment_bytes : RAT_SEGMENT_BYTES_DEFAULT;
    serializer->segment_age_ns = options->segment_age_ns != 0 ? options->segment_age_ns : RAT_SEGMENT_AGE_NS_DEFAULT;
    serializer->beat = options->beat;
    serializer->debug = options->debug;
    serializer->hold = hold;
    serializer->owner = session;
    return rat_serializer_start(serializer);
}

enum rat_status rat_session_open(const struct rat_session_options *options, struct rat_session **out, char *why,
                                 size_t why_length)
{
    struct rat_live_head head;
    enum rat_status status = fill_head(&head, options, why, why_length);
    if (status != RAT_OK)
        return status;
    struct rat_session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        say(why, why_length, "out of memory");
        return RAT_NO_MEMORY;
    }
    session->serializer.outlet.writer.fd = -1; /* none is open, where the outlet is freed before it is made */
    session->debug = options->debug;
    status = rat_live_dir(options->live_dir, session->live_dir, sizeof session->live_dir);
    if (status != RAT_OK) {
        say(why, why_length, "the path of the live directory is too long; give a shorter one");
        goto failed_early;
    }
    status = rat_live_create(&session->live, session->live_dir, &head);
    if (status != RAT_OK) {
        say(why, why_length, status == RAT_INVALID
                ? "the slot size must be a multiple of 4096 from 16384 to 33554432 bytes"
                : "cannot map the slots: %s; take a smaller slot size", rat_status_text(status));
        goto failed_early;
    }
    if (session->live.path[0] == '\0' && options->debug)
        fprintf(stderr, "ratrace: nothing survives a kill, the memory is anonymous: %s\n",
                session->live.why_anonymous);
    const struct rat_live_head *mapped = rat_live_head(&session->live);
    status = rat_dict_new(session->live.mapping, mapped->tables_at, mapped->text_at, NULL, rat_live_reserve,
                          &session->live, &session->dict);
    if (status == RAT_OK)
        status = start_serializer(session, options);
    if (status != RAT_OK) {
        say(why, why_length, "cannot start the serializer: %s", rat_status_text(status));
        goto failed;
    }
    rat_live_publish(&session->live);
    session->recovers = rat_serializer_spawn(&session->recoverer, recoverer_main, session) == RAT_OK;
    *out = session;
    return RAT_OK;

failed:
    rat_outlet_free(&session->serializer.outlet);
    rat_dict_free(session->dict);
    rat_live_close(&session->live, false);
failed_early:
    free(session);
    return status;
}

/* ---------------------------------------------------------------- use */

struct rat_dict *rat_session_dict(struct rat_session *session)
{
    return session->dict;
}

enum rat_clock_kind rat_session_clock(const struct rat_session *session)
{
    return (enum rat_clock_kind)rat_live_head(&session->live)->clock;
}

uint64_t rat_session_ticks_per_s(const struct rat_session *session)
{
    return rat_live_head(&session->live)->ticks_per_s;
}

void rat_session_id(const struct rat_session *session, uint64_t *hi, uint64_t *lo)
{
    *hi = rat_live_head(&session->live)->session_hi;
    *lo = rat_live_head(&session->live)->session_lo;
}

static bool is_open(const struct rat_session *session, uint32_t lane)
{
    return atomic_load_explicit(&session->serializer.lanes[lane].added, memory_order_acquire) != 0;
}

enum rat_status rat_session_open_lane(struct rat_session *session, uint32_t lane, struct rat_lane_producer *producer,
                                      uint32_t *number)
{
    if (lane > RAT_LANE_RACTOR)
        return RAT_INVALID;
    while (lane < RAT_LANES && is_open(session, lane)) {
        if (lane < RAT_LANE_RACTOR)
            return RAT_EXISTS;
        lane++;
    }
    if (lane == RAT_LANES)
        return RAT_TOO_BIG;
    uint64_t *slots;
    enum rat_status status = rat_live_reserve_slots(&session->live, lane, &slots);
    if (status != RAT_OK)
        return status;
    const struct rat_live_head *head = rat_live_head(&session->live);
    struct rat_lane_head *lanes = (struct rat_lane_head *)(void *)(session->live.mapping + head->lanes_at);
    struct rat_anchor now = rat_anchor_take((enum rat_clock_kind)head->clock);
    rat_lane_open(&lanes[lane], slots, (uint32_t)head->slot_bytes, &now, producer,
                  &session->serializer.lanes[lane].consumer, (enum rat_fence_kind)head->fence);
    rat_serializer_add_lane(&session->serializer, lane);
    *number = lane + 1;
    return RAT_OK;
}

enum rat_status rat_session_flush(struct rat_session *session)
{
    return rat_serializer_flush(&session->serializer);
}

/* ---------------------------------------------------------------- end */

static void close_lanes(struct rat_session *session)
{
    for (uint32_t i = 0; i < RAT_LANES; i++)
        if (is_open(session, i))
            atomic_store_explicit(&session->serializer.lanes[i].consumer.lane->state, RAT_LANE_CLOSED,
                                  memory_order_release);
}

/* Wait for the recoverer, no longer than the serializer is waited for. */
static bool join_recoverer(struct rat_session *session)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    uint64_t until = rat_clock_ns(CLOCK_MONOTONIC) + rat_serializer_stop_ns;
    while (session->recovers && !atomic_load_explicit(&session->has_recovered, memory_order_acquire)) {
        if (rat_clock_ns(CLOCK_MONOTONIC) >= until) {
            pthread_detach(session->recoverer);
            return false;
        }
        nanosleep(&moment, NULL);
    }
    if (session->recovers)
        pthread_join(session->recoverer, NULL);
    return true;
}

enum rat_status rat_session_stop(struct rat_session *session, char *path, size_t path_length)
{
    atomic_store_explicit(&session->cancel, 1, memory_order_relaxed); /* looked at between files */
    enum rat_status status = rat_serializer_stop(&session->serializer);
    if (path != NULL && path_length > 0)
        path[0] = '\0';
    if (status == RAT_LATE) {
        if (session->recovers)
            pthread_detach(session->recoverer);
        return status;
    }
    bool alone = join_recoverer(session);
    if (path != NULL && path_length > 0)
        snprintf(path, path_length, "%s", session->serializer.outlet.published);
    rat_outlet_free(&session->serializer.outlet);
    if (session->live.shared)
        close_lanes(session);
    else
        rat_dict_free(session->dict);
    session->live.shared |= !alone;
    rat_live_close(&session->live, status != RAT_OK);
    if (alone)
        free(session);
    return status;
}

void rat_session_share(struct rat_session *session)
{
    session->live.shared = true;
}

void rat_session_abandon(struct rat_session *session)
{
    rat_serializer_abandon(&session->serializer);
    rat_dict_free(session->dict); /* its tables never move, so they are whole; destroying a mutex waits for nobody */
    rat_live_abandon(&session->live);
    free(session);
}

/* ---------------------------------------------------------------- stats */

/* S of a lane: settled chunks and what the slots show beyond them. Called with the serializer's lock. */
static uint64_t stored_now(const struct rat_serial_lane *lane)
{
    uint64_t stored = lane->settled_stored;
    for (int slot = 0; slot < 2; slot++) {
        uint64_t w = atomic_load_explicit(&lane->consumer.lane->slot[slot].w, memory_order_relaxed); /* only shown */
        uint16_t ahead = (uint16_t)(rat_w_seq(w) - (uint16_t)lane->settled_seq);
        if (ahead == 1 || ahead == 2)
            stored += rat_w_events(w);
    }
    return stored;
}

void rat_session_stats(struct rat_session *session, struct rat_session_stats *out)
{
    struct rat_serializer *serializer = &session->serializer;
    const struct rat_live_head *head = rat_live_head(&session->live);
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&serializer->lock);
    for (uint32_t i = 0; i < RAT_LANES; i++) {
        if (!is_open(session, i))
            continue;
        const struct rat_serial_lane *lane = &serializer->lanes[i];
        out->lanes++;
        out->stored += stored_now(lane);
        out->disabled_lanes += atomic_load_explicit(&lane->consumer.lane->state, memory_order_relaxed) ==
            RAT_LANE_DISABLED;
        for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
            out->drop[cause] += atomic_load_explicit(&lane->consumer.lane->drop[cause], memory_order_relaxed);
    }
    const struct rat_serial_counts *counts = &serializer->shown;
    out->written_events = counts->written_events;
    out->lost_events = counts->lost_events;
    out->chunks = counts->outlet.chunks;
    out->bytes = counts->outlet.bytes;
    out->raw_bytes = counts->raw_bytes;
    out->segments = counts->outlet.segments;
    out->flips = counts->flips;
    out->giveups = counts->giveups;
    out->failed_writes = counts->outlet.failed_writes;
    out->encode_ns = counts->outlet.encode_ns;
    out->write_ns = counts->outlet.write_ns;
    out->last_failure = counts->failure;
    memcpy(out->part, counts->part, sizeof out->part);
    pthread_mutex_unlock(&serializer->lock);

    const struct rat_dict_head *dict = rat_dict_head(session->dict);
    out->frames = atomic_load_explicit(&dict->frames, memory_order_relaxed);
    out->names = atomic_load_explicit(&dict->names, memory_order_relaxed);
    out->contexts = atomic_load_explicit(&dict->contexts, memory_order_relaxed);
    out->folded = atomic_load_explicit(&dict->folded, memory_order_relaxed);
    out->recovered_segments = atomic_load_explicit(&session->recovered_segments, memory_order_relaxed);
    out->recovered_events = atomic_load_explicit(&session->recovered_events, memory_order_relaxed);
    out->clock = (enum rat_clock_kind)head->clock;
    out->fence = (enum rat_fence_kind)head->fence;
    out->live_file_mapped = session->live.path[0] != '\0' && session->live.fd >= 0;
    snprintf(out->why_anonymous, sizeof out->why_anonymous, "%.255s",
             session->live.path[0] == '\0' ? session->live.why_anonymous : "the host closed its descriptor");
}
