#include "wire_support.h"

#include <zstd.h>

#include "wire/trace.pb-c.h"

/* A chunk made field by field, so that any of it can be wrong. */
struct forged {
    Ratrace__V1__Chunk chunk;
    uint8_t sync[16];
    uint8_t body[1 << 16];
    size_t body_bytes;
    bool keep_size, keep_body_bytes, keep_body_check, keep_raw_bytes; /* as the test set them */
    uint32_t check_off;                                               /* added to header_check */
    size_t body_claim;                                                /* added to the body field's length */
    uint8_t tail[64];                                                 /* behind the body */
    size_t tail_bytes;
};

static struct forged forged;
static struct rat_decoder *decoder;
static Ratrace__V1__Body body;

static int open_all(void **state)
{
    (void)state;
    memset(&forged, 0, sizeof forged);
    ratrace__v1__chunk__init(&forged.chunk);
    memcpy(forged.sync, RAT_SYNC_CONSTANT "noncence", 16);
    forged.chunk.sync = (ProtobufCBinaryData){16, forged.sync};
    forged.chunk.session_hi = 1;
    forged.chunk.session_lo = 2;
    forged.chunk.lane = 1;
    forged.chunk.sequence = 1;
    forged.chunk.codec = RATRACE__V1__CODEC__CODEC_STORED;
    ratrace__v1__body__init(&body);
    return rat_decoder_new(1 << 20, &decoder) != RAT_OK;
}

static int close_all(void **state)
{
    (void)state;
    rat_decoder_free(decoder);
    return 0;
}

static void put_body(const void *bytes, size_t length)
{
    assert_true(length <= sizeof forged.body);
    memcpy(forged.body, bytes, length);
    forged.body_bytes = length;
}

/* `body` as the test filled it. */
static void put_message(void)
{
    uint8_t *packed = malloc(ratrace__v1__body__get_packed_size(&body) + 1);
    assert_non_null(packed);
    put_body(packed, ratrace__v1__body__pack(&body, packed));
    free(packed);
}

static void put_zstd(const void *raw, size_t length, int checksum)
{
    ZSTD_CCtx *zstd = ZSTD_createCCtx();
    assert_non_null(zstd);
    ZSTD_CCtx_setParameter(zstd, ZSTD_c_checksumFlag, checksum);
    size_t size = ZSTD_compress2(zstd, forged.body, sizeof forged.body, raw, length);
    assert_false(ZSTD_isError(size));
    ZSTD_freeCCtx(zstd);
    forged.body_bytes = size;
    forged.chunk.codec = RATRACE__V1__CODEC__CODEC_ZSTD;
    forged.chunk.raw_bytes = (uint32_t)length;
    forged.keep_raw_bytes = true;
}

static size_t seal(uint8_t *to)
{
    Ratrace__V1__Chunk *chunk = &forged.chunk;
    if (!forged.keep_body_bytes)
        chunk->body_bytes = (uint32_t)forged.body_bytes;
    if (!forged.keep_raw_bytes)
        chunk->raw_bytes = (uint32_t)forged.body_bytes;
    if (!forged.keep_body_check)
        chunk->body_check = rat_check_xxh3(forged.body, forged.body_bytes);
    if (!forged.keep_size)
        chunk->size = 1;
    uint8_t head[2048];
    size_t length = ratrace__v1__chunk__get_packed_size(chunk), size_bytes = 1;
    const size_t claimed = forged.body_bytes + forged.body_claim;
    for (size_t left = claimed; left > 0x7F; left >>= 7)
        size_bytes++;
    if (!forged.keep_size)
        chunk->size = (uint32_t)(length + 6 + 2 + size_bytes + forged.body_bytes + forged.tail_bytes);
    assert_true(length <= sizeof head);
    ratrace__v1__chunk__pack(chunk, head);
    uint8_t *at = to;
    memcpy(at, head, length);
    at += length;
    uint32_t check = rat_check_crc32c(head, length) + forged.check_off;
    memcpy(at, (uint8_t[]){0xF5, 1, (uint8_t)check, (uint8_t)(check >> 8), (uint8_t)(check >> 16), (uint8_t)(check >> 24),
                           0xFA, 1},
           8);
    at += 8;
    for (size_t left = claimed, i = size_bytes; i > 0; i--, left >>= 7)
        *at++ = (uint8_t)((left & 0x7F) | (i > 1 ? 0x80 : 0));
    memcpy(at, forged.body, forged.body_bytes);
    at += forged.body_bytes;
    memcpy(at, forged.tail, forged.tail_bytes);
    return (size_t)(at + forged.tail_bytes - to);
}

