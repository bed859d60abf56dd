#include "record/recorder.h"

#include <stdlib.h>
#include <string.h>

#define SHADOW_FIRST 128u  /* entries of a new context */
#define RETIRED_FIRST 64u  /* both powers of two */
#define RETIRED_MAX RAT_DICT_CONTEXTS
#define PUT_ROUNDS 4       /* a slot may be taken between turn and append; not four times in a row */
#define NO_PAYLOAD NULL, 0
#define RAT_WORD_BASE_DUE 1u /* floor of a context whose base is not taken: every event goes the cold way */

/* ---------------------------------------------------------------- telling the stream */

static size_t snapshot_words(size_t shown)
{
    return 2 + (shown + 1) / 2;
}

/* A whole slot cannot take this stack: known before it is verified and copied, for every event of the deep part asks.
 * Where it did not fit, and none of its frames went since, it does not fit now: no event passes by here unasked. */
static bool is_too_deep(struct rat_recorder *recorder)
{
    struct rat_context *context = recorder->context;
    uint32_t depth = rat_recorder_depth(recorder), shown = 0;
    if (context->too_deep != 0 && depth >= context->too_deep)
        return true;
    context->too_deep = 0;
    if (1 + snapshot_words(depth) <= recorder->lane.capacity)
        return false;
    for (uint32_t i = 1; i <= depth; i++)
        shown += context->entries[i].id != RAT_FRAME_HIDDEN;
    if (1 + snapshot_words(shown) > recorder->lane.capacity)
        context->too_deep = depth;
    return context->too_deep != 0;
}

/* The current context's whole stack, without hidden frames. */
static enum rat_append snapshot(struct rat_recorder *recorder, enum rat_snapshot_reason reason, uint64_t now)
{
    struct rat_context *context = recorder->context;
    if (recorder->lane.room == 0)
        return RAT_APPEND_FULL; /* sealed */
    if (is_too_deep(recorder))
        return RAT_APPEND_FULL;
    if (context->epoch == 0)
        reason = RAT_SNAPSHOT_START; /* nothing was told of this context before */
    else if (recorder->verify != NULL && reason == RAT_SNAPSHOT_SLOT && recorder->verify(recorder, recorder->owner) > 0)
        reason = RAT_SNAPSHOT_REPAIR;
    size_t depth = (size_t)(recorder->top - context->entries);
    size_t need = snapshot_words(depth);
    if (need > recorder->scratch_words) {
        uint64_t *scratch = realloc(recorder->scratch, need * 2 * sizeof *scratch);
        if (scratch == NULL)
            return RAT_APPEND_FULL;
        recorder->scratch = scratch;
        recorder->scratch_words = need * 2;
    }
    uint32_t shown = 0, base = 0;
    uint64_t *words = recorder->scratch;
    for (size_t i = 1; i <= depth; i++) {
        const struct rat_entry *entry = &context->entries[i];
        if (entry->id == RAT_FRAME_HIDDEN)
            continue;
        uint64_t packed = rat_event_entry(entry->id, (enum rat_frame_kind)entry->kind);
        if (shown % 2 == 0)
            words[2 + shown / 2] = packed;
        else
            words[2 + shown / 2] |= packed << 32;
        shown++;
        base += entry->kind == RAT_FRAME_BASE;
    }
    words[0] = rat_event_pair(context->id, shown);
    words[1] = rat_event_pair(base, (uint32_t)reason);
    enum rat_append done = rat_lane_append(&recorder->lane, rat_event_word(RAT_EVENT_SNAPSHOT, 0), words,
                                           (uint32_t)snapshot_words(shown), now);
    if (done == RAT_APPEND_STORED)
        context->epoch = recorder->epoch;
    return done;
}

static enum rat_append tell_in_slot(struct rat_recorder *recorder, uint64_t event, const uint64_t *payload,
                                    uint32_t words, uint64_t now)
{
    if (rat_event_kind(event) == RAT_EVENT_SNAPSHOT)
        return snapshot(recorder, (enum rat_snapshot_reason)rat_event_id(event), now);
    if (recorder->context != NULL && recorder->context->epoch != recorder->epoch) {
        enum rat_append done = snapshot(recorder, RAT_SNAPSHOT_SLOT, now);
        if (done != RAT_APPEND_STORED)
            return done; /* FULL counts the event that needed it, once */
    }
    return rat_lane_append(&recorder->lane, event, payload, words, now);
}

