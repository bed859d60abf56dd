/* A living process seen from outside: what a tap takes while the slots are filled and flipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "deliver_support.h"

#include "base/testpoint.h"
#include "deliver/live_file.h"
#include "deliver/live_tap.h"
#include "deliver/live_view.h"

static struct place place;
static pid_t child;
static int to_child, from_child;

/* ---------------------------------------------------------------- the process */

/* Written as it lies in memory, hence without padding. */
struct command {
    uint32_t what;
    uint32_t count;
};

/* Records as it is told: "r" n events, "f" a flush. Answers each command. */
static void obey(int commands, int answers)
{
    struct rat_session_options options = small_options(&place);
    struct recorder recorder;
    open_lane(&recorder, open_session(&options), RAT_LANE_MAIN);
    struct command command;
    char done = 'd';
    REQUIRE(write(answers, &done, 1) == 1);
    while (read(commands, &command, sizeof command) == (ssize_t)sizeof command) {
        if (command.what == 'r')
            record_many(&recorder, command.count);
        else
            REQUIRE(rat_session_flush(recorder.session) == RAT_OK);
        REQUIRE(write(answers, &done, 1) == 1);
    }
    _exit(0);
}

static void await(void)
{
    char done;
    assert_int_equal(read(from_child, &done, 1), 1);
}

static void tell(char what, uint32_t count)
{
    struct command command = {(uint32_t)what, count};
    assert_int_equal(write(to_child, &command, sizeof command), sizeof command);
    await();
}

static void start(void)
{
    int commands[2], answers[2];
    assert_int_equal(pipe(commands) | pipe(answers), 0);
    child = fork();
    if (child == 0) {
        close(commands[1]);
        obey(commands[0], answers[1]);
    }
    close(commands[0]);
    close(answers[1]);
    to_child = commands[1];
    from_child = answers[0];
    await();
}

static void kill_child(void)
{
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(to_child);
        close(from_child);
    }
    child = 0;
}

/* ---------------------------------------------------------------- the tap */

static struct rat_tap *tap;
static struct rat_decoder *decoder;
static uint64_t next_event, seen_events;

static int find_file(char name[64])
{
    int dir = open(place.live, O_RDONLY | O_DIRECTORY);
    DIR *entries = opendir(place.live);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (entry->d_name[0] != '.')
            snprintf(name, 64, "%.63s", entry->d_name);
    closedir(entries);
    return dir;
}

static enum rat_status open_tap(void)
{
    char name[64] = "none";
    int dir = find_file(name);
    enum rat_status status = rat_tap_open(dir, name, NULL, &tap);
    close(dir);
    return status;
}

/* Events are numbered: none may come twice, out of order, or be absent but for those counted as missed. */
static void look(void)
{
    const uint8_t *bytes;
    size_t length;
    struct rat_anchor now;
    uint64_t missed = rat_tap_counts(tap).missed;
    assert_int_equal(rat_tap_look(tap, &bytes, &length, &now), RAT_OK);
    struct rat_segment_reader *reader;
    assert_int_equal(rat_segment_open_bytes(bytes, length, &reader), RAT_OK);
    next_event += rat_tap_counts(tap).missed - missed;
    struct rat_read read;
    for (rat_segment_next(reader, &read); read.kind != RAT_READ_END; rat_segment_next(reader, &read)) {
        assert_int_equal(read.kind, RAT_READ_CHUNK);
        const struct rat_body *body;
        if (read.header.lane == 0)
            continue;
        assert_int_equal(rat_decode_body(decoder, &read.header, &body), RAT_OK);
        for (size_t i = 0; i < body->events; i++, next_event++, seen_events++)
            assert_int_equal(body->id[i], next_event);
    }
    rat_segment_reader_free(reader);
}

