/* What a dead process left is told exactly once, wherever it died and wherever a recovery of it died. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "deliver_support.h"

#include <pthread.h>
#include <sys/mount.h>

#include "base/testpoint.h"
#include "deliver/live_file.h"

static struct place place;

static int set_up(void **state)
{
    (void)state;
    place = make_place();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rat_test_point = NULL;
    remove_place(&place);
    return 0;
}

/* ---------------------------------------------------------------- dying */

static struct {
    const char *name;
    _Atomic int left;
} death;

static void die_at_point(const char *name)
{
    if (strcmp(name, death.name) == 0 && atomic_fetch_sub(&death.left, 1) == 1)
        _exit(42); /* like SIGKILL: no handler, no flush, all threads at once */
}

/* The `nth` time this process passes the point, it dies. */
static void die_at(const char *name, int nth)
{
    death.name = name;
    atomic_store(&death.left, nth);
    rat_test_point = die_at_point;
}

/* What the child counted, seen by us. */
static struct truth {
    _Atomic uint64_t stored, dropped;
} *truth;

struct life {
    const char *point; /* NULL: killed at its end */
    int nth;
    uint64_t segment_bytes, period_ns;
    int bursts, burst;
    bool flushes;
    bool lazy; /* nothing is flushed */
};

static void live(const struct life *life)
{
    struct rat_session_options options = small_options(&place);
    options.segment_bytes = life->segment_bytes;
    options.period_ns = life->period_ns != 0 ? life->period_ns : FOREVER;
    struct recorder recorder;
    open_lane(&recorder, open_session(&options), RAT_LANE_MAIN);
    if (life->point != NULL)
        die_at(life->point, life->nth);
    for (int i = 0; i < life->bursts; i++) {
        for (int event = 0; event < life->burst; event++) {
            record(&recorder);
            atomic_store(&truth->stored, recorder.stored);
            atomic_store(&truth->dropped, recorder.dropped);
        }
        if (life->flushes && rat_session_flush(recorder.session) != RAT_OK)
            _exit(1);
    }
    _exit(43);
}

/* True: it died at its point; false: at its end. */
static bool live_and_die(const struct life *life)
{
    truth = mmap(NULL, sizeof *truth, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0)
        live(life);
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 42 || WEXITSTATUS(status) == 43));
    return WEXITSTATUS(status) == 42;
}

static struct rat_recovery recover(void)
{
    struct rat_recovery found;
    assert_int_equal(rat_recover(place.out, place.live, NULL, NULL, &found), RAT_OK);
    assert_int_equal(found.failed, 0);
    return found;
}

/* All is finished, each event is there once, and what was not is counted. */
static struct tally assert_recovered(void)
{
    assert_int_equal(count_files(place.live, ""), 0);
    assert_int_equal(count_files(place.out, RAT_SEGMENT_PART), 0);
    struct tally tally = read_back(place.out);
    const struct lane_tally *lane = &tally.lane[1];
    assert_in_range(lane->decoded, truth->stored, truth->stored + 1);
    assert_int_equal(lane->lost, 0);
    assert_in_range(sum_drops(&lane->closed), truth->dropped, truth->dropped + 1);
    assert_true(lane->in_flight <= 1);
    assert_false(tally.any_drops_off);
    return tally;
}

/* Another run must find nothing to do. */
static void assert_nothing_left(void)
{
    struct tally before = read_back(place.out);
    struct rat_recovery again = recover();
    assert_int_equal(again.segments + again.chunks + again.alive, 0);
    struct tally after = read_back(place.out);
    assert_memory_equal(&before, &after, sizeof before);
}

static const struct life ordinary = {.bursts = 6, .burst = 300, .flushes = true};
static const struct life unflushed = {.bursts = 1, .burst = 700};

/* ---------------------------------------------------------------- where the process died */

static void test_events_that_were_never_flushed_are_recovered(void **state)
{
    (void)state;
    live_and_die(&unflushed);
    assert_int_equal(count_files(place.out, ""), 0);
    struct rat_recovery found = recover();
    assert_int_equal(found.events, 700);
    assert_int_equal(found.segments, 1);
    struct tally tally = assert_recovered();
    assert_int_equal(tally.lane[1].reasons[0], RAT_REASON_RECOVERED);
    assert_int_equal(tally.crashes, 1);
    assert_nothing_left();
}

