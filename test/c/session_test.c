/* A session from opening to stop: what is written when, what a refusing disk does, that the sums are exact. */
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
#include "deliver/outlet.h"
#include "deliver/serializer.h"

#define HALF (RAT_SLOT_BYTES_MIN / 8 / 2) /* words */

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
    rat_file_ops = &rat_file_ops_libc;
    rat_fence_test_errno = 0;
    rat_test_point = NULL;
    remove_place(&place);
    return 0;
}

static struct recorder begin(const struct rat_session_options *options)
{
    struct recorder recorder;
    open_lane(&recorder, open_session(options), RAT_LANE_MAIN);
    return recorder;
}

static struct rat_session_stats stats(struct rat_session *session)
{
    struct rat_session_stats out;
    rat_session_stats(session, &out);
    return out;
}

/* All in published segments, the sums exact, nothing left behind. */
static struct tally assert_stopped(struct recorder *recorder)
{
    char path[4096];
    assert_int_equal(rat_session_stop(recorder->session, path, sizeof path), RAT_OK);
    assert_int_equal(access(path, R_OK), 0);
    assert_int_equal(count_files(place.live, ""), 0);
    assert_int_equal(count_files(place.out, RAT_SEGMENT_PART), 0);
    struct tally tally = read_back(place.out);
    const struct lane_tally *lane = &tally.lane[recorder->lane];
    assert_int_equal(lane->decoded + lane->lost, recorder->stored);
    assert_int_equal(lane->closed.stored, recorder->stored);
    assert_int_equal(sum_drops(&lane->closed), recorder->dropped);
    assert_int_equal(tally.openings, tally.files);
    assert_int_equal(tally.closings, tally.files);
    assert_false(tally.any_drops_off);
    return tally;
}

/* ---------------------------------------------------------------- where it cannot begin */

/* With each size of the filesystem something else is the first that finds no room. */
static void test_a_session_without_room_for_its_names_leaves_the_hosts_descriptors_alone(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    int null = open("/dev/null", O_RDWR), before = dup(STDIN_FILENO), refused = 0;
    assert_int_equal(dup2(null, STDIN_FILENO), STDIN_FILENO); /* there is one, whoever runs this */
    for (int kib = 64; kib <= 1024; kib += 16) {
        char size[64];
        snprintf(size, sizeof size, "size=%dk,mode=0700", kib);
        if (mount("none", place.live, "tmpfs", MS_NOSUID | MS_NODEV, size) != 0) {
            print_message("skipped: cannot mount a tmpfs: %s\n", strerror(errno));
            skip();
        }
        struct rat_session *session;
        if (rat_session_open(&options, &session, NULL, 0) == RAT_OK)
            assert_int_equal(rat_session_stop(session, NULL, 0), RAT_OK);
        else
            refused++;
        assert_int_not_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
        assert_int_equal(umount(place.live), 0);
    }
    assert_true(refused > 0);
    dup2(before, STDIN_FILENO);
    close(before);
    close(null);
}

/* ---------------------------------------------------------------- what is written */

static void test_stop_writes_everything(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    record_many(&recorder, 100);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.files, 1);
    assert_int_equal(tally.lane[1].decoded, 100);
    assert_int_equal(tally.lane[1].chunks, 1);
    assert_int_equal(tally.lane[1].reasons[0], RAT_REASON_STOP);
}

static void test_a_session_without_events_is_one_valid_segment(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.files, 1);
    assert_int_equal(tally.lane[1].chunks, 0);
}

static void test_a_session_without_a_lane_is_one_valid_segment(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = {.session = open_session(&options), .lane = 1};
    assert_int_equal(assert_stopped(&recorder).files, 1);
}

static void test_an_idle_session_writes_nothing(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    options.period_ns = 2 * MILLISECOND;
    struct recorder recorder = begin(&options);
    record_many(&recorder, 10);
    WAIT_FOR(stats(recorder.session).written_events == 10);
    struct rat_session_stats before = stats(recorder.session);
    nanosleep(&(struct timespec){.tv_nsec = 30 * 1000000}, NULL); /* some 15 periods */
    struct rat_session_stats after = stats(recorder.session);
    assert_int_equal(after.chunks, before.chunks);
    assert_int_equal(after.flips, before.flips);
    assert_int_equal(after.bytes, before.bytes);
    assert_int_equal(assert_stopped(&recorder).lane[1].chunks, 1);
}

