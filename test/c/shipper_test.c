/* The shipper thread under the sanitizers, against a server in a process of its own. What a server and a network can do
 * is tested from Ruby (ship_test.rb); here it is memory, threads, forks and the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "base/testpoint.h"
#include "deliver/fork_gate.h"
#include "deliver/shipper.h"
#include "deliver_support.h"

enum mode { ANSWER_200, ANSWER_500, ANSWER_400, BLACK_HOLE };

static struct place place;
static pid_t server;
static char url[64];
static int arrived; /* readable once a connection came in */
static _Atomic int *requests; /* read to their ends, of this server; shared with it */
static char lines[4096];
static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------- the server */

/* Reads one request; false: the peer has gone. */
static bool read_request(int fd)
{
    char head[8192];
    size_t have = 0;
    char *end = NULL;
    while (end == NULL) {
        ssize_t got = read(fd, head + have, sizeof head - 1 - have);
        if (got <= 0)
            return false;
        have += (size_t)got;
        head[have] = '\0';
        end = strstr(head, "\r\n\r\n");
    }
    const char *length = strcasestr(head, "content-length:");
    size_t body = length != NULL ? strtoul(length + 15, NULL, 10) : 0, got = have - (size_t)(end + 4 - head);
    while (got < body) {
        char bytes[4096];
        ssize_t some = read(fd, bytes, sizeof bytes);
        if (some <= 0)
            return false;
        got += (size_t)some;
    }
    return true;
}

static void serve(int listener, enum mode mode, int arrival)
{
    static const char *const answers[] = {
        [ANSWER_200] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        [ANSWER_500] = "HTTP/1.1 500 No\r\nContent-Length: 5\r\n\r\noops\n",
        [ANSWER_400] = "HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n",
    };
    signal(SIGCHLD, SIG_IGN);
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
        (void)!write(arrival, "", 1);
        if (fork() > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (mode == BLACK_HOLE)
            pause();
        while (read_request(fd)) {
            atomic_fetch_add(requests, 1);
            (void)!write(fd, answers[mode], strlen(answers[mode]));
        }
        _exit(0);
    }
}

static void start_server(enum mode mode)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 16), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/in", ntohs(address.sin_port));
    int arrival[2];
    assert_int_equal(pipe2(arrival, O_CLOEXEC), 0);
    requests = mmap(NULL, sizeof *requests, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(requests, MAP_FAILED);
    server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(listener, mode, arrival[1]);
        _exit(0);
    }
    close(listener);
    close(arrival[1]);
    arrived = arrival[0];
}

static void stop_server(void)
{
    if (server <= 0)
        return;
    int status;
    kill(server, SIGKILL);
    waitpid(server, &status, 0);
    close(arrived);
    munmap(requests, sizeof *requests);
    server = 0;
}

/* ---------------------------------------------------------------- the rest of the world */

static void keep_line(void *user, bool warning, const char *line)
{
    (void)user;
    pthread_mutex_lock(&lines_lock);
    snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s%s\n", warning ? "! " : "", line);
    pthread_mutex_unlock(&lines_lock);
}

static bool was_said(const char *text)
{
    pthread_mutex_lock(&lines_lock);
    bool said = strstr(lines, text) != NULL;
    pthread_mutex_unlock(&lines_lock);
    return said;
}

/* The thread that comes to this point, or to a look-up of a name, stays there until it may go on. */
static const char *holding_point;
static bool holds_look_ups, look_ups_await_holding;
static _Atomic int is_held, may_go_on, fork_waits;

static void hold(void)
{
    atomic_store(&is_held, 1);
    while (!atomic_load(&may_go_on))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    atomic_store(&is_held, 0);
}

static void at_point(const char *name)
{
    if (strcmp(name, "fork.waiting") == 0)
        atomic_store(&fork_waits, 1);
    else if (strcmp(name, "shipper.stop_asked") == 0 && holding_point != NULL &&
             strcmp(holding_point, "shipper.started") == 0)
        atomic_store(&may_go_on, 1);
    else if (holding_point != NULL && strcmp(name, holding_point) == 0)
        hold();
}