/* One event, whatever it takes: a slot, a snapshot, or a counted drop. A snapshot event has its reason for an id. */
static void tell(struct rat_recorder *recorder, uint64_t event, const uint64_t *payload, uint32_t words, uint64_t now)
{
    enum rat_drop_cause cause = RAT_DROP_CONTENDED;
    for (int round = 0; round < PUT_ROUNDS; round++) {
        enum rat_turn turn = rat_lane_turn(&recorder->lane, now, &cause);
        if (turn == RAT_TURN_NONE)
            break;
        if (turn == RAT_TURN_OPENED)
            recorder->epoch++;
        switch (tell_in_slot(recorder, event, payload, words, now)) {
        case RAT_APPEND_STORED:
            return;
        case RAT_APPEND_FULL:
            rat_lane_drop(&recorder->lane, RAT_DROP_SLOT_FULL, now);
            return;
        case RAT_APPEND_TURN:
            break;
        }
    }
    rat_lane_drop(&recorder->lane, cause, now);
}

/* The snapshot this may bring is of a shadow that cannot be compared: another context is running, or frames of it are
 * known to be gone and are taken off next. A check would take them off first, and they would be missed twice. */
static void tell_unverified(struct rat_recorder *recorder, uint64_t event, const uint64_t *payload, uint32_t words,
                            uint64_t now)
{
    uint32_t (*verify)(struct rat_recorder *, void *) = recorder->verify;
    recorder->verify = NULL;
    tell(recorder, event, payload, words, now);
    recorder->verify = verify;
}

/* The current context's stack, due by itself. */
static void tell_snapshot(struct rat_recorder *recorder, enum rat_snapshot_reason reason, uint64_t now)
{
    tell(recorder, rat_event_word(RAT_EVENT_SNAPSHOT, reason), NO_PAYLOAD, now);
}

/* Events that are put without coming through here say nothing of whose they are, so no context may owe a snapshot
 * once it is current and its base is known: it is stored, or its loss has sealed the slot. */
static void tell_if_owed(struct rat_recorder *recorder, uint64_t now)
{
    if (recorder->context->epoch != recorder->epoch || recorder->context->epoch == 0)
        tell_snapshot(recorder, RAT_SNAPSHOT_SLOT, now);
}

static void tell_plain(struct rat_recorder *recorder, enum rat_event_kind kind, uint32_t id, uint64_t now)
{
    tell(recorder, rat_event_word(kind, id), NO_PAYLOAD, now);
}

/* ---------------------------------------------------------------- contexts */

struct rat_context *rat_context_new(bool fresh)
{
    struct rat_context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return NULL;
    context->entries = malloc(SHADOW_FIRST * sizeof *context->entries);
    if (context->entries == NULL) {
        free(context);
        return NULL;
    }
    context->entries[0] = (struct rat_entry){.word = fresh ? RAT_WORD_FLOOR : RAT_WORD_BASE_DUE};
    context->top = context->entries;
    context->limit = context->entries + SHADOW_FIRST - 1;
    context->base_due = !fresh;
    return context;
}

static void context_free(struct rat_context *context)
{
    free(context->entries);
    free(context);
}

void rat_context_forget(struct rat_context *context, bool fresh)
{
    context->next = context->prev = NULL;
    context->top = context->entries;
    context->id = 0;
    context->base = 0;
    context->base_due = !fresh;
    context->entries[0].word = fresh ? RAT_WORD_FLOOR : RAT_WORD_BASE_DUE;
    context->epoch = 0;
    context->too_deep = 0;
    context->doubt = 0;
}

void rat_context_release(struct rat_context *context, struct rat_recorder *recorder)
{
    if (recorder == NULL) {
        context_free(context);
        return;
    }
    struct rat_context *head = atomic_load_explicit(&recorder->dead, memory_order_relaxed);
    do {
        context->queued = head;
    } while (!atomic_compare_exchange_weak_explicit(&recorder->dead, &head, context, memory_order_release,
                                                    memory_order_relaxed));
}

static void living_remove(struct rat_recorder *recorder, struct rat_context *context)
{
    if (context->prev != NULL)
        context->prev->next = context->next;
    else if (recorder->living == context)
        recorder->living = context->next;
    if (context->next != NULL)
        context->next->prev = context->prev;
    context->next = context->prev = NULL;
}

