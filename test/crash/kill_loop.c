/* kill_loop.c - kill -9 a recording process at random moments, recover, and count.
 *
 *   kill_loop [KILLS] [SEED]
 *
 * Each round forks a child that records as fast as it can into a session with small slots and small segments. A second
 * shared mapping holds its own count of what it stored and dropped, written after each event. The parent kills it with
 * SIGKILL after a random time, recovers, and reads all segments back: each event exactly once and in order, as many as
 * committed, or one more (stored, not yet counted).
 */
#include "../c/deliver_support.h"

#include <sys/time.h>

struct truth {
    _Atomic uint64_t ready, stored[2], dropped[2];
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* Bursts and rests, so that periods, half full slots, full slots and empty ones all happen. */
static void run_child(const struct place *place, struct truth *truth, uint64_t seed)
{
    struct rat_session_options options = small_options(place);
    options.slot_bytes = (uint32_t)(1 + next_random(&seed) % 4) * RAT_SLOT_BYTES_MIN;
    options.period_ns = (1 + next_random(&seed) % 5) * MILLISECOND;
    options.segment_bytes = 2000 + next_random(&seed) % 60000;
    struct rat_session *session = open_session(&options);
    struct recorder lanes[2];
    open_lane(&lanes[0], session, RAT_LANE_MAIN);
    open_lane(&lanes[1], session, RAT_LANE_RACTOR);
    bool gentle = next_random(&seed) % 2;
    atomic_store(&truth->ready, 1);
    for (;;) {
        int which = next_random(&seed) % 4 == 0;
        uint64_t burst = next_random(&seed) % (gentle ? 600 : 6000);
        for (uint64_t i = 0; i < burst; i++) {
            record(&lanes[which]);
            atomic_store_explicit(&truth->stored[which], lanes[which].stored, memory_order_release);
            atomic_store_explicit(&truth->dropped[which], lanes[which].dropped, memory_order_release);
        }
        if (gentle || next_random(&seed) % 8 != 0)
            nanosleep(&(struct timespec){.tv_nsec = (long)(next_random(&seed) % (gentle ? 400000 : 2000000))}, NULL);
    }
}

struct sums {
    uint64_t events, chunks, in_flight, dropped, cut, segments, plus_one;
};

static void print_line(void *user, const char *line)
{
    (void)user;
    if (getenv("VERBOSE") != NULL)
        fprintf(stderr, "%s\n", line);
}

static void check(const struct place *place, const struct truth *truth, struct sums *sums)
{
    struct rat_recovery found;
    REQUIRE(rat_recover(place->out, place->live, print_line, NULL, &found) == RAT_OK);
    REQUIRE(found.failed == 0 && found.alive == 0);
    REQUIRE(count_files(place->live, "") == 0);
    REQUIRE(count_files(place->out, RAT_SEGMENT_PART) == 0);
    struct tally tally = read_back(place->out);
    for (int which = 0; which < 2; which++) {
        const struct lane_tally *lane = &tally.lane[which == 0 ? 1 : RAT_LANE_RACTOR + 1];
        uint64_t stored = truth->stored[which], dropped = truth->dropped[which];
        if (lane->decoded < stored || lane->decoded > stored + 1) {
            fprintf(stderr, "lane %d: %" PRIu64 " events committed, %" PRIu64 " recovered\n", which, stored,
                    lane->decoded);
            abort();
        }
        REQUIRE(lane->lost == 0);
        REQUIRE(lane->in_flight <= 1);
        REQUIRE(sum_drops(&lane->closed) >= dropped && sum_drops(&lane->closed) <= dropped + 1);
        sums->events += lane->decoded;
        sums->in_flight += lane->in_flight;
        sums->dropped += dropped;
        sums->plus_one += lane->decoded - stored;
    }
    REQUIRE(!tally.any_drops_off);
    sums->chunks += found.chunks;
    sums->cut += found.cut_bytes != 0;
    sums->segments += (uint64_t)tally.files;

    struct rat_recovery again;
    REQUIRE(rat_recover(place->out, place->live, print_line, NULL, &again) == RAT_OK);
    REQUIRE(again.segments == 0 && again.chunks == 0);
}

int main(int count, char **arguments)
{
    uint64_t kills = count > 1 ? strtoull(arguments[1], NULL, 10) : 200;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : (uint64_t)time(NULL) ^ (uint64_t)getpid();
    printf("kills %" PRIu64 ", seed %" PRIu64 "\n", kills, seed);
    fflush(stdout);
    struct truth *truth = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sums sums = {0};
    uint64_t state = seed;
    for (uint64_t kill_number = 0; kill_number < kills; kill_number++) {
        struct place place = make_place();
        memset(truth, 0, sizeof *truth);
        uint64_t child_seed = next_random(&state), after = next_random(&state) % 30000;
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            run_child(&place, truth, child_seed);
            _exit(1);
        }
        WAIT_FOR(atomic_load(&truth->ready));
        nanosleep(&(struct timespec){.tv_nsec = (long)(after * 1000)}, NULL);
        int status;
        REQUIRE(kill(child, SIGKILL) == 0);
        REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        check(&place, truth, &sums);
        remove_place(&place);
    }
    printf("%" PRIu64 " events in %" PRIu64 " segments exactly once (%" PRIu64 " ahead of the count), %" PRIu64
           " chunks recovered, %" PRIu64 " torn tails, %" PRIu64 " in flight, %" PRIu64 " dropped\n",
           sums.events, sums.segments, sums.plus_one, sums.chunks, sums.cut, sums.in_flight, sums.dropped);
    return 0;
}