/* In place of the C library's, for libcurl's threads: every name is this machine's. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (holds_look_ups)
        hold();
    while (look_ups_await_holding && !atomic_load(&is_held) && !atomic_load(&may_go_on))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return real(name != NULL ? "127.0.0.1" : NULL, service, hints, found);
}

static int set_up(void **state)
{
    (void)state;
    rat_test_point = at_point;
    rat_fork_gate_ns = FOREVER; /* ASan's allocator must not be in use at a fork */
    rat_fork_gate_lookup_ns = MILLISECOND;
    holding_point = NULL;
    holds_look_ups = look_ups_await_holding = false;
    is_held = may_go_on = fork_waits = 0;
    place = make_place();
    lines[0] = '\0';
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    stop_server();
    remove_place(&place);
    return 0;
}

static void record_segments(int count)
{
    for (int i = 0; i < count; i++) {
        struct rat_session_options options = small_options(&place);
        struct recorder recorder;
        open_lane(&recorder, open_session(&options), RAT_LANE_MAIN);
        record_many(&recorder, 100);
        assert_int_equal(rat_session_stop(recorder.session, NULL, 0), RAT_OK);
    }
}

static struct rat_ship_options fast_options(void)
{
    return (struct rat_ship_options){
        .dir = place.out,
        .live_dir = place.live,
        .has_target = true,
        .target = {.url = url, .token = "sesame", .finalize_url = url, .headers = {"X-Team: blue"}, .header_count = 1},
        .grace_ns = 60000 * MILLISECOND,
        .time_scale = 100,
        .report = keep_line,
    };
}

static struct rat_shipper *start(const struct rat_ship_options *options)
{
    struct rat_shipper *shipper;
    char why[512] = "";
    enum rat_status status = rat_shipper_start(options, &shipper, why, sizeof why);
    if (status != RAT_OK)
        print_message("%s\n", why);
    assert_int_equal(status, RAT_OK);
    return shipper;
}

static struct rat_ship_stats look(struct rat_shipper *shipper)
{
    struct rat_ship_stats stats;
    rat_shipper_stats(shipper, &stats);
    return stats;
}

static int count_waiting(void)
{
    return count_files(place.out, RAT_SEGMENT_SUFFIX);
}

/* ---------------------------------------------------------------- tests */

static void test_segments_are_delivered_and_the_last_ones_at_the_end(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    record_segments(2);
    const struct rat_ship_options options = fast_options();
    struct rat_shipper *shipper = start(&options);
    WAIT_FOR(look(shipper).delivery.delivered == 2);
    record_segments(1);
    struct rat_ship_stats last;
    assert_int_equal(rat_shipper_stop(shipper, 10000 * MILLISECOND, &last), RAT_OK);
    assert_int_equal(last.delivery.delivered, 3);
    assert_int_equal(last.delivery.finalized, 3);
    assert_int_equal(last.waiting, 0);
    assert_int_equal(count_waiting(), 0);
}

static void test_it_can_be_stopped_at_any_moment(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    for (int round = 0; round < 20; round++) {
        record_segments(1);
        const struct rat_ship_options options = fast_options();
        struct rat_shipper *shipper = start(&options);
        nanosleep(&(struct timespec){.tv_nsec = round * 500000}, NULL);
        assert_int_equal(rat_shipper_stop(shipper, 0, NULL), RAT_OK);
    }
}

static void test_a_hanging_server_is_left_at_the_deadline(void **state)
{
    (void)state;
    start_server(BLACK_HOLE);
    record_segments(1);
    struct rat_ship_options options = fast_options();
    options.time_scale = 1;
    struct rat_shipper *shipper = start(&options);
    WAIT_FOR(look(shipper).delivery.attempts == 1);
    uint64_t begun = rat_clock_ns(CLOCK_MONOTONIC);
    struct rat_ship_stats last;
    assert_int_equal(rat_shipper_stop(shipper, 200 * MILLISECOND, &last), RAT_OK);
    uint64_t took = rat_clock_ns(CLOCK_MONOTONIC) - begun;
    assert_true(took >= 200 * MILLISECOND);
    assert_int_equal(last.waiting, 1);
    assert_int_equal(count_waiting(), 1);
}