static void living_add(struct rat_recorder *recorder, struct rat_context *context)
{
    context->prev = NULL;
    context->next = recorder->living;
    if (recorder->living != NULL)
        recorder->living->prev = context;
    recorder->living = context;
}

/* Without memory the id is not used again. */
static void retire(struct rat_recorder *recorder, rat_context_id id)
{
    if (recorder->retired_count == recorder->retired_room) {
        uint32_t room = recorder->retired_room != 0 ? recorder->retired_room * 2 : RETIRED_FIRST;
        struct rat_retired *ring = room <= RETIRED_MAX ? malloc(room * sizeof *ring) : NULL;
        if (ring == NULL)
            return;
        for (uint32_t i = 0; i < recorder->retired_count; i++)
            ring[i] = recorder->retired[(recorder->retired_first + i) & (recorder->retired_room - 1)];
        free(recorder->retired);
        recorder->retired = ring;
        recorder->retired_first = 0;
        recorder->retired_room = room;
    }
    uint32_t at = (recorder->retired_first + recorder->retired_count++) & (recorder->retired_room - 1);
    recorder->retired[at] = (struct rat_retired){.ended_seq = recorder->lane.g >> 1, .id = id};
}

/* The id of a context that ended in an interval whose chunk is written: no event that means the old one is left. */
static rat_context_id reuse_id(struct rat_recorder *recorder, const struct rat_context_entry *entry)
{
    if (recorder->retired_count == 0 || recorder->lane.lane == NULL)
        return 0;
    struct rat_retired oldest = recorder->retired[recorder->retired_first];
    if (atomic_load_explicit(&recorder->lane.lane->flushed_seq, memory_order_acquire) < oldest.ended_seq)
        return 0;
    recorder->retired_first = (recorder->retired_first + 1) & (recorder->retired_room - 1);
    recorder->retired_count--;
    rat_dict_replace_context(recorder->dict, oldest.id, entry);
    return oldest.id;
}

static bool give_id(struct rat_recorder *recorder, struct rat_context *context, const struct rat_context_entry *entry)
{
    context->id = rat_dict_context(recorder->dict, entry);
    if (context->id == 0)
        context->id = reuse_id(recorder, entry);
    if (context->id == 0)
        return false;
    living_add(recorder, context);
    return true;
}

/* Nothing is below the floor, so with the limit there every call takes the cold way. */
static void set_limit(struct rat_recorder *recorder)
{
    struct rat_context *context = recorder->context;
    recorder->limit = context->doubt != 0 ? context->entries : context->limit;
}

bool rat_recorder_switch(struct rat_recorder *recorder, struct rat_context *context,
                         const struct rat_context_entry *entry, uint64_t now)
{
    if (recorder->context != NULL)
        recorder->context->top = recorder->top;
    if (context->id == 0 && (recorder->dict == NULL || !give_id(recorder, context, entry))) {
        rat_lane_drop(&recorder->lane, RAT_DROP_OUT_OF_MEMORY, now);
        recorder->context = NULL;
        recorder->ec = 0;
        return false;
    }
    bool same = recorder->context == context;
    recorder->context = context;
    recorder->top = context->top;
    set_limit(recorder);
    if (same)
        return true;
    recorder->switches++;
    if (context->epoch != 0 && context->epoch == recorder->epoch)
        tell_plain(recorder, RAT_EVENT_SWITCH, context->id, now);
    else if (!context->base_due) /* else its first event tells it, when the base is taken */
        tell_if_owed(recorder, now);
    return true;
}

/* ---------------------------------------------------------------- the shadow */

uint32_t rat_recorder_depth(const struct rat_recorder *recorder)
{
    return (uint32_t)(recorder->top - recorder->context->entries);
}

uint32_t rat_recorder_above_base(const struct rat_recorder *recorder)
{
    return rat_recorder_depth(recorder) - recorder->context->base;
}

static bool grow(struct rat_recorder *recorder)
{
    struct rat_context *context = recorder->context;
    size_t depth = (size_t)(recorder->top - context->entries);
    size_t capacity = (size_t)(context->limit - context->entries + 1) * 2;
    if (capacity > RAT_SHADOW_DEPTH_MAX)
        return false;
    struct rat_entry *entries = malloc(capacity * sizeof *entries);
    if (entries == NULL)
        return false;
    memcpy(entries, context->entries, (depth + 1) * sizeof *entries);
    free(context->entries);
    context->entries = entries;
    recorder->top = entries + depth;
    context->limit = entries + capacity - 1;
    set_limit(recorder);
    return true;
}

