/* Reading segments: whole, torn, damaged, forged. Writing them is in segment_writer_test.c. */
#include "wire_support.h"

#include <zstd.h>

#include "../golden/scenes.h"
#include "wire/header_encoder.h"

#define MEMORY_MAX (1u << 20)

static struct rat_buffer segment;
static struct rat_decoder *decoder;

static int open_all(void **state)
{
    (void)state;
    rat_buffer_init(&segment, 1 << 24);
    return rat_decoder_new(MEMORY_MAX, &decoder) != RAT_OK;
}

static int close_all(void **state)
{
    (void)state;
    rat_buffer_free(&segment);
    rat_decoder_free(decoder);
    return 0;
}

/* What a walk over a file saw. */
struct walk {
    size_t chunks, unreadable, bodies, skips, torn;
    uint64_t skipped_bytes, torn_bytes, last_end;
    size_t known; /* chunks of the session "goldrush" */
    uint64_t sequences[64];
    uint8_t nonces[64];
};

/* Reads everything, and holds the reader to its word: what it returns lies side by side and covers all. */
static struct walk walk_bytes(const uint8_t *bytes, size_t length)
{
    struct walk walk = {.chunks = 0};
    struct guarded input = guard(bytes, length);
    struct rat_segment_reader *reader;
    assert_int_equal(rat_segment_open_bytes(input.bytes, length, &reader), RAT_OK);
    uint64_t at = 0;
    for (;;) {
        static struct rat_read read;
        rat_segment_next(reader, &read);
        assert_int_equal(read.at, at);
        if (read.kind == RAT_READ_END)
            break;
        assert_true(read.length > 0 && read.length <= length - at);
        at += read.length;
        if (read.kind == RAT_READ_CHUNK) {
            const struct rat_body *body;
            walk.bodies += rat_decode_body(decoder, &read.header, &body) == RAT_OK;
            walk.sequences[walk.chunks % 64] = read.header.sequence;
            walk.nonces[walk.chunks % 64] = read.header.sync[8];
            walk.chunks++;
            walk.last_end = at;
        }
        walk.unreadable += read.kind == RAT_READ_UNREADABLE;
        walk.skips += read.kind == RAT_READ_SKIPPED;
        walk.skipped_bytes += read.kind == RAT_READ_SKIPPED ? read.length : 0;
        walk.torn += read.kind == RAT_READ_TORN;
        walk.torn_bytes += read.kind == RAT_READ_TORN ? read.length : 0;
    }
    assert_int_equal(at, length);
    rat_segment_reader_free(reader);
    unguard(&input);
    return walk;
}

static struct walk walk_segment(void)
{
    return walk_bytes(segment.bytes, segment.length);
}

/* Where the entries of the segment end. */
static size_t entry_ends(size_t *ends)
{
    struct rat_segment_reader *reader;
    struct rat_read read;
    size_t count = 0;
    assert_int_equal(rat_segment_open_bytes(segment.bytes, segment.length, &reader), RAT_OK);
    for (rat_segment_next(reader, &read); read.kind != RAT_READ_END; rat_segment_next(reader, &read))
        ends[count++] = (size_t)(read.at + read.length);
    rat_segment_reader_free(reader);
    return count;
}

static void golden_segments_are_made_again_to_the_byte(void **state)
{
    (void)state;
    for (int i = 0; i < SCENES; i++) {
        char path[256];
        snprintf(path, sizeof path, "../golden/%s.ratrace", scene_names[i]);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        static uint8_t bytes[1 << 16];
        size_t length = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        segment.length = 0;
        scene_build(i, &segment);
        struct walk old = walk_bytes(bytes, length), now = walk_segment();
        assert_memory_equal(&old.chunks, &now.chunks, sizeof old.chunks);
        assert_int_equal(old.bodies, old.chunks);
        assert_int_equal(now.bodies, now.chunks);
        if (strcmp(scene_names[i], "lost") == 0 || ZSTD_versionNumber() == GOLDEN_ZSTD) {
            assert_int_equal(length, segment.length);
            assert_memory_equal(bytes, segment.bytes, length);
        }
    }
}