static void test_failures_are_counted_and_told_once(void **state)
{
    (void)state;
    start_server(ANSWER_500);
    record_segments(3);
    const struct rat_ship_options options = fast_options();
    struct rat_shipper *shipper = start(&options);
    WAIT_FOR(look(shipper).delivery.retried >= 6);
    struct rat_ship_stats stats = look(shipper);
    assert_int_equal(stats.delivery.last_status, 500);
    assert_string_equal(stats.delivery.last_error, "HTTP 500: oops");
    assert_true(stats.delivery.statuses[5] >= 6);
    assert_int_equal(stats.delivery.poisoned, 0);
    stop_server();
    WAIT_FOR(look(shipper).delivery.failures[RAT_HTTP_CONNECT] > 0);
    assert_int_equal(rat_shipper_stop(shipper, 1000 * MILLISECOND, NULL), RAT_OK);
    assert_int_equal(count_waiting(), 3);
    const char *first = strstr(lines, "! cannot deliver: HTTP 500");
    assert_non_null(first);
    assert_null(strstr(first + 1, "! cannot deliver"));
    assert_null(strstr(lines, "sesame"));
}

static void test_the_refused_are_moved_aside(void **state)
{
    (void)state;
    start_server(ANSWER_400);
    record_segments(2);
    struct rat_ship_options options = fast_options();
    options.once = true;
    struct rat_shipper *shipper = start(&options);
    WAIT_FOR(!look(shipper).running);
    struct rat_ship_stats last;
    assert_int_equal(rat_shipper_stop(shipper, 0, &last), RAT_OK);
    assert_int_equal(last.delivery.poisoned, 2);
    assert_int_equal(count_waiting(), 0);
    char poison[128];
    snprintf(poison, sizeof poison, "%s/" RAT_SPOOL_POISON, place.out);
    assert_int_equal(count_files(poison, RAT_SEGMENT_SUFFIX), 2);
    assert_true(was_said("is refused for good"));
}

/* A file that cannot be read is no reason to wait for the others. */
static void test_an_unreadable_file_blocks_nobody(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    char path[128];
    snprintf(path, sizeof path, "%s/a.ratrace", place.out);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    char claims[128];
    snprintf(claims, sizeof claims, "%s/" RAT_CLAIMS_NAME, place.out);
    record_segments(2);
    const struct rat_ship_options options = fast_options();
    struct rat_shipper *shipper = start(&options);
    WAIT_FOR(look(shipper).delivery.delivered == 2);
    assert_int_equal(rat_shipper_stop(shipper, 1000 * MILLISECOND, NULL), RAT_OK);
    assert_int_equal(count_waiting(), 0); /* an empty file is no segment */
}

static void test_a_delayed_shipper_that_is_stopped_delivers_nothing(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    record_segments(1);
    struct rat_ship_options options = fast_options();
    options.delay_ns = FOREVER;
    struct rat_shipper *shipper = start(&options);
    struct rat_ship_stats last;
    assert_int_equal(rat_shipper_stop(shipper, 10000 * MILLISECOND, &last), RAT_OK);
    assert_int_equal(last.delivery.attempts, 0);
    assert_int_equal(count_waiting(), 1);
}

/* A program of a few milliseconds on a busy machine. */
static void test_a_stop_before_the_thread_ran_delivers(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    record_segments(1);
    const struct rat_ship_options options = fast_options();
    holding_point = "shipper.started";
    struct rat_shipper *shipper = start(&options);
    assert_int_equal(rat_shipper_stop(shipper, 10000 * MILLISECOND, NULL), RAT_OK);
    assert_int_equal(count_waiting(), 0);
}