static bool push(struct rat_recorder *recorder, struct rat_entry entry)
{
    if (recorder->top == recorder->context->limit && !grow(recorder))
        return false;
    *++recorder->top = entry;
    return true;
}

/* Whatever the caller counted, nothing is below the floor. */
static void take_off(struct rat_recorder *recorder, uint32_t count)
{
    uint32_t depth = rat_recorder_depth(recorder), left = depth > count ? depth - count : 0;
    recorder->top = recorder->context->entries + left;
    if (recorder->context->base > left)
        recorder->context->base = left;
}

/* Take `count` entries off the top, telling the stream of those it knows, before the shadow changes. */
static void unwind(struct rat_recorder *recorder, uint32_t count, uint64_t now)
{
    uint32_t told = 0;
    for (uint32_t i = 0; i < count; i++)
        told += recorder->top[-(ptrdiff_t)i].id != RAT_FRAME_HIDDEN;
    if (told > 0)
        tell_unverified(recorder, rat_event_word(RAT_EVENT_UNWIND, told), NO_PAYLOAD, now);
    take_off(recorder, count);
    recorder->unwound += count;
}

void rat_recorder_unwind(struct rat_recorder *recorder, uint32_t count, uint64_t now)
{
    if (count > 0)
        unwind(recorder, count, now);
}

uint32_t rat_recorder_drop_stale(struct rat_recorder *recorder, uintptr_t word, uint64_t now)
{
    uint32_t stale = 0, most = rat_recorder_above_base(recorder);
    while (stale < most && recorder->top[-(ptrdiff_t)stale].word <= word)
        stale++;
    if (stale > 0)
        unwind(recorder, stale, now);
    return stale;
}

void rat_recorder_doubt(struct rat_recorder *recorder)
{
    recorder->context->doubt = RAT_DOUBT_CALLS;
    recorder->context->doubt_depth = rat_recorder_depth(recorder);
    set_limit(recorder);
}

bool rat_recorder_doubts(const struct rat_recorder *recorder)
{
    return recorder->context->doubt != 0 && rat_recorder_depth(recorder) <= recorder->context->doubt_depth;
}

void rat_recorder_checked(struct rat_recorder *recorder, bool was_true)
{
    if (!was_true) {
        rat_recorder_doubt(recorder);
        return;
    }
    recorder->context->doubt--;
    recorder->context->doubt_depth = rat_recorder_depth(recorder);
    set_limit(recorder);
}

void rat_recorder_call(struct rat_recorder *recorder, enum rat_event_kind event, uintptr_t word, uint32_t id,
                       enum rat_frame_kind kind, uint64_t now)
{
    if (recorder->top == recorder->context->limit && !grow(recorder)) {
        rat_lane_drop(&recorder->lane, RAT_DROP_OUT_OF_MEMORY, now);
        return;
    }
    if (id != RAT_FRAME_HIDDEN)
        tell_plain(recorder, event, id, now);
    else
        tell_if_owed(recorder, now);
    *++recorder->top = (struct rat_entry){.word = word, .id = id, .kind = kind};
}

int64_t rat_recorder_find(const struct rat_recorder *recorder, uintptr_t word)
{
    const struct rat_entry *floor = recorder->context->entries + recorder->context->base;
    for (const struct rat_entry *at = recorder->top; at > floor; at--)
        if (at->word == word)
            return recorder->top - at;
    return -1;
}

int64_t rat_recorder_find_id(const struct rat_recorder *recorder, uint32_t id)
{
    const struct rat_entry *floor = recorder->context->entries + recorder->context->base;
    for (const struct rat_entry *at = recorder->top; at > floor; at--)
        if (at->id == id)
            return recorder->top - at;
    return -1;
}

void rat_recorder_return(struct rat_recorder *recorder, enum rat_event_kind event, uint32_t depth, uint64_t now)
{
    if (depth > 0)
        unwind(recorder, depth, now);
    if (recorder->top->id != RAT_FRAME_HIDDEN)
        tell_plain(recorder, event, 0, now);
    else
        tell_if_owed(recorder, now);
    take_off(recorder, 1);
}

void rat_recorder_unmatched(struct rat_recorder *recorder, uint64_t now)
{
    tell_plain(recorder, RAT_EVENT_UNMATCHED, 0, now);
    recorder->unmatched++;
}

