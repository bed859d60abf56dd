#include "wire_support.h"

#include "wire/trace.pb-c.h"

static struct session session;
static struct rat_encoder *encoder;
static struct rat_decoder *decoder;
static struct rat_buffer out;
static struct words words;

static int open_all(void **state)
{
    (void)state;
    session_open(&session);
    rat_buffer_init(&out, RAT_CHUNK_MAX * UINT64_C(2));
    words = (struct words){.count = 0};
    if (rat_encoder_new(1 << 20, 0, &encoder) != RAT_OK || rat_decoder_new(0, &decoder) != RAT_OK)
        return 1;
    rat_encoder_begin_segment(encoder);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    rat_encoder_free(encoder);
    rat_decoder_free(decoder);
    rat_buffer_free(&out);
    free(words.words);
    session_close(&session);
    return 0;
}

static enum rat_status encode_words(void)
{
    struct rat_chunk_info info = lane_info(&session, 1);
    struct guarded input = guard(words.words, words.count * sizeof *words.words);
    out.length = 0;
    enum rat_status status = rat_encoder_lane_chunk(encoder, &info, (const uint64_t *)(const void *)input.bytes,
                                                    words.count, words.events, 1000, session_view(&session), &out);
    unguard(&input);
    return status;
}

/* Encode the words at hand and decode them again. */
static const struct rat_body *encoded_body(void)
{
    static struct rat_chunk_header header;
    const struct rat_body *body = NULL;
    assert_int_equal(encode_words(), RAT_OK);
    read_header(&out, &header);
    assert_int_equal(header.events, words.events);
    assert_int_equal(rat_decode_body(decoder, &header, &body), RAT_OK);
    return body;
}

static void calls_and_returns_become_columns(void **state)
{
    (void)state;
    rat_frame_id frame = add_frame(&session, "Cart", "total");
    push_event(&words, RAT_EVENT_CALL, frame, 5);
    push_event(&words, RAT_EVENT_RETURN, 0, RAT_EVENT_DELTA_MAX);
    push_event(&words, RAT_EVENT_UNWIND, 300, 127);
    push_event(&words, RAT_EVENT_UNMATCHED, 0, 128);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->base_ticks, 1000);
    assert_int_equal(body->events, 4);
    const uint64_t gaps[] = {5, RAT_EVENT_DELTA_MAX, 127, 128};
    assert_memory_equal(body->gap, gaps, sizeof gaps);
    const uint8_t kinds[] = {RAT_EVENT_CALL, RAT_EVENT_RETURN, RAT_EVENT_UNWIND, RAT_EVENT_UNMATCHED};
    assert_memory_equal(body->kind, kinds, sizeof kinds);
    assert_int_equal(body->ids, 2);
    assert_int_equal(body->id[0], frame);
    assert_int_equal(body->id[1], 300);
}

static void every_length_of_varint_comes_back(void **state)
{
    (void)state;
    uint64_t gaps[200];
    size_t count = 0;
    for (unsigned bit = 0; bit < 34; bit++)
        for (int off = -1; off <= 1; off++)
            gaps[count++] = ((UINT64_C(1) << bit) + (uint64_t)off) & RAT_EVENT_DELTA_MAX;
    gaps[count++] = RAT_EVENT_DELTA_MAX;
    for (size_t i = 0; i < count; i++)
        push_event(&words, RAT_EVENT_UNWIND, (uint32_t)gaps[i] & RAT_EVENT_ID_MAX, gaps[i]);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->events, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(body->gap[i], gaps[i]);
        assert_int_equal(body->id[i], gaps[i] & RAT_EVENT_ID_MAX);
    }
}

static void a_gap_prefix_is_merged_into_the_next_event(void **state)
{
    (void)state;
    push_gap(&words, UINT64_C(1) << 40);
    push_event(&words, RAT_EVENT_RETURN, 0, 3);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->events, 1);
    assert_int_equal(body->gap[0], (UINT64_C(1) << 40) + 3);
}

