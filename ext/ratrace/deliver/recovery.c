/* recovery.c - find what dead processes left. What is done with one session: salvage.c.
 *
 * First the live files, each under its lock; then part files without one. A part file whose session has a live file is
 * left to whoever has that: the live file is unlinked before the part file is published, so one that has none is either
 * finished or cannot be continued. Part files are read before they are locked, so that looking at one never keeps
 * another recovery from finishing it.
 *
 * The live files of a user's processes lie together, whatever directory they write to. One that cannot be read far
 * enough to say which is ours if a segment of its session lies here, and then a failure; else it is told of and left.
 *
 * POSIX locks do not exclude threads of one process: here a word with the pid does. A child forked meanwhile finds its
 * parent's pid there, which is as good as free.
 */
#include "deliver/recovery.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/testpoint.h"
#include "deliver/live_file.h"
#include "deliver/live_view.h"
#include "deliver/salvage.h"
#include "wire/segment.h"

#define EMPTY_S 60 /* a part file without a chunk may be somebody's who is about to lock it, unless it is older */

struct recovery {
    const char *out_dir;
    char live_dir[RAT_LIVE_PATH_MAX];
    rat_recovery_report report;
    void *user;
    const _Atomic uint32_t *cancel;
    struct rat_recovery *out;
    enum rat_status failure; /* the first one */
};

static __attribute__((format(printf, 2, 3))) void say(const struct recovery *r, const char *format, ...)
{
    if (r->report == NULL)
        return;
    char line[8192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    r->report(r->user, line);
}

static bool is_cancelled(const struct recovery *r)
{
    return r->cancel != NULL && atomic_load_explicit(r->cancel, memory_order_relaxed) != 0;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name), want = strlen(suffix);
    return length > want && strcmp(name + length - want, suffix) == 0;
}

static void add_result(struct recovery *r, const struct rat_salvage *result)
{
    r->out->segments += (uint32_t)result->segments;
    r->out->chunks += result->chunks;
    r->out->events += result->events;
    r->out->in_flight += result->in_flight;
    r->out->cut_bytes += result->cut_bytes;
}

static void failed(struct recovery *r, enum rat_status status, const char *name)
{
    if (r->out->failed++ == 0)
        r->failure = status;
    say(r, "cannot recover %s: %s", name, rat_status_text(status));
}

/* ---------------------------------------------------------------- live files */

/* Does a segment of the session lie here whose live file this is? The names of both tell the session. */
static bool has_segment(const struct recovery *r, const char *live_name)
{
    char session[11];
    snprintf(session, sizeof session, "-%.8s-", live_name);
    DIR *dir = opendir(r->out_dir);
    bool found = false;
    for (struct dirent *entry; dir != NULL && !found && (entry = readdir(dir)) != NULL;)
        found = strstr(entry->d_name, session) != NULL && strstr(entry->d_name, RAT_SEGMENT_SUFFIX) != NULL;
    if (dir != NULL)
        closedir(dir);
    return found;
}

static const char *remedy(enum rat_status status)
{
    switch (status) {
    case RAT_CORRUPT:
        return "; nothing of it can be recovered: remove it";
    case RAT_UNSUPPORTED:
        return "; recover with the version of ratrace that wrote it";
    case RAT_ACCESS:
        return "; recover as the user whose it is";
    default:
        return "";
    }
}

/* A live file that cannot be read. If it says where it writes to, that is here. */
static void refuse(struct recovery *r, int dir_fd, const char *name, enum rat_status status, bool placed)
{
    if (rat_live_view_holder(dir_fd, name) != 0) {
        r->out->alive++;
        return;
    }
    bool ours = placed || has_segment(r, name);
    if (!ours)
        r->out->unplaced++;
    else if (r->out->failed++ == 0)
        r->failure = status;
    say(r, "%s %s/%s: %s%s%s", ours ? "cannot recover" : "left alone", r->live_dir, name, rat_status_text(status),
        ours ? "" : ", and it may be another directory's", remedy(status));
}

static void recover_live(struct recovery *r, int dir_fd, const char *name)
{
    struct rat_live_view view;
    enum rat_status status = rat_live_view_open(dir_fd, name, r->out_dir, true, &view);
    switch (status) {
    case RAT_OK:
        break;
    case RAT_NOT_FOUND:
        return;
    case RAT_BUSY:
        r->out->alive++;
        return;
    case RAT_TORN:
        (void)unlinkat(dir_fd, name, 0); /* its owner died making it; nothing was recorded */
        return;
    default:
        refuse(r, dir_fd, name, status, view.placed);
        return;
    }
    RAT_TEST_POINT("recovery.locked");
    char path[RAT_LIVE_PATH_MAX + NAME_MAX + 2];
    snprintf(path, sizeof path, "%s/%s", r->live_dir, name);
    struct rat_salvage result = {0};
    bool power_lost = rat_live_view_is_other_boot(&view);
    status = rat_salvage_session(&view, path, &result);
    rat_live_view_close(&view);
    add_result(r, &result);
    if (status == RAT_BUSY) {
        r->out->alive++;
        return;
    }
    if (status != RAT_OK) {
        failed(r, status, name);
        return;
    }
    r->out->power_lost += power_lost;
    if (result.path[0] != '\0')
        say(r, "recovered %" PRIu64 " events into %s%s", result.events, result.path,
            power_lost ? " (written before the machine was restarted: what was not flushed is lost)" : "");
}

