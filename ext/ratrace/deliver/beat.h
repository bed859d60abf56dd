/* beat.h - what the serializer thread tells the threads of the host, who poll it: that a quarter of a second is over, and
 * what it has used.
 *
 * Memory:  the caller's, for as long as the session lives.
 * Threads: `due` any; the rest is stored by the serializer thread and loaded by any.
 */
#ifndef RAT_DELIVER_BEAT_H
#define RAT_DELIVER_BEAT_H

#include <stdatomic.h>
#include <stdint.h>

#define RAT_BEAT_NS UINT64_C(250000000)
#define RAT_BEAT_DUE 1u /* the other bits are the caller's */

struct rat_beat {
    _Atomic uint32_t due;
    _Atomic uint64_t cpu_ns; /* CPU time of the serializer thread */
};

#endif
