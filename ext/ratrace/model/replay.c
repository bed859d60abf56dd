#include "model/replay.h"

#include <stdlib.h>
#include <string.h>

#include "model/playback.h"
#include "model/roster.h"
#include "model/stack.h"

struct rat_replay {
    struct rat_allowance allowance;
    struct rat_visitor visitor;
    struct rat_catalog *catalog;
    struct rat_roster roster;
    struct rat_playback playback;
    struct rat_decoder *decoder;
    size_t memory_max;
    struct rat_source *sources;
    size_t source_count, next_source;
    bool sorted, ended;
    struct rat_segment_reader *reader; /* of sources[next_source - 1] */
    struct rat_lane_account *account;  /* of the chunk being played */
    struct rat_read read;
    const struct rat_source *failed;
};

enum rat_status rat_replay_new(const struct rat_source *sources, size_t count, size_t memory_max,
                               const struct rat_visitor *visitor, struct rat_replay **out)
{
    struct rat_replay *replay = calloc(1, sizeof *replay);
    if (!replay)
        return RAT_NO_MEMORY;
    replay->memory_max = memory_max ? memory_max : RAT_REPLAY_MEMORY_DEFAULT;
    replay->allowance.max = replay->memory_max / 2;
    replay->visitor = *visitor;
    enum rat_status status = rat_catalog_new(&replay->allowance, &replay->catalog);
    if (status == RAT_OK)
        status = rat_decoder_new(replay->memory_max / 2, &replay->decoder);
    replay->sources = calloc(count ? count : 1, sizeof *sources);
    if (status == RAT_OK && !replay->sources)
        status = RAT_NO_MEMORY;
    if (status != RAT_OK) {
        rat_replay_free(replay);
        return status;
    }
    if (count > 0)
        memcpy(replay->sources, sources, count * sizeof *sources);
    replay->source_count = count;
    replay->playback.allowance = &replay->allowance;
    replay->playback.catalog = replay->catalog;
    replay->playback.visitor = &replay->visitor;
    *out = replay;
    return RAT_OK;
}

void rat_replay_free(struct rat_replay *replay)
{
    if (!replay)
        return;
    if (replay->playback.allowance)
        rat_playback_free(&replay->playback);
    rat_roster_free(&replay->roster, &replay->allowance);
    rat_catalog_free(replay->catalog);
    rat_decoder_free(replay->decoder);
    rat_segment_reader_free(replay->reader);
    free(replay->sources);
    free(replay);
}

/* ---------------------------------------------------------------- chunks */

/* A chunk with names may be missing: look for the segment's closing chunk, which repeats them all. */
static enum rat_status read_ahead(struct rat_replay *replay, struct rat_replay_session *session)
{
    struct rat_segment_reader *reader = NULL;
    enum rat_status status = rat_source_open(&replay->sources[replay->next_source - 1], &reader);
    struct rat_read *read = malloc(sizeof *read);
    if (status != RAT_OK || !read) {
        free(read);
        rat_segment_reader_free(reader);
        return status == RAT_OK ? RAT_NO_MEMORY : RAT_OK; /* it is open already; without names, then */
    }
    session->scope_mended = true;
    do {
        const struct rat_body *body = NULL;
        rat_segment_next(reader, read);
        if (read->kind != RAT_READ_CHUNK || read->header.lane != 0 || read->header.segment != session->scope_segment ||
            read->header.session_hi != session->hi || read->header.session_lo != session->lo ||
            (read->header.reason != RAT_REASON_CLOSING && read->header.reason != RAT_REASON_CRASH) ||
            rat_decode_body(replay->decoder, &read->header, &body) != RAT_OK)
            continue;
        status = rat_scope_add(&session->scope, &replay->allowance, replay->catalog, body);
        if (status == RAT_OK)
            status = rat_roster_take(session, &replay->allowance, replay->catalog, &replay->visitor, body, true);
    } while (status == RAT_OK && read->kind != RAT_READ_END);
    free(read);
    rat_segment_reader_free(reader);
    return status;
}

static void enter_scope(struct rat_replay *replay, struct rat_replay_session *session,
                        const struct rat_chunk_header *header)
{
    if (session->scope_segment == header->segment)
        return;
    rat_scope_free(&session->scope, &replay->allowance);
    session->scope_segment = header->segment;
    session->scope_damaged = session->scope_mended = false;
}

