#include "model/playback.h"

#include <string.h>

#include "model/roster.h"

static void find(const struct rat_playback *playback, enum rat_finding finding)
{
    rat_account_find(&playback->session->account, finding, playback->header);
}

void rat_playback_begin(struct rat_playback *playback, struct rat_replay_session *session,
                        struct rat_replay_lane *lane, const struct rat_chunk_header *header,
                        const struct rat_body *body)
{
    playback->session = session;
    playback->lane = lane;
    playback->header = header;
    playback->body = body;
    playback->timing = rat_timing_of(&header->start, &header->end, session->info.ticks_per_s);
    playback->ticks = body->base_ticks;
    playback->at = playback->id_at = playback->rich_at = playback->word_at = 0;
    lane->current = NULL;
    uint64_t first = body->events ? rat_timing_ns(&playback->timing, body->base_ticks + body->gap[0]) : 0;
    if (body->events && (session->first_ns == 0 || first < session->first_ns))
        session->first_ns = first;
}

/* The lane's events are now those of `context`. */
static void make_current(struct rat_playback *playback, struct rat_replay_context *context)
{
    struct rat_replay_lane *lane = playback->lane;
    if (lane->current) {
        lane->current->last_ns = lane->last_ns;
        if (lane->current->lossy) /* events that no snapshot led in, but events */
            lane->current->loss_ns = lane->last_ns;
    }
    lane->current = NULL;
    if (!context)
        return;
    if (context->lane == 0) {
        context->lane = lane->number;
        context->first_ns = lane->last_ns;
    }
    if (context->lane != lane->number) {
        find(playback, RAT_FINDING_LANE);
        return;
    }
    lane->current = context;
    context->last_ns = lane->last_ns;
}

/* The context named in a rich event or a switch; NULL for an id that cannot be. */
static enum rat_status context_of(struct rat_playback *playback, uint32_t id, struct rat_replay_context **out)
{
    *out = NULL;
    if (id == 0 || id >= RAT_CONTEXT_ID_MAX) {
        find(playback, RAT_FINDING_PAYLOAD);
        return RAT_OK;
    }
    return rat_roster_context(playback->session, playback->allowance, id, out);
}

static uint32_t frame_of(const struct rat_playback *playback, uint32_t id)
{
    uint32_t frame = rat_scope_frame(&playback->session->scope, id);
    if (__builtin_expect(frame == RAT_CATALOG_LOST, 0)) {
        playback->session->names_lost++;
        if (!playback->session->scope_damaged)
            find(playback, RAT_FINDING_NAME);
    }
    return frame;
}

static enum rat_status call(struct rat_playback *playback, uint32_t frame, enum rat_flavor flavor, uint64_t ns)
{
    struct rat_replay_context *context = playback->lane->current;
    if (__builtin_expect(!context, 0)) {
        find(playback, RAT_FINDING_NO_CONTEXT);
        return RAT_OK;
    }
    struct rat_open_frame open = {.since_ns = ns, .frame = frame, .flavor = flavor};
    return rat_stack_push(context, playback->allowance, playback->visitor, open);
}

static void pop(struct rat_playback *playback, enum rat_flavor flavor, uint64_t ns)
{
    struct rat_replay_context *context = playback->lane->current;
    if (__builtin_expect(!context, 0)) {
        find(playback, RAT_FINDING_NO_CONTEXT);
        return;
    }
    if (__builtin_expect(context->depth == 0, 0)) {
        if (context->lossy || !context->known)
            playback->session->repairs++;
        else
            find(playback, RAT_FINDING_EMPTY_RETURN);
        return;
    }
    enum rat_flavor open = context->stack[context->depth - 1].flavor;
    if (__builtin_expect(open != flavor && open != RAT_FLAVOR_UNKNOWN, 0))
        find(playback, RAT_FINDING_RETURN_KIND);
    rat_stack_pop(context, playback->visitor, ns, RAT_LEFT_RETURN);
}

static void unwind(struct rat_playback *playback, uint32_t count, uint64_t ns)
{
    struct rat_replay_context *context = playback->lane->current;
    playback->session->unwound += count;
    if (!context) {
        find(playback, RAT_FINDING_NO_CONTEXT);
        return;
    }
    size_t keep = context->depth - (count < context->depth ? count : context->depth);
    if (count > context->depth) {
        if (context->lossy || !context->known)
            playback->session->repairs++;
        else
            find(playback, RAT_FINDING_UNWIND);
    }
    rat_stack_close(context, playback->visitor, keep, ns, RAT_LEFT_UNWIND);
}

static enum rat_status switch_to(struct rat_playback *playback, uint32_t id)
{
    struct rat_replay_context *context;
    enum rat_status status = context_of(playback, id, &context);
    if (status != RAT_OK)
        return status;
    if (context && (!context->known || context->lossy))
        find(playback, RAT_FINDING_NO_CONTEXT);
    make_current(playback, context);
    return RAT_OK;
}

