#include "model/roster.h"

#include "model/stack.h"

enum rat_status rat_roster_session(struct rat_roster *roster, struct rat_allowance *allowance,
                                   const struct rat_chunk_header *header, struct rat_replay_session **out)
{
    for (size_t i = roster->count; i-- > 0;) { /* most chunks belong to the newest */
        struct rat_replay_session *session = roster->sessions[i];
        if (session->hi == header->session_hi && session->lo == header->session_lo) {
            *out = session;
            return RAT_OK;
        }
    }
    enum rat_status status = rat_allowance_grow(allowance, (void **)&roster->sessions, &roster->capacity, roster->count + 1,
                                             sizeof *roster->sessions);
    if (status != RAT_OK)
        return status;
    struct rat_replay_session *session = rat_allowance_resize(allowance, NULL, 0, sizeof *session);
    if (!session)
        return RAT_NO_MEMORY;
    session->hi = header->session_hi;
    session->lo = header->session_lo;
    session->index = (uint32_t)roster->count;
    session->realtime_ns = (int64_t)(header->start.realtime_ns - header->start.monotonic_ns);
    roster->sessions[roster->count++] = session;
    *out = session;
    return RAT_OK;
}

enum rat_status rat_roster_lane(struct rat_replay_session *session, struct rat_allowance *allowance, uint32_t number,
                                struct rat_replay_lane **out)
{
    for (size_t i = 0; i < session->lane_count; i++) {
        if (session->lanes[i].number == number) {
            *out = &session->lanes[i];
            return RAT_OK;
        }
    }
    enum rat_status status = rat_allowance_grow(allowance, (void **)&session->lanes, &session->lane_capacity,
                                             session->lane_count + 1, sizeof *session->lanes);
    if (status != RAT_OK)
        return status;
    *out = &session->lanes[session->lane_count++];
    **out = (struct rat_replay_lane){.number = number};
    return RAT_OK;
}

enum rat_status rat_roster_context(struct rat_replay_session *session, struct rat_allowance *allowance, uint32_t id,
                                   struct rat_replay_context **out)
{
    enum rat_status status = rat_allowance_grow(allowance, (void **)&session->contexts, &session->context_capacity,
                                             (size_t)id + 1, sizeof *session->contexts);
    if (status != RAT_OK)
        return status;
    struct rat_replay_context *context = session->contexts[id];
    if (!context) {
        context = rat_allowance_resize(allowance, NULL, 0, sizeof *context);
        if (!context)
            return RAT_NO_MEMORY;
        context->session = session;
        context->id = id;
        session->contexts[id] = context;
    }
    *out = context;
    return RAT_OK;
}

/* Another one has the id now. Its place in the lane's list of synced contexts stays. */
static void begin_anew(struct rat_replay_context *context, const struct rat_visitor *visitor)
{
    rat_stack_close(context, visitor, 0, context->last_ns, RAT_LEFT_READER);
    context->tag = 0;
    context->known = context->lossy = false;
    context->first_ns = context->last_ns = 0;
    if (!context->in_synced)
        context->lane = 0;
}

enum rat_status rat_roster_take(struct rat_replay_session *session, struct rat_allowance *allowance,
                                const struct rat_catalog *catalog, const struct rat_visitor *visitor,
                                const struct rat_body *body, bool ahead)
{
    for (size_t i = 0; i < body->context_count; i++) {
        uint32_t id = body->contexts[i].id;
        const struct rat_context_entry *entry = &body->contexts[i].entry;
        if (id == 0 || id >= RAT_CONTEXT_ID_MAX)
            continue;
        struct rat_replay_context *context;
        enum rat_status status = rat_roster_context(session, allowance, id, &context);
        if (status != RAT_OK)
            return status;
        bool other = context->kind != entry->kind || context->parent != entry->parent ||
                     context->os_tid != entry->os_tid || context->seen_ticks != entry->seen_ticks ||
                     context->entry_lane != entry->lane;
        if (context->told && (ahead || !other))
            continue;
        if (context->told)
            begin_anew(context, visitor);
        context->told = true;
        context->kind = entry->kind;
        context->parent = entry->parent;
        context->name = rat_scope_name(&session->scope, catalog, entry->name);
        context->entry_lane = entry->lane;
        context->os_tid = entry->os_tid;
        context->seen_ticks = entry->seen_ticks;
    }
    return RAT_OK;
}

void rat_roster_break(struct rat_replay_session *session, struct rat_replay_lane *lane,
                      const struct rat_visitor *visitor)
{
    struct rat_replay_context *next;
    for (struct rat_replay_context *context = lane->synced; context; context = next) {
        next = context->next_synced;
        context->next_synced = NULL;
        context->in_synced = false;
        context->lossy = true;
        context->loss_ns = lane->last_ns;
    }
    lane->synced = NULL;
    lane->gapped = true;
    if (visitor->loss)
        visitor->loss(visitor->user, session, lane->number, lane->last_ns);
}

void rat_roster_synced(struct rat_replay_lane *lane, struct rat_replay_context *context)
{
    context->lossy = false;
    if (context->in_synced)
        return;
    context->in_synced = true;
    context->next_synced = lane->synced;
    lane->synced = context;
}

struct rat_replay_context *rat_replay_thread(struct rat_replay_context *context)
{
    if (context->kind != RAT_CONTEXT_FIBER || context->parent == 0)
        return context;
    struct rat_replay_context *thread = rat_roster_find(context->session, context->parent);
    return thread && thread->kind == RAT_CONTEXT_THREAD ? thread : context;
}

void rat_roster_free(struct rat_roster *roster, struct rat_allowance *allowance)
{
    for (size_t i = 0; i < roster->count; i++) {
        struct rat_replay_session *session = roster->sessions[i];
        for (size_t id = 0; id < session->context_capacity; id++) {
            if (!session->contexts[id])
                continue;
            rat_stack_free(session->contexts[id], allowance);
            rat_allowance_free(allowance, session->contexts[id], sizeof *session->contexts[id]);
        }
        rat_allowance_free(allowance, session->contexts, session->context_capacity * sizeof *session->contexts);
        rat_allowance_free(allowance, session->lanes, session->lane_capacity * sizeof *session->lanes);
        rat_scope_free(&session->scope, allowance);
        rat_omission_free(&session->omission, allowance);
        rat_account_free(&session->account, allowance);
        rat_allowance_free(allowance, session, sizeof *session);
    }
    rat_allowance_free(allowance, roster->sessions, roster->capacity * sizeof *roster->sessions);
    *roster = (struct rat_roster){0};
}
