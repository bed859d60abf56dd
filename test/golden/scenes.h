/* scenes.h - the golden segments, made by hand with fixed session bytes: small enough to be read in a hex dump.
 *
 *   small   opening, one lane chunk with each kind of event, closing
 *   lost    a recovered segment: two lanes, a missing sequence with its label, drops, an event in flight, no closing
 *   packed  a lane chunk large enough to be compressed
 *   text    names that contain the session's marker and the whole of `small`
 *
 * test/ruby/bytes_test.rb says again, in its own words, what was put in. test/golden/make writes the files.
 */
#ifndef RAT_TEST_GOLDEN_SCENES_H
#define RAT_TEST_GOLDEN_SCENES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/encoder.h"

#define SCENES 4
#define GOLDEN_ZSTD 10504 /* the library that compressed all but `lost`, which is stored; another may choose other bytes */

static const char *const scene_names[SCENES] = {"small", "lost", "packed", "text"};

/* A dictionary as plain arrays; entry of id n at index n. */
static const char scene_text[] = "(dictionary full)Cart" "total" "app/cart.rb" "na\xEFve" "main";
static const struct rat_name_entry scene_name_entries[] = {
    {0, 0, 0, 0}, {0, 17, 1, 0}, {17, 4, 1, 0}, {21, 5, 1, 0}, {26, 11, 1, 0}, {37, 5, 0, 0}, {42, 4, 1, 0},
};
static const struct rat_frame_entry scene_frames[] = {
    {0, 0, 0, 0, 0, 0},
    {0, 1, 0, 0, 0, RAT_FRAME_SPECIAL},
    {2, 3, 0, 4, 10, RAT_FRAME_INSTANCE},
    {2, 5, 3, 4, 20, RAT_FRAME_C_SINGLETON},
};
static const struct rat_context_entry scene_contexts[] = {
    {0, 0, 0, 0, 0, 0},
    {RAT_CONTEXT_THREAD, 0, 6, 1, 4712, 1000},
    {RAT_CONTEXT_FIBER, 1, 0, 1, 0, 1300},
};
static const struct rat_dict_view scene_view = {
    .frames = scene_frames,
    .names = scene_name_entries,
    .contexts = scene_contexts,
    .text = (const uint8_t *)scene_text,
    .frame_count = 3,
    .name_count = 6,
    .context_count = 2,
    .text_used = sizeof scene_text - 1,
};

struct scene {
    struct rat_live_head session;
    struct rat_encoder *encoder;
    struct rat_buffer *out;
    uint64_t words[4096];
    uint32_t count, events;
    struct rat_totals stored[3]; /* so far, by lane */
    uint64_t sequence[3];
};

static void scene_must(enum rat_status status)
{
    if (status == RAT_OK)
        return;
    fprintf(stderr, "golden: %s\n", rat_status_text(status));
    abort();
}

static void scene_session(struct rat_live_head *session)
{
    memset(session, 0, sizeof *session);
    session->session_hi = UINT64_C(0x0123456789ABCDEF);
    session->session_lo = UINT64_C(0xFEDCBA9876543210);
    session->parent_hi = 1;
    session->parent_lo = 2;
    session->parent_pid = 4710;
    memcpy(session->sync, RAT_SYNC_CONSTANT "goldrush", 16);
    memcpy(session->boot_id, "boot-id-16-bytes", 16);
    session->pid = 4711;
    session->clock = RAT_CLOCK_TSC;
    session->fence = RAT_FENCE_MEMBARRIER;
    session->frame_path = 1;
    session->ticks_per_s = 3000000000u;
    session->start = (struct rat_anchor){.ticks = 900, .monotonic_ns = 300, .realtime_ns = 1700000000000000000u};
    session->slot_bytes = 32768;
    strcpy(session->service, "shop");
    strcpy(session->host, "web-1");
    strcpy(session->ruby, "3.1.2 x86_64-linux-gnu");
    strcpy(session->recorder, "ratrace 0.1.0");
}

