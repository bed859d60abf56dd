/* The spool: order, bounds, claims, and what becomes of a segment; and what a parcel says of one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "deliver/curl_library.h"
#include "deliver/parcel.h"
#include "deliver/spool.h"
#include "deliver_support.h"

#define NOW INT64_C(1000000000000000000)
#define SECOND INT64_C(1000000000)

static struct place place;
static struct rat_spool spool;

static int set_up(void **state)
{
    (void)state;
    char why[256];
    place = make_place();
    rat_spool_init(&spool, place.out);
    return rat_crypto_load(why, sizeof why) == RAT_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    rat_spool_close(&spool);
    remove_place(&place);
    return 0;
}

static void path_of(const char *name, char out[512])
{
    snprintf(out, 512, "%s/%s", place.out, name);
}

/* A file of `bytes` bytes, last written `age` seconds before NOW. */
static void put_file(const char *name, size_t bytes, int age)
{
    char path[512];
    path_of(name, path);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    const struct timespec times[2] = {{.tv_sec = NOW / SECOND - age}, {.tv_sec = NOW / SECOND - age}};
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static bool is_there(const char *name)
{
    char path[512];
    path_of(name, path);
    return access(path, F_OK) == 0;
}

/* The names that wait, with commas between. */
static const char *waiting(void)
{
    static char names[1024];
    struct rat_spool_list list;
    names[0] = '\0';
    assert_int_equal(rat_spool_list(&spool, &list), RAT_OK);
    for (size_t i = 0; i < list.count; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%.*s", i > 0 ? "," : "",
                 (int)(strlen(list.entries[i].name) - strlen(RAT_SEGMENT_SUFFIX)), list.entries[i].name);
    rat_spool_list_free(&list);
    return names;
}

static const char *take(const char *name)
{
    int fd;
    uint64_t bytes;
    assert_int_equal(rat_spool_take(&spool, name, &fd, &bytes), RAT_OK);
    return name;
}

/* ---------------------------------------------------------------- listing */

static void test_the_oldest_comes_first(void **state)
{
    (void)state;
    put_file("b.ratrace", 1, 10);
    put_file("a.ratrace", 1, 5);
    put_file("d.ratrace", 1, 20);
    put_file("c.ratrace", 1, 10);
    assert_string_equal(waiting(), "d,b,c,a");
}

static void test_only_closed_segments_of_ours_are_seen(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    put_file("b.ratrace.part", 1, 1);
    put_file("notes.txt", 1, 1);
    put_file(".c.ratrace", 1, 1);
    put_file(".ratrace", 1, 1);
    char path[512];
    path_of("d.ratrace", path);
    assert_int_equal(mkdir(path, 0700), 0);
    path_of("e.ratrace", path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    path_of("f.ratrace", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    if (geteuid() == 0) {
        put_file("g.ratrace", 1, 1);
        path_of("g.ratrace", path);
        assert_int_equal(chown(path, 12345, 12345), 0);
    }
    assert_string_equal(waiting(), "a");
}

static void test_a_directory_made_anew_is_found(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    assert_string_equal(waiting(), "a");
    rat_spool_leave(&spool, take("a.ratrace"));
    remove_tree(place.out);
    struct rat_spool_list list;
    assert_int_equal(rat_spool_list(&spool, &list), RAT_NOT_FOUND);
    rat_spool_list_free(&list);
    assert_int_equal(mkdir(place.out, 0700), 0);
    put_file("b.ratrace", 1, 1);
    assert_string_equal(waiting(), "b");
    assert_int_equal(rat_spool_remove(&spool, take("b.ratrace")), RAT_OK);
    assert_string_equal(waiting(), "");
}

/* ---------------------------------------------------------------- claims */

enum { CLAIM = 'c', DROP = 'd', END = 'e' };

/* A process of its own that claims and drops when it is told to. */
struct other {
    pid_t pid;
    int say, hear;
};

static struct other start_other(void)
{
    int to[2], from[2];
    assert_int_equal(pipe(to) + pipe(from), 0);
    struct other other = {.pid = fork(), .say = to[1], .hear = from[0]};
    if (other.pid == 0) {
        close(to[1]), close(from[0]);
        struct rat_spool own;
        rat_spool_init(&own, place.out);
        struct rat_spool_list list;
        (void)!rat_spool_list(&own, &list);
        int fd = -1;
        for (char order; read(to[0], &order, 1) == 1 && order != END;) {
            uint64_t bytes;
            unsigned char status = RAT_OK;
            if (order == CLAIM)
                status = (unsigned char)rat_spool_take(&own, "a.ratrace", &fd, &bytes);
            else
                rat_spool_leave(&own, "a.ratrace");
            (void)!write(from[1], &status, 1);
        }
        _exit(0);
    }
    close(to[0]), close(from[1]);
    return other;
}

static enum rat_status tell(struct other *other, char order)
{
    unsigned char status;
    assert_int_equal(write(other->say, &order, 1), 1);
    assert_int_equal(read(other->hear, &status, 1), 1);
    return (enum rat_status)status;
}

static void end_other(struct other *other, int signal)
{
    if (signal != 0)
        kill(other->pid, signal);
    else
        (void)!write(other->say, &(char){END}, 1);
    int status;
    waitpid(other->pid, &status, 0);
    close(other->say), close(other->hear);
}

static enum rat_status try_take(void)
{
    int fd;
    uint64_t bytes;
    enum rat_status status = rat_spool_take(&spool, "a.ratrace", &fd, &bytes);
    if (status == RAT_OK)
        rat_spool_leave(&spool, "a.ratrace");
    return status;
}

static void test_a_segment_has_one_owner(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    put_file("b.ratrace", 1, 1);
    struct other other = start_other();
    assert_string_equal(waiting(), "a,b");
    assert_int_equal(tell(&other, CLAIM), RAT_OK);
    assert_int_equal(try_take(), RAT_BUSY);
    rat_spool_leave(&spool, take("b.ratrace"));
    assert_int_equal(tell(&other, DROP), RAT_OK);
    take("a.ratrace");
    assert_int_equal(tell(&other, CLAIM), RAT_BUSY);
    rat_spool_leave(&spool, "a.ratrace");
    assert_int_equal(tell(&other, CLAIM), RAT_OK);
    end_other(&other, 0);
}

static void test_two_spools_of_one_process_exclude_each_other(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    struct rat_spool second;
    rat_spool_init(&second, place.out);
    struct rat_spool_list list;
    assert_int_equal(rat_spool_list(&second, &list), RAT_OK);
    rat_spool_list_free(&list);
    assert_string_equal(waiting(), "a");
    int other_fd;
    uint64_t bytes;
    take("a.ratrace");
    assert_int_equal(rat_spool_take(&second, "a.ratrace", &other_fd, &bytes), RAT_BUSY);
    rat_spool_leave(&spool, "a.ratrace");
    assert_int_equal(rat_spool_take(&second, "a.ratrace", &other_fd, &bytes), RAT_OK);
    rat_spool_leave(&second, "a.ratrace");
    rat_spool_close(&second);
}

static void test_reading_the_file_drops_no_claim(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    struct other other = start_other();
    assert_string_equal(waiting(), "a");
    take("a.ratrace");
    char path[512];
    for (int i = 0; i < 2; i++) {
        path_of(i == 0 ? "a.ratrace" : RAT_CLAIMS_NAME, path);
        close(open(path, O_RDONLY)); /* as a backup would; a POSIX lock of ours would go */
    }
    assert_int_equal(tell(&other, CLAIM), RAT_BUSY);
    rat_spool_leave(&spool, "a.ratrace");
    end_other(&other, 0);
}

static void test_a_dead_owners_claim_is_void(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    struct other other = start_other();
    assert_string_equal(waiting(), "a");
    assert_int_equal(tell(&other, CLAIM), RAT_OK);
    assert_int_equal(try_take(), RAT_BUSY);
    end_other(&other, SIGKILL);
    assert_int_equal(try_take(), RAT_OK);
}

static void test_a_childs_copy_keeps_no_claim(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    struct other other = start_other();
    assert_string_equal(waiting(), "a");
    int held[2];
    take("a.ratrace");
    assert_int_equal(pipe(held), 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(held[1]);
        rat_spool_in_child(&spool);
        (void)!read(held[0], &byte, 1); /* lives on */
        _exit(0);
    }
    close(held[0]);
    assert_int_equal(tell(&other, CLAIM), RAT_BUSY); /* the child closed its copy, and ours still holds */
    rat_claims_close(&spool.claims);                 /* as our death would */
    WAIT_FOR(tell(&other, CLAIM) == RAT_OK);
    close(held[1]);
    int status;
    waitpid(child, &status, 0);
    rat_spool_leave(&spool, "a.ratrace");
    end_other(&other, 0);
}

static void test_what_is_gone_cannot_be_claimed(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    assert_string_equal(waiting(), "a");
    assert_int_equal(rat_spool_remove(&spool, take("a.ratrace")), RAT_OK);
    assert_int_equal(try_take(), RAT_NOT_FOUND);
}

static void test_a_foreign_claims_file_is_not_used(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    assert_string_equal(waiting(), "a");
    char path[512], victim[512];
    path_of(RAT_CLAIMS_NAME, path);
    path_of("victim", victim);
    assert_int_equal(symlink(victim, path), 0);
    assert_int_not_equal(try_take(), RAT_OK);
    assert_false(is_there("victim"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_not_equal(try_take(), RAT_OK);
    assert_int_equal(rmdir(path), 0);
    if (geteuid() == 0) {
        close(open(path, O_CREAT | O_WRONLY, 0666));
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_int_equal(try_take(), RAT_ACCESS);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(try_take(), RAT_OK);
}

/* ---------------------------------------------------------------- what becomes of it */

static void test_delivered_segments_are_removed_or_kept(void **state)
{
    (void)state;
    put_file("a.ratrace", 1, 1);
    put_file("b.ratrace", 1, 1);
    assert_string_equal(waiting(), "a,b");
    assert_int_equal(rat_spool_remove(&spool, take("a.ratrace")), RAT_OK);
    assert_int_equal(rat_spool_keep(&spool, take("b.ratrace")), RAT_OK);
    assert_string_equal(waiting(), "");
    assert_false(is_there("a.ratrace"));
    assert_true(is_there("delivered/b.ratrace"));
}

static void test_poison_is_moved_aside_with_its_reason(void **state)
{
    (void)state;
    char longest[256];
    memset(longest, 'x', 255);
    strcpy(longest + 247, ".ratrace");
    put_file("a.ratrace", 1, 1);
    put_file(longest, 1, 1);
    (void)waiting();
    assert_int_equal(rat_spool_poison(&spool, take("a.ratrace"), "413"), RAT_OK);
    assert_int_equal(rat_spool_poison(&spool, take(longest), "413"), RAT_OK);
    assert_string_equal(waiting(), "");
    assert_true(is_there("poison/413-a.ratrace"));
    char path[512];
    snprintf(path, sizeof path, "poison/%s", longest);
    assert_true(is_there(path));
}

static void test_a_planted_folder_is_not_followed(void **state)
{
    (void)state;
    char path[512], elsewhere[512];
    path_of("elsewhere", elsewhere);
    assert_int_equal(mkdir(elsewhere, 0700), 0);
    path_of(RAT_SPOOL_POISON, path);
    assert_int_equal(symlink(elsewhere, path), 0);
    put_file("a.ratrace", 1, 1);
    assert_string_equal(waiting(), "a");
    assert_int_not_equal(rat_spool_poison(&spool, take("a.ratrace"), "400"), RAT_OK);
    assert_string_equal(waiting(), "a");
    assert_int_equal(count_files(elsewhere, ""), 0);
}

/* ---------------------------------------------------------------- bounds */

static struct rat_spool_drops retain(uint64_t bytes, uint64_t age_s)
{
    struct rat_spool_drops drops = {.others = 0};
    const struct rat_spool_bounds bounds = {.bytes = bytes, .age_ns = age_s * (uint64_t)SECOND};
    assert_int_equal(rat_spool_retain(&spool, &bounds, NOW, &drops), RAT_OK);
    return drops;
}

static void test_the_oldest_go_when_there_are_too_many_bytes(void **state)
{
    (void)state;
    put_file("a.ratrace", 100, 40);
    put_file("b.ratrace", 100, 30);
    put_file("c.ratrace", 100, 20);
    put_file("notes.txt", 1000, 50);
    assert_int_equal(retain(300, 0).waiting[RAT_SPOOL_BY_BYTES], 0);
    struct rat_spool_drops drops = retain(299, 0);
    assert_int_equal(drops.waiting[RAT_SPOOL_BY_BYTES], 1);
    assert_int_equal(drops.waiting_bytes[RAT_SPOOL_BY_BYTES], 100);
    assert_string_equal(waiting(), "b,c");
    assert_int_equal(retain(10, 0).waiting[RAT_SPOOL_BY_BYTES], 2);
    assert_string_equal(waiting(), "");
    assert_true(is_there("notes.txt"));
}

static void test_the_old_go_by_age(void **state)
{
    (void)state;
    put_file("a.ratrace", 100, 40);
    put_file("b.ratrace", 100, 30);
    put_file("c.ratrace", 100, 20);
    struct rat_spool_drops drops = retain(0, 30);
    assert_int_equal(drops.waiting[RAT_SPOOL_BY_AGE], 1);
    assert_int_equal(drops.waiting[RAT_SPOOL_BY_BYTES], 0);
    assert_string_equal(waiting(), "b,c");
}

static void test_without_bounds_nothing_goes(void **state)
{
    (void)state;
    put_file("a.ratrace", 1 << 20, 1000000);
    assert_int_equal(retain(0, 0).waiting[0], 0);
    assert_string_equal(waiting(), "a");
}

static void test_delivered_and_poison_go_first(void **state)
{
    (void)state;
    put_file("a.ratrace", 100, 90);
    put_file("b.ratrace", 100, 20);
    put_file("c.ratrace", 100, 10);
    put_file("d.ratrace", 100, 5);
    (void)waiting();
    assert_int_equal(rat_spool_keep(&spool, take("c.ratrace")), RAT_OK);
    assert_int_equal(rat_spool_poison(&spool, take("d.ratrace"), "400"), RAT_OK);
    assert_int_equal(retain(300, 0).others, 1);
    assert_false(is_there("delivered/c.ratrace"));
    assert_true(is_there("poison/400-d.ratrace"));
    struct rat_spool_drops drops = retain(150, 0);
    assert_int_equal(drops.others, 1);
    assert_int_equal(drops.waiting[RAT_SPOOL_BY_BYTES], 1);
    assert_false(is_there("poison/400-d.ratrace"));
    assert_string_equal(waiting(), "b");
}

static void test_part_files_nobody_owns_count_and_go_before_what_waits(void **state)
{
    (void)state;
    put_file("a.ratrace", 100, 90);
    put_file("b.ratrace", 100, 10);
    put_file("c.ratrace.part", 100, 80);
    put_file("d.ratrace.part", 100, 70);
    assert_int_equal(retain(400, 90).waiting[RAT_SPOOL_BY_BYTES], 0);
    struct rat_spool_drops drops = retain(399, 0);
    assert_int_equal(drops.waiting[RAT_SPOOL_BY_BYTES], 1);
    assert_int_equal(drops.waiting_bytes[RAT_SPOOL_BY_BYTES], 100);
    assert_false(is_there("c.ratrace.part"));
    assert_int_equal(retain(199, 0).waiting[RAT_SPOOL_BY_BYTES], 2);
    assert_false(is_there("d.ratrace.part"));
    assert_string_equal(waiting(), "b");
    put_file("e.ratrace.part", 100, 80);
    assert_int_equal(retain(0, 70).waiting[RAT_SPOOL_BY_AGE], 1);
    assert_false(is_there("e.ratrace.part"));
}

static void test_a_part_file_that_may_be_about_to_be_locked_stays(void **state)
{
    (void)state;
    put_file("a.ratrace", 100, 90);
    put_file("b.ratrace.part", 100, 59);
    assert_int_equal(retain(100, 0).waiting[RAT_SPOOL_BY_BYTES], 1); /* it counts */
    assert_string_equal(waiting(), "");
    assert_int_equal(retain(10, 1).waiting[RAT_SPOOL_BY_BYTES], 0);
    assert_true(is_there("b.ratrace.part"));
}

/* A part file of this process, last written long ago. */
static void create_part(struct rat_segment_writer *writer, const char *name)
{
    assert_int_equal(rat_segment_create(writer, place.out, name), RAT_OK);
    assert_int_equal(rat_segment_append(writer, (const uint8_t *)"chunk", 5), RAT_OK);
    const struct timespec times[2] = {{.tv_sec = NOW / SECOND - 1000}, {.tv_sec = NOW / SECOND - 1000}};
    assert_int_equal(utimensat(AT_FDCWD, writer->path, times, 0), 0); /* opening it would drop the lock */
}

static void test_a_part_file_being_written_stays(void **state)
{
    (void)state;
    struct rat_segment_writer writer;
    create_part(&writer, "ours.ratrace");
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        struct rat_segment_writer other;
        create_part(&other, "theirs.ratrace");
        REQUIRE(write(pipes[1], "", 1) == 1);
        pause();
    }
    char byte;
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    assert_int_equal(retain(1, 10).waiting[RAT_SPOOL_BY_AGE], 0);
    assert_true(is_there("ours.ratrace.part"));
    assert_true(is_there("theirs.ratrace.part"));

    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(retain(1, 10).waiting[RAT_SPOOL_BY_AGE], 1);
    assert_true(is_there("ours.ratrace.part"));
    assert_false(is_there("theirs.ratrace.part"));
    rat_segment_close(&writer);
    assert_int_equal(retain(1, 10).waiting[RAT_SPOOL_BY_AGE], 1);
    assert_false(is_there("ours.ratrace.part"));
    close(pipes[0]);
    close(pipes[1]);
}

static void test_what_is_being_delivered_stays(void **state)
{
    (void)state;
    put_file("a.ratrace", 100, 40);
    put_file("b.ratrace", 100, 30);
    struct other other = start_other();
    assert_string_equal(waiting(), "a,b");
    assert_int_equal(tell(&other, CLAIM), RAT_OK);
    assert_int_equal(retain(100, 0).waiting[RAT_SPOOL_BY_BYTES], 1);
    assert_string_equal(waiting(), "a");
    assert_int_equal(retain(10, 0).waiting[RAT_SPOOL_BY_BYTES], 0);
    end_other(&other, SIGKILL);
    assert_int_equal(retain(10, 0).waiting[RAT_SPOOL_BY_BYTES], 1);
}

/* ---------------------------------------------------------------- parcels */

static const char *record_segment(void)
{
    static char name[300];
    struct rat_session_options options = small_options(&place);
    struct recorder recorder;
    open_lane(&recorder, open_session(&options), RAT_LANE_MAIN);
    assert_int_equal(record_and_flush(&recorder, 500), RAT_OK);
    record_many(&recorder, 500);
    char path[4096];
    assert_int_equal(rat_session_stop(recorder.session, path, sizeof path), RAT_OK);
    snprintf(name, sizeof name, "%s", strrchr(path, '/') + 1);
    return name;
}

static enum rat_status read_parcel(const char *name, struct rat_parcel *parcel)
{
    int fd;
    uint64_t bytes;
    (void)waiting();
    assert_int_equal(rat_spool_take(&spool, name, &fd, &bytes), RAT_OK);
    enum rat_status status = rat_parcel_read(fd, name, bytes, NULL, parcel);
    rat_spool_leave(&spool, name);
    return status;
}

static void assert_digest(const char *name, const struct rat_parcel *parcel)
{
    char command[700], hex[80] = "";
    snprintf(command, sizeof command, "sha256sum < %s/%s", place.out, name);
    FILE *tool = popen(command, "r");
    assert_int_equal(fread(hex, 1, 64, tool), 64);
    pclose(tool);
    assert_string_equal(parcel->sha256_hex, hex);
}

static void test_a_parcel_says_what_its_segment_holds(void **state)
{
    (void)state;
    const char *name = record_segment();
    struct rat_parcel parcel;
    assert_int_equal(read_parcel(name, &parcel), RAT_OK);
    struct tally tally = read_back(place.out);
    assert_int_equal(parcel.events, 1000);
    assert_int_equal(parcel.segment, 1);
    assert_int_equal(parcel.pid, getpid());
    assert_string_equal(parcel.service, "test");
    assert_true(parcel.start_ns < parcel.end_ns);
    assert_false(parcel.damaged);
    char key[64];
    snprintf(key, sizeof key, "%016" PRIx64 "%016" PRIx64 "-000001", tally.session_hi, tally.session_lo);
    assert_string_equal(parcel.key, key);
    assert_digest(name, &parcel);
}

static void damage(const char *path, uint64_t at)
{
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\xFF\xFF\xFF\xFF", 4, (off_t)at), 4);
    close(fd);
}

/* Where the second chunk's sync marker lies. */
static uint64_t second_chunk(const char *path)
{
    static uint8_t bytes[1 << 16];
    int fd = open(path, O_RDONLY);
    ssize_t length = read(fd, bytes, sizeof bytes);
    close(fd);
    assert_true(length > 100);
    const uint8_t *found = memmem(bytes + 100, (size_t)length - 100, RAT_SYNC_CONSTANT, 8);
    assert_non_null(found);
    return (uint64_t)(found - bytes);
}

static void test_a_damaged_segment_keeps_its_key(void **state)
{
    (void)state;
    const char *name = record_segment();
    struct rat_parcel whole, parcel;
    assert_int_equal(read_parcel(name, &whole), RAT_OK);
    char path[512];
    path_of(name, path);
    uint64_t chunk = second_chunk(path);
    for (uint64_t at = whole.bytes - 10; at > 400; at /= 2) { /* in a body or in a header: which, the clock decides */
        damage(path, at);
        assert_int_equal(read_parcel(name, &parcel), RAT_OK);
        assert_string_equal(parcel.key, whole.key);
        assert_digest(name, &parcel);
    }
    damage(path, chunk);
    assert_int_equal(read_parcel(name, &parcel), RAT_OK);
    assert_true(parcel.damaged);
    assert_string_equal(parcel.key, whole.key);
    assert_digest(name, &parcel);
}

static void test_a_cut_segment_is_told_to_be_damaged(void **state)
{
    (void)state;
    const char *name = record_segment();
    struct rat_parcel whole, parcel;
    assert_int_equal(read_parcel(name, &whole), RAT_OK);
    char path[512];
    path_of(name, path);
    assert_int_equal(truncate(path, (off_t)whole.bytes - 5), 0);
    assert_int_equal(read_parcel(name, &parcel), RAT_OK);
    assert_true(parcel.damaged);
    assert_string_equal(parcel.key, whole.key);
    assert_digest(name, &parcel);
}

static void test_what_is_no_segment_is_no_parcel(void **state)
{
    (void)state;
    struct rat_parcel parcel;
    put_file("a.ratrace", 0, 1);
    assert_int_equal(read_parcel("a.ratrace", &parcel), RAT_CORRUPT);
    put_file("a.ratrace", 100000, 1);
    assert_int_equal(read_parcel("a.ratrace", &parcel), RAT_CORRUPT);
    char path[512];
    path_of("a.ratrace", path);
    static const uint8_t forged[] = {0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0x0A, 0x10};
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, forged, sizeof forged), sizeof forged);
    close(fd);
    assert_int_equal(read_parcel("a.ratrace", &parcel), RAT_CORRUPT);
}

static void test_a_reader_can_be_called_off(void **state)
{
    (void)state;
    const char *name = record_segment();
    (void)waiting();
    const _Atomic uint32_t cancel = 1;
    struct rat_parcel parcel;
    int fd;
    uint64_t bytes;
    assert_int_equal(rat_spool_take(&spool, name, &fd, &bytes), RAT_OK);
    assert_int_equal(rat_parcel_read(fd, name, bytes, &cancel, &parcel), RAT_END);
    rat_spool_leave(&spool, name);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_oldest_comes_first),
        TEST(test_only_closed_segments_of_ours_are_seen),
        TEST(test_a_directory_made_anew_is_found),
        TEST(test_a_segment_has_one_owner),
        TEST(test_two_spools_of_one_process_exclude_each_other),
        TEST(test_reading_the_file_drops_no_claim),
        TEST(test_a_dead_owners_claim_is_void),
        TEST(test_a_childs_copy_keeps_no_claim),
        TEST(test_what_is_gone_cannot_be_claimed),
        TEST(test_a_foreign_claims_file_is_not_used),
        TEST(test_delivered_segments_are_removed_or_kept),
        TEST(test_poison_is_moved_aside_with_its_reason),
        TEST(test_a_planted_folder_is_not_followed),
        TEST(test_the_oldest_go_when_there_are_too_many_bytes),
        TEST(test_the_old_go_by_age),
        TEST(test_without_bounds_nothing_goes),
        TEST(test_delivered_and_poison_go_first),
        TEST(test_part_files_nobody_owns_count_and_go_before_what_waits),
        TEST(test_a_part_file_that_may_be_about_to_be_locked_stays),
        TEST(test_a_part_file_being_written_stays),
        TEST(test_what_is_being_delivered_stays),
        TEST(test_a_parcel_says_what_its_segment_holds),
        TEST(test_a_damaged_segment_keeps_its_key),
        TEST(test_a_cut_segment_is_told_to_be_damaged),
        TEST(test_what_is_no_segment_is_no_parcel),
        TEST(test_a_reader_can_be_called_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
