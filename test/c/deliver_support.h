/* deliver_support.h - what the tests of deliver/ share: places to write to, a producer, and the reading back.
 *
 * Recorded events are numbered: the nth stored event of a lane is "unwind n", which needs no dictionary. So reading
 * back shows each loss, duplicate and reordering by itself, beside the totals. No cmocka in here: test/crash uses it.
 */
#ifndef RAT_TEST_DELIVER_SUPPORT_H
#define RAT_TEST_DELIVER_SUPPORT_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "deliver/recovery.h"
#include "deliver/session.h"
#include "record/event.h"
#include "wire/segment.h"

#define UNUSED __attribute__((unused))
#define MILLISECOND UINT64_C(1000000)
#define FOREVER (UINT64_C(3600) * 1000 * MILLISECOND)

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);          \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ---------------------------------------------------------------- places */

struct place {
    char out[64], live[64];
};

UNUSED static struct place make_place(void)
{
    struct place place = {.out = "/tmp/ratrace-test-XXXXXX", .live = "/dev/shm/ratrace-test-XXXXXX"};
    REQUIRE(mkdtemp(place.out) != NULL);
    REQUIRE(mkdtemp(place.live) != NULL);
    return place;
}

UNUSED static int remove_entry(const char *path, const struct stat *file, int kind, struct FTW *walk)
{
    (void)file, (void)kind, (void)walk;
    return remove(path);
}