static void test_a_period_writes_what_there_is(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    options.period_ns = 5 * MILLISECOND;
    struct recorder recorder = begin(&options);
    for (int i = 1; i <= 3; i++) {
        record_many(&recorder, 10);
        WAIT_FOR(stats(recorder.session).written_events == (uint64_t)i * 10);
    }
    struct tally tally = assert_stopped(&recorder);
    assert_true(tally.lane[1].chunks >= 3);
    assert_int_equal(tally.lane[1].reasons[0], RAT_REASON_PERIOD);
}

static void test_a_slot_more_than_half_full_is_written_before_its_period(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    record_many(&recorder, HALF);
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
    assert_int_equal(stats(recorder.session).written_events, 0);
    record(&recorder);
    WAIT_FOR(stats(recorder.session).written_events == HALF + 1);
    assert_int_equal(assert_stopped(&recorder).lane[1].reasons[0], RAT_REASON_HALF_FULL);
}

static void test_a_flush_has_it_in_the_file(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    for (int i = 1; i <= 20; i++) {
        assert_int_equal(record_and_flush(&recorder, 50), RAT_OK);
        assert_int_equal(stats(recorder.session).written_events, i * 50);
    }
    struct rat_segment_reader *reader;
    struct rat_read read;
    uint64_t events = 0;
    assert_int_equal(rat_segment_open(stats(recorder.session).part, &reader), RAT_OK);
    for (rat_segment_next(reader, &read); read.kind == RAT_READ_CHUNK; rat_segment_next(reader, &read))
        events += read.header.events;
    assert_int_equal(read.kind, RAT_READ_END);
    rat_segment_reader_free(reader);
    assert_int_equal(events, 1000);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.lane[1].chunks, 20);
    assert_int_equal(tally.lane[1].reasons[0], RAT_REASON_FLUSH);
}

static void test_full_slots_drop_and_the_sums_stay_exact(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    record_many(&recorder, 200000);
    assert_true(recorder.dropped > 0);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.lane[1].closed.drop[RAT_DROP_SLOT_FULL], recorder.dropped);
    assert_int_equal(tally.lane[1].lost, 0);
}

static void test_two_lanes_and_the_gc_lane_keep_to_themselves(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    options.period_ns = 2 * MILLISECOND;
    struct recorder recorders[3];
    recorders[0] = begin(&options);
    open_lane(&recorders[1], recorders[0].session, RAT_LANE_RACTOR);
    open_lane(&recorders[2], recorders[0].session, RAT_LANE_GC);
    assert_int_equal(recorders[1].lane, 3);
    assert_int_equal(recorders[2].lane, 2);
    for (int i = 0; i < 5000; i++)
        record_many(&recorders[i % 3], (uint64_t)i % 7);
    struct tally tally = assert_stopped(&recorders[0]);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(tally.lane[recorders[i].lane].decoded, recorders[i].stored);
        assert_int_equal(sum_drops(&tally.lane[recorders[i].lane].closed), recorders[i].dropped);
    }
}

static void test_lanes_run_out(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    struct rat_lane_producer producer;
    uint32_t number;
    assert_int_equal(rat_session_open_lane(recorder.session, RAT_LANE_MAIN, &producer, &number), RAT_EXISTS);
    for (uint32_t i = RAT_LANE_RACTOR; i < RAT_LANES; i++) {
        assert_int_equal(rat_session_open_lane(recorder.session, RAT_LANE_RACTOR, &producer, &number), RAT_OK);
        assert_int_equal(number, i + 1);
    }
    assert_int_equal(rat_session_open_lane(recorder.session, RAT_LANE_RACTOR, &producer, &number), RAT_TOO_BIG);
    assert_stopped(&recorder);
}

/* ---------------------------------------------------------------- names */

static void record_call(struct recorder *r, rat_frame_id frame)
{
    uint64_t now = rat_clock_ticks(r->clock);
    while (!rat_lane_put(&r->producer, rat_event_word(RAT_EVENT_CALL, frame), now, r->producer.strong)) {
        enum rat_drop_cause cause;
        assert_int_not_equal(rat_lane_turn(&r->producer, now, &cause), RAT_TURN_NONE);
    }
    r->stored++;
}