static enum rat_flavor flavor_of(uint32_t kind)
{
    switch (kind) {
    case RAT_FRAME_INSTANCE:
    case RAT_FRAME_SINGLETON:
        return RAT_FLAVOR_RUBY;
    case RAT_FRAME_C_INSTANCE:
    case RAT_FRAME_C_SINGLETON:
        return RAT_FLAVOR_C;
    default:
        return RAT_FLAVOR_UNKNOWN;
    }
}

/* The frames of a snapshot, into the scratch tables. `real` = those that are not base. */
static enum rat_status snapshot_entries(struct rat_playback *playback, const uint64_t *words, uint32_t depth,
                                        uint32_t *real)
{
    enum rat_status status = rat_allowance_grow(playback->allowance, (void **)&playback->entries,
                                             &playback->entry_capacity, depth, sizeof *playback->entries);
    if (status == RAT_OK)
        status = rat_allowance_grow(playback->allowance, (void **)&playback->frames, &playback->frame_capacity, depth,
                                 sizeof *playback->frames);
    if (status != RAT_OK)
        return status;
    *real = 0;
    for (uint32_t i = 0; i < depth; i++) {
        uint32_t packed = (uint32_t)(words[i / 2] >> (i % 2 ? 32 : 0));
        uint32_t kind = packed & 0xFF, frame = frame_of(playback, packed >> 8);
        if (kind == RAT_FRAME_BASE) {
            status = rat_scope_base(&playback->session->scope, playback->allowance, playback->catalog, packed >> 8,
                                    &frame);
            if (status != RAT_OK)
                return status;
        } else {
            (*real)++;
        }
        playback->entries[i] = (struct rat_stack_entry){frame, flavor_of(kind)};
        playback->frames[i] = frame;
    }
    return RAT_OK;
}

/* Take a snapshot's stack for the truth, and judge whether ours should have been equal. */
static enum rat_status sync(struct rat_playback *playback, struct rat_replay_context *context, uint32_t depth,
                            uint32_t real, uint32_t reason, uint64_t ns)
{
    struct rat_replay_session *session = playback->session;
    bool first = !context->known, lossy = context->lossy;
    if (first && playback->lane->gapped)
        lossy = true;
    struct rat_stack_change change;
    enum rat_status status = rat_stack_sync(context, playback->allowance, playback->catalog, playback->visitor,
                                            playback->entries, depth, ns, &change);
    if (status != RAT_OK)
        return status;
    session->snapshots++;
    session->opened += change.opened;
    session->repairs += change.closed;
    bool differs = first ? real > 0 : change.closed + change.opened > 0;
    if (differs && !lossy && reason == RAT_SNAPSHOT_SLOT)
        find(playback, RAT_FINDING_SNAPSHOT);
    context->known = true;
    rat_roster_synced(playback->lane, context);
    return RAT_OK;
}

static enum rat_status snapshot(struct rat_playback *playback, const uint64_t *words, uint32_t count, uint64_t ns,
                                struct rat_replay_event *event)
{
    uint32_t depth = (uint32_t)words[0];
    if (count < 2 || count - 2 != depth / 2 + depth % 2) {
        find(playback, RAT_FINDING_PAYLOAD);
        return RAT_OK;
    }
    struct rat_replay_context *context;
    enum rat_status status = context_of(playback, (uint32_t)(words[0] >> 32), &context);
    if (status != RAT_OK || !context)
        return status;
    make_current(playback, context);
    if (!playback->lane->current)
        return RAT_OK;
    uint32_t real = 0, reason = (uint32_t)words[1];
    status = snapshot_entries(playback, words + 2, depth, &real);
    if (status == RAT_OK)
        status = sync(playback, context, depth, real, reason, ns);
    event->count = depth - real;
    event->reason = reason;
    event->frames = playback->frames;
    event->frame_count = depth;
    return status;
}

static void end(struct rat_playback *playback, const uint64_t *words, uint32_t count, uint64_t ns,
                struct rat_replay_event *event)
{
    if (count < 1) {
        find(playback, RAT_FINDING_PAYLOAD);
        return;
    }
    event->context = (uint32_t)(words[0] >> 32);
    event->reason = (uint32_t)words[0];
    struct rat_replay_context *context = rat_roster_find(playback->session, event->context);
    if (!context || (context->lane != 0 && context->lane != playback->lane->number))
        return;
    enum rat_left how = event->reason == RAT_END_CONTEXT_DIED ? RAT_LEFT_CONTEXT_DIED
                        : event->reason == RAT_END_FORK       ? RAT_LEFT_FORK
                                                              : RAT_LEFT_STOP;
    rat_stack_close(context, playback->visitor, 0, ns, how);
    context->last_ns = ns;
    if (event->reason == RAT_END_CONTEXT_DIED)
        rat_stack_free(context, playback->allowance);
}

static enum rat_status gate(struct rat_playback *playback, const uint64_t *words, struct rat_replay_event *event)
{
    event->frame = frame_of(playback, (uint32_t)words[0]);
    event->reason = (uint32_t)(words[1] >> 32);
    event->value = (uint32_t)words[1];
    event->numbers[0] = words[0] >> 32;
    event->numbers[1] = words[2];
    return rat_omission_add(&playback->session->omission, playback->allowance, words, event->frame, event->ns);
}