static void scene_event(struct scene *scene, enum rat_event_kind kind, uint32_t id, uint64_t delta)
{
    scene->words[scene->count++] = rat_event_word(kind, id) | delta << RAT_EVENT_DELTA_SHIFT;
    scene->events++;
}

static void scene_rich(struct scene *scene, enum rat_event_kind kind, uint32_t words, const uint64_t *payload,
                       uint64_t delta)
{
    scene_event(scene, kind, words, delta);
    memcpy(scene->words + scene->count, payload, words * sizeof *payload);
    scene->count += words;
}

static struct rat_chunk_info scene_info(const struct scene *scene, uint32_t lane, enum rat_reason reason)
{
    uint64_t sequence = scene->sequence[lane] + 1;
    return (struct rat_chunk_info){
        .session = &scene->session,
        .segment = 1,
        .lane = lane,
        .sequence = sequence,
        .reason = reason,
        .opened = scene->stored[lane],
        .closed = scene->stored[lane],
        .start = {.ticks = 1000 * sequence, .monotonic_ns = 333 * sequence, .realtime_ns = 1700000000000000333u, .width_ticks = 30},
        .end = {.ticks = 1000 * sequence + 900, .monotonic_ns = 633 * sequence, .realtime_ns = 1700000000000000633u, .width_ticks = 31},
    };
}

static void scene_session_chunk(struct scene *scene, enum rat_reason reason, const struct rat_dict_view *dict)
{
    struct rat_chunk_info info = scene_info(scene, 0, reason);
    info.with_session = reason == RAT_REASON_OPENING;
    scene_must(rat_encoder_session_chunk(scene->encoder, &info, dict, scene->out));
    scene->sequence[0]++;
}

static void scene_lane_chunk(struct scene *scene, struct rat_chunk_info *info, const struct rat_dict_view *dict)
{
    info->closed.stored += scene->events;
    scene_must(rat_encoder_lane_chunk(scene->encoder, info, scene->words, scene->count, scene->events,
                                      1000 * info->sequence + 10, dict, scene->out));
    rat_encoder_settle(scene->encoder, true);
    scene->stored[info->lane] = info->closed;
    scene->sequence[info->lane] = info->sequence;
    scene->count = scene->events = 0;
}

static void scene_small(struct scene *scene)
{
    scene_session_chunk(scene, RAT_REASON_OPENING, NULL);
    const uint64_t snapshot[] = {(uint64_t)1 << 32 | 1, (uint64_t)1 << 32 | RAT_SNAPSHOT_START, RAT_FRAME_BASE};
    scene_rich(scene, RAT_EVENT_SNAPSHOT, 3, snapshot, 0);
    scene_event(scene, RAT_EVENT_CALL, 2, 100);
    scene_event(scene, RAT_EVENT_C_CALL, 3, 127);
    scene_event(scene, RAT_EVENT_C_RETURN, 0, 128);
    scene->words[scene->count++] = rat_event_word(RAT_EVENT_GAP, 1);
    scene->words[scene->count++] = UINT64_C(1) << 40;
    scene_event(scene, RAT_EVENT_SWITCH, 2, 0);
    scene_event(scene, RAT_EVENT_UNWIND, 1, 16384);
    scene_event(scene, RAT_EVENT_RETURN, 0, RAT_EVENT_DELTA_MAX);
    scene_event(scene, RAT_EVENT_UNMATCHED, 0, 1);
    scene_rich(scene, RAT_EVENT_NOTE, 1, (uint64_t[]){(uint64_t)RAT_NOTE_DEPTH_LIMIT << 32 | 10000}, 2);
    scene_rich(scene, RAT_EVENT_END, 1, (uint64_t[]){(uint64_t)2 << 32 | RAT_END_STOP}, 3);
    struct rat_chunk_info info = scene_info(scene, 1, RAT_REASON_STOP);
    scene_lane_chunk(scene, &info, &scene_view);
    scene_session_chunk(scene, RAT_REASON_CLOSING, &scene_view);
}