static void a_whole_segment_is_read_chunk_by_chunk(void **state)
{
    (void)state;
    scene_build(1, &segment);
    struct walk walk = walk_segment();
    assert_int_equal(walk.chunks, 4);
    assert_int_equal(walk.bodies, 4);
    assert_int_equal(walk.skips + walk.torn + walk.unreadable, 0);
}

static void an_empty_file_ends_at_once(void **state)
{
    (void)state;
    assert_int_equal(walk_bytes((const uint8_t *)"", 0).chunks, 0);
}

static void concatenated_segments_are_one(void **state)
{
    (void)state;
    scene_build(0, &segment);
    scene_build(3, &segment);
    scene_build(1, &segment);
    struct walk walk = walk_segment();
    assert_int_equal(walk.chunks, 3 + 3 + 4);
    assert_int_equal(walk.bodies, walk.chunks);
    assert_int_equal(walk.skips, 0);
}

static void a_segment_cut_anywhere_ends_cleanly(void **state)
{
    (void)state;
    for (int i = 0; i < SCENES; i++) {
        segment.length = 0;
        scene_build(i, &segment);
        size_t ends[16], count = entry_ends(ends);
        for (size_t cut = 0; cut < segment.length; cut++) {
            struct walk walk = walk_bytes(segment.bytes, cut);
            size_t whole = 0;
            while (whole < count && ends[whole] <= cut)
                whole++;
            uint64_t end = whole > 0 ? ends[whole - 1] : 0;
            assert_int_equal(walk.chunks, whole);
            assert_int_equal(walk.bodies, whole);
            assert_int_equal(walk.skips, 0);
            assert_int_equal(walk.torn_bytes, cut - end);
            assert_int_equal(walk.torn, cut != end);
        }
    }
}

static void any_byte_flipped_costs_at_most_its_own_chunk(void **state)
{
    (void)state;
    for (int i = 0; i < SCENES; i++) {
        segment.length = 0;
        scene_build(i, &segment);
        size_t chunks = walk_segment().chunks;
        for (size_t at = 0; at < segment.length; at++)
            for (unsigned flip = 1; flip < 256; flip = flip == 1 ? 0x80 : flip == 0x80 ? 0xFF : 256) {
                segment.bytes[at] ^= (uint8_t)flip;
                struct walk walk = walk_segment();
                segment.bytes[at] ^= (uint8_t)flip;
                assert_true(walk.bodies + 1 >= chunks);
                assert_true(walk.chunks <= chunks);
            }
    }
}

static void a_flipped_outer_length_costs_nothing(void **state)
{
    (void)state;
    scene_build(0, &segment);
    size_t ends[16];
    entry_ends(ends);
    for (size_t i = 0; i < 3; i++) {
        size_t at = (i > 0 ? ends[i - 1] : 0) + 1;
        segment.bytes[at] ^= 1;
        struct walk walk = walk_segment();
        segment.bytes[at] ^= 1;
        assert_int_equal(walk.bodies, 3);
        assert_int_equal(walk.skipped_bytes, 3); /* tag and two bytes of length */
    }
}

static void a_range_of_zeros_costs_only_what_it_touches(void **state)
{
    (void)state;
    static const size_t sizes[] = {2, 16, 64, 300};
    for (int i = 0; i < SCENES; i++) {
        segment.length = 0;
        scene_build(i, &segment);
        size_t ends[16], count = entry_ends(ends);
        uint8_t *copy = malloc(segment.length);
        assert_non_null(copy);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t at = 0; at + sizes[s] <= segment.length; at += 7) {
                memcpy(copy, segment.bytes, segment.length);
                memset(copy + at, 0, sizes[s]);
                size_t touched = 0;
                for (size_t e = 0; e < count; e++)
                    touched += ends[e] > at && (e > 0 ? ends[e - 1] : 0) < at + sizes[s];
                assert_true(walk_bytes(copy, segment.length).bodies + touched >= count);
            }
        free(copy);
    }
}

static void zeros_behind_the_last_chunk_are_damage(void **state)
{
    (void)state;
    static const uint8_t zeros[4096];
    scene_build(0, &segment);
    assert_int_equal(rat_buffer_append(&segment, zeros, sizeof zeros), RAT_OK);
    struct walk walk = walk_segment();
    assert_int_equal(walk.chunks, 3);
    assert_int_equal(walk.skipped_bytes, sizeof zeros);
    assert_int_equal(walk.torn, 0);
}