static rat_frame_id make_frame(struct recorder *r, const char *name)
{
    struct rat_dict *dict = rat_session_dict(r->session);
    struct rat_frame_entry frame = {
        .method = rat_dict_name(dict, name, strlen(name), true), .kind = RAT_FRAME_INSTANCE};
    return rat_dict_frame(dict, &frame);
}

/* Every call's frame and its name must stand in the same segment, at or before the call, closing chunks not counted. */
static void assert_names_complete(void)
{
    char command[256];
    snprintf(command, sizeof command, "ls %s/*" RAT_SEGMENT_SUFFIX, place.out);
    FILE *list = popen(command, "r");
    char path[512];
    struct rat_decoder *decoder;
    assert_int_equal(rat_decoder_new(0, &decoder), RAT_OK);
    while (fgets(path, sizeof path, list) != NULL) {
        path[strcspn(path, "\n")] = '\0';
        uint32_t method_of[64] = {0};
        bool named[64] = {false};
        struct rat_segment_reader *reader;
        struct rat_read read;
        assert_int_equal(rat_segment_open(path, &reader), RAT_OK);
        for (rat_segment_next(reader, &read); read.kind == RAT_READ_CHUNK; rat_segment_next(reader, &read)) {
            const struct rat_body *body;
            if (read.header.lane == 0)
                continue;
            assert_int_equal(rat_decode_body(decoder, &read.header, &body), RAT_OK);
            for (size_t i = 0; i < body->frame_count; i++)
                method_of[body->frames[i].id] = body->frames[i].entry.method;
            for (size_t i = 0; i < body->name_count; i++)
                named[body->names[i].id] = true;
            for (size_t i = 0, id = 0; i < body->events; i++) {
                if (body->kind[i] == RAT_EVENT_CALL)
                    assert_true(named[method_of[body->id[id]]] && method_of[body->id[id]] != 0);
                id += body->kind[i] == RAT_EVENT_CALL || body->kind[i] == RAT_EVENT_UNWIND;
            }
        }
        rat_segment_reader_free(reader);
    }
    rat_decoder_free(decoder);
    pclose(list);
}

static void test_each_segment_carries_the_names_it_uses(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    options.segment_bytes = 700;
    struct recorder recorder = begin(&options);
    char name[32];
    rat_frame_id frames[20];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "method_%d", i);
        frames[i] = make_frame(&recorder, name);
        record_call(&recorder, frames[i]);
        record_call(&recorder, frames[i / 2]);
        assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    }
    assert_int_equal(rat_session_stop(recorder.session, NULL, 0), RAT_OK);
    assert_in_range(count_files(place.out, RAT_SEGMENT_SUFFIX), 2, 20);
    assert_names_complete();
}

/* ---------------------------------------------------------------- segments */

static void test_segments_rotate_by_size(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    options.segment_bytes = 1;
    struct recorder recorder = begin(&options);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(record_and_flush(&recorder, 50), RAT_OK);
    }
    assert_int_equal(stats(recorder.session).segments, 10);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.files, 10);
    assert_int_equal(tally.next_session_sequence, 20);
}

static void test_segments_rotate_by_age(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    options.segment_age_ns = 20 * MILLISECOND;
    struct recorder recorder = begin(&options);
    assert_int_equal(record_and_flush(&recorder, 10), RAT_OK);
    record_many(&recorder, 10); /* goes along, though its period is not over */
    WAIT_FOR(stats(recorder.session).segments == 1);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.files, 1);
    assert_int_equal(tally.lane[1].reasons[1], RAT_REASON_ROTATE);
}

static void test_names_are_safe(void **state)
{
    (void)state;
    struct rat_live_head head = {
        .service = "../my app/é", .host = "", .pid = 7, .session_hi = UINT64_C(0xABCDEF0123456789)};
    head.start.realtime_ns = UINT64_C(1796075999) * 1000000000;
    char name[RAT_SEGMENT_NAME_MAX];
    rat_outlet_name(&head, 12, name);
    assert_string_equal(name, "_._my_app___-unknown-20261130T215959Z-7-abcdef01-000012.ratrace");
    head.service[0] = '\0';
    rat_outlet_name(&head, 1, name);
    assert_string_equal(name, "ruby-unknown-20261130T215959Z-7-abcdef01-000001.ratrace");
    memset(head.service, 'x', sizeof head.service - 1);
    memset(head.host, 'y', sizeof head.host - 1);
    head.pid = UINT32_MAX;
    rat_outlet_name(&head, UINT32_MAX, name);
    assert_true(strlen(name) + strlen(RAT_SEGMENT_PART) <= 255);
    assert_non_null(strstr(name, "-4294967295.ratrace"));
}

