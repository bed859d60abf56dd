/* A random walk of record/recorder.h: whatever happens, the reader holds the stack that the recorder held. */
#include "recorder_support.h"

#define CONTEXTS 6

/* The real stack of one context, as a VM would have it, and what the shadow must be. */
struct life {
    struct rat_context *context;
    uint32_t real;                 /* frames there are */
    struct rat_entry shadow[4096]; /* entries there must be; the stale ones included */
    uint32_t depth;
};

/* What the reader must hold once it has read `events`. */
struct promise {
    uint64_t events;
    uint32_t context;
    struct stack stack;
};

struct walk {
    struct rig *rig;
    struct life lives[CONTEXTS];
    struct life *life;
    uint64_t seed;
    struct promise promises[8192];
    size_t made, kept;
    uint64_t checks, verified;
    bool returning; /* the recorder's top entry is the one whose return is told */
};

static uint64_t draw(struct walk *walk, uint64_t below)
{
    uint64_t z = walk->seed += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (z ^ z >> 31) % below;
}

static void visible(const struct life *life, struct stack *out)
{
    out->depth = 0;
    for (uint32_t i = 0; i < life->depth; i++)
        if (life->shadow[i].id != RAT_FRAME_HIDDEN)
            stack_push(out, rat_event_entry(life->shadow[i].id, (enum rat_frame_kind)life->shadow[i].kind));
}

static void keep_promises(struct reader *reader, enum rat_event_kind kind, void *user)
{
    (void)kind;
    struct walk *walk = user;
    while (walk->kept < walk->made && walk->promises[walk->kept].events <= reader->events) {
        struct promise *promise = &walk->promises[walk->kept++];
        assert_int_equal(promise->events, reader->events);
        assert_true(reader->stacks[promise->context].known);
        assert_true(stacks_equal(&reader->stacks[promise->context], &promise->stack));
        walk->checks++;
    }
}

/* The walk's own idea of the shadow is the recorder's. */
static void assert_shadow(const struct walk *walk)
{
    const struct rat_recorder *recorder = &walk->rig->recorder;
    assert_int_equal(rat_recorder_depth(recorder), walk->life->depth);
    for (uint32_t i = 0; i < walk->life->depth; i++) {
        const struct rat_entry *is = &recorder->context->entries[i + 1], *must = &walk->life->shadow[i];
        assert_true(is->id == must->id && is->kind == must->kind);
        assert_true(must->kind == RAT_FRAME_BASE || is->word == must->word);
    }
}

static uint32_t keep_running(struct rat_entry *entries, uint32_t base, uint32_t depth, uintptr_t running)
{
    uint32_t kept = base;
    for (uint32_t i = base; i < depth; i++)
        if (entries[i].word >= running)
            entries[kept++] = entries[i];
    return kept;
}

static uint32_t base_of(const struct life *life);

/* Entries whose frames an overflow took go, in the walk's shadow, too. Its finder takes off the one that returns. */
static uint32_t walk_verify(struct rat_recorder *recorder, void *owner)
{
    struct walk *walk = owner;
    if (rat_recorder_above_base(recorder) == 0)
        return 0;
    struct rat_entry *entries = recorder->context->entries + 1, *top = recorder->top;
    uintptr_t running = word_at(walk->life->real);
    uint32_t depth = rat_recorder_depth(recorder) - walk->returning;
    recorder->top = entries + keep_running(entries, recorder->context->base, depth, running) - 1;
    if (walk->returning)
        *++recorder->top = *top;
    walk->life->depth = keep_running(walk->life->shadow, base_of(walk->life), walk->life->depth, running);
    walk->verified += (uint64_t)(top - recorder->top);
    return (uint32_t)(top - recorder->top);
}

static void life_push(struct life *life, uintptr_t word, uint32_t id, uint32_t kind)
{
    life->shadow[life->depth++] = (struct rat_entry){.word = word, .id = id, .kind = kind};
}

static uint32_t base_of(const struct life *life)
{
    uint32_t base = 0;
    while (base < life->depth && life->shadow[base].kind == RAT_FRAME_BASE)
        base++;
    return base;
}

