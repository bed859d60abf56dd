#include "deliver/outlet.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/testpoint.h"
#include "base/utc.h"
#include "wire/own_files.h"

#define NAME_TRIES 16 /* segment numbers whose file exists already */

enum rat_status rat_outlet_init(struct rat_outlet *outlet, struct rat_live_head *head)
{
    *outlet = (struct rat_outlet){.head = head, .writer.fd = -1};
    rat_buffer_init(&outlet->chunk, RAT_CHUNK_MAX + 16);
    return rat_encoder_new((uint32_t)(head->slot_bytes / sizeof(uint64_t)), 1, &outlet->encoder);
}

void rat_outlet_free(struct rat_outlet *outlet)
{
    if (outlet->writer.fd >= 0)
        rat_segment_close(&outlet->writer);
    rat_encoder_free(outlet->encoder);
    rat_buffer_free(&outlet->chunk);
}

/* ---------------------------------------------------------------- names */

static void put_safely(char *to, const char *from, const char *instead, size_t length)
{
    size_t i = 0;
    if (from[0] == '\0')
        from = instead;
    for (; i < length && from[i] != '\0'; i++) {
        char c = from[i];
        bool safe = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
            (i > 0 && (c == '-' || c == '.'));
        to[i] = safe ? c : '_';
    }
    to[i] = '\0';
}

void rat_outlet_name(const struct rat_live_head *head, uint32_t segment, char out[RAT_SEGMENT_NAME_MAX])
{
    char service[sizeof head->service], host[sizeof head->host], when[RAT_UTC_BASIC];
    put_safely(service, head->service, "ruby", sizeof service - 1);
    put_safely(host, head->host, "unknown", sizeof host - 1);
    rat_utc_basic(head->start.realtime_ns / 1000000000u, when);
    snprintf(out, RAT_SEGMENT_NAME_MAX, "%s-%s-%s-%" PRIu32 "-%08" PRIx32 "-%06" PRIu32 RAT_SEGMENT_SUFFIX, service,
             host, when, head->pid, (uint32_t)(head->session_hi >> 32), segment);
}

/* ---------------------------------------------------------------- directory */

/* Make it, and what is missing above it. */
static enum rat_status make_dir(const char *dir)
{
    char path[RAT_OUT_DIR_MAX];
    size_t length = strlen(dir);
    if (length >= sizeof path)
        return RAT_TOO_BIG;
    for (size_t i = 1; i <= length; i++) {
        if (dir[i] != '/' && dir[i] != '\0')
            continue;
        memcpy(path, dir, i);
        path[i] = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST && dir[i] == '\0')
            return rat_status_from_errno(errno);
    }
    return RAT_OK;
}

enum rat_status rat_outlet_prepare_dir(const char *dir, char out[RAT_OUT_DIR_MAX], char *why, size_t why_length)
{
    char real[PATH_MAX];
    if (dir == NULL || dir[0] == '\0') {
        snprintf(why, why_length, "no output directory was given");
        return RAT_INVALID;
    }
    struct stat link;
    if (lstat(dir, &link) == 0 && S_ISLNK(link.st_mode) && link.st_uid != geteuid() && link.st_uid != 0) {
        snprintf(why, why_length, "the output directory %s is a link of user %u's; give a directory of your own", dir,
                 (unsigned)link.st_uid);
        return RAT_ACCESS;
    }
    enum rat_status status = make_dir(dir);
    if (status == RAT_OK && realpath(dir, real) == NULL)
        status = rat_status_from_errno(errno);
    struct stat found;
    if (status == RAT_OK && (stat(real, &found) != 0 || !S_ISDIR(found.st_mode)))
        status = RAT_NOT_FOUND;
    if (status == RAT_OK && access(real, W_OK | X_OK) != 0)
        status = rat_status_from_errno(errno);
    if (status == RAT_OK && strlen(real) >= RAT_OUT_DIR_MAX)
        status = RAT_TOO_BIG;
    if (status != RAT_OK) {
        snprintf(why, why_length,
                 "cannot write to the output directory %s: %s; give one this process may create files in", dir,
                 rat_status_text(status));
        return status;
    }
    strcpy(out, real);
    return RAT_OK;
}

/* ---------------------------------------------------------------- one segment */

static uint32_t segment_number(const struct rat_outlet *outlet)
{
    return atomic_load_explicit(&outlet->head->segment, memory_order_relaxed); /* we are its only writer */
}

static void next_number(struct rat_outlet *outlet)
{
    outlet->head->part[0] = '\0';
    atomic_store_explicit(&outlet->head->segment, segment_number(outlet) + 1, memory_order_release);
}

