/* The memory of a session: where it lies, who may open it, what happens where there is no room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "deliver_support.h"

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "deliver/live_file.h"
#include "deliver/live_view.h"

static struct place place;

/* A kernel that undoes what a signal interrupts, and a timer that leaves time for `interrupted_above` bytes; 0 = none. */
static off_t interrupted_above;
static int interruptions;

int fallocate(int fd, int mode, off_t at, off_t length)
{
    if (interrupted_above > 0 && length > interrupted_above && interruptions < 1000) {
        interruptions++;
        errno = EINTR;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, at, length);
}

static int set_up(void **state)
{
    (void)state;
    place = make_place();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_place(&place);
    return 0;
}

static struct rat_live_head identity(void)
{
    struct rat_live_head head;
    rat_live_identify(&head);
    head.slot_bytes = RAT_SLOT_BYTES_MIN;
    head.clock = RAT_CLOCK_MONOTONIC;
    head.fence = RAT_FENCE_SEQ_CST;
    strcpy(head.out_dir, place.out);
    atomic_store(&head.segment, 1);
    return head;
}

static struct rat_live_file create(void)
{
    struct rat_live_file live;
    struct rat_live_head head = identity();
    assert_int_equal(rat_live_create(&live, place.live, &head), RAT_OK);
    return live;
}

static const char *name_of(const struct rat_live_file *live)
{
    return strrchr(live->path, '/') + 1;
}

/* Another thread may be changing it. */
static void test_the_environment_is_not_read_for_who_names_a_directory(void **state)
{
    (void)state;
    char dir[RAT_LIVE_PATH_MAX], expected[64];
    snprintf(expected, sizeof expected, "/dev/shm/ratrace-%u", (unsigned)geteuid());
    setenv("RATRACE_LIVE_DIR", "/elsewhere", 1);
    assert_int_equal(rat_live_dir("", dir, sizeof dir), RAT_OK);
    assert_string_equal(dir, expected);
    assert_int_equal(rat_live_dir(NULL, dir, sizeof dir), RAT_OK);
    assert_string_equal(dir, "/elsewhere");
    setenv("RATRACE_LIVE_DIR", "", 1);
    assert_int_equal(rat_live_dir(NULL, dir, sizeof dir), RAT_OK);
    assert_string_equal(dir, expected);
    unsetenv("RATRACE_LIVE_DIR");
}

static void test_an_identity_has_random_ids_and_names_the_machine(void **state)
{
    (void)state;
    struct rat_live_head one, two;
    rat_live_identify(&one);
    rat_live_identify(&two);
    assert_true(one.session_hi != two.session_hi && one.session_lo != two.session_lo);
    assert_memory_equal(one.sync, RAT_SYNC_CONSTANT, 8);
    assert_memory_not_equal(one.sync + 8, two.sync + 8, 8);
    assert_memory_equal(one.boot_id, two.boot_id, 16);
    assert_int_equal(one.pid, getpid());
    assert_true(one.host[0] != '\0');
}