static void scene_lost(struct scene *scene)
{
    scene_session_chunk(scene, RAT_REASON_OPENING, NULL);
    scene_event(scene, RAT_EVENT_CALL, 2, 1);
    struct rat_chunk_info first = scene_info(scene, 1, RAT_REASON_PERIOD);
    first.closed.drop[RAT_DROP_SLOT_FULL] = 3;
    scene_lane_chunk(scene, &first, &scene_view);

    scene->sequence[1] = 2; /* the second, of 7 events, was never written */
    scene->stored[1].stored += 7;
    const struct rat_lost_label labels[] = {
        {.cause = RAT_LOST_WRITE_FAILED, .first_seq = 2, .last_seq = 2, .count = 7},
        {.cause = RAT_DROP_SLOT_FULL, .count = 3, .from_ticks = 1500, .to_ticks = 1600},
    };
    scene_event(scene, RAT_EVENT_RETURN, 0, 2);
    struct rat_chunk_info third = scene_info(scene, 1, RAT_REASON_RECOVERED);
    third.lost = labels;
    third.lost_count = 2;
    third.in_flight = 1;
    scene_lane_chunk(scene, &third, &scene_view);

    scene_event(scene, RAT_EVENT_RETURN, 0, 0);
    struct rat_chunk_info other = scene_info(scene, 2, RAT_REASON_RECOVERED);
    other.closed.drop[RAT_DROP_OUT_OF_MEMORY] = 1;
    other.closed.drop[RAT_DROP_NO_LANE] = 2;
    scene_lane_chunk(scene, &other, &scene_view);
}

static void scene_packed(struct scene *scene)
{
    scene_session_chunk(scene, RAT_REASON_OPENING, NULL);
    for (uint32_t i = 0; i < 500; i++) {
        scene_event(scene, RAT_EVENT_CALL, 2 + i % 2, 100 + i);
        scene_event(scene, RAT_EVENT_RETURN, 0, 50);
    }
    struct rat_chunk_info info = scene_info(scene, 1, RAT_REASON_HALF_FULL);
    scene_lane_chunk(scene, &info, &scene_view);
    scene_session_chunk(scene, RAT_REASON_CLOSING, &scene_view);
}

static void scene_build(int which, struct rat_buffer *out);

static void scene_text_with_markers(struct scene *scene)
{
    struct rat_buffer small;
    rat_buffer_init(&small, 1 << 16);
    scene_build(0, &small);
    scene_must(rat_buffer_append(&small, "\x0A\x10" RAT_SYNC_CONSTANT "goldrush", 18));
    const struct rat_name_entry names[] = {
        {0, 0, 0, 0},
        {0, (uint32_t)small.length - 18, 0, 0},
        {(uint32_t)small.length - 18, 18, 0, 0},
    };
    const struct rat_frame_entry frames[] = {{0, 0, 0, 0, 0, 0}, {1, 2, 0, 0, 1, RAT_FRAME_INSTANCE}};
    const struct rat_dict_view view = {
        .names = names,
        .frames = frames,
        .contexts = scene_contexts,
        .text = small.bytes,
        .text_used = (uint32_t)small.length,
        .name_count = 2,
        .frame_count = 1,
    };
    memcpy(scene->session.sync + 8, "stranger", 8); /* whoever wrote that text did not know this */
    scene_session_chunk(scene, RAT_REASON_OPENING, NULL);
    for (int chunk = 0; chunk < 2; chunk++) {
        scene_event(scene, RAT_EVENT_CALL, 1, 1);
        struct rat_chunk_info info = scene_info(scene, 1, RAT_REASON_PERIOD);
        scene_lane_chunk(scene, &info, &view);
    }
    rat_buffer_free(&small);
}

static void scene_build(int which, struct rat_buffer *out)
{
    struct scene *scene = calloc(1, sizeof *scene);
    scene_must(scene != NULL ? RAT_OK : RAT_NO_MEMORY);
    scene_session(&scene->session);
    scene->out = out;
    scene_must(rat_encoder_new(4096, 1, &scene->encoder));
    static void (*const builders[SCENES])(struct scene *) = {scene_small, scene_lost, scene_packed,
                                                             scene_text_with_markers};
    builders[which](scene);
    rat_encoder_free(scene->encoder);
    free(scene);
}

#endif
