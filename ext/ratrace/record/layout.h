/* layout.h - the mapped memory of one session: what survives the process.
 *
 *   page 0        struct rat_live_head
 *   lanes_at      RAT_LANES × struct rat_lane_head
 *   tables_at     struct rat_dict_head, frame table, name table, context table
 *   text_at       bytes of the names
 *   slots_at      RAT_LANES × 2 × slot_bytes event words
 *
 * All of it lies in one mapping: a tmpfs file where there is one (deliver/live_file.h), else anonymous memory. Areas
 * are reserved in the file before they are touched, so that a full tmpfs is a refusal and not a SIGBUS.
 *
 * One writer a word. "producer" below is the thread that holds the GVL (of its Ractor), "serializer" our own thread.
 * After kill -9 the file shows, for each thread, a prefix of its stores in program order; recovery relies on that and
 * on nothing between threads (lane.h, recovery.h). Every reader of a foreign file checks every field.
 */
#ifndef RAT_RECORD_LAYOUT_H
#define RAT_RECORD_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/clock.h"
#include "record/tags.h"

#define RAT_LIVE_MAGIC UINT64_C(0x317665766c746172) /* "ratlvev1" */
#define RAT_LIVE_VERSION 2u

#define RAT_OUT_DIR_MAX 1024u

#define RAT_LANES 16u      /* lane numbers 1..16 in files; index 0..15 here */
#define RAT_LANE_MAIN 0u   /* the main Ractor */
#define RAT_LANE_GC 1u     /* kept for GC events */
#define RAT_LANE_RACTOR 2u /* first lane for an attached Ractor */

#define RAT_SLOT_BYTES_MIN 16384u
#define RAT_SLOT_BYTES_MAX (UINT32_C(32) << 20)
#define RAT_SLOT_BYTES_DEFAULT (UINT32_C(8) << 20)

/* Why the producer dropped an event. Numbers are those of ratrace.v1.Cause; the array below is indexed by them. */
enum rat_drop_cause {
    RAT_DROP_SLOT_FULL = 1,     /* both slots full: the serializer did not keep up */
    RAT_DROP_CONTENDED = 2,     /* no slot free: cannot happen; a broken invariant */
    RAT_DROP_OUT_OF_MEMORY = 3, /* no memory for a context or its shadow */
    RAT_DROP_LANE_DISABLED = 4, /* an invariant or the fence failed; see lane state */
    RAT_DROP_NO_LANE = 5,       /* the lane could not be opened (fork, too many Ractors) */
    RAT_DROP_CAUSES = 8,
};

/* Why the serializer lost stored events. Numbers continue ratrace.v1.Cause. */
enum rat_lost_cause {
    RAT_LOST_ENCODER_MEMORY = 16,
    RAT_LOST_FENCE_FAILED = 17,
    RAT_LOST_INVARIANT = 18,
    RAT_LOST_WRITE_FAILED = 19,
    RAT_LOST_POWER = 20,
    RAT_LOST_UNKNOWN = 21,
};

struct rat_slot_head {
    /* producer */
    _Alignas(64) _Atomic uint64_t w; /* sequence:16 | events:24 | words:23 | busy:1 */
    uint64_t base_ticks;             /* the first event's delta counts from here */
    uint64_t opened_stored;          /* S when this interval was opened */
    uint64_t opened_drop[RAT_DROP_CAUSES];
    /* serializer */
    _Alignas(64) _Atomic uint64_t g; /* sequence:63 | held:1 */
    struct rat_anchor opened;        /* taken when the slot was given out */
};

enum rat_lane_state { RAT_LANE_CLOSED = 0, RAT_LANE_OPEN = 1, RAT_LANE_DISABLED = 2 };

struct rat_lane_head {
    /* producer */
    _Alignas(64) _Atomic uint64_t drop[RAT_DROP_CAUSES]; /* cumulative */
    _Atomic uint64_t drop_first_ticks, drop_last_ticks;  /* of the drops since the slot was opened */
    /* serializer */
    _Alignas(64) _Atomic uint64_t flushed_seq;   /* chunks up to here are in a segment */
    _Atomic uint64_t abandoned_seq;              /* ... or were given up, never to be written */
    _Atomic uint64_t settled_seq;                /* what follows is of this chunk's end; 0 = it is being written */
    uint64_t settled_drop[RAT_DROP_CAUSES];
    /* who opens the lane, then who finds it broken */
    _Alignas(64) _Atomic uint32_t state;         /* enum rat_lane_state */
    _Atomic uint32_t disabled_cause;             /* enum rat_lost_cause */
    struct rat_slot_head slot[2];
};

struct rat_frame_entry {
    uint32_t owner;  /* name ids; 0 = none */
    uint32_t method;
    uint32_t called; /* 0 = as `method` */
    uint32_t file;
    uint32_t line;
    uint32_t kind;   /* enum rat_frame_kind */
};

struct rat_name_entry {
    uint32_t at;     /* into the text area */
    uint32_t length;
    uint32_t utf8;   /* 1 = valid UTF-8, 0 = bytes */
    uint32_t reserved;
};

enum rat_context_kind { RAT_CONTEXT_THREAD = 1, RAT_CONTEXT_FIBER = 2 };

struct rat_context_entry {
    uint32_t kind;   /* enum rat_context_kind */
    uint32_t parent; /* a fiber's thread; 0 for a thread */
    uint32_t name;   /* name id; 0 = none */
    uint32_t lane;   /* lane number, from 1 */
    uint64_t os_tid; /* of a thread, when first seen */
    uint64_t seen_ticks;
};

/* Entry bytes first, then the count with a release store, before the first event that uses the entry. */
struct rat_dict_head {
    _Atomic uint32_t frames, names, contexts; /* highest id in use; ids count from 1 */
    _Atomic uint32_t text_used;
    uint32_t frame_cap, name_cap, context_cap, text_cap;
    _Atomic uint64_t folded; /* lookups that ended at RAT_FRAME_FULL */
    uint64_t frames_at, names_at, contexts_at, text_at; /* from the start of the mapping; entry of id n at index n */
};

struct rat_live_head {
    _Atomic uint64_t magic; /* stored last */
    uint32_t version;
    uint32_t head_bytes;    /* sizeof (struct rat_live_head) */
    uint64_t total_bytes;
    uint64_t session_hi, session_lo;
    uint64_t parent_hi, parent_lo; /* 0 = not a forked child */
    uint8_t sync[16];              /* the session's chunk marker */
    uint8_t boot_id[16];
    uint32_t pid, parent_pid;
    uint32_t clock, fence;         /* enum rat_clock_kind, enum rat_fence_kind */
    _Atomic uint32_t frame_path;   /* ratrace.v1.FramePath: 1 = words, 2 = public calls */
    uint32_t file_mode;            /* of segments; 0 = 0600 */
    uint64_t ticks_per_s;
    struct rat_anchor start;
    uint64_t slot_bytes;
    uint64_t lanes_at, tables_at, text_at, slots_at;
    /* serializer */
    _Atomic uint32_t segment;      /* number of the segment being written */
    _Atomic uint64_t session_seq;  /* sequence of the newest lane-0 chunk written */
    char service[64], host[64], ruby[32], recorder[32];
    char trace[256];               /* which methods are traced; empty = all */
    char tags[RAT_TAGS_BYTES];     /* of the service (tags.h) */
    char out_dir[RAT_OUT_DIR_MAX]; /* absolute */
    char part[256];                /* file name of the segment being written, in out_dir */
};

#endif