static void test_opening_tells_what_is_wrong(void **state)
{
    (void)state;
    struct rat_session *session;
    char why[256];
    struct rat_session_options options = small_options(&place);
    options.out_dir = "/proc/nowhere";
    assert_int_not_equal(rat_session_open(&options, &session, why, sizeof why), RAT_OK);
    assert_non_null(strstr(why, "/proc/nowhere"));
    options = small_options(&place);
    options.slot_bytes = 5000;
    assert_int_equal(rat_session_open(&options, &session, why, sizeof why), RAT_INVALID);
    assert_non_null(strstr(why, "multiple of 4096"));
    assert_int_equal(count_files(place.live, ""), 0);
}

static void test_directories_are_made(void **state)
{
    (void)state;
    char deep[256];
    snprintf(deep, sizeof deep, "%s/a/b/c", place.out);
    struct rat_session_options options = small_options(&place);
    options.out_dir = deep;
    struct recorder recorder = begin(&options);
    record(&recorder);
    char path[4096];
    assert_int_equal(rat_session_stop(recorder.session, path, sizeof path), RAT_OK);
    assert_memory_equal(path, deep, strlen(deep));
}

/* ---------------------------------------------------------------- a disk that refuses */

static int refusal, refuse_after; /* errno of the next pwrites; how many bytes go in before */

static ssize_t refusing_pwrite(int fd, const void *bytes, size_t length, off_t at)
{
    if (refusal == 0)
        return pwrite(fd, bytes, length, at);
    if (refuse_after > 0) {
        size_t some = length < (size_t)refuse_after ? length : (size_t)refuse_after;
        refuse_after = 0;
        return pwrite(fd, bytes, some, at);
    }
    errno = refusal;
    return -1;
}

static int refusing_openat(int dir, const char *name, int flags, mode_t mode)
{
    if (refusal != 0 && (flags & O_CREAT)) {
        errno = refusal;
        return -1;
    }
    return openat(dir, name, flags, mode);
}

static struct rat_file_ops refusing;

static void refuse(int error)
{
    refusing = rat_file_ops_libc;
    refusing.pwrite = refusing_pwrite;
    refusing.openat = refusing_openat;
    refusal = error;
    refuse_after = 0;
    rat_file_ops = &refusing;
}

static void test_nothing_is_lost_while_a_full_disk_is_waited_out(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    options.period_ns = 2 * MILLISECOND;
    refuse(0);
    struct recorder recorder = begin(&options);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    refusal = ENOSPC;
    assert_int_equal(record_and_flush(&recorder, 100), RAT_NO_SPACE);
    assert_int_equal(stats(recorder.session).last_failure, RAT_NO_SPACE);
    assert_int_equal(record_and_flush(&recorder, 10000), RAT_NO_SPACE); /* the other slot fills up, then it drops */
    assert_true(stats(recorder.session).failed_writes >= 2);
    assert_int_equal(stats(recorder.session).written_events, 100);
    refusal = 0;
    assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    assert_int_equal(stats(recorder.session).written_events, recorder.stored);
    assert_int_equal(stats(recorder.session).last_failure, RAT_OK);
    record_many(&recorder, 100);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.lane[1].lost, 0);
    assert_true(tally.lane[1].closed.drop[RAT_DROP_SLOT_FULL] > 0);
}

static void test_a_write_that_fails_half_way_leaves_no_trace(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    refuse(0);
    struct recorder recorder = begin(&options);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    for (int bytes = 1; bytes < 200; bytes += 13) {
        record_many(&recorder, 10);
        refusal = EIO;
        refuse_after = bytes;
        assert_int_equal(rat_session_flush(recorder.session), RAT_IO);
        refusal = 0;
        assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    }
    assert_int_equal(assert_stopped(&recorder).lane[1].lost, 0);
}

