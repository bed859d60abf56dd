/* fork_loop.c - fork a recording process at random moments; both sides must go on, and nothing is lost or doubled.
 *
 *   fork_loop [FORKS] [SEED]
 *
 * The parent records with tiny periods and segments, so forks fall into flips, encodes, writes and rotations. Each
 * child abandons the session, opens its own in the same directories, records, and stops or is killed; what a killed one
 * left is recovered at the end. A child that hangs is ended by its alarm and fails the run.
 */
#include "../c/deliver_support.h"

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static void run_child(struct recorder *parents, const struct place *parent_place, bool stops)
{
    alarm(20);
    rat_session_abandon(parents->session);
    struct place own = *parent_place;
    snprintf(own.out, sizeof own.out, "%.40s/%d", parent_place->out, (int)getpid());
    struct rat_session_options options = small_options(&own);
    struct recorder mine;
    open_lane(&mine, open_session(&options), RAT_LANE_MAIN);
    record_many(&mine, 100);
    if (!stops)
        _exit(0);
    REQUIRE(rat_session_stop(mine.session, NULL, 0) == RAT_OK);
    _exit(0);
}

int main(int count, char **arguments)
{
    uint64_t forks = count > 1 ? strtoull(arguments[1], NULL, 10) : 200;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : (uint64_t)time(NULL) ^ (uint64_t)getpid();
    printf("forks %" PRIu64 ", seed %" PRIu64 "\n", forks, seed);
    fflush(stdout);
    struct place place = make_place();
    struct rat_session_options options = small_options(&place);
    options.period_ns = MILLISECOND;
    options.segment_bytes = 3000;
    struct recorder recorder;
    open_lane(&recorder, open_session(&options), RAT_LANE_MAIN);
    for (uint64_t i = 0; i < forks; i++) {
        record_many(&recorder, next_random(&seed) % 2000);
        nanosleep(&(struct timespec){.tv_nsec = (long)(next_random(&seed) % 1500000)}, NULL);
        bool stops = i % 2;
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0)
            run_child(&recorder, &place, stops);
        record_many(&recorder, next_random(&seed) % 500);
        int status;
        REQUIRE(waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        char own[64];
        snprintf(own, sizeof own, "%.40s/%d", place.out, (int)child);
        struct rat_recovery found;
        REQUIRE(rat_recover(own, place.live, NULL, NULL, &found) == RAT_OK && found.failed == 0);
        REQUIRE(found.segments == (stops ? 0 : 1));
        REQUIRE(read_back(own).lane[1].decoded == 100);
        remove_tree(own);
    }
    REQUIRE(rat_session_stop(recorder.session, NULL, 0) == RAT_OK);
    struct tally tally = read_back(place.out);
    REQUIRE(tally.lane[1].decoded == recorder.stored && tally.lane[1].lost == 0);
    REQUIRE(sum_drops(&tally.lane[1].closed) == recorder.dropped);
    REQUIRE(count_files(place.live, "") == 0);
    printf("%" PRIu64 " events of the parent in %d segments, %" PRIu64 " dropped\n", tally.lane[1].decoded, tally.files,
           recorder.dropped);
    remove_place(&place);
    return 0;
}
