/*
 * lane.pml - the lane of ext/ratrace/record/lane.c: two slots, one producer, one serializer.
 *
 * The producer never waits and never fences; the serializer pays for both with membarrier(2). Whether that is right
 * depends on the CPU's store buffers, so the model has them: each side's stores go into a FIFO (x86-TSO) and reach
 * memory whenever the model likes. On a CPU with a weaker order the C code gets the same order from acquire loads and
 * release stores, written beside each access here as [acq] and [rel]. Neither side loads a cell it stores itself, so
 * no load has to look into its own buffer.
 *
 * Each attempt has a number. Each word in a slot is a kind and the number of its attempt; an interval starts with a
 * snapshot that bears the number of the attempt behind it. What must hold:
 *   - the producer and the serializer's drain are never in one slot together;
 *   - the numbers drained are in order, without a gap inside an interval; a gap between two intervals is a drop;
 *   - the opening total of a drained interval is the number of events in all intervals before it;
 *   - everything is drained at stop, and stored + dropped = attempts;
 *   - the producer always finds a slot: "contended" does not happen; and a slot that drops for want of room is one
 *     that the serializer will flip.
 * The producer's steps are bounded by construction: there is no wait in its text.
 *
 * Run by test/model/run, which holds the table of what must pass and what must fail. By hand:
 *     spin -a lane.pml && gcc -O2 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -o pan pan.c && ./pan -m200000
 *
 * Variants (-D...):
 *     FALLBACK       no membarrier: seq_cst announce and seq_cst hold
 *     CRASH          kill -9 at any step; recovery must find each stored event once
 *     FORK           fork at any step of the two; the child starts from the initial state
 *     FENCE_FAILS    a membarrier may fail; the lane is disabled and that slot never drained
 *     EMPTY_FLIPS    flips also when nothing was recorded
 *     WIDE           W carries a whole sequence, which cannot wrap, and is not checked. Only to look at EMPTY_FLIPS alone
 *     MUT_...        one deviation each; what it is stands beside the #ifdef
 */
#ifndef EVENTS
#define EVENTS  4       /* attempts, snapshots not counted */
#endif
#ifndef FLIPS
#define FLIPS   3       /* periods while the producer may be running; two more follow when it is done */
#endif
#ifndef GIVEUPS
#define GIVEUPS 0       /* bounded waits that may end early */
#endif
#ifndef RETRIES
#define RETRIES 0       /* appends that may fail and are tried again next period */
#endif
#ifndef REFUSALS
#define REFUSALS 0      /* attempts dropped for another reason than room (no memory for a context, say) */
#endif
#ifndef LOOKS
#define LOOKS   8       /* 2 * TURN_ROUNDS */
#endif
#define WORDS   3       /* of a slot: a snapshot and one rich or two plain events */
#define DEPTH   5       /* store buffer entries */

/* Memory cells, one writer each. */
#define W(s)      (s)           /* producer:   sequence:2 | events:2 | words:3 | busy:1 */
#define G(s)      (2 + (s))     /* serializer: sequence:7 | held:1 */
#define OPENED(s) (4 + (s))     /* producer:   events stored before the slot's interval */
#define STATE     6             /* serializer: 1 = disabled */
#define WORD(s,i) (7 + (s) * WORDS + (i))
#define CELLS     (7 + 2 * WORDS)

#define NONE      2             /* no slot */
#define BUSY      1
#define EVENT     16
#define IS_BUSY(w) ((w) & 1)
#define NWORDS(w)  (((w) / 2) % 8)
#define NEVENTS(w) (((w) / EVENT) % 4)
#define WSEQ(w)    ((w) / 64)
#define IS_HELD(g) ((g) & 1)
#define GSEQ(g)    ((g) / 2)
#define HELD       1            /* producer's g without an interval in hand; sequence 0 is never shown in slot 0 */