static struct rat_chunk_header header;

static enum rat_status header_status(void)
{
    static uint8_t bytes[sizeof forged.body + 4096];
    size_t length = seal(bytes);
    struct guarded input = guard(bytes, length);
    enum rat_status status = rat_decode_header(input.bytes, length, &header);
    unguard(&input);
    return status;
}

static const struct rat_body *decoded;

/* Header must hold; the body's status. What `decoded` points to may lie in the input, hence the input stays. */
static enum rat_status body_status(void)
{
    static uint8_t bytes[sizeof forged.body + 4096];
    static struct guarded input;
    if (input.map != NULL)
        unguard(&input);
    size_t length = seal(bytes);
    input = guard(bytes, length);
    assert_int_equal(rat_decode_header(input.bytes, length, &header), RAT_OK);
    return rat_decode_body(decoder, &header, &decoded);
}

/* ---------------------------------------------------------------- header */

static void a_forged_chunk_holds_as_it_is(void **state)
{
    (void)state;
    assert_int_equal(body_status(), RAT_OK);
    assert_int_equal(decoded->events, 0);
}

static void a_wrong_header_check_is_corrupt(void **state)
{
    (void)state;
    forged.check_off = 1;
    assert_int_equal(header_status(), RAT_CORRUPT);
}

static void a_wrong_size_is_corrupt(void **state)
{
    (void)state;
    forged.keep_size = true;
    forged.chunk.size = 12345;
    assert_int_equal(header_status(), RAT_CORRUPT);
}

static void a_body_of_another_length_is_corrupt(void **state)
{
    (void)state;
    put_body("xyz", 3);
    forged.keep_body_bytes = true;
    forged.chunk.body_bytes = 2;
    assert_int_equal(header_status(), RAT_CORRUPT);
}

static void a_longer_sync_is_corrupt(void **state)
{
    (void)state;
    forged.chunk.sync.len = 15;
    assert_int_equal(header_status(), RAT_CORRUPT);
}

static void an_unknown_required_feature_is_unsupported_and_still_accounted(void **state)
{
    (void)state;
    forged.chunk.requires = 4;
    forged.chunk.events = 99;
    put_body("from the future", 15);
    assert_int_equal(header_status(), RAT_UNSUPPORTED);
    assert_int_equal(header.events, 99);
    assert_int_equal(rat_decode_body(decoder, &header, &decoded), RAT_UNSUPPORTED);
}

static void causes_of_a_later_version_are_summed_up(void **state)
{
    (void)state;
    Ratrace__V1__Totals totals = RATRACE__V1__TOTALS__INIT;
    Ratrace__V1__Drop drops[3] = {RATRACE__V1__DROP__INIT, RATRACE__V1__DROP__INIT, RATRACE__V1__DROP__INIT};
    Ratrace__V1__Drop *pointers[] = {&drops[0], &drops[1], &drops[2]};
    drops[0].cause = (Ratrace__V1__Cause)1000;
    drops[0].count = 5;
    drops[1].cause = (Ratrace__V1__Cause)-1;
    drops[1].count = 6;
    drops[2].cause = RATRACE__V1__CAUSE__CAUSE_SLOT_FULL;
    drops[2].count = 7;
    totals.n_drop = 3;
    totals.drop = pointers;
    forged.chunk.closed = &totals;
    assert_int_equal(header_status(), RAT_OK);
    assert_int_equal(header.closed.drop[0], 11);
    assert_int_equal(header.closed.drop[RAT_DROP_SLOT_FULL], 7);
}

