#include "ruby/rb_pulse.h"

#include <ruby/debug.h>
#include <ruby/thread.h>

#include "base/clock.h"
#include "ruby/rb_agent.h"

static struct {
    uint64_t period_ns, due_ns;
    VALUE (*prove)(void *);
    uint64_t failures;
#ifdef HAVE_RB_POSTPONED_JOB_PREREGISTER
    rb_postponed_job_handle_t job;
#endif
} pulse;

static VALUE start_thread(VALUE unused)
{
    (void)unused;
    return rb_thread_create(pulse.prove, NULL);
}

/* With the GVL, between two instructions of some thread of the main Ractor. */
static void job(void *unused)
{
    (void)unused;
    int failed;
    VALUE error = rb_errinfo(); /* the host may be in a rescue */
    if (!rb_rat_agent_live(rb_rat_main_agent))
        return;
    rb_protect(start_thread, Qnil, &failed);
    if (failed) {
        pulse.failures++; /* a closed ThreadGroup, no memory */
        rb_set_errinfo(error);
    }
    RB_GC_GUARD(error);
}

void rb_rat_pulse_look(void)
{
    if (pulse.due_ns == 0 || rat_clock_ns(CLOCK_MONOTONIC_COARSE) < pulse.due_ns)
        return;
    pulse.due_ns += pulse.period_ns;
    if (!rb_rat_agent_live(rb_rat_main_agent))
        return;
    if (pulse.due_ns < rat_clock_ns(CLOCK_MONOTONIC_COARSE)) /* nobody looked for longer than that */
        pulse.due_ns = rat_clock_ns(CLOCK_MONOTONIC_COARSE) + pulse.period_ns;
#ifdef HAVE_RB_POSTPONED_JOB_PREREGISTER
    if (pulse.job == POSTPONED_JOB_HANDLE_INVALID)
        pulse.failures++; /* all are taken, and the VM would run one of the host's */
    else
        rb_postponed_job_trigger(pulse.job);
#else
    rb_postponed_job_register_one(0, job, NULL); /* safe with the GVL, as here */
#endif
}

void rb_rat_pulse_begin(uint64_t period_ns, VALUE (*prove)(void *))
{
    pulse.period_ns = period_ns;
    pulse.prove = prove;
    pulse.due_ns = period_ns > 0 ? rat_clock_ns(CLOCK_MONOTONIC) + period_ns : 0;
}

uint64_t rb_rat_pulse_failures(void)
{
    return pulse.failures;
}

void rb_rat_pulse_init(void)
{
#ifdef HAVE_RB_POSTPONED_JOB_PREREGISTER
    pulse.job = rb_postponed_job_preregister(0, job, NULL);
#endif
}
