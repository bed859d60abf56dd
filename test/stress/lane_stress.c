/* lane_stress - one producer, one serializer; each event's number and time checked in order across drains.
 *
 *   lane_stress [options]
 *     --seconds S        run for S seconds (2)
 *     --flip-hz N        flips a second; 0 = back to back (0)
 *     --fence KIND       membarrier, seq_cst, or none: a membarrier that does nothing (membarrier)
 *     --slot-bytes N     of one slot (65536)
 *     --pin              producer on the first CPU we may use, serializer on the second
 *     --missing-stores   both sides store to lines out of any cache first, so that store buffers are full
 *     --stall            both sides stop now and then at the test points, for longer than a flip takes
 *     --idle-periods N   no threads: an event, N periods with nothing recorded, an event
 *
 * Each attempt has a number; its word's id is the number's low bits, its time a function of the number. Some are rich,
 * some need a gap prefix, a few are refused (dropped for another reason than room). An interval begins with a snapshot
 * that says which attempt comes next. So the checker knows what each word must be, and the accounting must come out
 * exactly: attempts = stored + dropped, and drained + still in the slots = stored.
 *
 * Built with one of RAT_MUTATE_... it must fail. Exit status: 0 all right, 1 wrong, 64 usage, 77 this
 * machine cannot.
 */
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fence.h"
#include "base/testpoint.h"
#include "record/lane.h"

#define RICH_EVERY 61u
#define RICH_WORDS 2u
#define GAP_EVERY 100003u
#define GAP_TICKS (RAT_EVENT_DELTA_MAX + 77)
#define REFUSE_EVERY 400009u        /* attempts */
#define REFUSE_OPENED_EVERY 64u     /* new intervals: refused before anything is in them */
#define KEEP_EVERY 16u              /* drains whose append "fails" and is tried again some periods later */
#define STALL_NS_MAX 300000u        /* a wait gives up well before */
#define PRODUCER_STALL_EVERY 30000u /* test points */
#define SERIALIZER_STALL_EVERY 32u
#define RARE_STALL_EVERY 3u
#define FAR_WORDS (UINT32_C(8) << 20)
#define FAULTS_SHOWN 4u
#define EXIT_USAGE 64
#define EXIT_CANNOT 77

static struct {
    double seconds;
    unsigned flip_hz, idle_periods;
    uint32_t slot_bytes;
    enum rat_fence_kind fence;
    bool pin, missing_stores, stall;
} option = {.seconds = 2, .fence = RAT_FENCE_MEMBARRIER, .slot_bytes = 65536};

static struct rat_lane_head lane;
static struct rat_lane_producer producer;
static struct rat_lane_consumer consumer;
static volatile uint64_t *far_away;
static _Atomic bool stop;

static uint64_t faults;

static __attribute__((format(printf, 1, 2))) void fault(const char *format, ...)
{
    if (faults++ >= FAULTS_SHOWN)
        return;
    va_list arguments;
    va_start(arguments, format);
    fputs("  wrong: ", stdout);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
}

/* ---------------------------------------------------------------- threads */

static __thread uint64_t random_state = 88172645463325252u;
static __thread uint32_t stall_every; /* 0 = this thread never stalls */

static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Installed as rat_test_point. */
static void stall(const char *point)
{
    if (stall_every == 0)
        return;
    bool rare = strcmp(point, "turn.held") == 0 || strcmp(point, "flip.between") == 0; /* once in a flip at most */
    if (random_next() % (rare ? RARE_STALL_EVERY : stall_every) != 0)
        return;
    struct timespec pause = {.tv_nsec = (long)(random_next() % STALL_NS_MAX)};
    nanosleep(&pause, NULL); /* not a spin: with one CPU the other side must run */
}

static void miss_cache(void)
{
    for (int i = 0; i < 3; i++)
        far_away[random_next() % FAR_WORDS] = random_state;
}

/* The nth CPU this process may use. */
static bool pin_to(int nth)
{
    cpu_set_t allowed, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || nth-- > 0)
            continue;
        CPU_SET(cpu, &one);
        return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
    }
    return false;
}

/* ---------------------------------------------------------------- what attempt n looks like */

static uint64_t time_of(uint64_t n)
{
    return 1000 + 3 * n + n / GAP_EVERY * GAP_TICKS;
}

static bool is_rich(uint64_t n)
{
    return n % RICH_EVERY == 0;
}

static uint64_t word_of(uint64_t n)
{
    return is_rich(n) ? rat_event_word(RAT_EVENT_NOTE, 0) : rat_event_word(RAT_EVENT_CALL, n & RAT_EVENT_ID_MAX);
}

static void payload_of(uint64_t n, uint64_t payload[RICH_WORDS])
{
    payload[0] = n;
    payload[1] = ~n;
}