static void fields_of_a_later_version_behind_the_body_are_stepped_over(void **state)
{
    (void)state;
    memcpy(forged.tail, "\x80\x02\x05\x8A\x02\x03" "abc", 9); /* 32: 5, 33: "abc" */
    forged.tail_bytes = 9;
    assert_int_equal(header_status(), RAT_OK);
}

static void a_second_body_is_corrupt(void **state)
{
    (void)state;
    memcpy(forged.tail, "\xFA\x01\x00", 3);
    forged.tail_bytes = 3;
    assert_int_equal(header_status(), RAT_CORRUPT);
}

static void a_body_that_reaches_behind_the_chunk_is_corrupt(void **state)
{
    (void)state;
    put_body("xyz", 3);
    forged.body_claim = 1;
    forged.keep_body_bytes = true;
    forged.chunk.body_bytes = 4;
    assert_int_equal(header_status(), RAT_CORRUPT);
}

static void a_field_whose_length_wraps_around_is_corrupt(void **state)
{
    (void)state;
    /* behind the sync, a field of 2^64 - 11 bytes: tag and length are 11, so the next one would be itself */
    static const char bytes[] = "\x0A\x10" RAT_SYNC_CONSTANT "noncence\x52\xF5\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01";
    struct guarded input = guard(bytes, sizeof bytes - 1);
    assert_int_equal(rat_decode_header(input.bytes, sizeof bytes - 1, &header), RAT_CORRUPT);
    unguard(&input);
}

static void a_checked_field_behind_the_check_is_corrupt(void **state)
{
    (void)state;
    memcpy(forged.tail, "\x60\x05", 2); /* events = 5 */
    forged.tail_bytes = 2;
    assert_int_equal(header_status(), RAT_CORRUPT);
}

static void long_text_in_the_session_is_cut(void **state)
{
    (void)state;
    Ratrace__V1__Session info = RATRACE__V1__SESSION__INIT;
    char text[301];
    memset(text, 'x', 300);
    text[300] = '\0';
    info.service = info.host = info.ruby = info.recorder = text;
    info.parent_session = (ProtobufCBinaryData){5, (uint8_t *)text};
    forged.chunk.info = &info;
    assert_int_equal(header_status(), RAT_OK);
    assert_int_equal(strlen(header.info.service), sizeof header.info.service - 1);
    assert_int_equal(strlen(header.info.recorder), sizeof header.info.recorder - 1);
    assert_int_equal(header.info.parent_hi, 0);
}

static void tags_that_do_not_fit_are_left_out(void **state)
{
    (void)state;
    static char longest[RAT_TAGS_BYTES];
    memset(longest, 'x', sizeof longest - 3);
    Ratrace__V1__Tag tags[4], *pointers[4];
    const char *const texts[4][2] = {{"a", longest}, {"", "b"}, {"c", ""}, {"d", "e"}};
    Ratrace__V1__Session info = RATRACE__V1__SESSION__INIT;
    for (int i = 0; i < 4; i++) {
        ratrace__v1__tag__init(&tags[i]);
        tags[i].name = (char *)texts[i][0];
        tags[i].text = (char *)texts[i][1];
        pointers[i] = &tags[i];
    }
    info.tag = pointers;
    info.n_tag = 4;
    forged.chunk.info = &info;
    assert_int_equal(header_status(), RAT_OK);
    const char *name, *text;
    size_t at = 0;
    assert_true(rat_tags_next(header.info.tags, &at, &name, &text)); /* fills the block */
    assert_string_equal(text, longest);
    assert_false(rat_tags_next(header.info.tags, &at, &name, &text));

    longest[sizeof longest - 4] = '\0'; /* one byte less: still no other fits */
    assert_int_equal(header_status(), RAT_OK);
    at = 0;
    assert_true(rat_tags_next(header.info.tags, &at, &name, &text));
    assert_false(rat_tags_next(header.info.tags, &at, &name, &text));

    longest[0] = '\0';
    assert_int_equal(header_status(), RAT_OK);
    assert_memory_equal(header.info.tags, "a\0\0c\0\0d\0e\0", 11);
}

