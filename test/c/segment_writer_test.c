/* Writing segments: locks, short and failing writes, torn tails, publishing. */
#include "wire_support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../golden/scenes.h"
#include "wire/own_files.h"

static char dir[64], part[128], final[128];
static struct rat_segment_writer writer;
static struct rat_buffer segment;
static struct rat_file_ops ops;

static int open_all(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ratrace-test-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return 1;
    snprintf(final, sizeof final, "%s/a.ratrace", dir);
    snprintf(part, sizeof part, "%s/a.ratrace.part", dir);
    rat_buffer_init(&segment, 1 << 20);
    scene_build(0, &segment);
    ops = rat_file_ops_libc;
    rat_file_ops = &ops;
    writer.fd = -1;
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    rat_file_ops = &rat_file_ops_libc;
    rat_segment_close(&writer);
    rat_buffer_free(&segment);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static void create(void)
{
    assert_int_equal(rat_segment_create(&writer, dir, "a.ratrace"), RAT_OK);
}

static size_t size_of(const char *path)
{
    struct stat file;
    return stat(path, &file) == 0 ? (size_t)file.st_size : SIZE_MAX;
}

static void assert_content(const char *path, const uint8_t *bytes, size_t length)
{
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    uint8_t *content = malloc(length + 1);
    assert_non_null(content);
    assert_int_equal(read(fd, content, length + 1), (ssize_t)length);
    assert_memory_equal(content, bytes, length);
    free(content);
    close(fd);
}

/* Run `what` in a child; its exit status. */
static int in_child(int (*what)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(what());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int sees_owner(void)
{
    return rat_segment_is_owned(part);
}

static int adopts(void)
{
    struct rat_segment_writer own;
    return rat_segment_adopt(&own, part);
}

/* A part file with this content whose owner is gone. */
static void leave_part(const uint8_t *bytes, size_t length)
{
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, length), (ssize_t)length);
    close(fd);
}

/* ---------------------------------------------------------------- create and publish */

static void a_segment_is_a_private_part_file_until_published(void **state)
{
    (void)state;
    create();
    struct stat file;
    assert_int_equal(stat(part, &file), 0);
    assert_int_equal(file.st_mode & 07777, 0600);
    assert_int_equal(rat_segment_append(&writer, segment.bytes, segment.length), RAT_OK);
    assert_int_equal(rat_segment_sync(&writer), RAT_OK);
    assert_int_equal(size_of(final), SIZE_MAX);
    assert_int_equal(rat_segment_publish(&writer), RAT_OK);
    assert_int_equal(size_of(part), SIZE_MAX);
    assert_string_equal(writer.path, final);
    assert_int_equal(writer.fd, -1);
    assert_content(final, segment.bytes, segment.length);
}

static void an_existing_part_file_is_not_taken(void **state)
{
    (void)state;
    leave_part((const uint8_t *)"mine", 4);
    assert_int_equal(rat_segment_create(&writer, dir, "a.ratrace"), RAT_EXISTS);
    assert_int_equal(size_of(part), 4);
}

static void a_link_in_the_part_files_place_is_not_followed(void **state)
{
    (void)state;
    char victim[128];
    snprintf(victim, sizeof victim, "%s/victim", dir);
    assert_int_equal(symlink(victim, part), 0);
    assert_int_equal(rat_segment_create(&writer, dir, "a.ratrace"), RAT_EXISTS);
    assert_int_equal(size_of(victim), SIZE_MAX);
    leave_part(segment.bytes, segment.length); /* through the link */
    assert_int_equal(rat_segment_adopt(&writer, part), RAT_ACCESS);
}

static void names_that_leave_the_directory_are_refused(void **state)
{
    (void)state;
    assert_int_equal(rat_segment_create(&writer, dir, "../a"), RAT_INVALID);
    assert_int_equal(rat_segment_create(&writer, dir, ""), RAT_INVALID);
}