static enum rat_status rich(struct rat_playback *playback, struct rat_replay_event *event, bool *known)
{
    const struct rat_body *body = playback->body;
    uint32_t count = playback->rich_at < body->riches ? body->rich_words[playback->rich_at++] : 0;
    if (count > body->rich_total - playback->word_at)
        count = 0; /* the decoder has checked this; never believe twice */
    const uint64_t *words = body->rich + playback->word_at;
    playback->word_at += count;
    switch (event->kind) {
    case RAT_EVENT_SNAPSHOT:
        if (count == 0)
            break;
        return snapshot(playback, words, count, event->ns, event);
    case RAT_EVENT_END:
        end(playback, words, count, event->ns, event);
        return RAT_OK;
    case RAT_EVENT_NOTE:
        event->reason = count ? (uint32_t)(words[0] >> 32) : 0;
        event->value = count ? (uint32_t)words[0] : 0;
        if (event->reason == RAT_NOTE_BLIND)
            playback->session->blind = event->value;
        return RAT_OK;
    case RAT_EVENT_GATE:
        if (count < RAT_GATE_WORDS)
            break;
        return gate(playback, words, event);
    case RAT_EVENT_COST:
        if (count < RAT_COST_WORDS)
            break;
        memcpy(event->numbers, words, sizeof event->numbers);
        memcpy(playback->session->cost, words, sizeof event->numbers);
        return RAT_OK;
    default:
        playback->session->unknown_events++;
        *known = false;
        return RAT_OK;
    }
    find(playback, RAT_FINDING_PAYLOAD);
    return RAT_OK;
}

static uint32_t next_id(struct rat_playback *playback)
{
    return playback->id_at < playback->body->ids ? playback->body->id[playback->id_at++] : 0;
}

static enum rat_status play(struct rat_playback *playback, struct rat_replay_event *event)
{
    bool known = true;
    enum rat_status status = RAT_OK;
    switch (event->kind) {
    case RAT_EVENT_CALL:
        event->frame = frame_of(playback, next_id(playback));
        status = call(playback, event->frame, RAT_FLAVOR_RUBY, event->ns);
        break;
    case RAT_EVENT_RETURN:
        pop(playback, RAT_FLAVOR_RUBY, event->ns);
        break;
    case RAT_EVENT_C_CALL:
        event->frame = frame_of(playback, next_id(playback));
        status = call(playback, event->frame, RAT_FLAVOR_C, event->ns);
        break;
    case RAT_EVENT_C_RETURN:
        pop(playback, RAT_FLAVOR_C, event->ns);
        break;
    case RAT_EVENT_UNWIND:
        event->count = next_id(playback);
        unwind(playback, event->count, event->ns);
        break;
    case RAT_EVENT_UNMATCHED:
        playback->session->unmatched++;
        break;
    case RAT_EVENT_SWITCH:
        status = switch_to(playback, next_id(playback));
        break;
    default:
        if (event->kind > RAT_EVENT_RICH)
            status = rich(playback, event, &known);
        else
            playback->session->unknown_events++, known = false;
    }
    const struct rat_visitor *visitor = playback->visitor;
    if (!visitor->event || !known || status != RAT_OK)
        return status;
    if (event->context == 0 && playback->lane->current)
        event->context = playback->lane->current->id;
    return visitor->event(visitor->user, event);
}

enum rat_status rat_playback_run(struct rat_playback *playback, uint64_t events)
{
    const struct rat_body *body = playback->body;
    struct rat_replay_lane *lane = playback->lane;
    size_t end_at = events < body->events - playback->at ? playback->at + events : body->events;
    struct rat_replay_event event = {.session = playback->session, .lane = lane->number};
    for (; playback->at < end_at; playback->at++) {
        playback->ticks += body->gap[playback->at];
        uint64_t ns = rat_timing_ns(&playback->timing, playback->ticks);
        if (__builtin_expect(ns < lane->last_ns, 0)) {
            playback->session->clamped++;
            ns = lane->last_ns;
        }
        lane->last_ns = ns;
        event.ns = ns;
        event.kind = (enum rat_event_kind)body->kind[playback->at];
        event.context = event.frame = event.count = event.reason = event.value = event.frame_count = 0;
        enum rat_status status = play(playback, &event);
        if (__builtin_expect(status != RAT_OK, 0))
            return status;
    }
    if (lane->last_ns > playback->session->last_ns)
        playback->session->last_ns = lane->last_ns;
    if (playback->at == body->events) {
        make_current(playback, NULL);
        playback->body = NULL;
    }
    return RAT_OK;
}

void rat_playback_free(struct rat_playback *playback)
{
    rat_allowance_free(playback->allowance, playback->entries, playback->entry_capacity * sizeof *playback->entries);
    rat_allowance_free(playback->allowance, playback->frames, playback->frame_capacity * sizeof *playback->frames);
}