static void bytes_lost_inside_a_body_do_not_take_the_next_chunk(void **state)
{
    (void)state;
    scene_build(2, &segment);
    size_t ends[16], count = entry_ends(ends);
    assert_int_equal(count, 3);
    size_t hole = ends[1] - 400;
    memmove(segment.bytes + hole, segment.bytes + hole + 100, segment.length - hole - 100);
    struct walk walk = walk_bytes(segment.bytes, segment.length - 100);
    assert_int_equal(walk.chunks, 3); /* the header of the damaged one still accounts */
    assert_int_equal(walk.bodies, 2);
    assert_int_equal(walk.skips, 0);
}

static void a_lost_chunk_in_the_middle_leaves_no_trace_but_its_number(void **state)
{
    (void)state;
    scene_build(1, &segment);
    size_t ends[16];
    entry_ends(ends);
    memmove(segment.bytes + ends[0], segment.bytes + ends[1], segment.length - ends[1]);
    struct walk walk = walk_bytes(segment.bytes, segment.length - (ends[1] - ends[0]));
    assert_int_equal(walk.bodies, 3);
    assert_int_equal(walk.skips, 0);
}

static void ten_thousand_random_corruptions_do_no_harm(void **state)
{
    (void)state;
    uint64_t random = take_seed("random corruptions");
    struct rat_buffer good;
    rat_buffer_init(&good, 1 << 20);
    for (int i = 0; i < SCENES; i++)
        scene_build(i, &good);
    for (int round = 0; round < 10000; round++) {
        segment.length = 0;
        assert_int_equal(rat_buffer_append(&segment, good.bytes, good.length), RAT_OK);
        for (uint64_t n = 1 + next_random(&random) % 5; n > 0; n--) {
            size_t at = next_random(&random) % segment.length;
            size_t left = segment.length - at;
            size_t size = 1 + next_random(&random) % (left < 600 ? left : 600);
            switch (next_random(&random) % 5) {
            case 0: /* noise */
                for (size_t i = 0; i < size; i++)
                    segment.bytes[at + i] = (uint8_t)next_random(&random);
                break;
            case 1: /* one bit */
                segment.bytes[at] ^= (uint8_t)(1u << next_random(&random) % 8);
                break;
            case 2: /* a hole */
                if (size == segment.length)
                    break;
                memmove(segment.bytes + at, segment.bytes + at + size, left - size);
                segment.length -= size;
                break;
            case 3: /* a piece of elsewhere */
                memmove(segment.bytes + at, segment.bytes + next_random(&random) % (segment.length - size + 1), size);
                break;
            case 4: /* a cut */
                segment.length = at > 0 ? at : 1;
                break;
            }
        }
        (void)walk_segment();
    }
    rat_buffer_free(&good);
}

/* ---------------------------------------------------------------- forged chunks */

/* A chunk whose body is stored as given. */
static void append_stored(const char *nonce, uint64_t sequence, const uint8_t *bytes, size_t length)
{
    struct rat_live_head session;
    scene_session(&session);
    memcpy(session.sync + 8, nonce, 8);
    const struct rat_chunk_info info = {.session = &session, .segment = 1, .lane = 1, .sequence = sequence};
    const struct rat_chunk_body body = {.bytes = bytes, .length = length, .raw_length = length, .codec = RAT_CODEC_STORED};
    static uint8_t header[RAT_CHUNK_HEADER_MAX];
    size_t header_bytes;
    assert_int_equal(rat_encode_header(&info, &body, header, &header_bytes), RAT_OK);
    uint8_t outer[8] = {0x0A};
    size_t outer_bytes = 1;
    size_t left = header_bytes + length;
    for (; left > 0x7F; left >>= 7)
        outer[outer_bytes++] = (uint8_t)(left | 0x80);
    outer[outer_bytes++] = (uint8_t)left;
    assert_int_equal(rat_buffer_append(&segment, outer, outer_bytes), RAT_OK);
    assert_int_equal(rat_buffer_append(&segment, header, header_bytes), RAT_OK);
    assert_int_equal(rat_buffer_append(&segment, bytes, length), RAT_OK);
}