static void test_names_survive_a_write_that_had_to_be_repeated(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    refuse(0);
    struct recorder recorder = begin(&options);
    record_call(&recorder, make_frame(&recorder, "first"));
    assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    record_call(&recorder, make_frame(&recorder, "second"));
    refusal = EIO;
    assert_int_equal(rat_session_flush(recorder.session), RAT_IO);
    record_call(&recorder, make_frame(&recorder, "third"));
    assert_int_equal(rat_session_flush(recorder.session), RAT_IO);
    refusal = 0;
    assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    record_call(&recorder, make_frame(&recorder, "fourth"));
    assert_stopped(&recorder);
    assert_names_complete();
}

static void test_a_chunk_encoded_for_a_lost_segment_is_encoded_anew(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    refuse(0);
    struct recorder recorder = begin(&options);
    rat_frame_id first = make_frame(&recorder, "first");
    record_call(&recorder, first);
    assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    record_call(&recorder, first);
    refusal = EIO;
    assert_int_equal(rat_session_flush(recorder.session), RAT_IO);
    assert_int_equal(unlink(stats(recorder.session).part), 0);
    refusal = 0;
    assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    assert_int_equal(assert_stopped(&recorder).lane[1].decoded, 1);
    assert_names_complete();
}

static void test_the_chunk_that_was_refused_is_the_next_to_be_written(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    refuse(0);
    struct recorder recorders[2];
    recorders[0] = begin(&options);
    open_lane(&recorders[1], recorders[0].session, RAT_LANE_RACTOR);
    assert_int_equal(record_and_flush(&recorders[0], 10), RAT_OK);
    record_many(&recorders[1], 10);
    refusal = EIO;
    assert_int_equal(rat_session_flush(recorders[0].session), RAT_IO);
    assert_int_equal(record_and_flush(&recorders[0], 10), RAT_IO);
    refusal = 0;
    assert_int_equal(rat_session_flush(recorders[0].session), RAT_OK);
    assert_int_equal(assert_stopped(&recorders[0]).lane[3].decoded, 10);
}

static void test_a_refusal_at_any_step_of_a_rotation_loses_nothing(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    options.segment_bytes = 1;
    refuse(0);
    struct recorder recorders[2];
    recorders[0] = begin(&options);
    open_lane(&recorders[1], recorders[0].session, RAT_LANE_RACTOR);
    for (int i = 0; i < 20; i++) {
        record_many(&recorders[0], 10);
        record_many(&recorders[1], 10);
        refusal = i % 2 == 0 ? ENOSPC : EDQUOT;
        assert_int_equal(rat_session_flush(recorders[0].session), RAT_NO_SPACE);
        record_many(&recorders[0], 10);
        refusal = 0;
        assert_int_equal(rat_session_flush(recorders[0].session), RAT_OK);
    }
    struct tally tally = assert_stopped(&recorders[0]);
    assert_int_equal(tally.lane[1].lost, 0);
    assert_int_equal(tally.lane[3].decoded, recorders[1].stored);
}

static void test_a_small_disk_fills_up_and_is_cleared(void **state)
{
    (void)state;
    if (mount("none", place.out, "tmpfs", MS_NOSUID | MS_NODEV, "size=256k") != 0) {
        print_message("skipped: cannot mount a tmpfs: %s\n", strerror(errno));
        skip();
    }
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    char filler[128];
    snprintf(filler, sizeof filler, "%s/filler", place.out);
    int fd = open(filler, O_CREAT | O_WRONLY, 0600);
    static const char zeros[4096];
    while (write(fd, zeros, sizeof zeros) > 0)
        ;
    enum rat_status status = RAT_OK;
    for (int i = 0; i < 200 && status == RAT_OK; i++) { /* until its last page is full, too */
        record_many(&recorder, 100);
        status = rat_session_flush(recorder.session);
    }
    assert_int_equal(status, RAT_NO_SPACE);
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
    assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    assert_int_equal(assert_stopped(&recorder).lane[1].lost, 0);
    assert_int_equal(umount(place.out), 0);
}