static void test_a_live_file_is_private_and_locked_before_its_magic_is_there(void **state)
{
    (void)state;
    struct rat_live_file live = create();
    struct stat file;
    assert_int_equal(stat(live.path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0600);
    assert_int_equal(file.st_size, live.length);
    assert_int_equal(atomic_load(&rat_live_head(&live)->magic), 0);
    pid_t child = fork(); /* a lock is seen by other processes only */
    if (child == 0) {
        int fd = open(live.path, O_RDWR);
        struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(fd, F_GETLK, &asked) == 0 && asked.l_type == F_WRLCK && asked.l_pid == getppid() ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    rat_live_publish(&live);
    assert_int_equal(atomic_load(&rat_live_head(&live)->magic), RAT_LIVE_MAGIC);
    rat_live_close(&live, false);
    assert_int_equal(count_files(place.live, ""), 0);
}

static void test_only_what_is_reserved_takes_memory(void **state)
{
    (void)state;
    struct rat_live_file live = create();
    struct stat before, after;
    stat(live.path, &before);
    assert_true(before.st_blocks * 512 < 128 << 10);
    uint64_t *slots;
    assert_int_equal(rat_live_reserve_slots(&live, 3, &slots), RAT_OK);
    stat(live.path, &after);
    assert_int_equal((after.st_blocks - before.st_blocks) * 512, 2 * RAT_SLOT_BYTES_MIN);
    memset(slots, 1, 2 * RAT_SLOT_BYTES_MIN);
    assert_int_equal(rat_live_reserve(&live, live.length, 1), RAT_INVALID);
    assert_int_equal(rat_live_reserve(&live, live.length - 1, UINT64_MAX), RAT_INVALID);
    assert_int_equal(rat_live_reserve_slots(&live, RAT_LANES, &slots), RAT_INVALID);
    rat_live_close(&live, false);
}

static void test_this_process_knows_its_own_files(void **state)
{
    (void)state;
    struct rat_live_file live = create();
    char name[64];
    strcpy(name, name_of(&live));
    assert_true(rat_live_is_own(name));
    assert_false(rat_live_is_own("00000000000000000000000000000000.live"));
    pid_t child = fork();
    if (child == 0)
        _exit(rat_live_is_own(name));
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0); /* a child owns nothing of its parent's */
    rat_live_close(&live, false);
    assert_false(rat_live_is_own(name));
}

static void test_a_file_is_kept_for_a_recovery_on_request(void **state)
{
    (void)state;
    struct rat_live_file live = create();
    rat_live_close(&live, true);
    assert_int_equal(count_files(place.live, RAT_LIVE_SUFFIX), 1);
}

static void test_the_mapping_is_not_in_a_child(void **state)
{
    (void)state;
    struct rat_live_file live = create();
    pid_t child = fork();
    if (child == 0) {
        unsigned char resident;
        bool gone = mincore(live.mapping, 4096, &resident) != 0 && errno == ENOMEM;
        rat_live_abandon(&live);
        _exit(gone && fcntl(live.fd, F_GETFD) == -1 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_not_equal(fcntl(live.fd, F_GETFD), -1);
    rat_live_close(&live, false);
}

static void assert_anonymous(const char *dir, const char *why)
{
    struct rat_live_file live;
    struct rat_live_head head = identity();
    assert_int_equal(rat_live_create(&live, dir, &head), RAT_OK);
    assert_string_equal(live.path, "");
    if (strstr(live.why_anonymous, why) == NULL)
        fail_msg("the reason is \"%s\", not \"%s\"", live.why_anonymous, why);
    uint64_t *slots;
    assert_int_equal(rat_live_reserve_slots(&live, 0, &slots), RAT_OK);
    memset(slots, 1, 2 * RAT_SLOT_BYTES_MIN);
    assert_int_equal(rat_live_head(&live)->slot_bytes, RAT_SLOT_BYTES_MIN);
    rat_live_close(&live, false);
}

static void test_no_file_where_it_would_be_on_disk(void **state)
{
    (void)state;
    if (system("stat -f -c %T /tmp | grep -q tmpfs") == 0) {
        print_message("skipped: /tmp is a tmpfs\n");
        skip();
    }
    assert_anonymous(place.out, "is not on tmpfs");
}

static void test_no_file_in_a_directory_open_to_others(void **state)
{
    (void)state;
    assert_int_equal(chmod(place.live, 0755), 0);
    assert_anonymous(place.live, "is open to others");
}

static void test_no_file_behind_a_symbolic_link(void **state)
{
    (void)state;
    char link_path[128];
    snprintf(link_path, sizeof link_path, "%s/link", place.out);
    assert_int_equal(symlink(place.live, link_path), 0);
    assert_anonymous(link_path, "cannot open");
}

static void test_no_file_in_a_directory_of_somebody_else(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("skipped: needs root to give a directory away\n");
        skip();
    }
    assert_int_equal(chown(place.live, 12345, 12345), 0);
    assert_anonymous(place.live, "belongs to user 12345");
    assert_int_equal(chown(place.live, 0, 0), 0);
}

static void test_no_file_where_there_is_no_room(void **state)
{
    (void)state;
    if (mount("none", place.live, "tmpfs", MS_NOSUID | MS_NODEV, "size=32k,mode=0700") != 0) {
        print_message("skipped: cannot mount a tmpfs: %s\n", strerror(errno));
        skip();
    }
    assert_anonymous(place.live, "no room");
    assert_int_equal(count_files(place.live, ""), 0);
    umount(place.live);
}

/* stackprof's default is a signal each millisecond, and the slots take longer than that. */
static void test_a_timer_does_not_keep_the_slots_from_being_reserved(void **state)
{
    (void)state;
    struct rat_live_head head = identity();
    head.slot_bytes = RAT_SLOT_BYTES_DEFAULT;
    struct rat_live_file live;
    interrupted_above = 1 << 20;
    assert_int_equal(rat_live_create(&live, place.live, &head), RAT_OK);
    interrupted_above = 0;
    assert_int_equal(interruptions, 0);
    assert_string_not_equal(live.path, "");
    rat_live_close(&live, false);
}

static void test_what_cannot_be_reserved_whole_takes_no_room(void **state)
{
    (void)state;
    if (mount("none", place.live, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=0700") != 0) {
        print_message("skipped: cannot mount a tmpfs: %s\n", strerror(errno));
        skip();
    }
    struct rat_live_file live = create();
    struct stat before, after;
    stat(live.path, &before);
    assert_int_equal(rat_live_reserve(&live, rat_live_head(&live)->text_at, 6 << 20), RAT_NO_SPACE);
    stat(live.path, &after);
    assert_int_equal(after.st_blocks, before.st_blocks);
    rat_live_close(&live, false);
    umount(place.live);
}

static void test_no_file_past_the_file_size_limit_and_no_signal(void **state)
{
    (void)state;
    struct rlimit before, small = {.rlim_cur = 1 << 20};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    assert_anonymous(place.live, "file size limit");
    setrlimit(RLIMIT_FSIZE, &before);
}

static void test_a_lost_descriptor_is_opened_and_locked_again(void **state)
{
    (void)state;
    struct rat_live_file live = create();
    int fd = live.fd;
    int null = open("/dev/null", O_RDWR);
    int other = dup2(null, fd); /* as after a program that closes everything and opens something */
    close(null);
    assert_int_equal(rat_live_reserve(&live, 0, 4096), RAT_IO); /* not into somebody else's file */
    assert_true(rat_live_hold(&live));
    assert_int_not_equal(live.fd, fd);
    assert_int_equal(rat_live_reserve(&live, 0, 4096), RAT_OK);
    assert_int_not_equal(fcntl(other, F_GETFD), -1);
    close(live.fd);
    unlink(live.path);
    assert_false(rat_live_hold(&live));
    rat_live_close(&live, false);
    close(other);
}

/* ---------------------------------------------------------------- reading */

/* A live file nobody owns, as a dead process left it. */
static void leave_file(char name[64])
{
    struct rat_live_file live = create();
    strcpy(name, name_of(&live));
    rat_live_publish(&live);
    rat_live_close(&live, true);
}

static enum rat_status view(const char *name, struct rat_live_view *out)
{
    int dir = open(place.live, O_RDONLY | O_DIRECTORY);
    enum rat_status status = rat_live_view_open(dir, name, place.out, true, out);
    close(dir);
    return status;
}

static void change(const char *name, off_t at, const void *bytes, size_t length)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", place.live, name);
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, bytes, length, at), length);
    close(fd);
}

