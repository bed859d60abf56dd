/* The control socket: what it hears, whom, and what it does to what lies in its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "deliver/control.h"
#include "deliver_support.h"

#define LONG_MS 10000 /* for what comes for sure */
#define NOBODY 65534

static struct place place;
static struct rat_control control;
static char why[1400], request[RAT_CONTROL_REQUEST_MAX];

static int set_up(void **state)
{
    (void)state;
    place = make_place();
    return rat_control_open(&control, place.out, why, sizeof why) == RAT_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    rat_control_close(&control);
    remove_place(&place);
    return 0;
}

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    REQUIRE(strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    return address;
}

static int connect_to(const char *path)
{
    struct sockaddr_un address = address_of(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/* A socket somebody bound there; it listens for nobody. */
static int bind_to(const char *path)
{
    struct sockaddr_un address = address_of(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static int ask(const char *bytes, size_t length)
{
    int fd = connect_to(control.path);
    REQUIRE(send(fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length);
    return fd;
}

/* It was hung up on, with or without a word before; closes it. */
static size_t answer_of(int fd, char *answer, size_t room)
{
    size_t have = 0;
    for (ssize_t got; (got = recv(fd, answer + have, room - 1 - have, 0)) > 0;)
        have += (size_t)got;
    answer[have] = '\0';
    close(fd);
    return have;
}

static void assert_hung_up_on(int fd)
{
    char answer[16];
    assert_int_equal(answer_of(fd, answer, sizeof answer), 0);
}

static void assert_refused(const char *bytes, size_t length)
{
    int fd = ask(bytes, length);
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_END);
    assert_hung_up_on(fd);
}

static void assert_answers(void)
{
    char answer[16];
    int fd = ask("status\n", 7);
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_OK);
    assert_string_equal(request, "status");
    rat_control_reply(&control, "ok 1", 4);
    assert_int_equal(answer_of(fd, answer, sizeof answer), 4);
    assert_string_equal(answer, "ok 1");
}

static void path_in(const char *name, char out[512])
{
    snprintf(out, 512, "%s/%s", place.out, name);
}

static bool is_there(const char *path)
{
    struct stat file;
    return lstat(path, &file) == 0;
}

/* ---------------------------------------------------------------- requests */

static void a_line_is_heard_and_answered(void **state)
{
    (void)state;
    assert_int_equal(rat_control_wait(&control, 0, request), RAT_END);
    assert_answers();
    assert_int_equal(rat_control_wait(&control, 0, request), RAT_END);
}

static void who_has_closed_its_half_is_answered(void **state)
{
    (void)state;
    char answer[16];
    int fd = ask("flush\n", 6);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_OK);
    rat_control_reply(&control, "ok", 2);
    assert_int_equal(answer_of(fd, answer, sizeof answer), 2);
}

static void who_ends_in_the_middle_of_a_line_is_not_heard(void **state)
{
    (void)state;
    int fd = ask("stop", 4);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_END);
    assert_hung_up_on(fd);
    assert_answers();
}

static void a_line_has_a_bound(void **state)
{
    (void)state;
    char line[RAT_CONTROL_REQUEST_MAX + 1];
    memset(line, 'x', sizeof line);
    line[RAT_CONTROL_REQUEST_MAX - 1] = '\n';
    int fd = ask(line, RAT_CONTROL_REQUEST_MAX);
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_OK);
    assert_int_equal(strlen(request), RAT_CONTROL_REQUEST_MAX - 1);
    rat_control_reply(&control, "", 0);
    assert_hung_up_on(fd);

    line[RAT_CONTROL_REQUEST_MAX - 1] = 'x';
    line[RAT_CONTROL_REQUEST_MAX] = '\n';
    assert_refused(line, sizeof line);
    assert_answers();
}

static void bytes_without_end_are_not_read_on(void **state)
{
    (void)state;
    static char flood[65536];
    memset(flood, 'x', sizeof flood);
    int fd = connect_to(control.path);
    while (send(fd, flood, sizeof flood, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
        continue; /* until nothing more fits */
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_END);
    assert_int_equal(send(fd, flood, 1, MSG_NOSIGNAL), -1);
    close(fd);
    assert_answers();
}

static void only_printable_bytes_are_a_request(void **state)
{
    (void)state;
    assert_refused("sta\0tus\n", 8);
    assert_refused("status\r\n", 8);
    assert_refused("stat\x1B[m\n", 8);
    assert_refused("st\xC3\xA4t\n", 6);
    assert_answers();
}

static void who_is_silent_is_hung_up_on(void **state)
{
    (void)state;
    int fd = connect_to(control.path);
    uint64_t from = rat_clock_ns(CLOCK_MONOTONIC);
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_END);
    assert_true(rat_clock_ns(CLOCK_MONOTONIC) - from >= RAT_CONTROL_PATIENCE_MS * UINT64_C(1000000));
    assert_hung_up_on(fd);
}