#ifdef WIDE
#define LOW(q)  (q)
#define CELL    short
#else
#define LOW(q)  ((q) % 4)       /* 16 bits of 63 in C, 2 of 7 here: it does wrap */
#define CELL    byte
#endif

/* Kinds of words; a number fits below. */
#define PLAIN    0
#define RICH     32             /* its payload word comes behind it and is stored before it */
#define PAYLOAD  64
#define SNAPSHOT 96

CELL mem[CELLS];
chan buf0 = [DEPTH] of { byte, CELL };
chan buf1 = [DEPTH] of { byte, CELL };
#define STP(a,v)  buf0!(a),(v)
#define STS(a,v)  buf1!(a),(v)
#define FENCE_P   empty(buf0)
#define FENCE_S   empty(buf1)

active proctype cpu_p() { byte a; CELL v;
end: do :: atomic { buf0?a,v -> mem[a] = v; a = 0; v = 0 } od }

active proctype cpu_s() { byte a; CELL v;
end: do :: atomic { buf1?a,v -> mem[a] = v; a = 0; v = 0 } od }

/* What really happened, for the assertions only. */
byte inside = NONE;             /* slot the producer is in */
byte stored;                    /* events whose W was stored */
byte dropped;
bool started;                   /* the initial state is set */
bool done;                      /* the producer will not come again */
bool broken;                    /* the lane was disabled */
byte active_slot;               /* the serializer's notion of the active slot */
byte file_seq;                  /* newest sequence in the segment */
byte file_next = 1;             /* 1 + newest attempt in the segment */
byte file_events;               /* events in the segment, snapshots too */

init { d_step {                 /* rat_lane_open */
    mem[W(0)] = LOW(3) * 64; mem[W(1)] = 0;
#ifdef WIDE
    mem[W(0)] = 0;
#endif
    mem[G(0)] = 1 * 2; mem[G(1)] = HELD;
    } started = true }

/* ---------------------------------------------------------------- producer */

inline announce() {
    STP(W(cur), w[cur] + BUSY);
#if defined(FALLBACK) && !defined(MUT_WEAK_PRODUCER)        /* the announce is a release store only */
    FENCE_P                                                 /* a seq_cst store */
#endif
}

inline retract() { STP(W(cur), w[cur]) }                    /* [rel] */

/* Announce, look, and be inside if `free` holds of the h seen. */
inline knock(free) {
#ifdef MUT_COMPILER_REORDER                                 /* the look moves above the announce */
    atomic { h = mem[G(cur)]; inside = ((free) -> cur : NONE) }
    announce()
#else
    announce();
    atomic { h = mem[G(cur)]; inside = ((free) -> cur : NONE) }     /* [acq] */
#endif
}

/* Inside, with room: store one event of `need` words and leave. */
inline record(kind, need) {
    c = NWORDS(w[cur]);
    w[cur] = w[cur] + EVENT + 2 * (need);
#if defined(MUT_PUBLISH_FIRST)                              /* the cursor before the words; still busy */
    atomic { STP(W(cur), w[cur] + BUSY); stored++ }
    if :: (need) == 2 -> STP(WORD(cur, c + 1), PAYLOAD + n) :: else fi;
    STP(WORD(cur, c), (kind) + n);
    atomic { STP(W(cur), w[cur]); inside = NONE }
#else
#ifdef MUT_EARLY_CLEAR                                      /* busy is cleared before the words are there */
    STP(W(cur), w[cur] - EVENT - 2 * (need));
#endif
    if :: (need) == 2 -> STP(WORD(cur, c + 1), PAYLOAD + n) :: else fi;
    STP(WORD(cur, c), (kind) + n);
    atomic { STP(W(cur), w[cur]); inside = NONE; stored++ } /* [rel] */
#endif
    c = 0
}

/* Does a free slot that shows g start an interval? One newer than the last there, or that one as long as it is empty:
 * sealed while it is empty, it would never be flipped. */