static bool has_live_file(const struct recovery *r, uint64_t hi, uint64_t lo)
{
    char name[40], path[RAT_LIVE_PATH_MAX + 64];
    rat_live_name(hi, lo, name);
    snprintf(path, sizeof path, "%s/%s", r->live_dir, name);
    struct stat file;
    return lstat(path, &file) == 0;
}

static void recover_live_files(struct recovery *r)
{
    char why[RAT_LIVE_PATH_MAX + 64];
    int fd = rat_live_dir_open(r->live_dir, false, why, sizeof why);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) { /* nobody has recorded with a live file here */
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *entry; !is_cancelled(r) && (entry = readdir(dir)) != NULL;)
        if (has_suffix(entry->d_name, RAT_LIVE_SUFFIX) && !rat_live_is_own(entry->d_name))
            recover_live(r, dirfd(dir), entry->d_name);
    closedir(dir);
}

/* ---------------------------------------------------------------- part files */

/* The first chunk's header. RAT_END: there is none. */
static enum rat_status read_first(const char *path, struct rat_chunk_header *out)
{
    struct rat_segment_reader *reader;
    enum rat_status status = rat_segment_open(path, &reader);
    if (status != RAT_OK)
        return status;
    struct rat_read read;
    do
        rat_segment_next(reader, &read);
    while (read.kind != RAT_READ_CHUNK && read.kind != RAT_READ_UNREADABLE && read.kind != RAT_READ_END);
    *out = read.header;
    rat_segment_reader_free(reader);
    return read.kind == RAT_READ_END ? RAT_END : RAT_OK;
}

static void recover_part(struct recovery *r, const char *name)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", r->out_dir, name) >= sizeof path)
        return;
    struct stat file;
    if (lstat(path, &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != geteuid() || rat_segment_is_owned(path))
        return;
    struct rat_chunk_header first;
    enum rat_status status = read_first(path, &first);
    if (status == RAT_NOT_FOUND)
        return;
    if (status == RAT_END ? time(NULL) - file.st_mtime < EMPTY_S
                          : status == RAT_OK && has_live_file(r, first.session_hi, first.session_lo))
        return;
    struct rat_salvage result = {0};
    if (status == RAT_OK || status == RAT_END)
        status = rat_salvage_part(path, &result);
    add_result(r, &result);
    if (status == RAT_BUSY || status == RAT_NOT_FOUND)
        return; /* another recovery was faster */
    if (status != RAT_OK)
        failed(r, status, name);
    else if (result.path[0] != '\0')
        say(r, "finished %s", result.path);
}

static enum rat_status recover_part_files(struct recovery *r)
{
    DIR *dir = opendir(r->out_dir);
    if (dir == NULL)
        return rat_status_from_errno(errno);
    for (struct dirent *entry; !is_cancelled(r) && (entry = readdir(dir)) != NULL;)
        if (has_suffix(entry->d_name, RAT_SEGMENT_SUFFIX RAT_SEGMENT_PART))
            recover_part(r, entry->d_name);
    closedir(dir);
    return RAT_OK;
}

/* ---------------------------------------------------------------- one at a time in this process */

static _Atomic pid_t recovering;

static bool enter(const struct recovery *r)
{
    pid_t me = getpid();
    while (!is_cancelled(r)) {
        pid_t seen = atomic_load_explicit(&recovering, memory_order_relaxed);
        /* acquire: files the last one closed are closed */
        if (seen != me && atomic_compare_exchange_strong_explicit(&recovering, &seen, me, memory_order_acquire,
                                                                  memory_order_relaxed))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

static void leave(void)
{
    atomic_store_explicit(&recovering, 0, memory_order_release);
}

enum rat_status rat_recover_until(const char *out_dir, const char *live_dir, rat_recovery_report report, void *user,
                                  const _Atomic uint32_t *cancel, struct rat_recovery *out)
{
    char real[PATH_MAX];
    *out = (struct rat_recovery){0};
    struct recovery r = {.report = report, .user = user, .cancel = cancel, .out = out, .out_dir = real};
    struct stat file;
    if (realpath(out_dir, real) == NULL)
        return rat_status_from_errno(errno);
    if (stat(real, &file) != 0 || !S_ISDIR(file.st_mode))
        return RAT_NOT_FOUND;
    enum rat_status status = rat_live_dir(live_dir, r.live_dir, sizeof r.live_dir);
    if (status != RAT_OK)
        return status;
    if (!enter(&r))
        return RAT_OK;
    recover_live_files(&r);
    status = recover_part_files(&r);
    leave();
    return r.failure != RAT_OK ? r.failure : status;
}

enum rat_status rat_recover(const char *out_dir, const char *live_dir, rat_recovery_report report, void *user,
                            struct rat_recovery *out)
{
    return rat_recover_until(out_dir, live_dir, report, user, NULL, out);
}
