/* ship_loop.c - fork while names are looked up and uploads begin, over and over; no child may hang.
 *
 *   ship_loop [FORKS] [SEED]
 *
 * The parent's shipper looks up a name, is refused, and tries again at once. Each child looks a name up itself, which
 * takes the locks that a look-up of the parent's may have held, then ships a segment's worth of attempts, and ends.
 * A child that hangs is ended by its alarm and fails the run.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "../c/deliver_support.h"
#include "deliver/shipper.h"

static _Atomic uint64_t look_ups;

/* libcurl's look-ups come here: any name becomes one that the C library reads its configuration and files for. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    atomic_fetch_add(&look_ups, 1);
    return real(name != NULL ? "localhost" : NULL, service, hints, found);
}

/* A port where nobody listens. */
static unsigned refused_port(int *holder)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    *holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(*holder, (struct sockaddr *)&address, sizeof address) == 0);
    REQUIRE(getsockname(*holder, (struct sockaddr *)&address, &length) == 0);
    return ntohs(address.sin_port);
}

static struct rat_shipper *start(const struct rat_ship_options *options)
{
    struct rat_shipper *shipper;
    char why[512] = "";
    enum rat_status status = rat_shipper_start(options, &shipper, why, sizeof why);
    if (status != RAT_OK)
        fprintf(stderr, "rat_shipper_start: %s\n", why);
    REQUIRE(status == RAT_OK);
    return shipper;
}

static uint64_t failures(struct rat_shipper *shipper)
{
    struct rat_ship_stats stats;
    rat_shipper_stats(shipper, &stats);
    return stats.delivery.failures[RAT_HTTP_CONNECT];
}

static void run_child(const struct rat_ship_options *options, struct rat_shipper *parents, bool ships)
{
    alarm(20);
    rat_shipper_in_child(parents);
    struct addrinfo *found;
    if (getaddrinfo("receiver.example", "80", NULL, &found) == 0)
        freeaddrinfo(found);
    if (ships) {
        struct rat_ship_options own = *options;
        char dir[64];
        snprintf(dir, sizeof dir, "%.40s/%d", options->dir, (int)getpid());
        REQUIRE(mkdir(dir, 0700) == 0);
        char from[96], to[96];
        snprintf(from, sizeof from, "%s/kept", options->dir);
        snprintf(to, sizeof to, "%s/own" RAT_SEGMENT_SUFFIX, dir);
        REQUIRE(link(from, to) == 0);
        own.dir = dir;
        struct rat_shipper *mine = start(&own);
        WAIT_FOR(failures(mine) > 0);
        REQUIRE(rat_shipper_stop(mine, 0, NULL) == RAT_OK);
        remove_tree(dir);
    }
    _exit(0);
}

/* One segment that waits, and a link to it for the children. */
static void record_segment(const struct place *place)
{
    struct rat_session_options options = small_options(place);
    struct recorder recorder;
    open_lane(&recorder, open_session(&options), RAT_LANE_MAIN);
    record_many(&recorder, 100);
    char path[512], kept[96];
    REQUIRE(rat_session_stop(recorder.session, path, sizeof path) == RAT_OK);
    snprintf(kept, sizeof kept, "%s/kept", place->out);
    REQUIRE(link(path, kept) == 0);
}

int main(int count, char **arguments)
{
    uint64_t forks = count > 1 ? strtoull(arguments[1], NULL, 10) : 200;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : (uint64_t)time(NULL) ^ (uint64_t)getpid();
    printf("forks %" PRIu64 ", seed %" PRIu64 "\n", forks, seed);
    fflush(stdout);
    srandom((unsigned)seed);
    struct place place = make_place();
    record_segment(&place);
    int holder;
    char url[64];
    snprintf(url, sizeof url, "http://receiver.example:%u/in", refused_port(&holder));
    const struct rat_ship_options options = {
        .dir = place.out,
        .live_dir = place.live,
        .has_target = true,
        .target = {.url = url},
        .grace_ns = 10000 * MILLISECOND,
        .time_scale = 1e9,
    };
    struct rat_shipper *shipper = start(&options);
    WAIT_FOR(failures(shipper) > 0);
    uint64_t slowest = 0;
    for (uint64_t i = 0; i < forks; i++) {
        nanosleep(&(struct timespec){.tv_nsec = random() % 1000000}, NULL);
        uint64_t begun = rat_clock_ns(CLOCK_MONOTONIC);
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0)
            run_child(&options, shipper, i % 4 == 0);
        uint64_t took = rat_clock_ns(CLOCK_MONOTONIC) - begun;
        slowest = took > slowest ? took : slowest;
        int status;
        REQUIRE(waitpid(child, &status, 0) == child);
        if (status != 0)
            fprintf(stderr, "child %d of fork %" PRIu64 " ended with status %#x\n", (int)child, i, (unsigned)status);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    REQUIRE(rat_shipper_stop(shipper, 0, NULL) == RAT_OK);
    printf("%" PRIu64 " look-ups of the parent; the slowest fork took %" PRIu64 " us\n", (uint64_t)look_ups,
           slowest / 1000);
    close(holder);
    remove_place(&place);
    return 0;
}
