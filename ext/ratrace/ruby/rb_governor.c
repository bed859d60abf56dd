#include "ruby/rb_governor.h"

#include <stdlib.h>

#include "ruby/rb_cost.h"
#include "ruby/rb_hash.h"
#include "ruby/rb_pulse.h"
#include "ruby/rb_site.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define WINDOW_CPU_NS (100 * MS)
#define WINDOW_NS (2 * SECOND)
#define WINDOW_CPU_MIN_NS (20 * MS) /* less is no ground for a decision */
#define CLOSE_TO 0.7
#define OPEN_TO 0.6
#define BACKOFF_MIN_NS (1 * SECOND)
#define BACKOFF_MAX_NS (64 * SECOND)
#define COUNT_NS (1 * SECOND)
#define COST_NS (10 * SECOND)

static struct {
    double limit;
    uint64_t window_ns, window_cpu; /* began at; used since */
    double window_own;
    uint64_t window_events;
    bool marked;                    /* seen_calls are those at the window's beginning */
    uint64_t counted_ns, cost_ns;   /* told last */
    uint32_t *closed;               /* indices of closed sites */
    uint32_t closed_count, closed_capacity;
    uint64_t gated;                 /* calls that the sites closed now have left out */
    uint64_t closings, openings, windows;
} governor;

struct candidate {
    uint32_t index;
    uint64_t calls;
};

static uint64_t left_out(const struct rb_rat_site *site)
{
    return atomic_load_explicit(&site->left_out, memory_order_relaxed);
}

static void tell_gate(struct rb_rat_agent *agent, struct rb_rat_site *site, enum rat_gate_state state, uint64_t now)
{
    double share = rb_rat_cost.share * 1e6;
    uint64_t count = left_out(site);
    uint64_t payload[RAT_GATE_WORDS] = {
        rat_event_pair(site->number, site->frame),
        rat_event_pair(state, share < UINT32_MAX ? (uint32_t)share : UINT32_MAX),
        count,
    };
    rat_recorder_tell(&agent->hot->recorder, RAT_EVENT_GATE, payload, RAT_GATE_WORDS, now);
    site->told_left_out = count;
}

/* ---------------------------------------------------------------- closing */

static int by_calls(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;
    return left->calls < right->calls ? 1 : left->calls > right->calls ? -1 : 0;
}

static void mark_all(void)
{
    for (uint32_t i = 0; i < rb_rat_site_count(); i++)
        rb_rat_site_at(i)->seen_calls = rb_rat_site_at(i)->calls;
    governor.marked = true;
}

static bool close_site(struct rb_rat_agent *agent, uint32_t index, uint64_t now_ns, uint64_t now)
{
    if (governor.closed_count == governor.closed_capacity) {
        uint32_t capacity = governor.closed_capacity ? governor.closed_capacity * 2 : 64;
        uint32_t *closed = realloc(governor.closed, capacity * sizeof *closed);
        if (closed == NULL)
            return false;
        governor.closed = closed;
        governor.closed_capacity = capacity;
    }
    struct rb_rat_site *site = rb_rat_site_at(index);
    bool soon = site->backoff_ns > 0 && now_ns < site->retry_ns + 2 * site->backoff_ns;
    site->backoff_ns = !soon ? BACKOFF_MIN_NS
        : site->backoff_ns * 2 < BACKOFF_MAX_NS ? site->backoff_ns * 2
                                                : BACKOFF_MAX_NS;
    site->retry_ns = now_ns + site->backoff_ns;
    site->closed_ns = now_ns;
    site->seen_left_out = left_out(site);
    tell_gate(agent, site, RAT_GATE_CLOSED, now);
    site->closed = 1;
    governor.closed[governor.closed_count++] = index;
    governor.closings++;
    return true;
}

/* The busiest first, until the rest would take CLOSE_TO of the limit. */
static void close_busiest(struct rb_rat_agent *agent, uint64_t now_ns, uint64_t now)
{
    uint32_t count = 0, sites = rb_rat_site_count();
    struct candidate *candidates = malloc((sites + 1) * sizeof *candidates);
    if (candidates == NULL)
        return;
    uint64_t all = 0;
    for (uint32_t i = 0; i < sites; i++) {
        const struct rb_rat_site *site = rb_rat_site_at(i);
        all += site->calls - site->seen_calls;
        bool may_close = site->asked && !site->closed && !site->closing && !site->exempt && site->frame > RAT_FRAME_HIDDEN;
        if (may_close && site->calls > site->seen_calls)
            candidates[count++] = (struct candidate){i, site->calls - site->seen_calls};
    }
    qsort(candidates, count, sizeof *candidates, by_calls);
    double own = governor.window_own, allowed = governor.limit * CLOSE_TO * (double)governor.window_cpu;
    double call = own / (double)(all > 0 ? all : 1); /* what one has cost in this window */
    for (uint32_t i = 0; i < count && own > allowed; i++) {
        if (!agent->words)
            rb_rat_site_at(candidates[i].index)->closing = true;
        else if (!close_site(agent, candidates[i].index, now_ns, now))
            break;
        own -= (double)candidates[i].calls * call;
    }
    free(candidates);
}

/* ---------------------------------------------------------------- opening */