/* Is the session's first segment among what was given? */
static bool is_from_start(const struct rat_replay *replay, const struct rat_chunk_header *header)
{
    bool found = header->segment <= 1;
    for (size_t i = 0; i < replay->source_count && !found; i++) {
        const struct rat_source *source = &replay->sources[i];
        found = source->any && source->segment <= 1 && source->session_hi == header->session_hi &&
                source->session_lo == header->session_lo;
    }
    return found;
}

static enum rat_status find_session(struct rat_replay *replay, struct rat_replay_session **out)
{
    const struct rat_chunk_header *header = &replay->read.header;
    size_t before = replay->roster.count;
    enum rat_status status = rat_roster_session(&replay->roster, &replay->allowance, header, out);
    if (status != RAT_OK)
        return status;
    if (replay->roster.count > before)
        (*out)->from_start = is_from_start(replay, header);
    if (header->has_info && !(*out)->has_info) {
        (*out)->info = header->info;
        (*out)->has_info = true;
    }
    return RAT_OK;
}

/* When events were dropped, as far as the chunk's labels say. */
static void note_drop_times(struct rat_lane_account *account, const struct rat_chunk_header *header,
                            uint64_t ticks_per_s)
{
    struct rat_timing timing = rat_timing_of(&header->start, &header->end, ticks_per_s);
    uint32_t labels = header->lost_count < RAT_HEADER_LOSTS_MAX ? header->lost_count : RAT_HEADER_LOSTS_MAX;
    for (uint32_t i = 0; i < labels; i++) {
        const struct rat_lost_label *label = &header->lost[i];
        if (label->first_seq != 0 || label->to_ticks == 0)
            continue;
        uint64_t from = rat_timing_ns(&timing, label->from_ticks), to = rat_timing_ns(&timing, label->to_ticks);
        if (account->drop_from_ns == 0 || from < account->drop_from_ns)
            account->drop_from_ns = from;
        if (to > account->drop_to_ns)
            account->drop_to_ns = to;
    }
}

/* A chunk whose header stands and whose events do not: their number is known. */
static void play_headless(struct rat_replay *replay, struct rat_replay_session *session, struct rat_replay_lane *lane,
                          bool damaged)
{
    const struct rat_chunk_header *header = &replay->read.header;
    if (damaged)
        rat_account_damaged(replay->account, header);
    else
        rat_account_unreadable(replay->account, header);
    session->scope_damaged = true;
    rat_roster_break(session, lane, &replay->visitor);
}

static enum rat_status decode(struct rat_replay *replay, struct rat_replay_session *session,
                              const struct rat_body **body)
{
    enum rat_status status;
    if (session->scope_damaged && !session->scope_mended) {
        status = read_ahead(replay, session);
        if (status != RAT_OK)
            return status;
    }
    status = rat_decode_body(replay->decoder, &replay->read.header, body);
    if (status != RAT_OK)
        return status;
    status = rat_scope_add(&session->scope, &replay->allowance, replay->catalog, *body);
    if (status == RAT_OK)
        status = rat_roster_take(session, &replay->allowance, replay->catalog, &replay->visitor, *body, false);
    return status;
}

/* A closing chunk: chunks that were lost at the end of its segment are known by what it says of their lanes. */
static enum rat_status take_marks(struct rat_replay *replay, struct rat_replay_session *session)
{
    const struct rat_chunk_header *header = &replay->read.header;
    enum rat_status status = RAT_OK;
    for (uint32_t i = 0; i < header->mark_count && status == RAT_OK; i++) {
        struct rat_replay_lane *lane;
        bool missing;
        status = rat_account_mark(&session->account, &replay->allowance, header, &header->marks[i],
                                  session->from_start, &missing);
        if (status == RAT_OK && missing)
            status = rat_roster_lane(session, &replay->allowance, header->marks[i].lane, &lane);
        if (status == RAT_OK && missing)
            rat_roster_break(session, lane, &replay->visitor);
    }
    replay->account = rat_account_lane(&session->account, header->lane); /* it may have moved */
    return status;
}