/* The patience is for the whole line: one byte after the other, it would otherwise last for all 64. */
static void who_is_slow_is_hung_up_on(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        int fd = connect_to(control.path), sent = 0;
        while (sent < 250 && send(fd, "s", 1, MSG_NOSIGNAL) == 1) {
            sent++;
            poll(NULL, 0, RAT_CONTROL_PATIENCE_MS / 10);
        }
        _exit(sent);
    }
    int status;
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_END);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_in_range(WEXITSTATUS(status), 1, RAT_CONTROL_REQUEST_MAX - 1);
    assert_answers();
}

/* ---------------------------------------------------------------- answers */

static void who_does_not_read_is_hung_up_on(void **state)
{
    (void)state;
    static char long_answer[8 << 20], taken[sizeof long_answer + 1];
    memset(long_answer, 'x', sizeof long_answer);
    int fd = ask("status\n", 7);
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_OK);
    rat_control_reply(&control, long_answer, sizeof long_answer);
    assert_in_range(answer_of(fd, taken, sizeof taken), 1, sizeof long_answer - 1);
    assert_answers();
}

static void who_goes_before_the_answer_does_no_harm(void **state)
{
    (void)state;
    close(ask("status\n", 7));
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_OK);
    rat_control_reply(&control, "ok", 2); /* no SIGPIPE */
    rat_control_reply(&control, "ok", 2); /* nobody is there */
    assert_answers();
}

static void as_many_as_may_wait_do_no_harm(void **state)
{
    (void)state;
    struct sockaddr_un address = address_of(control.path);
    int fds[64], count = 0;
    for (; count < 64; count++) {
        fds[count] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(fds[count], (const struct sockaddr *)&address, sizeof address) != 0)
            break;
    }
    assert_in_range(count, 1, 63);
    for (int i = 0; i <= count; i++)
        close(fds[i]);
    for (int i = 0; i < count; i++)
        assert_int_equal(rat_control_wait(&control, 0, request), RAT_END);
    assert_answers();
}

/* ---------------------------------------------------------------- trust */

static void another_user_is_not_heard(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can become another */
    assert_int_equal(chmod(place.out, 0755), 0);
    assert_int_equal(chmod(control.path, 0666), 0);
    pid_t child = fork();
    if (child == 0) {
        if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
            _exit(1);
        int fd = connect_to(control.path);
        (void)!send(fd, "stop\n", 5, MSG_NOSIGNAL); /* unless it was hung up on already */
        char answer[16];
        _exit(answer_of(fd, answer, sizeof answer) == 0 ? 0 : 2);
    }
    int status;
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_END);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_answers();
}

static void the_socket_is_its_owners(void **state)
{
    (void)state;
    struct stat file;
    char early[1300];
    assert_int_equal(lstat(control.path, &file), 0);
    assert_true(S_ISSOCK(file.st_mode));
    assert_int_equal(file.st_mode & 07777, 0600);
    snprintf(early, sizeof early, "%s.new", control.path);
    assert_false(is_there(early));
}

/* ---------------------------------------------------------------- what lies in its place */

/* Closed; the path it had. */
static const char *close_it(void)
{
    static char path[sizeof control.path];
    strcpy(path, control.path);
    rat_control_close(&control);
    assert_false(is_there(path));
    return path;
}

static enum rat_status open_again(void)
{
    return rat_control_open(&control, place.out, why, sizeof why);
}

static void a_name_that_is_another_files_by_now_stays(void **state)
{
    (void)state;
    char path[sizeof control.path];
    strcpy(path, control.path);
    assert_int_equal(unlink(path), 0);
    int fd = bind_to(path);
    rat_control_close(&control);
    assert_true(is_there(path));
    close(fd);
}

static void what_is_no_socket_is_in_the_way_and_stays(void **state)
{
    (void)state;
    const char *path = close_it();
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(open_again(), RAT_EXISTS);
    assert_non_null(strstr(why, "something else lies there; remove it"));
    assert_int_equal(rat_control_wait(&control, 0, request), RAT_IO);
    rat_control_close(&control);
    assert_true(is_there(path));
    close(fd);
    assert_int_equal(unlink(path), 0);

    assert_int_equal(symlink("/dev/null", path), 0);
    assert_int_equal(open_again(), RAT_EXISTS);
    assert_true(is_there(path));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(open_again(), RAT_OK);
}

static void a_dead_socket_of_that_name_is_replaced(void **state)
{
    (void)state;
    char early[1300];
    const char *path = close_it();
    snprintf(early, sizeof early, "%s.new", path);
    close(bind_to(path));
    close(bind_to(early));
    assert_int_equal(open_again(), RAT_OK);
    assert_answers();
    assert_false(is_there(early));
}

static void one_that_answers_is_left_alone(void **state)
{
    (void)state;
    struct rat_control second;
    assert_int_equal(rat_control_open(&second, place.out, why, sizeof why), RAT_BUSY);
    assert_non_null(strstr(why, "another process of this number answers there"));
    rat_control_close(&second);
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_END); /* who came to see whether it answers */
    assert_answers();
}

