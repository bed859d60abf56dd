#include "model/accounting.h"

#include <stdlib.h>
#include <string.h>

#define LANES_MAX 4096u /* a lane number above is damage that passed its check, or an attack */

const char *rat_finding_text(enum rat_finding finding)
{
    static const char *const texts[] = {
#define RAT_FINDING_TEXT(code, text) text,
        RAT_FINDING_LIST(RAT_FINDING_TEXT)
#undef RAT_FINDING_TEXT
    };
    return texts[finding];
}

const char *rat_cause_name(uint32_t cause)
{
    switch (cause) {
    case RAT_DROP_SLOT_FULL:
        return "slot_full";
    case RAT_DROP_CONTENDED:
        return "contended";
    case RAT_DROP_OUT_OF_MEMORY:
        return "out_of_memory";
    case RAT_DROP_LANE_DISABLED:
        return "lane_disabled";
    case RAT_DROP_NO_LANE:
        return "no_lane";
    case RAT_LOST_ENCODER_MEMORY:
        return "encoder_memory";
    case RAT_LOST_FENCE_FAILED:
        return "fence_failed";
    case RAT_LOST_INVARIANT:
        return "invariant";
    case RAT_LOST_WRITE_FAILED:
        return "write_failed";
    case RAT_LOST_POWER:
        return "power_loss";
    case RAT_LOST_UNKNOWN:
        return "unknown";
    default:
        return NULL;
    }
}

void rat_account_find(struct rat_session_account *session, enum rat_finding finding,
                      const struct rat_chunk_header *header)
{
    struct rat_finding_count *found = &session->findings[finding];
    if (found->count++ > 0 || !header)
        return;
    found->segment = header->segment;
    found->lane = header->lane;
    found->sequence = header->sequence;
}

struct rat_lane_account *rat_account_lane(const struct rat_session_account *session, uint32_t number)
{
    for (size_t i = 0; i < session->lane_count; i++)
        if (session->lanes[i].lane == number)
            return &session->lanes[i];
    return NULL;
}

static enum rat_status find_lane(struct rat_session_account *session, struct rat_allowance *allowance, uint32_t number,
                                 struct rat_lane_account **out)
{
    *out = rat_account_lane(session, number);
    if (*out != NULL)
        return RAT_OK;
    if (session->lane_count >= LANES_MAX)
        return RAT_TOO_BIG;
    enum rat_status status = rat_allowance_grow(allowance, (void **)&session->lanes, &session->lane_capacity,
                                             session->lane_count + 1, sizeof *session->lanes);
    if (status != RAT_OK)
        return status;
    *out = &session->lanes[session->lane_count++];
    **out = (struct rat_lane_account){.lane = number};
    return RAT_OK;
}

static enum rat_status note_segment(struct rat_session_account *session, struct rat_allowance *allowance,
                                    const struct rat_chunk_header *header)
{
    bool closing = header->lane == 0 && (header->reason == RAT_REASON_CLOSING || header->reason == RAT_REASON_CRASH);
    struct rat_segment_account *last =
        session->segment_count ? &session->segments[session->segment_count - 1] : NULL;
    for (size_t i = session->segment_count; i-- > 0 && (!last || last->number != header->segment);)
        last = &session->segments[i];
    if (!last || last->number != header->segment) {
        enum rat_status status = rat_allowance_grow(allowance, (void **)&session->segments, &session->segment_capacity,
                                                 session->segment_count + 1, sizeof *session->segments);
        if (status != RAT_OK)
            return status;
        last = &session->segments[session->segment_count++];
        *last = (struct rat_segment_account){.number = header->segment};
    }
    last->closing |= closing;
    session->crashed |= closing && header->reason == RAT_REASON_CRASH;
    session->stopped = session->segments[session->segment_count - 1].closing;
    return RAT_OK;
}