static void every_shorter_input_is_corrupt(void **state)
{
    (void)state;
    static uint8_t bytes[sizeof forged.body + 4096];
    put_body("body", 4);
    size_t length = seal(bytes);
    for (size_t cut = 0; cut < length; cut++) {
        struct guarded input = guard(bytes, cut);
        assert_int_equal(rat_decode_header(input.bytes, cut, &header), RAT_CORRUPT);
        unguard(&input);
    }
}

/* ---------------------------------------------------------------- the body's frame */

static void a_wrong_body_check_is_corrupt(void **state)
{
    (void)state;
    forged.keep_body_check = true;
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void an_unknown_codec_is_unsupported(void **state)
{
    (void)state;
    forged.chunk.codec = (Ratrace__V1__Codec)3;
    assert_int_equal(body_status(), RAT_UNSUPPORTED);
    forged.chunk.codec = RATRACE__V1__CODEC__CODEC_UNSPECIFIED;
    assert_int_equal(body_status(), RAT_UNSUPPORTED);
}

static void a_stored_body_of_another_raw_length_is_corrupt(void **state)
{
    (void)state;
    forged.keep_raw_bytes = true;
    forged.chunk.raw_bytes = 1;
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void a_raw_length_past_the_limit_is_too_big(void **state)
{
    (void)state;
    forged.keep_raw_bytes = true;
    forged.chunk.raw_bytes = RAT_CHUNK_RAW_MAX + 1;
    assert_int_equal(body_status(), RAT_TOO_BIG);
}

static void a_raw_length_past_the_memory_limit_is_too_big(void **state)
{
    (void)state;
    static uint8_t zeros[2 << 20];
    put_zstd(zeros, sizeof zeros, 1);
    assert_int_equal(body_status(), RAT_TOO_BIG);
}

static void more_events_than_raw_bytes_are_corrupt(void **state)
{
    (void)state;
    forged.chunk.events = 1;
    assert_int_equal(body_status(), RAT_CORRUPT);
}

/* 16 bytes of an unknown field of Body, so that the raw bytes are a message, too. */
static const uint8_t unknown_field[16] = {0xA2, 0x06, 13};

static void a_zstd_body_holds_with_and_without_its_checksum(void **state)
{
    (void)state;
    put_zstd(unknown_field, sizeof unknown_field, 1);
    assert_int_equal(body_status(), RAT_OK);
    put_zstd(unknown_field, sizeof unknown_field, 0);
    assert_int_equal(body_status(), RAT_OK);
}

static void a_frame_of_another_content_size_is_corrupt(void **state)
{
    (void)state;
    put_zstd(unknown_field, sizeof unknown_field, 1);
    forged.chunk.raw_bytes = 17;
    assert_int_equal(body_status(), RAT_CORRUPT);
    forged.chunk.raw_bytes = 15;
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void a_frame_without_content_size_is_corrupt(void **state)
{
    (void)state;
    put_zstd(unknown_field, sizeof unknown_field, 0);
    ZSTD_CCtx *zstd = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(zstd, ZSTD_c_contentSizeFlag, 0);
    forged.body_bytes = ZSTD_compress2(zstd, forged.body, sizeof forged.body, unknown_field, sizeof unknown_field);
    ZSTD_freeCCtx(zstd);
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void anything_behind_the_frame_is_corrupt(void **state)
{
    (void)state;
    put_zstd(unknown_field, sizeof unknown_field, 1);
    forged.body[forged.body_bytes++] = 0;
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void a_second_frame_is_corrupt(void **state)
{
    (void)state;
    put_zstd(unknown_field, sizeof unknown_field, 1);
    memcpy(forged.body + forged.body_bytes, forged.body, forged.body_bytes);
    forged.body_bytes *= 2;
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void an_empty_or_skippable_frame_behind_is_corrupt(void **state)
{
    (void)state;
    put_zstd(unknown_field, sizeof unknown_field, 0);
    size_t length = forged.body_bytes;
    forged.body_bytes += ZSTD_compress(forged.body + length, 100, "", 0, 1);
    assert_int_equal(body_status(), RAT_CORRUPT);
    memcpy(forged.body + length, "\x50\x2A\x4D\x18\x01\0\0\0x", 9);
    forged.body_bytes = length + 9;
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void a_skippable_frame_is_corrupt(void **state)
{
    (void)state;
    put_zstd(unknown_field, sizeof unknown_field, 1);
    memmove(forged.body + 8, forged.body, forged.body_bytes);
    memcpy(forged.body, "\x50\x2A\x4D\x18\0\0\0\0", 8);
    forged.body_bytes += 8;
    assert_int_equal(body_status(), RAT_CORRUPT);
    forged.body_bytes = 8;
    forged.chunk.raw_bytes = 0;
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void a_frame_with_a_dictionary_id_is_corrupt(void **state)
{
    (void)state;
    /* magic, descriptor: single segment, dictionary id of one byte; id 7; content size 16; a raw last block */
    memcpy(forged.body, "\x28\xB5\x2F\xFD\x21\x07\x10\x81\0\0", 10);
    memcpy(forged.body + 10, unknown_field, 16);
    forged.body_bytes = 26;
    forged.chunk.codec = RATRACE__V1__CODEC__CODEC_ZSTD;
    forged.keep_raw_bytes = true;
    forged.chunk.raw_bytes = 16;
    assert_int_equal(body_status(), RAT_CORRUPT);
    forged.body[4] = 0x20; /* the same without: holds */
    memmove(forged.body + 5, forged.body + 6, 20);
    forged.body_bytes = 25;
    assert_int_equal(body_status(), RAT_OK);
}

static void a_window_of_more_than_16_mib_is_corrupt(void **state)
{
    (void)state;
    /* magic, descriptor: content size of 4 bytes, window byte, content size 16, a raw last block */
    memcpy(forged.body, "\x28\xB5\x2F\xFD\x80\x70\x10\0\0\0\x81\0\0", 13);
    memcpy(forged.body + 13, unknown_field, 16);
    forged.body_bytes = 29;
    forged.chunk.codec = RATRACE__V1__CODEC__CODEC_ZSTD;
    forged.keep_raw_bytes = true;
    forged.chunk.raw_bytes = 16;
    assert_int_equal(body_status(), RAT_OK); /* 2^24 */
    forged.body[5] = 0x71;
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void a_frame_cut_anywhere_is_corrupt(void **state)
{
    (void)state;
    put_zstd(unknown_field, sizeof unknown_field, 1);
    for (size_t whole = forged.body_bytes; forged.body_bytes > 0;) {
        forged.body_bytes--;
        assert_int_equal(body_status(), RAT_CORRUPT);
        assert_true(forged.body_bytes < whole);
    }
}

/* ---------------------------------------------------------------- columns */

static uint64_t gaps[] = {1, 2, 3};
static uint8_t kinds[] = {RAT_EVENT_CALL, RAT_EVENT_NOTE, RAT_EVENT_RETURN};
static uint32_t ids[] = {9, 10};
static uint32_t rich_words[] = {1, 1};
static uint64_t rich[] = {77, 78};

/* Three events: a call, a note, a return. */
static void put_events(void)
{
    body.n_gap = 3;
    body.gap = gaps;
    body.kind = (ProtobufCBinaryData){3, kinds};
    body.n_id = 1;
    body.id = ids;
    body.n_rich_words = 1;
    body.rich_words = rich_words;
    body.n_rich = 1;
    body.rich = rich;
    forged.chunk.events = 3;
}

static enum rat_status message_status(void)
{
    put_message();
    return body_status();
}

static void columns_come_out_as_they_went_in(void **state)
{
    (void)state;
    put_events();
    assert_int_equal(message_status(), RAT_OK);
    assert_int_equal(decoded->events, 3);
    assert_memory_equal(decoded->gap, gaps, sizeof gaps);
    assert_memory_equal(decoded->kind, kinds, sizeof kinds);
    assert_int_equal(decoded->id[0], 9);
    assert_int_equal(decoded->rich[0], 77);
}

static void columns_that_disagree_are_corrupt(void **state)
{
    (void)state;
    size_t *counts[] = {&body.n_gap, &body.kind.len, &body.n_id, &body.n_rich_words, &body.n_rich};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        put_events();
        --*counts[i];
        assert_int_equal(message_status(), RAT_CORRUPT);
    }
    for (size_t i = 2; i < sizeof counts / sizeof *counts; i++) {
        put_events();
        ++*counts[i];
        assert_int_equal(message_status(), RAT_CORRUPT);
    }
}

static void another_count_of_events_than_the_header_says_is_corrupt(void **state)
{
    (void)state;
    put_events();
    forged.chunk.events = 2;
    assert_int_equal(message_status(), RAT_CORRUPT);
    forged.chunk.events = 4;
    assert_int_equal(message_status(), RAT_CORRUPT);
}

static void a_payload_longer_than_what_is_left_is_corrupt(void **state)
{
    (void)state;
    uint32_t huge = UINT32_MAX;
    put_events();
    body.rich_words = &huge;
    assert_int_equal(message_status(), RAT_CORRUPT);
}

static void kinds_that_never_stand_in_a_file_are_corrupt(void **state)
{
    (void)state;
    uint8_t wrong[] = {RAT_EVENT_CALL, RAT_EVENT_NOTE, 0};
    put_events();
    body.kind.data = wrong;
    assert_int_equal(message_status(), RAT_CORRUPT);
    wrong[2] = RAT_EVENT_GAP;
    assert_int_equal(message_status(), RAT_CORRUPT);
}

static void unknown_kinds_are_stepped_over(void **state)
{
    (void)state;
    uint8_t later[] = {30, 200, RAT_EVENT_RETURN};
    put_events();
    body.kind.data = later;
    assert_int_equal(message_status(), RAT_OK);
}

static void a_payload_of_no_words_is_one_although_there_are_none_at_all(void **state)
{
    (void)state;
    uint8_t later[] = {RAT_EVENT_CALL, 200, RAT_EVENT_RETURN};
    uint32_t words = 0;
    put_events();
    body.kind.data = later;
    body.rich_words = &words;
    body.n_rich = 0;
    assert_int_equal(message_status(), RAT_OK);
    assert_non_null(decoded->rich); /* what has none may still be pointed at */
    body.kind.data = kinds;         /* a note has one */
    assert_int_equal(message_status(), RAT_CORRUPT);
}

static void a_snapshot_deeper_than_its_payload_is_corrupt(void **state)
{
    (void)state;
    uint8_t snapshot[] = {RAT_EVENT_CALL, RAT_EVENT_SNAPSHOT, RAT_EVENT_RETURN};
    uint64_t payload[] = {3, 0, 0, 0};
    uint32_t words = 4;
    put_events();
    body.kind.data = snapshot;
    body.rich = payload;
    body.rich_words = &words;
    body.n_rich = 4;
    assert_int_equal(message_status(), RAT_OK);
    payload[0] = 5;
    assert_int_equal(message_status(), RAT_CORRUPT);
    payload[0] = UINT32_MAX;
    assert_int_equal(message_status(), RAT_CORRUPT);
    words = 1;
    body.n_rich = 1;
    payload[0] = 0;
    assert_int_equal(message_status(), RAT_CORRUPT);
    words = 2;
    body.n_rich = 0; /* nothing there to read a depth from */
    assert_int_equal(message_status(), RAT_CORRUPT);
}

static void an_end_without_payload_is_corrupt(void **state)
{
    (void)state;
    uint8_t end[] = {RAT_EVENT_CALL, RAT_EVENT_END, RAT_EVENT_RETURN};
    uint32_t none = 0;
    put_events();
    body.kind.data = end;
    body.rich_words = &none;
    body.n_rich = 0;
    assert_int_equal(message_status(), RAT_CORRUPT);
}

static void time_that_overflows_is_corrupt(void **state)
{
    (void)state;
    put_events();
    body.base_ticks = UINT64_MAX - 6;
    assert_int_equal(message_status(), RAT_OK);
    body.base_ticks = UINT64_MAX - 5;
    assert_int_equal(message_status(), RAT_CORRUPT);
}

static void an_id_past_24_bits_is_corrupt(void **state)
{
    (void)state;
    uint32_t id = RAT_EVENT_ID_MAX;
    put_events();
    body.id = &id;
    assert_int_equal(message_status(), RAT_OK);
    id++;
    assert_int_equal(message_status(), RAT_CORRUPT);
}

static void a_varint_of_eleven_bytes_is_corrupt(void **state)
{
    (void)state;
    forged.chunk.events = 1;
    put_body("\x12\x0B\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01\x1A\x01\x02", 16);
    assert_int_equal(body_status(), RAT_CORRUPT);
}

static void columns_that_are_not_packed_hold_too(void **state)
{
    (void)state;
    forged.chunk.events = 2;
    put_body("\x10\x05\x10\x06\x1A\x02\x02\x02", 8);
    assert_int_equal(body_status(), RAT_OK);
    assert_int_equal(decoded->gap[1], 6);
}

static void a_body_that_unpacks_past_the_memory_limit_is_too_big(void **state)
{
    (void)state;
    static uint8_t entries[60000]; /* empty names, 2 bytes each here, some hundred unpacked */
    for (size_t i = 0; i < sizeof entries; i += 2)
        entries[i] = 10 << 3 | 2;
    put_body(entries, sizeof entries);
    assert_int_equal(body_status(), RAT_TOO_BIG);
    put_body("", 0);
    assert_int_equal(body_status(), RAT_OK); /* and nothing of it stayed */
}

/* ---------------------------------------------------------------- entries */

static void entries_with_wrong_ids_are_corrupt(void **state)
{
    (void)state;
    Ratrace__V1__Name name = RATRACE__V1__NAME__INIT, *names[] = {&name};
    Ratrace__V1__Frame frame = RATRACE__V1__FRAME__INIT, *frames[] = {&frame};
    Ratrace__V1__Context context = RATRACE__V1__CONTEXT__INIT, *contexts[] = {&context};
    body.name = names;
    body.frame = frames;
    body.context = contexts;
    body.n_name = body.n_frame = body.n_context = 1;
    name.id = frame.id = context.id = RAT_EVENT_ID_MAX;
    assert_int_equal(message_status(), RAT_OK);
    uint32_t *fields[] = {&name.id,      &frame.id,       &frame.owner,  &frame.method,  &frame.called_as,
                          &frame.file,   &context.id,     &context.name, &context.parent};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        uint32_t before = *fields[i];
        *fields[i] = RAT_EVENT_ID_MAX + 1;
        assert_int_equal(message_status(), RAT_CORRUPT);
        *fields[i] = before;
    }
    uint32_t *own[] = {&name.id, &frame.id, &context.id};
    for (size_t i = 0; i < 3; i++) {
        *own[i] = 0;
        assert_int_equal(message_status(), RAT_CORRUPT);
        *own[i] = 1;
    }
}

static void a_name_of_64_kib_is_corrupt(void **state)
{
    (void)state;
    static uint8_t text[RAT_NAME_BYTES_MAX + 1];
    Ratrace__V1__Name name = RATRACE__V1__NAME__INIT, *names[] = {&name};
    name.id = 1;
    name.text = (ProtobufCBinaryData){RAT_NAME_BYTES_MAX + 1 - 16, text};
    body.name = names;
    body.n_name = 1;
    assert_int_equal(message_status(), RAT_OK);
    /* the limit itself does not fit into the forger's body uncompressed */
    uint8_t *raw = malloc(RAT_NAME_BYTES_MAX + 100);
    assert_non_null(raw);
    name.text.len = RAT_NAME_BYTES_MAX;
    put_zstd(raw, ratrace__v1__body__pack(&body, raw), 1);
    assert_int_equal(body_status(), RAT_OK);
    name.text.len++;
    put_zstd(raw, ratrace__v1__body__pack(&body, raw), 1);
    assert_int_equal(body_status(), RAT_CORRUPT);
    free(raw);
}

/* ---------------------------------------------------------------- chance */

static void random_bodies_never_harm(void **state)
{
    (void)state;
    uint64_t random = take_seed("random bodies");
    put_events();
    put_message();
    uint8_t good[256];
    size_t length = forged.body_bytes;
    memcpy(good, forged.body, length);
    for (int i = 0; i < 20000; i++) {
        put_body(good, length);
        for (uint64_t n = 1 + next_random(&random) % 4; n > 0; n--)
            forged.body[next_random(&random) % length] = (uint8_t)next_random(&random);
        forged.body_bytes = length - next_random(&random) % 3;
        enum rat_status status = body_status();
        assert_true(status == RAT_OK || status == RAT_CORRUPT || status == RAT_TOO_BIG);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_forged_chunk_holds_as_it_is),
        TEST(a_wrong_header_check_is_corrupt),
        TEST(a_wrong_size_is_corrupt),
        TEST(a_body_of_another_length_is_corrupt),
        TEST(a_longer_sync_is_corrupt),
        TEST(an_unknown_required_feature_is_unsupported_and_still_accounted),
        TEST(causes_of_a_later_version_are_summed_up),
        TEST(fields_of_a_later_version_behind_the_body_are_stepped_over),
        TEST(a_second_body_is_corrupt),
        TEST(a_body_that_reaches_behind_the_chunk_is_corrupt),
        TEST(a_field_whose_length_wraps_around_is_corrupt),
        TEST(a_checked_field_behind_the_check_is_corrupt),
        TEST(long_text_in_the_session_is_cut),
        TEST(tags_that_do_not_fit_are_left_out),
        TEST(every_shorter_input_is_corrupt),
        TEST(a_wrong_body_check_is_corrupt),
        TEST(an_unknown_codec_is_unsupported),
        TEST(a_stored_body_of_another_raw_length_is_corrupt),
        TEST(a_raw_length_past_the_limit_is_too_big),
        TEST(a_raw_length_past_the_memory_limit_is_too_big),
        TEST(more_events_than_raw_bytes_are_corrupt),
        TEST(a_zstd_body_holds_with_and_without_its_checksum),
        TEST(a_frame_of_another_content_size_is_corrupt),
        TEST(a_frame_without_content_size_is_corrupt),
        TEST(anything_behind_the_frame_is_corrupt),
        TEST(a_second_frame_is_corrupt),
        TEST(an_empty_or_skippable_frame_behind_is_corrupt),
        TEST(a_skippable_frame_is_corrupt),
        TEST(a_frame_with_a_dictionary_id_is_corrupt),
        TEST(a_window_of_more_than_16_mib_is_corrupt),
        TEST(a_frame_cut_anywhere_is_corrupt),
        TEST(columns_come_out_as_they_went_in),
        TEST(columns_that_disagree_are_corrupt),
        TEST(another_count_of_events_than_the_header_says_is_corrupt),
        TEST(a_payload_longer_than_what_is_left_is_corrupt),
        TEST(kinds_that_never_stand_in_a_file_are_corrupt),
        TEST(unknown_kinds_are_stepped_over),
        TEST(a_payload_of_no_words_is_one_although_there_are_none_at_all),
        TEST(a_snapshot_deeper_than_its_payload_is_corrupt),
        TEST(an_end_without_payload_is_corrupt),
        TEST(time_that_overflows_is_corrupt),
        TEST(an_id_past_24_bits_is_corrupt),
        TEST(a_varint_of_eleven_bytes_is_corrupt),
        TEST(columns_that_are_not_packed_hold_too),
        TEST(a_body_that_unpacks_past_the_memory_limit_is_too_big),
        TEST(entries_with_wrong_ids_are_corrupt),
        TEST(a_name_of_64_kib_is_corrupt),
        TEST(random_bodies_never_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