static void test_events_behind_a_flush_are_added_to_the_part_file(void **state)
{
    (void)state;
    const struct life life = {.bursts = 3, .burst = 300, .flushes = true};
    live_and_die(&life);
    struct rat_recovery found = recover();
    assert_int_equal(found.events, 0); /* all was flushed: only the end is missing */
    assert_int_equal(assert_recovered().lane[1].decoded, 900);
    assert_nothing_left();
}

static void test_both_slots_are_recovered_in_order(void **state)
{
    (void)state;
    const struct life life = {.bursts = 1, .burst = 5000, .point = "flip.held", .nth = 1};
    live_and_die(&life);
    recover();
    assert_recovered();
    assert_nothing_left();
}

static void test_a_process_may_die_at_any_point(void **state)
{
    (void)state;
    static const char *const points[] = {
        "lane.announced",     "lane.entered",       "turn.opened",         "turn.held",
        "flip.between",       "flip.held",          "flip.out",            "outlet.created",
        "outlet.closing",     "outlet.numbered",    "outlet.published",    "serializer.encoded",
        "serializer.appended", "serializer.flushed",
    };
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        bool reached = false;
        for (int nth = 1; nth <= 2; nth++) {
            for (int rotating = 0; rotating < 2; rotating++) {
                struct life life = ordinary;
                life.point = points[i];
                life.nth = nth;
                life.segment_bytes = rotating ? 1000 : 0;
                reached |= live_and_die(&life);
                recover();
                assert_recovered();
                assert_nothing_left();
                tear_down(NULL);
                set_up(NULL);
            }
        }
        if (!reached)
            fail_msg("%s was never reached", points[i]);
    }
}

static void test_the_event_being_written_is_counted_in_flight(void **state)
{
    (void)state;
    struct life life = ordinary;
    life.point = "lane.entered";
    life.nth = 350;
    live_and_die(&life);
    assert_int_equal(recover().in_flight, 1);
    struct tally tally = assert_recovered();
    assert_int_equal(tally.lane[1].in_flight, 1);
    assert_int_equal(tally.lane[1].decoded, truth->stored);
    assert_nothing_left();
}

static void test_drops_are_told(void **state)
{
    (void)state;
    const struct life life = {.bursts = 1, .burst = 20000, .point = "flip.held", .nth = 2};
    live_and_die(&life);
    recover();
    assert_recovered();
    assert_true(truth->dropped > 0);
}

static const char *later_death;
static _Atomic int flips, released;

static void hold_first_flip(const char *name)
{
    if (strcmp(name, "flip.held") == 0 && atomic_fetch_add(&flips, 1) == 0)
        WAIT_FOR(atomic_load(&released));
    else if (strcmp(name, later_death) == 0 && atomic_load(&released))
        _exit(42);
}

static void move_segments(const char *from, const char *to)
{
    DIR *dir = opendir(from);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char old[512], new[512];
        snprintf(old, sizeof old, "%s/%s", from, entry->d_name);
        snprintf(new, sizeof new, "%s/%s", to, entry->d_name);
        size_t length = strlen(entry->d_name), suffix = strlen(RAT_SEGMENT_SUFFIX);
        if (length > suffix && strcmp(entry->d_name + length - suffix, RAT_SEGMENT_SUFFIX) == 0)
            assert_int_equal(rename(old, new), 0);
    }
    closedir(dir);
}

/* Drops that fall between the opening of a slot and the drain of the one before are in that one's closing totals and
 * not in the slot's opening totals. Its chunk is in a segment of its own, so the part file does not tell them. */