/* Enter a chunk into the books, decode it, and leave it to the playback. */
static enum rat_status open_chunk(struct rat_replay *replay, bool readable)
{
    const struct rat_chunk_header *header = &replay->read.header;
    struct rat_replay_session *session;
    struct rat_replay_lane *lane;
    enum rat_verdict verdict;
    enum rat_status status = find_session(replay, &session);
    if (status == RAT_OK)
        status = rat_account_header(&session->account, &replay->allowance, header, session->from_start, &verdict,
                                    &replay->account);
    if (status != RAT_OK || verdict == RAT_VERDICT_DUPLICATE || verdict == RAT_VERDICT_LATE)
        return status;
    status = rat_roster_lane(session, &replay->allowance, header->lane, &lane);
    if (status != RAT_OK)
        return status;
    enter_scope(replay, session, header);
    status = take_marks(replay, session);
    if (status != RAT_OK)
        return status;
    note_drop_times(replay->account, header, session->info.ticks_per_s);
    if (verdict == RAT_VERDICT_GAP) {
        session->scope_damaged = true;
        rat_roster_break(session, lane, &replay->visitor);
    }
    if (!readable) {
        play_headless(replay, session, lane, false);
        return RAT_OK;
    }
    const struct rat_body *body = NULL;
    status = decode(replay, session, &body);
    if (status == RAT_CORRUPT || status == RAT_UNSUPPORTED) {
        play_headless(replay, session, lane, status == RAT_CORRUPT);
        return RAT_OK;
    }
    if (status == RAT_OK)
        rat_playback_begin(&replay->playback, session, lane, header, body);
    return status;
}

/* The chunk in hand was played to its end. */
static void close_chunk(struct rat_replay *replay)
{
    struct rat_replay_lane *lane = replay->playback.lane;
    const struct rat_chunk_header *header = &replay->read.header;
    bool dropped = rat_account_has_drops(header);
    replay->account->decoded += header->events;
    if (dropped || lane->dropped)
        rat_roster_break(replay->playback.session, lane, &replay->visitor);
    lane->dropped = dropped;
}

/* ---------------------------------------------------------------- files */

static enum rat_status next_file(struct rat_replay *replay)
{
    rat_segment_reader_free(replay->reader);
    replay->reader = NULL;
    if (replay->next_source == replay->source_count)
        return RAT_END;
    replay->failed = &replay->sources[replay->next_source++];
    enum rat_status status = rat_source_open(replay->failed, &replay->reader);
    if (status == RAT_OK)
        replay->failed = NULL;
    return status;
}

/* Something that is no chunk: the newest session may have lost one, with its names. */
static void note_damage(struct rat_replay *replay, struct rat_source *source)
{
    if (source->skipped_places++ == 0)
        source->first_skipped_at = replay->read.at;
    source->skipped_bytes += replay->read.length;
    if (replay->playback.session)
        replay->playback.session->scope_damaged = true;
}

static enum rat_status next_chunk(struct rat_replay *replay)
{
    if (!replay->reader) {
        enum rat_status status = next_file(replay);
        if (status != RAT_OK)
            return status;
    }
    struct rat_source *source = &replay->sources[replay->next_source - 1];
    rat_segment_next(replay->reader, &replay->read);
    switch (replay->read.kind) {
    case RAT_READ_CHUNK:
        source->chunks++;
        return open_chunk(replay, true);
    case RAT_READ_UNREADABLE:
        source->chunks++;
        return open_chunk(replay, false);
    case RAT_READ_SKIPPED:
        note_damage(replay, source);
        return RAT_OK;
    case RAT_READ_TORN:
        source->torn_bytes += replay->read.length;
        return RAT_OK;
    case RAT_READ_END:
        break;
    }
    rat_segment_reader_free(replay->reader);
    replay->reader = NULL;
    return RAT_OK;
}

/* ---------------------------------------------------------------- the end */

static void leave_open(struct rat_replay *replay, struct rat_replay_session *session)
{
    for (size_t id = 0; id < session->context_capacity; id++) {
        struct rat_replay_context *context = session->contexts[id];
        if (!context || context->depth == 0)
            continue;
        uint64_t ns = context->loss_ns;
        for (size_t i = 0; i < session->lane_count && !context->lossy; i++)
            if (session->lanes[i].number == context->lane)
                ns = session->lanes[i].last_ns;
        rat_stack_close(context, &replay->visitor, 0, ns, RAT_LEFT_OPEN);
    }
}

static void finish(struct rat_replay *replay)
{
    for (size_t i = 0; i < replay->roster.count; i++) {
        struct rat_replay_session *session = replay->roster.sessions[i];
        leave_open(replay, session);
        for (size_t lane = 0; lane < session->account.lane_count; lane++)
            if (!rat_account_balanced(&session->account.lanes[lane]))
                rat_account_find(&session->account, RAT_FINDING_BALANCE, NULL);
    }
    replay->ended = true;
}

