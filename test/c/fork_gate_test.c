/* A fork waits for who is inside, keeps others out meanwhile, and never waits for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "base/testpoint.h"
#include "deliver/fork_gate.h"
#include "deliver_support.h"

static _Atomic int fork_waits, is_inside, goes_out;

static void note_wait(const char *name)
{
    if (strcmp(name, "fork.waiting") == 0)
        atomic_store(&fork_waits, 1);
}

static int set_up(void **state)
{
    (void)state;
    rat_fork_gate_install();
    rat_fork_gate_install();
    rat_test_point = note_wait;
    rat_fork_gate_ns = rat_fork_gate_lookup_ns = FOREVER;
    fork_waits = is_inside = goes_out = 0;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rat_test_point = NULL;
    return 0;
}

/* True: the child ended by itself, having found `is_inside` to be `expected`. */
static bool fork_and_look(int expected)
{
    pid_t child = fork();
    if (child == 0) {
        int seen = atomic_load(&is_inside);
        rat_fork_gate_enter(); /* the child's own gate is empty */
        rat_fork_gate_leave();
        _exit(seen == expected ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    return status == 0;
}

static void *go_in_and_out(void *step)
{
    rat_fork_gate_enter();
    rat_fork_gate_enter(); /* nested */
    rat_fork_gate_leave();
    atomic_store(&is_inside, 1);
    while (!atomic_load(step != NULL ? (_Atomic int *)step : &goes_out))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    atomic_store(&is_inside, 0);
    rat_fork_gate_leave();
    return NULL;
}

static void test_a_fork_waits_for_who_is_inside(void **state)
{
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, go_in_and_out, (void *)&fork_waits), 0); /* out once it waits */
    WAIT_FOR(is_inside);
    assert_true(fork_and_look(0));
    assert_int_equal(fork_waits, 1);
    pthread_join(thread, NULL);
}

static void test_a_fork_never_waits_for_ever(void **state)
{
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, go_in_and_out, NULL), 0);
    WAIT_FOR(is_inside);
    rat_fork_gate_ns = MILLISECOND;
    assert_true(fork_and_look(1));
    atomic_store(&goes_out, 1);
    pthread_join(thread, NULL);
    assert_true(fork_and_look(0));
}

static void *pass_for_ever(void *unused)
{
    (void)unused;
    rat_fork_gate_enter();
    while (!atomic_load(&goes_out)) {
        atomic_store(&is_inside, 1);
        nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
        atomic_store(&is_inside, 0);
        rat_fork_gate_pass();
    }
    rat_fork_gate_leave();
    return NULL;
}

static void test_forks_go_first_between_two_pieces_of_work(void **state)
{
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, pass_for_ever, NULL), 0);
    for (int i = 0; i < 100; i++)
        assert_true(fork_and_look(0));
    atomic_store(&goes_out, 1);
    pthread_join(thread, NULL);
}

static void begin_look_up(void)
{
    rat_fork_gate_enter();
    rat_fork_gate_lookup_begin();
    rat_fork_gate_leave();
}

static void *look_up_until_a_fork_waits(void *unused)
{
    begin_look_up();
    atomic_store(&is_inside, 1);
    while (!atomic_load(&fork_waits))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    atomic_store(&is_inside, 0);
    rat_fork_gate_lookup_end();
    return unused;
}

static void test_a_fork_waits_for_a_look_up(void **state)
{
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, look_up_until_a_fork_waits, NULL), 0);
    WAIT_FOR(is_inside);
    assert_true(fork_and_look(0));
    assert_int_equal(fork_waits, 1);
    pthread_join(thread, NULL);
}

/* The look-up's end is seen to inside the gate: who does that must not wait for the fork that waits for it. */
static void *end_look_up_inside(void *unused)
{
    begin_look_up();
    atomic_store(&is_inside, 1);
    while (!atomic_load(&fork_waits))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    while (!rat_fork_gate_try_for_lookup())
        ;
    rat_fork_gate_lookup_end();
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); /* the fork still waits for us to leave */
    atomic_store(&is_inside, 0);
    rat_fork_gate_leave();
    return unused;
}

static void test_a_look_ups_owner_is_let_in_while_a_fork_waits_for_it(void **state)
{
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, end_look_up_inside, NULL), 0);
    WAIT_FOR(is_inside);
    assert_true(fork_and_look(0));
    pthread_join(thread, NULL);
}

static void test_a_fork_waits_for_no_look_up_that_has_grown_old(void **state)
{
    (void)state;
    rat_fork_gate_lookup_ns = MILLISECOND;
    begin_look_up();
    assert_true(fork_and_look(0));
    fork_waits = 0;
    assert_true(fork_and_look(0));
    assert_int_equal(fork_waits, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_fork_waits_for_who_is_inside),
        TEST(test_a_fork_never_waits_for_ever),
        TEST(test_forks_go_first_between_two_pieces_of_work),
        TEST(test_a_fork_waits_for_a_look_up),
        TEST(test_a_look_ups_owner_is_let_in_while_a_fork_waits_for_it),
        TEST(test_a_fork_waits_for_no_look_up_that_has_grown_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