static void drop_between_chunks(const char *point)
{
    truth = mmap(NULL, sizeof *truth, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        struct rat_session_options options = small_options(&place);
        options.segment_bytes = 1;
        struct recorder recorder;
        later_death = point;
        rat_test_point = hold_first_flip;
        open_lane(&recorder, open_session(&options), RAT_LANE_MAIN);
        while (recorder.stored <= options.slot_bytes / 16)
            record(&recorder);
        WAIT_FOR(atomic_load(&flips) == 1);
        while (recorder.dropped < 100)
            record(&recorder);
        atomic_store(&truth->stored, recorder.stored);
        atomic_store(&truth->dropped, recorder.dropped);
        atomic_store(&released, 1);
        pause();
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    char away[] = "/tmp/ratrace-test-XXXXXX"; /* what was published may be delivered and gone by then */
    assert_non_null(mkdtemp(away));
    move_segments(place.out, away);
    recover();
    move_segments(away, place.out);
    assert_int_equal(rmdir(away), 0);
    struct tally tally = assert_recovered();
    assert_int_equal(tally.files, 2);
    assert_int_equal(tally.lane[1].chunks, 2);
    assert_nothing_left();
}

static void test_drops_told_in_a_published_segment_are_not_told_again(void **state)
{
    (void)state;
    drop_between_chunks("flip.held");
}

static void test_drops_told_in_a_segment_not_yet_published_are_not_told_again(void **state)
{
    (void)state;
    drop_between_chunks("outlet.numbered");
}

static void test_a_session_that_recorded_nothing_leaves_nothing(void **state)
{
    (void)state;
    const struct life life = {0};
    live_and_die(&life);
    assert_int_equal(recover().segments, 0);
    assert_int_equal(count_files(place.live, ""), 0);
    assert_int_equal(count_files(place.out, ""), 0);
}

/* ---------------------------------------------------------------- where the recovery died */

static bool recover_and_die(const char *point, int nth)
{
    pid_t child = fork();
    if (child == 0) {
        struct rat_recovery found;
        die_at(point, nth);
        (void)!rat_recover(place.out, place.live, NULL, NULL, &found);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 42));
    return WEXITSTATUS(status) == 42;
}

static void test_a_recovery_may_die_at_any_point(void **state)
{
    (void)state;
    static const char *const deaths[] = {"serializer.appended", "outlet.numbered", "lane.entered", "flip.held"};
    static const char *const points[] = {
        "recovery.locked", "salvage.adopted", "salvage.appended", "outlet.created",    "outlet.closing",
        "outlet.numbered", "salvage.closed",  "salvage.unlinked", "outlet.published",  "salvage.published",
    };
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        bool reached = false;
        for (size_t d = 0; d < sizeof deaths / sizeof *deaths; d++) {
            int nth = 1 + (int)d % 2;
            struct life life = ordinary;
            life.point = deaths[d];
            life.nth = 3;
            life.segment_bytes = 2500;
            live_and_die(&life);
            reached |= recover_and_die(points[i], nth);
            recover_and_die(points[i], nth);
            recover();
            assert_recovered();
            assert_nothing_left();
            tear_down(NULL);
            set_up(NULL);
        }
        if (!reached)
            fail_msg("%s was never reached", points[i]);
    }
}

static void test_two_recoveries_at_once_do_it_once(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct life life = ordinary;
        life.point = round % 2 ? "serializer.appended" : "outlet.numbered";
        life.nth = 3;
        life.segment_bytes = 2500;
        live_and_die(&life);
        pid_t children[2];
        for (int i = 0; i < 2; i++) {
            children[i] = fork();
            if (children[i] == 0) {
                struct rat_recovery found;
                _exit(rat_recover(place.out, place.live, NULL, NULL, &found) == RAT_OK ? 0 : 1);
            }
        }
        for (int i = 0; i < 2; i++) {
            int status;
            waitpid(children[i], &status, 0);
            assert_int_equal(status, 0);
        }
        assert_recovered();
        assert_nothing_left();
        tear_down(NULL);
        set_up(NULL);
    }
}

static _Atomic int looking, may_go_on;

static void hold_recovery(const char *name)
{
    if (strcmp(name, "recovery.locked") != 0)
        return;
    atomic_store(&looking, 1);
    WAIT_FOR(atomic_load(&may_go_on));
}

static void *recover_in_thread(void *out)
{
    struct rat_recovery found;
    *(enum rat_status *)out = rat_recover(place.out, place.live, NULL, NULL, &found);
    return NULL;
}

/* Its process is ending: whoever has the directory may take long. */
static void test_a_cancelled_recovery_does_not_wait_for_another(void **state)
{
    (void)state;
    live_and_die(&unflushed);
    looking = may_go_on = 0;
    rat_test_point = hold_recovery;
    pthread_t other;
    enum rat_status status;
    pthread_create(&other, NULL, recover_in_thread, &status);
    WAIT_FOR(atomic_load(&looking));
    _Atomic uint32_t cancel = 1;
    struct rat_recovery found;
    alarm(20);
    assert_int_equal(rat_recover_until(place.out, place.live, NULL, NULL, &cancel, &found), RAT_OK);
    alarm(0);
    assert_int_equal(found.segments, 0);
    may_go_on = 1;
    pthread_join(other, NULL);
    rat_test_point = NULL;
    assert_int_equal(status, RAT_OK);
}