/* ---------------------------------------------------------------- producer */

static uint64_t attempts; /* numbers used; snapshots have none */
static uint64_t stored, dropped;

static void drop(enum rat_drop_cause cause, uint64_t now)
{
    rat_lane_drop(&producer, cause, now);
    dropped++;
}

/* What the recorder does when rat_lane_put said no. */
static void record_slowly(uint64_t n, const uint64_t *payload, uint32_t words, uint64_t now)
{
    for (;;) {
        enum rat_drop_cause cause;
        enum rat_turn turn = rat_lane_turn(&producer, now, &cause);
        if (turn == RAT_TURN_NONE) {
            drop(cause, now);
            return;
        }
        if (turn == RAT_TURN_OPENED) {
            if (random_next() % REFUSE_OPENED_EVERY == 0) {
                drop(RAT_DROP_OUT_OF_MEMORY, now);
                return;
            }
            if (rat_lane_append(&producer, rat_event_word(RAT_EVENT_SNAPSHOT, 0), &n, 1, now) != RAT_APPEND_STORED)
                continue;
            stored++;
        }
        switch (rat_lane_append(&producer, word_of(n), payload, words, now)) {
        case RAT_APPEND_STORED:
            stored++;
            return;
        case RAT_APPEND_FULL:
            drop(RAT_DROP_SLOT_FULL, now);
            return;
        case RAT_APPEND_TURN:
            break;
        }
    }
}

static inline __attribute__((always_inline)) void record_next(const bool strong)
{
    uint64_t n = attempts++, now = time_of(n), payload[RICH_WORDS];
    if (option.missing_stores)
        miss_cache();
    if (is_rich(n)) {
        payload_of(n, payload);
        if (rat_lane_append(&producer, word_of(n), payload, RICH_WORDS, now) == RAT_APPEND_STORED)
            stored++;
        else
            record_slowly(n, payload, RICH_WORDS, now);
    } else if (n % REFUSE_EVERY == REFUSE_EVERY - 1) {
        drop(RAT_DROP_OUT_OF_MEMORY, now);
    } else if (rat_lane_put(&producer, word_of(n), now, strong)) {
        stored++;
    } else {
        record_slowly(n, NULL, 0, now);
    }
}

static void *produce(void *failed)
{
    random_state += 1;
    stall_every = PRODUCER_STALL_EVERY;
    if (option.pin && !pin_to(0))
        *(bool *)failed = true;
    while (!atomic_load_explicit(&stop, memory_order_relaxed))
        for (int i = 0; i < 64; i++) {
            if (producer.strong)
                record_next(true);
            else
                record_next(false);
        }
    return NULL;
}

/* ---------------------------------------------------------------- checker */

static struct {
    uint64_t next;    /* attempt expected */
    uint64_t events;  /* drained, snapshots too */
    uint64_t dropped; /* attempts missing between intervals */
    uint64_t chunks;
} seen;

/* The word at `at` must be attempt seen.next. Words it took, with its gap prefix and payload; 0 = wrong. */
static uint32_t check_event(const struct rat_drain *drain, uint32_t at, uint64_t *time)
{
    uint32_t start = at;
    const uint64_t *words = drain->words;
    uint64_t n = seen.next, payload[RICH_WORDS];
    if (rat_event_kind(words[at]) == RAT_EVENT_GAP) {
        if (drain->count - at < 3)
            return 0;
        *time += words[at + 1];
        at += 2;
    }
    uint64_t expected = word_of(n) | (is_rich(n) ? RICH_WORDS : 0);
    *time += rat_event_delta(words[at]);
    if ((words[at] & ((UINT64_C(1) << RAT_EVENT_DELTA_SHIFT) - 1)) != expected || *time != time_of(n))
        return 0;
    at++;
    if (is_rich(n)) {
        payload_of(n, payload);
        if (drain->count - at < RICH_WORDS || memcmp(&words[at], payload, sizeof payload) != 0)
            return 0;
        at += RICH_WORDS;
    }
    seen.next++;
    seen.events++;
    return at - start;
}

/* An interval begins with a snapshot: the number of its first attempt. */
static bool check_opening(const struct rat_drain *drain, uint64_t *time)
{
    const uint64_t *words = drain->words;
    uint64_t opened_drop = 0;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        opened_drop += drain->head->opened_drop[cause];
    *time = drain->head->base_ticks;
    if (drain->count < 2 || words[0] != (rat_event_word(RAT_EVENT_SNAPSHOT, 0) | 1))
        return false;
    if (words[1] < seen.next || *time != time_of(words[1]))
        return false;
    seen.dropped += words[1] - seen.next;
    seen.next = words[1];
    bool right = drain->head->opened_stored == seen.events && opened_drop == seen.dropped;
    seen.events++;
    return right;
}