void rat_recorder_restart(struct rat_recorder *recorder)
{
    struct rat_context *context = recorder->context;
    context->entries[0].word = recorder->scoped ? RAT_WORD_FLOOR : RAT_WORD_BASE_DUE;
    context->base = 0;
    context->base_due = !recorder->scoped;
    context->too_deep = 0;
    context->top = recorder->top = context->entries;
}

void rat_recorder_begin_base(struct rat_recorder *recorder)
{
    recorder->context->entries[0].word = RAT_WORD_FLOOR;
    recorder->context->base_due = false;
    recorder->context->epoch = 0; /* what was told before, if anything, was another stack */
    recorder->context->too_deep = 0;
}

bool rat_recorder_push_base(struct rat_recorder *recorder, uint32_t id)
{
    if (!push(recorder, (struct rat_entry){.word = 1, .id = id, .kind = RAT_FRAME_BASE}))
        return false;
    recorder->context->base++;
    return true;
}

void rat_recorder_settle_base(struct rat_recorder *recorder, uintptr_t word)
{
    struct rat_context *context = recorder->context;
    for (uint32_t i = context->base; i >= 1; i--) {
        if (context->entries[i].word == word + 1)
            break; /* those below carry it, too */
        context->entries[i].word = word + 1;
    }
}

void rat_recorder_repair(struct rat_recorder *recorder, uint64_t now)
{
    recorder->repaired++;
    recorder->context->too_deep = 0;
    tell_snapshot(recorder, RAT_SNAPSHOT_REPAIR, now);
}

/* ---------------------------------------------------------------- rare events */

void rat_recorder_note(struct rat_recorder *recorder, enum rat_note note, uint32_t value, uint64_t now)
{
    uint64_t payload = rat_event_pair(note, value);
    tell(recorder, rat_event_word(RAT_EVENT_NOTE, 1), &payload, 1, now);
}

void rat_recorder_tell(struct rat_recorder *recorder, enum rat_event_kind kind, const uint64_t *payload,
                       uint32_t words, uint64_t now)
{
    tell_unverified(recorder, rat_event_word(kind, words), payload, words, now);
}

static void tell_end(struct rat_recorder *recorder, struct rat_context *context, enum rat_end_reason reason,
                     uint64_t now)
{
    uint64_t payload = rat_event_pair(context->id, (uint32_t)reason);
    tell_unverified(recorder, rat_event_word(RAT_EVENT_END, 1), &payload, 1, now);
}

void rat_recorder_bury(struct rat_recorder *recorder, uint64_t now)
{
    if (__builtin_expect(atomic_load_explicit(&recorder->dead, memory_order_relaxed) == NULL, 1))
        return;
    struct rat_context *dead = atomic_exchange_explicit(&recorder->dead, NULL, memory_order_acquire);
    while (dead != NULL) {
        struct rat_context *next = dead->queued;
        bool current = recorder->context == dead;
        if (dead->id != 0 && recorder->lane.lane != NULL) {
            living_remove(recorder, dead);
            tell_end(recorder, dead, RAT_END_CONTEXT_DIED, now);
            retire(recorder, dead->id);
        }
        if (current) {
            recorder->context = NULL;
            recorder->ec = 0;
        }
        context_free(dead);
        dead = next;
    }
}

void rat_recorder_end_all(struct rat_recorder *recorder, enum rat_end_reason reason, uint64_t now)
{
    if (recorder->context != NULL)
        recorder->context->top = recorder->top;
    for (struct rat_context *context = recorder->living; context != NULL; context = context->next)
        if (context->top != context->entries)
            tell_end(recorder, context, reason, now);
}

void rat_recorder_init(struct rat_recorder *recorder, uint32_t lane_number, struct rat_dict *dict,
                       enum rat_clock_kind clock)
{
    recorder->lane_number = lane_number;
    recorder->dict = dict;
    recorder->clock = clock;
}

void rat_recorder_reset(struct rat_recorder *recorder)
{
    struct rat_context *dead = atomic_exchange_explicit(&recorder->dead, NULL, memory_order_acquire);
    while (dead != NULL) {
        struct rat_context *next = dead->queued;
        context_free(dead);
        dead = next;
    }
    free(recorder->retired);
    free(recorder->scratch);
    memset(recorder, 0, sizeof *recorder);
}