#define AHEAD(g,w) LOW(GSEQ(g) - WSEQ(w) + 4)
#ifdef MUT_SEAL_EMPTY                                       /* an empty interval keeps its seal */
#define EMPTY(w) false
#else
#define EMPTY(w) (NEVENTS(w) == 0)
#endif
#if defined(WIDE) || defined(MUT_SEQ_UNCHECKED)             /* any other sequence is a newer one */
#define STARTS(g,w) (LOW(GSEQ(g)) != WSEQ(w) || EMPTY(w))
#else
#define STARTS(g,w) (AHEAD(g, w) == 2 || (AHEAD(g, w) == 0 && EMPTY(w)))
#endif

inline drop() {
    dropped++;
#ifndef MUT_NO_SEAL                                         /* a slot goes on taking what fits after a drop */
    room = 0
#endif
}

active proctype producer() {
    CELL w[2];                  /* its own copy of its two words: nobody else writes them */
    CELL h, g = HELD;
    byte cur, room = WORDS, before, total, n = 1, need, c, tries, refusals;
    bool opened;
    started;
    w[0] = mem[W(0)];
    do
    :: n > EVENTS -> break
    :: else ->
        if :: need = 1 :: need = 2 fi;
        if
        :: refusals < REFUSALS -> refusals++; drop(); goto next
        :: true
        fi;

        /* rat_lane_put, or rat_lane_append for a rich event */
        if
        :: NWORDS(w[cur]) + need > room -> goto slow
        :: else
        fi;
        knock(h == g);
        if
        :: inside == NONE -> retract()
        :: else -> record((need == 2 -> RICH : PLAIN), need); goto next
        fi;

slow:   /* rat_lane_turn */
        atomic {
            total = before + (IS_HELD(g) -> 0 : NEVENTS(w[cur]));
            tries = 0; opened = false
        }
#ifdef FENCE_FAILS
        if :: mem[STATE] == 1 -> dropped++; room = 0; goto next :: else fi;
#endif
        do
        :: tries == LOOKS ->
#ifndef EMPTY_FLIPS
            assert(false);      /* contended */
#endif
            drop(); goto next
        :: else ->
#ifdef MUT_FIXED_ORDER                                      /* slot 0 first, not the one used last */
            if :: tries % 2 == 0 && cur == 1 -> cur = 0 :: else fi;
#endif
            knock(!IS_HELD(h));
            if
            :: inside != NONE ->
                if
                :: STARTS(h, w[cur]) ->
                    atomic { w[cur] = LOW(GSEQ(h)) * 64; g = h; before = total; room = WORDS; opened = true }
#ifndef MUT_TOTALS_LATE                                     /* the opening totals after the interval's first event */
                    STP(OPENED(cur), total)
#endif
                :: !STARTS(h, w[cur]) && LOW(GSEQ(h)) == WSEQ(w[cur]) ->
                    g = h; before = total - NEVENTS(w[cur])
                :: else -> assert(false)                    /* the invariant of sequences */
                fi;
                atomic { STP(W(cur), w[cur]); inside = NONE }       /* [rel] */
                break
            :: else ->
                retract();
                atomic { cur = 1 - cur; g = HELD; before = total; tries++ }
            fi
        od;
        if
        :: opened ->
            if
            :: refusals < REFUSALS -> refusals++; drop(); goto next
            :: true
            fi;
            knock(h == g);
            if
            :: inside == NONE -> retract(); goto slow
            :: else -> record(SNAPSHOT, 1)
#ifdef MUT_TOTALS_LATE
                STP(OPENED(cur), before)
#endif
            fi
        :: else
        fi;
        if
        :: NWORDS(w[cur]) + need > room ->
            assert(NWORDS(w[cur]) > 0);                     /* else no flip would ever empty it */
            drop(); goto next
        :: else
        fi;
        knock(h == g);
        if
        :: inside == NONE -> retract(); goto slow
        :: else -> record((need == 2 -> RICH : PLAIN), need)
        fi;
next:   atomic { n++; need = 0; h = 0; tries = 0; opened = false; total = 0 }
    od;
    done = true
}

