/* rb_site.h - scoped tracing: chosen method bodies are traced one by one; the rest of the program is left alone.
 *
 * A site is a method body in the source (a `def`, a define_method block). It has two targeted TracePoints, one for call
 * and one for return, so that a site whose gate is closed needs not even look at what the event is. TracePoints are
 * made while booting (each one made throws away all JIT code) and stay as they are until the recording ends. No hook of
 * the whole process is installed.
 *
 * A define_method body has one TracePoint for both, because up to Ruby 3.2 the VM keeps only the last one made for such a
 * method. It is never disabled: the VM then crashes if another tool has made one, too, and has disabled it. After the
 * recording it fires with its gate closed, and the next recording finds it.
 *
 * The stack of a scoped recording is that of the traced methods: callers that are not traced are absent, there are no
 * base frames, and a return whose call was not seen (it was open at start, or its gate was closed) is "unmatched".
 *
 * Sites are found again by key: code that is loaded again finds its site, with the gate as it is. A body that several
 * classes share (a `def` that runs more than once) is one site, and a `def` inside a `def` belongs to the outer's.
 *
 * Gate.    Closed: calls are counted in `left_out`, exactly, and nothing else happens. rb_governor.c closes and opens.
 *          Frames open at the closing return as they should: a return's frame word tells whether it is one of them.
 *          Without frame words it could not be told from that of a call inside it which was left out; there a gate
 *          closes when none is open, at the return of the last, and a site that always has one open is not closed.
 * Ractors. Up to Ruby 3.4 a targeted TracePoint fires in every Ractor, in parallel. Which one it is costs a look-up; one that
 *          the hot path saves by comparing the execution context with the recorder's, which is the main Ractor's. With
 *          the gate closed it compares nothing, so from the first Ractor.new on (a TracePoint on that tells) it takes
 *          the careful way.
 * Fork.    A child starts with all gates open and counts from 0, at its first event.
 *
 * Memory:  sites are native, never freed, never more than RB_RAT_SITES.
 * Threads: callbacks wherever the VM calls them; all else by the main Ractor under the GVL.
 */
#ifndef RB_RAT_SITE_H
#define RB_RAT_SITE_H

#include <ruby.h>

#include "ruby/rb_agent.h"

#define RB_RAT_SITES (1u << 20)

struct rb_rat_site {
    uint32_t closed;           /* calls are only counted */
    uint32_t open;             /* at least as many as frames of it are on shadows */
    _Atomic uint64_t left_out; /* exact; a plain counter while there is one Ractor */
    uint64_t calls;            /* recorded */
    /* cold */
    uint32_t number;           /* in the stream, from 1 */
    uint32_t frame;            /* what its first call was recorded as */
    bool asked;                /* this recording wants it; else its gate stays closed and nothing is told */
    bool exempt;               /* the canary's */
    bool closing;              /* to be closed when no frame of it is open */
    uint64_t seen_calls, seen_left_out, told_left_out; /* the governor's */
    uint64_t closed_ns, retry_ns, backoff_ns;
};

/* A recording begins: nothing is asked for yet. */
void rb_rat_sites_forget(void);

/* `agent` begins to record, in a child, too: gates open, counts 0. */
void rb_rat_sites_begin(struct rb_rat_agent *agent);

/* It is over: what still fires finds its gate closed. */
void rb_rat_sites_end(void);

uint32_t rb_rat_site_count(void);
struct rb_rat_site *rb_rat_site_at(uint32_t index);

/* ns that a call and a return take whose gate is closed, beyond an empty function. */
double rb_rat_site_gate_ns(void);

/* There has been one Ractor only. */
bool rb_rat_sites_alone(void);

/* Calls in Ractors that are not attached: recorded nowhere. */
uint64_t rb_rat_sites_elsewhere(void);

void rb_rat_site_init(VALUE native);

#endif