/* A VM's stack has one frame for each base entry. As in the hook, the call that finds the base goes the cold way. */
static void walk_begin_life(struct walk *walk, struct life *life)
{
    bool fresh = draw(walk, 2) != 0;
    life->context = rat_context_new(fresh);
    life->depth = life->real = 0;
    assert_true(enter(walk->rig, life->context));
    walk->life = life;
    if (fresh)
        return;
    rat_recorder_begin_base(&walk->rig->recorder);
    for (uint32_t frames = (uint32_t)draw(walk, 4); frames > 0; frames--) {
        uint32_t id = 2 + (uint32_t)draw(walk, 9);
        assert_true(rat_recorder_push_base(&walk->rig->recorder, id));
        life_push(life, 0, id, RAT_FRAME_BASE);
        life->real++;
    }
    uintptr_t word = word_at(++life->real);
    rat_recorder_settle_base(&walk->rig->recorder, word);
    uint32_t id = (uint32_t)draw(walk, 2) * 5;
    rat_recorder_call(&walk->rig->recorder, RAT_EVENT_CALL, word, id, RAT_FRAME_INSTANCE, walk->rig->now);
    life_push(life, word, id, RAT_FRAME_INSTANCE);
}

static void walk_call(struct walk *walk)
{
    struct life *life = walk->life;
    if (life->real > 40)
        return;
    uint32_t id = draw(walk, 5) == 0 ? RAT_FRAME_HIDDEN : 2 + (uint32_t)draw(walk, 9);
    bool is_c = draw(walk, 4) == 0;
    uintptr_t word = word_at(++life->real);
    while (life->depth > base_of(life) && life->shadow[life->depth - 1].word <= word)
        life->depth--;
    life_push(life, word, id, is_c ? RAT_FRAME_C_INSTANCE : RAT_FRAME_INSTANCE);
    call(walk->rig, word, id, is_c);
}

/* The newest real frame above the base returns, or one further down, the ones between without an event. */
static void walk_return(struct walk *walk, uint32_t skip)
{
    struct life *life = walk->life;
    uint32_t base = base_of(life);
    if (life->real <= base + skip)
        return;
    life->real -= skip;
    uintptr_t word = word_at(life->real--);
    uint32_t at = life->depth;
    while (at > base && life->shadow[at - 1].word != word)
        at--;
    bool is_c = at > base && life->shadow[at - 1].kind == RAT_FRAME_C_INSTANCE;
    if (at > base)
        life->depth = at - 1;
    walk->returning = at > base;
    give_back(walk->rig, word, is_c);
    walk->returning = false;
}

static void walk_overflow(struct walk *walk)
{
    uint32_t base = base_of(walk->life);
    if (walk->life->real > base)
        walk->life->real -= (uint32_t)draw(walk, walk->life->real - base + 1);
}

static void walk_end_base(struct walk *walk)
{
    struct life *life = walk->life;
    if (life->depth == 0 || life->depth != base_of(life) || life->real != life->depth)
        return;
    life->depth--;
    life->real--;
    walk->returning = true;
    rat_recorder_return(&walk->rig->recorder, RAT_EVENT_RETURN, 0, walk->rig->now);
    walk->returning = false;
    rat_recorder_settle_base(&walk->rig->recorder, word_at(life->real + 1));
}

/* An entry in the middle turns out to be wrong, as rb_stack.c finds. */
static void walk_repair(struct walk *walk)
{
    struct life *life = walk->life;
    uint32_t base = base_of(life);
    if (life->depth <= base + 1)
        return;
    uint32_t out = base + (uint32_t)draw(walk, life->depth - base);
    struct rat_recorder *recorder = &walk->rig->recorder;
    struct rat_entry *entries = recorder->context->entries + 1;
    size_t above = life->depth - out - 1;
    memmove(&life->shadow[out], &life->shadow[out + 1], above * sizeof *entries);
    memmove(&entries[out], &entries[out + 1], above * sizeof *entries);
    life->depth--;
    recorder->top--;
    rat_recorder_repair(recorder, walk->rig->now);
}

static void walk_to(struct walk *walk, struct life *life)
{
    walk->life = life;
    if (life->context == NULL)
        walk_begin_life(walk, life);
    else
        assert_true(enter(walk->rig, life->context));
}

static void walk_die(struct walk *walk)
{
    struct life *dead = &walk->lives[draw(walk, CONTEXTS)];
    if (dead == walk->life || dead->context == NULL)
        return;
    rat_context_release(dead->context, &walk->rig->recorder);
    dead->context = NULL;
}