static void test_a_disk_that_refuses_at_stop_leaves_it_to_recovery(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    refuse(0);
    struct recorder recorder = begin(&options);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    record_many(&recorder, 100);
    refusal = ENOSPC;
    assert_int_equal(rat_session_stop(recorder.session, NULL, 0), RAT_NO_SPACE);
    assert_int_equal(count_files(place.live, RAT_LIVE_SUFFIX), 1);
    refusal = 0;
    struct rat_recovery found;
    assert_int_equal(rat_recover(place.out, place.live, NULL, NULL, &found), RAT_OK);
    assert_int_equal(found.segments, 1);
    struct tally tally = read_back(place.out);
    assert_int_equal(tally.lane[1].decoded, 200);
    assert_int_equal(tally.crashes, 1);
}

static pthread_mutex_t disk = PTHREAD_MUTEX_INITIALIZER;

static ssize_t hanging_pwrite(int fd, const void *bytes, size_t length, off_t at)
{
    pthread_mutex_lock(&disk);
    pthread_mutex_unlock(&disk);
    return pwrite(fd, bytes, length, at);
}

static _Atomic bool published;

static void note_published(const char *point)
{
    if (strcmp(point, "outlet.published") == 0)
        published = true;
}

/* The thread that waits for the disk is left behind, and may find to its end later. Nobody can join it: at the point that
 * is waited for, it has looked for the last time at what the tear-down changes. */
static void test_a_disk_that_does_not_answer_is_not_waited_for(void **state)
{
    (void)state;
    static struct recorder left;
    struct rat_session_options options = small_options(&place);
    uint64_t before = rat_serializer_stop_ns;
    refuse(0);
    refusing.pwrite = hanging_pwrite;
    rat_test_point = note_published;
    pthread_mutex_lock(&disk);
    left = begin(&options);
    record_many(&left, 100);
    rat_serializer_stop_ns = 50 * MILLISECOND;
    char path[4096];
    assert_int_equal(rat_session_stop(left.session, path, sizeof path), RAT_LATE);
    rat_serializer_stop_ns = before;
    assert_string_equal(path, "");
    assert_int_equal(count_files(place.live, RAT_LIVE_SUFFIX), 1);
    assert_int_equal(count_files(place.out, RAT_SEGMENT_SUFFIX), 0);
    pthread_mutex_unlock(&disk);
    WAIT_FOR(published);
    assert_int_equal(count_files(place.out, RAT_SEGMENT_SUFFIX), 1);
    assert_int_equal(read_back(place.out).lane[1].decoded, 100);
}

static void test_a_deleted_directory_is_made_again(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    remove_tree(place.out);
    assert_int_equal(record_and_flush(&recorder, 50), RAT_OK);
    record_many(&recorder, 50);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.files, 1);
    assert_int_equal(tally.lane[1].decoded, 100);
    assert_int_equal(tally.lane[1].lost, 100); /* they were in the file that was deleted */
}

static void test_a_part_file_deleted_before_its_closing_is_only_a_gap(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    assert_int_equal(unlink(stats(recorder.session).part), 0);
    assert_int_equal(rat_session_stop(recorder.session, NULL, 0), RAT_OK);
    struct tally tally = read_back(place.out);
    assert_int_equal(tally.files, 1);
    assert_int_equal(tally.closings, 1);
}

static int descriptor_of(const char *path)
{
    char target[4096];
    for (int fd = 3; fd < 256; fd++) {
        char link_path[64];
        snprintf(link_path, sizeof link_path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link_path, target, sizeof target - 1);
        if (length > 0 && (target[length] = '\0', strcmp(target, path) == 0))
            return fd;
    }
    fail_msg("%s is not open", path);
    return -1;
}

static void test_a_host_that_closes_all_descriptors_gets_none_of_our_bytes(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    char victim[128];
    int found = descriptor_of(stats(recorder.session).part);
    snprintf(victim, sizeof victim, "%s/victim", place.live);
    int own = open(victim, O_CREAT | O_RDWR, 0600);
    dup2(own, found);
    close(own);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    struct stat file;
    assert_int_equal(fstat(found, &file), 0);
    assert_int_equal(file.st_size, 0);
    close(found);
    unlink(victim);
    assert_int_equal(rat_session_stop(recorder.session, NULL, 0), RAT_OK);
    assert_int_equal(count_files(place.out, RAT_SEGMENT_PART), 1); /* the first one, for a recovery after our end */
    assert_int_equal(read_back(place.out).lane[1].decoded, 100);
}

