/* encoder_bench.c - what encoding a chunk costs, in ns and bytes per event.
 *
 *   test/bench/encoder [SEED]      builds and runs it
 *
 * real-like: 490 methods in nested calls, each with its own typical time. hard: 3,000 methods drawn at random,
 * log-normal gaps. Both seeded. "columns" is the hand-packed pass over the slot words, "protobuf-c" the same bytes from
 * filled arrays by the library, "chunk" all of rat_encoder_lane_chunk: columns, names, zstd, checks, header.
 * Times are the thread's CPU time, so that a busy machine disturbs them less.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "wire/columns.h"
#include "wire/decoder.h"
#include "wire/encoder.h"
#include "wire/segment.h"
#include "wire/trace.pb-c.h"

#define EVENTS 1000000u
#define ROUNDS 15

static uint64_t random_state;

static uint64_t next_random(void)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static double uniform(void)
{
    return ((double)(next_random() >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(2 * M_PI * uniform());
}

static void must(enum rat_status status, const char *what)
{
    if (status == RAT_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, rat_status_text(status));
    exit(1);
}

/* ---------------------------------------------------------------- slot words */

static uint32_t made;

/* `gap`: cycles since the event before, told in the clock's ticks. */
static void emit(uint64_t *words, enum rat_event_kind kind, uint32_t id, double gap)
{
    static uint64_t cycles;
    uint64_t before = cycles >> RAT_TSC_SHIFT;
    cycles += gap < 1 ? 1 : gap > 1e9 ? (uint64_t)1e9 : (uint64_t)gap;
    if (made < EVENTS)
        words[made++] = rat_event_word(kind, id) | ((cycles >> RAT_TSC_SHIFT) - before) << RAT_EVENT_DELTA_SHIFT;
}

/* Method m calls a fixed handful of others; how often is its habit, give or take. */
static void call(uint64_t *words, uint32_t method, int depth)
{
    double habit = 60 + method * 37 % 200;
    emit(words, RAT_EVENT_CALL, 2 + method, habit * (0.9 + 0.2 * uniform()));
    if (depth < 12) {
        uint32_t children = method * 7919 % 4;
        for (uint32_t i = 0; i < children && made < EVENTS; i++)
            for (uint32_t times = method % 5 == 0 ? 1 + next_random() % 6 : 1; times > 0; times--)
                call(words, (method * 31 + i * 97 + 1) % 490, depth + 1);
    }
    emit(words, RAT_EVENT_RETURN, 0, habit * (0.9 + 0.2 * uniform()));
}

static void make_real(uint64_t *words)
{
    for (made = 0; made < EVENTS;)
        call(words, next_random() % 490, 0);
}

static void make_hard(uint64_t *words)
{
    uint32_t depth = 0;
    for (made = 0; made < EVENTS;) {
        double gap = exp(5 + 2 * normal());
        if (depth == 0 || (depth < 200 && next_random() % 2)) {
            emit(words, RAT_EVENT_CALL, 2 + next_random() % 3000, gap);
            depth++;
        } else {
            emit(words, RAT_EVENT_RETURN, 0, gap);
            depth--;
        }
    }
}

/* ---------------------------------------------------------------- dictionary */

static enum rat_status reserve(void *owner, uint64_t at, uint64_t length)
{
    (void)owner, (void)at, (void)length;
    return RAT_OK;
}

static void make_dictionary(struct rat_dict_view *view)
{
    size_t tables = rat_dict_tables_bytes(NULL), bytes = tables + rat_dict_text_bytes(NULL);
    uint8_t *mapping = calloc(1, bytes);
    struct rat_dict *dict;
    must(mapping != NULL ? RAT_OK : RAT_NO_MEMORY, "mapping");
    must(rat_dict_new(mapping, 0, tables, NULL, reserve, NULL, &dict), "dictionary");
    for (int i = 0; i < 3000; i++) {
        char owner[40], method[40], file[40];
        struct rat_frame_entry frame = {.line = 1 + i % 300, .kind = RAT_FRAME_INSTANCE};
        frame.owner = rat_dict_name(dict, owner, sprintf(owner, "Shop::Model%d", i / 12), true);
        frame.method = rat_dict_name(dict, method, sprintf(method, "method_%d", i % 700), true);
        frame.file = rat_dict_name(dict, file, sprintf(file, "app/models/model%d.rb", i / 12), true);
        if (rat_dict_frame(dict, &frame) == RAT_FRAME_FULL)
            must(RAT_NO_SPACE, "dictionary");
    }
    must(rat_dict_view(mapping, bytes, 0, view), "view");
}

/* ---------------------------------------------------------------- measuring */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct times {
    double ns[ROUNDS];
    int count;
    uint64_t from;
};