static void walk_step(struct walk *walk)
{
    uint64_t choice = draw(walk, 100);
    if (choice < 40)
        walk_call(walk);
    else if (choice < 70)
        walk_return(walk, 0);
    else if (choice < 74)
        walk_return(walk, (uint32_t)draw(walk, 3));
    else if (choice < 77)
        walk_overflow(walk);
    else if (choice < 79)
        give_back(walk->rig, 16, false); /* nobody's */
    else if (choice < 81)
        walk_end_base(walk);
    else if (choice < 82)
        walk_repair(walk);
    else if (choice < 96)
        walk_to(walk, &walk->lives[draw(walk, CONTEXTS)]);
    else if (choice < 98)
        walk_die(walk);
    else if (choice < 99)
        rat_recorder_note(&walk->rig->recorder, RAT_NOTE_DEPTH_LIMIT, 1, walk->rig->now);
    else
        walk->rig->now += RAT_EVENT_DELTA_MAX + 1;
}

/* One step; if it told all it had to tell, the reader must know the stack when it has read that far. */
static void walk_promise(struct walk *walk)
{
    const struct rat_lane_producer *lane = &walk->rig->recorder.lane;
    uint64_t stored = rat_lane_stored(lane), dropped = rig_dropped(walk->rig);
    walk_step(walk);
    uint64_t after = rat_lane_stored(lane);
    assert_shadow(walk);
    struct rat_context *context = walk->life->context;
    if (after == stored || dropped != rig_dropped(walk->rig) || context->epoch != walk->rig->recorder.epoch)
        return;
    struct promise *promise = &walk->promises[walk->made++];
    *promise = (struct promise){.events = after, .context = context->id};
    visible(walk->life, &promise->stack);
}

static void walk_drain(struct walk *walk)
{
    rig_drain(walk->rig);
    assert_int_equal(walk->kept, walk->made);
    for (size_t i = 0; i < walk->made; i++)
        free(walk->promises[i].stack.entries);
    walk->made = walk->kept = 0;
    rig_assert_accounted(walk->rig);
}

static uint64_t seed_of_the_day(void)
{
    const char *given = getenv("RAT_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : rat_clock_ns(CLOCK_REALTIME);
    print_message("RAT_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Entries that its verification took off. */
static uint64_t walk_for(uint32_t slot_bytes, uint64_t seed, int steps, uint64_t between_drains)
{
    struct rig *rig = malloc(sizeof *rig);
    rig_make(rig, slot_bytes, 48);
    struct walk *walk = calloc(1, sizeof *walk);
    walk->rig = rig;
    walk->seed = seed;
    rig->reader.decoded = keep_promises;
    rig->reader.user = walk;
    rig->recorder.verify = walk_verify;
    rig->recorder.owner = walk;
    walk_to(walk, &walk->lives[0]);
    for (int i = 0; i < steps; i++) {
        walk_promise(walk);
        if (draw(walk, between_drains) == 0 || walk->made == 8000)
            walk_drain(walk);
    }
    walk_drain(walk);
    assert_true(walk->checks > 0);
    rat_recorder_end_all(&rig->recorder, RAT_END_STOP, rig->now);
    rig_drain(rig);
    for (int i = 0; i < CONTEXTS; i++)
        if (walk->lives[i].context != NULL)
            rig->contexts[rig->context_count++] = walk->lives[i].context;
    uint64_t verified = walk->verified;
    free(walk);
    DONE(rig);
    return verified;
}

static void test_the_stream_is_the_shadow_on_a_random_walk(void **state)
{
    (void)state;
    uint64_t seed = seed_of_the_day(), verified = 0;
    for (uint64_t round = 0; round < 40; round++)
        verified += walk_for(BIG_SLOT, seed + round, 5000, 200);
    assert_true(verified > 0);
}

static void test_the_stream_is_the_shadow_where_most_events_drop(void **state)
{
    (void)state;
    uint64_t seed = seed_of_the_day(), verified = 0;
    for (uint64_t round = 0; round < 40; round++)
        verified += walk_for(512 + (uint32_t)(round % 4) * 128, seed + round, 5000, 300);
    assert_true(verified > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_stream_is_the_shadow_on_a_random_walk),
        cmocka_unit_test(test_the_stream_is_the_shadow_where_most_events_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