static void a_missing_directory_is_not_found(void **state)
{
    (void)state;
    assert_int_equal(rat_segment_create(&writer, "/nowhere/at/all", "a.ratrace"), RAT_NOT_FOUND);
    static char longer[5000];
    memset(longer, 'x', sizeof longer - 1);
    assert_int_equal(rat_segment_create(&writer, longer, "a.ratrace"), RAT_TOO_BIG);
}

static int fail_lock(int fd)
{
    (void)fd;
    errno = ENOLCK;
    return -1;
}

static void a_file_that_cannot_be_locked_is_not_left_behind(void **state)
{
    (void)state;
    ops.lock = fail_lock;
    assert_int_equal(rat_segment_create(&writer, dir, "a.ratrace"), RAT_IO);
    assert_int_equal(size_of(part), SIZE_MAX);
}

static int refuse_noreplace(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (flags == 0)
        return rat_file_ops_libc.renameat2(from_dir, from, to_dir, to, 0);
    errno = EINVAL;
    return -1;
}

static int refuse_link(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    (void)from_dir, (void)from, (void)to_dir, (void)to, (void)flags;
    errno = EPERM;
    return -1;
}

static void publishing_replaces_nothing_whatever_the_filesystem_can(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        ops.renameat2 = way > 0 ? refuse_noreplace : rat_file_ops_libc.renameat2;
        ops.linkat = way > 1 ? refuse_link : rat_file_ops_libc.linkat;
        create();
        int fd = open(final, O_WRONLY | O_CREAT, 0600);
        assert_int_equal(write(fd, "old", 3), 3);
        close(fd);
        assert_int_equal(rat_segment_publish(&writer), RAT_EXISTS);
        assert_true(writer.fd >= 0);
        assert_content(final, (const uint8_t *)"old", 3);
        assert_int_equal(unlink(final), 0);
        assert_int_equal(rat_segment_publish(&writer), RAT_OK);
        assert_int_equal(size_of(final), 0);
        assert_int_equal(size_of(part), SIZE_MAX);
        assert_int_equal(unlink(final), 0);
    }
}

static void a_part_file_that_was_taken_away_is_not_published(void **state)
{
    (void)state;
    create();
    assert_int_equal(unlink(part), 0);
    assert_int_equal(rat_segment_publish(&writer), RAT_NOT_FOUND);
    leave_part((const uint8_t *)"other", 5);
    assert_int_equal(rat_segment_publish(&writer), RAT_NOT_FOUND);
    assert_int_equal(size_of(final), SIZE_MAX);
}

static void a_closed_writer_takes_nothing(void **state)
{
    (void)state;
    create();
    rat_segment_close(&writer);
    assert_int_equal(rat_segment_append(&writer, segment.bytes, segment.length), RAT_INVALID);
    assert_int_equal(rat_segment_publish(&writer), RAT_INVALID);
    assert_int_equal(rat_segment_sync(&writer), RAT_INVALID);
    assert_int_equal(size_of(part), 0);
}

/* ---------------------------------------------------------------- writes that fail */

static int writes, fail_at, fail_errno, cuts_refused;
static size_t write_most;

static ssize_t failing_pwrite(int fd, const void *bytes, size_t length, off_t at)
{
    if (writes++ == fail_at) {
        errno = fail_errno;
        return fail_errno != 0 ? -1 : 0;
    }
    return pwrite(fd, bytes, length < write_most ? length : write_most, at);
}

static int failing_ftruncate(int fd, off_t length)
{
    if (cuts_refused-- > 0) {
        errno = EIO;
        return -1;
    }
    return ftruncate(fd, length);
}