static void drop_kept(struct rat_outlet *outlet)
{
    rat_encoder_settle(outlet->encoder, false);
    outlet->kept = false;
    outlet->chunk.length = 0;
}

/* Is the descriptor still our file, and does the file still have a name? */
static bool is_there(struct rat_outlet *outlet)
{
    struct stat found;
    if (fstat(outlet->writer.fd, &found) != 0 || found.st_dev != outlet->device || found.st_ino != outlet->inode) {
        rat_own_file_remove(outlet->writer.fd); /* the host closed it: hands off, the number may be its own by now */
        outlet->writer.fd = -1;
        return false;
    }
    return found.st_nlink > 0;
}

static void give_up_segment(struct rat_outlet *outlet)
{
    if (outlet->kept)
        drop_kept(outlet);
    if (outlet->writer.fd >= 0)
        rat_segment_close(&outlet->writer);
    outlet->writer.fd = -1;
    if (!outlet->closed)
        next_number(outlet);
    outlet->opened = outlet->closed = false;
}

void rat_outlet_resume(struct rat_outlet *outlet, const struct rat_segment_writer *writer)
{
    struct stat found = {0};
    outlet->writer = *writer;
    (void)fstat(writer->fd, &found);
    outlet->device = found.st_dev;
    outlet->inode = found.st_ino;
    outlet->opened = writer->length > 0;
    outlet->opened_at = outlet->head->start;
}

static enum rat_status create_file(struct rat_outlet *outlet)
{
    struct rat_live_head *head = outlet->head;
    enum rat_status status = RAT_EXISTS;
    for (int tries = 0; tries < NAME_TRIES && status == RAT_EXISTS; tries++) {
        char name[RAT_SEGMENT_NAME_MAX];
        rat_outlet_name(head, segment_number(outlet), name);
        snprintf(head->part, sizeof head->part, "%s" RAT_SEGMENT_PART, name);
        status = rat_segment_create(&outlet->writer, head->out_dir, name);
        if (status == RAT_NOT_FOUND && make_dir(head->out_dir) == RAT_OK)
            status = rat_segment_create(&outlet->writer, head->out_dir, name);
        if (status == RAT_EXISTS)
            next_number(outlet);
    }
    if (status != RAT_OK) {
        outlet->writer.fd = -1;
        return status;
    }
    struct stat found = {0};
    (void)fstat(outlet->writer.fd, &found); /* of a descriptor we just got */
    outlet->device = found.st_dev;
    outlet->inode = found.st_ino;
    if (head->file_mode == 0640) /* the file is made 0600; where this fails it stays so, and only the owner can read */
        (void)fchmod(outlet->writer.fd, 0640);
    outlet->opened_at = rat_anchor_take((enum rat_clock_kind)head->clock);
    rat_encoder_begin_segment(outlet->encoder);
    RAT_TEST_POINT("outlet.created");
    return RAT_OK;
}

static enum rat_status append(struct rat_outlet *outlet)
{
    uint64_t before = rat_clock_ns(CLOCK_MONOTONIC);
    enum rat_status status = rat_segment_append(&outlet->writer, outlet->chunk.bytes, outlet->chunk.length);
    outlet->counts.write_ns += rat_clock_ns(CLOCK_MONOTONIC) - before;
    if (status != RAT_OK)
        return status;
    rat_encoder_settle(outlet->encoder, true);
    outlet->kept = false;
    outlet->counts.chunks++;
    outlet->counts.bytes += outlet->chunk.length;
    outlet->chunk.length = 0;
    return RAT_OK;
}

/* A lane-0 chunk, encoded and appended at once; after a failure it is as if it had not been tried. */
static enum rat_status session_chunk(struct rat_outlet *outlet, enum rat_reason reason,
                                     const struct rat_dict_view *dict, const struct rat_outlet_marks *marks)
{
    struct rat_live_head *head = outlet->head;
    uint64_t sequence = atomic_load_explicit(&head->session_seq, memory_order_relaxed) + 1; /* its only writer */
    struct rat_anchor now = rat_anchor_take((enum rat_clock_kind)head->clock);
    struct rat_chunk_info info = {
        .session = head,
        .segment = segment_number(outlet),
        .sequence = sequence,
        .reason = reason,
        .start = reason == RAT_REASON_OPENING ? now : outlet->opened_at,
        .end = now,
        .marks = marks != NULL ? marks->lane : NULL,
        .mark_count = marks != NULL ? marks->count : 0,
        .with_session = reason == RAT_REASON_OPENING,
    };
    outlet->chunk.length = 0;
    enum rat_status status = rat_encoder_session_chunk(outlet->encoder, &info, dict, &outlet->chunk);
    if (status == RAT_OK)
        status = append(outlet);
    if (status != RAT_OK) {
        drop_kept(outlet);
        return status;
    }
    atomic_store_explicit(&head->session_seq, sequence, memory_order_release); /* after the append, for recovery */
    return RAT_OK;
}