static void check_chunk(const struct rat_drain *drain)
{
    uint64_t time, before = seen.events;
    uint32_t at = 2, took = 1;
    seen.chunks++;
#ifdef RAT_MUTATE_EMPTY_FLIPS
    if (drain->count == 0)
        return;
#endif
    if (!check_opening(drain, &time)) {
        fault("chunk %" PRIu64 " (%u words): opening, at attempt %" PRIu64, drain->sequence, drain->count, seen.next);
        return;
    }
    for (; at < drain->count && took > 0; at += took)
        took = check_event(drain, at, &time);
    if (took == 0)
        fault("chunk %" PRIu64 ": word %u of %u is not attempt %" PRIu64, drain->sequence, at, drain->count, seen.next);
    else if (at != drain->count || seen.events - before != drain->events)
        fault("chunk %" PRIu64 ": %u events, counted %" PRIu64, drain->sequence, drain->events, seen.events - before);
}

/* ---------------------------------------------------------------- serializer */

static struct rat_drain kept; /* its append has not returned */
static bool keeping;
static uint64_t flips, giveups;

static void settle(const struct rat_drain *drain)
{
    check_chunk(drain);
    rat_lane_flip_done(&consumer, true);
}

static void settle_kept(void)
{
    if (keeping)
        settle(&kept);
    keeping = false;
}

/* One period. False: nothing happened. */
static bool flip(bool may_keep)
{
    struct rat_anchor anchor = {.ticks = 0};
    if (keeping && random_next() % 4 == 0)
        settle_kept();
    if (option.missing_stores)
        miss_cache();
    if (!rat_lane_flip_begin(&consumer, &anchor))
        return false;
#ifndef RAT_MUTATE_WEAK_SERIALIZER /* there the hold is a release store, and nothing fences */
    if (rat_fence_all(option.fence) != RAT_OK) {
        fault("the fence failed");
        return false;
    }
#endif
    struct rat_drain drain;
    switch (rat_lane_flip_wait(&consumer, &drain)) {
    case RAT_FLIP_BROKEN:
        fault("the lane was disabled, cause %u", lane.disabled_cause);
        return false;
    case RAT_FLIP_PENDING:
        giveups++;
        return true;
    case RAT_FLIP_DRAIN:
        break;
    }
    flips++;
    settle_kept(); /* only a mutation begins a flip while there is one */
    if (may_keep && random_next() % KEEP_EVERY == 0) {
        kept = drain;
        keeping = true;
    } else {
        settle(&drain);
    }
    return true;
}