static void test_a_forked_child_may_ship_itself(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* TSan starts no threads in a child of several */
#endif
    start_server(BLACK_HOLE);
    record_segments(1);
    struct rat_ship_options options = fast_options();
    options.time_scale = 1;
    struct rat_shipper *shipper = start(&options);
    char byte;
    assert_int_equal(read(arrived, &byte, 1), 1);
    pid_t child = fork();
    if (child == 0) {
        rat_shipper_in_child(shipper); /* as the handler does; then it is forgotten */
        struct rat_ship_options own = fast_options();
        struct rat_shipper *mine;
        char why[512];
        if (rat_shipper_start(&own, &mine, why, sizeof why) != RAT_OK)
            _exit(1);
        struct rat_ship_stats stats = {.waiting = 0};
        for (int i = 0; i < 10000 && stats.delivery.busy == 0; i++) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            rat_shipper_stats(mine, &stats);
        }
        if (stats.delivery.busy == 0 || stats.delivery.attempts != 0)
            _exit(2); /* the parent has the segment */
        _exit(rat_shipper_stop(mine, 0, NULL) == RAT_OK ? 0 : 3);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(rat_shipper_stop(shipper, 0, NULL), RAT_OK);
}

/* ---------------------------------------------------------------- forks while it works */

static void use_a_name(void)
{
    char port[8];
    snprintf(port, sizeof port, "%s", strrchr(url, ':') + 1);
    snprintf(url, sizeof url, "http://receiver.example:%.5s/in", port);
}

/* Bytes behind the last chunk are the receiver's business. */
static void make_segments_long(void)
{
    DIR *dir = opendir(place.out);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strstr(entry->d_name, RAT_SEGMENT_SUFFIX) == NULL)
            continue;
        int fd = openat(dirfd(dir), entry->d_name, O_WRONLY);
        assert_int_equal(ftruncate(fd, 1 << 19), 0);
        close(fd);
    }
    closedir(dir);
}

static int count_open_to_programs(void)
{
    int count = 0;
    for (int fd = 3; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        count += flags >= 0 && (flags & FD_CLOEXEC) == 0;
    }
    return count;
}

static struct rat_ship_options plain_options(void)
{
    struct rat_ship_options options = fast_options();
    options.target.finalize_url = NULL;
    options.target.token = NULL;
    return options;
}

/* What a child of a service does: abandon, record into files of its own, deliver them, end. */
static void live_as_a_child(struct rat_shipper *parents)
{
    alarm(60);
    atomic_store(&may_go_on, 1);
    rat_shipper_in_child(parents);
    snprintf(place.out, sizeof place.out, "%.50s", mkdtemp((char[]){"/tmp/ratrace-test-XXXXXX"}));
    record_segments(2);
    const struct rat_ship_options own = plain_options();
    struct rat_shipper *mine = start(&own);
    WAIT_FOR(look(mine).delivery.delivered == 2);
    struct rat_ship_stats last;
    REQUIRE(rat_shipper_stop(mine, 10000 * MILLISECOND, &last) == RAT_OK);
    remove_tree(place.out);
    _exit(last.delivery.attempts == 2 ? 0 : 1);
}

/* Parent and child deliver what is theirs, once, whatever the parent's shipper was about when it was forked. */
static void fork_while_held(void)
{
#ifdef __SANITIZE_THREAD__
    skip(); /* TSan starts no threads in a child of several */
#endif
    const struct rat_ship_options options = plain_options();
    int before = count_open_to_programs();
    struct rat_shipper *shipper = start(&options);
    WAIT_FOR(is_held);
    WAIT_FOR(count_open_to_programs() == before);
    pid_t child = fork();
    if (child == 0)
        live_as_a_child(shipper);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(*requests, 2);
    assert_int_equal(is_held, 1);
    atomic_store(&may_go_on, 1);
    WAIT_FOR(look(shipper).delivery.delivered == 1);
    struct rat_ship_stats last;
    assert_int_equal(rat_shipper_stop(shipper, 10000 * MILLISECOND, &last), RAT_OK);
    assert_int_equal(last.delivery.attempts, 1);
    assert_int_equal(*requests, 3);
    assert_int_equal(count_waiting(), 0);
}