static enum rat_status open_segment(struct rat_outlet *outlet)
{
    if (outlet->writer.fd >= 0 && !is_there(outlet))
        give_up_segment(outlet);
    if (outlet->writer.fd >= 0 && outlet->closed) {
        enum rat_status status = rat_outlet_publish(outlet);
        if (status != RAT_OK && status != RAT_NOT_FOUND)
            return status;
    }
    if (outlet->writer.fd < 0) {
        enum rat_status status = create_file(outlet);
        if (status != RAT_OK)
            return status;
    }
    if (!outlet->opened) {
        enum rat_status status = session_chunk(outlet, RAT_REASON_OPENING, NULL, NULL);
        if (status != RAT_OK)
            return status;
        outlet->opened = true;
    }
    return RAT_OK;
}

enum rat_status rat_outlet_ready(struct rat_outlet *outlet)
{
    enum rat_status status = open_segment(outlet);
    if (status != RAT_OK)
        outlet->counts.failed_writes++;
    return status;
}

enum rat_status rat_outlet_encode(struct rat_outlet *outlet, struct rat_chunk_info *info, const uint64_t *words,
                                  uint32_t count, uint32_t events, uint64_t base_ticks,
                                  const struct rat_dict_view *dict)
{
    info->session = outlet->head;
    info->segment = segment_number(outlet);
    outlet->chunk.length = 0;
    uint64_t before = rat_clock_ns(CLOCK_MONOTONIC);
    enum rat_status status = rat_encoder_lane_chunk(outlet->encoder, info, words, count, events, base_ticks, dict,
                                                    &outlet->chunk);
    outlet->counts.encode_ns += rat_clock_ns(CLOCK_MONOTONIC) - before;
    outlet->kept = status == RAT_OK;
    return status;
}

enum rat_status rat_outlet_append(struct rat_outlet *outlet)
{
    enum rat_status status = append(outlet);
    if (status != RAT_OK)
        outlet->counts.failed_writes++;
    return status;
}

bool rat_outlet_is_large(const struct rat_outlet *outlet, uint64_t bytes)
{
    return outlet->writer.fd >= 0 && outlet->opened && outlet->writer.length >= bytes;
}

bool rat_outlet_is_old(const struct rat_outlet *outlet, uint64_t age_ns, uint64_t now_ns)
{
    return outlet->writer.fd >= 0 && outlet->opened && now_ns - outlet->opened_at.monotonic_ns >= age_ns;
}

/* ---------------------------------------------------------------- its end */

enum rat_status rat_outlet_finish(struct rat_outlet *outlet, enum rat_reason reason, const struct rat_dict_view *dict,
                                  const struct rat_outlet_marks *marks)
{
    if (outlet->closed)
        return RAT_OK;
    enum rat_status status = session_chunk(outlet, reason, dict, marks);
    if (status != RAT_OK) {
        outlet->counts.failed_writes++;
        return status;
    }
    RAT_TEST_POINT("outlet.closing");
    outlet->closed = true;
    next_number(outlet);
    RAT_TEST_POINT("outlet.numbered");
    return RAT_OK;
}

enum rat_status rat_outlet_publish(struct rat_outlet *outlet)
{
    if (outlet->writer.fd >= 0 && !is_there(outlet)) {
        give_up_segment(outlet);
        return RAT_NOT_FOUND;
    }
    enum rat_status status = rat_segment_publish(&outlet->writer);
    if (status == RAT_OK) {
        outlet->counts.segments++;
        memcpy(outlet->published, outlet->writer.path, sizeof outlet->published);
    } else {
        outlet->counts.failed_writes++;
        rat_segment_close(&outlet->writer); /* whole and closed: a recovery only has to rename it */
    }
    outlet->writer.fd = -1;
    outlet->opened = outlet->closed = false;
    RAT_TEST_POINT("outlet.published");
    return status;
}

void rat_outlet_abandon(struct rat_outlet *outlet)
{
    if (outlet->writer.fd >= 0 && is_there(outlet))
        close(outlet->writer.fd);
    outlet->writer.fd = -1;
}