static void begin(struct times *times)
{
    times->from = rat_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

static void end(struct times *times)
{
    times->ns[times->count++] = (double)(rat_clock_ns(CLOCK_THREAD_CPUTIME_ID) - times->from) / EVENTS;
}

static void print_times(const char *what, struct times *times, double bytes)
{
    qsort(times->ns, (size_t)times->count, sizeof *times->ns, by_value);
    printf("  %-12s %6.2f ns (best %5.2f, worst %5.2f)  %5.2f bytes per event\n", what, times->ns[times->count / 2],
           times->ns[0], times->ns[times->count - 1], bytes / EVENTS);
}

/* The same columns by the library: arrays first, then pack. */
static size_t pack_by_library(const uint64_t *words, uint64_t *gap, uint32_t *id, uint8_t *kind, uint8_t *out)
{
    Ratrace__V1__Body body = RATRACE__V1__BODY__INIT;
    body.gap = gap;
    body.id = id;
    body.kind.data = kind;
    for (uint32_t i = 0; i < EVENTS; i++) {
        gap[i] = rat_event_delta(words[i]);
        kind[i] = (uint8_t)rat_event_kind(words[i]);
        id[body.n_id] = rat_event_id(words[i]);
        body.n_id += rat_kind_has_id(kind[i]);
    }
    body.n_gap = body.kind.len = EVENTS;
    return ratrace__v1__body__get_packed_size(&body) <= EVENTS * 16u ? ratrace__v1__body__pack(&body, out) : 0;
}

static void measure(const char *name, const uint64_t *words, const struct rat_dict_view *view)
{
    static struct rat_live_head session;
    memcpy(session.sync, RAT_SYNC_CONSTANT "benchmrk", 16);
    struct rat_chunk_info info = {.session = &session, .segment = 1, .lane = 1, .sequence = 1};
    uint64_t *gap = malloc(EVENTS * sizeof *gap);
    uint32_t *id = malloc(EVENTS * sizeof *id);
    uint8_t *kind = malloc(EVENTS), *packed = malloc(EVENTS * 16u);
    struct rat_columns columns;
    struct rat_sent sent;
    struct rat_encoder *encoder;
    struct rat_decoder *decoder;
    struct rat_buffer out;
    struct times hand = {.count = 0}, library = hand, chunk = hand, decode = hand;
    size_t library_bytes = 0;
    must(gap != NULL && id != NULL && kind != NULL && packed != NULL ? RAT_OK : RAT_NO_MEMORY, "arrays");
    must(rat_columns_new(&columns, EVENTS), "columns");
    must(rat_encoder_new(EVENTS, 1, &encoder), "encoder");
    must(rat_decoder_new(0, &decoder), "decoder");
    rat_sent_init(&sent);
    rat_buffer_init(&out, RAT_CHUNK_MAX);
    for (int round = -1; round < ROUNDS; round++) { /* the first warms pages and caches */
        struct times ignored = {.count = 0};
        begin(round < 0 ? &ignored : &hand);
        must(rat_sent_begin_chunk(&sent, view), "marks");
        must(rat_columns_pack(&columns, words, EVENTS, 1, &sent), "columns");
        end(round < 0 ? &ignored : &hand);
        rat_sent_settle(&sent, true);

        begin(round < 0 ? &ignored : &library);
        library_bytes = pack_by_library(words, gap, id, kind, packed);
        end(round < 0 ? &ignored : &library);

        out.length = 0;
        begin(round < 0 ? &ignored : &chunk);
        must(rat_encoder_lane_chunk(encoder, &info, words, EVENTS, EVENTS, 1, view, &out), "chunk");
        rat_encoder_settle(encoder, true);
        end(round < 0 ? &ignored : &chunk);

        struct rat_segment_reader *reader;
        struct rat_read read;
        const struct rat_body *body;
        begin(round < 0 ? &ignored : &decode);
        must(rat_segment_open_bytes(out.bytes, out.length, &reader), "reader");
        rat_segment_next(reader, &read);
        must(rat_decode_body(decoder, &read.header, &body), "decode");
        end(round < 0 ? &ignored : &decode);
        must(body->events == EVENTS ? RAT_OK : RAT_CORRUPT, "decode");
        rat_segment_reader_free(reader);
    }
    printf("%s, %u events, medians of %d\n", name, EVENTS, ROUNDS);
    print_times("columns", &hand, (double)(columns.gap_bytes + columns.id_bytes + columns.events));
    print_times("protobuf-c", &library, (double)library_bytes);
    print_times("chunk", &chunk, (double)out.length);
    print_times("decode", &decode, (double)out.length);
    rat_buffer_free(&out);
    rat_decoder_free(decoder);
    rat_encoder_free(encoder);
    rat_columns_free(&columns);
    rat_sent_free(&sent);
    free(gap), free(id), free(kind), free(packed);
}

int main(int argc, char **argv)
{
    random_state = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    printf("seed %llu\n", (unsigned long long)random_state);
    uint64_t *words = malloc(EVENTS * sizeof *words);
    struct rat_dict_view view;
    must(words != NULL ? RAT_OK : RAT_NO_MEMORY, "words");
    make_dictionary(&view);
    make_real(words);
    measure("real-like", words, &view);
    make_hard(words);
    measure("hard", words, &view);
    free(words);
    return 0;
}