/* Missing sequences [from, to] held `events`: give them to the causes their labels name. */
static void add_lost(struct rat_lane_account *lane, const struct rat_chunk_header *header, uint64_t from, uint64_t to,
                     uint64_t events)
{
    uint32_t labels = header->lost_count < RAT_HEADER_LOSTS_MAX ? header->lost_count : RAT_HEADER_LOSTS_MAX;
    lane->lost_chunks += to - from + 1;
    for (uint32_t i = 0; i < labels; i++) {
        const struct rat_lost_label *label = &header->lost[i];
        if (label->first_seq < from || label->last_seq > to || label->first_seq == 0 || label->cause >= RAT_CAUSES)
            continue;
        uint64_t count = label->count < events ? label->count : events;
        lane->lost[label->cause] += count;
        events -= count;
    }
    lane->lost[RAT_LOST_UNKNOWN] += events;
}

/* From the totals `from` at the end of chunk `from_sequence` to the opening ones of this chunk. Drops are read by the
 * serializer while the producer has moved on, so they may cross the border of two chunks; their sum is exact. */
static void add_between(struct rat_session_account *session, struct rat_lane_account *lane,
                        const struct rat_chunk_header *header, const struct rat_totals *from, uint64_t from_sequence)
{
    const struct rat_totals *to = &header->opened;
    bool missing = header->sequence > from_sequence + 1;
    bool agree = missing ? to->stored >= from->stored : to->stored == from->stored;
    for (uint32_t cause = 0; cause < RAT_DROP_CAUSES; cause++) {
        agree &= header->closed.drop[cause] >= from->drop[cause];
        lane->dropped[cause] += to->drop[cause] - from->drop[cause];
    }
    if (!agree && lane->lane != 0)
        rat_account_find(session, RAT_FINDING_TOTALS, header);
    if (!missing)
        return;
    if (lane->missing_count < RAT_MISSING_MAX)
        lane->missing[lane->missing_count++] =
            (struct rat_sequence_range){from_sequence + 1, header->sequence - 1};
    add_lost(lane, header, from_sequence + 1, header->sequence - 1,
             to->stored >= from->stored ? to->stored - from->stored : 0);
}

static void add_within(struct rat_session_account *session, struct rat_lane_account *lane,
                       const struct rat_chunk_header *header)
{
    bool agree = header->closed.stored - header->opened.stored == header->events;
    for (uint32_t cause = 0; cause < RAT_DROP_CAUSES; cause++) {
        agree &= header->closed.drop[cause] >= header->opened.drop[cause];
        lane->dropped[cause] += header->closed.drop[cause] - header->opened.drop[cause];
    }
    if (!agree && lane->lane != 0)
        rat_account_find(session, RAT_FINDING_COUNT, header);
    if (header->closed.drop[RAT_DROP_CONTENDED] > header->opened.drop[RAT_DROP_CONTENDED])
        rat_account_find(session, RAT_FINDING_CONTENDED, header);
    lane->chunks++;
    lane->in_flight += header->in_flight;
    lane->closed = header->closed;
    lane->last_sequence = header->sequence;
}

static void add_first(struct rat_session_account *session, struct rat_lane_account *lane,
                      const struct rat_chunk_header *header, bool from_start, enum rat_verdict *verdict)
{
    lane->any = true;
    if (header->sequence > 1)
        *verdict = RAT_VERDICT_GAP;
    if (header->sequence > 1 && !from_start) {
        lane->first_sequence = header->sequence;
        lane->opened = header->opened;
        lane->before = header->opened.stored;
    } else {
        lane->first_sequence = 1;
        add_between(session, lane, header, &lane->opened, 0);
    }
}

/* A sequence not above the last one: a chunk met again, or one that was missed and comes too late. */
static enum rat_verdict judge_old(struct rat_session_account *session, struct rat_lane_account *lane,
                                  const struct rat_chunk_header *header)
{
    bool late = header->sequence < lane->first_sequence;
    for (uint32_t i = 0; i < lane->missing_count; i++)
        late |= header->sequence >= lane->missing[i].from && header->sequence <= lane->missing[i].to;
    if (late)
        rat_account_find(session, RAT_FINDING_LATE, header);
    else
        lane->duplicates++;
    return late ? RAT_VERDICT_LATE : RAT_VERDICT_DUPLICATE;
}