static void a_gap_prefix_without_its_event_is_corrupt(void **state)
{
    (void)state;
    push_event(&words, RAT_EVENT_RETURN, 0, 3);
    push_gap(&words, 99);
    assert_int_equal(encode_words(), RAT_CORRUPT);
    assert_int_equal(out.length, 0);
}

static void a_gap_prefix_of_another_length_is_corrupt(void **state)
{
    (void)state;
    push_word(&words, rat_event_word(RAT_EVENT_GAP, 2));
    push_word(&words, 99);
    push_event(&words, RAT_EVENT_RETURN, 0, 3);
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void a_gap_prefix_before_a_rich_event_is_merged_too(void **state)
{
    (void)state;
    push_gap(&words, UINT64_C(1) << 35);
    push_rich(&words, RAT_EVENT_NOTE, (uint64_t[]){77}, 1, 0);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->gap[0], UINT64_C(1) << 35);
    assert_int_equal(body->rich[0], 77);
}

static void time_that_overflows_is_corrupt(void **state)
{
    (void)state;
    push_gap(&words, UINT64_MAX - 500);
    push_event(&words, RAT_EVENT_RETURN, 0, 0);
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void time_that_overflows_by_a_plain_delta_is_corrupt(void **state)
{
    (void)state;
    push_gap(&words, UINT64_MAX - 1000 - 5);
    push_event(&words, RAT_EVENT_RETURN, 0, 0);
    push_event(&words, RAT_EVENT_RETURN, 0, 6);
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void another_count_of_events_than_the_drain_says_is_corrupt(void **state)
{
    (void)state;
    push_event(&words, RAT_EVENT_RETURN, 0, 3);
    words.events = 2;
    assert_int_equal(encode_words(), RAT_CORRUPT);
    words.events = 0;
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void a_frame_outside_the_dictionary_is_corrupt(void **state)
{
    (void)state;
    rat_frame_id frame = add_frame(&session, "Cart", "total");
    push_event(&words, RAT_EVENT_CALL, frame + 1, 3);
    assert_int_equal(encode_words(), RAT_CORRUPT);
    assert_int_equal(out.length, 0);
    words.words[0] = rat_event_word(RAT_EVENT_CALL, RAT_EVENT_ID_MAX);
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void a_context_outside_the_dictionary_is_corrupt(void **state)
{
    (void)state;
    push_event(&words, RAT_EVENT_SWITCH, 1, 3);
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void a_word_of_kind_zero_is_corrupt(void **state)
{
    (void)state;
    push_event(&words, (enum rat_event_kind)0, 0, 0);
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void a_payload_that_reaches_behind_the_words_is_corrupt(void **state)
{
    (void)state;
    push_rich(&words, RAT_EVENT_NOTE, (uint64_t[]){1, 2}, 2, 0);
    words.count--;
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void a_snapshot_deeper_than_its_payload_is_corrupt(void **state)
{
    (void)state;
    push_rich(&words, RAT_EVENT_SNAPSHOT, (uint64_t[]){5, 0, 0, 0}, 4, 0);
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void a_gate_or_a_cost_shorter_than_it_must_be_is_corrupt(void **state)
{
    (void)state;
    push_rich(&words, RAT_EVENT_GATE, (uint64_t[]){1, 2}, RAT_GATE_WORDS - 1, 0);
    assert_int_equal(encode_words(), RAT_CORRUPT);
    words.count = words.events = 0;
    push_rich(&words, RAT_EVENT_COST, (uint64_t[]){1, 2, 3, 4}, RAT_COST_WORDS - 1, 0);
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void more_words_than_the_slot_has_are_corrupt(void **state)
{
    (void)state;
    struct rat_encoder *small;
    assert_int_equal(rat_encoder_new(1, 0, &small), RAT_OK);
    push_event(&words, RAT_EVENT_RETURN, 0, 0);
    push_event(&words, RAT_EVENT_RETURN, 0, 0);
    struct rat_chunk_info info = lane_info(&session, 1);
    assert_int_equal(rat_encoder_lane_chunk(small, &info, words.words, 2, 2, 0, NULL, &out), RAT_CORRUPT);
    rat_encoder_free(small);
}

static void a_gate_pulls_its_frame(void **state)
{
    (void)state;
    rat_frame_id frame = add_frame(&session, "Cart", "total");
    const uint64_t payload[RAT_GATE_WORDS] = {rat_event_pair(3, frame), rat_event_pair(RAT_GATE_CLOSED, 0), 11};
    push_rich(&words, RAT_EVENT_GATE, payload, RAT_GATE_WORDS, 9);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->rich_words[0], RAT_GATE_WORDS);
    assert_memory_equal(body->rich, payload, sizeof payload);
    assert_int_equal(body->frame_count, 1);
    assert_int_equal(body->frames[0].id, frame);
}

static void a_gate_of_a_frame_that_does_not_exist_is_corrupt(void **state)
{
    (void)state;
    uint32_t none = session_view(&session)->frame_count + 1;
    push_rich(&words, RAT_EVENT_GATE, (uint64_t[]){rat_event_pair(3, none), 0, 0}, RAT_GATE_WORDS, 0);
    assert_int_equal(encode_words(), RAT_CORRUPT);
}

static void a_snapshot_pulls_its_context_its_thread_and_its_frames(void **state)
{
    (void)state;
    rat_frame_id outer = add_frame(&session, "Cart", "total"), inner = add_frame(&session, "Line", "price");
    rat_context_id thread = add_context(&session, RAT_CONTEXT_THREAD, 0, "main");
    rat_context_id fiber = add_context(&session, RAT_CONTEXT_FIBER, thread, NULL);
    const uint64_t payload[] = {
        (uint64_t)fiber << 32 | 3,
        (uint64_t)0 << 32 | RAT_SNAPSHOT_START,
        ((uint64_t)inner << 8 | RAT_FRAME_INSTANCE) << 32 | outer << 8 | RAT_FRAME_INSTANCE,
        RAT_FRAME_BASE,
    };
    push_rich(&words, RAT_EVENT_SNAPSHOT, payload, 4, 9);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->riches, 1);
    assert_int_equal(body->rich_words[0], 4);
    assert_memory_equal(body->rich, payload, sizeof payload);
    assert_int_equal(body->ids, 0);
    assert_int_equal(body->frame_count, 2);
    assert_int_equal(body->frames[0].id, outer);
    assert_int_equal(body->frames[1].id, inner);
    assert_int_equal(body->context_count, 2);
    assert_int_equal(body->contexts[0].id, fiber);
    assert_int_equal(body->contexts[0].entry.parent, thread);
    assert_int_equal(body->contexts[1].id, thread);
    assert_int_equal(body->contexts[1].entry.os_tid, 4712);
    assert_int_equal(body->name_count, 6); /* main, Cart, total, app.rb, Line, price */
}

static void a_ring_of_parents_ends(void **state)
{
    (void)state;
    rat_context_id first = add_context(&session, RAT_CONTEXT_FIBER, 2, NULL);
    add_context(&session, RAT_CONTEXT_FIBER, first, NULL);
    push_event(&words, RAT_EVENT_SWITCH, first, 0);
    assert_int_equal(encoded_body()->context_count, 2);
}

static void a_frame_carries_all_its_fields(void **state)
{
    (void)state;
    struct rat_frame_entry entry = {
        .owner = add_name(&session, "Cart"),
        .method = add_name(&session, "total"),
        .called = add_name(&session, "sum"),
        .file = add_name(&session, "cart.rb"),
        .line = 77,
        .kind = RAT_FRAME_C_SINGLETON,
    };
    rat_frame_id frame = rat_dict_frame(session.dict, &entry);
    push_event(&words, RAT_EVENT_C_CALL, frame, 0);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->frame_count, 1);
    assert_int_equal(body->frames[0].id, frame);
    assert_memory_equal(&body->frames[0].entry, &entry, sizeof entry);
}

static void names_are_bytes_with_an_encoding(void **state)
{
    (void)state;
    static const char binary[] = {'a', '\0', (char)0xFF};
    struct rat_frame_entry entry = {
        .owner = rat_dict_name(session.dict, "", 0, true),
        .method = rat_dict_name(session.dict, binary, sizeof binary, false),
        .kind = RAT_FRAME_INSTANCE,
    };
    push_event(&words, RAT_EVENT_CALL, rat_dict_frame(session.dict, &entry), 0);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->name_count, 2);
    assert_int_equal(body->names[0].length, 0);
    assert_int_equal(body->names[0].encoding, 1);
    assert_int_equal(body->names[1].length, sizeof binary);
    assert_memory_equal(body->names[1].text, binary, sizeof binary);
    assert_int_equal(body->names[1].encoding, 2);
}

static void a_name_that_is_sent_is_not_repeated_in_its_segment(void **state)
{
    (void)state;
    rat_frame_id frame = add_frame(&session, "Cart", "total");
    push_event(&words, RAT_EVENT_CALL, frame, 0);
    assert_int_equal(encoded_body()->name_count, 3);
    rat_encoder_settle(encoder, true);
    const struct rat_body *again = encoded_body();
    assert_int_equal(again->name_count, 0);
    assert_int_equal(again->frame_count, 0);
    rat_encoder_settle(encoder, true);
    rat_encoder_begin_segment(encoder);
    assert_int_equal(encoded_body()->name_count, 3);
}

static void an_abandoned_chunk_takes_its_names_with_it(void **state)
{
    (void)state;
    rat_frame_id frame = add_frame(&session, "Cart", "total");
    rat_context_id thread = add_context(&session, RAT_CONTEXT_THREAD, 0, "main");
    push_event(&words, RAT_EVENT_SWITCH, thread, 0);
    push_event(&words, RAT_EVENT_CALL, frame, 0);
    assert_int_equal(encoded_body()->name_count, 4);
    rat_encoder_settle(encoder, false);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->name_count, 4);
    assert_int_equal(body->frame_count, 1);
    assert_int_equal(body->context_count, 1);
}

static void a_chunk_that_fails_leaves_those_before_it_alone(void **state)
{
    (void)state;
    rat_frame_id first = add_frame(&session, "Cart", "total"), second = add_frame(&session, "Line", "price");
    push_event(&words, RAT_EVENT_CALL, first, 0);
    assert_int_equal(encoded_body()->frame_count, 1);
    push_event(&words, RAT_EVENT_CALL, second, 0);
    words.events++;
    assert_int_equal(encode_words(), RAT_CORRUPT);
    words.events--;
    rat_encoder_settle(encoder, true); /* the first one's append */
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->frame_count, 1);
    assert_int_equal(body->frames[0].id, second);
}

static void a_context_that_changed_is_sent_again(void **state)
{
    (void)state;
    rat_context_id thread = add_context(&session, RAT_CONTEXT_THREAD, 0, NULL);
    push_event(&words, RAT_EVENT_SWITCH, thread, 0);
    push_event(&words, RAT_EVENT_SWITCH, thread, 0);
    assert_int_equal(encoded_body()->context_count, 1);
    rat_encoder_settle(encoder, true);
    assert_int_equal(encoded_body()->context_count, 0);
    struct rat_context_entry *entry = (struct rat_context_entry *)(uintptr_t)&session_view(&session)->contexts[thread];
    entry->name = add_name(&session, "worker");
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->context_count, 1);
    assert_int_equal(body->contexts[0].entry.name, entry->name);
    assert_int_equal(body->name_count, 1);
    rat_encoder_settle(encoder, false);
    assert_int_equal(encoded_body()->context_count, 1);
}

static void kinds_of_a_later_version_pass_through(void **state)
{
    (void)state;
    push_event(&words, (enum rat_event_kind)20, 12345, 1);
    push_rich(&words, (enum rat_event_kind)50, (uint64_t[]){1, 2, 3}, 3, 2);
    push_rich(&words, (enum rat_event_kind)63, NULL, 0, 2);
    const struct rat_body *body = encoded_body();
    assert_int_equal(body->ids, 1);
    assert_int_equal(body->id[0], 12345);
    assert_int_equal(body->riches, 2);
    assert_int_equal(body->rich_words[0], 3);
    assert_int_equal(body->rich_words[1], 0);
    assert_int_equal(body->rich_total, 3);
}

static void the_closing_chunk_repeats_the_dictionary(void **state)
{
    (void)state;
    add_frame(&session, "Cart", "total");
    add_context(&session, RAT_CONTEXT_THREAD, 0, "main");
    struct rat_chunk_info info = lane_info(&session, 1);
    info.lane = 0;
    info.reason = RAT_REASON_CLOSING;
    assert_int_equal(rat_encoder_session_chunk(encoder, &info, session_view(&session), &out), RAT_OK);
    struct rat_chunk_header header;
    const struct rat_body *body;
    read_header(&out, &header);
    assert_int_equal(header.lane, 0);
    assert_int_equal(header.reason, RAT_REASON_CLOSING);
    assert_int_equal(rat_decode_body(decoder, &header, &body), RAT_OK);
    assert_int_equal(body->name_count, 5);
    assert_int_equal(body->frame_count, 2);
    assert_int_equal(body->frames[0].id, RAT_FRAME_FULL);
    assert_int_equal(body->context_count, 1);
    assert_int_equal(body->events, 0);
}

static void the_header_comes_back_as_it_was_given(void **state)
{
    (void)state;
    struct rat_lost_label lost[] = {
        {.cause = RAT_LOST_WRITE_FAILED, .first_seq = 4, .last_seq = 6, .count = 70},
        {.cause = RAT_DROP_SLOT_FULL, .count = 9, .from_ticks = 100, .to_ticks = UINT64_MAX},
    };
    struct rat_chunk_info info = lane_info(&session, UINT64_C(1) << 40);
    info.segment = 3;
    info.reason = RAT_REASON_RECOVERED;
    info.opened = (struct rat_totals){.stored = 100, .drop = {[RAT_DROP_SLOT_FULL] = 1}};
    info.closed = (struct rat_totals){.stored = UINT64_MAX, .drop = {[RAT_DROP_SLOT_FULL] = 10, [RAT_DROP_NO_LANE] = 2}};
    info.in_flight = 1;
    info.lost = lost;
    info.lost_count = 2;
    const struct rat_lane_mark marks[2] = {
        {.lane = 1, .sequence = 5, .closed = {.stored = 7}},
        {.lane = 16, .sequence = UINT64_MAX, .closed = {.stored = UINT64_MAX, .drop = {[RAT_DROP_NO_LANE] = 3}}},
    };
    info.marks = marks;
    info.mark_count = 2;
    info.with_session = true;
    session.head.parent_hi = 0x1122334455667788;
    session.head.parent_lo = 7;
    session.head.parent_pid = 42;
    assert_int_equal(rat_encoder_session_chunk(encoder, &info, NULL, &out), RAT_OK);
    struct rat_chunk_header header;
    read_header(&out, &header);
    assert_memory_equal(header.sync, session.head.sync, 16);
    assert_int_equal(header.session_hi, session.head.session_hi);
    assert_int_equal(header.session_lo, session.head.session_lo);
    assert_int_equal(header.segment, 3);
    assert_int_equal(header.lane, 1);
    assert_int_equal(header.sequence, UINT64_C(1) << 40);
    assert_int_equal(header.reason, RAT_REASON_RECOVERED);
    assert_memory_equal(&header.opened, &info.opened, sizeof info.opened);
    assert_memory_equal(&header.closed, &info.closed, sizeof info.closed);
    assert_int_equal(header.in_flight, 1);
    assert_memory_equal(&header.start, &info.start, sizeof info.start);
    assert_memory_equal(&header.end, &info.end, sizeof info.end);
    assert_int_equal(header.lost_count, 2);
    assert_memory_equal(header.lost, lost, sizeof lost);
    assert_int_equal(header.mark_count, 2);
    assert_memory_equal(header.marks, marks, sizeof marks);
    assert_true(header.has_info);
    assert_string_equal(header.info.service, "shop");
    assert_string_equal(header.info.host, "web-1");
    assert_string_equal(header.info.ruby, "3.1.2 x86_64-linux-gnu");
    assert_string_equal(header.info.recorder, "ratrace 0.1.0");
    assert_int_equal(header.info.pid, 4711);
    assert_int_equal(header.info.parent_pid, 42);
    assert_int_equal(header.info.parent_hi, 0x1122334455667788);
    assert_int_equal(header.info.parent_lo, 7);
    assert_int_equal(header.info.start_ns, 3000);
    assert_int_equal(header.info.ticks_per_s, 3000000000u);
    assert_int_equal(header.info.slot_bytes, 16384);
    assert_int_equal(header.info.clock, RAT_CLOCK_TSC);
    assert_int_equal(header.info.fence, RAT_FENCE_MEMBARRIER);
    assert_int_equal(header.info.frame_path, 1);
}

static void more_labels_than_a_header_takes_are_cut(void **state)
{
    (void)state;
    static struct rat_lost_label lost[RAT_CHUNK_LOSTS_MAX + 5];
    for (size_t i = 0; i < RAT_CHUNK_LOSTS_MAX + 5; i++)
        lost[i] = (struct rat_lost_label){RAT_LOST_UNKNOWN, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    struct rat_chunk_info info = lane_info(&session, 1);
    info.lost = lost;
    info.lost_count = RAT_CHUNK_LOSTS_MAX + 5;
    info.with_session = true;
    assert_int_equal(rat_encoder_session_chunk(encoder, &info, NULL, &out), RAT_OK);
    struct rat_chunk_header header;
    read_header(&out, &header);
    assert_int_equal(header.lost_count, RAT_CHUNK_LOSTS_MAX);
}

static void text_of_the_session_is_made_valid_utf8(void **state)
{
    (void)state;
    memset(session.head.service, 0xC3, sizeof session.head.service); /* no end, and no UTF-8 */
    strcpy(session.head.host, "k\xC3\xB6ln \xED\xA0\x80 \xF0\x9F\x90\x80 \xE2\x82");
    struct rat_chunk_info info = lane_info(&session, 1);
    info.with_session = true;
    assert_int_equal(rat_encoder_session_chunk(encoder, &info, NULL, &out), RAT_OK);
    struct rat_chunk_header header;
    read_header(&out, &header);
    assert_int_equal(strlen(header.info.service), 63);
    assert_int_equal(strspn(header.info.service, "?"), 63);
    assert_string_equal(header.info.host, "k\xC3\xB6ln ??? \xF0\x9F\x90\x80 ??");
}

/* "name=text,name=text" of what a header carries of the session's tags. */
static const char *carried_tags(void)
{
    static char list[4096];
    struct rat_chunk_info info = lane_info(&session, 1);
    info.with_session = true;
    out.length = 0;
    assert_int_equal(rat_encoder_session_chunk(encoder, &info, NULL, &out), RAT_OK);
    struct rat_chunk_header header;
    read_header(&out, &header);
    list[0] = '\0';
    const char *name, *text;
    for (size_t at = 0; rat_tags_next(header.info.tags, &at, &name, &text);)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s=%s", list[0] != '\0' ? "," : "", name, text);
    return list;
}

static void the_tags_come_back_as_valid_utf8(void **state)
{
    (void)state;
    assert_string_equal(carried_tags(), "");
    static const char tags[] = "zone\0a\0k\xC3\xB6ln\0\xC3\xB6\0b\xC3\0\xFFx";
    memcpy(session.head.tags, tags, sizeof tags);
    assert_string_equal(carried_tags(), "zone=a,k\xC3\xB6ln=\xC3\xB6,b?=?x");
}

static void a_tag_without_an_end_is_none(void **state)
{
    (void)state;
    memset(session.head.tags, 'x', sizeof session.head.tags);
    assert_string_equal(carried_tags(), "");
    session.head.tags[4] = '\0';
    assert_string_equal(carried_tags(), "");
    session.head.tags[6] = '\0';
    assert_string_equal(carried_tags(), "xxxx=x");
    session.head.tags[sizeof session.head.tags - 1] = '\0';
    assert_string_equal(carried_tags(), "xxxx=x"); /* a name without a text */
}

static void tags_past_the_bound_are_left_out(void **state)
{
    (void)state;
    for (size_t i = 0; i + 4 <= sizeof session.head.tags; i += 4)
        memcpy(session.head.tags + i, "a\0b", 4);
    assert_int_equal(strlen(carried_tags()), RAT_TAGS_MAX * 4 - 1);
}

static void a_body_that_shrinks_is_compressed_and_one_that_does_not_is_stored(void **state)
{
    (void)state;
    struct rat_chunk_header header;
    push_event(&words, RAT_EVENT_RETURN, 0, 1);
    assert_int_equal(encode_words(), RAT_OK);
    read_header(&out, &header);
    assert_int_equal(header.codec, RAT_CODEC_STORED);
    assert_int_equal(header.body_bytes, header.raw_bytes);
    for (int i = 0; i < 1000; i++)
        push_event(&words, RAT_EVENT_RETURN, 0, 1);
    assert_int_equal(encode_words(), RAT_OK);
    read_header(&out, &header);
    assert_int_equal(header.codec, RAT_CODEC_ZSTD);
    assert_true(header.body_bytes < header.raw_bytes / 10);
}

static void a_full_output_is_left_as_it_was(void **state)
{
    (void)state;
    rat_frame_id frame = add_frame(&session, "Cart", "total");
    push_event(&words, RAT_EVENT_CALL, frame, 1);
    struct rat_chunk_info info = lane_info(&session, 1);
    struct rat_buffer small;
    rat_buffer_init(&small, 20);
    assert_int_equal(rat_buffer_append(&small, "before", 6), RAT_OK);
    assert_int_equal(rat_encoder_lane_chunk(encoder, &info, words.words, 1, 1, 0, session_view(&session), &small),
                     RAT_TOO_BIG);
    assert_int_equal(small.length, 6);
    rat_buffer_free(&small);
    assert_int_equal(encoded_body()->frame_count, 1);
}

/* The columns are packed by hand; protobuf-c must agree to the byte. */


static void the_body_is_what_protobuf_c_would_write(void **state)
{
    (void)state;
    rat_frame_id frame = add_frame(&session, "Cart", "total");
    uint64_t random = 1;
    for (int i = 0; i < 500; i++) {
        uint64_t r = next_random(&random);
        push_event(&words, i % 2 ? RAT_EVENT_RETURN : RAT_EVENT_CALL, i % 2 ? 0 : frame, r >> 30 >> r % 34);
        if (i % 50 == 0)
            push_rich(&words, RAT_EVENT_NOTE, &r, 1, 1);
    }
    struct rat_columns columns;
    struct rat_sent sent;
    rat_sent_init(&sent);
    assert_int_equal(rat_columns_new(&columns, words.count), RAT_OK);
    assert_int_equal(rat_sent_begin_chunk(&sent, session_view(&session)), RAT_OK);
    assert_int_equal(rat_columns_pack(&columns, words.words, words.count, 0, &sent), RAT_OK);

    const struct rat_body *body = encoded_body();
    Ratrace__V1__Body message = RATRACE__V1__BODY__INIT;
    message.n_gap = body->events;
    message.gap = (uint64_t *)(uintptr_t)body->gap;
    message.n_id = body->ids;
    message.id = (uint32_t *)(uintptr_t)body->id;
    message.kind = (ProtobufCBinaryData){body->events, (uint8_t *)(uintptr_t)body->kind};
    message.n_rich_words = body->riches;
    message.rich_words = (uint32_t *)(uintptr_t)body->rich_words;
    message.n_rich = body->rich_total;
    message.rich = (uint64_t *)(uintptr_t)body->rich;
    uint8_t *packed = malloc(ratrace__v1__body__get_packed_size(&message));
    assert_non_null(packed);
    ratrace__v1__body__pack(&message, packed);
    size_t at = 0;
    const struct {
        const uint8_t *bytes;
        size_t length;
    } hand[] = {{columns.gap, columns.gap_bytes},
                {columns.kind, columns.events},
                {columns.id, columns.id_bytes},
                {columns.rich_words, columns.rich_words_bytes},
                {columns.rich, columns.rich_bytes}};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(packed[at++] >> 3, 2 + i);
        while (packed[at++] > 0x7F)
            ;
        assert_memory_equal(packed + at, hand[i].bytes, hand[i].length);
        at += hand[i].length;
    }
    assert_int_equal(at, ratrace__v1__body__get_packed_size(&message));
    free(packed);
    rat_columns_free(&columns);
    rat_sent_free(&sent);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(calls_and_returns_become_columns),
        TEST(every_length_of_varint_comes_back),
        TEST(a_gap_prefix_is_merged_into_the_next_event),
        TEST(a_gap_prefix_without_its_event_is_corrupt),
        TEST(a_gap_prefix_of_another_length_is_corrupt),
        TEST(a_gap_prefix_before_a_rich_event_is_merged_too),
        TEST(time_that_overflows_is_corrupt),
        TEST(time_that_overflows_by_a_plain_delta_is_corrupt),
        TEST(another_count_of_events_than_the_drain_says_is_corrupt),
        TEST(a_frame_outside_the_dictionary_is_corrupt),
        TEST(a_context_outside_the_dictionary_is_corrupt),
        TEST(a_word_of_kind_zero_is_corrupt),
        TEST(a_payload_that_reaches_behind_the_words_is_corrupt),
        TEST(a_snapshot_deeper_than_its_payload_is_corrupt),
        TEST(a_gate_or_a_cost_shorter_than_it_must_be_is_corrupt),
        TEST(more_words_than_the_slot_has_are_corrupt),
        TEST(a_gate_pulls_its_frame),
        TEST(a_gate_of_a_frame_that_does_not_exist_is_corrupt),
        TEST(a_snapshot_pulls_its_context_its_thread_and_its_frames),
        TEST(a_ring_of_parents_ends),
        TEST(a_frame_carries_all_its_fields),
        TEST(names_are_bytes_with_an_encoding),
        TEST(a_name_that_is_sent_is_not_repeated_in_its_segment),
        TEST(an_abandoned_chunk_takes_its_names_with_it),
        TEST(a_chunk_that_fails_leaves_those_before_it_alone),
        TEST(a_context_that_changed_is_sent_again),
        TEST(kinds_of_a_later_version_pass_through),
        TEST(the_closing_chunk_repeats_the_dictionary),
        TEST(the_header_comes_back_as_it_was_given),
        TEST(more_labels_than_a_header_takes_are_cut),
        TEST(text_of_the_session_is_made_valid_utf8),
        TEST(the_tags_come_back_as_valid_utf8),
        TEST(a_tag_without_an_end_is_none),
        TEST(tags_past_the_bound_are_left_out),
        TEST(a_body_that_shrinks_is_compressed_and_one_that_does_not_is_stored),
        TEST(a_full_output_is_left_as_it_was),
        TEST(the_body_is_what_protobuf_c_would_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