static void sockets_of_dead_processes_are_swept(void **state)
{
    (void)state;
    static const char *const names[] = {"ratrace-1.sock", "ratrace-2.sock", "ratrace-x.sock", "ratrace-3.sock2",
                                        "x.sock"};
    char path[5][512];
    rat_control_close(&control);
    for (int i = 0; i < 5; i++) {
        path_in(names[i], path[i]);
        close(bind_to(path[i]));
    }
    assert_int_equal(unlink(path[1]), 0);
    int living = bind_to(path[1]);
    assert_int_equal(listen(living, 1), 0);
    assert_int_equal(open_again(), RAT_OK);
    assert_false(is_there(path[0]));
    for (int i = 1; i < 5; i++)
        assert_true(is_there(path[i]));
    close(living);
}

static void another_users_dead_socket_stays(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can give a file away */
    char path[512];
    rat_control_close(&control);
    path_in("ratrace-1.sock", path);
    close(bind_to(path));
    assert_int_equal(lchown(path, NOBODY, NOBODY), 0);
    assert_int_equal(open_again(), RAT_OK);
    assert_true(is_there(path));
}

static void a_directory_has_a_bound_and_none_is_an_error(void **state)
{
    (void)state;
    char dir[1400];
    rat_control_close(&control);
    snprintf(dir, sizeof dir, "%s/%0120d", place.out, 0); /* longer than an address */
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(rat_control_open(&control, dir, why, sizeof why), RAT_OK);
    assert_true(is_there(control.path));
    rat_control_close(&control);
    assert_int_equal(count_files(dir, ""), 0);
    snprintf(dir, sizeof dir, "%s/none", place.out);
    assert_int_equal(rat_control_open(&control, dir, why, sizeof why), RAT_NOT_FOUND);
    assert_int_equal(rat_control_wait(&control, 0, request), RAT_IO);
    size_t length = strlen(place.out);
    strcpy(dir, place.out);
    while (length < 1190) {
        dir[length++] = '/';
        dir[length++] = '.';
    }
    dir[length] = '\0';
    assert_int_equal(rat_control_open(&control, dir, why, sizeof why), RAT_TOO_BIG);
}

/* ---------------------------------------------------------------- the host */

static void a_socket_the_host_closed_is_given_up(void **state)
{
    (void)state;
    int number = control.fd;
    close(number);
    int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(dup2(other, number) >= 0 || other == number, true);
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_IO);
    rat_control_close(&control);
    assert_true(fcntl(number, F_GETFD) >= 0); /* the host's by now */
    close(number);
    if (other != number)
        close(other);
}

/* Between the question and the answer, and another socket of its own has the number by now. */
static void a_connection_the_host_closed_is_left_to_it(void **state)
{
    (void)state;
    int asker = ask("status\n", 7), number = open("/dev/null", O_RDONLY | O_CLOEXEC), ends[2];
    close(number); /* the lowest that is free: the connection's */
    assert_int_equal(rat_control_wait(&control, LONG_MS, request), RAT_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    assert_int_equal(dup2(ends[0], number), number);
    rat_control_reply(&control, "ok", 2);
    char byte;
    assert_int_equal(recv(ends[1], &byte, 1, 0), -1);
    rat_control_abandon(&control);
    assert_true(fcntl(number, F_GETFD) >= 0);
    close(number);
    close(ends[0]);
    close(ends[1]);
    close(asker);
}

static void a_child_that_abandons_leaves_it_to_its_parent(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        rat_control_abandon(&control);
        _exit(control.fd == -1 && control.path[0] == '\0' ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_answers();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_line_is_heard_and_answered),
        TEST(who_has_closed_its_half_is_answered),
        TEST(who_ends_in_the_middle_of_a_line_is_not_heard),
        TEST(a_line_has_a_bound),
        TEST(bytes_without_end_are_not_read_on),
        TEST(only_printable_bytes_are_a_request),
        TEST(who_is_silent_is_hung_up_on),
        TEST(who_is_slow_is_hung_up_on),
        TEST(who_does_not_read_is_hung_up_on),
        TEST(who_goes_before_the_answer_does_no_harm),
        TEST(as_many_as_may_wait_do_no_harm),
        TEST(another_user_is_not_heard),
        TEST(the_socket_is_its_owners),
        TEST(a_name_that_is_another_files_by_now_stays),
        TEST(what_is_no_socket_is_in_the_way_and_stays),
        TEST(a_dead_socket_of_that_name_is_replaced),
        TEST(one_that_answers_is_left_alone),
        TEST(sockets_of_dead_processes_are_swept),
        TEST(another_users_dead_socket_stays),
        TEST(a_directory_has_a_bound_and_none_is_an_error),
        TEST(a_socket_the_host_closed_is_given_up),
        TEST(a_connection_the_host_closed_is_left_to_it),
        TEST(a_child_that_abandons_leaves_it_to_its_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