static void test_a_host_may_close_descriptors_again_and_again(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    for (int times = 0; times < 80; times++) { /* more than a process has part files */
        record(&recorder);
        assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
        close(descriptor_of(stats(recorder.session).part));
    }
    assert_int_equal(rat_session_stop(recorder.session, NULL, 0), RAT_OK);
}

static void test_without_tmpfs_the_memory_is_anonymous(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    assert_int_equal(chmod(place.live, 0755), 0);
    struct recorder recorder = begin(&options);
    assert_false(stats(recorder.session).live_file_mapped);
    record_many(&recorder, 1000);
    assert_int_equal(assert_stopped(&recorder).lane[1].decoded, recorder.stored);
}

/* ---------------------------------------------------------------- things that break */

static void test_a_failed_fence_disables_the_lane_and_its_events_are_counted_lost(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    options.fence = RAT_FENCE_MEMBARRIER;
    struct recorder recorder = begin(&options);
    if (stats(recorder.session).fence != RAT_FENCE_MEMBARRIER) {
        assert_stopped(&recorder);
        print_message("skipped: no membarrier here\n");
        skip();
    }
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    record_many(&recorder, 50);
    rat_fence_test_errno = EPERM;
    (void)!rat_session_flush(recorder.session);
    assert_int_equal(stats(recorder.session).disabled_lanes, 1);
    rat_fence_test_errno = 0;
    record_many(&recorder, 30);
    assert_int_equal(recorder.dropped, 30);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.lane[1].decoded, 100);
    assert_int_equal(tally.lane[1].lost, 50);
    assert_int_equal(tally.lane[1].labelled[RAT_LOST_FENCE_FAILED], 50);
    assert_int_equal(tally.lane[1].closed.drop[RAT_DROP_LANE_DISABLED], 30);
}