static void whole_segments_inside_text_are_text(void **state)
{
    (void)state;
    struct rat_buffer inner;
    rat_buffer_init(&inner, 1 << 16);
    scene_build(0, &inner);
    append_stored("stranger", 1, inner.bytes, inner.length);
    append_stored("stranger", 2, inner.bytes, inner.length);
    struct walk walk = walk_segment();
    assert_int_equal(walk.chunks, 2);
    assert_int_equal(walk.sequences[1], 2);
    rat_buffer_free(&inner);
}

static void whole_segments_inside_the_text_of_a_damaged_chunk_are_still_text(void **state)
{
    (void)state;
    struct rat_buffer inner;
    rat_buffer_init(&inner, 1 << 16);
    scene_build(0, &inner);
    append_stored("stranger", 1, (const uint8_t *)"", 0);
    size_t damaged = segment.length;
    append_stored("stranger", 2, inner.bytes, inner.length);
    append_stored("stranger", 3, (const uint8_t *)"", 0);
    for (size_t at = damaged; at < damaged + 60; at++) {
        segment.bytes[at] ^= 0x55;
        struct walk walk = walk_segment();
        segment.bytes[at] ^= 0x55;
        for (size_t i = 0; i < walk.chunks; i++)
            assert_int_equal(walk.nonces[i], 's');
        assert_true(walk.chunks >= 2);
        assert_int_equal(walk.sequences[walk.chunks - 1], 3);
    }
    rat_buffer_free(&inner);
}

static void markers_inside_the_lost_part_of_a_body_are_not_believed(void **state)
{
    (void)state;
    uint8_t text[500];
    memset(text, 'x', sizeof text);
    memcpy(text + 100, "\x0A\x10" RAT_SYNC_CONSTANT "stranger", 18); /* its own marker, but no header behind it */
    append_stored("stranger", 1, text, sizeof text);
    segment.bytes[segment.length - 1] ^= 1;
    segment.length -= 50;
    append_stored("stranger", 2, text, sizeof text);
    struct walk walk = walk_segment();
    assert_int_equal(walk.chunks, 2);
    assert_int_equal(walk.skips, 0);
}

static void another_session_behind_damage_is_found(void **state)
{
    (void)state;
    append_stored("stranger", 1, (const uint8_t *)"", 0);
    size_t damaged = segment.length;
    append_stored("stranger", 2, (const uint8_t *)"", 0);
    segment.bytes[damaged + 30] ^= 1;
    size_t behind = segment.length;
    scene_build(0, &segment);
    struct walk walk = walk_segment();
    assert_int_equal(walk.chunks, 4);
    assert_int_equal(walk.skips, 1);
    assert_int_equal(walk.skipped_bytes, behind - damaged); /* tag and length of the next are no damage */
}

static void a_chunk_that_needs_an_unknown_feature_is_unreadable_but_there(void **state)
{
    (void)state;
    append_stored("stranger", 1, (const uint8_t *)"future", 6);
    /* `requires` is not written when 0, so put it in behind `size`: sizes grow by 2, and the check is made again */
    size_t outer = 2, field = outer + 18 + 5;
    assert_true(segment.bytes[1] < 0x7E); /* the length takes one byte */
    assert_int_equal(segment.bytes[field], 0x21); /* session_hi */
    assert_int_equal(rat_buffer_append(&segment, "\0\0", 2), RAT_OK);
    memmove(segment.bytes + field + 2, segment.bytes + field, segment.length - field - 2);
    memcpy(segment.bytes + field, "\x18\x01", 2);
    segment.bytes[1] += 2;
    segment.bytes[outer + 19] += 2;
    size_t check_at = segment.length - 6 - 3 - 6;
    assert_int_equal(segment.bytes[check_at], 0xF5);
    uint32_t check = rat_check_crc32c(segment.bytes + outer, check_at - outer);
    memcpy(segment.bytes + check_at + 2, &check, 4);
    append_stored("stranger", 2, (const uint8_t *)"", 0);
    struct walk walk = walk_segment();
    assert_int_equal(walk.unreadable, 1);
    assert_int_equal(walk.chunks, 1);
    assert_int_equal(walk.skips, 0);
}