static void serialize(void)
{
    uint64_t start = rat_clock_ns(CLOCK_MONOTONIC), end = start + (uint64_t)(option.seconds * 1e9), now = start;
    stall_every = SERIALIZER_STALL_EVERY;
    for (uint64_t period = 0; now < end && faults == 0 && lane.drop[RAT_DROP_CONTENDED] == 0; period++) {
        flip(true);
        now = rat_clock_ns(CLOCK_MONOTONIC);
        if (option.flip_hz == 0)
            continue;
        uint64_t due = start + period * 1000000000u / option.flip_hz;
        struct timespec until = {.tv_sec = (time_t)(due / 1000000000u), .tv_nsec = (long)(due % 1000000000u)};
        if (due > now)
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
    stall_every = 0;
}

/* ---------------------------------------------------------------- stop */

/* Events in slots that were not drained. */
static uint64_t in_slots(void)
{
    uint64_t events = 0;
    for (int s = 0; s < 2; s++) {
        uint64_t w = lane.slot[s].w;
        uint16_t ahead = (uint16_t)(rat_w_seq(w) - consumer.sequence);
        events += ahead < 2 ? rat_w_events(w) : 0;
    }
    return events;
}

static void flip_to_the_end(void)
{
    settle_kept();
    for (int i = 0; i < 4 && flip(false); i++)
        ;
}

static void check_totals(void)
{
    uint64_t counted = 0;
    for (int cause = 0; cause < RAT_DROP_CAUSES; cause++)
        counted += lane.drop[cause];
    settle_kept();
    if (seen.events + in_slots() != stored)
        fault("drained %" PRIu64 " + in slots %" PRIu64 " != stored %" PRIu64, seen.events, in_slots(), stored);
    flip_to_the_end();
    if (lane.state != RAT_LANE_OPEN)
        fault("the lane was disabled, cause %u", lane.disabled_cause);
    if (seen.events != stored || in_slots() != 0)
        fault("after stop: drained %" PRIu64 " of %" PRIu64, seen.events, stored);
    if (counted != dropped || rat_lane_stored(&producer) != stored || producer.attempts != stored + dropped)
        fault("attempts %" PRIu64 ", stored %" PRIu64 " (%" PRIu64 "), dropped %" PRIu64 " (%" PRIu64 ")",
              producer.attempts, rat_lane_stored(&producer), stored, counted, dropped);
    if (seen.dropped + (attempts - seen.next) != dropped)
        fault("missing %" PRIu64 " of %" PRIu64 " dropped", seen.dropped + (attempts - seen.next), dropped);
    if (lane.drop[RAT_DROP_CONTENDED] != 0)
        fault("contended: %" PRIu64, lane.drop[RAT_DROP_CONTENDED]);
}

/* All is drained, so there is room. */
static void check_still_records(void)
{
    uint64_t before = stored;
    for (int i = 0; i < 2 * (int)RICH_EVERY && stored == before; i++) /* the first ones may be refused */
        record_next(producer.strong);
    if (stored == before)
        fault("drained, but takes no more events");
    flip_to_the_end();
    if (seen.next != attempts)
        fault("the last event was not drained");
}

/* ---------------------------------------------------------------- main */

static bool run_threads(void)
{
    pthread_t thread;
    bool not_pinned = false;
    if (pthread_create(&thread, NULL, produce, &not_pinned) != 0)
        return false;
    bool pinned = !option.pin || pin_to(1);
    if (pinned)
        serialize();
    atomic_store_explicit(&stop, true, memory_order_relaxed);
    pthread_join(thread, NULL);
    return pinned && !not_pinned;
}

static void run_idle(void)
{
    record_next(producer.strong);
    for (unsigned period = 0; period < option.idle_periods; period++)
        flip(false);
    record_next(producer.strong);
}

static bool parse(int argc, char **argv)
{
    enum { SECONDS, FLIP_HZ, FENCE, SLOT_BYTES, PIN, MISSING, STALL, IDLE };
    static const struct option names[] = {
        {"seconds", 1, NULL, SECONDS},    {"flip-hz", 1, NULL, FLIP_HZ}, {"fence", 1, NULL, FENCE},
        {"slot-bytes", 1, NULL, SLOT_BYTES}, {"pin", 0, NULL, PIN},      {"missing-stores", 0, NULL, MISSING},
        {"stall", 0, NULL, STALL},        {"idle-periods", 1, NULL, IDLE}, {NULL, 0, NULL, 0}};
    for (int name; (name = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (name) {
        case SECONDS: option.seconds = atof(optarg); break;
        case FLIP_HZ: option.flip_hz = (unsigned)atoi(optarg); break;
        case SLOT_BYTES: option.slot_bytes = (uint32_t)atoi(optarg); break;
        case IDLE: option.idle_periods = (unsigned)atoi(optarg); break;
        case PIN: option.pin = true; break;
        case MISSING: option.missing_stores = true; break;
        case STALL: option.stall = true; break;
        case FENCE:
            if (strcmp(optarg, "none") == 0)
                rat_fence_test_skip = 1;
            else if (strcmp(optarg, "seq_cst") == 0)
                option.fence = RAT_FENCE_SEQ_CST;
            else if (strcmp(optarg, "membarrier") != 0)
                return false;
            break;
        default:
            return false;
        }
    }
    return optind == argc && option.slot_bytes >= 64 && option.slot_bytes <= RAT_SLOT_BYTES_MAX;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fputs("lane_stress: wrong option; they stand at the top of lane_stress.c\n", stderr);
        return EXIT_USAGE;
    }
    if (rat_fence_choose(option.fence) != option.fence) {
        puts("no membarrier here");
        return EXIT_CANNOT;
    }
    uint64_t *slots = aligned_alloc(4096, (2 * (size_t)option.slot_bytes + 4095) / 4096 * 4096);
    far_away = option.missing_stores ? calloc(FAR_WORDS, sizeof *far_away) : NULL;
    if (slots == NULL || (option.missing_stores && far_away == NULL))
        return EXIT_CANNOT;
    struct rat_anchor anchor = {.ticks = 0};
    rat_lane_open(&lane, slots, option.slot_bytes, &anchor, &producer, &consumer, option.fence);
    if (option.stall)
        rat_test_point = stall;

    if (option.idle_periods > 0) {
        run_idle();
    } else if (!run_threads()) {
        puts("needs two CPUs");
        return EXIT_CANNOT;
    }
    check_totals();
    if (faults == 0)
        check_still_records();
    printf("%" PRIu64 " attempts, %" PRIu64 " drained, %" PRIu64 " dropped, %" PRIu64 " flips, %" PRIu64
           " waits given up, %" PRIu64 " wrong\n",
           attempts, seen.events, dropped, flips, giveups, faults);
    return faults == 0 ? 0 : 1;
}