static void test_a_left_file_can_be_viewed(void **state)
{
    (void)state;
    char name[64];
    leave_file(name);
    struct rat_live_view seen;
    assert_int_equal(view(name, &seen), RAT_OK);
    assert_string_equal(seen.head->out_dir, place.out);
    assert_false(rat_live_view_is_other_boot(&seen));
    const uint64_t *words;
    assert_int_equal(rat_live_view_slot(&seen, 15, 1, RAT_SLOT_BYTES_MIN / 8, &words), RAT_OK);
    assert_int_equal(rat_live_view_slot(&seen, 15, 1, RAT_SLOT_BYTES_MIN / 8 + 1, &words), RAT_CORRUPT);
    assert_int_equal(rat_live_view_slot(&seen, 16, 0, 1, &words), RAT_CORRUPT);
    rat_live_view_close(&seen);
    int dir = open(place.live, O_RDONLY | O_DIRECTORY);
    assert_int_equal(rat_live_view_open(dir, name, "/elsewhere", true, &seen), RAT_NOT_FOUND);
    assert_int_equal(rat_live_view_open(dir, "nothing", NULL, true, &seen), RAT_NOT_FOUND);
    close(dir);
}

static void test_a_view_refuses_each_field_that_does_not_fit(void **state)
{
    (void)state;
    char name[64];
    leave_file(name);
    struct rat_live_view seen;
    const uint64_t huge = UINT64_MAX - 4095, odd = 12345;
    const struct {
        size_t at, length;
        const void *bytes;
        enum rat_status expected;
    } changes[] = {
#define FIELD(field) offsetof(struct rat_live_head, field)
        {FIELD(magic), 8, &odd, RAT_CORRUPT},         {FIELD(version), 4, &odd, RAT_UNSUPPORTED},
        {FIELD(head_bytes), 4, &odd, RAT_CORRUPT},    {FIELD(total_bytes), 8, &huge, RAT_CORRUPT},
        {FIELD(session_hi), 8, &odd, RAT_CORRUPT},    {FIELD(slot_bytes), 8, &huge, RAT_CORRUPT},
        {FIELD(slot_bytes), 8, &odd, RAT_CORRUPT},    {FIELD(lanes_at), 8, &huge, RAT_CORRUPT},
        {FIELD(slots_at), 8, &huge, RAT_CORRUPT},     {FIELD(clock), 4, &odd, RAT_CORRUPT},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char path[192];
        uint8_t before[8];
        snprintf(path, sizeof path, "%s/%s", place.live, name);
        int fd = open(path, O_RDONLY);
        assert_int_equal(pread(fd, before, 8, (off_t)changes[i].at), 8);
        close(fd);
        change(name, (off_t)changes[i].at, changes[i].bytes, changes[i].length);
        assert_int_equal(view(name, &seen), changes[i].expected);
        change(name, (off_t)changes[i].at, before, 8);
    }
    assert_int_equal(view(name, &seen), RAT_OK);
    rat_live_view_close(&seen);
}