/* ---------------------------------------------------------------- serializer */

/* The words [0, m) of slot k, whose attempts must follow `at`; counts events into `e`. */
inline decode(k, m, at, e) {
    j = 0;
    do
    :: j < m ->
        v = mem[WORD(k, j)];
        if
        :: j == 0 ->
            assert(v >= SNAPSHOT && v - SNAPSHOT >= at);    /* what lies between was dropped */
            at = v - SNAPSHOT
        :: j > 0 && v / 32 == RICH / 32 ->
            assert(v - RICH == at && j + 1 < m && mem[WORD(k, j + 1)] == PAYLOAD + at);
            j++; at++
        :: else ->
            assert(v == PLAIN + at);
            at++
        fi;
        j++; e++
    :: else -> break
    od;
    j = 0; v = 0
}

/* A look without the hold; may miss the newest events, never sees one too many. */
#define NOTHING_NEW (WSEQ(mem[W(active_slot)]) != LOW(seq) || NWORDS(mem[W(active_slot)]) == 0)

active proctype serializer() {
    byte b, m, n, quiet, giveups, retries, seq = 1, j, slot, chunk;
    CELL c, v;
    bool pending;               /* a flip gave up: its hold stands, only the wait is left to do */
    bool drained;               /* a drain whose append has not returned */
    started;
    do
    :: broken -> break
    :: !broken && n >= FLIPS && quiet == 2 && !pending && !drained -> break
    :: else ->
        if :: n >= FLIPS && !pending && !drained -> done && FENCE_P; quiet++ :: else fi;  /* stop: under the GVL, a fence */
        b = 1 - active_slot;
#ifndef MUT_RELEASE_FIRST                                   /* the next flip begins although the append has not returned */
        if :: drained -> goto append :: else fi;
#endif
        if
        :: pending -> skip
#ifndef EMPTY_FLIPS
        :: !pending && NOTHING_NEW ->
            n++;                /* no flip: an idle lane costs no membarrier, and no sequence runs away from it */
            if :: drained -> goto append :: else -> goto again fi
#endif
        :: else ->
#ifdef MUT_SWAP_FLIP                                        /* hold before release */
            STS(G(active_slot), seq * 2 + HELD);
            STS(G(b), (seq + 1) * 2);
#else
            STS(G(b), (seq + 1) * 2);                       /* [rel]: after the drain and the append of b */
            STS(G(active_slot), seq * 2 + HELD);            /* [rel]: after the line above */
#endif
#ifdef FENCE_FAILS
            if
            :: FENCE_S; atomic { broken = true; STS(STATE, 1) }
#ifndef MUT_DRAIN_UNFENCED                                  /* drained although the fence failed */
                n++; goto again
#endif
            :: true
            fi;
#endif
#ifndef MUT_WEAK_SERIALIZER                                 /* the hold is a release store only */
            FENCE_S;            /* membarrier fences its caller too; in the fallback a seq_cst store does */
#endif
#if !defined(FALLBACK) && !defined(MUT_NO_MEMBARRIER)       /* the serializer only fences itself */
            if :: broken :: else -> FENCE_P fi;             /* membarrier: the producer's earlier stores are in memory */
#endif
            pending = true;
            n++
        fi;
        if
        :: atomic { !IS_BUSY(mem[W(active_slot)]) -> c = mem[W(active_slot)] }          /* [acq] one load: out, and how much */
        :: giveups < GIVEUPS && !done && !broken -> giveups++;
#if defined(MUT_GIVEUP_UNDO)                                /* the slot is freed again, the next flip starts over */
            STS(G(active_slot), seq * 2);
            pending = false;
#elif defined(MUT_GIVEUP_RESTART)                           /* the hold stays, the next flip starts over */
            pending = false;
#elif defined(MUT_GIVEUP_SWITCH)                            /* the slot counts as flipped */
            atomic { pending = false; active_slot = b; seq++ }
#endif
            goto again
        fi;
        pending = false;
#if !defined(WIDE) && !defined(MUT_SEQ_UNCHECKED)
        assert(LOW(seq - WSEQ(c) + 4) == 0 || LOW(seq - WSEQ(c) + 4) == 2);
#endif
#ifdef MUT_RELEASE_FIRST
        atomic { if :: drained -> decode(slot, m, file_next, file_events); file_seq = chunk :: else fi }
#endif
        atomic { m = (WSEQ(c) == LOW(seq) -> NWORDS(c) : 0); slot = active_slot; chunk = seq; drained = true; c = 0 }
#ifdef MUT_RELEASE_FIRST
        atomic { active_slot = b; seq++ }
#endif

append: if
        :: retries < RETRIES -> retries++; goto again       /* write(2) failed: the slot stays as it is until it works */
        :: true
        fi;
        atomic {                /* encode, and append the whole chunk: in the model, one step */
            assert(inside != slot);
            assert(m == 0 || mem[OPENED(slot)] == file_events);
            decode(slot, m, file_next, file_events);
            file_seq = chunk; drained = false;
            m = 0; b = 0; slot = 0; chunk = 0;
#ifndef MUT_RELEASE_FIRST
            active_slot = 1 - active_slot; seq++
#endif
        }
again:  skip
    od;
    if
    :: broken -> assert(file_events <= stored)              /* the rest is counted as lost */
    :: else ->
        assert(file_events == stored);
        assert(file_next - 1 <= EVENTS)
    fi;
    done;
    assert(broken || file_events == stored)
}