UNUSED static void remove_tree(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* And what a test that failed has mounted there. */
UNUSED static void remove_place(const struct place *place)
{
    umount2(place->out, MNT_DETACH);
    umount2(place->live, MNT_DETACH);
    remove_tree(place->out);
    remove_tree(place->live);
}

UNUSED static int count_files(const char *dir, const char *suffix)
{
    DIR *open_dir = opendir(dir);
    int count = 0;
    for (struct dirent *entry; open_dir != NULL && (entry = readdir(open_dir)) != NULL;) {
        size_t length = strlen(entry->d_name), want = strlen(suffix);
        count += entry->d_name[0] != '.' && length >= want && strcmp(entry->d_name + length - want, suffix) == 0;
    }
    if (open_dir != NULL)
        closedir(open_dir);
    return count;
}

/* ---------------------------------------------------------------- recording */

UNUSED static struct rat_session_options small_options(const struct place *place)
{
    return (struct rat_session_options){
        .out_dir = place->out,
        .live_dir = place->live,
        .service = "test",
        .ruby = "none",
        .recorder = "test",
        .slot_bytes = RAT_SLOT_BYTES_MIN,
        .period_ns = FOREVER,
    };
}

struct recorder {
    struct rat_session *session;
    struct rat_lane_producer producer;
    enum rat_clock_kind clock;
    uint32_t lane;
    uint64_t stored, dropped;
};

UNUSED static struct rat_session *open_session(const struct rat_session_options *options)
{
    struct rat_session *session;
    char why[512] = "";
    enum rat_status status = rat_session_open(options, &session, why, sizeof why);
    if (status != RAT_OK)
        fprintf(stderr, "rat_session_open: %s (%s)\n", why, rat_status_text(status));
    REQUIRE(status == RAT_OK);
    return session;
}

UNUSED static void open_lane(struct recorder *recorder, struct rat_session *session, uint32_t lane)
{
    *recorder = (struct recorder){.session = session, .clock = rat_session_clock(session)};
    REQUIRE(rat_session_open_lane(session, lane, &recorder->producer, &recorder->lane) == RAT_OK);
}

/* One numbered event. True: stored. */
UNUSED static bool record(struct recorder *r)
{
    uint64_t now = rat_clock_ticks(r->clock);
    uint64_t event = rat_event_word(RAT_EVENT_UNWIND, (uint32_t)(r->stored & RAT_EVENT_ID_MAX));
    enum rat_drop_cause cause = RAT_DROP_SLOT_FULL;
    bool stored = rat_lane_put(&r->producer, event, now, r->producer.strong);
    while (!stored) {
        if (rat_lane_turn(&r->producer, now, &cause) == RAT_TURN_NONE)
            break;
        enum rat_append result = rat_lane_append(&r->producer, event, NULL, 0, now);
        stored = result == RAT_APPEND_STORED;
        if (result == RAT_APPEND_FULL) {
            cause = RAT_DROP_SLOT_FULL;
            break;
        }
    }
    if (!stored)
        rat_lane_drop(&r->producer, cause, now);
    r->stored += stored;
    r->dropped += !stored;
    return stored;
}

UNUSED static void record_many(struct recorder *r, uint64_t events)
{
    for (uint64_t i = 0; i < events; i++)
        record(r);
}

UNUSED static enum rat_status record_and_flush(struct recorder *r, uint64_t events)
{
    record_many(r, events);
    return rat_session_flush(r->session);
}

/* ---------------------------------------------------------------- reading back */

struct lane_tally {
    bool seen;
    uint64_t decoded, lost, chunks, next_sequence, next_event;
    uint64_t labelled[32];    /* sums of labels about whole chunks, by cause */
    uint32_t in_flight;
    struct rat_totals closed; /* of the newest chunk */
    enum rat_reason reasons[8]; /* of the first chunks */
};

struct tally {
    int files, openings, closings, crashes;
    uint64_t session_hi, session_lo, next_session_sequence;
    struct lane_tally lane[RAT_LANES + 1];
    bool any_drops_off; /* opened drops that were not the closed ones before: only allowed across lost files */
};

UNUSED static uint64_t sum_drops(const struct rat_totals *totals)
{
    uint64_t sum = 0;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        sum += totals->drop[cause];
    return sum;
}

UNUSED static void tally_lane_chunk(struct tally *tally, const struct rat_chunk_header *header,
                                    struct rat_decoder *decoder)
{
    struct lane_tally *lane = &tally->lane[header->lane];
    uint64_t expected = lane->seen ? lane->next_sequence : 1;
    if (header->sequence < expected) {
        fprintf(stderr, "lane %u: chunk %" PRIu64 " came again\n", header->lane, header->sequence);
        abort();
    }
    REQUIRE(header->opened.stored >= lane->closed.stored);
    REQUIRE(header->closed.stored == header->opened.stored + header->events);
    if (header->sequence == expected)
        REQUIRE(header->opened.stored == lane->closed.stored);
    lane->lost += header->opened.stored - lane->closed.stored;
    lane->next_event += header->opened.stored - lane->closed.stored;
    if (memcmp(header->opened.drop, lane->closed.drop, sizeof lane->closed.drop) != 0)
        tally->any_drops_off = true;
    for (uint32_t i = 0; i < header->lost_count; i++)
        if (header->lost[i].first_seq != 0 && header->lost[i].cause < 32)
            lane->labelled[header->lost[i].cause] += header->lost[i].count;

    const struct rat_body *body;
    REQUIRE(rat_decode_body(decoder, header, &body) == RAT_OK);
    REQUIRE(body->events == header->events);
    uint64_t ticks = body->base_ticks;
    for (size_t i = 0; i < body->events; i++) {
        ticks += body->gap[i];
        if (body->kind[i] != RAT_EVENT_UNWIND)
            continue;
        if (body->id[i] != (lane->next_event & RAT_EVENT_ID_MAX)) {
            fprintf(stderr, "lane %u, chunk %" PRIu64 ": event %" PRIu64 " is there as %u\n", header->lane,
                    header->sequence, lane->next_event, body->id[i]);
            abort();
        }
        lane->next_event++;
    }
    REQUIRE(body->events == 0 || ticks <= header->end.ticks);
    if (lane->chunks < 8)
        lane->reasons[lane->chunks] = (enum rat_reason)header->reason;
    lane->seen = true;
    lane->chunks++;
    lane->decoded += header->events;
    lane->in_flight += header->in_flight;
    lane->next_sequence = header->sequence + 1;
    lane->closed = header->closed;
}

UNUSED static void tally_file(struct tally *tally, const char *path, struct rat_decoder *decoder)
{
    struct rat_segment_reader *reader;
    REQUIRE(rat_segment_open(path, &reader) == RAT_OK);
    struct rat_read read;
    bool first = true;
    enum rat_reason last = 0;
    for (rat_segment_next(reader, &read); read.kind != RAT_READ_END; rat_segment_next(reader, &read)) {
        REQUIRE(read.kind == RAT_READ_CHUNK);
        const struct rat_chunk_header *header = &read.header;
        if (tally->files == 0 && first) {
            tally->session_hi = header->session_hi;
            tally->session_lo = header->session_lo;
        }
        REQUIRE(header->session_hi == tally->session_hi && header->session_lo == tally->session_lo);
        REQUIRE(first == (header->reason == RAT_REASON_OPENING));
        REQUIRE(first == header->has_info);
        REQUIRE(last != RAT_REASON_CLOSING && last != RAT_REASON_CRASH);
        if (header->lane == 0) {
            REQUIRE(header->sequence > tally->next_session_sequence);
            tally->next_session_sequence = header->sequence;
            tally->openings += header->reason == RAT_REASON_OPENING;
            tally->closings += header->reason == RAT_REASON_CLOSING;
            tally->crashes += header->reason == RAT_REASON_CRASH;
        } else {
            REQUIRE(header->lane <= RAT_LANES);
            tally_lane_chunk(tally, header, decoder);
        }
        last = (enum rat_reason)header->reason;
        first = false;
    }
    tally->files++;
    rat_segment_reader_free(reader);
}

UNUSED static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All published segments of one session in `dir`, in order; aborts on anything that may not be. */
UNUSED static struct tally read_back(const char *dir)
{
    struct tally tally = {0};
    static char *paths[100000];
    size_t count = 0;
    DIR *open_dir = opendir(dir);
    REQUIRE(open_dir != NULL);
    for (struct dirent *entry; (entry = readdir(open_dir)) != NULL;) {
        size_t length = strlen(entry->d_name), want = strlen(RAT_SEGMENT_SUFFIX);
        if (length > want && strcmp(entry->d_name + length - want, RAT_SEGMENT_SUFFIX) == 0)
            REQUIRE(asprintf(&paths[count++], "%s/%s", dir, entry->d_name) > 0);
    }
    closedir(open_dir);
    qsort(paths, count, sizeof *paths, by_name);
    struct rat_decoder *decoder;
    REQUIRE(rat_decoder_new(0, &decoder) == RAT_OK);
    for (size_t i = 0; i < count; i++) {
        tally_file(&tally, paths[i], decoder);
        free(paths[i]);
    }
    rat_decoder_free(decoder);
    return tally;
}

/* Wait, bounded, until the condition holds. */
#define WAIT_FOR(condition)                                                                        \
    do {                                                                                           \
        for (int waited = 0; !(condition); waited++) {                                             \
            REQUIRE(waited < 10000);                                                               \
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);                               \
        }                                                                                          \
    } while (0)

#endif
