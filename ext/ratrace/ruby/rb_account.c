#include "ruby/rb_reading.h"

#include <stdio.h>
#include <string.h>

#include "base/fence.h"
#include "ruby/rb_canary.h"
#include "ruby/rb_hash.h"

/* Text of a file's Session: bytes somebody else wrote. */
static VALUE text(const char *bytes)
{
    return rb_utf8_str_new_cstr(bytes);
}

static VALUE session_id(uint64_t hi, uint64_t lo)
{
    char hex[33];
    snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)hi, (unsigned long long)lo);
    return rb_utf8_str_new_cstr(hex);
}

static VALUE causes(const uint64_t *counts)
{
    VALUE hash = rb_hash_new();
    for (uint32_t cause = 0; cause < RAT_CAUSES; cause++) {
        const char *name = rat_cause_name(cause);
        if (counts[cause] == 0)
            continue;
        VALUE key = name ? text(name) : rb_sprintf("cause_%u", cause);
        rb_hash_aset(hash, key, ULL2NUM(counts[cause]));
    }
    return hash;
}

static VALUE lane_account(const struct rat_lane_account *lane)
{
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "lane", UINT2NUM(lane->lane));
    rb_rat_set(hash, "chunks", ULL2NUM(lane->chunks));
    rb_rat_set(hash, "first_sequence", ULL2NUM(lane->first_sequence));
    rb_rat_set(hash, "last_sequence", ULL2NUM(lane->last_sequence));
    rb_rat_set(hash, "before", ULL2NUM(lane->before));
    rb_rat_set(hash, "emitted", ULL2NUM(rat_account_emitted(lane)));
    rb_rat_set(hash, "decoded", ULL2NUM(lane->decoded));
    rb_rat_set(hash, "dropped", causes(lane->dropped));
    rb_rat_set(hash, "lost", causes(lane->lost));
    rb_rat_set(hash, "lost_chunks", ULL2NUM(lane->lost_chunks));
    rb_rat_set(hash, "damaged", ULL2NUM(lane->damaged));
    rb_rat_set(hash, "damaged_chunks", ULL2NUM(lane->damaged_chunks));
    rb_rat_set(hash, "unreadable", ULL2NUM(lane->unreadable));
    rb_rat_set(hash, "unreadable_chunks", ULL2NUM(lane->unreadable_chunks));
    rb_rat_set(hash, "duplicates", ULL2NUM(lane->duplicates));
    rb_rat_set(hash, "in_flight", ULL2NUM(lane->in_flight));
    rb_rat_set(hash, "drop_from_ns", lane->drop_from_ns ? ULL2NUM(lane->drop_from_ns) : Qnil);
    rb_rat_set(hash, "drop_to_ns", lane->drop_to_ns ? ULL2NUM(lane->drop_to_ns) : Qnil);
    rb_rat_set(hash, "balanced", rat_account_balanced(lane) ? Qtrue : Qfalse);
    return hash;
}

static VALUE findings(const struct rat_session_account *account)
{
    VALUE list = rb_ary_new();
    for (int i = 0; i < RAT_FINDINGS; i++) {
        const struct rat_finding_count *found = &account->findings[i];
        if (found->count == 0)
            continue;
        VALUE hash = rb_hash_new();
        rb_rat_set(hash, "text", text(rat_finding_text((enum rat_finding)i)));
        rb_rat_set(hash, "count", ULL2NUM(found->count));
        rb_rat_set(hash, "segment", UINT2NUM(found->segment));
        rb_rat_set(hash, "lane", UINT2NUM(found->lane));
        rb_rat_set(hash, "sequence", ULL2NUM(found->sequence));
        rb_ary_push(list, hash);
    }
    return list;
}

static void set_segments(VALUE hash, const struct rat_session_account *account)
{
    VALUE numbers = rb_ary_new(), unclosed = rb_ary_new();
    for (size_t i = 0; i < account->segment_count; i++) {
        rb_ary_push(numbers, UINT2NUM(account->segments[i].number));
        if (!account->segments[i].closing)
            rb_ary_push(unclosed, UINT2NUM(account->segments[i].number));
    }
    rb_rat_set(hash, "segments", numbers);
    rb_rat_set(hash, "unclosed_segments", unclosed);
}

static const char *clock_name(uint32_t clock)
{
    return clock >= RAT_CLOCK_MONOTONIC && clock <= RAT_CLOCK_CNTVCT ? rat_clock_name((enum rat_clock_kind)clock)
                                                                    : "unknown";
}

static VALUE tags_of(const struct rat_session_info *info)
{
    VALUE hash = rb_hash_new();
    const char *name, *value;
    for (size_t at = 0; rat_tags_next(info->tags, &at, &name, &value);)
        rb_hash_aset(hash, text(name), text(value));
    return hash;
}

static void set_info(VALUE hash, const struct rat_replay_session *session)
{
    const struct rat_session_info *info = &session->info;
    rb_rat_set(hash, "service", text(info->service));
    rb_rat_set(hash, "host", text(info->host));
    rb_rat_set(hash, "ruby", text(info->ruby));
    rb_rat_set(hash, "recorder", text(info->recorder));
    rb_rat_set(hash, "trace", *info->trace != '\0' ? text(info->trace) : Qnil);
    rb_rat_set(hash, "tags", tags_of(info));
    rb_rat_set(hash, "pid", UINT2NUM(info->pid));
    rb_rat_set(hash, "parent_pid", info->parent_pid ? UINT2NUM(info->parent_pid) : Qnil);
    rb_rat_set(hash, "parent",
               info->parent_hi || info->parent_lo ? session_id(info->parent_hi, info->parent_lo) : Qnil);
    rb_rat_set(hash, "start_ns", ULL2NUM(info->start_ns));
    rb_rat_set(hash, "clock", text(clock_name(info->clock)));
    rb_rat_set(hash, "ticks_per_s", ULL2NUM(info->ticks_per_s));
    rb_rat_set(hash, "fence", text(info->fence == RAT_FENCE_MEMBARRIER ? "membarrier"
                                   : info->fence == RAT_FENCE_SEQ_CST  ? "seq_cst"
                                                                       : "unknown"));
    rb_rat_set(hash, "frame_path",
               text(info->frame_path == 1 ? "frame words" : info->frame_path == 2 ? "public calls" : "unknown"));
    rb_rat_set(hash, "slot_bytes", ULL2NUM(info->slot_bytes));
}