/* ---------------------------------------------------------------- kill -9 */
#ifdef CRASH
/* A killed thread stops between two instructions and what it stored before is kept, so the file shows, per thread, a
 * prefix of its stores: both buffers drain, then recovery reads. One look at any moment is the same as a kill there. */
inline recover_slot(k) {
    q = WSEQ(mem[W(k)]);
    if
    :: LOW(q + 4 - LOW(file_seq)) == 1 || LOW(q + 4 - LOW(file_seq)) == 2 ->    /* one or two after the newest in the file */
        assert(NWORDS(mem[W(k)]) == 0 || mem[OPENED(k)] == events);
        decode(k, NWORDS(mem[W(k)]), r, events)
    :: else
    fi
}
active proctype killer() {
    byte q, j, r, events;
    CELL v;
    atomic { started && FENCE_P && FENCE_S ->
        r = file_next; events = file_events;
        if
        :: LOW(WSEQ(mem[W(0)]) + 1) == WSEQ(mem[W(1)]) -> recover_slot(0); recover_slot(1)
        :: else -> recover_slot(1); recover_slot(0)
        fi;
        assert(events == stored)
    }
}
#endif

/* ---------------------------------------------------------------- fork */
#ifdef FORK
/* Any thread may fork, at any step of the two others, which do not exist in the child. */
active proctype forker() {
    started;
#if defined(MUT_CHILD_SHARES)
    /* slots are MAP_SHARED: a child that records before its reset writes into the parent's memory */
    atomic { mem[WORD(active_slot, 0)] = 31; mem[WORD(active_slot, 1)] = 31 }
#elif defined(MUT_CHILD_INHERITS)
    /* private copy of the lane words, kept: a flip in the child must end, and must find nothing of the parent's */
    atomic { assert(!IS_BUSY(mem[W(active_slot)])); assert(NWORDS(mem[W(0)]) == 0 && NWORDS(mem[W(1)]) == 0) }
#else
    skip                        /* a fresh lane: the initial state of this model, independent of the parent's */
#endif
}
#endif