static void test_words_that_do_not_add_up_are_a_gap_with_a_label(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    assert_int_equal(record_and_flush(&recorder, 100), RAT_OK);
    record_call(&recorder, 9999); /* of a frame nobody has named */
    assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    assert_int_equal(stats(recorder.session).lost_events, 1);
    record_many(&recorder, 10);
    struct tally tally = assert_stopped(&recorder);
    assert_int_equal(tally.lane[1].lost, recorder.stored - 100);
    assert_int_equal(tally.lane[1].labelled[RAT_LOST_INVARIANT], recorder.stored - 100);
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int inside;
static __thread bool is_producer;

static void wait_inside(const char *name)
{
    if (!is_producer || strcmp(name, "lane.entered") != 0)
        return;
    atomic_store(&inside, 1);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
}

static void *produce_one(void *argument)
{
    is_producer = true;
    record(argument);
    return NULL;
}

static void *flush_session(void *argument)
{
    return (void *)(intptr_t)rat_session_flush(argument);
}

static void test_a_flush_waits_for_a_producer_that_sits_inside(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    record_many(&recorder, 10);
    pthread_t producer;
    inside = 0;
    rat_test_point = wait_inside;
    pthread_mutex_lock(&gate);
    pthread_create(&producer, NULL, produce_one, &recorder);
    WAIT_FOR(atomic_load(&inside));
    pthread_t flusher;
    pthread_create(&flusher, NULL, flush_session, recorder.session);
    nanosleep(&(struct timespec){.tv_nsec = 30 * 1000000}, NULL);
    pthread_mutex_unlock(&gate);
    void *status;
    pthread_join(flusher, &status);
    pthread_join(producer, NULL);
    rat_test_point = NULL;
    assert_int_equal((int)(intptr_t)status, RAT_OK);
    struct rat_session_stats seen = stats(recorder.session);
    assert_int_equal(seen.giveups, 1);
    assert_int_equal(seen.written_events, 11);
    assert_int_equal(assert_stopped(&recorder).lane[1].decoded, 11);
}

/* Forks while another thread works are test/crash/fork_loop.c's: ASan's allocator does not survive them. */
static void test_a_child_abandons_and_the_parent_goes_on(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: TSan forbids threads in a forked child\n");
    skip();
#endif
    struct rat_session_options options = small_options(&place);
    int threads = count_files("/proc/self/task", "");
    struct recorder recorder = begin(&options);
    WAIT_FOR(count_files("/proc/self/task", "") == threads + 1); /* the recovery has ended: it allocates */
    for (int i = 0; i < 5; i++) {
        assert_int_equal(record_and_flush(&recorder, 500), RAT_OK);
        pid_t child = fork();
        if (child == 0) {
            rat_session_abandon(recorder.session);
            struct place other = make_place();
            struct rat_session_options child_options = small_options(&other);
            struct recorder mine = begin(&child_options);
            record_many(&mine, 10);
            bool right = rat_session_stop(mine.session, NULL, 0) == RAT_OK && read_back(other.out).lane[1].decoded == 10;
            remove_place(&other);
            _exit(right ? 0 : 1);
        }
        record_many(&recorder, 500);
        int status;
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(assert_stopped(&recorder).lane[1].lost, 0);
}

static void test_stats_agree_with_the_file(void **state)
{
    (void)state;
    struct rat_session_options options = small_options(&place);
    struct recorder recorder = begin(&options);
    record_many(&recorder, 1000);
    assert_int_equal(stats(recorder.session).stored, 1000);
    record_many(&recorder, 50000);
    struct rat_session_stats seen = stats(recorder.session);
    assert_int_equal(seen.stored, recorder.stored);
    assert_int_equal(seen.drop[RAT_DROP_SLOT_FULL], recorder.dropped);
    assert_int_equal(rat_session_flush(recorder.session), RAT_OK);
    seen = stats(recorder.session);
    assert_int_equal(seen.written_events, recorder.stored);
    struct stat file;
    assert_int_equal(stat(seen.part, &file), 0);
    assert_int_equal(seen.bytes, file.st_size);
    assert_int_equal(seen.lanes, 1);
    assert_true(seen.live_file_mapped);
    assert_stopped(&recorder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_session_without_room_for_its_names_leaves_the_hosts_descriptors_alone),
        TEST(test_stop_writes_everything),
        TEST(test_a_session_without_events_is_one_valid_segment),
        TEST(test_a_session_without_a_lane_is_one_valid_segment),
        TEST(test_an_idle_session_writes_nothing),
        TEST(test_a_period_writes_what_there_is),
        TEST(test_a_slot_more_than_half_full_is_written_before_its_period),
        TEST(test_a_flush_has_it_in_the_file),
        TEST(test_full_slots_drop_and_the_sums_stay_exact),
        TEST(test_two_lanes_and_the_gc_lane_keep_to_themselves),
        TEST(test_lanes_run_out),
        TEST(test_each_segment_carries_the_names_it_uses),
        TEST(test_segments_rotate_by_size),
        TEST(test_segments_rotate_by_age),
        TEST(test_names_are_safe),
        TEST(test_opening_tells_what_is_wrong),
        TEST(test_directories_are_made),
        TEST(test_nothing_is_lost_while_a_full_disk_is_waited_out),
        TEST(test_a_write_that_fails_half_way_leaves_no_trace),
        TEST(test_names_survive_a_write_that_had_to_be_repeated),
        TEST(test_a_chunk_encoded_for_a_lost_segment_is_encoded_anew),
        TEST(test_the_chunk_that_was_refused_is_the_next_to_be_written),
        TEST(test_a_refusal_at_any_step_of_a_rotation_loses_nothing),
        TEST(test_a_small_disk_fills_up_and_is_cleared),
        TEST(test_a_disk_that_refuses_at_stop_leaves_it_to_recovery),
        TEST(test_a_disk_that_does_not_answer_is_not_waited_for),
        TEST(test_a_deleted_directory_is_made_again),
        TEST(test_a_part_file_deleted_before_its_closing_is_only_a_gap),
        TEST(test_a_host_that_closes_all_descriptors_gets_none_of_our_bytes),
        TEST(test_a_host_may_close_descriptors_again_and_again),
        TEST(test_without_tmpfs_the_memory_is_anonymous),
        TEST(test_a_failed_fence_disables_the_lane_and_its_events_are_counted_lost),
        TEST(test_words_that_do_not_add_up_are_a_gap_with_a_label),
        TEST(test_a_flush_waits_for_a_producer_that_sits_inside),
        TEST(test_a_child_abandons_and_the_parent_goes_on),
        TEST(test_stats_agree_with_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
