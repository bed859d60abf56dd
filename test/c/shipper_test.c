/* The shipper thread under the sanitizers, against a server in a process of its own. What a server and a network can do
 * is tested from Ruby (ship_test.rb); here it is memory, threads, forks and the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "deliver/shipper.h"
#include "deliver_support.h"

enum mode { ANSWER_200, ANSWER_500, ANSWER_400, BLACK_HOLE };

static struct place place;
static pid_t server;
static char url[64];
static int arrived; /* readable once a connection came in */
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
        [ANSWER_500] = "HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops",
        [ANSWER_400] = "HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n",
    };
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
        (void)!write(arrival, "", 1);
        while (mode == BLACK_HOLE)
            pause();
        while (read_request(fd))
            (void)!write(fd, answers[mode], strlen(answers[mode]));
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
    assert_int_equal(pipe(arrival), 0);
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

static int set_up(void **state)
{
    (void)state;
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
        TEST(test_a_forked_child_may_ship_itself),
        TEST(test_what_does_not_do_is_refused),
        TEST(test_secrets_are_replaced_wherever_they_stand),
        TEST(test_addresses_are_shown_without_what_is_nobodys_business),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