static VALUE omissions(struct rb_rat_reading *reading, const struct rat_omission *omission)
{
    VALUE list = rb_ary_new_capa((long)omission->span_count);
    for (size_t i = 0; i < omission->span_count; i++) {
        const struct rat_omission_span *span = &omission->spans[i];
        VALUE hash = rb_hash_new();
        rb_rat_set(hash, "frame", rb_rat_reading_frame(reading, span->frame));
        rb_rat_set(hash, "from_ns", ULL2NUM(span->from_ns));
        rb_rat_set(hash, "to_ns", span->to_ns ? ULL2NUM(span->to_ns) : Qnil);
        rb_rat_set(hash, "left_out", ULL2NUM(span->left_out));
        rb_ary_push(list, hash);
    }
    return list;
}

static VALUE cost(const uint64_t *numbers)
{
    static const char *const names[RAT_COST_WORDS] = {"hooks_ns", "serializer_ns", "process_ns", "gvl_ns", "events"};
    if (numbers[2] == 0)
        return Qnil; /* not told */
    VALUE hash = rb_hash_new();
    for (int i = 0; i < RAT_COST_WORDS; i++)
        rb_rat_set(hash, names[i], ULL2NUM(numbers[i]));
    return hash;
}

static VALUE session_account(struct rb_rat_reading *reading, const struct rat_replay_session *session)
{
    VALUE hash = rb_hash_new(), lanes = rb_ary_new();
    rb_rat_set(hash, "id", session_id(session->hi, session->lo));
    rb_rat_set(hash, "known", session->has_info ? Qtrue : Qfalse);
    set_info(hash, session);
    rb_rat_set(hash, "realtime_offset_ns", LL2NUM(session->realtime_ns));
    rb_rat_set(hash, "first_ns", ULL2NUM(session->first_ns));
    rb_rat_set(hash, "last_ns", ULL2NUM(session->last_ns));
    rb_rat_set(hash, "opened", ULL2NUM(session->opened));
    rb_rat_set(hash, "repairs", ULL2NUM(session->repairs));
    rb_rat_set(hash, "unmatched", ULL2NUM(session->unmatched));
    rb_rat_set(hash, "unwound", ULL2NUM(session->unwound));
    rb_rat_set(hash, "snapshots", ULL2NUM(session->snapshots));
    rb_rat_set(hash, "names_lost", ULL2NUM(session->names_lost));
    rb_rat_set(hash, "unknown_events", ULL2NUM(session->unknown_events));
    rb_rat_set(hash, "clamped", ULL2NUM(session->clamped));
    rb_rat_set(hash, "from_start", session->from_start ? Qtrue : Qfalse);
    rb_rat_set(hash, "stopped", session->account.stopped ? Qtrue : Qfalse);
    rb_rat_set(hash, "crashed", session->account.crashed ? Qtrue : Qfalse);
    set_segments(hash, &session->account);
    for (size_t i = 0; i < session->account.lane_count; i++)
        rb_ary_push(lanes, lane_account(&session->account.lanes[i]));
    rb_rat_set(hash, "lanes", lanes);
    rb_rat_set(hash, "findings", findings(&session->account));
    rb_rat_set(hash, "omissions", omissions(reading, &session->omission));
    rb_rat_set(hash, "omissions_untold", ULL2NUM(session->omission.untold));
    rb_rat_set(hash, "left_out", ULL2NUM(session->omission.left_out));
    rb_rat_set(hash, "cost", cost(session->cost));
    rb_rat_set(hash, "blind", rb_rat_blind_names(session->blind));
    return hash;
}

static VALUE file_account(const struct rat_source *source)
{
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "path", rb_filesystem_str_new_cstr(source->path));
    rb_rat_set(hash, "chunks", ULL2NUM(source->chunks));
    rb_rat_set(hash, "skipped_bytes", ULL2NUM(source->skipped_bytes));
    rb_rat_set(hash, "skipped_places", ULL2NUM(source->skipped_places));
    rb_rat_set(hash, "first_skipped_at", ULL2NUM(source->first_skipped_at));
    rb_rat_set(hash, "torn_bytes", ULL2NUM(source->torn_bytes));
    return hash;
}

VALUE rb_rat_reading_account(struct rb_rat_reading *reading)
{
    VALUE hash = rb_hash_new(), sessions = rb_ary_new(), files = rb_ary_new();
    for (size_t i = 0; i < rat_replay_session_count(reading->replay); i++)
        rb_ary_push(sessions, session_account(reading, rat_replay_session(reading->replay, i)));
    for (size_t i = 0; i < rat_replay_source_count(reading->replay); i++)
        rb_ary_push(files, file_account(rat_replay_source(reading->replay, i)));
    rb_rat_set(hash, "sessions", sessions);
    rb_rat_set(hash, "files", files);
    return hash;
}