static void test_a_fork_while_a_body_is_half_sent(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    record_segments(1);
    make_segments_long();
    holding_point = "http.sending";
    rat_fork_gate_ns = MILLISECOND; /* that is inside */
    fork_while_held();
}

static void test_a_fork_while_an_answer_is_awaited(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    record_segments(1);
    holding_point = "http.waiting";
    fork_while_held();
}

static void test_a_fork_while_a_name_is_looked_up(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    use_a_name();
    record_segments(1);
    holds_look_ups = true;
    fork_while_held();
}

static void test_a_fork_while_a_look_up_is_begun(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    use_a_name();
    record_segments(1);
    holding_point = "http.resolving";
    look_ups_await_holding = true; /* one that has ended already is not waited for */
    fork_while_held();
}

static void *go_on_once_a_fork_waits(void *unused)
{
    WAIT_FOR(fork_waits);
    atomic_store(&may_go_on, 1);
    return unused;
}

/* A look-up holds locks that nothing frees in a child. */
static void test_no_look_up_is_inherited_while_it_is_young(void **state)
{
    (void)state;
    start_server(ANSWER_200);
    use_a_name();
    record_segments(1);
    holds_look_ups = true;
    rat_fork_gate_lookup_ns = FOREVER;
    const struct rat_ship_options options = plain_options();
    struct rat_shipper *shipper = start(&options);
    WAIT_FOR(is_held);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, go_on_once_a_fork_waits, NULL), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(is_held);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    pthread_join(thread, NULL);
    WAIT_FOR(look(shipper).delivery.delivered == 1);
    assert_int_equal(rat_shipper_stop(shipper, 10000 * MILLISECOND, NULL), RAT_OK);
}

/* ---------------------------------------------------------------- refusals */

static void test_what_does_not_do_is_refused(void **state)
{
    (void)state;
    snprintf(url, sizeof url, "ftp://h/");
    const struct rat_ship_options options = fast_options();
    struct rat_shipper *shipper;
    char why[512];
    assert_int_equal(rat_shipper_start(&options, &shipper, why, sizeof why), RAT_INVALID);
    assert_non_null(strstr(why, "url: ftp://h/ is not allowed"));
}

static void test_secrets_are_replaced_wherever_they_stand(void **state)
{
    (void)state;
    static const char *const secrets[RAT_HTTP_SECRETS_MAX] = {"sesame", "k"};
    char text[] = "sesame open, sesamesesame. k";
    rat_http_scrub(secrets, text);
    assert_string_equal(text, "[secre open, [secre[secre. [");
}

static void test_addresses_are_shown_without_what_is_nobodys_business(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"https://joe:secret@h:1/a/b?sig=x#y", "https://h:1/a/b"}, {"http://h", "http://h"},
        {"http://h?sig=x", "http://h"}, {"http://h/a@b", "http://h/a@b"}, {"joe:secret@h/x", "h/x"}, {"", ""}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char shown[128];
        rat_http_show_url(pairs[i][0], shown, sizeof shown);
        assert_string_equal(shown, pairs[i][1]);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_segments_are_delivered_and_the_last_ones_at_the_end),
        TEST(test_it_can_be_stopped_at_any_moment),
        TEST(test_a_hanging_server_is_left_at_the_deadline),
        TEST(test_failures_are_counted_and_told_once),
        TEST(test_the_refused_are_moved_aside),
        TEST(test_an_unreadable_file_blocks_nobody),
        TEST(test_a_delayed_shipper_that_is_stopped_delivers_nothing),
        TEST(test_a_stop_before_the_thread_ran_delivers),
        TEST(test_a_forked_child_may_ship_itself),
        TEST(test_a_fork_while_a_body_is_half_sent),
        TEST(test_a_fork_while_an_answer_is_awaited),
        TEST(test_a_fork_while_a_name_is_looked_up),
        TEST(test_a_fork_while_a_look_up_is_begun),
        TEST(test_no_look_up_is_inherited_while_it_is_young),
        TEST(test_what_does_not_do_is_refused),
        TEST(test_secrets_are_replaced_wherever_they_stand),
        TEST(test_addresses_are_shown_without_what_is_nobodys_business),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