enum rat_status rat_replay_step(struct rat_replay *replay, uint64_t events)
{
    enum rat_status status = RAT_OK;
    if (!replay->sorted)
        status = rat_sources_sort(replay->sources, replay->source_count, &replay->failed);
    replay->sorted = true;
    /* A chunk counts as some events, and by its size, so that files of empty chunks, or of large ones that say nothing,
     * end a step, too. */
    uint64_t work = 0;
    while (status == RAT_OK && !replay->ended && work < events) {
        if (!replay->playback.body) {
            status = next_chunk(replay);
            work += 64;
            if (replay->read.kind == RAT_READ_CHUNK)
                work += replay->read.header.raw_bytes / 16;
            if (status == RAT_END)
                finish(replay);
        }
        if (status == RAT_OK && replay->playback.body) {
            size_t at = replay->playback.at;
            status = rat_playback_run(&replay->playback, work + 64 > events ? 64 : events - work);
            work += replay->playback.at - at;
            if (status == RAT_OK && !replay->playback.body)
                close_chunk(replay);
        }
    }
    if (status != RAT_OK && !replay->ended && !replay->failed && replay->next_source > 0)
        replay->failed = &replay->sources[replay->next_source - 1];
    return replay->ended ? RAT_END : status;
}

/* ---------------------------------------------------------------- live */

enum rat_status rat_replay_feed(struct rat_replay *replay, const uint8_t *bytes, size_t length)
{
    replay->sorted = true;
    replay->source_count = replay->next_source = 1;
    replay->sources[0] = (struct rat_source){.bytes = bytes, .length = length};
    enum rat_status status = rat_segment_open_bytes(bytes, length, &replay->reader);
    while (status == RAT_OK && (replay->reader || replay->playback.body)) {
        if (!replay->playback.body) {
            status = next_chunk(replay);
            continue;
        }
        status = rat_playback_run(&replay->playback, UINT64_MAX);
        if (status == RAT_OK)
            close_chunk(replay);
    }
    return status;
}

void rat_replay_pause(struct rat_replay *replay, uint64_t ns)
{
    for (size_t i = 0; i < replay->roster.count; i++) {
        struct rat_replay_session *session = replay->roster.sessions[i];
        for (size_t lane = 0; lane < session->lane_count; lane++)
            if (session->lanes[lane].last_ns < ns)
                session->lanes[lane].last_ns = ns;
        for (size_t id = 0; id < session->context_capacity; id++) {
            struct rat_replay_context *context = session->contexts[id];
            if (!context)
                continue;
            uint64_t at = ns; /* a lane may be ahead of the cut by what was recorded while it was read */
            for (size_t lane = 0; lane < session->lane_count; lane++)
                if (session->lanes[lane].number == context->lane)
                    at = session->lanes[lane].last_ns;
            context->paused = context->depth;
            if (context->lossy && context->loss_ns < at)
                context->loss_ns = at; /* what a snapshot will close there is not older */
            rat_stack_close(context, &replay->visitor, 0, at, RAT_LEFT_OPEN);
            for (size_t frame = 0; frame < context->paused; frame++)
                context->stack[frame].since_ns = at;
            context->tag = 0;
        }
    }
}

static enum rat_status resume_context(struct rat_replay *replay, struct rat_replay_context *context)
{
    enum rat_status status = RAT_OK;
    for (size_t i = 0; i < context->paused && status == RAT_OK; i++) {
        struct rat_open_frame frame = context->stack[i];
        frame.inner_ns = frame.tag = 0;
        frame.before = true;
        status = rat_stack_push(context, &replay->allowance, &replay->visitor, frame);
    }
    context->paused = 0;
    return status;
}

enum rat_status rat_replay_resume(struct rat_replay *replay)
{
    enum rat_status status = RAT_OK;
    for (size_t i = 0; i < replay->roster.count; i++) {
        struct rat_replay_session *session = replay->roster.sessions[i];
        for (size_t id = 0; id < session->context_capacity && status == RAT_OK; id++)
            if (session->contexts[id])
                status = resume_context(replay, session->contexts[id]);
    }
    return status;
}

const char *rat_replay_failed(const struct rat_replay *replay)
{
    return replay->failed ? replay->failed->path : NULL;
}

struct rat_allowance *rat_replay_allowance(struct rat_replay *replay)
{
    return &replay->allowance;
}

struct rat_catalog *rat_replay_catalog(struct rat_replay *replay)
{
    return replay->catalog;
}

size_t rat_replay_session_count(const struct rat_replay *replay)
{
    return replay->roster.count;
}

const struct rat_replay_session *rat_replay_session(const struct rat_replay *replay, size_t index)
{
    return replay->roster.sessions[index];
}

size_t rat_replay_source_count(const struct rat_replay *replay)
{
    return replay->source_count;
}

const struct rat_source *rat_replay_source(const struct rat_replay *replay, size_t index)
{
    return &replay->sources[index];
}