static int set_up(void **state)
{
    (void)state;
    place = make_place();
    next_event = seen_events = 0;
    assert_int_equal(rat_decoder_new(0, &decoder), RAT_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rat_test_point = NULL;
    kill_child();
    rat_tap_free(tap);
    tap = NULL;
    rat_decoder_free(decoder);
    remove_place(&place);
    return 0;
}

static void test_each_event_is_seen_once_across_flips(void **state)
{
    (void)state;
    start();
    assert_int_equal(open_tap(), RAT_OK);
    look();
    assert_int_equal(next_event, 0);
    uint64_t recorded = 0;
    for (uint32_t burst = 1; burst < 60; burst++) {
        tell('r', burst % 13 * 7 + 1);
        recorded += burst % 13 * 7 + 1;
        if (burst % 2)
            look();
        if (burst % 3 == 0)
            tell('f', 0);
        look();
        assert_int_equal(next_event, recorded);
    }
    assert_int_equal(rat_tap_counts(tap).missed, 0);
    assert_int_equal(rat_tap_counts(tap).events, recorded);
}

static void test_what_was_flipped_away_is_counted(void **state)
{
    (void)state;
    start();
    tell('r', 10);
    assert_int_equal(open_tap(), RAT_OK);
    look();
    tell('r', 5);
    for (int i = 0; i < 5; i++) { /* each flip gives the other slot out again */
        tell('f', 0);
        tell('r', 100);
    }
    look();
    assert_int_equal(next_event, 515);
    assert_int_equal(rat_tap_counts(tap).missed, 5 + 300);
    assert_int_equal(seen_events, 10 + 200);
}

/* ---------------------------------------------------------------- races */

static int flips_left;

/* Two flips give the slot that is being copied out again, and fill it. */
static void flip_at_copied(const char *name)
{
    if (strcmp(name, "live_view.copied") != 0 || flips_left == 0)
        return;
    flips_left--;
    for (int i = 0; i < 2; i++) {
        tell('f', 0);
        tell('r', 50);
    }
}

static void test_a_slot_given_out_while_it_is_copied_is_noticed(void **state)
{
    (void)state;
    start();
    assert_int_equal(open_tap(), RAT_OK);
    tell('r', 40);
    look();
    tell('r', 40);
    flips_left = 1;
    rat_test_point = flip_at_copied;
    look();
    rat_test_point = NULL;
    assert_int_equal(flips_left, 0);
    assert_int_equal(rat_tap_counts(tap).missed, 40);
    assert_int_equal(seen_events, 40 + 100);
    assert_int_equal(next_event, 40 + 40 + 100);
}

/* As long as it lasts, the tap waits for a better moment. */
static void test_a_slot_that_never_rests_ends_no_look(void **state)
{
    (void)state;
    start();
    assert_int_equal(open_tap(), RAT_OK);
    tell('r', 40);
    look();
    tell('r', 1);
    flips_left = 1000;
    rat_test_point = flip_at_copied;
    look();
    rat_test_point = NULL;
    assert_true(flips_left >= 990);
    look();
    assert_int_equal(rat_tap_counts(tap).events, seen_events);
    assert_int_equal(next_event, 40 + 1 + (1000 - flips_left) * 100);
}

/* ---------------------------------------------------------------- life and death */

static void test_the_last_look_sees_everything(void **state)
{
    (void)state;
    start();
    assert_int_equal(open_tap(), RAT_OK);
    tell('r', 10);
    look();
    assert_false(rat_tap_counts(tap).over);
    tell('r', 10);
    kill_child();
    look();
    assert_int_equal(next_event, 20);
    assert_true(rat_tap_counts(tap).over);
}

static void test_the_dead_are_not_tapped(void **state)
{
    (void)state;
    start();
    tell('r', 10);
    kill_child();
    assert_int_equal(open_tap(), RAT_END);
}

/* ---------------------------------------------------------------- hostile files */

static void test_any_damage_ends_in_a_status(void **state)
{
    (void)state;
    start();
    tell('r', 300);
    char name[64], path[192];
    int dir = find_file(name);
    close(dir);
    snprintf(path, sizeof path, "%s/%s", place.live, name);
    int fd = open(path, O_RDWR);
    struct rat_live_head head;
    assert_int_equal(pread(fd, &head, sizeof head, 0), sizeof head);
    uint64_t state_of_random = 1;
    int told = 0;
    for (int round = 0; round < 3000; round++) {
        uint64_t z = state_of_random += UINT64_C(0x9E3779B97F4A7C15);
        z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
        z ^= z >> 27;
        const off_t areas[] = {0, (off_t)head.lanes_at, (off_t)head.lanes_at + 128, (off_t)head.tables_at,
                               (off_t)head.slots_at};
        const off_t lengths[] = {sizeof head, sizeof(struct rat_lane_head), 256, sizeof(struct rat_dict_head), 2400};
        off_t at = areas[round % 5] + (off_t)(z % (uint64_t)lengths[round % 5]) / 8 * 8;
        uint64_t before, with = z >> 32 & 1 ? z : z >> 40;
        assert_int_equal(pread(fd, &before, sizeof before, at), sizeof before);
        bool tapped = round % 2 && open_tap() == RAT_OK; /* damage before, or while it is tapped */
        assert_int_equal(pwrite(fd, &with, sizeof with, at), sizeof with);
        if (tapped || open_tap() == RAT_OK) {
            const uint8_t *bytes;
            size_t length;
            struct rat_anchor now;
            for (int i = 0; i < 2; i++)
                told += rat_tap_look(tap, &bytes, &length, &now) != RAT_OK;
            rat_tap_free(tap);
            tap = NULL;
        } else {
            told++;
        }
        assert_int_equal(pwrite(fd, &before, sizeof before, at), sizeof before);
    }
    close(fd);
    assert_true(told > 300);
}

static void test_a_file_cut_while_it_is_tapped_ends_in_a_status(void **state)
{
    (void)state;
    start();
    tell('r', 300);
    assert_int_equal(open_tap(), RAT_OK);
    char name[64], path[192];
    close(find_file(name));
    snprintf(path, sizeof path, "%s/%s", place.live, name);
    kill_child(); /* who would get the SIGBUS */
    assert_int_equal(truncate(path, 4096), 0);
    const uint8_t *bytes;
    size_t length;
    struct rat_anchor now;
    assert_int_equal(rat_tap_look(tap, &bytes, &length, &now), RAT_CORRUPT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        TEST(test_each_event_is_seen_once_across_flips),
        TEST(test_what_was_flipped_away_is_counted),
        TEST(test_a_slot_given_out_while_it_is_copied_is_noticed),
        TEST(test_a_slot_that_never_rests_ends_no_look),
        TEST(test_the_last_look_sees_everything),
        TEST(test_the_dead_are_not_tapped),
        TEST(test_any_damage_ends_in_a_status),
        TEST(test_a_file_cut_while_it_is_tapped_ends_in_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
