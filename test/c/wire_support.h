/* wire_support.h - what the tests of wire/ share: input that ends at a guard page, a small session, slot words. */
#ifndef RAT_TEST_WIRE_SUPPORT_H
#define RAT_TEST_WIRE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "wire/columns.h"
#include "wire/decoder.h"
#include "wire/encoder.h"
#include "wire/segment.h"

#define UNUSED __attribute__((unused))

/* A copy of the bytes whose last one lies before a page that faults. */
struct guarded {
    uint8_t *map;
    size_t map_bytes;
    uint8_t *bytes;
};

UNUSED static struct guarded guard(const void *bytes, size_t length)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (length + page - 1) / page * page + page;
    struct guarded to = {.map_bytes = body};
    to.map = mmap(NULL, body, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(to.map, MAP_FAILED);
    assert_int_equal(mprotect(to.map + body - page, page, PROT_NONE), 0);
    to.bytes = to.map + body - page - length;
    if (length > 0)
        memcpy(to.bytes, bytes, length);
    return to;
}

UNUSED static void unguard(struct guarded *guarded)
{
    munmap(guarded->map, guarded->map_bytes);
}

/* A generator with a seed of its own, so that a failure can be repeated (splitmix64). */
UNUSED static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* RAT_SEED or the clock; printed, so that it can be given again. */
UNUSED static uint64_t take_seed(const char *what)
{
    const char *given = getenv("RAT_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : rat_clock_ns(CLOCK_REALTIME);
    printf("%s: RAT_SEED=%llu\n", what, (unsigned long long)seed);
    return seed;
}

/* ---------------------------------------------------------------- a session */

struct session {
    struct rat_live_head head;
    uint8_t *mapping;
    size_t mapped;
    struct rat_dict *dict;
    struct rat_dict_view view;
};

UNUSED static enum rat_status reserve_nothing(void *owner, uint64_t at, uint64_t length)
{
    (void)owner, (void)at, (void)length;
    return RAT_OK;
}

UNUSED static void session_open(struct session *session)
{
    static const struct rat_dict_caps caps = {.frames = 8192, .names = 16384, .contexts = 256, .text = 1 << 20};
    memset(session, 0, sizeof *session);
    struct rat_live_head *head = &session->head;
    head->session_hi = UINT64_C(0x0123456789ABCDEF);
    head->session_lo = UINT64_C(0xFEDCBA9876543210);
    memcpy(head->sync, RAT_SYNC_CONSTANT "\x11\x22\x33\x44\x55\x66\x77\x88", 16);
    memcpy(head->boot_id, "boot-id-16-bytes", 16);
    head->pid = 4711;
    head->clock = RAT_CLOCK_TSC;
    head->fence = RAT_FENCE_MEMBARRIER;
    atomic_store(&head->frame_path, 1);
    head->ticks_per_s = 3000000000u;
    head->start = (struct rat_anchor){.ticks = 1000, .monotonic_ns = 2000, .realtime_ns = 3000, .width_ticks = 7};
    head->slot_bytes = 16384;
    strcpy(head->service, "shop");
    strcpy(head->host, "web-1");
    strcpy(head->ruby, "3.1.2 x86_64-linux-gnu");
    strcpy(head->recorder, "ratrace 0.1.0");
    session->mapped = rat_dict_tables_bytes(&caps) + rat_dict_text_bytes(&caps);
    session->mapping = calloc(1, session->mapped);
    assert_non_null(session->mapping);
    assert_int_equal(rat_dict_new(session->mapping, 0, rat_dict_tables_bytes(&caps), &caps, reserve_nothing, NULL,
                                  &session->dict),
                     RAT_OK);
}

UNUSED static void session_close(struct session *session)
{
    rat_dict_free(session->dict);
    free(session->mapping);
}

UNUSED static const struct rat_dict_view *session_view(struct session *session)
{
    assert_int_equal(rat_dict_view(session->mapping, session->mapped, 0, &session->view), RAT_OK);
    return &session->view;
}

UNUSED static rat_name_id add_name(struct session *session, const char *text)
{
    return rat_dict_name(session->dict, text, strlen(text), true);
}

UNUSED static rat_frame_id add_frame(struct session *session, const char *owner, const char *method)
{
    struct rat_frame_entry frame = {
        .owner = add_name(session, owner),
        .method = add_name(session, method),
        .file = add_name(session, "app.rb"),
        .line = 10,
        .kind = RAT_FRAME_INSTANCE,
    };
    return rat_dict_frame(session->dict, &frame);
}

UNUSED static rat_context_id add_context(struct session *session, uint32_t kind, uint32_t parent, const char *name)
{
    struct rat_context_entry context = {
        .kind = kind,
        .parent = parent,
        .name = name != NULL ? add_name(session, name) : 0,
        .lane = 1,
        .os_tid = kind == RAT_CONTEXT_THREAD ? 4712 : 0,
        .seen_ticks = 1500,
    };
    return rat_dict_context(session->dict, &context);
}

UNUSED static struct rat_chunk_info lane_info(const struct session *session, uint64_t sequence)
{
    return (struct rat_chunk_info){
        .session = &session->head,
        .segment = 1,
        .lane = 1,
        .sequence = sequence,
        .reason = RAT_REASON_PERIOD,
        .start = {.ticks = 1000, .monotonic_ns = 2000, .realtime_ns = 3000, .width_ticks = 7},
        .end = {.ticks = 4000, .monotonic_ns = 3000, .realtime_ns = 4000, .width_ticks = 8},
    };
}

/* ---------------------------------------------------------------- slot words */

struct words {
    uint64_t *words;
    uint32_t count, room, events;
};

UNUSED static void push_word(struct words *to, uint64_t word)
{
    if (to->count == to->room) {
        to->room = to->room != 0 ? to->room * 2 : 64;
        to->words = realloc(to->words, to->room * sizeof *to->words);
        assert_non_null(to->words);
    }
    to->words[to->count++] = word;
}

UNUSED static void push_event(struct words *to, enum rat_event_kind kind, uint32_t id, uint64_t delta)
{
    push_word(to, rat_event_word(kind, id) | delta << RAT_EVENT_DELTA_SHIFT);
    to->events++;
}

UNUSED static void push_gap(struct words *to, uint64_t delta)
{
    push_word(to, rat_event_word(RAT_EVENT_GAP, 1));
    push_word(to, delta);
}

UNUSED static void push_rich(struct words *to, enum rat_event_kind kind, const uint64_t *payload, uint32_t words,
                             uint64_t delta)
{
    push_event(to, kind, words, delta);
    for (uint32_t i = 0; i < words; i++)
        push_word(to, payload[i]);
}

/* ---------------------------------------------------------------- chunks */

/* The one entry in `bytes`: its header. */
UNUSED static void read_header(const struct rat_buffer *bytes, struct rat_chunk_header *header)
{
    struct rat_segment_reader *reader;
    struct rat_read read;
    assert_int_equal(rat_segment_open_bytes(bytes->bytes, bytes->length, &reader), RAT_OK);
    rat_segment_next(reader, &read);
    assert_int_equal(read.kind, RAT_READ_CHUNK);
    assert_int_equal(read.at, 0);
    assert_int_equal(read.length, bytes->length);
    *header = read.header;
    rat_segment_reader_free(reader);
}

#endif