/* Hundreds of markers, each the beginning of a header that reaches to one and the same wrong check: reading them all is
 * quadratic. The reader gives up, and so does not find the chunk behind them. */
static void a_file_made_to_cost_time_is_given_up(void **state)
{
    (void)state;
    enum { PIECE = 23, PIECES = 700, BLOCK = PIECE * PIECES + 6 };
    static uint8_t block[BLOCK];
    memcpy(block + BLOCK - 6, "\xF5\x01mine", 6);
    for (size_t i = 0; i < PIECES; i++) {
        uint32_t left = (uint32_t)(BLOCK - i * PIECE);
        memcpy(block + i * PIECE, "\x0A\x10" RAT_SYNC_CONSTANT "stranger\x15", 19);
        memcpy(block + i * PIECE + 19, &left, sizeof left);
    }
    append_stored("stranger", 1, (const uint8_t *)"", 0);
    assert_int_equal(rat_buffer_append(&segment, block, BLOCK), RAT_OK);
    append_stored("stranger", 2, (const uint8_t *)"", 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(rat_buffer_append(&segment, block, BLOCK), RAT_OK);
    append_stored("stranger", 3, (const uint8_t *)"", 0);
    assert_int_equal(walk_segment().chunks, 1);
}

static void markers_of_no_chunk_are_stepped_over(void **state)
{
    (void)state;
    append_stored("stranger", 1, (const uint8_t *)"", 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(rat_buffer_append(&segment, "\x0A\x10" RAT_SYNC_CONSTANT "stranger", 18), RAT_OK);
    append_stored("stranger", 2, (const uint8_t *)"", 0);
    struct walk walk = walk_segment();
    assert_int_equal(walk.chunks, 2);
    assert_int_equal(walk.skipped_bytes, 1800);
}

static void memory_for_a_body_is_bounded(void **state)
{
    (void)state;
    size_t length = 4u << 20;
    uint8_t *raw = calloc(1, length), *packed = malloc(length);
    assert_non_null(raw);
    assert_non_null(packed);
    size_t size = ZSTD_compress(packed, length, raw, length, 1);
    assert_true(size < 1000);
    const struct rat_chunk_header header = {
        .codec = RAT_CODEC_ZSTD,
        .raw_bytes = (uint32_t)length,
        .body_bytes = (uint32_t)size,
        .body_check = rat_check_xxh3(packed, size),
        .body = packed,
    };
    const struct rat_body *body;
    assert_int_equal(rat_decode_body(decoder, &header, &body), RAT_TOO_BIG); /* MEMORY_MAX is 1 MiB */
    free(raw);
    free(packed);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(golden_segments_are_made_again_to_the_byte),
        TEST(a_whole_segment_is_read_chunk_by_chunk),
        TEST(an_empty_file_ends_at_once),
        TEST(concatenated_segments_are_one),
        TEST(a_segment_cut_anywhere_ends_cleanly),
        TEST(any_byte_flipped_costs_at_most_its_own_chunk),
        TEST(a_flipped_outer_length_costs_nothing),
        TEST(a_range_of_zeros_costs_only_what_it_touches),
        TEST(zeros_behind_the_last_chunk_are_damage),
        TEST(bytes_lost_inside_a_body_do_not_take_the_next_chunk),
        TEST(a_lost_chunk_in_the_middle_leaves_no_trace_but_its_number),
        TEST(ten_thousand_random_corruptions_do_no_harm),
        TEST(whole_segments_inside_text_are_text),
        TEST(whole_segments_inside_the_text_of_a_damaged_chunk_are_still_text),
        TEST(markers_inside_the_lost_part_of_a_body_are_not_believed),
        TEST(another_session_behind_damage_is_found),
        TEST(a_chunk_that_needs_an_unknown_feature_is_unreadable_but_there),
        TEST(a_file_made_to_cost_time_is_given_up),
        TEST(markers_of_no_chunk_are_stepped_over),
        TEST(memory_for_a_body_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
