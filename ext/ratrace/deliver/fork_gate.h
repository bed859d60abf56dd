/* fork_gate.h - keeps our threads outside libcurl and libcrypto while the host forks.
 *
 * A child inherits locks as they are. Whatever lock of those libraries our thread held at that moment would be held for
 * ever in the child, and the child is the host's, with TLS of its own. So the thread is inside the gate while it calls
 * them, never while it waits, and a fork first waits for it to come out, and keeps it out.
 *
 * That wait is bounded, because the host may not hang on us: after rat_fork_gate_ns the fork goes on as it is. A call
 * takes microseconds, reading the system's CA certificates some 20 ms.
 *
 * Look-ups. libcurl calls getaddrinfo in a thread of its own, which may take seconds and passes no gate. What must not
 * be inherited are the C library's locks of the resolver's configuration and of loading modules (glibc 2.36 frees
 * neither in a child: its next getaddrinfo hangs for ever). They are held at the beginning of a look-up, at its end and
 * when its thread ends, not while it waits for an answer, so a fork waits until that thread is joined, and no longer than
 * until the look-up is rat_fork_gate_lookup_ns old. Not covered: the end of a look-up that is older, or was left behind.
 *
 * Threads: enter and leave by our threads, in pairs, nested at will.
 * Fork:    rat_fork_gate_install registers what is needed; the child begins with an empty gate.
 */
#ifndef RAT_DELIVER_FORK_GATE_H
#define RAT_DELIVER_FORK_GATE_H

#include <stdbool.h>
#include <stdint.h>

extern uint64_t rat_fork_gate_ns;        /* 50 ms; a test may set another */
extern uint64_t rat_fork_gate_lookup_ns; /* 50 ms */

void rat_fork_gate_install(void); /* once a process; again is no harm, by one thread at a time */
void rat_fork_gate_enter(void);
void rat_fork_gate_leave(void);
/* Enter unless a fork is under way, if it waits for anything but the caller's look-up; then false, a moment later. */
bool rat_fork_gate_try_for_lookup(void);
/* Between two pieces of long work: a fork that waits goes first. */
void rat_fork_gate_pass(void);
/* A look-up begins, to be called inside the gate; it has ended, from anywhere. One left behind needs no end. */
void rat_fork_gate_lookup_begin(void);
void rat_fork_gate_lookup_end(void);

#endif