static void test_a_file_being_made_is_left_alone_until_it_is_old(void **state)
{
    (void)state;
    struct rat_live_file live = create();
    char name[64], path[192];
    strcpy(name, name_of(&live));
    strcpy(path, live.path);
    rat_live_close(&live, true); /* never published */
    struct rat_live_view seen;
    assert_int_equal(view(name, &seen), RAT_BUSY);
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_int_equal(view(name, &seen), RAT_TORN);
}

static void test_a_dictionary_of_nonsense_is_refused_or_put_right(void **state)
{
    (void)state;
    struct rat_live_file live = create();
    struct rat_live_head *head = rat_live_head(&live);
    struct rat_dict *dict;
    assert_int_equal(rat_dict_new(live.mapping, head->tables_at, head->text_at, NULL, rat_live_reserve, &live, &dict),
                     RAT_OK);
    struct rat_frame_entry frame = {.owner = 77, .method = rat_dict_name(dict, "x", 1, true), .kind = 99};
    rat_frame_id id = rat_dict_frame(dict, &frame);
    uint64_t tables_at = head->tables_at;
    char name[64];
    strcpy(name, name_of(&live));
    rat_dict_free(dict);
    rat_live_publish(&live);
    rat_live_close(&live, true);

    struct rat_live_view seen;
    struct rat_dict_view words;
    assert_int_equal(view(name, &seen), RAT_OK);
    assert_int_equal(rat_live_view_dict(&seen, &words), RAT_OK);
    assert_int_equal(words.frames[id].owner, 0);
    assert_int_equal(words.frames[id].kind, 0);
    assert_int_equal(words.frames[id].method, frame.method);
    rat_live_view_close(&seen);

    const uint32_t many = UINT32_MAX;
    const uint64_t zero = 0;
    change(name, (off_t)(tables_at + offsetof(struct rat_dict_head, frames)), &many, 4);
    assert_int_equal(view(name, &seen), RAT_OK);
    assert_int_equal(rat_live_view_dict(&seen, &words), RAT_CORRUPT);
    rat_live_view_close(&seen);
    change(name, (off_t)(tables_at + offsetof(struct rat_dict_head, frames)), &id, 4);
    change(name, (off_t)(tables_at + offsetof(struct rat_dict_head, names_at)), &zero, 8); /* over the head */
    assert_int_equal(view(name, &seen), RAT_OK);
    assert_int_equal(rat_live_view_dict(&seen, &words), RAT_CORRUPT);
    rat_live_view_close(&seen);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_environment_is_not_read_for_who_names_a_directory),
        TEST(test_an_identity_has_random_ids_and_names_the_machine),
        TEST(test_a_live_file_is_private_and_locked_before_its_magic_is_there),
        TEST(test_only_what_is_reserved_takes_memory),
        TEST(test_this_process_knows_its_own_files),
        TEST(test_a_file_is_kept_for_a_recovery_on_request),
        TEST(test_the_mapping_is_not_in_a_child),
        TEST(test_no_file_where_it_would_be_on_disk),
        TEST(test_no_file_in_a_directory_open_to_others),
        TEST(test_no_file_behind_a_symbolic_link),
        TEST(test_no_file_in_a_directory_of_somebody_else),
        TEST(test_no_file_where_there_is_no_room),
        TEST(test_a_timer_does_not_keep_the_slots_from_being_reserved),
        TEST(test_what_cannot_be_reserved_whole_takes_no_room),
        TEST(test_no_file_past_the_file_size_limit_and_no_signal),
        TEST(test_a_lost_descriptor_is_opened_and_locked_again),
        TEST(test_a_left_file_can_be_viewed),
        TEST(test_a_view_refuses_each_field_that_does_not_fit),
        TEST(test_a_file_being_made_is_left_alone_until_it_is_old),
        TEST(test_a_dictionary_of_nonsense_is_refused_or_put_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