static void open_due(struct rb_rat_agent *agent, uint64_t now_ns, uint64_t now)
{
    double own = governor.window_own, allowed = governor.limit * OPEN_TO * (double)governor.window_cpu;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < governor.closed_count; i++) {
        uint32_t index = governor.closed[i];
        struct rb_rat_site *site = rb_rat_site_at(index);
        double calls = (double)(left_out(site) - site->seen_left_out); /* of this window */
        double more = calls * (2 * rb_rat_cost.event_ns - rb_rat_cost.gate_ns);
        site->seen_left_out = left_out(site);
        if (now_ns < site->retry_ns) {
            governor.closed[kept++] = index;
        } else if (own + more > allowed) {
            site->retry_ns = now_ns + site->backoff_ns;
            governor.closed[kept++] = index;
        } else {
            own += more;
            site->closed = 0;
            tell_gate(agent, site, RAT_GATE_OPEN, now);
            governor.openings++;
        }
    }
    governor.closed_count = kept;
}

static void tell_counts(struct rb_rat_agent *agent, uint64_t now)
{
    for (uint32_t i = 0; i < governor.closed_count; i++) {
        struct rb_rat_site *site = rb_rat_site_at(governor.closed[i]);
        if (left_out(site) != site->told_left_out)
            tell_gate(agent, site, RAT_GATE_COUNT, now);
    }
}

/* ---------------------------------------------------------------- beats */

static uint64_t gated_calls(void)
{
    uint64_t all = 0, since;
    for (uint32_t i = 0; i < governor.closed_count; i++)
        all += left_out(rb_rat_site_at(governor.closed[i]));
    since = all > governor.gated ? all - governor.gated : 0; /* fewer: a gate has opened */
    governor.gated = all;
    return since;
}

static void begin_window(uint64_t now_ns)
{
    governor.window_ns = now_ns;
    governor.window_cpu = governor.window_events = 0;
    governor.window_own = 0;
}

static void end_window(struct rb_rat_agent *agent, uint64_t now_ns, uint64_t now)
{
    bool grounds = governor.window_cpu >= WINDOW_CPU_MIN_NS;
    bool over = grounds && governor.window_own > governor.limit * (double)governor.window_cpu;
    rb_rat_cost.share = governor.window_cpu > 0 ? governor.window_own / (double)governor.window_cpu : 0;
    if (over && !agent->words && !rb_rat_sites_alone()) {
        governor.marked = false; /* nothing may be closed */
    } else if (over && governor.marked) {
        close_busiest(agent, now_ns, now);
        governor.marked = false;
    } else if (over) {
        mark_all();
    } else {
        governor.marked = false;
    }
    open_due(agent, now_ns, now);
    governor.windows++;
    begin_window(now_ns);
}

void rb_rat_governor_beat(struct rb_rat_agent *agent)
{
    if (!rb_rat_agent_live(agent))
        return;
    uint64_t from = rat_clock_ns(CLOCK_MONOTONIC), process, events;
    uint64_t now = rat_clock_ticks(agent->hot->recorder.clock);
    double own;
    atomic_fetch_and_explicit(&rb_rat_beat.due, ~RAT_BEAT_DUE, memory_order_relaxed);
    rb_rat_cost_update(agent, gated_calls(), &process, &own, &events);
    governor.window_cpu += process;
    governor.window_own += own;
    governor.window_events += events;
    if (governor.window_cpu >= WINDOW_CPU_NS || from - governor.window_ns >= WINDOW_NS)
        end_window(agent, from, now);
    if (from - governor.counted_ns >= COUNT_NS) {
        tell_counts(agent, now);
        governor.counted_ns = from;
    }
    if (from - governor.cost_ns >= COST_NS) {
        rb_rat_cost_tell(agent, now);
        governor.cost_ns = from;
    }
    rb_rat_pulse_look();
    rb_rat_cost_held(rat_clock_ns(CLOCK_MONOTONIC) - from);
}

void rb_rat_governor_close(struct rb_rat_agent *agent, struct rb_rat_site *site)
{
    uint64_t now_ns = rat_clock_ns(CLOCK_MONOTONIC), now = rat_clock_ticks(agent->hot->recorder.clock);
    site->closing = false;
    if (rb_rat_agent_live(agent) && rb_rat_sites_alone())
        (void)close_site(agent, site->number - 1, now_ns, now);
}

void rb_rat_governor_begin(double limit)
{
    uint64_t now_ns = rat_clock_ns(CLOCK_MONOTONIC);
    governor.limit = limit;
    governor.marked = false;
    governor.closed_count = 0;
    governor.gated = 0;
    governor.closings = governor.openings = governor.windows = 0;
    governor.counted_ns = governor.cost_ns = now_ns;
    begin_window(now_ns);
}

void rb_rat_governor_end(struct rb_rat_agent *agent)
{
    uint64_t now = rat_clock_ticks(agent->hot->recorder.clock), process, events;
    double own;
    rb_rat_cost_update(agent, gated_calls(), &process, &own, &events);
    for (uint32_t i = 0; i < rb_rat_site_count(); i++) {
        struct rb_rat_site *site = rb_rat_site_at(i);
        if (site->asked && left_out(site) != site->told_left_out)
            tell_gate(agent, site, RAT_GATE_COUNT, now);
    }
    rb_rat_cost_tell(agent, now);
    governor.closed_count = 0;
}

VALUE rb_rat_governor_stats(void)
{
    VALUE hash = rb_hash_new();
    rb_rat_set(hash, "limit", DBL2NUM(governor.limit));
    rb_rat_set(hash, "closed", UINT2NUM(governor.closed_count));
    rb_rat_set(hash, "closings", ULL2NUM(governor.closings));
    rb_rat_set(hash, "openings", ULL2NUM(governor.openings));
    rb_rat_set(hash, "windows", ULL2NUM(governor.windows));
    return hash;
}