enum rat_status rat_account_header(struct rat_session_account *session, struct rat_allowance *allowance,
                                   const struct rat_chunk_header *header, bool from_start, enum rat_verdict *verdict,
                                   struct rat_lane_account **out)
{
    struct rat_lane_account *lane;
    enum rat_status status = find_lane(session, allowance, header->lane, &lane);
    if (status != RAT_OK)
        return status;
    *out = lane;
    if (lane->any && header->sequence <= lane->last_sequence) {
        *verdict = judge_old(session, lane, header);
        return RAT_OK;
    }
    status = note_segment(session, allowance, header);
    if (status != RAT_OK)
        return status;
    *verdict = RAT_VERDICT_NEXT;
    if (!lane->any) {
        add_first(session, lane, header, from_start, verdict);
    } else {
        if (header->sequence > lane->last_sequence + 1)
            *verdict = RAT_VERDICT_GAP;
        add_between(session, lane, header, &lane->closed, lane->last_sequence);
    }
    add_within(session, lane, header);
    return RAT_OK;
}

/* A lane none of whose chunks was read is known only where its first segment is among what is read: else it may have
 * been idle in this one. */
enum rat_status rat_account_mark(struct rat_session_account *session, struct rat_allowance *allowance,
                                 const struct rat_chunk_header *header, const struct rat_lane_mark *mark,
                                 bool from_start, bool *missing)
{
    struct rat_lane_account *lane;
    *missing = false;
    if (mark->lane == 0 || mark->sequence == 0 || mark->sequence == UINT64_MAX ||
        (!from_start && rat_account_lane(session, mark->lane) == NULL))
        return RAT_OK;
    enum rat_status status = find_lane(session, allowance, mark->lane, &lane);
    if (status != RAT_OK)
        return status;
    if (!lane->any)
        lane->first_sequence = 1;
    lane->any = true;
    /* as the chunk behind it would open */
    struct rat_chunk_header next = {.segment = header->segment, .lane = mark->lane, .sequence = mark->sequence + 1,
                                    .opened = mark->closed, .closed = mark->closed};
    if (mark->sequence < lane->last_sequence)
        return RAT_OK;
    *missing = mark->sequence > lane->last_sequence;
    add_between(session, lane, &next, &lane->closed, lane->last_sequence);
    lane->closed = mark->closed;
    lane->last_sequence = mark->sequence;
    return RAT_OK;
}

void rat_account_free(struct rat_session_account *session, struct rat_allowance *allowance)
{
    rat_allowance_free(allowance, session->lanes, session->lane_capacity * sizeof *session->lanes);
    rat_allowance_free(allowance, session->segments, session->segment_capacity * sizeof *session->segments);
    *session = (struct rat_session_account){0};
}

void rat_account_damaged(struct rat_lane_account *lane, const struct rat_chunk_header *header)
{
    lane->damaged += header->events;
    lane->damaged_chunks++;
    lane->lost_chunks++;
    lane->lost[RAT_LOST_UNKNOWN] += header->events;
}

void rat_account_unreadable(struct rat_lane_account *lane, const struct rat_chunk_header *header)
{
    lane->unreadable += header->events;
    lane->unreadable_chunks++;
}

static uint64_t sum(const uint64_t *counts, size_t length)
{
    uint64_t total = 0;
    for (size_t i = 0; i < length; i++)
        total += counts[i];
    return total;
}

uint64_t rat_account_emitted(const struct rat_lane_account *lane)
{
    return lane->closed.stored - lane->opened.stored + sum(lane->closed.drop, RAT_DROP_CAUSES) -
           sum(lane->opened.drop, RAT_DROP_CAUSES) + lane->in_flight;
}

uint64_t rat_account_dropped(const struct rat_lane_account *lane)
{
    return sum(lane->dropped, RAT_CAUSES);
}

uint64_t rat_account_lost(const struct rat_lane_account *lane)
{
    return sum(lane->lost, RAT_CAUSES);
}

bool rat_account_balanced(const struct rat_lane_account *lane)
{
    return rat_account_emitted(lane) == lane->decoded + rat_account_dropped(lane) + rat_account_lost(lane) +
                                            lane->unreadable + lane->in_flight;
}

bool rat_account_has_drops(const struct rat_chunk_header *header)
{
    return sum(header->closed.drop, RAT_DROP_CAUSES) != sum(header->opened.drop, RAT_DROP_CAUSES);
}