static void test_a_full_disk_leaves_it_for_later(void **state)
{
    (void)state;
    if (mount("none", place.out, "tmpfs", MS_NOSUID | MS_NODEV, "size=16k") != 0) {
        print_message("skipped: cannot mount a tmpfs: %s\n", strerror(errno));
        skip();
    }
    live_and_die(&unflushed);
    char filler[128];
    snprintf(filler, sizeof filler, "%s/filler", place.out);
    int fd = open(filler, O_CREAT | O_WRONLY, 0600);
    static const char zeros[16384];
    assert_int_equal(write(fd, zeros, sizeof zeros), sizeof zeros);
    struct rat_recovery found;
    assert_int_equal(rat_recover(place.out, place.live, NULL, NULL, &found), RAT_NO_SPACE);
    assert_int_equal(found.failed, 1);
    assert_int_equal(count_files(place.live, RAT_LIVE_SUFFIX), 1);
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
    recover();
    assert_recovered();
    assert_int_equal(umount(place.out), 0);
}

/* ---------------------------------------------------------------- who may not be recovered */

static void leave_the_living_alone(bool flushed)
{
    int ready[2], go[2];
    assert_int_equal(pipe(ready) + pipe(go), 0);
    pid_t child = fork();
    char byte = 0;
    if (child == 0) {
        close(go[1]);
        struct rat_session_options options = small_options(&place);
        struct recorder recorder;
        open_lane(&recorder, open_session(&options), RAT_LANE_MAIN);
        record_many(&recorder, 100);
        if (flushed)
            (void)!rat_session_flush(recorder.session);
        record_many(&recorder, 100);
        (void)!write(ready[1], &byte, 1);
        (void)!read(go[0], &byte, 1);
        _exit(rat_session_stop(recorder.session, NULL, 0) == RAT_OK ? 0 : 1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    struct rat_recovery found = recover();
    assert_int_equal(found.alive, 1);
    assert_int_equal(found.segments, 0);
    assert_int_equal(write(go[1], &byte, 1), 1);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(read_back(place.out).lane[1].decoded, 200);
    close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
}

static void test_the_living_are_left_alone(void **state)
{
    (void)state;
    leave_the_living_alone(true);
}

static void test_the_living_are_left_alone_before_they_have_written(void **state)
{
    (void)state;
    leave_the_living_alone(false);
}

static void test_a_process_does_not_recover_itself(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder;
    open_lane(&recorder, open_session(&options), RAT_LANE_MAIN);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    record_many(&recorder, 100);
    assert_int_equal(recover().segments, 0);
    pid_t child = fork(); /* our locks must still be there */
    if (child == 0) {
        struct rat_recovery found;
        _exit(rat_recover(place.out, place.live, NULL, NULL, &found) == RAT_OK && found.alive == 1 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(rat_session_stop(recorder.session, NULL, 0), RAT_OK);
    assert_int_equal(read_back(place.out).lane[1].decoded, 200);
}

static void test_a_session_recovers_what_was_left_before_it(void **state)
{
    (void)state;
    live_and_die(&unflushed);
    struct rat_session_options options = small_options(&place);
    struct rat_session *session = open_session(&options);
    struct rat_session_stats seen;
    WAIT_FOR((rat_session_stats(session, &seen), seen.recovered_events != 0));
    assert_int_equal(seen.recovered_segments, 1);
    assert_int_equal(seen.recovered_events, 700);
    assert_int_equal(rat_session_stop(session, NULL, 0), RAT_OK);
}

static void test_other_directories_are_not_touched(void **state)
{
    (void)state;
    live_and_die(&unflushed);
    struct place other = make_place();
    struct rat_recovery found;
    assert_int_equal(rat_recover(other.out, place.live, NULL, NULL, &found), RAT_OK);
    assert_int_equal(found.segments + found.alive + found.failed, 0);
    assert_int_equal(rat_recover("/nowhere/at/all", place.live, NULL, NULL, &found), RAT_NOT_FOUND);
    remove_place(&other);
    recover();
    assert_recovered();
}

static char told[2048];

static void keep_lines(void *user, const char *line)
{
    (void)user;
    size_t length = strlen(told);
    snprintf(told + length, sizeof told - length, "%s\n", line);
}

/* A name no session of this directory has. */
static void leave_a_strange_live_file(const void *bytes, size_t length)
{
    char path[512];
    snprintf(path, sizeof path, "%s/00000000000000010000000000000002" RAT_LIVE_SUFFIX, place.live);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(pwrite(fd, bytes, length, 0), length);
    assert_int_equal(ftruncate(fd, 65536), 0);
    close(fd);
}

static void test_a_live_file_that_does_not_say_whose_it_is_keeps_nobody_from_finishing(void **state)
{
    (void)state;
    static const struct {
        struct {
            uint64_t magic;
            uint32_t version;
        } head;
        const char *remedy;
    } strange[] = {
        {{1, 0}, "remove it"},
        {{RAT_LIVE_MAGIC, RAT_LIVE_VERSION + 1}, "recover with the version of ratrace that wrote it"},
    };
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        live_and_die(&unflushed);
        leave_a_strange_live_file(&strange[i].head, sizeof strange[i].head);
        told[0] = '\0';
        struct rat_recovery found;
        assert_int_equal(rat_recover(place.out, place.live, keep_lines, NULL, &found), RAT_OK);
        assert_int_equal(found.segments, 1);
        assert_int_equal(found.failed, 0);
        assert_int_equal(found.unplaced, 1);
        assert_non_null(strstr(told, "/00000000000000010000000000000002" RAT_LIVE_SUFFIX ": "));
        assert_non_null(strstr(told, "another directory's"));
        assert_non_null(strstr(told, strange[i].remedy));
        assert_int_equal(count_files(place.live, ""), 1);
        tear_down(NULL);
        set_up(NULL);
    }
}

/* ---------------------------------------------------------------- without a live file */

static char part_path[512], live_path[512];

static void find_files(void)
{
    const struct {
        const char *dir, *suffix;
        char *out;
    } wanted[] = {{place.out, RAT_SEGMENT_PART, part_path}, {place.live, RAT_LIVE_SUFFIX, live_path}};
    for (size_t i = 0; i < 2; i++) {
        wanted[i].out[0] = '\0';
        DIR *dir = opendir(wanted[i].dir);
        for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
            if (strlen(entry->d_name) > 6 &&
                strcmp(entry->d_name + strlen(entry->d_name) - 5, wanted[i].suffix) == 0)
                snprintf(wanted[i].out, 512, "%s/%s", wanted[i].dir, entry->d_name);
        closedir(dir);
    }
}

static void test_a_part_file_alone_is_published_without_a_closing_chunk(void **state)
{
    (void)state;
    live_and_die(&ordinary);
    find_files();
    assert_int_equal(unlink(live_path), 0);
    struct rat_recovery found = recover();
    assert_int_equal(found.segments, 1);
    struct tally tally = read_back(place.out);
    assert_int_equal(tally.closings + tally.crashes, 0); /* what is lost behind it is not known */
    assert_int_equal(tally.lane[1].decoded, 1800);
    assert_nothing_left();
}

static void test_a_part_file_stays_while_its_live_file_is_refused(void **state)
{
    (void)state;
    live_and_die(&ordinary);
    find_files();
    const uint32_t version = RAT_LIVE_VERSION + 1;
    int fd = open(live_path, O_RDWR);
    assert_int_equal(pwrite(fd, &version, 4, offsetof(struct rat_live_head, version)), 4);
    close(fd);
    struct rat_recovery found;
    assert_int_equal(rat_recover(place.out, place.live, NULL, NULL, &found), RAT_UNSUPPORTED);
    assert_int_equal(found.failed, 1);
    assert_int_equal(count_files(place.out, RAT_SEGMENT_PART), 1);
    assert_int_equal(count_files(place.live, RAT_LIVE_SUFFIX), 1);
}

static void test_a_torn_tail_is_cut(void **state)
{
    (void)state;
    struct life life = ordinary;
    life.bursts = 4;
    live_and_die(&life);
    find_files();
    int fd = open(part_path, O_RDWR | O_APPEND);
    uint8_t begin[64];
    assert_int_equal(pread(fd, begin, sizeof begin, 0), sizeof begin); /* a chunk cut by the kill */
    assert_int_equal(write(fd, begin, sizeof begin), sizeof begin);
    close(fd);
    assert_int_equal(recover().cut_bytes, sizeof begin);
    assert_int_equal(assert_recovered().lane[1].decoded, 1200);
}

static void test_a_chunk_torn_from_the_part_file_comes_from_the_slot(void **state)
{
    (void)state;
    for (int cut = 1; cut < 400; cut += 37) {
        struct life life = ordinary;
        life.point = "serializer.appended"; /* before flushed_seq */
        life.nth = 3;
        live_and_die(&life);
        find_files();
        struct stat file;
        assert_int_equal(stat(part_path, &file), 0);
        assert_int_equal(truncate(part_path, file.st_size - cut), 0);
        recover();
        assert_recovered();
        tear_down(NULL);
        set_up(NULL);
    }
}

static void test_an_empty_part_file_is_removed_when_it_is_old(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/x" RAT_SEGMENT_SUFFIX RAT_SEGMENT_PART, place.out);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    recover();
    assert_int_equal(access(path, F_OK), 0);
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    recover();
    assert_int_not_equal(access(path, F_OK), 0);
}

/* ---------------------------------------------------------------- what cannot be believed */

static void change_live_file(off_t at, const void *bytes, size_t length)
{
    int fd = open(live_path, O_RDWR);
    assert_int_equal(pwrite(fd, bytes, length, at), length);
    close(fd);
}

static void test_pages_of_another_boot_are_not_decoded(void **state)
{
    (void)state;
    struct life life = ordinary;
    life.flushes = true;
    life.point = "flip.held";
    life.nth = 4;
    live_and_die(&life);
    find_files();
    change_live_file(offsetof(struct rat_live_head, boot_id), "another boot's id", 16);
    struct rat_recovery found = recover();
    assert_int_equal(found.power_lost, 1);
    assert_int_equal(found.events, 0);
    assert_int_equal(count_files(place.live, ""), 0);
    struct tally tally = read_back(place.out);
    assert_int_equal(tally.lane[1].decoded, 900);
    assert_int_equal(tally.lane[1].lost, 300);
    assert_int_equal(tally.lane[1].labelled[RAT_LOST_POWER], 300);
    assert_int_equal(tally.crashes, 1);
    assert_nothing_left();
}

static void test_a_disabled_lane_is_counted_not_decoded(void **state)
{
    (void)state;
    live_and_die(&unflushed);
    find_files();
    struct rat_live_head head;
    int fd = open(live_path, O_RDONLY);
    assert_int_equal(read(fd, &head, sizeof head), sizeof head);
    close(fd);
    const uint32_t disabled[2] = {RAT_LANE_DISABLED, RAT_LOST_FENCE_FAILED};
    change_live_file((off_t)(head.lanes_at + offsetof(struct rat_lane_head, state)), disabled, sizeof disabled);
    recover();
    struct tally tally = read_back(place.out);
    assert_int_equal(tally.lane[1].decoded, 0);
    assert_int_equal(tally.lane[1].lost, 700);
    assert_int_equal(tally.lane[1].labelled[RAT_LOST_FENCE_FAILED], 700);
    assert_nothing_left();
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static uint64_t take_seed(void)
{
    const char *given = getenv("RAT_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) ^ (uint64_t)getpid();
    print_message("RAT_SEED=%" PRIu64 "\n", seed);
    return seed;
}

static uint8_t *read_whole(const char *path, size_t length)
{
    uint8_t *bytes = malloc(length);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, bytes, length), length);
    close(fd);
    return bytes;
}

/* Whatever stands in it: no crash (ASan and UBSan look on), and a result or a refusal. */
static void test_a_damaged_live_file_does_no_harm(void **state)
{
    (void)state;
    uint64_t seed = take_seed();
    const struct life life = {.bursts = 3, .burst = 400, .flushes = true, .point = "flip.held", .nth = 3};
    live_and_die(&life);
    find_files();
    struct stat file, part;
    assert_int_equal(stat(live_path, &file) + stat(part_path, &part), 0);
    uint8_t *head_bytes = read_whole(live_path, sizeof(struct rat_live_head));
    struct rat_live_head head;
    memcpy(&head, head_bytes, sizeof head);
    free(head_bytes);
    size_t used = (size_t)head.slots_at + 2 * RAT_SLOT_BYTES_MIN;
    uint8_t *good = read_whole(live_path, used), *good_part = read_whole(part_path, (size_t)part.st_size);
    const struct {
        size_t at, length;
    } areas[] = {
        {0, offsetof(struct rat_live_head, service)},
        {head.lanes_at, sizeof(struct rat_lane_head)},
        {head.tables_at, sizeof(struct rat_dict_head)},
        {head.tables_at + 4096, 128},
        {head.slots_at, 2 * RAT_SLOT_BYTES_MIN},
    };
    int recovered = 0, refused = 0;
    for (int round = 0; round < 400; round++) {
        int fd = open(live_path, O_RDWR | O_CREAT, 0600);
        assert_int_equal(ftruncate(fd, file.st_size), 0);
        assert_int_equal(pwrite(fd, good, used, 0), used);
        for (uint64_t changes = 1 + next_random(&seed) % 4; changes > 0; changes--) {
            size_t area = next_random(&seed) % (sizeof areas / sizeof *areas);
            off_t at = (off_t)(areas[area].at + next_random(&seed) % areas[area].length / 8 * 8);
            static const uint64_t nasty[] = {0, 1, UINT64_MAX, UINT32_MAX, UINT64_C(1) << 63, 0x7FFFFFFF, 4096};
            uint64_t value = next_random(&seed) % 2 ? next_random(&seed)
                                                    : nasty[next_random(&seed) % (sizeof nasty / sizeof *nasty)];
            size_t width = next_random(&seed) % 2 ? 8 : 4;
            assert_int_equal(pwrite(fd, &value, width, at), width);
        }
        if (next_random(&seed) % 8 == 0)
            assert_int_equal(ftruncate(fd, (off_t)(next_random(&seed) % (uint64_t)file.st_size)), 0);
        close(fd);
        fd = open(part_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        assert_int_equal(write(fd, good_part, (size_t)part.st_size), part.st_size);
        close(fd);
        struct rat_recovery found;
        enum rat_status status = rat_recover(place.out, place.live, NULL, NULL, &found);
        assert_int_equal(status == RAT_OK, found.failed == 0);
        recovered += found.segments > 0;
        refused += found.failed > 0;
        remove_tree(place.out);
        assert_int_equal(mkdir(place.out, 0700), 0);
    }
    print_message("%d recovered, %d refused\n", recovered, refused);
    assert_true(recovered > 0 && refused > 0);
    free(good);
    free(good_part);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_events_that_were_never_flushed_are_recovered),
        TEST(test_events_behind_a_flush_are_added_to_the_part_file),
        TEST(test_both_slots_are_recovered_in_order),
        TEST(test_a_process_may_die_at_any_point),
        TEST(test_the_event_being_written_is_counted_in_flight),
        TEST(test_drops_are_told),
        TEST(test_drops_told_in_a_published_segment_are_not_told_again),
        TEST(test_drops_told_in_a_segment_not_yet_published_are_not_told_again),
        TEST(test_a_session_that_recorded_nothing_leaves_nothing),
        TEST(test_a_recovery_may_die_at_any_point),
        TEST(test_two_recoveries_at_once_do_it_once),
        TEST(test_a_cancelled_recovery_does_not_wait_for_another),
        TEST(test_a_full_disk_leaves_it_for_later),
        TEST(test_the_living_are_left_alone),
        TEST(test_the_living_are_left_alone_before_they_have_written),
        TEST(test_a_process_does_not_recover_itself),
        TEST(test_a_session_recovers_what_was_left_before_it),
        TEST(test_other_directories_are_not_touched),
        TEST(test_a_live_file_that_does_not_say_whose_it_is_keeps_nobody_from_finishing),
        TEST(test_a_part_file_alone_is_published_without_a_closing_chunk),
        TEST(test_a_part_file_stays_while_its_live_file_is_refused),
        TEST(test_a_torn_tail_is_cut),
        TEST(test_a_chunk_torn_from_the_part_file_comes_from_the_slot),
        TEST(test_an_empty_part_file_is_removed_when_it_is_old),
        TEST(test_pages_of_another_boot_are_not_decoded),
        TEST(test_a_disabled_lane_is_counted_not_decoded),
        TEST(test_a_damaged_live_file_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