static void a_write_that_fails_at_any_call_is_cut_off_again(void **state)
{
    (void)state;
    static const struct {
        int error;
        enum rat_status status;
    } cases[] = {
        {ENOSPC, RAT_NO_SPACE}, {EDQUOT, RAT_NO_SPACE}, {EIO, RAT_IO},     {EFBIG, RAT_TOO_BIG},
        {EPERM, RAT_ACCESS},    {EBADF, RAT_IO},        {EAGAIN, RAT_IO},  {ENOMEM, RAT_NO_MEMORY},
        {EPIPE, RAT_IO},        {ESTALE, RAT_IO},       {0, RAT_NO_SPACE},
    };
    create();
    ops.pwrite = failing_pwrite;
    write_most = 100;
    int calls = (int)((segment.length + write_most - 1) / write_most);
    fail_at = -1;
    assert_int_equal(rat_segment_append(&writer, segment.bytes, segment.length), RAT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (fail_at = 0; fail_at < calls; fail_at++) {
            writes = 0;
            fail_errno = cases[i].error;
            assert_int_equal(rat_segment_append(&writer, segment.bytes, segment.length), cases[i].status);
            assert_int_equal(writer.length, segment.length);
            assert_content(part, segment.bytes, segment.length);
        }
    fail_at = -1;
    assert_int_equal(rat_segment_append(&writer, segment.bytes, segment.length), RAT_OK);
    assert_int_equal(size_of(part), 2 * segment.length);
}

static void short_and_interrupted_writes_are_gone_on_with(void **state)
{
    (void)state;
    create();
    ops.pwrite = failing_pwrite;
    fail_errno = EINTR;
    for (fail_at = 0; fail_at < 9; fail_at++) {
        writes = 0;
        write_most = 1 + (size_t)fail_at * 50;
        assert_int_equal(rat_segment_append(&writer, segment.bytes, segment.length), RAT_OK);
    }
    assert_int_equal(size_of(part), 9 * segment.length);
}

static void a_tail_that_cannot_be_cut_is_cut_before_the_next_append(void **state)
{
    (void)state;
    create();
    ops.pwrite = failing_pwrite;
    ops.ftruncate = failing_ftruncate;
    write_most = 100;
    writes = 0;
    fail_at = 3;
    fail_errno = ENOSPC;
    cuts_refused = 3;
    assert_int_equal(rat_segment_append(&writer, segment.bytes, segment.length), RAT_NO_SPACE);
    assert_true(writer.ragged);
    assert_int_equal(rat_segment_publish(&writer), RAT_IO); /* only part files may be torn */
    assert_int_equal(rat_segment_append(&writer, segment.bytes, 50), RAT_IO);
    assert_int_equal(rat_segment_append(&writer, segment.bytes, 50), RAT_OK);
    assert_content(part, segment.bytes, 50);
}

/* ---------------------------------------------------------------- locks */

static void others_see_the_owner_until_it_closes(void **state)
{
    (void)state;
    create();
    assert_int_equal(in_child(sees_owner), true);
    assert_int_equal(in_child(adopts), RAT_BUSY);
    rat_segment_close(&writer);
    assert_int_equal(in_child(sees_owner), false);
    assert_false(rat_segment_is_owned(part));
}

static size_t open_descriptors(void)
{
    size_t count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void asking_and_reading_in_the_owner_do_not_drop_its_lock(void **state)
{
    (void)state;
    create();
    size_t open_before = open_descriptors();
    assert_int_equal(rat_segment_append(&writer, segment.bytes, segment.length), RAT_OK);
    assert_true(rat_segment_is_owned(part));
    struct rat_segment_writer second;
    assert_int_equal(rat_segment_adopt(&second, part), RAT_BUSY);
    struct rat_segment_reader *reader;
    struct rat_read read;
    assert_int_equal(rat_segment_open(part, &reader), RAT_OK);
    size_t chunks = 0;
    for (rat_segment_next(reader, &read); read.kind != RAT_READ_END; rat_segment_next(reader, &read))
        chunks += read.kind == RAT_READ_CHUNK;
    rat_segment_reader_free(reader);
    assert_int_equal(chunks, 3);
    assert_int_equal(in_child(sees_owner), true);
    assert_int_equal(open_descriptors(), open_before); /* nor leak what they must not close */
}

static int close_inherited(void)
{
    rat_segment_close(&writer);
    return 0;
}

static void a_child_that_closes_what_it_inherited_does_not_drop_the_lock(void **state)
{
    (void)state;
    create();
    assert_int_equal(in_child(close_inherited), 0);
    assert_int_equal(in_child(sees_owner), true);
}

static int owns_as_child(void)
{
    return rat_segment_is_owned(part) && rat_segment_adopt(&writer, part) == RAT_BUSY;
}

static void a_child_knows_that_its_parents_files_are_not_its_own(void **state)
{
    (void)state;
    create();
    assert_int_equal(in_child(owns_as_child), true);
}

static void a_file_missing_or_of_another_type_has_no_owner(void **state)
{
    (void)state;
    assert_false(rat_segment_is_owned(part));
    assert_false(rat_segment_is_owned(dir));
    assert_int_equal(mkfifo(part, 0600), 0);
    assert_false(rat_segment_is_owned(part));
    assert_int_equal(rat_segment_adopt(&writer, part), RAT_ACCESS);
    struct rat_segment_reader *reader;
    assert_int_equal(rat_segment_open(part, &reader), RAT_INVALID);
    assert_int_equal(rat_segment_open(final, &reader), RAT_NOT_FOUND);
}

/* ---------------------------------------------------------------- adopt */

static void a_dead_owners_file_is_cut_behind_its_last_whole_chunk(void **state)
{
    (void)state;
    struct rat_segment_reader *reader;
    struct rat_read read;
    size_t end = 0, next_end = 0;
    for (size_t cut = 0; cut <= segment.length; cut++) {
        if (cut == 0 || cut == next_end) {
            end = cut;
            assert_int_equal(rat_segment_open_bytes(segment.bytes + end, segment.length - end, &reader), RAT_OK);
            rat_segment_next(reader, &read);
            next_end = end + read.length;
            rat_segment_reader_free(reader);
        }
        leave_part(segment.bytes, cut);
        assert_int_equal(rat_segment_adopt(&writer, part), RAT_OK);
        assert_int_equal(writer.length, end);
        assert_int_equal(size_of(part), end);
        rat_segment_close(&writer);
    }
}

static void an_adopted_file_is_appended_to_and_published(void **state)
{
    (void)state;
    leave_part(segment.bytes, segment.length - 1);
    assert_int_equal(rat_segment_adopt(&writer, part), RAT_OK);
    assert_int_equal(in_child(sees_owner), true);
    size_t kept = writer.length;
    assert_int_equal(rat_segment_append(&writer, segment.bytes + kept, segment.length - kept), RAT_OK);
    assert_int_equal(rat_segment_publish(&writer), RAT_OK);
    assert_content(final, segment.bytes, segment.length);
}

static void damage_in_the_middle_is_kept_when_adopted(void **state)
{
    (void)state;
    segment.bytes[300] ^= 1;
    leave_part(segment.bytes, segment.length);
    assert_int_equal(rat_segment_adopt(&writer, part), RAT_OK);
    assert_int_equal(writer.length, segment.length);
}

static int die_while_writing(void)
{
    if (rat_segment_create(&writer, dir, "a.ratrace") != RAT_OK ||
        rat_segment_append(&writer, segment.bytes, segment.length) != RAT_OK ||
        pwrite(writer.fd, segment.bytes, 200, (off_t)segment.length) != 200)
        return 1;
    kill(getpid(), SIGKILL);
    return 2;
}

static void what_a_killed_process_left_is_adopted(void **state)
{
    (void)state;
    assert_int_equal(in_child(die_while_writing), -1);
    assert_false(rat_segment_is_owned(part));
    assert_int_equal(rat_segment_adopt(&writer, part), RAT_OK);
    assert_int_equal(writer.length, segment.length);
}

static void a_missing_file_cannot_be_adopted(void **state)
{
    (void)state;
    assert_int_equal(rat_segment_adopt(&writer, part), RAT_NOT_FOUND);
}

/* Somebody put another's file there for us to cut. */
static void a_file_with_a_name_elsewhere_is_not_adopted(void **state)
{
    (void)state;
    char treasure[128];
    snprintf(treasure, sizeof treasure, "%s/treasure", dir);
    int fd = open(treasure, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(fd, "gold", 4), 4);
    close(fd);
    assert_int_equal(link(treasure, part), 0);
    assert_int_equal(rat_segment_adopt(&writer, part), RAT_ACCESS);
    assert_int_equal(size_of(treasure), 4);
}

static void another_users_file_is_not_adopted(void **state)
{
    (void)state;
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL, 0666);
    assert_int_equal(write(fd, "gold", 4), 4);
    assert_int_equal(fchmod(fd, 0666), 0);
    close(fd);
    assert_int_equal(chmod(dir, 0777), 0);
    if (geteuid() != 0)
        skip();
    pid_t child = fork();
    if (child == 0)
        _exit(setuid(65534) == 0 && rat_segment_adopt(&writer, part) == RAT_ACCESS ? 0 : 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(size_of(part), 4);
}

/* Where there is no better rename, publishing gives the second name before it takes the first away. */
static void a_publishing_cut_short_is_adopted(void **state)
{
    (void)state;
    create();
    assert_int_equal(rat_segment_append(&writer, segment.bytes, segment.length), RAT_OK);
    rat_segment_close(&writer);
    assert_int_equal(link(part, final), 0);
    assert_int_equal(rat_segment_adopt(&writer, part), RAT_OK);
}

/* Another recovery finishes between our look and our lock. */
static int lock_after_rename(int fd)
{
    assert_int_equal(rename(part, final), 0);
    return rat_file_ops_libc.lock(fd);
}

static void a_file_renamed_while_it_is_adopted_is_left_alone(void **state)
{
    (void)state;
    leave_part(segment.bytes, segment.length - 1);
    ops.lock = lock_after_rename;
    assert_int_equal(rat_segment_adopt(&writer, part), RAT_NOT_FOUND);
    assert_int_equal(size_of(final), segment.length - 1);
    assert_int_equal(writer.fd, -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_segment_is_a_private_part_file_until_published),
        TEST(an_existing_part_file_is_not_taken),
        TEST(a_link_in_the_part_files_place_is_not_followed),
        TEST(names_that_leave_the_directory_are_refused),
        TEST(a_missing_directory_is_not_found),
        TEST(a_file_that_cannot_be_locked_is_not_left_behind),
        TEST(publishing_replaces_nothing_whatever_the_filesystem_can),
        TEST(a_part_file_that_was_taken_away_is_not_published),
        TEST(a_closed_writer_takes_nothing),
        TEST(a_write_that_fails_at_any_call_is_cut_off_again),
        TEST(short_and_interrupted_writes_are_gone_on_with),
        TEST(a_tail_that_cannot_be_cut_is_cut_before_the_next_append),
        TEST(others_see_the_owner_until_it_closes),
        TEST(asking_and_reading_in_the_owner_do_not_drop_its_lock),
        TEST(a_child_that_closes_what_it_inherited_does_not_drop_the_lock),
        TEST(a_child_knows_that_its_parents_files_are_not_its_own),
        TEST(a_file_missing_or_of_another_type_has_no_owner),
        TEST(a_dead_owners_file_is_cut_behind_its_last_whole_chunk),
        TEST(an_adopted_file_is_appended_to_and_published),
        TEST(damage_in_the_middle_is_kept_when_adopted),
        TEST(what_a_killed_process_left_is_adopted),
        TEST(a_missing_file_cannot_be_adopted),
        TEST(a_file_with_a_name_elsewhere_is_not_adopted),
        TEST(another_users_file_is_not_adopted),
        TEST(a_publishing_cut_short_is_adopted),
        TEST(a_file_renamed_while_it_is_adopted_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
